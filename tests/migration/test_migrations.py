"""The migrations: they make what the snapshot shows.

The snapshot is renewed by `KCR_RENEW_SNAPSHOT=1 pytest tests/migration`; what has changed in it is then reviewed, with
the migration that changed it, as a difference in the commit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from airflow_kcr.errors import SchemaMissing, SchemaTooNew, SchemaTooOld, StoreBusy
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.store import migrations, schema_upgrade
from airflow_kcr.store.postgres import revision
from airflow_kcr.store.regions import RegionStore
from tests.support.catalogue import SNAPSHOT, catalogue
from tests.support.databases import execute
from tests.support.driver import GROUP, group_rules

pytestmark = pytest.mark.postgres

FOLDER = Path(migrations.__file__).parent
FILES = sorted(p for p in (FOLDER / "versions").glob("*.py") if p.name != "__init__.py")
REVISIONS = [p.name[:4] for p in FILES]


def store(url: str) -> RegionStore:
    return RegionStore.connect(url, lambda _: RegionRules(groups={GROUP: group_rules()}))


# -- what they make -------------------------------------------------------------------------------------------------


def test_the_snapshot_is_what_the_migrations_make(database_url: str) -> None:
    if os.environ.get("KCR_RENEW_SNAPSHOT"):
        SNAPSHOT.write_text(catalogue(database_url))
    assert catalogue(database_url) == SNAPSHOT.read_text()


def test_revisions_are_numbered_in_one_line_and_named_by_what_they_do() -> None:
    assert [int(r) for r in REVISIONS] == list(range(1, len(FILES) + 1))
    assert all(re.fullmatch(r"\d{4}_[a-z][a-z0-9_]+\.py", p.name) for p in FILES)
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [revision.HEAD]
    assert [s.revision for s in scripts.walk_revisions()] == REVISIONS[::-1]
    assert REVISIONS[-1] == revision.HEAD


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_a_migration_says_what_it_does_and_is_not_made_by_a_machine(file: Path) -> None:
    text = file.read_text()
    assert text.startswith('"""')
    assert f'revision: Final = "{file.name[:4]}"' in text
    assert "autogenerate" not in text


# -- upgrading --------------------------------------------------------------------------------------------------------


def test_an_upgrade_of_what_is_up_to_date_changes_nothing(database_url: str) -> None:
    before = catalogue(database_url)
    assert schema_upgrade.upgrade(database_url).is_current
    assert catalogue(database_url) == before


WAITS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%%kcr.alembic_version%%'
    AND clock_timestamp() - query_start > interval '1 s'
"""


@contextmanager
def upgrading_beside_a_reader(url: str) -> Iterator[tuple[Future[schema_upgrade.SchemaStatus], Connection]]:
    """Yield an upgrade that waits for a table, and the connection whose open transaction keeps it waiting."""
    execute(url, "CREATE SCHEMA kcr; CREATE TABLE kcr.alembic_version (version_num varchar(32) PRIMARY KEY)")
    engine = create_engine(url, poolclass=NullPool, connect_args={"application_name": "a-long-report"})
    with ThreadPoolExecutor(1) as threads, engine.connect() as reader:
        reader.exec_driver_sql("LOCK TABLE kcr.alembic_version IN SHARE MODE")
        upgrading = threads.submit(schema_upgrade.upgrade, url)
        try:
            while not upgrading.done() and (1,) not in execute(url, WAITS):
                pass
            yield upgrading, reader
        finally:
            reader.rollback()


def test_no_timeout_of_the_server_ends_an_upgrade(empty_database_url: str) -> None:
    name = make_url(empty_database_url).database
    for setting in ("statement_timeout", "lock_timeout"):
        execute(empty_database_url, f"ALTER DATABASE {name} SET {setting} = '500ms'")
    with upgrading_beside_a_reader(empty_database_url) as (upgrading, reader):
        assert not upgrading.done()
        reader.rollback()
        assert upgrading.result().is_current


def test_programs_work_on_while_a_migration_waits_for_a_table(empty_database_url: str) -> None:
    with upgrading_beside_a_reader(empty_database_url) as (upgrading, reader):
        # A program that wants the table now is behind the migration, which gives up soon and tries again.
        execute(empty_database_url, "SET LOCAL lock_timeout = '20s'; LOCK TABLE kcr.alembic_version IN SHARE MODE")
        reader.rollback()
        assert upgrading.result().is_current
    assert catalogue(empty_database_url) == SNAPSHOT.read_text()


def test_a_migration_gives_up_in_the_end_and_says_who_reads(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_upgrade, "_LOCK_ATTEMPTS", 2)
    with upgrading_beside_a_reader(empty_database_url) as (upgrading, _):
        with pytest.raises(StoreBusy, match=r"\(a-long-report\) .*`kcr store upgrade` again"):
            upgrading.result()
        assert schema_upgrade.status(empty_database_url).current is None
    assert schema_upgrade.upgrade(empty_database_url).is_current


def test_several_upgrades_at_once_are_one(empty_database_url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(schema_upgrade.upgrade, [empty_database_url] * 4))
    assert all(status.is_current for status in results)
    assert catalogue(empty_database_url) == SNAPSHOT.read_text()


def test_status_tells_what_is_there_and_what_is_needed(empty_database_url: str) -> None:
    assert schema_upgrade.status(empty_database_url).current is None
    assert not schema_upgrade.status(empty_database_url).is_current
    upgraded = schema_upgrade.upgrade(empty_database_url)
    assert schema_upgrade.status(empty_database_url) == upgraded


# -- programs and schemas that don't fit ------------------------------------------------------------------------------


def test_a_database_without_the_schema_is_refused(empty_database_url: str) -> None:
    with store(empty_database_url) as missing, pytest.raises(SchemaMissing, match="kcr store upgrade"):
        missing.names()


def test_an_older_schema_is_refused(database_url: str) -> None:
    execute(database_url, "UPDATE kcr.alembic_version SET version_num = '0000'")
    with store(database_url) as older, pytest.raises(SchemaTooOld, match=r"0000.*kcr store upgrade"):
        older.names()


def test_a_newer_schema_is_refused_and_not_downgraded(database_url: str) -> None:
    execute(database_url, "UPDATE kcr.alembic_version SET version_num = '9999'")
    with store(database_url) as newer, pytest.raises(SchemaTooNew, match="9999"):
        newer.names()
    with pytest.raises(SchemaTooNew, match="9999"):
        schema_upgrade.upgrade(database_url)


def test_a_schema_that_goes_away_while_a_program_runs_is_noticed(database_url: str) -> None:
    with store(database_url) as running:
        assert running.names() == ()
        execute(database_url, "DROP SCHEMA kcr CASCADE")
        with pytest.raises(SchemaMissing):
            running.names()
        schema_upgrade.upgrade(database_url)
        assert running.names() == ()


def test_a_newer_schema_is_noticed_by_a_program_that_runs(database_url: str) -> None:
    with store(database_url) as running:
        assert running.names() == ()
        execute(database_url, "UPDATE kcr.alembic_version SET version_num = '9999'")
        execute(database_url, "ALTER TABLE kcr.region RENAME COLUMN name TO called")
        with pytest.raises(SchemaTooNew):
            running.names()
