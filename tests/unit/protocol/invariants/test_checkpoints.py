from __future__ import annotations

from dataclasses import replace

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.events import (
    CheckpointPinned,
    CheckpointsRetired,
    Contributed,
    CutAborted,
    CutAnswered,
    CutCompleted,
    CutOpened,
    CutPublished,
    InitialOffsetsStored,
)
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.values import EventNumber, Incarnation, Nonce, Offset, Sequence
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
    two_cuts,
)


def test_a_contribution_that_is_missing_is_found() -> None:
    history = recorded(two_cuts())
    gone = numbers(history, Contributed)[0]
    details = " ".join(v.detail for v in found(dropped(history, gone), "R2"))
    assert "without a contribution" in details
    assert "frozen, not contributed" in details


def test_a_contribution_of_a_member_that_is_not_on_the_roster_is_found() -> None:
    history = recorded(two_cuts())
    first = numbers(history, Contributed)[0]
    opened = numbers(history, CutOpened)[0]
    assert found(altered(history, first, incarnation=Incarnation(9)), "R2")[0].events == (opened, first)
    roster = {m: Incarnation(i + 1) for m, i in body(history, opened, CutOpened).roster.items()}
    assert found(altered(history, opened, roster=roster), "R2")


def test_a_partition_that_was_contributed_twice_is_found() -> None:
    history = recorded(two_cuts())
    a, b = numbers(history, Contributed)[:2]
    offsets = OffsetMap({**body(history, a, Contributed).offsets, **body(history, b, Contributed).offsets})
    assert "contributed twice" in found(altered(history, b, offsets=offsets), "R2")[0].detail


def test_a_checkpoint_that_holds_something_else_is_found() -> None:
    history = recorded(two_cuts())
    completed = numbers(history, CutCompleted)[0]
    offsets = body(history, completed, CutCompleted).offsets
    other = offsets.replace({next(iter(offsets)): Offset(11)})
    assert "is not what was contributed" in found(altered(history, completed, offsets=other), "R2")[0].detail


def test_a_cut_that_nobody_opened_is_found() -> None:
    history = recorded(two_cuts())
    details = [v.detail for v in found(dropped(history, numbers(history, CutOpened)[0]), "R2")]
    assert all("nobody opened it" in d for d in details)
    assert len(details) == 3


def test_a_contribution_outside_of_its_log_is_found() -> None:
    history = recorded(two_cuts())
    first = numbers(history, Contributed)[0]
    bounds = body(history, first, Contributed).bounds
    short = {p: replace(b, end=Offset(5)) for p, b in bounds.items()}
    assert found(altered(history, first, bounds=short), "R3")[0].events == (first,)
    assert "no bounds" in found(altered(history, first, bounds={}), "R3")[0].detail


def test_an_initial_offset_outside_of_its_log_is_found() -> None:
    history = recorded(two_cuts())
    first = numbers(history, InitialOffsetsStored)[0]
    bounds = body(history, first, InitialOffsetsStored).bounds
    late = {p: replace(b, start=Offset(5)) for p, b in bounds.items()}
    assert found(altered(history, first, bounds=late), "R3")[0].events == (first,)


def sequences() -> tuple[Sequence, Sequence]:
    first, second = sorted(two_cuts().region.offsets)
    return first, second


def test_the_base_and_what_it_was_built_from_are_not_retired() -> None:
    history = recorded(two_cuts())
    first, second = sequences()
    last = EventNumber(history.events[-1].number + 1)
    (violation,) = found(appended(history, CheckpointsRetired(sequences=(second,))), "R12")
    assert violation.events == (last,)
    assert "it is the base" in violation.detail
    (violation,) = found(appended(history, CheckpointsRetired(sequences=(first,))), "R12")
    assert "was built from it" in violation.detail


def test_what_is_pinned_unpublished_or_the_newest_usable_is_not_retired() -> None:
    driver = rewound()
    driver.process()
    driver.cut("fourth")
    history = recorded(driver)
    first = min(driver.region.offsets)
    pin = CheckpointPinned(sequence=first, name="kept", reason="")
    retire = CheckpointsRetired(sequences=(first,))
    assert "pinned as kept" in found(appended(history, pin, retire), "R12")[0].detail
    release = CheckpointPinned(sequence=first, name="", reason="")
    recorded(driver)
    assert "R12" not in reported(appended(history, pin, release, retire))
    unpublished = dropped(history, numbers(history, CutPublished)[0])
    assert "not published" in found(appended(unpublished, retire), "R12")[0].detail
    driver.reset(ToInitial(), forced=True)
    driver.settle_reset()
    undone = recorded(driver)
    assert "R12" not in reported(appended(undone, retire))


def test_the_newest_usable_checkpoint_stays_even_where_the_base_is_a_reset() -> None:
    driver = rewound()
    driver.reset(ToInitial(), forced=True, nonce="all")
    driver.settle_reset()
    driver.process()
    history = recorded(driver)
    assert "R12" not in reported(appended(history, CheckpointsRetired(sequences=(sequences()[0],))))
    kept = rewound()
    kept.reset(ToInitial(), nonce="drained")
    kept.complete()
    assert kept.region.base is not None
    retired = appended(recorded(kept), CheckpointsRetired(sequences=(kept.region.base,)))
    assert "it is the base" in found(retired, "R12")[0].detail


def test_two_open_cuts_are_found() -> None:
    history = recorded(two_cuts())
    opened = body(history, numbers(history, CutOpened)[0], CutOpened)
    more = [replace(opened, sequence=Sequence(opened.sequence + n), nonce=Nonce(f"m{n}")) for n in (5, 6)]
    last = history.events[-1].number
    assert found(appended(history, *more), "R13")[0].events == (last + 1, last + 2)
    completed = numbers(history, CutCompleted)[0]
    unfinished = dropped(history, completed)
    assert found(unfinished, "R13")


def test_a_cut_for_a_nonce_that_has_its_answer_is_found() -> None:
    history = recorded(two_cuts())
    first, second = numbers(history, CutOpened)
    same = altered(history, second, nonce=body(history, first, CutOpened).nonce)
    assert found(same, "R13")[0].events == (first, second)


def test_a_nonce_whose_cut_was_undone_may_be_asked_again() -> None:
    driver = rewound()
    driver.process()
    driver.cut("second")
    recorded(driver)


def test_a_cut_that_ends_twice_is_found() -> None:
    history = recorded(two_cuts())
    completed = body(history, numbers(history, CutCompleted)[0], CutCompleted)
    aborted = CutAborted(sequence=completed.sequence, reason="", late=())
    assert "it was not open" in found(appended(history, aborted), "R13")[0].detail
    assert "it was not open" in found(appended(history, completed), "R13")[-1].detail


def test_an_answer_that_is_no_complete_cut_is_found() -> None:
    history = recorded(rewound())
    second = body(history, numbers(history, CutCompleted)[1], CutCompleted).sequence
    undone = appended(history, CutAnswered(nonce=Nonce("late"), sequence=second))
    assert found(undone, "R13")[0].events == (history.events[-1].number + 1,)
    answered = numbers(history, CutAnswered)[0]
    unknown = replaced(history, answered, CutAnswered(nonce=Nonce("first"), sequence=Sequence(99)))
    assert found(unknown, "R13")[0].events == (answered,)
