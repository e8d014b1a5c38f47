"""A triggerer in which two hundred tasks wait all day: a day is N looks, taken one right after the other."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from itertools import count
from statistics import median

import pytest
from sqlalchemy.engine import make_url

from airflow_kcr.goals import CheckpointExists, RequestPublished, WaitingFor
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.protocol.values import CheckpointNumber, RegionName, RequestId
from airflow_kcr.triggers.payloads import Status
from airflow_kcr.triggers.probes import ProbeResult, StoreProbes
from airflow_kcr.triggers.waits import Poller, TriggerWait
from tests.support.driver import Driver
from tests.support.footprint import Footprint, footprint
from tests.support.plans import before_statements

LOOKS = int(os.environ.get("KCR_SOAK_LOOKS", "86400"))
"""Of a triggerer: one each second, as `[kcr] poll_interval` has it where it isn't set."""

PARTS = 3
"""What is made once, caches filled and connections opened, is made in the first of N equal parts."""

WAITING = 200
HAPPENS = 25
"""Looks after which a checkpoint is made: it ends the wait of one task, and another one begins to wait."""

FAR_OFF = 10**9
"""A checkpoint for which the others wait all the time, and the first of as many."""

TICK = timedelta(milliseconds=1)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_triggerer_has_no_more_after_thrice_the_looks(
    driver: Driver, store_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_long(driver, store_connection, monkeypatch, looks=450)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_a_triggerer_has_no_more_after_a_day_of_looks(
    driver: Driver, store_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_long(driver, store_connection, monkeypatch, looks=LOOKS)


def wait_for_long(driver: Driver, url: str, monkeypatch: pytest.MonkeyPatch, *, looks: int) -> None:
    """Let two hundred tasks wait for so many looks, and compare what the process has, and what a look asks."""
    taken, costs, sent = count(1), Counter[int](), count()
    probe = StoreProbes.probe_all
    seen = [0]

    def note(*_: object) -> None:
        next(sent)

    def counted(
        self: StoreProbes, wanted: Mapping[RegionName, Mapping[WaitingFor, KcrHook]]
    ) -> dict[tuple[RegionName, WaitingFor], ProbeResult]:
        before = next(sent)
        found = probe(self, wanted)
        costs[next(sent) - before - 1] += 1
        seen[0] = next(taken)
        return found

    monkeypatch.setattr(StoreProbes, "probe_all", counted)

    def waits(waiting_for: WaitingFor) -> TriggerWait:
        return TriggerWait(region=driver.name, waiting_for=waiting_for, hook=KcrHook(), deadline=10**6)

    async def main() -> list[tuple[Footprint, float]]:
        poller = Poller.at(make_url(url), TICK)
        others = [
            asyncio.create_task(poller.wait(waits(CheckpointExists(sequence=CheckpointNumber(FAR_OFF + n)))))
            for n in range(WAITING - 1)
        ]
        found: list[tuple[Footprint, float]] = []
        for part in range(1, PARTS + 1):
            costs.clear()
            while seen[0] < looks * part // PARTS:
                request = f"c-{seen[0]}"
                driver.request_checkpoint(request)
                one = asyncio.create_task(poller.wait(waits(RequestPublished(request_id=RequestId(request)))))
                until = seen[0] + HAPPENS
                while seen[0] < until:
                    await asyncio.sleep(0.001)
                driver.heartbeat()
                driver.complete()
                driver.publish()
                for member in driver.all_members():
                    driver.read_back(member)
                assert (await one).status is Status.REACHED
            found.append((footprint(), median(costs.elements())))
            print(f"{seen[0]} looks: {found[-1][0]}, {found[-1][1]} statements", flush=True)  # noqa: T201
        assert poller.waiting == len(others)
        for task in others:
            task.cancel()
        await asyncio.wait(others)
        return found

    with before_statements(note):
        found = asyncio.run(main())
    (first, asked), (last, still) = found[0], found[-1]
    assert last.growth_since(first) == {}
    assert still == asked == 1, "where nothing happens, a look is one statement, however many wait"
