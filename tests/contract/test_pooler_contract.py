"""Behind a pooler the store and a sink work as they do without one, or say what to change: no limit is ever missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic

import psycopg
import pytest
from sqlalchemy import create_engine, text

from airflow_kcr import libpq
from airflow_kcr.errors import OutcomeUnknown, SinkError, SinkRefused, StoreBusy, StoreRefused, StoreUnavailable
from airflow_kcr.libpq import CommitLost
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.sinks.postgres.database import Database
from airflow_kcr.store import schema_upgrade
from airflow_kcr.store.postgres import build_engine
from airflow_kcr.store.postgres.connections import NO_LOCK, driver_of, server_at
from airflow_kcr.store.postgres.statements import Statement
from airflow_kcr.store.regions import RegionStore
from tests.support.breaking_proxy import Break, breaking_proxy
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.pgbouncer import needs_pgbouncer, pooled
from tests.support.verifying import verify

pytestmark = [pytest.mark.postgres, needs_pgbouncer]

DROPS = "ignore_startup_parameters = options"
"""What most who have PgBouncer set; without it, it refuses the options."""

BY_SESSION = "pool_mode = session"

RULES = RegionRules(groups={GROUP: group_rules()})

QUICK = Timeouts(lease=timedelta(seconds=3), renew=timedelta(seconds=1))

SHORT = timedelta(0)
SLEEP = Statement("SELECT pg_sleep(20)")

IN_FORCE = """
    SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout'),
           current_setting('statement_timeout'), current_setting('timezone'), current_setting('transaction_isolation')
"""
WANTED = ("1500ms", "1800ms", "2s", "UTC", "read committed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooler:
    """How an installation's PgBouncer is set."""

    settings: tuple[str, ...]
    connect_query: str = ""


POOLERS = {
    "refuses options": Pooler(settings=()),
    "drops options": Pooler(settings=(DROPS,)),
    "sets other limits": Pooler(settings=(DROPS,), connect_query="SET lock_timeout = 7000; SET timezone = Japan"),
    "by session": Pooler(settings=(DROPS, BY_SESSION)),
}


@pytest.fixture(params=POOLERS)
def url(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[str]:
    """A store through a pooler of one kind or another."""
    pooler = POOLERS[request.param]
    with pooled(database_url, tmp_path, *pooler.settings, connect_query=pooler.connect_query) as found:
        yield found


@pytest.fixture
def dropping(database_url: str, tmp_path: Path) -> Iterator[str]:
    """A store through the pooler that most have: by transaction, with few connections to the server."""
    with pooled(database_url, tmp_path, DROPS, "default_pool_size = 2") as found:
        yield found


def raw(url: str) -> psycopg.Connection:
    """Another program's connection through the same pooler."""
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True, prepare_threshold=None)


# -- settings --------------------------------------------------------------------------------------------------------


def test_every_transaction_of_the_store_has_its_limits(url: str) -> None:
    engine = build_engine(url, timeouts=QUICK)
    snapshots = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    statements = engine.execution_options(isolation_level="AUTOCOMMIT")
    for _ in range(3):
        for made, level in ((engine, "read committed"), (snapshots, "repeatable read"), (statements, "read committed")):
            with made.connect() as connection:
                assert tuple(connection.execute(text(IN_FORCE)).one()) == (*WANTED[:-1], level)
                read_only = connection.execute(text("SHOW transaction_read_only")).scalar_one()
                assert read_only == ("on" if made is snapshots else "off")
    engine.dispose()


def test_every_transaction_of_a_sink_has_its_limits(url: str) -> None:
    database = Database(url, timeouts=QUICK, who="sink out")
    for _ in range(2):
        with database.transaction(timedelta(seconds=30)) as connection:
            assert connection.execute(IN_FORCE.encode()).fetchone() == (
                "1500ms",
                "1800ms",
                "30s",
                "UTC",
                "read committed",
            )
    assert database.is_pooled


def test_nothing_of_it_stays_for_the_next_client(dropping: str) -> None:
    engine = build_engine(dropping, timeouts=QUICK)
    with engine.begin() as connection:
        connection.execute(text("SELECT 1"))
    with raw(dropping) as other:
        found = other.execute("SHOW lock_timeout").fetchone()
        prepared = other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        channels = other.execute("SELECT count(*) FROM pg_listening_channels()").fetchone()
    engine.dispose()
    assert (found, prepared, channels) == (("0",), (0,), (0,))


