"""The whole history, read at one moment: what `kcr verify` judges may not change while it is read."""

from __future__ import annotations

import pytest

from airflow_kcr.errors import UnknownRegion
from airflow_kcr.protocol.invariants import verify
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.store.postgres import ledger, transactions
from airflow_kcr.store.postgres.session import Session
from tests.contract.conftest import Drive
from tests.support.driver import Driver
from tests.support.stores import Subject


def lived(driver: Driver) -> Driver:
    """A region that has processed, cut, lost a member and come back."""
    driver.up()
    for number in range(2):
        driver.process()
        driver.cut(f"n{number}")
    driver.begin(driver.member(0))
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
    monkeypatch.setattr(transactions, "EVENT_PAGE", 3)
    driver = lived(drive())
    assert tuple(driver.store.history(driver.name).events) == driver.events


def test_the_history_of_an_unknown_region_is_refused_with_the_known_names(subject: Subject) -> None:
    with pytest.raises(UnknownRegion, match="it has: none"):
        subject.transactions.history(RegionName("nobody"))


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
        driver.cut("meanwhile")
        driver.process()
        return read_page(session, after)

    monkeypatch.setattr(ledger, "page", page)
    history = driver.store.history(driver.name)
    assert len(driver.events) > len(before)
    assert tuple(history.events) == before
    assert verify(history) == ()
    # Of two moments, the same region looks as if nobody had processed what its newest cut holds.
    apart = History(events=driver.events, batches=history.batches)
    assert {violation.invariant for violation in verify(apart)} == {"R1a"}
