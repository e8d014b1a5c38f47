"""What a decision costs depends on what is open, never on how long the region has lived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial

import psycopg
import pytest

from airflow_kcr.api import Region
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.commands import ReadRegion, RetireCheckpoints
from airflow_kcr.protocol.region.events import CheckpointsRetired
from airflow_kcr.protocol.region.lookup import of_run
from airflow_kcr.protocol.region.retention import RETIRED_AT_ONCE
from airflow_kcr.protocol.region.rows import Requester, RequestState, ResetCause
from airflow_kcr.protocol.region.state import Forgotten
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.targets import ToEarliest
from airflow_kcr.protocol.values import CheckpointNumber, Offset, RequestId
from airflow_kcr.store.postgres import archive
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.long_history import keep, live_through, number_beyond
from tests.support.long_ledger import Statistics, with_all_statistics
from tests.support.past import Tables, Whole
from tests.support.plans import keep_unknown, nothing_pruned, statements, touched
from tests.support.scripts import checkpoints_of_ten
from tests.support.stores import postgres_store
from tests.support.transfer import transferred

pytestmark = pytest.mark.postgres

PARTITIONS = 12

YOUNG = 1_200
"""Checkpoints of a day or two."""

OWN = 8
"""Checkpoints that the region makes itself: statistics that are not fresh know of these."""

FEW = 1_000
"""Rows that a small table may be walked through for, all calls of a day together."""


@contextmanager
def old_region(url: str, checkpoints: int, *, statistics: Statistics = Statistics.FRESH) -> Iterator[Driver]:
    """A region that is up, with so many checkpoints behind it."""
    keep_unknown(url)
    rules = RegionRules(groups={GROUP: group_rules(members=3)})
    with nothing_pruned(url), postgres_store(url, lambda _: rules) as store:
        driver = Driver(partitions=PARTITIONS, rules=rules, transactions=store)
        for partition in driver.logs:
            driver.grow(partition, end=1_000_000)
        number_beyond(url, checkpoints)
        driver.up()
        checkpoints_of_ten(driver, OWN)
        live_through(url, checkpoints, statistics=statistics)
        yield driver


def fail(driver: Driver) -> None:
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "it failed")


def a_day(driver: Driver) -> None:
    """Do what a region does: batches, looks, checkpoints, an automatic reset, and what people look at."""
    driver.process()
    driver.request_checkpoint("n", requester=Requester(dag_id="flights", run_id="now"))
    driver.complete()
    driver.handle(ReadRegion(member=driver.member(1)))
    driver.publish()
    for member in driver.all_members():
        driver.read_back(member)
    driver.process()
    fail(driver)
    driver.finish_reset()
    driver.handle(RetireCheckpoints())
    region = Region(driver.name, driver.store)
    region.show()
    region.checkpoints.list(last=10)
    of_run(driver.held, "flights", "now", has_offsets=False)


def rows_of_a_day(url: str, checkpoints: int, *, statistics: Statistics) -> Counter[str]:
    with old_region(url, checkpoints, statistics=statistics) as driver, touched() as rows:
        a_day(driver)
    return rows


@pytest.mark.long
@with_all_statistics
def test_no_statement_touches_more_rows_after_years(
    database_url: str, other_database_url: str, statistics: Statistics
) -> None:
    young = rows_of_a_day(database_url, YOUNG, statistics=statistics)
    old = rows_of_a_day(other_database_url, 20_000, statistics=statistics)
    assert {s: (young[s], rows) for s, rows in old.items() if rows > young[s] + FEW} == {}


def test_a_decision_takes_as_many_statements_after_years(database_url: str, other_database_url: str) -> None:
    counts = []
    for url, checkpoints in ((database_url, YOUNG), (other_database_url, 20_000)):
        with old_region(url, checkpoints) as driver, statements() as run:
            a_day(driver)
        counts.append(len(run))
    assert counts[0] == counts[1]


@pytest.mark.long
def test_a_decision_transfers_as_much_after_years(database_url: str, other_database_url: str) -> None:
    sizes = []
    for url, checkpoints in ((database_url, YOUNG), (other_database_url, 20_000)):
        with old_region(url, checkpoints) as driver:
            sizes.append(transferred(partial(a_day, driver)))
    # Numbers have some more digits.
    assert sizes[1] <= 1.02 * sizes[0]


@with_all_statistics
def test_old_boundaries_are_forgotten_in_pieces_that_read_what_they_delete(
    database_url: str, statistics: Statistics
) -> None:
    with old_region(database_url, 20_000, statistics=statistics) as driver, touched() as rows:
        piece = Forgotten(boundaries=driver.held.archive.checkpoints(last=1)[0].opened_at, limit=24)
        for _ in range(2):
            driver.change(lambda region, now: replace(region, ledger=(piece,)))
    (deleted,) = [found for statement, found in rows.items() if "DELETE FROM kcr.boundary_offset" in statement]
    assert deleted <= 2 * 2 * 24


def boundary_of(driver: Driver, sequence: int) -> datetime | None:
    row = driver.held.archive.checkpoint(CheckpointNumber(sequence))
    return None if row is None else row.boundary


def test_a_run_of_years_ago_still_gets_its_answer_and_an_undone_one_asks_anew(database_url: str) -> None:
    with old_region(database_url, 20_000) as driver:
        request = driver.request_checkpoint("run-77", boundary=boundary_of(driver, 77))
        assert (request.state, request.sequence) == (RequestState.ANSWERED, 77)
        assert of_run(driver.held, "flights", "run-77", has_offsets=False) == 77
        archive = driver.held.archive
        with statements() as run:
            again = archive.request(RequestId("run-77"))
        assert again == request
        assert len([one for one in run if "checkpoint_request" in one]) == 1
        covered = driver.request_checkpoint("run-100", boundary=boundary_of(driver, 100))
        assert (covered.state, covered.sequence) == (RequestState.ANSWERED, 101), "the next current one covers it"


LOOKS: tuple[Callable[[Region], object], ...] = (
    lambda region: region.checkpoints.list(last=20),
    lambda region: region.checkpoints.list(before=5_000, last=20),
    lambda region: region.checkpoints.ways_back(5),
    lambda region: region.show(),
)


@pytest.mark.long
@pytest.mark.parametrize("look", range(len(LOOKS)))
def test_what_people_look_at_touches_what_it_shows(database_url: str, look: int) -> None:
    with old_region(database_url, 20_000) as driver:
        region = Region(driver.name, driver.store)
        with touched() as rows:
            LOOKS[look](region)
    assert max(rows.values()) <= 2 * FEW, rows.most_common(3)


def test_the_newest_work_is_one_lookup(database_url: str) -> None:
    with old_region(database_url, 20_000) as driver:
        with touched() as rows:
            seen = driver.store.seen(driver.name)
        newest = driver.batches[-1]
    assert seen.worked_at == (newest.finished_at or newest.started_at)
    assert rows.total() <= 10, rows


GAP = b"""
    DELETE FROM kcr.checkpoint_offset WHERE partition = 3 AND sequence BETWEEN 1001 AND 1500;
    UPDATE kcr.checkpoint_offset SET next_offset = next_offset + 10000 WHERE sequence > 2000;
