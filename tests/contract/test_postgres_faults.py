"""What only a real server can show: frozen and killed processes, lost answers, full queues, dead connections."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import takewhile
from time import monotonic
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool, QueuePool

from airflow_kcr import errors, libpq
from airflow_kcr.embedded.processes import happened
from airflow_kcr.ports import Renewal
from airflow_kcr.protocol.region import batches, commands
from airflow_kcr.protocol.region.rows import Batch, Lease, Member, Outcome, RegionState, ResetCause
from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    BatchId,
    Epoch,
    EventNumber,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RegionName,
    RequestId,
)
from airflow_kcr.store.postgres import build_engine, leases, ledger, listeners, region_reads
from airflow_kcr.store.postgres.session import Found, Session
from airflow_kcr.store.postgres.statements import Statement
from airflow_kcr.store.regions import RegionStore
from tests.support.breaking_proxy import Break, BreakingProxy, breaking_proxy
from tests.support.driver import GROUP, PAUSE, START, Driver, group_rules
from tests.support.plans import statements

pytestmark = pytest.mark.postgres

QUICK = Timeouts(lease=timedelta(seconds=3), renew=timedelta(seconds=1))
PATIENT = Timeouts(lease=timedelta(minutes=5), renew=timedelta(minutes=1))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine that gives up quickly; every connection has to be given back."""
    made = build_engine(database_url, timeouts=QUICK, application="kcr-test", connections=20)
    yield made
    assert isinstance(made.pool, QueuePool)
    assert made.pool.checkedout() == 0
    made.dispose()


@pytest.fixture
def rules() -> RegionRules:
    return RegionRules(groups={GROUP: group_rules(members=2)})


@pytest.fixture
def store(engine: Engine, rules: RegionRules) -> Iterator[RegionStore]:
    made = RegionStore(engine, lambda _: rules)
    yield made
    made.close()


@pytest.fixture
def driver(store: RegionStore, rules: RegionRules) -> Driver:
    made = Driver(rules=rules, transactions=store)
    made.up()
    return made


def execute(url: str, statement: str, **parameters: object) -> list[tuple[object, ...]]:
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        result = connection.execute(text(statement), parameters)
        return [tuple(row) for row in result] if result.returns_rows else []


def end_backends(url: str, state: str) -> None:
    """End every backend of the engine under test that is in a state, and wait until they are gone."""
    execute(
        url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name = 'kcr-test' AND state = :state AND datname = current_database()",
        state=state,
    )


# -- how connections are set up --------------------------------------------------------------------------------------


def test_every_connection_gives_up_in_time(engine: Engine) -> None:
    expected = {
        "idle_in_transaction_session_timeout": QUICK.idle_in_transaction_session_timeout,
        "lock_timeout": QUICK.lock_timeout,
        "statement_timeout": QUICK.statement_timeout,
    }
    with engine.connect() as connection:
        for name, span in expected.items():
            shown = connection.execute(
                text("SELECT make_interval(secs => setting::float / 1000) FROM pg_settings WHERE name = :n"),
                {"n": name},
            ).scalar_one()
            assert shown == span, name
        assert connection.execute(text("SHOW transaction_isolation")).scalar_one() == "read committed"
        assert connection.execute(text("SHOW application_name")).scalar_one() == "kcr-test"


def test_settings_of_the_url_are_kept(database_url: str) -> None:
    url = make_url(database_url).update_query_dict({"options": "-c work_mem=5MB -c lock_timeout=1"})
    engine = build_engine(url, timeouts=QUICK)
    with engine.connect() as connection:
        assert connection.execute(text("SHOW work_mem")).scalar_one() == "5MB"
        assert connection.execute(text("SHOW lock_timeout")).scalar_one() == "1800ms"
    engine.dispose()


# -- the store away ---------------------------------------------------------------------------------------------------


def test_a_store_that_is_not_there_is_unavailable_and_its_password_no_ones_business() -> None:
    with RegionStore.connect("postgresql://me:secret@127.0.0.1:1/kcr?password=secret", _none) as store:
        with pytest.raises(errors.StoreUnavailable, match=r"me@127\.0\.0\.1:1/kcr") as caught:
            store.names()
        assert "secret" not in str(caught.value)
        assert "(nothing listens there); tried for" in str(caught.value)
        assert not isinstance(caught.value, errors.StoreRefused)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda url: url.set(database="nowhere"), "has no database of that name"),
        (lambda url: url.set(username="nobody"), "refused the login"),
    ],
    ids=["database", "user"],
)
def test_a_server_that_refuses_an_address_says_what_is_wrong_with_it(
    database_url: str, wrong: Callable[[URL], URL], why: str
) -> None:
    url = wrong(make_url(database_url))
    with RegionStore.connect(url, _none) as store, pytest.raises(errors.StoreRefused, match=why):
        store.names()


