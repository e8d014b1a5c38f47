from __future__ import annotations

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.events import CheckpointCompleted, CheckpointOpened, CommitReadBack, CommitResolved
from airflow_kcr.protocol.values import Offset
from tests.unit.protocol.invariants import stories


def test_a_commit_read_back_that_differs_from_a_committed_checkpoint_is_found() -> None:
    history = stories.recorded(stories.two_checkpoints())
    read_back, resolved = stories.numbers(history, CommitReadBack)[0], stories.numbers(history, CommitResolved)[0]
    wrong = {p: Offset(o + 1) for p, o in stories.body(history, read_back, CommitReadBack).offsets.items()}
    (violation,) = stories.found(stories.altered(history, read_back, offsets=OffsetMap(wrong)), "R4")
    assert violation.events == (resolved,)
    assert "Kafka holds 11" in violation.detail


def test_a_yes_without_every_commit_read_back_is_found() -> None:
    history = stories.recorded(stories.two_checkpoints())
    read_back, resolved = stories.numbers(history, CommitReadBack)[0], stories.numbers(history, CommitResolved)[0]
    assert stories.found(stories.dropped(history, read_back), "R4")[0].events == (resolved,)
    nobody_opened = stories.dropped(history, stories.numbers(history, CheckpointOpened)[0])
    assert stories.found(nobody_opened, "R4")


def test_a_commit_read_back_of_a_checkpoint_that_is_not_the_restore_point_is_found() -> None:
    history = stories.recorded(stories.two_checkpoints())
    last = stories.numbers(history, CommitReadBack)[-1]
    first = stories.body(history, stories.numbers(history, CheckpointCompleted)[0], CheckpointCompleted).sequence
    assert stories.found(stories.altered(history, last, sequence=first), "R4")[0].events == (last,)
    drained = stories.recorded(stories.rewound())
    late = stories.appended(drained, stories.body(drained, stories.numbers(drained, CommitReadBack)[0], CommitReadBack))
    assert stories.found(late, "R4")[0].events == (late.events[-1].number,)


def test_a_later_commit_read_back_that_differs_needs_another_resolution() -> None:
    driver = stories.two_checkpoints()
    member = driver.member(0)
    wrong = {p: Offset(1) for p in driver.claims(member)}
    driver.read_back(member, wrong)
    history = stories.recorded(driver)
    read_back, resolved = stories.numbers(history, CommitReadBack)[-1], stories.numbers(history, CommitResolved)[-1]
    assert stories.found(stories.dropped(history, resolved), "R4")[0].events == (read_back,)
    driver.read_back(member)
    driver.process()
    unresolved = stories.dropped(stories.recorded(driver), resolved)
    assert stories.found(unresolved, "R4")[0].events == (read_back,)
