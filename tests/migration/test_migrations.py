"""The migrations: they make what the metadata says and the snapshot shows, from every earlier revision.

The snapshot is renewed by `KCR_RENEW_SNAPSHOT=1 pytest tests/migration`; what has changed in it is then reviewed, with
the migration that changed it, as a difference in the commit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from airflow_kcr.errors import SchemaMissing, SchemaTooNew, SchemaTooOld, StoreBusy, StoreError
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Batch, Outcome, PersonResetState, ResetCause
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import EventNumber, Incarnation, Offset, RequestId
from airflow_kcr.store import schema_upgrade
from airflow_kcr.store.postgres import PostgresTransactions, tables
from airflow_kcr.store.postgres.tables import metadata
from tests.support.catalogue import catalogue
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.earlier_schema import FOLDER, WORDS, config, execute, take_back_to, upgrade_to
from tests.support.twin import plain

pytestmark = pytest.mark.postgres

SNAPSHOT = Path(__file__).parent / "schema_snapshot.txt"
FILES = sorted(p for p in (FOLDER / "versions").glob("*.py") if p.name != "__init__.py")
REVISIONS = [p.name[:4] for p in FILES]


BEFORE_WORDS = f"{int(WORDS) - 1:04d}"

OLD_KINDS = {"CutRequested", "CutOpened", "CutCompleted"}


def rules() -> RegionRules:
    # A long lease: what becomes of a region while it is upgraded must not hang on how long that takes.
    return RegionRules(groups={GROUP: group_rules()}, timeouts=Timeouts(lease=timedelta(hours=5)))


def store(url: str) -> PostgresTransactions:
    return PostgresTransactions.connect(url, lambda _: rules())


# -- three that agree -------------------------------------------------------------------------------------------------


def test_the_migrations_make_what_the_metadata_says(empty_database_url: str, database_url: str) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA kcr")
        metadata.create_all(connection)
    assert catalogue(database_url) == catalogue(empty_database_url)


def test_the_snapshot_is_what_the_migrations_make(database_url: str) -> None:
    if os.environ.get("KCR_RENEW_SNAPSHOT"):
        SNAPSHOT.write_text(catalogue(database_url))
    assert catalogue(database_url) == SNAPSHOT.read_text()


def test_revisions_are_numbered_in_one_line_and_named_by_what_they_do() -> None:
    assert [int(r) for r in REVISIONS] == list(range(1, len(FILES) + 1))
    assert all(re.fullmatch(r"\d{4}_[a-z][a-z0-9_]+\.py", p.name) for p in FILES)
    scripts = ScriptDirectory.from_config(config())
    assert scripts.get_heads() == [tables.HEAD]
    assert [s.revision for s in scripts.walk_revisions()] == REVISIONS[::-1]
    assert REVISIONS[-1] == tables.HEAD


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_a_migration_says_what_it_does_and_is_not_made_by_a_machine(file: Path) -> None:
    text = file.read_text()
    assert text.startswith('"""')
    assert f'revision: Final = "{file.name[:4]}"' in text
    assert "autogenerate" not in text


def replace_store(driver: Driver, transactions: PostgresTransactions) -> Driver:
    """Return a driver that looks at the region through another program's store."""
    looking = copy(driver)
    looking.store = transactions
    return looking


def kept(driver: Driver) -> dict[str, object]:
    """Return what an upgrade keeps of a region: not when retention counts anew, nor what no earlier schema had."""
    region = driver.region
    members = {member: replace(row, arrived_at=None) for member, row in region.members.items()}
    found = plain(replace(region, members=members))
    return {name: value for name, value in found.items() if name not in {"retire_at", "reconcile_at"}}


