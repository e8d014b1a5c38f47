"""Old history leaves the store: judged before, in pieces, and nothing that is still needed."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from random import Random

import psycopg
import pytest
from sqlalchemy import create_engine, text

from airflow_kcr.api import ledger, verdict
from airflow_kcr.api.verdict import DroppedHistory, Verdict, drop_old
from airflow_kcr.errors import ProtocolError, RefusedError
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region.commands import PinCheckpoint, RetireCheckpoints
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.rules import Delivery, RegionRules, RetentionRules
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber
from airflow_kcr.store.regions import RegionStore
from tests.contract.conftest import Drive
from tests.support.driver import GROUP, Driver, group_rules

EVERYTHING = timedelta(days=-1)
"""Keep nothing that may go."""


def verified(driver: Driver) -> Verdict:
    return Verdict.of(driver.name, driver.store.chronicle(driver.name))


def dropped(driver: Driver, keep: timedelta = EVERYTHING) -> DroppedHistory:
    return drop_old(driver.store, driver.name, keep)


def stored(driver: Driver) -> History:
    return driver.store.history(driver.name)


STEPS = ("process", "begin", "discard", "checkpoint", "crash", "back", "fail", "wait")


def step(driver: Driver, chance: Random, number: int) -> None:
    """Do something that a region goes through."""
    member = driver.member(chance.randrange(2))
    match chance.choice(STEPS):
        case "process":
            driver.process(width=chance.randrange(1, 9))
        case "begin" if not driver.held.running:
            driver.start_batch(member)
        case "discard":
            for batch in [b for b in driver.batches if b.outcome is None]:
                if chance.random() < 0.5:
                    driver.commit_output(batch.batch)
                driver.discard(batch.batch)
                driver.request_reset(batch.member, ResetCause.BATCH_FAILED)
                if chance.random() < 0.5:
                    driver.finish_reset()
        case "checkpoint" if not driver.held.running:
            driver.finish_reset()
            driver.checkpoint(f"n{number}")
        case "crash":
            driver.crash(member)
            driver.recover()
        case "back" if driver.region.offsets and not driver.held.running:
            driver.finish_reset()
            driver.reset(ToCheckpoint(sequence=max(driver.region.offsets)), forced=True, request_id=f"back {number}")
            driver.finish_reset()
        case _:
            driver.finish_reset()


@pytest.mark.parametrize(
    ("seed", "piece", "delivery"),
    [
        pytest.param(seed, piece, delivery, marks=() if seed == (number + 2) % 3 else pytest.mark.long)
        for seed, piece in enumerate((1, 5, 1000))
        for number, delivery in enumerate(Delivery)
    ],
)
def test_a_history_whose_old_part_is_dropped_now_and_then_stays_consistent(
    drive: Drive, seed: int, piece: int, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "PIECE", piece)
    driver, chance = drive(delivery=delivery), Random(seed)
    driver.up()
    for number in range(25):
        with suppress(RefusedError, ProtocolError):
            step(driver, chance, number)
        if chance.random() < 0.4:
            assert dropped(driver).violations == ()
        found = verified(driver)
        assert found.violations == ()
        assert found.after + found.checked_events == driver.held.counter
    assert verified(driver).after > 0


def long_ago(url: str, before: int) -> None:
    """Let events up to a number have happened a hundred days earlier."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE kcr.event SET at = at - interval '100 days' WHERE number <= :before"), {"before": before}
        )
    engine.dispose()


RULES = RegionRules(groups={GROUP: group_rules(members=1)}, retention=RetentionRules(keep=2))


def lived(url: str, store: RegionStore) -> Driver:
    """Return a region with eight checkpoints, of which two are kept."""
    driver = Driver(partitions=2, rules=RULES, transactions=store)
    driver.up()
    for number in range(8):
        driver.process()
        driver.checkpoint(f"n{number}")
    driver.handle(RetireCheckpoints())
    return driver


