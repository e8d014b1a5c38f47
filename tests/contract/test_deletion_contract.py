"""Deleting a region in pieces: how much one takes, what is seen when one was the last, and that another goes on."""

from __future__ import annotations

import psycopg
import pytest

from airflow_kcr.errors import RegionBeingDeleted, RegionInState, StoreBusy, UnknownRegion
from airflow_kcr.ports import SinkPlace
from airflow_kcr.protocol.region.commands import DeclareRegion, DeleteRegion, KillRegion
from airflow_kcr.protocol.region.lag import LagSample
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, RegionName
from airflow_kcr.store.postgres import deletion
from airflow_kcr.store.postgres.session import Session
from tests.support.driver import GROUP, START, Driver, group_rules
from tests.support.long_ledger import Statistics, fill, with_all_statistics
from tests.support.plans import keep_unknown, touched
from tests.support.scripts import checkpoints_of_ten
from tests.support.stores import postgres_store

pytestmark = pytest.mark.postgres

GONE_ON = r"region flights is being deleted.*run `kcr region delete flights` to go on"


def lived(driver: Driver) -> None:
    """Let a region go through a bit of everything, and come to its end."""
    driver.up()
    checkpoints_of_ten(driver, 3)
    driver.request_reset(driver.member(0), ResetCause.CLAIM, "for once")
    driver.finish_reset()
    driver.process()
    driver.store.take(driver.name, SinkPlace(GROUP, "out", "/lake/out"))
    at = driver.store.read(driver.name)[1]
    driver.store.add_lag(driver.name, [LagSample(group=GROUP, at=at, epoch=Epoch(1), points={})])
    driver.store.remember(driver.name, "w", lambda memory, _: (memory, None))
    driver.store.keep_event_position(driver.name, "someone", driver.region.counter)
    driver.handle(KillRegion())
    for member in driver.all_members():
        driver.leave(member)


def filled_tables(url: str) -> set[str]:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        names = connection.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'kcr'")
        return {
            name
            for (name,) in names.fetchall()
            if connection.execute(f"SELECT FROM kcr.{name} LIMIT 1".encode()).rowcount
        }


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let a deletion end after N pieces, as if its process had been killed."""
    pieces = iter(range(after))
    forget_some = deletion.Deletion.forget_some

    def forget(self: deletion.Deletion, session: Session) -> bool:
        if next(pieces, None) is None:
            raise StoreBusy("killed")
        return forget_some(self, session)

    monkeypatch.setattr(deletion.Deletion, "forget_some", forget)


@pytest.fixture
def rules() -> RegionRules:
    return RegionRules(groups={GROUP: group_rules(members=2)})


@pytest.mark.parametrize("pieces", [0, 1, 2, 4, 9, 17])
def test_a_deletion_that_was_interrupted_is_told_by_every_verb_and_goes_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch, rules: RegionRules, pieces: int
) -> None:
    monkeypatch.setattr(deletion, "PIECE", 3)
    with postgres_store(database_url, lambda _: rules) as transactions:
        driver = Driver(partitions=3, rules=rules, transactions=transactions)
        lived(driver)
        store, spec = driver.store, driver.held.spec
        with monkeypatch.context() as patch:
            interrupt(patch, pieces)
            with pytest.raises(StoreBusy):
                store.handle(driver.name, DeleteRegion())
        assert filled_tables(database_url) > {"alembic_version", "region"}
        assert store.names() == ()
        for verb in (
            lambda: store.read(driver.name),
            lambda: store.handle(driver.name, START),
            lambda: store.history(driver.name),
            lambda: list(store.batches(driver.name)),
            lambda: store.batches_since(driver.name, CheckpointNumber(0)),
            lambda: store.handle(driver.name, DeclareRegion(spec=spec)),
        ):
            with pytest.raises(RegionBeingDeleted, match=GONE_ON):
                verb()
        store.handle(driver.name, DeleteRegion())
        assert filled_tables(database_url) == {"alembic_version"}
        with pytest.raises(UnknownRegion):
            store.handle(driver.name, DeleteRegion())
        assert store.handle(driver.name, DeclareRegion(spec=spec)).name == driver.name


def test_another_region_may_have_the_groups_at_once_and_keeps_all_that_it_has(
    database_url: str, monkeypatch: pytest.MonkeyPatch, rules: RegionRules
) -> None:
    with postgres_store(database_url, lambda _: rules) as transactions:
        driver = Driver(partitions=3, rules=rules, transactions=transactions)
        lived(driver)
        with monkeypatch.context() as patch:
            interrupt(patch, 1)
            with pytest.raises(StoreBusy):
                driver.handle(DeleteRegion())
        other = Driver(partitions=3, rules=rules, transactions=transactions, name=RegionName("other"))
        lived(other)
        before = other.region.counter, other.events, other.batches
        driver.handle(DeleteRegion())
        assert (other.region.counter, other.events, other.batches) == before
        assert driver.store.names() == ("other",)


def test_a_region_that_is_not_stopped_stays_as_it_is(database_url: str, rules: RegionRules) -> None:
    with postgres_store(database_url, lambda _: rules) as transactions:
        driver = Driver(partitions=3, rules=rules, transactions=transactions)
        driver.up()
        with pytest.raises(RegionInState, match="stop it before deleting it"):
            driver.handle(DeleteRegion())
        assert driver.held.members


@with_all_statistics
def test_a_batch_costs_as_much_to_delete_however_long_the_ledger(
    database_url: str, monkeypatch: pytest.MonkeyPatch, rules: RegionRules, statistics: Statistics
) -> None:
    keep_unknown(database_url)
    monkeypatch.setattr(deletion, "PIECE", 120)
    most = []
    for batches in (100, 800):
        with postgres_store(database_url, lambda _: rules) as transactions:
            driver = Driver(partitions=12, rules=rules, transactions=transactions)
            driver.up()
            fill(database_url, driver, batches, statistics)
            driver.handle(KillRegion())
            for member in driver.all_members():
                driver.leave(member)
            with touched() as rows:
                driver.handle(DeleteRegion())
            most.append(rows.total() / batches)
    assert most[1] < 1.2 * most[0]
