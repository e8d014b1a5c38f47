"""What watchers remember: one caller after the other, kept as it was, gone with its region."""

from __future__ import annotations

import threading

import pytest

from airflow_kcr.errors import UnknownRegion
from airflow_kcr.protocol.region.incidents import (
    Incident,
    IncidentKey,
    IncidentKind,
    IncidentNotice,
    WatcherMemory,
    take,
)
from airflow_kcr.protocol.values import RegionName
from tests.contract.conftest import Drive
from tests.support.driver import Driver


def kept(driver: Driver, watcher: str = "w") -> WatcherMemory:
    found: WatcherMemory = driver.store.remember(driver.name, watcher, lambda memory, _: (memory, memory))
    return found


def test_a_memory_is_read_back_as_it_was_by_its_watcher_alone(drive: Drive) -> None:
    driver = drive()
    driver.up()
    now = driver.store.read(driver.name)[1]
    key = IncidentKey(IncidentKind.MEMBER_MISSING, 'g \N{SNOWMAN} " \\')
    notice = IncidentNotice(
        incident=Incident(key=key, what="g[0] is\nnot there", since=now), is_sent=True, over_at=now, claimed_until=now
    )
    memory = WatcherMemory(since=now, notices=(notice,))
    driver.store.remember(driver.name, "w", lambda *_: (memory, None))
    assert kept(driver) == memory
    assert kept(driver, "other").notices == ()


def test_a_watcher_that_never_looked_remembers_nothing_since_its_first_look(drive: Drive) -> None:
    driver = drive()
    driver.up()
    before = driver.store.read(driver.name)[1]
    first = kept(driver)
    assert first.notices == ()
    assert before <= first.since <= driver.store.read(driver.name)[1]
    driver.wait(5)
    assert kept(driver) == first


def test_a_watcher_of_no_region_is_refused(drive: Drive) -> None:
    driver = drive()
    driver.up()
    with pytest.raises(UnknownRegion):
        driver.store.remember(RegionName("nowhere"), "w", lambda memory, _: (memory, None))


@pytest.mark.postgres
def test_of_several_processes_that_look_at_once_one_notifies_people(drive: Drive) -> None:
    driver = drive()
    driver.up()
    incident = Incident(key=IncidentKey(IncidentKind.HALTED, ""), what="so", since=None)
    begin, taken = threading.Barrier(8), []

    def observe() -> None:
        begin.wait()
        taken.append(driver.store.remember(driver.name, "w", lambda memory, now: take(memory, [incident], now, now)))

    threads = [threading.Thread(target=observe) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, taken)) == [0] * 7 + [1]
