"""Members that live for years: what a process of theirs has depends on what it does, not on how long it has done it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.members.conftest import Lend
from tests.support.counted_process import Count, Counted, counted_process
from tests.support.members import Live

MOST = 2
"""Records of a batch: so few that some hundred records are as many batches."""

BATCHES = f"batch: {{target: 500ms, min_records: 1, max_records: {MOST}, timeout: 20s}}\n"

CHANCE = 250
"""Objects of one type that may be on their way when the process is counted, by chance; less than one a batch."""


def worked(live: Live, process: Counted, *, batches: int, checkpoints: int, within: float) -> Count:
    """Have members run so many further batches, with checkpoints in between, and count what the process has then."""
    begun, each = read(live), MOST * batches // checkpoints
    for number in range(1, checkpoints + 1):
        live.until(lambda wanted=begun + each * number: read(live) >= wanted, f"part {number}", within)  # type: ignore[misc]
        live.checkpoint(within)
    return process.count()


def read(live: Live) -> int:
    """How many records were processed."""
    return sum(claim.position or 0 for claim in live.region().claims.values())


def grown(before: Count, after: Count) -> dict[str, int]:
    """Return of which types there are more than chance explains."""
    more = {kind: number - before.objects.get(kind, 0) for kind, number in after.objects.items()}
    return {kind: number for kind, number in more.items() if number > CHANCE}


@pytest.mark.timeout(300)
def test_a_process_has_no_more_objects_threads_and_files_after_thrice_the_batches(
    lend: Lend, database_url: str, tmp_path: Path
) -> None:
    judged(lend, database_url, tmp_path, batches=150, checkpoints=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_process_has_no_more_after_two_hundred_thousand_batches(
    lend: Lend, database_url: str, tmp_path: Path
) -> None:
    judged(lend, database_url, tmp_path, batches=66_000, checkpoints=300)


def judged(lend: Lend, store: str, folder: Path, *, batches: int, checkpoints: int) -> None:
    """Compare what a process has after a number of batches with what it has after three times as many."""
    within = 60 + batches / 10
    with lend(members=3, partitions=3, spec=BATCHES) as live:
        live.fill(3 * batches * MOST)
        with (
            (folder / "members.log").open("w") as log,
            counted_process(store, live.name, live.group, 0, 1, 2, log=log) as process,
        ):
            live.until_running()
            live.shared(0, 1, 2)
            # What is made once, caches filled and connections opened, is made in the first part.
            first = worked(live, process, batches=batches, checkpoints=checkpoints, within=within)
            second = worked(live, process, batches=2 * batches, checkpoints=checkpoints, within=2 * within)
    assert grown(first, second) == {}
    assert second.threads == first.threads
    assert second.files <= first.files
    assert second.held - first.held < 10 * CHANCE, "a container grows"
