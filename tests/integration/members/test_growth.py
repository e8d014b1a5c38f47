"""Members that live for years: what a process of theirs has depends on what it does, not on how long it has done it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.counted_process import Count, Counted, counted_process
from tests.support.members import Lend, Live

MOST = 2
"""Records of a batch: so few that some hundred records are as many batches."""

BATCHES = f"batch: {{target: 500ms, min_records: 1, max_records: {MOST}, timeout: 20s}}\n"

SOAK_BATCHES = int(os.environ.get("KCR_SOAK_BATCHES", "200000"))
SOAK_CHECKPOINTS = int(os.environ.get("KCR_SOAK_CHECKPOINTS", "10000"))


def worked(live: Live, process: Counted, *, batches: int, checkpoints: int, within: float) -> Count:
    """Have members run N further batches, with checkpoints in between, and count what the process has then."""
    begun, each = read(live), MOST * batches / checkpoints
    for number in range(1, checkpoints + 1):
        live.until(lambda wanted=begun + each * number: read(live) >= wanted, f"part {number}", within)  # type: ignore[misc]
        live.checkpoint(within)
    return process.count()


def read(live: Live) -> int:
    """How many records were processed."""
    return sum(claim.position or 0 for claim in live.store.read(live.name)[0].claims.values())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_process_has_no_more_objects_threads_and_files_after_thrice_the_batches(
    lend: Lend, database_url: str, tmp_path: Path
) -> None:
    judged(lend, database_url, tmp_path, batches=450, checkpoints=6, parts=3)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_process_has_no_more_after_resets_in_a_row(lend: Lend, database_url: str, tmp_path: Path) -> None:
    parts, resets, records = 3, 15, 10
    with (
        lend(members=3, partitions=3, spec=BATCHES) as live,
        (tmp_path / "members.log").open("w") as log,
        counted_process(database_url, live.name, live.group, 0, 1, 2, log=log) as process,
    ):
        live.until_running()
        live.shared(0, 1, 2)
        counts = []
        for _ in range(parts):
            for _ in range(resets):
                live.fill(records)
                live.until(live.consumed, "consumed")
                live.checkpoint()
                live.reset()
            counts.append(process.count())
            print(shown(counts[-1]), flush=True)  # noqa: T201  # to be seen with -s
    assert counts[-1].growth_since(counts[0]) == {}


@pytest.mark.soak
@pytest.mark.timeout(8 * 3600)
def test_a_process_has_no_more_after_two_hundred_thousand_batches(
    lend: Lend, database_url: str, tmp_path: Path
) -> None:
    judged(lend, database_url, tmp_path, batches=SOAK_BATCHES, checkpoints=SOAK_CHECKPOINTS, parts=10)


def judged(lend: Lend, store: str, folder: Path, *, batches: int, checkpoints: int, parts: int) -> None:
    """Compare what a process has after all batches with what it has after the first of N equal parts."""
    each = batches // parts
    with lend(members=3, partitions=3, spec=BATCHES) as live:
        live.fill(MOST * batches)
        with (
            (folder / "members.log").open("w") as log,
            counted_process(store, live.name, live.group, 0, 1, 2, log=log) as process,
        ):
            live.until_running()
            live.shared(0, 1, 2)
            counts = []
            for _ in range(parts):
                # What is made once, caches filled and connections opened, is made in the first part.
                counts.append(worked(live, process, batches=each, checkpoints=checkpoints // parts, within=60 + each))
                print(shown(counts[-1]), flush=True)  # noqa: T201  # to be seen with -s while a long one runs
    assert counts[-1].growth_since(counts[0]) == {}


def shown(count: Count) -> str:
    """Return what a process has in one line."""
    return f"{count.batches} batches, {count.checkpoints} contributions: {count}; {count.cpu:.1f} s"
