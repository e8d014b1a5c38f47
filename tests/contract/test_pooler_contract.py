"""Behind a pooler the store and a sink work as they must, or say what to change: nothing is silently without limits."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from airflow_kcr import libpq
from airflow_kcr.errors import SinkRefused, StoreRefused, StoreUnavailable
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.sinks.postgres.connections import Database
from airflow_kcr.store.postgres import PostgresTransactions, build_engine
from tests.support.driver import GROUP, group_rules
from tests.support.pgbouncer import needs_pgbouncer, pooled

pytestmark = [pytest.mark.postgres, needs_pgbouncer]

DROPS = "ignore_startup_parameters = options"

RULES = RegionRules(groups={GROUP: group_rules()})

LIMITS = (
    "SET idle_in_transaction_session_timeout = 5000; SET lock_timeout = 6000; SET statement_timeout = 6666; "
    "SET timezone = UTC"
)


def test_a_pooler_that_drops_the_limits_is_refused_with_what_to_change(database_url: str, tmp_path: Path) -> None:
    with pooled(database_url, tmp_path, DROPS) as url:
        with PostgresTransactions.connect(url, lambda _: RULES) as store, pytest.raises(StoreRefused) as refused:
            store.names()
        database = Database(url, timeouts=Timeouts(), who="sink out")
        with pytest.raises(SinkRefused) as also, database.transaction(Timeouts().statement_timeout):
            pass
    for said in (str(refused.value), str(also.value)):
        assert "lock_timeout is 0 ms, not 6000 ms" in said
        assert "a pooler in between drops the options of a connection" in said
        assert "give the address of Postgres itself" in said


def test_a_pooler_that_takes_no_options_is_named(database_url: str, tmp_path: Path) -> None:
    with (
        pooled(database_url, tmp_path) as url,
        PostgresTransactions.connect(url, lambda _: RULES) as store,
        pytest.raises(StoreRefused) as refused,
    ):
        store.names()
    assert "a pooler in between takes no start-up options; give the address of Postgres itself" in str(refused.value)


def test_the_address_that_the_message_asks_for_works(database_url: str) -> None:
    with PostgresTransactions.connect(database_url, lambda _: RULES) as store:
        assert store.names() == ()


def test_nothing_is_prepared_where_another_client_may_meet_it(database_url: str, tmp_path: Path) -> None:
    with pooled(database_url, tmp_path, DROPS, "default_pool_size = 2", connect_query=LIMITS) as url:
        engines = [build_engine(url) for _ in range(4)]

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


def test_what_a_server_says_as_it_refuses_is_passed_on(database_url: str, tmp_path: Path) -> None:
    with pooled(database_url, tmp_path, "max_client_conn = 1", DROPS, connect_query=LIMITS) as url:
        first = build_engine(url)
        with (
            first.connect(),
            PostgresTransactions.connect(url, lambda _: RULES) as store,
            pytest.raises(StoreUnavailable, match="the server says: no more connections allowed"),
        ):
            store.names()
        first.dispose()


def test_a_direct_connection_is_looked_at_once(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def look(connection: object, asked: Mapping[str, int]) -> str:
        looks.append(connection)
        return ""

    monkeypatch.setattr(libpq, "settle", look)
    engine = build_engine(database_url)
    for _ in range(3):
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    engine.dispose()
    assert len(looks) == 1
