from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy.engine import URL, make_url

from airflow_kcr.errors import BrokerUnavailable
from airflow_kcr.goals import CheckpointExists, RegionReaches, RequestPublished, WaitingFor
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.values import CheckpointNumber, DesiredState, GroupId, RegionName, RequestId
from airflow_kcr.spec import RegionSpec
from airflow_kcr.triggers import probes
from airflow_kcr.triggers import waits as poller_module
from airflow_kcr.triggers.payloads import LagBelow, Progresses, Status, TriggerAnswer
from airflow_kcr.triggers.probes import StoreProbes
from airflow_kcr.triggers.waits import Poller, TriggerWait
from tests.support.breaking_proxy import Way
from tests.support.driver import PAUSE, START, STOP, Driver
from tests.support.live_region import SPEC, FakeCluster, live_region
from tests.support.plans import statements
from tests.unit.triggers.conftest import running, until

TICK = timedelta(seconds=0.05)
HOOK = KcrHook()
PAUSED = RegionReaches(state=DesiredState.PAUSED)
STOPPED = RegionReaches(state=DesiredState.STOPPED)
PUBLISHED = RequestPublished(request_id=RequestId("n"))


def waits(
    driver: Driver, waiting_for: WaitingFor, *, deadline: float = 60, asked_before: float = 0, hook: KcrHook = HOOK
) -> TriggerWait:
    """Return a wait that began N seconds ago."""
    _, now = driver.store.read(driver.name)
    return TriggerWait(
        region=driver.name,
        waiting_for=waiting_for,
        hook=hook,
        deadline=deadline,
        asked_at=now - timedelta(seconds=asked_before),
    )


def answered(url: URL | str, one: TriggerWait) -> TriggerAnswer:
    """Have one wait answered, in an event loop of its own."""
    found: list[TriggerAnswer] = []

    async def main() -> None:
        poller = Poller.at(make_url(url), TICK)
        found.append(await poller.wait(one))
        await until(lambda: not poller.is_running)

    running(main)
    return found[0]