# -- upgrading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", REVISIONS)
def test_an_upgrade_from_every_revision_keeps_the_data(empty_database_url: str, revision: str) -> None:
    schema_upgrade.upgrade(empty_database_url)
    with store(empty_database_url) as old:
        driver = Driver(rules=rules(), transactions=old)
        driver.up()
        driver.process()
        driver.checkpoint("n1")
        before = kept(driver), driver.events, driver.batches
    take_back_to(empty_database_url, revision)
    assert schema_upgrade.status(empty_database_url).current == revision
    schema_upgrade.upgrade(empty_database_url)
    with store(empty_database_url) as new:
        upgraded = replace_store(driver, new)
        found = kept(upgraded), new.events(driver.name, before[1][0].number, 1000), tuple(new.batches(driver.name))
        assert found == (before[0], before[1][1:], before[2])
        new.decide(driver.name, lambda region, now: region)
    assert catalogue(empty_database_url) == SNAPSHOT.read_text()


def test_an_upgrade_of_what_is_up_to_date_changes_nothing(database_url: str) -> None:
    before = catalogue(database_url)
    assert schema_upgrade.upgrade(database_url).is_current
    assert catalogue(database_url) == before


@pytest.fixture
def rewound(empty_database_url: str) -> Iterator[Driver]:
    """A region of which resets have undone batches wholly, partly and not at all; its ledger is two pieces long."""
    schema_upgrade.upgrade(empty_database_url)
    with store(empty_database_url) as transactions:
        driver = Driver(partitions=3, rules=rules(), transactions=transactions)
        driver.up()
        play(empty_database_url, driver)
        yield driver


def play(url: str, driver: Driver) -> None:
    driver.process()
    first = driver.checkpoint("first")
    driver.process()
    reset(driver)
    driver.process()
    driver.checkpoint("second")
    execute(url, "SELECT setval(pg_get_serial_sequence('kcr.batch', 'number'), 6000)")
    driver.process()
    reset(driver)
    driver.process()
    driver.reset(ToCheckpoint(sequence=first))
    driver.complete()
    driver.finish_reset()
    driver.process()


def reset(driver: Driver) -> None:
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "it failed")
    driver.finish_reset()


def mark(url: str, batches: tuple[Batch, ...]) -> None:
    """Have the ledger of revision 0008 say of its batches what the programs of then would have said."""
    for batch in batches:
        if batch.outcome is Outcome.UNDONE:  # its ranges need not say so
            execute(url, f"UPDATE kcr.batch SET outcome = 'undone' WHERE batch_id = '{batch.batch}'")
            continue
        for p, offset in batch.undone_from.items():
            execute(
                url,
                f"UPDATE kcr.batch_range r SET undone_from = {offset} FROM kcr.batch b WHERE b.number = r.batch_number "
                f"AND b.batch_id = '{batch.batch}' AND r.partition = {p.partition}",
            )


def test_what_batches_said_was_undone_is_what_is_derived_after_an_upgrade(
    empty_database_url: str, rewound: Driver
) -> None:
    # One goes back into the middle of batches, and leaves others alone.
    execute(
        empty_database_url,
        "UPDATE kcr.seek_offset SET next_offset = 5 WHERE partition = 0 AND epoch = (SELECT max(epoch) FROM kcr.reset)",
    )
    before = rewound.batches
    assert {Outcome.DONE, Outcome.UNDONE} <= {b.outcome for b in before}
    assert any(b.undone_from and b.outcome is Outcome.DONE for b in before)
    take_back_to(empty_database_url, "0008")
    mark(empty_database_url, before)
    schema_upgrade.upgrade(empty_database_url)
    assert rewound.batches == before


def test_what_was_proven_after_an_attempt_that_went_further_back_stays_done(
    empty_database_url: str, rewound: Driver
) -> None:
    epochs = sorted(rewound.region.resets)
    # As if the attempt before the last one had been superseded, and the last one had proved what was started before
    # both.
    execute(empty_database_url, f"UPDATE kcr.reset SET state = 'superseded' WHERE epoch = {epochs[-2]}")
    execute(empty_database_url, f"UPDATE kcr.seek_offset SET next_offset = 1000 WHERE epoch = {epochs[-1]}")
    execute(empty_database_url, f"UPDATE kcr.batch SET proven_in = {epochs[-1]} WHERE epoch = {epochs[-3]}")
    before = rewound.batches
    assert any(b.outcome is Outcome.DONE and b.proven_in for b in before)
    take_back_to(empty_database_url, "0008")
    mark(empty_database_url, before)
    schema_upgrade.upgrade(empty_database_url)
    assert [(b.outcome, b.undone_from) for b in rewound.batches] == [(b.outcome, b.undone_from) for b in before]