"""
"""One partition was gone for a while; and what the region did itself lies beyond its past, as offsets only grow."""


@pytest.fixture
def keeping(database_url: str) -> Iterator[Driver]:
    """A region that keeps 2,000 checkpoints and its own."""
    with old_region(database_url, 2_000) as driver:
        keep(database_url, 2_000, PARTITIONS)
        with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(GAP)
        yield driver


def test_looks_at_checkpoints_touch_what_they_show_however_many_are_kept(keeping: Driver) -> None:
    region = Region(keeping.name, keeping.store)
    with touched() as rows:
        region.checkpoints.list(last=20)
        region.checkpoints.ways_back(5)
    assert max(rows.values()) <= 3 * FEW, "one statement has the rows of every table, of 20 checkpoints and of 50"


def test_a_timeline_reads_the_offsets_of_what_it_undoes_and_of_one_checkpoint_more(keeping: Driver) -> None:
    opening = OffsetMap(dict.fromkeys(keeping.logs, Offset(1_990)))
    with statements() as run, touched() as rows:
        undone = keeping.held.archive.undone_by(opening, None, ())
    assert [s for s in undone if s <= 2_000] == list(range(1_991, 2_001))
    assert len(undone) == 10 + OWN
    assert len([one for one in run if "checkpoint_offset" in one]) == 2, "one reads the region"
    assert max(rows.values()) <= 2 * archive.PIECE + FEW, "a piece of numbers, and the offsets of few of them"


OPENINGS = ((1_990, 1_990), (1_990, 400), (1_700, 1_200), (1_200, 1_700), (700, 0), (0, 0), (20_000, 5))
"""Offsets of every partition, and of the one that was gone for a while."""


def test_what_a_timeline_undoes_is_what_a_look_at_every_kept_checkpoint_says(keeping: Driver) -> None:
    past = keeping.held.archive
    checkpoints = {row.sequence: row for row in past.checkpoints()}
    offsets = past.offsets([s for s, row in checkpoints.items() if row.is_complete])
    whole = Whole(Tables(checkpoints=checkpoints, offsets=offsets))
    known = CheckpointNumber(300)
    for everywhere, there in OPENINGS:
        opening = OffsetMap({p: Offset(there if p.partition == 3 else everywhere) for p in keeping.logs})
        for covered in (None, known) if opening.covers(offsets[known]) else (None,):
            undone = past.undone_by(opening, covered, ())
            assert undone == whole.undone_by(opening, covered, ()), (everywhere, there)


@pytest.mark.long
def test_a_decision_transfers_as_much_after_a_reset_far_back(keeping: Driver) -> None:
    """What it undid is a fact about checkpoints, and no later decision asks for it."""
    sizes = []
    for name in ("far", "near"):
        keeping.reset(ToEarliest(), request_id=name)
        keeping.complete()
        keeping.publish()
        keeping.finish_reset()
        sizes.append(transferred(lambda: keeping.held))
    far, near = (one for one in Region(keeping.name, keeping.store).resets.list() if one.asked is not None)
    assert len(near.undone) <= OWN < 1_000 < len(far.undone)
    assert sizes[0] <= 1.02 * sizes[1]


_KEPT = b"""
    UPDATE kcr.checkpoint SET state = 'published', undone_by = NULL WHERE sequence <= %(checkpoints)s;
