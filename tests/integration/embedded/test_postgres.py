"""A Postgres of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_kcr.embedded.processes import accepts
from airflow_kcr.errors import ServiceFailed
from tests.support.databases import execute
from tests.support.tied import Postgres, start_postgres

pytestmark = pytest.mark.postgres


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    with start_postgres(tmp_path / "postgres") as server:
        yield server


def test_a_database_is_made_once(postgres: Postgres) -> None:
    url = postgres.ensure_database("one")
    execute(url, "CREATE TABLE numbers AS SELECT 42 AS number")
    assert "127.0.0.1" in url
    assert postgres.ensure_database("one") == url
    assert execute(url, "SELECT * FROM numbers") == [(42,)]


def test_what_was_committed_is_there_after_a_kill_and_after_a_stop(postgres: Postgres) -> None:
    url = postgres.url()
    execute(url, "CREATE TABLE numbers (number int)")
    for end in (postgres.kill, postgres.stop):
        execute(url, "INSERT INTO numbers VALUES (1)")
        end()
        assert postgres.pid is None
        assert not accepts(postgres.port)
        postgres.start()
    assert execute(url, "SELECT count(*) FROM numbers") == [(2,)]


def test_a_stop_does_not_wait_for_who_is_connected(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url()) as connection:
        connection.execute("SELECT 1")
        postgres.stop()
        assert postgres.pid is None
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match=r"(?s)Postgres ended; .*nonsense"):
        start_postgres(tmp_path, settings={"shared_buffers": "nonsense"})
