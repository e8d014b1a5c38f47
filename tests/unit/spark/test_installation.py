from __future__ import annotations

import importlib.metadata
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path

import pytest

from airflow_kcr.embedded.jars import pyspark_jars
from airflow_kcr.errors import ConfigurationError, ToolMissing
from airflow_kcr.sinks.outputs import file_session
from airflow_kcr.spark import launch
from airflow_kcr.spark.launch import no_pyspark, pyspark_trouble, require_pyspark, submit_environment
from airflow_kcr.spark.session import SparkSettings, open_session


def program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Java is on `PATH`, Spark is not."""
    program(tmp_path / "bin", "java")
    return {"PATH": str(tmp_path / "bin")}


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    spec = None
    if folder is not None:
        spec = ModuleSpec("pyspark", None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(launch, "find_spec", lambda name: spec)


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


def test_a_pyspark_that_is_not_there_is_told_from_one_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    missing = no_pyspark(ImportError("No module named 'pyspark'", name="pyspark"))
    assert missing.message == "PySpark is not installed; install airflow-kcr[spark]"
    installed(monkeypatch, Path("/site-packages/pyspark"))
    broken = no_pyspark(ImportError("cannot import name 'SparkExecutorInfo'", name="pyspark.core.status"))
    assert broken.message == (
        "another package has overwritten a part of PySpark (cannot import name 'SparkExecutorInfo'): "
        f"`pip install --force-reinstall --no-deps pyspark=={version('pyspark')}` mends it"
    )


def test_a_pyspark_whose_import_fails_ends_a_member_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("from pyspark.core import SparkExecutorInfo\n")
    (tmp_path / "pyspark" / "core.py").write_text("")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ToolMissing, match=r"cannot import name 'SparkExecutorInfo'.*pip install --force-reinstall"):
        open_session(SparkSettings(app_name="a"))
    with pytest.raises(ToolMissing, match="pip install --force-reinstall"), file_session({}):
        pass
    with pytest.raises(ToolMissing, match="pip install --force-reinstall"):
        pyspark_jars()


def pyspark_at(folder: Path, monkeypatch: pytest.MonkeyPatch, *, files: str, metadata: str = "") -> None:
    """Have a PySpark be imported whose files say one version, and its metadata, if it has any, another."""
    (folder / "pyspark" / "sql").mkdir(parents=True)
    (folder / "pyspark" / "__init__.py").write_text(f"__version__ = '{files}'\nclass SparkContext: ...\n")
    (folder / "pyspark" / "sql" / "__init__.py").write_text("")
    if metadata:
        (folder / "pyspark-1.dist-info").mkdir()
        (folder / "pyspark-1.dist-info" / "METADATA").write_text(f"Name: pyspark\nVersion: {metadata}\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(folder))


def test_a_pyspark_of_which_an_older_package_has_overwritten_a_part_is_told_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark_at(tmp_path, monkeypatch, files="4.1.4", metadata="4.2.1")
    with pytest.raises(ToolMissing, match=r"PySpark 4\.2\.1 says that it is 4\.1\.4.*--no-deps pyspark==4\.2\.1"):
        open_session(SparkSettings(app_name="a"))


@pytest.mark.parametrize("metadata", ["4.2.1", ""], ids=["of the same line", "without metadata of its own"])
def test_a_pyspark_of_one_line_or_of_a_spark_elsewhere_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: str
) -> None:
    pyspark_at(tmp_path, monkeypatch, files="4.2.0" if metadata else "3.5.1", metadata=metadata)
    assert require_pyspark() == ("4.2.0" if metadata else "3.5.1")


def test_a_client_without_a_spark_is_told_from_a_broken_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark_at(tmp_path, monkeypatch, files="4.2.0")
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '4.2.0'\n")
    versions = {"pyspark-client": "4.2.0"}

    def version_of(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version_of)
    with pytest.raises(ToolMissing) as told:
        open_session(SparkSettings(app_name="a"))
    assert told.value.message == (
        "only pyspark-client 4.2.0 is installed, which has no Spark of its own; install airflow-kcr[spark]"
    )
    assert pyspark_trouble() is None
    versions["pyspark"] = "4.2.1"
    trouble = pyspark_trouble()
    assert trouble is not None
    assert trouble.message.endswith("`pip install --force-reinstall --no-deps pyspark==4.2.1` mends it")
