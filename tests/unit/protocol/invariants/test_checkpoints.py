from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.events import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointOpened,
    CheckpointPinned,
    CheckpointPublished,
    CheckpointRequestAnswered,
    CheckpointsRetired,
    Contributed,
    InitialOffsetsStored,
)
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, Incarnation, Offset, RequestId
from tests.unit.protocol.invariants.stories import (
    altered,
    appended,
    body,
    dropped,
    found,
    numbers,
    recorded,
    replaced,
    reported,
    rewound,
    two_checkpoints,
)


def test_a_contribution_that_is_missing_is_found() -> None:
    history = recorded(two_checkpoints())
    gone = numbers(history, Contributed)[0]
    details = " ".join(v.detail for v in found(dropped(history, gone), "R2"))
    assert "without a contribution" in details
    assert "frozen, not contributed" in details


def test_a_contribution_of_a_member_that_is_not_among_the_participants_is_found() -> None:
    history = recorded(two_checkpoints())
    first = numbers(history, Contributed)[0]
    opened = numbers(history, CheckpointOpened)[0]
    assert found(altered(history, first, incarnation=Incarnation(9)), "R2")[0].events == (opened, first)
    participants = {m: Incarnation(i + 1) for m, i in body(history, opened, CheckpointOpened).participants.items()}
    assert found(altered(history, opened, participants=participants), "R2")


def test_a_partition_that_was_contributed_twice_is_found() -> None:
    history = recorded(two_checkpoints())
    a, b = numbers(history, Contributed)[:2]
    offsets = OffsetMap({**body(history, a, Contributed).offsets, **body(history, b, Contributed).offsets})
    assert "contributed twice" in found(altered(history, b, offsets=offsets), "R2")[0].detail


def test_a_checkpoint_that_holds_something_else_is_found() -> None:
    history = recorded(two_checkpoints())
    completed = numbers(history, CheckpointCompleted)[0]
    offsets = body(history, completed, CheckpointCompleted).offsets
    other = offsets.replace({next(iter(offsets)): Offset(11)})
    assert "is not what was contributed" in found(altered(history, completed, offsets=other), "R2")[0].detail


@pytest.mark.parametrize("place", [0, 1])
def test_a_checkpoint_without_a_participant_is_where_the_restore_point_is(place: int) -> None:
    history = recorded(two_checkpoints())
    opened, completed = numbers(history, CheckpointOpened)[place], numbers(history, CheckpointCompleted)[place]
    for part in numbers(history, Contributed):
        if opened < part < completed:
            history = dropped(history, part)
    history = altered(history, opened, participants={})
    assert "is not where the restore point is" in found(history, "R2")[0].detail
    first = body(history, numbers(history, CheckpointCompleted)[0], CheckpointCompleted).offsets
    before = first if place else OffsetMap(dict.fromkeys(first, Offset(0)))
    assert "R2" not in reported(altered(history, completed, offsets=before))


def test_a_checkpoint_that_nobody_opened_is_found() -> None:
    history = recorded(two_checkpoints())
    details = [v.detail for v in found(dropped(history, numbers(history, CheckpointOpened)[0]), "R2")]
    assert all("never opened" in d for d in details)
    assert len(details) == 3


def test_a_contribution_outside_of_its_log_is_found() -> None:
    history = recorded(two_checkpoints())
    first = numbers(history, Contributed)[0]
    bounds = body(history, first, Contributed).bounds
    short = {p: replace(b, end=Offset(5)) for p, b in bounds.items()}
    assert found(altered(history, first, bounds=short), "R3")[0].events == (first,)
    assert "no bounds" in found(altered(history, first, bounds={}), "R3")[0].detail


def test_an_initial_offset_outside_of_its_log_is_found() -> None:
    history = recorded(two_checkpoints())
    first = numbers(history, InitialOffsetsStored)[0]
    bounds = body(history, first, InitialOffsetsStored).bounds
    late = {p: replace(b, start=Offset(5)) for p, b in bounds.items()}
    assert found(altered(history, first, bounds=late), "R3")[0].events == (first,)


def sequences() -> tuple[CheckpointNumber, CheckpointNumber]:
    first, second = sorted(two_checkpoints().region.offsets)
    return first, second


