from __future__ import annotations

from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.events import CommitResolved, CutCompleted, CutOpened, Echoed
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
    two_cuts,
)


def test_an_echo_that_differs_from_a_committed_checkpoint_is_found() -> None:
    history = recorded(two_cuts())
    echo, resolved = numbers(history, Echoed)[0], numbers(history, CommitResolved)[0]
    wrong = {p: Offset(o + 1) for p, o in body(history, echo, Echoed).offsets.items()}
    (violation,) = found(altered(history, echo, offsets=OffsetMap(wrong)), "R4")
    assert violation.events == (resolved,)
    assert "Kafka holds 11" in violation.detail


def test_a_yes_without_every_echo_is_found() -> None:
    history = recorded(two_cuts())
    echo, resolved = numbers(history, Echoed)[0], numbers(history, CommitResolved)[0]
    assert found(dropped(history, echo), "R4")[0].events == (resolved,)
    nobody_opened = dropped(history, numbers(history, CutOpened)[0])
    assert found(nobody_opened, "R4")


def test_an_echo_of_a_cut_that_is_not_the_base_is_found() -> None:
    history = recorded(two_cuts())
    last = numbers(history, Echoed)[-1]
    first = body(history, numbers(history, CutCompleted)[0], CutCompleted).sequence
    assert found(altered(history, last, sequence=first), "R4")[0].events == (last,)
    drained = recorded(rewound())
    late = appended(drained, body(drained, numbers(drained, Echoed)[0], Echoed))
    assert found(late, "R4")[0].events == (late.events[-1].number,)


def test_a_later_echo_that_differs_needs_another_resolution() -> None:
    driver = two_cuts()
    member = driver.member(0)
    wrong = {p: Offset(1) for p in driver.claims(member)}
    driver.echo(member, wrong)
    history = recorded(driver)
    echo, resolved = numbers(history, Echoed)[-1], numbers(history, CommitResolved)[-1]
    assert found(dropped(history, resolved), "R4")[0].events == (echo,)
    driver.echo(member)
    driver.process()
    unresolved = dropped(recorded(driver), resolved)
    assert found(unresolved, "R4")[0].events == (echo,)
