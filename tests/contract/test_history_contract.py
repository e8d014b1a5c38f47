"""The whole history, read at one moment: what `kcr verify` judges may not change while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic

import psycopg
import pytest

from airflow_kcr.api.verdict import Verdict
from airflow_kcr.errors import UnknownRegion
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import EventNumber, RegionName
from airflow_kcr.store import regions
from airflow_kcr.store.postgres import history, ledger
from airflow_kcr.store.postgres.history import Chronicle
from airflow_kcr.store.postgres.session import Session
from tests.contract.conftest import Drive
from tests.support.driver import Driver
from tests.support.stores import Subject
from tests.support.verifying import verify


def lived(driver: Driver) -> Driver:
    """A region that has processed, checkpoint, lost a member and come back."""
    driver.up()
    for number in range(2):
        driver.process()
        driver.checkpoint(f"n{number}")
    driver.start_batch(driver.member(0))
    driver.crash(driver.member(0))
    driver.recover()
    driver.process()
    return driver


def test_a_history_is_all_events_and_the_whole_ledger(drive: Drive) -> None:
    driver = lived(drive())
    history = driver.store.history(driver.name)
    assert tuple(history.events) == driver.events
    assert tuple(history.batches) == driver.batches
    assert verify(history) == ()


def test_a_history_longer_than_a_page_is_read_to_its_end(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVENT_PAGE", 3)
    driver = lived(drive())
    assert tuple(driver.store.history(driver.name).events) == driver.events


def test_the_history_of_an_unknown_region_is_refused_with_the_known_names(subject: Subject) -> None:
    with pytest.raises(UnknownRegion, match="it has: none"):
        subject.transactions.history(RegionName("nobody"))


def read(told: Chronicle) -> History:
    """Return what a chronicle tells up to where the region is."""
    horizon = told.horizon()
    events = told.events(EventNumber(0), horizon.counter)
    return History(events=tuple(events), batches=tuple(told.batches(0, horizon.ledger)))


def as_ended(batch: Batch) -> Batch:
    """Return a batch without what later resets have made of it."""
    outcome = Outcome.DONE if batch.outcome is Outcome.UNDONE else batch.outcome
    return replace(batch, outcome=outcome, undone_from={}, quiesced_after=None)


@pytest.mark.parametrize("page", [1, 3, 1000])
def test_a_chronicle_tells_all_events_and_all_batches_as_they_ended(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(history, "EVENT_PAGE", page)
    monkeypatch.setattr(history, "LEDGER_PAGE", page)
    driver = lived(drive())
    driver.crash(driver.member(0))
    driver.recover()
    told = read(driver.store.chronicle(driver.name))
    assert tuple(told.events) == driver.events
    assert [as_ended(b) for b in told.batches] == [as_ended(b) for b in driver.batches]
    assert Outcome.UNDONE in {b.outcome for b in driver.batches}
    some = [driver.batches[0].batch, driver.batches[-1].batch]
    rows = driver.store.chronicle(driver.name).rows(some)
    assert [row.batch for row in rows] == some
    assert driver.store.chronicle(driver.name).rows([]) == ()
    verdict = Verdict.of(driver.name, driver.store.chronicle(driver.name))
    assert (verdict.checked_events, verdict.checked_batches) == (len(driver.events), len(driver.batches))
    assert verdict.violations == ()


def test_the_chronicle_of_an_unknown_region_is_refused_with_the_known_names(subject: Subject) -> None:
    with pytest.raises(UnknownRegion, match="it has: none"):
        subject.transactions.chronicle(RegionName("nobody")).horizon()


@pytest.fixture
def driver(drive: Drive) -> Driver:
    return lived(drive())


@pytest.mark.parametrize("subject", ["postgres"], indirect=True)
def test_a_region_that_goes_on_while_its_history_is_read_gives_no_false_report(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, read_page = driver.events, ledger.page

    def page(session: Session, after: int) -> object:
        monkeypatch.undo()  # once: the driver below reads the ledger too
        driver.process()
        driver.checkpoint("meanwhile")
        driver.process()
        return read_page(session, after)

    monkeypatch.setattr(ledger, "page", page)
    history = driver.store.history(driver.name)
    assert len(driver.events) > len(before)
    assert tuple(history.events) == before
    assert verify(history) == ()
    # Of two moments, the same region looks as if what its newest checkpoint holds had not been processed.
    apart = History(events=driver.events, batches=history.batches)
    assert {violation.invariant for violation in verify(apart)} == {"R1a"}


@pytest.mark.parametrize("subject", ["postgres"], indirect=True)
def test_a_region_that_goes_on_between_two_pages_gives_no_false_report(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, batches = driver.events, driver.batches
    monkeypatch.setattr(history, "LEDGER_PAGE", 1)
    told = driver.store.chronicle(driver.name)
    pages = told.batches

    def meanwhile(after: int, upto: int) -> Iterator[Batch]:
        for number, row in enumerate(pages(after, upto)):
            yield row
            if number % 2 == 0:  # whatever a region does, between any two pages
                driver.process()
                driver.checkpoint(f"meanwhile {number}")
                driver.start_batch(driver.member(0))
                driver.crash(driver.member(0))
                driver.recover()

    monkeypatch.setattr(told, "batches", meanwhile)
    verdict = Verdict.of(driver.name, told)
    assert len(driver.events) > len(before)
    assert (verdict.checked_events, verdict.checked_batches) == (len(before), len(batches))
    assert verdict.violations == ()


@pytest.mark.parametrize("subject", ["postgres"], indirect=True)
def test_the_horizon_waits_for_a_batch_that_is_beginning(driver: Driver, database_url: str) -> None:
    """Places are given before the commit: a later one may be seen before it, and would hide it for ever."""
    key = regions._key(driver.name)
    with psycopg.connect(database_url.replace("+psycopg", "")) as begins, ThreadPoolExecutor() as threads:
        begins.execute("SELECT pg_advisory_xact_lock_shared(%s)", [key])
        asked = threads.submit(driver.store.chronicle(driver.name).horizon)
        with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as watch:
            waiting = (
                "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
                "WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted"
            )
            deadline = monotonic() + 30
            while watch.execute(waiting).fetchone() == (0,) and monotonic() < deadline:
                pass
        assert not asked.done()
        begins.rollback()
        assert asked.result(30).counter == driver.held.counter


def test_how_far_a_reader_of_the_events_has_come_is_kept_and_never_goes_back(drive: Drive) -> None:
    driver = drive()
    driver.up()
    store, name = driver.store, driver.name
    assert store.event_position(name, "one") is None
    for number in (3, 7, 5):
        store.keep_event_position(name, "one", EventNumber(number))
    store.keep_event_position(name, "other", EventNumber(2))
    assert (store.event_position(name, "one"), store.event_position(name, "other")) == (7, 2)
    with pytest.raises(UnknownRegion):
        store.event_position(RegionName("nobody"), "one")
    with pytest.raises(UnknownRegion):
        store.keep_event_position(RegionName("nobody"), "one", EventNumber(1))
