from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import cast

import pytest

from airflow_kcr.driver import parent_watchdog as parent_watchdog_module
from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.driver.parent_watchdog import ParentWatchdog, drain, may_go
from airflow_kcr.driver.task import Task, process_state
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import StoreUnavailable
from airflow_kcr.protocol.region.rows import CheckpointRequest, RequestState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import MemberId, RegionName, RequestId
from airflow_kcr.store.regions import RegionStore
from tests.support.driver import Driver
from tests.support.memory import MemoryTransactions

WITHIN = 20.0


@dataclass(slots=True)
class FakeMemberPool:
    """Notes what is asked of it."""

    members: tuple[MemberId, ...]
    asked: list[str] = field(default_factory=list)
    is_ending: bool = False
    close_time: float = 0.0
    terminated: Callable[[], None] = lambda: None
    """What SIGTERM calls."""

    def hold(self) -> None:
        self.asked.append("hold")

    def terminate(self) -> None:
        self.is_ending = True
        self.asked.append("terminate")

    def leave(self) -> None:
        self.is_ending = True
        self.asked.append("leave")


@pytest.fixture
def driver() -> Driver:
    driver = Driver(partitions=4, members=2)
    driver.up()
    return driver


@pytest.fixture
def ended() -> list[str]:
    return []


def task_of(process: subprocess.Popen[bytes], drain: float = WITHIN) -> Task:
    state = process_state(process.pid)
    assert state is not None
    within = timedelta(seconds=drain)
    return Task(pid=process.pid, started=state.started, parent=state.parent, request_id="n", drain=within)


@contextmanager
def watching(
    driver: Driver, task: Task | None, ended: list[str], *indexes: int, store: RegionStore | None = None
) -> Iterator[FakeMemberPool]:
    """Watch a task for members with these indexes."""
    pool = FakeMemberPool(tuple(driver.member(index) for index in indexes))
    watchdog = ParentWatchdog(store or driver.store, driver.name, task=task, end_process=ended.append)
    watchdog.hold(cast("MemberPool", pool))
    pool.terminated = partial(watchdog.terminated, cast("MemberPool", pool))
    with watchdog.watching():
        yield pool


# -- what is settled ---------------------------------------------------------------------------------------------------


def test_a_member_that_processed_beyond_the_restore_point_may_not_until_a_checkpoint_holds_it(driver: Driver) -> None:
    mine, other = frozenset({driver.member(0)}), frozenset({driver.member(1)})
    assert may_go(driver.region, mine)
    driver.process(driver.member(0), width=10)
    assert not may_go(driver.region, mine)
    assert may_go(driver.region, other)
    driver.checkpoint("a")
    assert may_go(driver.region, mine)


def test_nobody_goes_while_a_checkpoint_is_open_or_before_kafka_has_it(driver: Driver) -> None:
    mine = frozenset({driver.member(0)})
    driver.process(driver.member(0), width=10)
    driver.request_checkpoint("a")
    assert not may_go(driver.region, mine)
    driver.complete()
    driver.publish()
    assert not may_go(driver.region, mine)
    driver.read_back(driver.member(0))
    assert may_go(driver.region, mine)


# -- the drain ---------------------------------------------------------------------------------------------------------


def drained(driver: Driver, request_id: str) -> None:
    """Let the first member drain, and the others do their part of the checkpoint that it asks for."""
    task = Task(pid=1, request_id="n", drain=timedelta(seconds=WITHIN))
    mine = frozenset({driver.member(0)})
    draining = threading.Thread(target=drain, args=(driver.store, driver.name, mine, task), daemon=True)
    draining.start()
    assert happened(lambda: RequestId(request_id) in driver.region.requests, within=WITHIN)
    driver.complete()
    driver.publish()
    for member in driver.all_members():
        driver.read_back(member)
    draining.join(WITHIN)
    assert not draining.is_alive()
    assert driver.region.requests[RequestId(request_id)].state is RequestState.ANSWERED
    assert may_go(driver.region, mine)


def test_a_drain_asks_for_one_checkpoint_and_returns_when_it_is_done(driver: Driver) -> None:
    driver.process(driver.member(0), width=10)
    drained(driver, "n")


def test_a_drain_asks_again_for_what_was_processed_after_its_request_was_answered(driver: Driver) -> None:
    driver.process(driver.member(0), width=10)
    driver.checkpoint("n")  # the trigger's request, answered before the driver has seen it
    driver.process(driver.member(0), width=10)
    drained(driver, "n/held")


def test_a_drain_of_nothing_asks_for_nothing(driver: Driver) -> None:
    drain(driver.store, driver.name, frozenset({driver.member(0)}), Task(pid=1, request_id="n"))
    assert driver.region.requests == {}


def test_a_drain_ends_with_its_boundary(driver: Driver) -> None:
    driver.process(driver.member(0), width=10)
    task = Task(pid=1, request_id="n", drain=timedelta(seconds=0.2))
    drain(driver.store, driver.name, frozenset({driver.member(0)}), task)
    assert driver.region.requests[RequestId("n")].state is RequestState.OPEN


# -- who is watched ----------------------------------------------------------------------------------------------------


def test_a_task_that_is_gone_ends_its_members_after_a_drain(
    driver: Driver, process: subprocess.Popen[bytes], ended: list[str]
) -> None:
    with watching(driver, task_of(process), ended, 0, 1) as pool:
        assert pool.asked == []
        process.kill()
        assert happened(lambda: pool.is_ending, within=WITHIN)
    assert pool.asked == ["hold", "terminate"]
    assert ended == []


def test_a_task_that_says_that_it_goes_is_believed(
    driver: Driver, process: subprocess.Popen[bytes], ended: list[str]
) -> None:
    with watching(driver, task_of(process), ended, 0) as pool:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert happened(lambda: pool.is_ending, within=WITHIN)
    assert process.poll() is None


