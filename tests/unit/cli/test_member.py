from __future__ import annotations

import pytest
from typer.testing import CliRunner

from airflow_kcr.cli import app

RUN = ("member", "run", "flights", "--group", "g", "--index", "0", "--store", "postgresql://nowhere.invalid/kcr")
CLEAN = ("checkpoint", "clean", "flights", "--store", "postgresql://nowhere.invalid/kcr")


@pytest.mark.parametrize(
    ("command", "option", "setting", "instead"),
    [
        (RUN, "--read-option", "kafka.sasl.jaas.config=hidden", "kafka settings of the spec"),
        (RUN, "--conf", "spark.hadoop.fs.s3a.secret.key=hidden", "spark-defaults.conf"),
        (CLEAN, "--conf", "spark.hadoop.fs.s3a.secret.key=hidden", "spark-defaults.conf"),
    ],
)
def test_a_secret_in_the_command_line_is_refused_by_name_before_anything_is_opened(
    command: tuple[str, ...], option: str, setting: str, instead: str
) -> None:
    result = CliRunner().invoke(app, [*command, option, setting], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert setting.partition("=")[0] in result.stderr
    assert instead in result.stderr
    assert "hidden" not in result.output


@pytest.mark.parametrize("text", ["hidden", "=hidden", " =hidden"])
def test_a_value_without_a_name_is_never_repeated(text: str) -> None:
    result = CliRunner().invoke(app, [*RUN, "--read-option", text], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "write NAME=VALUE" in result.stderr
    assert "hidden" not in result.output


@pytest.mark.parametrize(
    "url", ["postgresql://me:hidden@nowhere.invalid/kcr", "postgresql://nowhere.invalid/kcr?password=hidden"]
)
def test_a_password_in_the_store_s_address_is_warned_of(url: str) -> None:
    result = CliRunner().invoke(app, [*RUN[:-1], url, "--conf", "nothing"])
    assert "others on this machine can read the password in --store" in result.stderr
    assert "hidden" not in result.output