def test_an_upgrade_that_is_interrupted_while_it_converts_the_ledger_goes_on(
    empty_database_url: str, rewound: Driver
) -> None:
    before = rewound.batches
    take_back_to(empty_database_url, "0008")
    mark(empty_database_url, before)
    execute(
        empty_database_url,
        "CREATE FUNCTION kcr.broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF new.number > 6000 AND old.outcome = 'undone' THEN RAISE 'no more room'; END IF; RETURN new; END $$; "
        "CREATE TRIGGER broken BEFORE UPDATE ON kcr.batch FOR EACH ROW EXECUTE FUNCTION kcr.broken()",
    )
    with pytest.raises(StoreError):
        schema_upgrade.upgrade(empty_database_url)
    assert schema_upgrade.status(empty_database_url).current == "0009"
    with store(empty_database_url) as program, pytest.raises(SchemaTooOld, match="run `kcr store upgrade`"):
        program.names()
    execute(empty_database_url, "DROP FUNCTION kcr.broken CASCADE")
    schema_upgrade.upgrade(empty_database_url)
    assert rewound.batches == before
    assert catalogue(empty_database_url) == SNAPSHOT.read_text()


WAITED = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '1 s'
"""


def test_no_timeout_of_the_server_ends_an_upgrade(empty_database_url: str) -> None:
    upgrade_to(empty_database_url, "0012")
    name = make_url(empty_database_url).database
    for setting in ("statement_timeout", "lock_timeout"):
        execute(empty_database_url, f"ALTER DATABASE {name} SET {setting} = '500ms'")
    engine = create_engine(empty_database_url, poolclass=NullPool)
    with ThreadPoolExecutor(1) as threads, engine.connect() as slow, engine.connect() as looking:
        # In place of a large table: an index is not made while another session writes.
        slow.exec_driver_sql("LOCK TABLE kcr.batch_range IN ROW EXCLUSIVE MODE")
        upgrading = threads.submit(schema_upgrade.upgrade, empty_database_url)
        while not upgrading.done() and looking.exec_driver_sql(WAITED).scalar_one() == 0:
            looking.rollback()
        slow.rollback()
        assert upgrading.result().is_current


MAKES_AN_INDEX = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND starts_with(query, 'CREATE INDEX')
"""

INVALID = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"

WRITES = """
    SET LOCAL session_replication_role = replica;
    SET LOCAL lock_timeout = '5s';
    INSERT INTO kcr.batch_range (batch_number, region_id, group_id, topic, partition, from_offset, to_offset)
    VALUES (1, 1, 'g', 't', 0, 0, 1)
"""


def test_an_index_is_made_beside_who_writes_and_anew_where_its_upgrade_was_interrupted(empty_database_url: str) -> None:
    upgrade_to(empty_database_url, "0012")
    engine = create_engine(empty_database_url, poolclass=NullPool)
    with ThreadPoolExecutor(1) as threads, engine.connect() as slow:
        slow.exec_driver_sql("LOCK TABLE kcr.batch_range IN ROW EXCLUSIVE MODE")
        upgrading = threads.submit(schema_upgrade.upgrade, empty_database_url)
        while not upgrading.done() and not read(empty_database_url, MAKES_AN_INDEX):
            pass
        execute(empty_database_url, WRITES)
        execute(empty_database_url, f"SELECT pg_terminate_backend(pid) FROM ({MAKES_AN_INDEX}) a")
        with pytest.raises(StoreError):
            upgrading.result()
        slow.rollback()
    assert schema_upgrade.status(empty_database_url).current == "0012"
    assert read(empty_database_url, INVALID) == {"kcr.batch_range_record"}
    schema_upgrade.upgrade(empty_database_url)
    assert read(empty_database_url, INVALID) == set()
    assert catalogue(empty_database_url) == SNAPSHOT.read_text()


