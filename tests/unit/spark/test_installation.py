from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from airflow_kcr.errors import ConfigurationError, ToolMissing
from airflow_kcr.spark import installation
from airflow_kcr.spark.installation import submit_environment


def program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Java is on the path, Spark is not."""
    program(tmp_path / "bin", "java")
    return {"PATH": str(tmp_path / "bin")}


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    spec = None
    if folder is not None:
        spec = ModuleSpec("pyspark", None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(installation, "find_spec", lambda name: spec)


def test_a_spark_home_counts_and_its_programs_come_first(environ: dict[str, str], tmp_path: Path) -> None:
    home = program(tmp_path / "spark" / "bin", "spark-submit").parents[1]
    found = submit_environment({**environ, "SPARK_HOME": str(home)})
    assert found == {"PATH": f"{home}/bin:{environ['PATH']}", "PYSPARK_DRIVER_PYTHON": sys.executable}


def test_what_is_on_the_path_needs_nothing_more(environ: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "bin", "spark-submit")
    assert submit_environment({**environ, "PYSPARK_DRIVER_PYTHON": "python9"}) == {}


def test_without_either_the_installed_pyspark_is_taken(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = program(tmp_path / "pyspark" / "bin", "spark-submit").parents[1]
    installed(monkeypatch, home)
    found = submit_environment(environ)
    assert (found["SPARK_HOME"], found["PATH"].split(":")[0]) == (str(home), f"{home}/bin")


def test_no_spark_at_all_says_what_to_install(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    with pytest.raises(ToolMissing, match=r"Spark is missing: .*install airflow-kcr\[spark\]"):
        submit_environment(environ)


def test_a_client_only_pyspark_is_not_enough(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, tmp_path)
    with pytest.raises(ToolMissing, match="a client without bin/spark-submit"):
        submit_environment(environ)


@pytest.mark.parametrize("variable", ["SPARK_HOME", "JAVA_HOME"])
def test_a_home_that_leads_nowhere_is_named(environ: dict[str, str], tmp_path: Path, variable: str) -> None:
    program(tmp_path / "bin", "spark-submit")
    with pytest.raises(ConfigurationError, match=f"{variable} is .*nowhere.*correct it"):
        submit_environment({**environ, variable: str(tmp_path / "nowhere")})


def test_no_java_says_what_to_install(tmp_path: Path) -> None:
    program(tmp_path / "other", "spark-submit")
    with pytest.raises(ToolMissing, match="Spark needs Java"):
        submit_environment({"PATH": str(tmp_path / "other")})
