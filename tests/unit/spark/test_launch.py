"""Spark's JVM, started by PySpark's own launcher; a stand-in for spark-submit says what a test wants."""

from __future__ import annotations

import gc
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import ConfigurationError, ServiceFailed, ToolMissing
from airflow_kcr.spark import launch as launch_module
from airflow_kcr.spark.launch import fetched_alone, folder_of, launch
from airflow_kcr.spark.session import SparkSettings, open_session

pytest.importorskip("pyspark")
# PySpark leaves its pipe to a JVM that has ended to the garbage collector, which runs here and not in a later test.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _pipes_closed() -> Iterator[None]:
    yield
    gc.collect()


COORDINATE = "org.example:connector:1.0"


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts up a Spark whose spark-submit runs these lines."""
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("IVY", str(tmp_path / "ivy"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)

    def write(body: str) -> None:
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)

    return write


def start(ivy: Path, coordinates: str = COORDINATE) -> None:
    from pyspark import SparkConf

    conf = SparkConf(loadDefaults=False).set("spark.jars.ivy", str(ivy))
    launch(conf.set("spark.jars.packages", coordinates) if coordinates else conf)


UNRESOLVED = """
echo ':: problems summary ::' >&2
echo 'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: org.example#connector]' >&2
echo '    at org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:540)' >&2
exit 1
"""


def test_what_spark_could_not_fetch_is_said_with_what_to_do(
    says: Callable[[str], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    says(UNRESOLVED)
    with pytest.raises(ServiceFailed) as caught:
        start(tmp_path / "ivy")
    assert "[unresolved dependency: org.example#connector]" in caught.value.message
    assert "a Maven repository can be reached" in caught.value.message
    assert "Java 17" not in caught.value.message
    assert ":: problems summary ::" in capfd.readouterr().err
    assert [path.name for path in (tmp_path / "ivy").iterdir()] == [".kcr-lock"]


def test_a_setting_that_java_refuses_is_said(says: Callable[[str], None], tmp_path: Path) -> None:
    says("echo 'Invalid maximum heap size: -Xmxlots' >&2; echo 'Error: Could not create the JVM.' >&2; exit 1")
    with pytest.raises(ServiceFailed, match=r"did not start: Invalid maximum heap size: -Xmxlots$"):
        start(tmp_path / "ivy", "")


def test_a_jvm_that_says_nothing_is_told_as_that(says: Callable[[str], None], tmp_path: Path) -> None:
    says("exit 1")
    with pytest.raises(ServiceFailed, match="it said nothing"):
        start(tmp_path / "ivy", "")


@pytest.mark.parametrize(
    "frozen", ["kill -STOP $$", "sh -c 'kill -STOP $$' & wait", "exit 0"], ids=["itself", "its launcher", "ended well"]
)
def test_a_jvm_that_is_frozen_as_it_starts_is_killed_in_time(
    says: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: str
) -> None:
    # PySpark's launcher waits for ever, also for one that ends without an error and without having started anything.
    monkeypatch.setattr(launch_module, "LAUNCHED_WITHIN", 1.0)
    says(f"echo 'Picked up JAVA_TOOL_OPTIONS' >&2; {frozen}")
    began, before = time.monotonic(), running()
    with pytest.raises(ServiceFailed, match=r"did not start within 1 s, and was killed: Picked up JAVA_TOOL_OPTIONS$"):
        start(tmp_path / "ivy", "")
    assert time.monotonic() - began < 10
    assert happened(lambda: running() <= before, within=5)


def running() -> set[int]:
    """The processes that this one has started, and those that they have."""
    children = psutil.Process().children(recursive=True)
    return {one.pid for one in children if one.is_running() and one.status() != psutil.STATUS_ZOMBIE}


def test_java_is_missed_only_where_it_is_missing(
    says: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says("echo 'JAVA_HOME is not set' >&2; exit 1")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match=r"none by JAVA_HOME nor on the path; install a Java runtime, version 17"):
        start(tmp_path / "ivy", "")


def test_of_applications_that_start_together_one_fetches_at_a_time(says: Callable[[str], None], tmp_path: Path) -> None:
    # Which has to take a while, or they would not meet.
    fetching = 'mkdir "$IVY/half-written" || { echo "Error: half a jar" >&2; exit 1; }; sleep 0.3; '
    says(fetching + 'rmdir "$IVY/half-written"; echo "Error: none" >&2; exit 1')
    told: list[str] = []

    def fetch() -> None:
        try:
            start(tmp_path / "ivy")
        except ServiceFailed as error:
            told.append(error.message)

    starting = [threading.Thread(target=fetch) for _ in range(4)]
    for one in starting:
        one.start()
    for one in starting:
        one.join()
    assert ["Error: none" in one for one in told] == [True] * 4


# -- the lock itself ---------------------------------------------------------------------------------------------------


def settings(ivy: Path) -> dict[str, str]:
    return {"spark.jars.ivy": str(ivy), "spark.jars.packages": COORDINATE}


def test_whoever_finds_another_fetching_waits_and_says_for_whom_if_it_takes_too_long(tmp_path: Path) -> None:
    late = rf"another process has been fetching jars into {tmp_path} for 0\.2 s"
    with (
        fetched_alone(settings(tmp_path)),
        pytest.raises(ServiceFailed, match=late),
        fetched_alone(settings(tmp_path), within=0.2),
    ):
        pass


def test_where_the_jars_are_there_nobody_waits(tmp_path: Path) -> None:
    with fetched_alone(settings(tmp_path)):
        pass
    with fetched_alone(settings(tmp_path)), fetched_alone(settings(tmp_path), within=0):
        pass


def test_other_jars_are_fetched_alone_again(tmp_path: Path) -> None:
    with fetched_alone(settings(tmp_path)):
        pass
    others = {**settings(tmp_path), "spark.jars.packages": "org.example:other:1.0"}
    with fetched_alone(others), pytest.raises(ServiceFailed), fetched_alone(others, within=0):
        pass


def test_without_coordinates_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    with fetched_alone({"spark.jars.ivy": str(tmp_path / "ivy")}):
        pass
    assert not (tmp_path / "ivy").exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "ivy").write_text("no folder")
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}/ivy, which can't be written .* spark\.jars\.ivy"):
        start(tmp_path / "ivy")


def test_the_cache_is_spark_s_own_unless_the_settings_name_one(tmp_path: Path) -> None:
    assert folder_of({}) == Path.home() / ".ivy2.5.2"
    assert folder_of({"spark.jars.ivy": str(tmp_path)}) == tmp_path


# -- jars that are named -----------------------------------------------------------------------------------------------


def test_jars_that_are_not_there_are_named_before_spark_starts(says: Callable[[str], None], tmp_path: Path) -> None:
    says(f"touch {tmp_path}/started; exit 1")
    there = tmp_path / "connector.jar"
    there.touch()
    jars = (
        str(there),
        f"file://{there}",
        f"{tmp_path}/*.jar",
        "hdfs://nodes/x.jar",
        "/nowhere/x.jar",
        "/nowhere/*.jar",
    )
    with pytest.raises(ConfigurationError, match=r"no jar at\n  /nowhere/x\.jar\n  /nowhere/\*\.jar\ncorrect the path"):
        open_session(SparkSettings(app_name="a", jars=jars))
    assert not (tmp_path / "started").exists()
