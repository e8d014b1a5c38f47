from __future__ import annotations

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.events import (
    Acknowledged,
    CheckpointCompleted,
    Claimed,
    CommitReadBack,
    Contributed,
    MemberRegistered,
    ResetBegun,
    StateChanged,
)
from airflow_kcr.protocol.region.rows import Outcome, RegionState
from airflow_kcr.protocol.values import Epoch, EventNumber, Incarnation, MemberId
from tests.unit.protocol.invariants.stories import (
    altered,
    altered_batch,
    batch,
    body,
    crash_between,
    dropped,
    found,
    numbers,
    recorded,
    rewound,
    two_checkpoints,
    with_copy,
)


def test_a_batch_of_an_old_epoch_is_found() -> None:
    history = recorded(crash_between())
    place = len(history.batches) - 1
    assert "was started in epoch 1" in found(altered_batch(history, place, epoch=Epoch(1)), "R6")[0].detail


def test_a_batch_of_an_old_incarnation_is_found() -> None:
    history = recorded(crash_between())
    place = next(i for i, b in enumerate(history.batches) if b.incarnation == 2)
    old = altered_batch(history, place, incarnation=Incarnation(1))
    assert found(old, "R6")[0].events == (batch(history, place).started_after,)


def test_a_batch_of_a_member_that_holds_nothing_there_is_found() -> None:
    history = recorded(two_checkpoints())
    other = batch(history, 1).ranges
    assert "did not hold" in found(altered_batch(history, 0, ranges=other), "R6")[0].detail
    without_claim = dropped(history, numbers(history, Claimed)[0])
    assert "did not hold" in found(without_claim, "R6")[0].detail


def test_an_end_after_a_reset_is_found() -> None:
    history = recorded(crash_between())
    lost = next(i for i, b in enumerate(history.batches) if b.outcome is Outcome.UNKNOWN)
    accepted = altered_batch(history, lost, outcome=Outcome.DONE)
    assert "was accepted in epoch 2" in found(accepted, "R6")[0].detail


def test_an_end_after_a_newer_incarnation_or_without_its_claims_is_found() -> None:
    history = recorded(crash_between())
    lost = next(i for i, b in enumerate(history.batches) if b.outcome is Outcome.UNKNOWN)
    registered = numbers(history, MemberRegistered)[-1]
    late = altered_batch(history, lost, outcome=Outcome.DONE, finished_after=registered)
    assert "after a newer one" in found(late, "R6")[0].detail
    taken = EventNumber(numbers(history, ResetBegun)[1] - 1)
    unnoticed = dropped(altered_batch(late, lost, finished_after=taken), registered)
    assert "had gone meanwhile" in found(unnoticed, "R6")[0].detail


def test_an_end_without_a_time_or_while_the_region_stands_is_found() -> None:
    history = recorded(two_checkpoints())
    assert "without an end" in found(altered_batch(history, 0, finished_after=None), "R6")[0].detail
    assert "ended after event 1" in found(altered_batch(history, 0, finished_after=EventNumber(1)), "R6")[0].detail
    running = next(n for n in numbers(history, StateChanged) if n < batch(history, 0).started_after)
    stands = [n for n in numbers(history, StateChanged) if n <= batch(history, 0).started_after]
    assert running in stands
    assert "while the region was" in found(dropped(history, stands[-1]), "R6")[0].detail


def test_a_contribution_a_commit_read_back_and_an_acknowledgement_carry_what_is_newest() -> None:
    history = recorded(crash_between())
    for kind in (Contributed, CommitReadBack, Acknowledged):
        last = numbers(history, kind)[-1]
        for changes in ({"epoch": Epoch(1)}, {"incarnation": Incarnation(9)}):
            assert found(altered(history, last, **changes), "R6")[0].events == (last,)
    stranger = MemberId(
        body(history, numbers(history, CommitReadBack)[0], CommitReadBack).offsets.__iter__().__next__().group, 7
    )
    assert found(altered(history, numbers(history, CommitReadBack)[0], member=stranger), "R6")


def test_a_commit_read_back_speaks_only_for_what_its_member_holds() -> None:
    history = recorded(two_checkpoints())
    a, b = numbers(history, CommitReadBack)[:2]
    both = OffsetMap({**body(history, a, CommitReadBack).offsets, **body(history, b, CommitReadBack).offsets})
    assert "does not hold" in found(altered(history, a, offsets=both), "R6")[0].detail


def test_a_batch_that_begins_in_a_drain_is_found() -> None:
    history = recorded(two_checkpoints())
    drain = [n for n in numbers(history, StateChanged) if body(history, n, StateChanged).after is RegionState.DRAINING][
        1
    ]
    for number in (drain, EventNumber(drain + 1), numbers(history, CheckpointCompleted)[1]):
        assert (
            found(altered_batch(history, 2, started_after=number, finished_after=number), "R9")[0].events[-1] == number
        )


def test_a_batch_between_a_persons_checkpoint_and_its_reset_is_found() -> None:
    history = recorded(rewound())
    completed = numbers(history, CheckpointCompleted)[2]
    assert found(with_copy(history, -3, started_after=completed), "R9")[0].events == (completed, completed)


def test_a_batch_while_the_region_resets_is_found() -> None:
    history = recorded(crash_between())
    reset = numbers(history, ResetBegun)[1]
    assert "is resetting" in found(altered_batch(history, -1, started_after=EventNumber(reset + 3)), "R9")[0].detail