def test_an_index_that_was_made_before_an_interruption_is_not_made_again(empty_database_url: str) -> None:
    upgrade_to(empty_database_url, "0012")
    execute(empty_database_url, "CREATE INDEX reset_sequence ON kcr.reset (region_id, sequence)")
    before = read(empty_database_url, "SELECT 'kcr.reset_sequence'::regclass::oid")
    schema_upgrade.upgrade(empty_database_url)
    assert read(empty_database_url, "SELECT 'kcr.reset_sequence'::regclass::oid") == before


def test_indexes_of_tables_that_grow_are_made_beside_who_writes(empty_database_url: str) -> None:
    upgrade_to(empty_database_url, "0008")
    ran: list[str] = []

    def note(*about: object) -> None:
        ran.append(" ".join(str(about[2]).split()))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        schema_upgrade.upgrade(empty_database_url)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    made = [statement.split() for statement in ran if statement.startswith("CREATE INDEX")]
    # Of a new table, which nothing writes to yet; and of persons' resets, which are few.
    of_few = {"kcr.archived_range", "kcr.person_reset"}
    assert [words for words in made if words[2] != "CONCURRENTLY" and not of_few & {*words}] == []
    assert len(made) > 15


WAITS_FOR_A_TABLE = """
    SELECT query FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND starts_with(query, 'ALTER TABLE')
"""


@contextmanager
def upgrading_beside_a_reader(url: str) -> Iterator[tuple[Future[schema_upgrade.SchemaStatus], Connection]]:
    """Yield an upgrade that waits for a table, and the connection whose open transaction has read that table."""
    upgrade_to(url, "0018")
    engine = create_engine(url, poolclass=NullPool, connect_args={"application_name": "a-long-report"})
    with ThreadPoolExecutor(1) as threads, engine.connect() as reader:
        reader.exec_driver_sql("SELECT count(*) FROM kcr.member")
        upgrading = threads.submit(schema_upgrade.upgrade, url)
        try:
            while not upgrading.done() and not read(url, WAITS_FOR_A_TABLE):
                pass
            yield upgrading, reader
        finally:
            reader.rollback()


def test_programs_work_on_while_a_migration_waits_for_a_table_that_is_read(empty_database_url: str) -> None:
    with upgrading_beside_a_reader(empty_database_url) as (upgrading, reader):
        # A program that wants the table now is behind the migration, whatever for.
        execute(empty_database_url, "SET LOCAL lock_timeout = '20s'; SELECT count(*) FROM kcr.member")
        execute(empty_database_url, "SET LOCAL lock_timeout = '20s'; UPDATE kcr.member SET label = label")
        assert not upgrading.done()
        reader.rollback()
        assert upgrading.result().is_current
    assert catalogue(empty_database_url) == SNAPSHOT.read_text()


def test_a_migration_gives_up_in_the_end_and_says_who_reads(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_upgrade, "_LOCK_ATTEMPTS", 2)
    with upgrading_beside_a_reader(empty_database_url) as (upgrading, _):
        with pytest.raises(StoreBusy, match=r"after revision 0018 .* \(a-long-report\) .*`kcr store upgrade` again"):
            upgrading.result()
        assert schema_upgrade.status(empty_database_url).current == "0018"
    assert schema_upgrade.upgrade(empty_database_url).is_current


