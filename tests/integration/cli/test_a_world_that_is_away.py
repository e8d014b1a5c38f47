"""`kcr member run` where store and broker are away: it waits for both, and for nothing that refuses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import URL, make_url
from typer.testing import CliRunner

from airflow_kcr.api.regions import opened
from airflow_kcr.cli import app
from airflow_kcr.driver import process
from airflow_kcr.driver.application import MemberRun
from airflow_kcr.driver.process import run_members
from airflow_kcr.driver.task import RunningApplication
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import SpecOutdated
from airflow_kcr.protocol.region.events import StartFailed
from airflow_kcr.protocol.values import GroupId, MemberId, RegionName
from airflow_kcr.runtime.host import End, Ended
from airflow_kcr.spark.session import SparkSettings
from tests.conftest import StartKafka
from tests.support.breaking_proxy import BreakingProxy
from tests.support.driver import Driver
from tests.support.live_region import SPEC, live_region

WITHIN = 60.0
MEMBERS = MemberRun(
    region=RegionName("flights"), members=(MemberId(GroupId("g"), 0),), spark=SparkSettings(app_name="flights")
)
WAITS = "region flights: its members wait up to 300 s to start"


@dataclass(slots=True)
class Ending:
    """Members that have ended as soon as they were started.

    Args:
        how: they ended.
        first: what happens before that.
    """

    how: dict[MemberId, Ended]
    first: Callable[[], None] = lambda: None
    is_ending: bool = True

    def wait(self, seconds: float) -> bool:
        """They have ended."""
        return True

    def ends(self) -> dict[MemberId, Ended]:
        """How."""
        self.first()
        return self.how

    def snapshots(self) -> tuple[()]:
        """Show nothing."""
        return ()

    def terminate(self) -> None:
        """There is nothing to end."""


def run(url: str, *more: str) -> tuple[int, str]:
    called = CliRunner().invoke(
        app, ["member", "run", "flights", "--group", "g", "--index", "0", "--store", url, *more], env={"COLUMNS": "400"}
    )
    return called.exit_code, called.stderr


def through(database_url: str, port: int) -> tuple[str, str]:
    """Return the path of a database's socket, and its URL through a proxy at a port."""
    target = make_url(database_url)
    query = {"sslmode": "disable", "gssencmode": "disable"}
    url: URL = target.set(host="127.0.0.1", port=port, query=query)
    return f"{target.query['host']}/.s.PGSQL.5432", url.render_as_string(hide_password=False)


@pytest.mark.long
@pytest.mark.parametrize("restarts", [False, True], ids=["the first start", "a restart for a changed spec"])
def test_a_start_waits_for_store_and_broker_and_tells_it_once(
    database_url: str,
    kafka_set: StartKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    restarts: bool,
) -> None:
    caplog.set_level(logging.INFO)
    kafka = kafka_set(1)
    kafka.topic(1, name="t")
    pipeline = tmp_path / f"started_late_{restarts}.py"
    pipeline.write_text("def process(batch, context): ...\n")
    spec = SPEC.replace("broker.invalid:9092", kafka.bootstrap_servers).replace("jobs.flights", str(pipeline))
    proxies = [BreakingProxy(through(database_url, 0)[0])]
    socket, url = through(database_url, proxies[0].port)

    def away() -> None:
        proxies[-1].close()
        kafka.broker(1).stop()

    outdated = Ended(how=End.REFUSED, error=SpecOutdated())
    lives = [Ending({}), *([Ending({MemberId(GroupId("g"), 0): outdated}, away)] if restarts else [])]

    @contextmanager
    def hosting(*_: Any) -> Iterator[Any]:  # noqa: ANN401 - as it is
        yield RunningApplication(application="none"), lives.pop()

    monkeypatch.setattr(process, "hosting", hosting)

    def bring_back(driver: Driver) -> None:
        assert happened(lambda: WAITS in caplog.text, within=WITHIN)
        proxies.append(BreakingProxy(socket, proxies[0].port))
        assert happened(lambda: bool(driver.region.start_failures), within=WITHIN)
        kafka.broker(1).start()

    if not restarts:
        away()
    with live_region(database_url, spec) as driver, ThreadPoolExecutor(1) as other:
        world = other.submit(bring_back, driver)
        with opened(url) as store:
            run_members(store, MEMBERS, start_within=timedelta(minutes=5))
        world.result(WITHIN)
        told = [event.body for event in driver.events if isinstance(event.body, StartFailed)]
    assert not lives
    lines = [record.getMessage() for record in caplog.records if record.name == "airflow_kcr.driver.starting"]
    assert [line.partition(":")[0] for line in lines] == ["region flights"] * len(lines)
    waits = [line for line in lines if line.startswith(WAITS)]
    assert len(waits) == 2 if restarts else 1, lines
    assert len(lines) == 2 * len(waits)
    assert [body.refusal.partition(":")[0] for body in told] == ["no answer for the id of the cluster"] * len(told)
    assert len(told) == 1
    proxies[-1].close()


def test_a_store_that_stays_away_is_given_up_in_time(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    status, said = run(through(database_url, 1)[1], "--start-within", "2s")
    assert (status, time.monotonic() - began >= 2) == (4, True)
    assert "nothing listens there" in said
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["region flights"]


@pytest.mark.parametrize("given", [("--start-within", "0s"), ()], ids=["by an option", "by the environment"])
def test_how_long_to_wait_may_be_nothing(
    database_url: str, given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KCR_START_WITHIN", "0s" if not given else "1h")
    status, _ = run(through(database_url, 1)[1], *given)
    assert (status, caplog.messages) == (4, [])


def test_a_database_of_a_wrong_name_is_not_waited_for(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    status, said = run(make_url(database_url).set(database="no_such").render_as_string(hide_password=False))
    assert (status, caplog.messages) == (4, [])
    assert "no_such" in said


def test_a_region_of_a_wrong_name_is_not_waited_for(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    status, _ = run(database_url)
    assert (status, caplog.messages) == (3, [])