"""

_OFFSETS = b"""
    INSERT INTO kcr.checkpoint_offset (region_id, sequence, group_id, topic, partition, next_offset)
    SELECT c.region_id, c.sequence, 'g', 't', n, c.sequence
    FROM kcr.checkpoint c, generate_series(0, %(partitions)s - 1) n WHERE c.sequence <= %(checkpoints)s
"""


def retired_at_once(url: str, checkpoints: int) -> tuple[list[int], Counter[str], list[str]]:
    """Return how many each piece had, of so many that are over at once; the rows touched, and the statements."""
    with old_region(url, checkpoints) as driver:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(_KEPT, {"checkpoints": checkpoints})
            connection.execute(_OFFSETS, {"checkpoints": checkpoints, "partitions": PARTITIONS})
            connection.execute(b"ANALYZE")
        counter = driver.held.counter
        with statements() as run, touched() as rows:
            driver.handle(RetireCheckpoints())
        pieces = [
            len(event.body.sequences)
            for event in driver.store.events(driver.name, counter)
            if isinstance(event.body, CheckpointsRetired)
        ]
        assert driver.held.archive.kept() == driver.held.rules.retention.keep
    return pieces, rows, run


@pytest.mark.long
def test_twenty_thousand_are_retired_in_pieces_and_it_ends(database_url: str, other_database_url: str) -> None:
    few, rows_of_few, _ = retired_at_once(database_url, 2_000)
    many, rows, run = retired_at_once(other_database_url, 20_000)
    assert sum(many) == 20_000 + OWN - RegionRules(groups={}).retention.keep
    assert max(many) * PARTITIONS <= RETIRED_AT_ONCE
    assert len(many) == -(-sum(many) * PARTITIONS // RETIRED_AT_ONCE) + (sum(many) * PARTITIONS % RETIRED_AT_ONCE == 0)
    for table in ("checkpoint_offset", "read_back", "contribution_offset", "contribution", "checkpoint_partition"):
        assert len([one for one in run if f"DELETE FROM kcr.{table} " in one]) == len(many)
    # Each piece counts what is kept; beside that one of many costs what one of few does.
    for statement, found in rows.items():
        counts = "count(*)" in statement or "OFFSET" in statement
        assert counts or found / len(many) <= 1.5 * rows_of_few[statement] / len(few) + FEW, statement
