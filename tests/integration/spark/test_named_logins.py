"""MSK IAM and Google's login in Spark: executors get in with the vendor's own class, and say why they don't."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_kcr.embedded.jars import resolve
from airflow_kcr.embedded.processes import happened
from airflow_kcr.kafka.logins import MECHANISMS
from tests.support.clouds import ACCOUNT, AUTHS, KEY, REGION, Clouds, clouds, java_libraries, managed_broker, settings
from tests.support.kafka import KafkaSet

LIFETIME = 20
PIPELINE = "airflow_kcr.embedded.flights.pipeline:process"
WHO = {"msk_iam": KEY, "google": ACCOUNT}
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def giver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clouds]:
    with clouds(tmp_path_factory.mktemp("clouds"), LIFETIME) as found:
        yield found


@pytest.fixture(scope="module")
def managed(giver: Clouds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSet]:
    with managed_broker(tmp_path_factory.mktemp("managed"), giver) as kafka:
        yield kafka


class Driver:
    """An application with its own Spark."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.begun = self.heard()

    def read(self, begin: int, end: int) -> dict[str, Any]:
        """Read a range, and return what came of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"read {begin} {end}\n")
        self._process.stdin.flush()
        return self.heard()

    def heard(self) -> dict[str, Any]:
        """Return the next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the application has ended"
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def driver(giver: Clouds, asked: Mapping[str, object], log: Path) -> Iterator[Driver]:
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.integration.spark.named_login_driver", json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, **giver.environment()},
        ) as process,
    ):
        try:
            yield Driver(process)
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize("auth", AUTHS)
def test_executors_log_in_renew_their_tokens_and_say_why_they_are_not_let_in(
    giver: Clouds, managed: KafkaSet, connector_jars: tuple[Path, ...], auth: str, tmp_path: Path
) -> None:
    topic = managed.topic(1)
    managed.fill(topic, {0: 40})
    own = settings(auth, managed.sasl_bootstrap_servers)
    jars = [str(jar) for jar in (*connector_jars, *resolve(java_libraries(auth)))]
    with driver(giver, {"settings": own, "topic": topic, "jars": jars}, tmp_path / "log") as application:
        assert application.begun == {"region": REGION if auth == "msk_iam" else None}
        assert application.read(0, 10) == {"read": list(range(10))}
        assert {who for who, _ in giver.logins} == {WHO[auth]}
        # The consumer goes on with the connection that the first token has opened. A token of MSK outlives a test.
        for begin in (10, 20):
            asked = len(giver.given)
            assert auth == "msk_iam" or happened(lambda: len(giver.given) > asked, within=3 * LIFETIME)  # noqa: B023
            assert application.read(begin, begin + 10) == {"read": list(range(begin, begin + 10))}
        giver.logins.clear()
    for why in ("denied", "behind"):
        giver.denied = {WHO[auth]} if why == "denied" else set()
        giver.clock = timedelta(hours=1) if why == "behind" else timedelta()
        with driver(giver, {"settings": own, "topic": topic, "jars": jars}, tmp_path / why) as application:
            failed = application.read(0, 10)["failed"]
        giver.denied, giver.clock = set(), timedelta()
        said = failed + (tmp_path / why).read_text()
        is_refused = auth == "msk_iam" or why == "denied"
        assert ("Access denied" if is_refused else "LoginException") in failed
        assert f"auth: {auth}, by Kafka's Java client, in the JVM of Spark's driver or executors" in failed
        assert MECHANISMS[auth].grant in failed
        assert not [secret for secret in giver.secrets if secret in said]


@pytest.mark.long
def test_a_library_that_spark_lacks_is_named_with_what_brings_it(
    giver: Clouds, connector_jars: tuple[Path, ...], tmp_path: Path
) -> None:
    asked = {"settings": settings("google", "b:1"), "topic": "t", "jars": [str(jar) for jar in connector_jars]}
    with driver(giver, asked, tmp_path / "log") as application:
        refused = application.begun["refused"]
    google = MECHANISMS["google"]
    assert f"--packages {google.package} --exclude-packages {google.excludes[0]}" in refused
    assert "auth: google needs" in refused


@pytest.mark.long
@pytest.mark.parametrize("auth", AUTHS)
def test_the_doctor_tries_the_login_of_both_sides(
    giver: Clouds, managed: KafkaSet, connector_jars: tuple[Path, ...], auth: str, tmp_path: Path
) -> None:
    own = settings(auth, managed.sasl_bootstrap_servers)
    group = {"group_id": managed.group_id(), "topics": [managed.topic(3)], "pipeline": PIPELINE}
    jars = [str(jar) for jar in (*connector_jars, *resolve(java_libraries(auth)))]
    asked = {"spec": json.dumps({"region": "r", "kafka": own, "groups": [group]}), "jars": jars}
    with driver(giver, asked, tmp_path / "log") as application:
        found = application.begun
    assert found["topics"][0] == "ok", found
    assert found["login"][0] == "ok"
    assert f"auth: {auth}: librdkafka has a token" in found["login"][1]
    assert found["spark_login"] == ["ok", f"auth: {auth}: Kafka's Java client, in Spark here, sees 3 partition(s)"]
    giver.denied = {WHO[auth]}
    with driver(giver, asked, tmp_path / "denied") as application:
        found = application.begun
    giver.denied = set()
    assert found["kafka"][0] == found["spark_login"][0] == "failed"
    assert "librdkafka, in this process" in found["kafka"][1]
    assert "Access denied" in found["spark_login"][1]
    assert MECHANISMS[auth].grant in found["spark_login"][1]