def test_stored_events_specs_and_names_are_told_in_the_new_words(empty_database_url: str) -> None:
    schema_upgrade.upgrade(empty_database_url)
    with store(empty_database_url) as transactions:
        driver = Driver(rules=rules(), transactions=transactions)
        driver.up()
        driver.process()
        driver.checkpoint("bound:2026-01-01T00:00:00+00:00")
        before = driver.events
    take_back_to(empty_database_url, BEFORE_WORDS)
    kinds = read(empty_database_url, "SELECT DISTINCT kind FROM kcr.event")
    assert kinds >= OLD_KINDS
    spec = '{"cut":{"every":"5m"},"groups":[{"group_id":"g"}],"outsiders":"warn"}'
    execute(empty_database_url, f"UPDATE kcr.region SET spec = '{spec}', next_spec = '{spec}'")
    execute(
        empty_database_url,
        "INSERT INTO kcr.certificate (region_id, number, counter, ledger, body, digest) "
        "SELECT id, 1, counter, 0, '{}', '' FROM kcr.region",
    )
    schema_upgrade.upgrade(empty_database_url)
    renamed = '{"checkpoint":{"every":"5m"},"foreign_consumers":"warn","groups":[{"group_id":"g"}]}'
    assert read(empty_database_url, "SELECT spec FROM kcr.region UNION ALL SELECT next_spec FROM kcr.region") == {
        renamed
    }
    assert read(empty_database_url, "SELECT number FROM kcr.certificate") == set()
    own = "boundary:2026-01-01T00:00:00+00:00"
    for place in ("checkpoint_request", "checkpoint"):
        assert own in read(empty_database_url, f"SELECT request_id FROM kcr.{place}")
    with store(empty_database_url) as new:
        found = new.events(driver.name, EventNumber(0), 1000)
        assert [type(e.body) for e in found] == [type(e.body) for e in before]
        asked = {e.body.request_id for e in found if isinstance(e.body, events.CheckpointRequested)}
        assert own in asked


def told(url: str, driver: Driver) -> list[events.Body]:
    with store(url) as transactions:
        return [event.body for event in transactions.events(driver.name, EventNumber(0), 1000)]


def test_an_upgrade_that_is_interrupted_while_it_renames_events_goes_on(empty_database_url: str) -> None:
    schema_upgrade.upgrade(empty_database_url)
    with store(empty_database_url) as transactions:
        driver = Driver(rules=rules(), transactions=transactions)
        driver.up()
        driver.checkpoint("n1")
    # The second half lies in another piece.
    execute(empty_database_url, "UPDATE kcr.event SET number = number + 6000 WHERE number > 10")
    execute(empty_database_url, "UPDATE kcr.region SET counter = counter + 6000")
    before = told(empty_database_url, driver)
    take_back_to(empty_database_url, BEFORE_WORDS)
    execute(
        empty_database_url,
        "CREATE FUNCTION kcr.broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF new.number > 6000 THEN RAISE 'no more room'; END IF; RETURN new; END $$; "
        "CREATE TRIGGER broken BEFORE UPDATE ON kcr.event FOR EACH ROW EXECUTE FUNCTION kcr.broken()",
    )
    with pytest.raises(StoreError):
        schema_upgrade.upgrade(empty_database_url)
    assert schema_upgrade.status(empty_database_url).current == BEFORE_WORDS
    assert not OLD_KINDS & read(empty_database_url, "SELECT DISTINCT kind FROM kcr.event WHERE number < 6000")
    assert OLD_KINDS & read(empty_database_url, "SELECT DISTINCT kind FROM kcr.event WHERE number > 6000")
    execute(empty_database_url, "DROP FUNCTION kcr.broken CASCADE")
    schema_upgrade.upgrade(empty_database_url)
    assert told(empty_database_url, driver) == before
    assert catalogue(empty_database_url) == SNAPSHOT.read_text()


def test_what_a_program_writes_that_was_not_stopped_is_told_in_the_new_words(empty_database_url: str) -> None:
    schema_upgrade.upgrade(empty_database_url)
    with store(empty_database_url) as transactions:
        driver = Driver(rules=rules(), transactions=transactions)
        driver.up()
        driver.checkpoint("n1")
    before = told(empty_database_url, driver)
    take_back_to(empty_database_url, BEFORE_WORDS)
    execute(empty_database_url, "CREATE TABLE public.opened AS SELECT * FROM kcr.event WHERE kind = 'CutOpened'")

    written: list[str] = []

    def write(*about: object) -> None:
        """Write one more event, once the events that were there have their new kinds."""
        if "'{request_id}'" in str(about[2]) and not written:
            written.append(str(about[2]))
            execute(
                empty_database_url,
                "INSERT INTO kcr.event (region_id, number, at, epoch, lineage, kind, body) "
                "SELECT e.region_id, r.counter + 1, e.at, e.epoch, e.lineage, e.kind, e.body FROM public.opened e "
                "JOIN kcr.region r ON r.id = e.region_id; "
                "UPDATE kcr.region SET counter = counter + 1",
            )

    event.listen(Engine, "before_cursor_execute", write)
    try:
        schema_upgrade.upgrade(empty_database_url)
    finally:
        event.remove(Engine, "before_cursor_execute", write)
    (opened,) = [body for body in before if isinstance(body, events.CheckpointOpened)]
    assert told(empty_database_url, driver) == [*before, opened]