def test_the_restore_point_and_what_it_was_built_from_are_not_retired() -> None:
    history = recorded(two_checkpoints())
    first, second = sequences()
    last = EventNumber(history.events[-1].number + 1)
    (violation,) = found(appended(history, CheckpointsRetired(sequences=(second,))), "R12")
    assert violation.events == (last,)
    assert "it is the restore point" in violation.detail
    (violation,) = found(appended(history, CheckpointsRetired(sequences=(first,))), "R12")
    assert "was built from it" in violation.detail


def test_what_is_pinned_unpublished_or_the_newest_usable_is_not_retired() -> None:
    driver = rewound()
    driver.process()
    driver.checkpoint("fourth")
    history = recorded(driver)
    first = min(driver.region.offsets)
    pin = CheckpointPinned(sequence=first, name="kept", reason="")
    retire = CheckpointsRetired(sequences=(first,))
    assert "pinned as kept" in found(appended(history, pin, retire), "R12")[0].detail
    release = CheckpointPinned(sequence=first, name="", reason="")
    recorded(driver)
    assert "R12" not in reported(appended(history, pin, release, retire))
    unpublished = dropped(history, numbers(history, CheckpointPublished)[0])
    assert "not published" in found(appended(unpublished, retire), "R12")[0].detail
    driver.reset(ToInitial(), forced=True)
    driver.finish_reset()
    undone = recorded(driver)
    assert "R12" not in reported(appended(undone, retire))


def test_the_newest_usable_checkpoint_stays_even_where_the_restore_point_is_a_reset() -> None:
    driver = rewound()
    driver.reset(ToInitial(), forced=True, request_id="all")
    driver.finish_reset()
    driver.process()
    history = recorded(driver)
    assert "R12" not in reported(appended(history, CheckpointsRetired(sequences=(sequences()[0],))))
    kept = rewound()
    kept.reset(ToInitial(), request_id="drained")
    kept.complete()
    assert kept.region.restore_sequence is not None
    retired = appended(recorded(kept), CheckpointsRetired(sequences=(kept.region.restore_sequence,)))
    assert "it is the restore point" in found(retired, "R12")[0].detail


def test_two_open_checkpoints_are_found() -> None:
    history = recorded(two_checkpoints())
    opened = body(history, numbers(history, CheckpointOpened)[0], CheckpointOpened)
    more = [
        replace(opened, sequence=CheckpointNumber(opened.sequence + n), request_id=RequestId(f"m{n}")) for n in (5, 6)
    ]
    last = history.events[-1].number
    assert found(appended(history, *more), "R13")[0].events == (last + 1, last + 2)
    completed = numbers(history, CheckpointCompleted)[0]
    unfinished = dropped(history, completed)
    assert found(unfinished, "R13")


def test_a_checkpoint_for_a_request_id_that_has_its_answer_is_found() -> None:
    history = recorded(two_checkpoints())
    first, second = numbers(history, CheckpointOpened)
    same = altered(history, second, request_id=body(history, first, CheckpointOpened).request_id)
    assert found(same, "R13")[0].events == (first, second)


def test_a_request_id_whose_checkpoint_was_undone_may_be_asked_again() -> None:
    driver = rewound()
    driver.process()
    driver.checkpoint("second")
    recorded(driver)


def test_a_checkpoint_that_ends_twice_is_found() -> None:
    history = recorded(two_checkpoints())
    completed = body(history, numbers(history, CheckpointCompleted)[0], CheckpointCompleted)
    aborted = CheckpointAborted(sequence=completed.sequence, reason="", late=())
    assert "it was not open" in found(appended(history, aborted), "R13")[0].detail
    assert "it was not open" in found(appended(history, completed), "R13")[-1].detail


def test_an_answer_that_is_no_complete_checkpoint_is_found() -> None:
    history = recorded(rewound())
    second = body(history, numbers(history, CheckpointCompleted)[1], CheckpointCompleted).sequence
    undone = appended(history, CheckpointRequestAnswered(request_id=RequestId("late"), sequence=second))
    assert found(undone, "R13")[0].events == (history.events[-1].number + 1,)
    answered = numbers(history, CheckpointRequestAnswered)[0]
    unknown = replaced(
        history, answered, CheckpointRequestAnswered(request_id=RequestId("first"), sequence=CheckpointNumber(99))
    )
    assert found(unknown, "R13")[0].events == (answered,)