@contextmanager
def asking(url: str) -> Iterator[psycopg.Connection]:
    """Lend a connection of the test's own, which is not called `kcr`."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        yield connection


def connections(url: str) -> int:
    """Return how many connections the package holds to a database."""
    with asking(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'kcr'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_forty_who_wait_share_one_connection_which_is_closed_with_the_last(
    driver: Driver, store_connection: str
) -> None:
    batch = driver.start_batch(driver.member(0))
    driver.handle(PAUSE)
    before = connections(store_connection)

    async def main() -> None:
        poller = Poller.at(make_url(store_connection), TICK)
        tasks = [asyncio.create_task(poller.wait(waits(driver, PAUSED))) for _ in range(40)]
        await until(lambda: connections(store_connection) == before + 1)
        assert poller.waiting == 40
        assert sum(thread.name.startswith("kcr") for thread in threading.enumerate()) <= 2  # the store's and Kafka's
        driver.finish_batch(batch)
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {Status.REACHED}
        await until(lambda: not poller.is_running and connections(store_connection) == before)

    running(main)


def test_a_look_at_regions_in_which_nothing_happens_is_one_statement_for_all(
    driver: Driver, store_connection: str
) -> None:
    driver.request_checkpoint("n")
    others = [RegionName(f"nowhere-{number}") for number in range(3)]
    checkpoint: dict[WaitingFor, KcrHook] = {PUBLISHED: HOOK, CheckpointExists(sequence=CheckpointNumber(9)): HOOK}
    with closing(StoreProbes(make_url(store_connection))) as asked:
        first = asked.probe_all({driver.name: checkpoint})
        with statements() as run:
            again = asked.probe_all({driver.name: checkpoint})
        assert len(run) == 1
        assert {key: one.missing for key, one in again.items()} == {key: one.missing for key, one in first.items()}
        assert {one.now for one in again.values()}.isdisjoint(one.now for one in first.values())
        driver.complete()
        driver.publish()
        after = asked.probe_all({driver.name: checkpoint, **{other: {PAUSED: HOOK} for other in others}})
        reached = after[driver.name, PUBLISHED].answer
        assert reached is not None
        assert reached.status is Status.REACHED
        for other in others:
            refused = after[other, PAUSED].answer
            assert refused is not None
            assert refused.status is Status.REFUSED


def test_a_region_that_makes_no_progress_is_read_again_when_something_happens(
    driver: Driver, store_connection: str
) -> None:
    driver.handle(KillRegion())
    driver.handle(START)
    wanted: dict[RegionName, dict[WaitingFor, KcrHook]] = {driver.name: {Progresses(): HOOK}}
    with closing(StoreProbes(make_url(store_connection))) as asked:
        for _ in range(2):  # the first one may do what is due
            asked.probe_all(wanted)
        with statements() as run:
            (found,) = asked.probe_all(wanted).values()
    assert len(run) == 1
    assert found.answer is None


def test_what_time_alone_brings_is_seen(driver: Driver, store_connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.request_checkpoint("n")
    checkpoint: dict[WaitingFor, KcrHook] = {PUBLISHED: HOOK}
    wanted = {driver.name: checkpoint}
    with closing(StoreProbes(make_url(store_connection))) as asked:
        asked.probe_all(wanted)
        with asking(store_connection) as connection:
            connection.execute("UPDATE kcr.lease SET valid_until = now() - interval '1 s'")
        with statements() as run:
            asked.probe_all(wanted)
        assert len(run) > 1, "a lease is over"
        with statements() as run:
            asked.probe_all(wanted)
        monkeypatch.setattr(probes, "REFRESH", 0.0)
        with statements() as more:
            asked.probe_all(wanted)
        assert len(run) < len(more), "it was long ago"


def test_it_begins_again_for_who_comes_when_it_has_ended(driver: Driver, store_connection: str) -> None:
    driver.handle(PAUSE)

    async def main() -> None:
        poller = Poller.at(make_url(store_connection), TICK)
        for _ in range(3):
            assert (await poller.wait(waits(driver, PAUSED))).status is Status.REACHED
            await until(lambda: not poller.is_running)
        assert Poller.at(make_url(store_connection), TICK) is poller

    running(main)


def test_each_loop_has_pollers_of_its_own(driver: Driver, store_connection: str) -> None:
    driver.handle(PAUSE)
    found: list[Poller] = []

    async def main() -> None:
        found.append(Poller.at(make_url(store_connection), TICK))
        await found[-1].wait(waits(driver, PAUSED))

    running(main)
    running(main)
    assert found[0] is not found[1]


def test_who_is_cancelled_is_forgotten_and_the_others_wait_on(driver: Driver, store_connection: str) -> None:
    driver.handle(PAUSE)
    driver.handle(START)

    async def main() -> None:
        poller = Poller.at(make_url(store_connection), TICK)
        driver.request_checkpoint("n")
        one, other = (asyncio.create_task(poller.wait(waits(driver, PUBLISHED))) for _ in range(2))
        await until(lambda: poller.waiting == 2)
        one.cancel()
        await asyncio.wait([one])
        assert poller.waiting == 1
        driver.complete()
        driver.publish()
        assert (await other).status is Status.REACHED

    running(main)


def test_a_time_out_names_who_is_missing(driver: Driver, store_connection: str) -> None:
    driver.request_checkpoint("n")
    driver.contribute(driver.member(0))
    answer = answered(store_connection, waits(driver, PUBLISHED, deadline=2))
    assert answer.status is Status.TIMED_OUT
    assert "gave up after 2 s" in answer.detail
    assert "waits for g[1] (t-2, t-3)" in answer.detail
    assert "g[0]" not in answer.detail


def test_the_time_before_the_trigger_ran_counts_by_the_clock_of_the_store(
    driver: Driver, store_connection: str
) -> None:
    driver.request_checkpoint("n")
    day = 86_400.0
    begun = waits(driver, PUBLISHED, deadline=day, asked_before=day - 0.5)
    assert answered(store_connection, begun).status is Status.TIMED_OUT


def test_what_can_not_be_reached_is_refused_and_nobody_else_is_disturbed(driver: Driver, store_connection: str) -> None:
    driver.request_checkpoint("n")
    nowhere = TriggerWait(region=RegionName("nowhere"), waiting_for=PAUSED, hook=HOOK, deadline=60)

    async def main() -> None:
        poller = Poller.at(make_url(store_connection), TICK)
        checkpoint = asyncio.create_task(poller.wait(waits(driver, PUBLISHED)))
        unknown, unpaused = await asyncio.gather(poller.wait(nowhere), poller.wait(waits(driver, PAUSED)))
        assert unknown.status is unpaused.status is Status.REFUSED
        assert "it has: flights" in unknown.detail
        assert "desired state running" in unpaused.detail
        driver.complete()
        driver.publish()
        assert (await checkpoint).status is Status.REACHED

    running(main)


def test_who_waits_does_what_is_due_where_nobody_else_is_left(store_connection: str) -> None:
    with live_region(store_connection, SPEC.replace("lease: 60s", "lease: 2s, renew: 500ms")) as driver:
        driver.up()
        driver.handle(STOP)
        for member in tuple(driver.processes):
            driver.crash(member)
        assert answered(store_connection, waits(driver, STOPPED)).status is Status.REACHED
        assert driver.region.state is RegionState.STOPPED


def test_a_drain_that_was_late_is_a_time_out_and_names_who_was_late(store_connection: str) -> None:
    spec = SPEC.replace("lease: 60s", "lease: 60s, drain: 2s") + "batch: {target: 500ms, timeout: 1s}\n"
    with live_region(store_connection, spec) as driver:
        driver.up()
        driver.request_checkpoint("n")
        driver.contribute(driver.member(0))
        answer = answered(store_connection, waits(driver, PUBLISHED))
        assert answer.status is Status.TIMED_OUT
        assert "late: g[1]" in answer.detail
        assert "ask again with the same request id (n)" in answer.detail


def test_a_store_that_comes_back_is_waited_for(driver: Driver, store_connection: str) -> None:
    way = Way(store_connection)
    driver.request_checkpoint("n")

    async def main() -> None:
        poller = Poller.at(way.url, TICK)
        task = asyncio.create_task(poller.wait(waits(driver, PUBLISHED)))
        await until(lambda: connections(store_connection) > 1)
        way.bar()
        driver.complete()
        driver.publish()
        await asyncio.sleep(10 * TICK.total_seconds())
        assert not task.done()
        way.open()
        assert (await task).status is Status.REACHED

    try:
        running(main)
    finally:
        way.bar()


def test_a_store_that_stays_away_is_the_answer_for_all(
    driver: Driver, store_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller_module, "STORE_AWAY", 0.5)
    way = Way(store_connection)
    way.bar()
    driver.request_checkpoint("n")

    async def main() -> None:
        poller = Poller.at(way.url, TICK)
        waiting = [waits(driver, PUBLISHED), waits(driver, PAUSED)]
        answers = await asyncio.gather(*map(poller.wait, waiting))
        assert {answer.status for answer in answers} == {Status.STORE_AWAY}
        assert f"127.0.0.1:{way.port}" in answers[0].detail
        await until(lambda: not poller.is_running)

    running(main)


def test_a_deadline_holds_while_the_store_is_away(driver: Driver, store_connection: str) -> None:
    way = Way(store_connection)
    way.bar()
    answer = answered(way.url, waits(driver, PAUSED, deadline=0.5))
    assert answer.status is Status.TIMED_OUT
    assert "waiting for the store" in answer.detail


def test_a_store_that_hangs_keeps_no_other_trigger_from_running(driver: Driver, store_connection: str) -> None:
    driver.handle(PAUSE)

    async def main() -> None:
        poller = Poller.at(make_url(store_connection), TICK)
        await poller.wait(waits(driver, PAUSED))  # what has to be imported is
        with asking(store_connection) as held, held.transaction():
            held.execute("LOCK TABLE kcr.region IN ACCESS EXCLUSIVE MODE")
            task = asyncio.create_task(
                poller.wait(TriggerWait(region=driver.name, waiting_for=PAUSED, hook=HOOK, deadline=60))
            )
            # Had it waited in this thread, its wait could not be seen: the query would come before or after it.
            async with asyncio.timeout(30):
                while held.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,):
                    await asyncio.sleep(TICK.total_seconds())
            assert not task.done()
        assert (await task).status is Status.REACHED

    running(main)


def test_a_mistake_in_the_code_fails_those_who_wait_instead_of_leaving_them(
    driver: Driver, store_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(poller_module, "_probe", mistaken)

    async def main() -> None:
        poller = Poller.at(make_url(store_connection), TICK)
        ended = await asyncio.gather(*(poller.wait(waits(driver, PAUSED)) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in ended] == [ZeroDivisionError] * 3
        assert not poller.is_running

    running(main)


def test_what_the_poller_logs_belongs_to_no_trigger(
    driver: Driver, store_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = contextvars.ContextVar("trigger", default="none")
    driver.handle(PAUSE)
    seen: list[str] = []
    expire = Poller._expire

    def spying(self: Poller, now: float) -> None:
        seen.append(trigger.get())
        expire(self, now)

    monkeypatch.setattr(Poller, "_expire", spying)

    async def main() -> None:
        trigger.set("the first one")
        await Poller.at(make_url(store_connection), TICK).wait(waits(driver, PAUSED))

    running(main)
    assert set(seen) == {"none"}


# -- what Kafka has to be asked for ------------------------------------------------------------------------------------


class FakeHook(KcrHook):
    """A hook by which Kafka is a cluster that says what a test wants."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.silent_until: threading.Event | None = None

    def store_url(self) -> URL:
        raise AssertionError("the poller has a connection already")

    def cluster(self, spec: RegionSpec, group: GroupId) -> AbstractContextManager[FakeCluster]:
        if self.silent_until is not None:
            assert self.silent_until.wait(20)
            raise BrokerUnavailable("no broker of broker.invalid:9092 answered; tried for 20.0 s")
        return self._cluster.clusters(spec, group)  # type: ignore[return-value]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka is asked often."""
    monkeypatch.setattr(poller_module, "KAFKA_INTERVAL", TICK.total_seconds())