def test_a_user_without_rights_is_refused(database_url: str, driver: Driver) -> None:
    with psycopg.connect(make_url(database_url).set(drivername="postgresql").render_as_string(False)) as admin:
        admin.execute("DROP ROLE IF EXISTS kcr_stranger")
        admin.execute("CREATE ROLE kcr_stranger LOGIN")
    url = make_url(database_url).set(username="kcr_stranger")
    with (
        RegionStore.connect(url, _none) as store,
        pytest.raises(errors.StoreRefused, match="may not use the kcr sch"),
    ):
        store.names()


def _none(spec: str) -> RegionRules:
    raise AssertionError(spec)


def test_pooled_connections_that_died_are_replaced_unnoticed(database_url: str, driver: Driver, engine: Engine) -> None:
    calls: list[Callable[[], object]] = [
        lambda: driver.start_batch(driver.member(0)),
        lambda: driver.handle(commands.Reconcile()),
        lambda: driver.store.read(driver.name),
        lambda: driver.handle(
            commands.Renew(member=driver.member(0), incarnation=Incarnation(1), lease=timedelta(seconds=3))
        ),
        driver.store.names,
    ]
    for call in calls:
        with engine.connect(), engine.connect(), engine.connect():
            pass
        end_backends(database_url, "idle")
        call()
    assert len(driver.batches) == 1


def test_a_connection_goes_back_to_the_pool_as_it_came(engine: Engine, rules: RegionRules) -> None:
    # Its next user may neither find its transactions read-only nor each statement in one of its own.
    with RegionStore(engine, lambda _: rules) as store:
        with pytest.raises(errors.UnknownRegion):
            store.read(RegionName("nowhere"))
        store.names()
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE kcr.tried ()"))
        connection.rollback()
        assert connection.execute(text("SELECT to_regclass('kcr.tried') IS NULL")).scalar_one()


@pytest.mark.parametrize("verb", ["decide", "admit"])
def test_a_backend_ended_before_commit_changes_nothing(database_url: str, driver: Driver, verb: str) -> None:
    before = driver.region, driver.events, driver.batches
    ended = threading.Event()

    def rule(region: Region, now: datetime) -> Region:
        if not ended.is_set():
            ended.set()
            end_backends(database_url, "idle in transaction")
        return region

    place = driver.partition(0)

    def failed(region: Region, now: datetime) -> Region:
        return replace(rule(region, now), failures=region.failures + 1)

    request = driver.batch_of(driver.member(0), {place: Range(Offset(0), Offset(7))})

    def begun(region: Region, now: datetime, command: commands.StartBatch) -> tuple[Region, Batch]:
        return batches.start(rule(region, now), now, command)

    calls: dict[str, Callable[[], object]] = {
        "decide": lambda: driver.change(failed),
        "admit": lambda: driver.store.admit(driver.name, request, begun),
    }
    with pytest.raises(errors.StoreUnavailable):
        calls[verb]()
    assert (driver.held.failures, driver.events, driver.batches) == (before[0].failures, before[1], before[2])
    assert dict(driver.held.claims) == dict(before[0].claims)