def test_settings_of_the_url_are_kept(url: str) -> None:
    options = r"-c search_path=kcr,\ pg_catalog --application_name=mine"
    engine = create_engine(url).url.update_query_dict({"options": options})
    made = build_engine(engine)
    with made.connect() as connection:
        assert connection.execute(text("SHOW search_path")).scalar_one() == "kcr, pg_catalog"
        assert connection.execute(text("SHOW application_name")).scalar_one() == "mine"
    made.dispose()


def test_options_that_are_more_than_settings_are_refused(dropping: str) -> None:
    engine = build_engine(create_engine(dropping).url.update_query_dict({"options": "-c geqo=off -S 100"}))
    with pytest.raises(StoreRefused, match=r"more than settings; write -c NAME=VALUE alone"), engine.connect():
        pass
    engine.dispose()


def test_a_sinks_own_options_are_refused_as_executors_would_lose_them(dropping: str) -> None:
    database = Database(f"{dropping}?options=-c%20geqo%3Doff", timeouts=QUICK, who="sink out")
    with pytest.raises(SinkRefused, match="drops the options of its URL for executors"), database.transaction(SHORT):
        pass


def test_a_statement_a_lock_and_an_idle_transaction_are_ended(dropping: str) -> None:
    engine = build_engine(dropping, timeouts=QUICK)
    with RegionStore(engine, lambda _: RULES) as store:
        began = monotonic()
        with pytest.raises(StoreBusy, match="a statement took too long"), store._connections.transaction(SLEEP):
            pass
        with (
            raw(dropping) as other,
            other.transaction(),
        ):
            other.execute("SELECT pg_advisory_xact_lock(7)")
            with (
                pytest.raises(StoreBusy, match="it waited too long for a lock"),
                store._connections.transaction(Statement("SELECT pg_advisory_xact_lock(7)")),
            ):
                pass
        with engine.connect() as idle:
            process = idle.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with raw(dropping) as other:
                gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
                while other.execute(gone, [process]).fetchone() != (True,):
                    assert monotonic() - began < 30
            idle.invalidate()
    engine.dispose()


# -- what can't be had -----------------------------------------------------------------------------------------------


def test_a_pooler_by_statement_is_refused_with_what_to_change(database_url: str, tmp_path: Path) -> None:
    with (
        pooled(database_url, tmp_path, DROPS, "pool_mode = statement") as url,
        RegionStore.connect(url, lambda _: RULES) as store,
        pytest.raises(StoreRefused) as refused,
    ):
        store.names()
    assert "set its pool_mode to transaction or session, or give the address of Postgres itself" in str(refused.value)


def test_an_upgrade_is_refused_with_what_to_change_and_the_status_is_told(dropping: str) -> None:
    assert schema_upgrade.status(dropping).is_current
    assert server_at(dropping).is_pooled
    with pytest.raises(StoreRefused, match="an upgrade needs a session of its own; give the address of Postgres"):
        schema_upgrade.upgrade(dropping)


def test_an_old_server_is_refused(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libpq, "OLDEST", 99)
    with (
        RegionStore.connect(database_url, lambda _: RULES) as store,
        pytest.raises(StoreRefused, match=r"it is Postgres \d+; 99 or newer is needed"),
    ):
        store.names()
    with (
        pytest.raises(SinkRefused, match="99 or newer is needed"),
        Database(database_url, timeouts=QUICK, who="sink out").transaction(SHORT),
    ):
        pass


@pytest.mark.parametrize("through", ["direct", "pooled"])
def test_a_server_that_is_read_only_says_where_the_primary_is_asked_for(
    through: str, database_url: str, tmp_path: Path
) -> None:
    with raw(database_url) as owner:
        name = owner.info.dbname
        owner.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'.encode())
    with pooled(database_url, tmp_path, DROPS) as url:
        chosen = url if through == "pooled" else database_url
        with (
            RegionStore.connect(chosen, lambda _: RULES) as store,
            pytest.raises(StoreUnavailable, match="read-only, as a standby is; give the address of the primary"),
        ):
            Driver(rules=RULES, transactions=store)
        with (
            pytest.raises(SinkError, match="read-only, as a standby is; give the address of the primary"),
            Database(chosen, timeouts=QUICK, who="sink out").transaction(SHORT) as connection,
        ):
            connection.execute("CREATE TABLE rates ()")


