from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

from tests.support import postgres
from tests.support.databases import execute
from tests.support.postgres import RUN_PREFIX, Run, Server


def test_a_database_has_what_its_template_was_prepared_with(postgres_server: Server) -> None:
    prepared: list[str] = []

    def prepare(url: str) -> None:
        prepared.append(url)
        execute(url, "CREATE TABLE prepared AS SELECT 42 AS answer")

    template = postgres_server.ensure_template(prepare, template="kcr_prepared_template")
    assert postgres_server.ensure_template(prepare, template="kcr_prepared_template") == template
    assert len(prepared) == 1
    with postgres_server.database(template) as url:
        assert execute(url, "SELECT answer FROM prepared") == [(42,)]


def test_a_template_whose_preparation_failed_is_prepared_anew(postgres_server: Server) -> None:
    def succeed(url: str) -> None:
        execute(url, "CREATE TABLE half_done ()")  # would fail where it exists

    def fail(url: str) -> None:
        succeed(url)
        raise ValueError("half done")

    with pytest.raises(ValueError, match="half done"):
        postgres_server.ensure_template(fail, template="kcr_failing_template")
    postgres_server.ensure_template(succeed, template="kcr_failing_template")


def test_a_database_is_gone_afterwards_even_with_connections_left(postgres_server: Server) -> None:
    with postgres_server.database() as url:
        database = make_url(url).database
        connection = psycopg.connect(host=postgres_server.socket_dir, user="postgres", dbname=database)
    try:
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(host=postgres_server.socket_dir, user="postgres", dbname=database)
    finally:
        connection.close()


# A process that owns a run until it is killed.
OWNER = """
from tests.support import postgres
from tests.support.postgres import Run, start_server
from tests.support.databases import execute
run = Run.open()
start_server(run.path)
print(run.path, flush=True)
input()
"""


def test_the_next_run_clears_a_killed_one_and_leaves_a_living_one_alone(pytestconfig: pytest.Config) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        cwd=pytestconfig.rootpath,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        run_dir = Path(owner.stdout.readline().strip())
        data_dir = (run_dir / "postgres").resolve()
        connection = psycopg.connect(host=str(run_dir / "postgres"), user="postgres", autocommit=True)
        Run.open().close()
        assert run_dir.exists()
        owner.kill()
    with connection:
        connection.execute("SELECT 1")  # the server outlives its owner ...
        (run_dir / "postgres" / "PG_VERSION").write_text("15\n")  # whose Postgres may be another than ours
        Run.open().close()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")  # ... but not the next run
    assert not run_dir.exists()
    assert not data_dir.exists()


def test_the_next_run_removes_what_one_could_not_remove_at_its_end() -> None:
    run = Run.open()
    run.close()
    run.path.mkdir()
    (run.path / "tmp").mkdir()
    Run.open().close()
    assert not run.path.exists()


@pytest.mark.parametrize("room", [0, 2**60])
def test_a_server_has_its_files_in_memory_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(postgres, "MEMORY", tmp_path)
    monkeypatch.setattr(postgres, "ROOM", room)
    run = Run.open()
    assert [path.name for path in tmp_path.iterdir()] == ([] if room else [run.path.name])
    run.close()
    assert [*tmp_path.iterdir()] == []


def test_a_run_has_a_temporary_folder_that_no_other_run_closes(tmp_path: Path) -> None:
    assert any(parent.name.startswith(RUN_PREFIX) for parent in tmp_path.parents)