def test_a_task_that_is_not_on_this_host_is_gone_when_its_last_checkpoint_is_asked_for(
    driver: Driver, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_watchdog_module, "REQUEST_PERIOD", 0.05)
    looks, look = list[RequestId](), Region.request_of

    def looked(region: Region, request_id: RequestId) -> CheckpointRequest | None:
        looks.append(request_id)
        return look(region, request_id)

    monkeypatch.setattr(Region, "request_of", looked)
    task = Task(request_id="dag/run/consume/0/try 1", drain=timedelta(seconds=0.5))
    with watching(driver, task, ended, 0, 1) as pool:
        driver.request_checkpoint("dag/run/consume/0/try 2")
        driver.complete()
        driver.publish()
        before = len(looks)
        assert happened(lambda: len(looks) > before + 2, within=WITHIN)
        assert pool.asked == []
        driver.request_checkpoint("dag/run/consume/0/try 1")
        assert happened(lambda: pool.is_ending, within=WITHIN)
    assert pool.asked == ["hold", "terminate"]
    assert ended == []


def test_a_driver_that_its_cluster_ends_drains_and_its_members_leave(driver: Driver, ended: list[str]) -> None:
    driver.process(driver.member(0), width=10)
    task = Task(request_id="n", drain=timedelta(seconds=WITHIN))
    with watching(driver, task, ended, 0) as pool:
        pool.terminated()
        assert happened(lambda: RequestId("n") in driver.region.requests, within=WITHIN)
        assert driver.region.requests[RequestId("n")].requester.reason == "the cluster ends the driver"
        driver.complete()
        driver.publish()
        for member in driver.all_members():
            driver.read_back(member)
        assert happened(lambda: pool.is_ending, within=WITHIN)
    assert pool.asked == ["hold", "leave"]
    assert ended == []


def test_a_driver_that_its_cluster_ends_leaves_while_there_is_time(
    driver: Driver, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_watchdog_module, "EVICTED_WITHIN", 1.5)
    driver.process(driver.member(0), width=10)
    with watching(driver, Task(request_id="n", drain=timedelta(seconds=600)), ended, 0) as pool:
        pool.close_time = 1.0
        pool.terminated()
        assert happened(lambda: pool.asked == ["hold", "leave"], within=WITHIN)
    assert driver.region.requests[RequestId("n")].state is RequestState.OPEN


@pytest.mark.parametrize("is_of_a_task", [True, False])
def test_sigterm_ends_the_members_of_a_driver_beside_its_task_and_they_keep_their_slots(
    driver: Driver, process: subprocess.Popen[bytes], ended: list[str], is_of_a_task: bool
) -> None:
    with watching(driver, task_of(process) if is_of_a_task else None, ended, 0) as pool:
        pool.terminated()
        assert pool.asked == ["terminate"]


def test_where_no_drain_is_wanted_the_members_end_at_once_and_no_checkpoint_is_asked_for(
    driver: Driver, process: subprocess.Popen[bytes], ended: list[str]
) -> None:
    driver.process(driver.member(0))
    with watching(driver, task_of(process, drain=0), ended, 0) as pool:
        process.kill()
        process.wait()
        assert happened(lambda: pool.asked == ["hold", "terminate"], within=WITHIN)
    assert driver.region.requests == {}


def test_a_drain_that_takes_too_long_is_left_alone(
    driver: Driver, process: subprocess.Popen[bytes], ended: list[str]
) -> None:
    driver.process(driver.member(0), width=10)
    with watching(driver, task_of(process, drain=0.5), ended, 0) as pool:
        process.kill()
        assert happened(lambda: pool.is_ending, within=WITHIN)
    assert driver.region.requests[RequestId("n")].state is RequestState.OPEN


def test_without_the_store_the_members_end_as_by_sigterm(
    driver: Driver, process: subprocess.Popen[bytes], ended: list[str]
) -> None:
    class Away(MemoryTransactions):
        def read(self, name: RegionName) -> tuple[Region, object]:  # type: ignore[override]
            raise StoreUnavailable("away")

    with watching(driver, task_of(process, drain=600), ended, 0, store=Away(driver.clock)) as pool:
        process.kill()
        assert happened(lambda: pool.is_ending, within=WITHIN)


def test_before_anything_is_consumed_there_is_nothing_to_drain(
    driver: Driver, process: subprocess.Popen[bytes], ended: list[str]
) -> None:
    with ParentWatchdog(driver.store, driver.name, task=task_of(process), end_process=ended.append).watching():
        process.kill()
        assert happened(lambda: bool(ended), within=WITHIN)
    assert "nothing was consumed yet" in ended[0]


def test_members_that_don_t_end_are_ended(
    driver: Driver, process: subprocess.Popen[bytes], ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_watchdog_module, "GRACE", 0.1)
    with watching(driver, task_of(process), ended, 0):
        process.kill()
        assert happened(lambda: bool(ended), within=WITHIN)
    assert ended == ["its members did not end"]


def test_members_that_end_already_are_left_alone(
    driver: Driver, process: subprocess.Popen[bytes], ended: list[str]
) -> None:
    with watching(driver, task_of(process), ended, 0) as pool:
        pool.is_ending = True
        watcher = next(t for t in threading.enumerate() if t.name == "watch task")
        process.kill()
        watcher.join(WITHIN)
        assert not watcher.is_alive()
    assert pool.asked == []


def test_where_there_is_nothing_to_watch_nothing_is_started(driver: Driver, ended: list[str]) -> None:
    before = threading.active_count()
    with ParentWatchdog(driver.store, driver.name, task=None, end_process=ended.append).watching():
        assert threading.active_count() == before
