"""Whatever happens to a region, the manifests in force hold what is accepted, each record once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from airflow_kcr.protocol.region.commands import RetireCheckpoints
from airflow_kcr.protocol.region.rows import CheckpointState, RegionState
from airflow_kcr.protocol.rules import Delivery, RegionRules, RetentionRules
from airflow_kcr.protocol.scopes import EVERYTHING, parse_scope
from airflow_kcr.protocol.targets import ShiftBy, Target, ToCheckpoint, ToInitial
from airflow_kcr.sinks.files.cleanup import GivenUp
from airflow_kcr.sinks.files.contents import accepted
from tests.support.driver import GROUP, Driver, group_rules
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
    """Return a checkpoint that can be read, or a place before where the region is."""
    rows = files.driver.region.checkpoints
    known = [sequence for sequence in sorted(files.manifests()) if rows[sequence].is_complete]
    if known and chance.random() < 0.5:
        return ToCheckpoint(sequence=chance.choice(known))
    return ShiftBy(by=-chance.randrange(1, 90)) if chance.random() < 0.7 else ToInitial()


def grown(driver: Driver, root: Path, file_size: int) -> Files:
    """Return the sink of a region that has much to read."""
    for partition in tuple(driver.logs):
        driver.grow(partition, end=100_000)
    driver.up()
    return Files(driver, root, file_size)


def lived(files: Files, chance: Random, *kinds: str) -> Iterator[str]:
    """Let things of these kinds happen to a region, and yield the kind of each when it has; of others, only that."""
    driver = files.driver
    for step in range(STEPS):
        assert driver.region.state is RegionState.RUNNING
        match kind := chance.choice(kinds):
            case "batch":
                for index in range(2):
                    files.process_batch(driver.member(index), chance.randrange(1, 30), chance.randrange(1, 12))
            case "checkpoint":
                files.checkpoint(f"n{step}")
            case "restart":
                # A process dies with its batch, and all come back; its files and list may be there or not.
                lost = driver.start_batch(driver.member(0), 5)
                if chance.random() < 0.5:
                    files.write(lost)
                driver.crash(driver.member(0))
                driver.recover()
                files.sink.reset(files.reset_order())
            case "recompute":
                rows = driver.region.checkpoints
                known = [s for s in files.manifests() if rows[s].state is CheckpointState.PUBLISHED]
                if known:
                    files.recompute(chance.choice(known), copies=1, request_id=f"r{step}")
            case "reset":
                scope = EVERYTHING if chance.random() < 0.5 else parse_scope(topics=["t:1,2"])
                files.go_back(target(chance, files), scope)
                files.sink.reset(files.reset_order())
        yield kind
    files.checkpoint("last")


def give_up(files: Files, chance: Random) -> Counter[Record]:
    """Retire what is due, delete unreadable output, and return what retired checkpoints had."""
    files.driver.handle(RetireCheckpoints())
    rows = files.driver.region.checkpoints
    # What a reset has undone is no output of a retired checkpoint, and comes again.
    had = {
        s: files.records(s)
        for s in files.manifests()
        if rows[s].state is CheckpointState.RETIRED and rows[s].undone_by is None
    }
    kept = {s: files.records(s) for s in files.manifests() if s not in had and rows[s].undone_by is None}
    what = chance.choice(list(GivenUp))
    files.clean(what)
    assert {s: held for s, held in kept.items() if files.records(s) == held} == kept
    files.clean(what)
    return sum(had.values(), Counter()) if what is GivenUp.RETIRED else Counter()


@pytest.mark.parametrize("file_size", [0, 1_000_000])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_deleted_is_never_what_can_be_read_or_comes_again(tmp_path: Path, seed: int, file_size: int) -> None:
    chance, rules = Random(seed), RegionRules(groups={GROUP: group_rules()}, retention=RetentionRules(keep=3))
    files = grown(Driver(rules=rules), tmp_path / "out", file_size)
    given_up: Counter[Record] = Counter()
    for kind in lived(
        files, chance, "batch", "batch", "checkpoint", "checkpoint", "restart", "reset", "clean", "recompute"
    ):
        if kind == "checkpoint":
            check(files, given_up)
        if kind == "clean":
            given_up += give_up(files, chance)
    check(files, given_up)
    files.clean()
    check(files, given_up)
    assert {path for path in files.data_files() - files.needed() if path.startswith(("data/", "revisions/"))} == set()


def check(files: Files, given_up: Counter[Record]) -> None:
    """See that the checkpoints that can be read hold what is accepted once, but for what was given up."""
    found = files.records()
    assert max(found.values(), default=1) == 1
    assert found <= accepted_records(files)
    assert set(accepted_records(files) - found) <= set(given_up)


@pytest.mark.parametrize("file_size", [0, 1_000_000])
@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("seed", range(4))
def test_manifests_hold_what_is_accepted(tmp_path: Path, seed: int, delivery: Delivery, file_size: int) -> None:
    chance, driver = Random(seed), Driver(delivery=delivery)
    files = grown(driver, tmp_path / "out", file_size)
    for kind in lived(
        files, chance, "batch", "batch", "batch", "checkpoint", "checkpoint", "restart", "reset", "recompute"
    ):
        if kind == "checkpoint":
            assert files.records() == accepted_records(files)
    ends = {p: int(c.position or 0) for p, c in driver.region.claims.items()}
    assert files.records() == accepted_records(files)
    if delivery is Delivery.AT_MOST_ONCE:
        # What was in flight when a process died is lost, and nothing is there twice.
        assert files.records() <= files.expected(ends)
    else:
        assert files.records() == files.expected(ends)
