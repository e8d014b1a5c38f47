from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from airflow_kcr.errors import ConfigurationError, RefusedError, StoreUnavailable, TimedOut
from airflow_kcr.goals import CheckpointExists, WaitingFor
from airflow_kcr.protocol.values import CheckpointNumber
from airflow_kcr.triggers.payloads import LagBelow, MembershipHealthy, Status, TriggerAnswer, waiting_for_from_json
from tests.support.documents import WAITS, sample

EVERY: tuple[WaitingFor, ...] = (
    *(sample(kind) for kind in WAITS),
    CheckpointExists(boundary=datetime(2026, 1, 1, 1, tzinfo=UTC)),
    CheckpointExists(sequence=CheckpointNumber(7)),
    MembershipHealthy(),
)


@pytest.mark.parametrize("payload", EVERY, ids=str)
def test_what_is_waited_for_survives_json(payload: WaitingFor) -> None:
    text = json.dumps(payload.to_json())
    # Tasks that wait for the same share one answer.
    assert {waiting_for_from_json(json.loads(text))} == {payload}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"kind": "moon"},
        {"kind": "checkpoint_published"},
        {"kind": "checkpoint_published", "request_id": "n", "more": 1},
    ],
    ids=str,
)
def test_what_another_version_deferred_is_refused_with_what_to_do(value: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="clear the task"):
        waiting_for_from_json(value)


def test_a_state_that_nobody_reaches_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="another version"):
        waiting_for_from_json({"kind": "region_reaches", "state": "asleep"})


@pytest.mark.parametrize("both", [{}, {"boundary": "2026-01-01T01:00:00Z", "sequence": 1}], ids=str)
def test_a_checkpoint_is_named_in_one_way(both: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="give one of the two"):
        waiting_for_from_json({"kind": "checkpoint_exists", **both})


def test_no_lag_is_below_nothing() -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        LagBelow(records=0)


def test_only_what_kafka_has_to_be_asked_for_is_asked_of_kafka() -> None:
    assert {p.kind for p in EVERY if p.asks_kafka} == {"membership_healthy", "lag_below"}


@pytest.mark.parametrize("status", Status)
def test_an_answer_survives_json(status: Status) -> None:
    answer = TriggerAnswer(status=status, detail="g[1] is late")
    assert TriggerAnswer.from_json(json.loads(json.dumps(answer.to_json()))) == answer


@pytest.mark.parametrize(
    ("status", "error"),
    [(Status.REFUSED, RefusedError), (Status.TIMED_OUT, TimedOut), (Status.STORE_AWAY, StoreUnavailable)],
)
def test_what_was_not_reached_is_the_error_that_it_is(status: Status, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^g\[1\] is late$"):
        TriggerAnswer(status=status, detail="g[1] is late").require_reached()


def test_what_was_reached_is_no_error() -> None:
    TriggerAnswer(status=Status.REACHED).require_reached()


@pytest.mark.parametrize("event", [None, {}, {"status": "moon"}], ids=str)
def test_an_event_of_somebody_else_is_refused(event: dict[str, object] | None) -> None:
    with pytest.raises(ConfigurationError, match="none of a region's trigger"):
        TriggerAnswer.from_json(event)