def test_what_is_younger_stays_and_what_a_kept_checkpoint_needs(database_url: str) -> None:
    with RegionStore.connect(database_url, lambda _: RULES) as store:
        driver = lived(database_url, store)
        whole = stored(driver)
        cut = EventNumber(driver.held.counter - 20)
        long_ago(database_url, cut)
        gone = dropped(driver, timedelta(days=90))
        kept = stored(driver)
        assert [e.number for e in kept.events] == list(range(cut + 1, driver.held.counter + 1))
        assert gone.events == cut
        oldest = min(c.sequence for c in driver.region.checkpoints.values() if c.is_complete)
        assert gone.batches == len(whole.batches) - len(kept.batches) > 0
        # A reset to the oldest checkpoint processes again what came after it, and the ledger knows what.
        needed = {b.batch for b in whole.batches if b.sequence > oldest}
        assert needed <= {b.batch for b in kept.batches}
        assert verified(driver).violations == ()
        assert dropped(driver, timedelta(days=90)).events == 0


def test_a_pinned_checkpoint_keeps_its_batches_until_it_is_unpinned(database_url: str) -> None:
    with RegionStore.connect(database_url, lambda _: RULES) as store:
        driver = Driver(partitions=2, rules=RULES, transactions=store)
        driver.up()
        driver.process()
        first = driver.checkpoint("first")
        driver.handle(PinCheckpoint(sequence=first, label="audit", reason=""))
        for number in range(6):
            driver.process()
            driver.checkpoint(f"n{number}")
        driver.handle(RetireCheckpoints())
        dropped(driver)
        since = [b for b in stored(driver).batches if b.sequence > first]
        assert len(since) == 6
        driver.handle(PinCheckpoint(sequence=first, label="", reason=""))
        driver.handle(RetireCheckpoints())
        assert dropped(driver).batches > 0
        assert verified(driver).violations == ()


def test_a_region_goes_back_to_a_checkpoint_whose_events_are_gone(database_url: str) -> None:
    with RegionStore.connect(database_url, lambda _: RULES) as store:
        driver = lived(database_url, store)
        oldest = min(c.sequence for c in driver.region.checkpoints.values() if c.is_complete)
        dropped(driver)
        driver.reset(ToCheckpoint(sequence=CheckpointNumber(oldest)))
        driver.complete()
        driver.finish_reset()
        driver.process()
        driver.checkpoint("again")
        assert verified(driver).violations == ()
        again = ledger.repeated(stored(driver), None)
        assert {one.cause for one in again} == {"person"}


def test_a_history_that_contradicts_an_invariant_stays(database_url: str) -> None:
    with RegionStore.connect(database_url, lambda _: RULES) as store:
        driver = lived(database_url, store)
        with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
            connection.execute("UPDATE kcr.batch_range SET to_offset = to_offset + 1 WHERE batch_number = 2")
        before = stored(driver)
        found = dropped(driver)
        assert found.violations
        assert (found.events, found.batches) == (0, 0)
        assert len(stored(driver).events) == len(before.events)


def test_of_two_that_drop_at_once_one_stops_and_both_leave_the_same(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "PIECE", 10)
    with RegionStore.connect(database_url, lambda _: RULES) as store:
        driver = lived(database_url, store)
        chronicle = driver.store.chronicle(driver.name)
        mine = verdict.Judged.at_start(chronicle)
        dropped(driver)
        other = verified(driver)
        horizon = chronicle.horizon()
        assert not chronicle.move_start(mine.start, verdict.Judged(chronicle=chronicle, at=horizon).starts_here())
        assert verified(driver) == other


def test_a_process_that_ends_between_two_pieces_leaves_the_rest_to_the_next(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RegionStore.connect(database_url, lambda _: RULES) as store:
        driver = lived(database_url, store)
        chronicle = driver.store.chronicle(driver.name)
        judged = verdict.Judged.at_start(chronicle)
        horizon = chronicle.horizon_before(driver.store.read(driver.name)[1] + timedelta(days=1), judged.at, 50)
        assert horizon is not None
        judged.take(horizon)
        assert chronicle.move_start(None, judged.starts_here())
        # Nothing was dropped, and everything is still read from where the kept history starts.
        assert verified(driver).after == horizon.counter
        assert verified(driver).violations == ()
        dropped(driver)
        assert stored(driver).events[0].number > horizon.counter