def test_a_store_with_closed_history_is_refused_as_its_archives_have_the_old_words(empty_database_url: str) -> None:
    schema_upgrade.upgrade(empty_database_url)
    with store(empty_database_url) as transactions:
        Driver(rules=rules(), transactions=transactions).up()
    take_back_to(empty_database_url, BEFORE_WORDS)
    execute(
        empty_database_url,
        "INSERT INTO kcr.certificate (region_id, number, counter, ledger, body, digest, archive) "
        "SELECT id, 1, counter, 0, '{}', '', '{}' FROM kcr.region",
    )
    with pytest.raises(StoreError, match="was closed by an earlier program"):
        schema_upgrade.upgrade(empty_database_url)
    assert schema_upgrade.status(empty_database_url).current == BEFORE_WORDS
    assert read(empty_database_url, "SELECT lineage FROM kcr.region") == {1}


def read(url: str, query: str) -> set[object]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        return set(connection.exec_driver_sql(query).scalars())


def test_a_persons_reset_that_runs_while_a_store_is_upgraded_goes_on(empty_database_url: str) -> None:
    schema_upgrade.upgrade(empty_database_url)
    with store(empty_database_url) as old:
        driver = Driver(rules=rules(), transactions=old)
        driver.up()
        driver.process()
        driver.reset(ToCheckpoint(sequence=driver.checkpoint("n1")), request_id="r1", forced=True)
    take_back_to(empty_database_url, "0017")
    schema_upgrade.upgrade(empty_database_url)
    with store(empty_database_url) as new:
        upgraded = replace_store(driver, new)
        assert upgraded.region.person_resets[RequestId("r1")].state is PersonResetState.STARTED
        upgraded.finish_reset()
        assert upgraded.region.person_resets[RequestId("r1")].state is PersonResetState.DONE


def test_what_archives_hold_is_looked_up_by_index_after_an_upgrade(empty_database_url: str) -> None:
    schema_upgrade.upgrade(empty_database_url)
    with store(empty_database_url) as transactions:
        driver = Driver(rules=rules(), transactions=transactions)
        driver.up()
    take_back_to(empty_database_url, "0019")
    place = '{"g": {"t": {"0": %s}}}'
    archive = f'{{"name": "1", "size": 1, "resume": "", "offsets": {place % "[10, 20]"}'
    archive += ', "processes": {"g[0]": {"7": "w-1"}}}'
    for number, body, told in (
        (1, "{}", archive),
        (2, f'{{"partitions": {place % "{}"}}}', '{"name": "2", "size": 1, "resume": ""}'),
    ):
        execute(
            empty_database_url,
            "INSERT INTO kcr.certificate (region_id, number, counter, ledger, body, digest, archive) "
            f"SELECT id, {number}, 1, 0, '{body}', '', '{told}' FROM kcr.region",
        )
    schema_upgrade.upgrade(empty_database_url)
    with store(empty_database_url) as new:
        chronicle = new.chronicle(driver.name)
        assert chronicle.archived_process(driver.member(0), Incarnation(7)) == "w-1"
        assert chronicle.archived_process(driver.member(0), Incarnation(8)) == ""
        # It is unknown what the second one holds, so it is read.
        numbers = [[c.number for c in chronicle.archived_with(driver.partition(0), Offset(o))] for o in (9, 10, 19, 20)]
        assert numbers == [[2], [1, 2], [1, 2], [2]]
        assert chronicle.archived_with(driver.partition(1), Offset(10)) == ()


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
