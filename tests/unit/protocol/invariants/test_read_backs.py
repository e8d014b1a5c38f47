from __future__ import annotations

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.events import CheckpointCompleted, CheckpointOpened, CommitReadBack, CommitResolved
from airflow_kcr.protocol.values import Offset
from tests.unit.protocol.invariants.stories import (
    altered,
    appended,
    body,
    dropped,
    found,
    numbers,
    recorded,
    rewound,
    two_checkpoints,
)


def test_a_commit_read_back_that_differs_from_a_committed_checkpoint_is_found() -> None:
    history = recorded(two_checkpoints())
    read_back, resolved = numbers(history, CommitReadBack)[0], numbers(history, CommitResolved)[0]
    wrong = {p: Offset(o + 1) for p, o in body(history, read_back, CommitReadBack).offsets.items()}
    (violation,) = found(altered(history, read_back, offsets=OffsetMap(wrong)), "R4")
    assert violation.events == (resolved,)
    assert "Kafka holds 11" in violation.detail


def test_a_yes_without_every_commit_read_back_is_found() -> None:
    history = recorded(two_checkpoints())
    read_back, resolved = numbers(history, CommitReadBack)[0], numbers(history, CommitResolved)[0]
    assert found(dropped(history, read_back), "R4")[0].events == (resolved,)
    nobody_opened = dropped(history, numbers(history, CheckpointOpened)[0])
    assert found(nobody_opened, "R4")


def test_a_commit_read_back_of_a_checkpoint_that_is_not_the_restore_point_is_found() -> None:
    history = recorded(two_checkpoints())
    last = numbers(history, CommitReadBack)[-1]
    first = body(history, numbers(history, CheckpointCompleted)[0], CheckpointCompleted).sequence
    assert found(altered(history, last, sequence=first), "R4")[0].events == (last,)
    drained = recorded(rewound())
    late = appended(drained, body(drained, numbers(drained, CommitReadBack)[0], CommitReadBack))
    assert found(late, "R4")[0].events == (late.events[-1].number,)


def test_a_later_commit_read_back_that_differs_needs_another_resolution() -> None:
    driver = two_checkpoints()
    member = driver.member(0)
    wrong = {p: Offset(1) for p in driver.claims(member)}
    driver.read_back(member, wrong)
    history = recorded(driver)
    read_back, resolved = numbers(history, CommitReadBack)[-1], numbers(history, CommitResolved)[-1]
    assert found(dropped(history, resolved), "R4")[0].events == (read_back,)
    driver.read_back(member)
    driver.process()
    unresolved = dropped(recorded(driver), resolved)
    assert found(unresolved, "R4")[0].events == (read_back,)
