"""Whatever happens to a region, the manifests in force hold what is accepted, each record once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.scopes import EVERYTHING, parse_scope
from airflow_kcr.protocol.targets import ShiftBy, Target, ToCheckpoint, ToInitial
from airflow_kcr.protocol.values import BatchId
from airflow_kcr.sinks.files.accepted import accepted
from tests.support.driver import Driver
from tests.support.sink_files import Files, Record

STEPS = 40


def accepted_records(files: Files) -> Counter[Record]:
    return Counter(
        (p.topic, p.partition, o)
        for batch in files.driver.batches
        for p, r in accepted(batch).items()
        for o in range(r.from_, r.to)
    )


def target(chance: Random, files: Files) -> Target:
    published = sorted(files.manifests())
    if published and chance.random() < 0.5:
        return ToCheckpoint(sequence=chance.choice(published))
    return ShiftBy(by=-chance.randrange(1, 40)) if chance.random() < 0.7 else ToInitial()


def restart(files: Files) -> None:
    """Let a process die with its batch, and all come back; its files and list may be there or not."""
    driver = files.driver
    driver.crash(driver.member(0))
    driver.recover()
    files.sink.reset(files.reset_order())


@pytest.mark.parametrize("file_size", [0, 1_000_000])
@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("seed", range(4))
def test_manifests_hold_what_is_accepted(tmp_path: Path, seed: int, delivery: Delivery, file_size: int) -> None:
    chance, driver = Random(seed), Driver(delivery=delivery)
    for partition in tuple(driver.logs):
        driver.grow(partition, end=100_000)
    driver.up()
    files = Files(driver, tmp_path / "out", file_size)
    cuts = 0
    for step in range(STEPS):
        assert driver.region.state is RegionState.RUNNING
        match chance.choice(("batch", "batch", "batch", "cut", "cut", "restart", "reset")):
            case "batch":
                for index in range(2):
                    files.process_batch(driver.member(index), chance.randrange(1, 30), chance.randrange(1, 12))
            case "cut":
                files.cut(f"n{step}")
                cuts += 1
                assert files.records() == accepted_records(files)
            case "restart":
                lost: BatchId = driver.begin(driver.member(0), 5)
                if chance.random() < 0.5:
                    files.write(lost)
                restart(files)
            case _:
                scope = EVERYTHING if chance.random() < 0.5 else parse_scope(topics=["t:1,2"])
                driver.reset(target(chance, files), scope=scope)
                files.sink.publish(driver.complete())
                files.sink.reset(files.reset_order())
                driver.settle_reset()
                files.sink.reset(files.reset_order())
    files.cut("last")
    ends = {p: int(c.position or 0) for p, c in driver.region.claims.items()}
    assert files.records() == accepted_records(files)
    if delivery is Delivery.AT_MOST_ONCE:
        # What was in flight when a process died is lost, and nothing is there twice.
        assert files.records() <= files.expected(ends)
    else:
        assert files.records() == files.expected(ends)
    assert cuts