def test_what_a_server_says_as_it_refuses_is_passed_on(database_url: str, tmp_path: Path) -> None:
    with pooled(database_url, tmp_path, "max_client_conn = 1", DROPS) as url:
        first = build_engine(url)
        with (
            first.connect(),
            RegionStore.connect(url, lambda _: RULES) as store,
            pytest.raises(StoreUnavailable, match="the server says: no more connections allowed"),
        ):
            store.names()
        first.dispose()


# -- many writers, and waiting ---------------------------------------------------------------------------------------


def test_nothing_is_prepared_where_another_client_may_meet_it(dropping: str) -> None:
    engines = [build_engine(dropping) for _ in range(4)]

    def ask(client: int) -> list[object]:
        found: list[object] = []
        for number in range(60):
            with engines[client].begin() as connection:
                own = f"SELECT :number + {client} * 1000"
                found.append(connection.execute(text(own), {"number": number}).scalar_one())
        return found

    with ThreadPoolExecutor(len(engines)) as pool:
        answers = list(pool.map(ask, range(len(engines))))
    for engine in engines:
        engine.dispose()
    assert answers == [[number + client * 1000 for number in range(60)] for client in range(len(engines))]


@pytest.mark.long
def test_eight_writers_share_fewer_connections(dropping: str) -> None:
    writers, each = 8, 12
    rules = RegionRules(groups={GROUP: group_rules(members=writers)}, timeouts=Timeouts(lease=timedelta(minutes=5)))
    stores = [RegionStore.connect(dropping, lambda _: rules) for _ in range(writers)]
    driver = Driver(partitions=writers, rules=rules, transactions=stores[0])
    driver.up()

    def write(index: int) -> None:
        own = copy(driver)
        own.store, own._made = stores[index], (index + 1) * 1_000
        for _ in range(each):
            own.process(own.member(index), width=1)

    with ThreadPoolExecutor(writers) as pool:
        for done in [pool.submit(write, index) for index in range(writers)]:
            done.result(timeout=120)
    driver.checkpoint("all of it")
    assert len(driver.batches) == writers * each
    assert verify(stores[0].history(driver.name)) == ()
    for store in stores:
        store.close()


def test_a_waiter_polls_and_says_so_once(dropping: str, caplog: pytest.LogCaptureFixture) -> None:
    with RegionStore.connect(dropping, lambda _: RULES) as store, caplog.at_level(logging.WARNING):
        driver = Driver(rules=RULES, transactions=store)
        for _ in range(2):
            before = driver.held.counter
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(store.wait, driver.name, before, timedelta(seconds=30))
                if driver.held.state is RegionState.STOPPED:
                    driver.up()
                else:
                    driver.process()
                    driver.checkpoint("n1")
                assert waiting.result(timeout=20) > before
        assert store.wait(driver.name, driver.held.counter, timedelta(seconds=0.1)) == driver.held.counter
    told = [record.message for record in caplog.records if "LISTEN" in record.message]
    assert len(told) == 1
    assert "reading a region's counter every 1 s" in told[0]


# -- a server that is lost behind the pooler -------------------------------------------------------------------------


@pytest.mark.parametrize("broken", list(Break))
def test_a_commit_that_the_pooler_lost_is_open_until_it_is_looked_up(
    broken: Break, database_url: str, tmp_path: Path
) -> None:
    with (
        breaking_proxy(database_url) as (proxy, way),
        pooled(way.render_as_string(hide_password=False), tmp_path, DROPS, "server_tls_sslmode = disable") as url,
    ):
        with RegionStore.connect(url, lambda _: RULES) as store:
            store.names()
            session = store._connections.transaction(NO_LOCK)
            proxy.break_next(broken)
            with pytest.raises(OutcomeUnknown), session:
                pass
        database = Database(url, timeouts=QUICK, who="sink out")
        transaction = database.transaction(SHORT)
        proxy.break_next(broken)
        with pytest.raises(CommitLost), transaction:
            pass
    assert proxy.breaks == 2


# -- without a pooler ------------------------------------------------------------------------------------------------


def test_a_direct_connection_is_asked_once_and_sends_nothing_more(database_url: str) -> None:
    engine = build_engine(database_url)
    with engine.connect() as connection:
        driver = driver_of(connection.connection)
        assert not driver.is_pooled
        assert not server_at(database_url).is_pooled
        assert driver.prepare_threshold == 5
        assert not driver.autocommit
    engine.dispose()
