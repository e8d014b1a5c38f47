"""Jars fetched through the machine's ordinary way to Maven Central, and what is said where that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_kcr.embedded import jars
from airflow_kcr.embedded.jars import JarSet, home, java, pyspark_jars, resolve, spark_connector
from airflow_kcr.embedded.processes import free_port
from airflow_kcr.errors import ConfigurationError, ServiceFailed, ToolMissing
from tests.support.endpoint import Receiver
from tests.support.jar_sets import POSTGRES_DRIVER, delta

# Small, and needs nothing.
SMALL = JarSet(name="small", coordinates="org.slf4j:slf4j-api:1.7.36", variable="KCR_TEST_JARS")


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KCR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"http://127.0.0.1:{free_port()}/maven2"
    monkeypatch.setenv("KCR_MAVEN_REPOSITORY", url)
    return url


@pytest.fixture
def empty_repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A repository that has nothing."""
    with Receiver(404) as server:
        url = server.url.replace("//", "//somebody:hunter2@") + "/maven2"
        monkeypatch.setenv("KCR_MAVEN_REPOSITORY", url)
        yield url


def test_jars_are_fetched_once(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolve(SMALL)
    assert [jar.name for jar in found] == ["slf4j-api-1.7.36.jar"]
    monkeypatch.setenv("KCR_MAVEN_REPOSITORY", f"http://127.0.0.1:{free_port()}/")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert resolve(SMALL) == found


def test_a_jar_that_was_cut_short_is_fetched_again(empty_home: Path) -> None:
    (jar,) = resolve(SMALL)
    whole = jar.read_bytes()
    jar.write_bytes(whole[:100])
    assert resolve(SMALL) == (jar,)
    assert jar.read_bytes() == whole


def test_processes_that_need_the_same_jars_at_once_all_get_them(empty_home: Path, pytestconfig: pytest.Config) -> None:
    program = (
        "from airflow_kcr.embedded.jars import *; "
        "print(*resolve(JarSet(name='small', coordinates='org.slf4j:slf4j-api:1.7.36', variable='KCR_TEST_JARS')))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(pytestconfig.rootpath)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=500) for process in running]
    assert [process.returncode for process in running] == [0, 0], answers
    assert {told.strip() for told, _ in answers} == {str(*resolve(SMALL))}
    # No draft is left, and no second copy.
    assert len(list((empty_home / "jars").iterdir())) == 1


def test_a_repository_out_of_reach_is_named(empty_home: Path, unreachable: str) -> None:
    with pytest.raises(ServiceFailed) as caught:
        resolve(SMALL)
    assert "org.slf4j:slf4j-api:1.7.36 could not be downloaded" in caught.value.message
    assert unreachable in caught.value.message
    assert "KCR_MAVEN_REPOSITORY" in caught.value.message
    assert "Connection refused" in caught.value.message
    assert list((empty_home / "jars").iterdir()) == []


def test_what_a_repository_does_not_have_is_named_and_its_password_is_not(
    empty_home: Path, empty_repository: str
) -> None:
    with pytest.raises(ServiceFailed) as caught:
        resolve(SMALL)
    assert "slf4j-api" in caught.value.message
    assert "not found" in caught.value.message
    assert "http://127.0.0.1:" in caught.value.message
    assert "hunter2" not in caught.value.message


def test_a_download_that_failed_can_be_tried_again(
    empty_home: Path, empty_repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServiceFailed):
        resolve(SMALL)
    monkeypatch.delenv("KCR_MAVEN_REPOSITORY")
    assert len(resolve(SMALL)) == 1


def test_other_coordinates_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCR_TEST_JARS", "a.b:c_2.13:1.0, d:e:2")
    assert SMALL.wanted == (("a.b", "c_2.13", "1.0"), ("d", "e", "2"))


@pytest.mark.parametrize("text", ["kafka", "a:b", "a:b:c:d", "a:b:<c>", "a:b:1,"])
def test_coordinates_that_are_none_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCR_TEST_JARS", text)
    with pytest.raises(ConfigurationError, match=r"KCR_TEST_JARS is .* write group:artifact:version"):
        resolve(SMALL)


def test_the_connector_comes_without_what_spark_ships(connector_jars: tuple[Path, ...]) -> None:
    names = {jar.name.rsplit("-", 1)[0] for jar in connector_jars}
    assert names >= {"spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients"}
    assert "commons-pool2" in names
    assert not names & spark_connector().without
    assert list(pyspark_jars().glob("hadoop-client-runtime-*"))  # the largest of what was left out


@pytest.mark.long
def test_delta_comes_without_what_spark_ships(delta_jars: tuple[Path, ...]) -> None:
    ((_, artifact, _),) = delta().wanted
    assert {jar.name.rsplit("-", 1)[0] for jar in delta_jars} == {
        *(artifact, "delta-storage", "delta-kernel-api", "delta-kernel-defaults", "delta-kernel-unitycatalog"),
        *("unitycatalog-client", "unitycatalog-hadoop", "jackson-datatype-jdk8"),
    }


def test_the_postgres_driver_can_be_fetched() -> None:
    ((_, artifact, version),) = POSTGRES_DRIVER.wanted
    assert [jar.name for jar in resolve(POSTGRES_DRIVER)] == [f"{artifact}-{version}.jar"]


def test_without_java_it_says_what_to_install(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ToolMissing, match=r"none by JAVA_HOME nor on the path; install a Java runtime, version 17"):
        resolve(SMALL)


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=f"JAVA_HOME is {tmp_path}, but there is no bin/java in it"):
        java()


@pytest.mark.parametrize(("version", "older"), [("1.8.0_292", 8), ("11.0.2", 11)])
def test_an_older_java_is_named(version: str, older: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'Picked up something' >&2\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ToolMissing, match=f"is Java {older}; install 17 or newer"):
        java()


def test_the_cache_is_where_the_user_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KCR_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert home() == tmp_path / "airflow-kcr"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert home() == Path.home() / ".cache" / "airflow-kcr"
    assert jars.repository() == os.environ.get("KCR_MAVEN_REPOSITORY", jars.MAVEN_CENTRAL)