@pytest.mark.usefixtures("often")
def test_lag_is_waited_for_and_the_partitions_that_are_behind_are_named(driver: Driver, store_connection: str) -> None:
    cluster = FakeCluster(ends={0: 0, 1: 7, 2: 100, 3: 0})
    hook = FakeHook(cluster)

    async def main() -> None:
        poller = Poller.at(make_url(store_connection), TICK)
        late = await poller.wait(waits(driver, LagBelow(records=50), deadline=0.7, hook=hook))
        assert late.status is Status.TIMED_OUT
        assert (
            "it is 107 offsets behind; g:t-2 is 100 offsets behind (claimed by g[1]); g:t-1 is 7 offsets behind"
            in late.detail
        )
        task = asyncio.create_task(poller.wait(waits(driver, LagBelow(records=50), hook=hook)))
        await until(lambda: poller.waiting == 1)
        cluster.ends[2] = 42
        assert (await task).status is Status.REACHED

    running(main)


@pytest.mark.long
@pytest.mark.usefixtures("often")
def test_a_broker_that_does_not_answer_keeps_nobody_from_hearing_of_the_store(
    driver: Driver, store_connection: str
) -> None:
    hook = FakeHook(FakeCluster())
    hook.silent_until = threading.Event()
    batch = driver.start_batch(driver.member(0))
    driver.handle(PAUSE)

    async def main() -> None:
        poller = Poller.at(make_url(store_connection), TICK)
        lag = asyncio.create_task(poller.wait(waits(driver, LagBelow(records=5), deadline=8.0, hook=hook)))
        paused = asyncio.create_task(poller.wait(waits(driver, PAUSED)))
        await until(lambda: poller.waiting == 2)
        driver.finish_batch(batch)
        assert (await paused).status is Status.REACHED
        assert not lag.done()
        assert (await lag).status is Status.TIMED_OUT
        assert hook.silent_until is not None
        hook.silent_until.set()

    running(main)


@pytest.mark.usefixtures("often")
def test_a_broker_that_is_away_is_waited_for(driver: Driver, store_connection: str) -> None:
    cluster = FakeCluster(ends=dict.fromkeys(range(4), 0), is_away=True)
    lag = LagBelow(records=1)
    late = answered(store_connection, waits(driver, lag, deadline=3, hook=FakeHook(cluster)))
    assert late.status is Status.TIMED_OUT
    assert "waiting for Kafka: no broker" in late.detail
    cluster.is_away = False
    assert answered(store_connection, waits(driver, lag, hook=FakeHook(cluster))).status is Status.REACHED