def test_what_was_read_stays_true_where_the_server_ends_the_transaction_afterwards(
    database_url: str, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, made = driver.region, region_reads.region_of

    def slowly(session: Session, name: RegionName, row: Found) -> Region:
        region = made(session, name, row)
        end_backends(database_url, "idle in transaction")
        return region

    monkeypatch.setattr(region_reads, "region_of", slowly)
    assert driver.store.read(driver.name)[0] == expected


READS: dict[str, Callable[[Driver], object]] = {
    "events": lambda driver: driver.store.events(driver.name, EventNumber(0)),
    "batches": lambda driver: tuple(driver.store.batches(driver.name)),
    "history": lambda driver: driver.store.history(driver.name).batches,
    "chronicle": lambda driver: tuple(driver.store.chronicle(driver.name).events(EventNumber(0), EventNumber(100))),
}


@pytest.mark.parametrize("what", READS)
def test_a_read_that_this_process_was_kept_from_going_on_with_begins_anew(
    database_url: str, driver: Driver, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    driver.process()
    read, rows = READS[what], Session.rows
    expected, kept = read(driver), list[object]()

    def later(session: Session, statement: Statement, **parameters: object) -> Sequence[Found]:
        if not kept:
            kept.append(statement)
            assert happened(lambda: not in_transaction(database_url), within=60)
        return rows(session, statement, **parameters)

    monkeypatch.setattr(Session, "rows", later)
    assert read(driver) == expected
    assert kept


def in_transaction(url: str) -> bool:
    """Whether the engine under test has an abandoned transaction."""
    ((count,),) = execute(
        url,
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE application_name = 'kcr-test' AND state = 'idle in transaction' AND datname = current_database()",
    )
    return bool(count)


def test_waiting_too_long_for_the_lock_is_busy_and_changes_nothing(database_url: str, driver: Driver) -> None:
    before = driver.events
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        # By other means than a store: its own timeouts would end it.
        with psycopg.connect(_dsn(database_url)) as connection:
            connection.execute("LOCK TABLE kcr.region IN ACCESS EXCLUSIVE MODE")
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(10)
        with pytest.raises(errors.StoreBusy, match="too long"):
            driver.handle(commands.Reconcile())
    finally:
        release.set()
        thread.join()
    assert driver.events == before


def _dsn(url: str) -> str:
    parsed = make_url(url)
    return psycopg.conninfo.make_conninfo(host=str(parsed.query["host"]), user=parsed.username, dbname=parsed.database)


# -- C25: a process frozen between the lock and COMMIT ----------------------------------------------------------------

FROZEN = """
import os, signal, sys
from datetime import timedelta
from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.store.regions import RegionStore
from dataclasses import replace
from tests.support.driver import GROUP, group_rules

rules = RegionRules(groups={GROUP: group_rules(members=2)})
times = Timeouts(lease=timedelta(seconds=3), renew=timedelta(seconds=1))

def freeze(region, now):
    print("locked", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    return replace(region, failures=region.failures + 1), None

with RegionStore.connect(sys.argv[1], lambda text: rules, timeouts=times) as store:
    store.names()
    try:
        store.decide("flights", freeze)
        print("committed", flush=True)
    except KcrError as error:
        print(type(error).__name__, flush=True)
"""


def test_c25_a_process_frozen_with_the_lock_does_not_freeze_the_region(
    database_url: str, driver: Driver, pytestconfig: pytest.Config
) -> None:
    frozen = subprocess.Popen(
        [sys.executable, "-c", FROZEN, database_url], cwd=pytestconfig.rootpath, stdout=subprocess.PIPE, text=True
    )
    with frozen:
        assert frozen.stdout is not None
        try:
            assert frozen.stdout.readline() == "locked\n"
            started = monotonic()
            driver.handle(commands.Reconcile())
            waited = monotonic() - started
            # Half a lease is when the server ends it; what is above is the load of the machine.
            assert waited < QUICK.lease.total_seconds()
            os.kill(frozen.pid, signal.SIGCONT)
            assert frozen.stdout.readline() == "StoreBusy\n"
        finally:
            frozen.kill()
    assert driver.held.failures == 0


# -- C46: begins beside transitions ------------------------------------------------------------------------------------


def test_c46_two_begins_beside_transitions_neither_deadlock_nor_wait_for_ever(driver: Driver) -> None:
    stop = threading.Event()

    def work(index: int) -> int:
        done = 0
        while not stop.is_set():
            driver.handle(
                commands.Renew(member=driver.member(index), incarnation=Incarnation(1), lease=timedelta(seconds=10))
            )
            driver_batch(driver, index, BatchId(f"b-{index}-{done}"))
            done += 1
        return done

    driver.heartbeat()
    with ThreadPoolExecutor(2) as threads:
        working = [threads.submit(work, index) for index in (0, 1)]
        try:
            for _ in range(30):
                driver.handle(commands.Reconcile())
        finally:
            stop.set()
        assert all(w.result(30) > 0 for w in working)
    assert {b.outcome for b in driver.batches} == {Outcome.DONE}


def driver_batch(driver: Driver, index: int, batch: BatchId) -> None:
    """Begin and end one batch on all that a member holds."""
    view = driver.handle(commands.ReadRegion(member=driver.member(index)))
    ranges = {p: Range(c.position, Offset(c.position + 1)) for p, c in view.claims.items() if c.position is not None}
    request = commands.StartBatch(
        batch=batch, member=driver.member(index), incarnation=Incarnation(1), epoch=view.epoch, ranges=ranges
    )
    driver.handle(request)
    driver.handle(commands.FinishBatch(batch=batch, member=driver.member(index), incarnation=Incarnation(1)))


def test_c46_transitions_are_not_starved_by_many_shared_lockers(driver: Driver, store: RegionStore) -> None:
    lockers, admission, stop = 32, [0], threading.Event()
    nothing = {driver.partition(0): Range(Offset(0), Offset(1))}

    def lock(index: int) -> None:
        while not stop.is_set():
            member = MemberId(GROUP, index)
            command = commands.StartBatch(
                batch=BatchId("none"), member=member, incarnation=Incarnation(1), epoch=Epoch(1), ranges=nothing
            )
            store.admit(driver.name, command, lambda region, now, command: (region, None))
            admission[0] += 1

    waited: list[int] = []
    with ThreadPoolExecutor(lockers) as threads:
        locking = [threads.submit(lock, index) for index in range(lockers)]
        try:
            for _ in range(10):
                before = admission[0]
                driver.change(partial(_noting, waited=waited, admission=admission, before=before))
        finally:
            stop.set()
        for future in locking:
            future.result(30)
    # The queue is fair: those before it go first, and who comes later waits. A few each, for the threads' own turns.
    # Judged by the third, because a thread of this process may get no turn for a while before it asks; who starves does
    # so each time.
    assert len(waited) == 10
    assert sorted(waited)[2] <= 4 * lockers


def _noting(region: Region, now: datetime, *, waited: list[int], admission: list[int], before: int) -> Region:
    waited.append(admission[0] - before)
    return region


# -- one batch, one lease ----------------------------------------------------------------------------------------------


def test_a_batch_that_is_begun_twice_at_once_is_begun_once(driver: Driver) -> None:
    member = driver.member(0)
    request = driver.batch_of(member, dict.fromkeys(driver.claims(member), Range(Offset(0), Offset(5))))
    with ThreadPoolExecutor(8) as threads:
        rows = list(threads.map(lambda _: driver.handle(request), range(16)))
    assert rows == [driver.batches[0]] * 16


@pytest.mark.parametrize(
    ("first", "second"), [("decide", "decide"), ("decide", "admit"), ("admit", "decide"), ("admit", "admit")]
)
def test_whoever_may_write_what_another_has_read_waits_for_it(
    database_url: str, driver: Driver, rules: RegionRules, first: str, second: str
) -> None:
    member, seen, waiting = driver.member(0), list[str](), list[Future[Region]]()

    request = driver.batch_of(member, dict.fromkeys(driver.claims(member), Range(Offset(0), Offset(5))))

    def call(verb: str, rule: Callable[[Region, datetime], Region]) -> Region:
        if verb == "decide":
            return driver.change(rule)
        return store.admit(driver.name, request, lambda region, now, _: (rule(region, now), region))

    def come_later(region: Region, now: datetime) -> Region:
        seen.append("second")
        return region

    def hold(region: Region, now: datetime) -> Region:
        waiting.append(threads.submit(call, second, come_later))
        assert happened(lambda: bool(seen) or _a_lock_is_waited_for(database_url), within=30)
        seen.append("first")
        return region

    with RegionStore.connect(database_url, lambda _: rules, timeouts=PATIENT) as store:
        with ThreadPoolExecutor(1) as threads:
            call(first, hold)
        assert waiting[0].result(0).name == driver.name
    assert seen == ["first", "second"]


def _a_lock_is_waited_for(url: str) -> bool:
    """Whether a transaction in this database waits for an advisory lock."""
    waits = (
        "SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()"
    )
    return bool(execute(url, waits))


def test_a_decision_on_a_lease_that_was_renewed_meanwhile_is_made_again(driver: Driver) -> None:
    seen = []
    member = driver.member(0)

    def leave(region: Region, now: datetime) -> Region:
        lease = region.leases[member]
        seen.append(lease.until)
        if len(seen) == 1:
            assert driver.handle(
                commands.Renew(member=member, incarnation=Incarnation(1), lease=timedelta(seconds=60))
            ).renewed
        return replace(region, leases={**region.leases, member: replace(lease, until=now)})

    after = driver.change(leave)
    assert len(seen) == 2
    assert seen[0] < seen[1]
    assert driver.held.leases[member] == after.leases[member]


def test_a_lease_that_is_being_written_keeps_no_other_from_being_renewed(
    database_url: str, driver: Driver, store: RegionStore
) -> None:
    asked = [_renewal(driver.name, member) for member in driver.all_members()]
    first, second = asked
    with psycopg.connect(_dsn(database_url)) as other:
        other.execute("SELECT FROM kcr.lease WHERE member_index = 0 FOR UPDATE")
        found = store.renew(asked)
        with pytest.raises(errors.StoreBusy, match=r"g\[0\] .* ask again"):
            driver.handle(first.command)
    assert {
        one: isinstance(heartbeat, commands.Heartbeat) and heartbeat.renewed for one, heartbeat in found.items()
    } == {second: True}
    leases = driver.held.leases
    assert leases[second.command.member].until - leases[first.command.member].until > timedelta(seconds=30)
    assert store.renew(asked).keys() == {first, second}


@pytest.mark.parametrize(
    ("change", "renewed"),
    [
        ("incarnation = 2, valid_until = clock_timestamp() + interval '60 seconds'", False),
        ("valid_until = clock_timestamp() - interval '1 second'", False),
        ("valid_until = clock_timestamp() + interval '60 seconds'", True),
    ],
)
def test_a_lease_that_was_written_since_a_renewal_began_is_judged_as_it_is_now(
    database_url: str,
    driver: Driver,
    rules: RegionRules,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    renewed: bool,
) -> None:
    asked = _renewal(driver.name, driver.member(0))
    asked = replace(asked, command=replace(asked.command, lease=timedelta(hours=1)))
    gate = " CROSS JOIN (SELECT pg_advisory_xact_lock_shared(1)) AS gate"
    statement, regions = leases.SQL["renew"].sql, "JOIN kcr.region r ON r.name = u.region"
    assert statement.count(regions) == 1
    monkeypatch.setitem(leases.SQL, "renew", Statement(statement.replace(regions, regions + gate)))
    with (
        RegionStore.connect(database_url, lambda _: rules, timeouts=PATIENT) as store,
        psycopg.connect(_dsn(database_url), autocommit=True) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        other.execute("SELECT pg_advisory_lock(1)")
        answer = threads.submit(store.renew, [asked])
        assert happened(lambda: _a_lock_is_waited_for(database_url), within=30)
        other.execute(f"UPDATE kcr.lease SET {change} WHERE member_index = 0")
        other.execute("SELECT pg_advisory_unlock(1)")
        found = answer.result(60).get(asked)
    assert (isinstance(found, commands.Heartbeat) and found.renewed) is renewed
    region, now = driver.store.read(driver.name)
    assert (region.leases[driver.member(0)].until - now > timedelta(minutes=30)) is renewed


def test_the_leases_of_any_regions_are_renewed_by_one_statement(
    driver: Driver, store: RegionStore, rules: RegionRules
) -> None:
    asked = [_renewal(driver.name, member) for member in driver.all_members()]
    for number in range(3):
        name, group = RegionName(f"other-{number}"), group_rules(f"h{number}", members=2)
        driver.store.handle(
            name, commands.DeclareRegion(spec=Spec(text="{}", rules=replace(rules, groups={group.group_id: group})))
        )
        driver.store.handle(name, START)
        for index in range(2):
            member = MemberId(group.group_id, index)
            store.decide(name, partial(_registered, member))
            asked.append(_renewal(name, member))
    with statements() as run:
        found = store.renew(asked)
    assert len(run) == 1
    assert [isinstance(found[one], commands.Heartbeat) and found[one].renewed for one in asked] == [True] * 8  # type: ignore[union-attr]


def _renewal(name: RegionName, member: MemberId) -> Renewal:
    return Renewal(
        region=name, command=commands.Renew(member=member, incarnation=Incarnation(1), lease=timedelta(seconds=60))
    )


def _registered(member: MemberId, region: Region, now: datetime) -> tuple[Region, None]:
    row = Member(member=member, incarnation=Incarnation(1), token=f"t-{member}", label="", version="")
    lease = Lease(incarnation=Incarnation(1), until=now + timedelta(seconds=10))
    rows = replace(region, members={**region.members, member: row}, leases={**region.leases, member: lease})
    return rows, None


# -- the answer to COMMIT lost -----------------------------------------------------------------------------------------


class Recording:
    """Counts what a store's calls ended in, on their way to the region store."""

    def __init__(self, store: RegionStore) -> None:
        self.unknown = 0
        for name in ("decide", "admit"):
            setattr(store, name, self._counted(getattr(store, name)))

    def _counted(self, call: Callable[..., Region]) -> Callable[..., Region]:
        def counted(*arguments: object, **named: object) -> Region:
            try:
                return call(*arguments, **named)
            except errors.OutcomeUnknown:
                self.unknown += 1
                raise

        return counted


@pytest.mark.parametrize("broken", list(Break), ids=lambda broken: broken.name.lower())
@pytest.mark.parametrize("verb", ["begin", "end", "register", "request_checkpoint", "contribute"])
def test_a_lost_answer_to_commit_is_found_out_and_the_work_done_once(
    database_url: str, driver: Driver, rules: RegionRules, verb: str, broken: Break
) -> None:
    driver.process()
    batch = driver.start_batch(driver.member(0)) if verb == "end" else None
    if verb == "contribute":
        driver.request_checkpoint("n1")
    with breaking_proxy(database_url) as (proxy, url):
        through = RegionStore.connect(url, lambda _: rules, timeouts=QUICK)
        recording = Recording(through)
        through.read(driver.name)
        done = _do(verb, driver, through, batch, lambda: proxy.break_next(broken))
        through.close()
        assert_broken(proxy, recording)
    assert done == 1


def _do(verb: str, driver: Driver, store: RegionStore, batch: BatchId | None, arm: Callable[[], None]) -> int:
    """Do one verb with its COMMIT lost, and return how often it was done."""
    member = driver.member(0)
    match verb:
        case "begin":
            request = driver.batch_of(member, dict.fromkeys(driver.claims(member), Range(Offset(10), Offset(20))))
            arm()
            row = store.handle(driver.name, request)
            return [b for b in driver.batches if b.batch == "b"].count(row)
        case "end":
            assert batch is not None
            arm()
            store.handle(driver.name, commands.FinishBatch(batch=batch, member=member, incarnation=Incarnation(1)))
            assert {(c.position, c.started_to) for c in driver.claims(member).values()} == {(20, 20)}
            return sum(b.outcome is Outcome.DONE for b in driver.batches if b.batch == batch)
        case "register":
            arm()
            assert store.handle(driver.name, commands.Register(member=member, token="new", takeover=True)) == 2
            return sum(e.kind == "MemberRegistered" for e in driver.events) - 2
        case "request_checkpoint":
            arm()
            store.handle(driver.name, commands.RequestCheckpoint(request_id=RequestId("n1")))
            return sum(e.kind == "CheckpointRequested" for e in driver.events)
        case _:
            part = driver.part_of(member)
            arm()
            store.handle(driver.name, part)
            return sum(e.kind == "Contributed" for e in driver.events)


def assert_broken(proxy: BreakingProxy, recording: Recording) -> None:
    assert proxy.breaks == 1
    assert recording.unknown == 1


# -- notifications only notify
# ------------------------------------------------------------------------------------------


FOR_EVER = timedelta(days=1)
"""Longer than a test may take: what answers within it was not waited for."""


def test_a_waiter_is_told_of_a_change(driver: Driver, store: RegionStore) -> None:
    counter = driver.held.counter
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.wait, driver.name, counter, FOR_EVER)
        driver.handle(PAUSE)
        assert waiting.result(60) > counter


def test_what_happened_before_is_not_waited_for(driver: Driver, store: RegionStore) -> None:
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(store.wait, driver.name, EventNumber(0), FOR_EVER).result(60) > 0


FORGED = ("flights:9223372036854775807", "flights:" + "9" * 7000)
"""Of a user of the database: numbers that the region never had."""


def test_a_lost_or_strange_notification_costs_the_timeout_and_no_more(
    database_url: str, driver: Driver, store: RegionStore
) -> None:
    counter = driver.held.counter
    for payload in ("", "flights", "flights:x", f"seats:{counter + 5}", f"flights:{counter}", ":::", *FORGED):
        execute(database_url, "SELECT pg_notify('kcr', :payload)", payload=payload)
    started = monotonic()
    store.wait(driver.name, counter, timedelta(seconds=0.3))
    assert monotonic() - started >= 0.3


def test_of_what_each_member_does_only_the_last_ones_is_told_to_the_others(database_url: str, driver: Driver) -> None:
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("LISTEN kcr")

        def told() -> list[str]:
            # They come in the order of their commits, so that all before this one are there with it.
            connection.execute("SELECT pg_notify('kcr', 'mark')")
            return list(takewhile(lambda payload: payload != "mark", (n.payload for n in connection.notifies())))

        def is_told(*members: int, of: Callable[[MemberId], object]) -> list[bool]:
            found = []
            for number in members:
                of(driver.member(number))
                found.append(told())
                assert found[-1] in ([], [f"flights:{driver.held.counter}"])
            return [bool(payloads) for payloads in found]

        driver.process()
        driver.request_checkpoint("n1")
        assert told()
        assert is_told(0, 1, of=driver.contribute) == [False, True]
        assert is_told(0, of=lambda _: driver.publish()) == [True]
        assert is_told(0, 1, of=driver.read_back) == [False, True]
        assert is_told(0, of=lambda member: driver.request_reset(member, ResetCause.BATCH_FAILED)) == [True]
        for member in (0, 1):
            driver.claim(driver.member(member))
        assert told()
        assert is_told(0, 1, of=driver.acknowledge) == [False, True]
        assert driver.held.state is RegionState.RUNNING


def test_a_waiter_sleeps_until_something_comes(
    driver: Driver, store: RegionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, notifies = list[None](), libpq.Connection.notifies

    def counted(connection: libpq.Connection, *, timeout: float) -> Iterator[psycopg.Notify]:
        looked.append(None)
        return notifies(connection, timeout=timeout)

    monkeypatch.setattr(libpq.Connection, "notifies", counted)
    store.wait(driver.name, driver.held.counter, timedelta(seconds=0.3))
    assert 1 <= len(looked) <= 2


def test_where_nobody_can_listen_waiting_is_waiting(
    driver: Driver, engine: Engine, rules: RegionRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_LISTEN", b"LISTEN")
    with RegionStore(engine, lambda _: rules) as deaf:
        started = monotonic()
        deaf.wait(driver.name, driver.held.counter, timedelta(seconds=0.3))
        assert monotonic() - started >= 0.3


def test_a_listening_connection_is_kept_and_one_that_died_is_replaced(
    database_url: str, driver: Driver, store: RegionStore
) -> None:
    counter = driver.held.counter
    for _ in range(3):
        store.wait(driver.name, counter, timedelta(seconds=0.01))
    listening_now = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query LIKE '%kcr.region%'"
    assert execute(database_url, listening_now)
    end_backends(database_url, "idle")
    store.wait(driver.name, counter, timedelta(seconds=0.01))
    store.wait(driver.name, EventNumber(0), timedelta(seconds=60))


# -- reading ----------------------------------------------------------------------------------------------------------


def test_a_region_that_was_returned_can_be_read_on_after_its_transaction(driver: Driver) -> None:
    driver.process()
    sequence = driver.checkpoint("n1")
    region, _ = driver.store.read(driver.name)
    assert set(region.offsets[sequence].values()) == {10}
    decided = driver.handle(commands.Reconcile())
    assert set(decided.offsets[sequence].values()) == {10}
    assert decided.seek.offsets == region.seek.offsets
    assert decided.archive.checkpoint(sequence) == region.archive.checkpoint(sequence) == region.checkpoints[sequence]


def test_what_a_member_looks_at_is_read_in_one_transaction(driver: Driver, engine: Engine) -> None:
    driver.process()
    driver.request_checkpoint("n1")
    driver.complete()
    begun: list[object] = []

    def note(*connection: object) -> None:
        begun.append(connection)

    event.listen(engine, "checkout", note)
    seen = driver.handle(commands.ReadRegion(member=driver.member(0)))
    event.remove(engine, "checkout", note)
    # With a complete checkpoint there is the most to see: who publishes it, and what of its commit is still to be read
    # back.
    assert seen.commit is not None
    assert seen.publish
    assert len(begun) == 1


def test_a_begin_and_an_end_are_three_statements_each(driver: Driver, engine: Engine, store: RegionStore) -> None:
    # Locks, the region with member, batch and claims, and all that is written: at 100 partitions, what each further
    # statement takes is seen in every batch.
    driver_batch(driver, 0, BatchId("the first asks whether the schema is there"))
    place = driver.partition(0)
    begin = driver.held.claims[place].position
    assert begin is not None
    request = driver.batch_of(driver.member(0), {place: Range(begin, Offset(begin + 1))})
    with statements() as run:
        driver.handle(request)
    assert len(run) == 3, run
    with statements() as run:
        driver.handle(commands.FinishBatch(batch=request.batch, member=request.member, incarnation=Incarnation(1)))
    assert len(run) == 3, run


def test_what_a_checkpoint_asks_of_the_store_is_a_handful_of_statements(
    driver: Driver, engine: Engine, store: RegionStore
) -> None:
    # The lock, the region, and one statement for all that is written: each further one is a way to the server and back
    # while the region is locked.
    counted = dict[str, int]()
    handle = driver.store.handle

    def counting(name: RegionName, command: commands.Command[object]) -> object:
        with statements() as run:
            answer = handle(name, command)
        counted[type(command).__name__] = len(run)
        return answer

    driver.process()
    driver.checkpoint("the first asks whether the schema is there")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.store, "handle", counting)
        driver.request_checkpoint("n1")
        driver.handle(commands.ReadRegion(member=driver.member(0)))
        driver.complete()
        driver.publish()
        driver.read_back(driver.member(0))
    # A request asks what its request id names as well, a publication how many checkpoints are kept; a view needs no
    # lock.
    expected = {
        "RequestCheckpoint": 4,
        "ReadRegion": 2,
        "Contribute": 3,
        "PublishCheckpoint": 4,
        "ReportReadBack": 3,
    }
    assert counted == expected


def test_a_region_that_is_deleted_leaves_no_row(database_url: str, driver: Driver) -> None:
    driver.process()
    driver.checkpoint("n1")
    driver.handle(commands.KillRegion())
    for member in driver.all_members():
        driver.leave(member)
    driver.handle(commands.DeleteRegion())
    tables = execute(database_url, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'kcr'")
    kept = {name for (name,) in tables if execute(database_url, f"SELECT FROM kcr.{name} LIMIT 1")}
    assert kept == {"alembic_version"}


def test_an_end_without_its_claim_is_refused_and_the_batch_keeps_its_ranges(database_url: str, driver: Driver) -> None:
    place = driver.partition(0)
    begin = driver.held.claims[place].position
    assert begin is not None
    request = driver.batch_of(driver.member(0), {place: Range(begin, Offset(begin + 1))})
    driver.handle(request)
    execute(database_url, "DELETE FROM kcr.claim")
    with pytest.raises(errors.NotClaimed):
        driver.handle(commands.FinishBatch(batch=request.batch, member=request.member, incarnation=Incarnation(1)))
    (row,) = driver.batches
    assert (row.outcome, dict(row.ranges)) == (None, dict(request.ranges))


A_LONG_LEDGER = """
    WITH many AS (
        INSERT INTO kcr.batch (region_id, batch_id, group_id, member_index, incarnation, epoch, timeline, sequence,
                               started_at, started_after, outcome, finished_at, finished_after)
        SELECT b.region_id, 'b-' || n, b.group_id, b.member_index, b.incarnation, b.epoch, b.timeline, b.sequence,
               b.started_at, b.started_after, b.outcome, b.finished_at, b.finished_after
        FROM (SELECT * FROM kcr.batch LIMIT 1) b, generate_series(1, 200) n
        RETURNING number, region_id, group_id
    )
    INSERT INTO kcr.batch_range (batch_number, region_id, group_id, topic, partition, from_offset, to_offset)
    SELECT number, region_id, group_id, 't', p, 0, 10 FROM many, generate_series(0, 99) p
"""


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(region_reads.SQL["admit_start"], id="claims of a start"),
        pytest.param(ledger.SQL["move"], id="positions moved"),
        pytest.param(ledger.SQL["lowest"], id="lowest places"),
    ],
)
def test_arrays_are_walked_through_once_where_a_table_has_no_statistics(
    database_url: str, driver: Driver, statement: Statement
) -> None:
    driver.process()
    execute(database_url, A_LONG_LEDGER)
    places = [(p.group, p.topic, p.partition, 5) for p in sorted(driver.logs)] * 25
    groups, topics, partitions, offsets = map(list, zip(*places, strict=True))
    given = {"groups": groups, "topics": topics, "partitions": partitions, "offsets": offsets, "region": 1}
    given |= {"positions": offsets, "started": offsets, "numbers": offsets, "epochs": offsets}
    given |= {"name": driver.name, "group": GROUP, "index": 0, "batch": "b"}
    # As it is planned the first few times, for these values, and then once for all.
    first = execute(
        database_url, f"EXPLAIN (FORMAT JSON) {statement.sql}", **{name: given[name] for name in statement.names}
    )
    later = execute(database_url, f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {statement.numbered.decode()}")
    for ((plans,),) in (first, later):
        assert isinstance(plans, list)
        again = [node for side in _inner_sides(plans[0]["Plan"]) for node in _nodes(side)]
        assert "Function Scan" not in again


def _nodes(plan: dict[str, Any]) -> list[str]:
    return [plan["Node Type"], *(node for part in plan.get("Plans", ()) for node in _nodes(part))]


def _inner_sides(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is walked through again for each row of something else; what is gathered is, for the one region."""
    parts = plan.get("Plans", [])
    inner = [part for part in parts if plan["Node Type"] == "Nested Loop" and part["Parent Relationship"] == "Inner"]
    own = [part for part in inner if part["Node Type"] != "Aggregate"]
    return own + [side for part in parts for side in _inner_sides(part)]


def test_an_engine_that_was_passed_in_is_left_open(engine: Engine, rules: RegionRules) -> None:
    with RegionStore(engine, lambda _: rules) as store:
        store.names()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1


def test_an_error_nobody_foresaw_names_its_class_and_no_value(driver: Driver, store: RegionStore) -> None:
    with pytest.raises(errors.StoreError) as caught:
        driver.change(lambda region, now: replace(region, counter="not a number"))  # type: ignore[arg-type]
    assert "not a number" not in str(caught.value)


def test_now_is_read_after_the_lock(driver: Driver, store: RegionStore) -> None:
    seen: list[datetime] = []

    def look(region: Region, now: datetime) -> Region:
        seen.append(now)
        return region

    driver.change(look)
    assert abs(seen[0] - datetime.now(UTC)) < timedelta(seconds=60)
    assert seen[0].utcoffset() == timedelta(0)


def test_the_garbage_collector_waits_for_a_decision_and_no_longer(driver: Driver, store: RegionStore) -> None:
    seen: list[bool] = []

    def rule(region: Region, _now: datetime) -> Region:
        seen.append(gc.isenabled())
        if len(seen) > 1:
            raise errors.NotClaimed
        return region

    driver.change(rule)
    assert (seen, gc.isenabled()) == ([False], True)
    with pytest.raises(errors.NotClaimed):
        driver.change(rule)
    assert (seen, gc.isenabled()) == ([False, False], True)


def test_it_waits_for_the_start_of_a_batch_too(driver: Driver, store: RegionStore) -> None:
    member, seen = driver.member(0), list[bool]()
    ranges = {partition: Range(Offset(0), Offset(1)) for partition in driver.claims(member)}

    def rule(region: Region, _now: datetime, _start: commands.StartBatch) -> tuple[Region, None]:
        seen.append(gc.isenabled())
        return region, None

    store.admit(driver.name, driver.batch_of(member, ranges), rule)
    assert (seen, gc.isenabled()) == ([False], True)


def test_one_id_is_in_a_store_once(driver: Driver, store: RegionStore) -> None:
    spec, taken = driver.region.spec, driver.region.region_id
    other = replace(spec, rules=replace(spec.rules, groups={}))
    with pytest.raises(errors.StoreError):
        store.handle(RegionName("second"), commands.DeclareRegion(spec=other, region_id=taken))
    assert RegionName("second") not in store.names()
