"""The form of a reset: what Airflow refuses in it, and what an answer means."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import ParamValidationError
from airflow.sdk.definitions.param import ParamsDict

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.operators.reset_form import CHOOSE_LATER, reset_params, shown, target_of, truth
from airflow_kcr.protocol.targets import TARGETS

ZONE = "AIRFLOW__CORE__DEFAULT_TIMEZONE"


def answered(**answers: object) -> dict[str, Any]:
    form = ParamsDict(reset_params(["tills-etl"]))
    form.update(answers)
    return form.validate()


def test_nothing_has_to_be_answered() -> None:
    assert answered() == {
        "target": CHOOSE_LATER,
        "value": None,
        "groups": None,
        "topics": None,
        "skip": None,
        "forward": False,
        "allow_partial": False,
        "force": False,
        "consent_upsert": False,
        "reason": None,
    }


def test_each_of_the_eleven_targets_is_in_the_list_with_what_it_means() -> None:
    target = reset_params()["target"]
    assert target.schema["enum"] == [CHOOSE_LATER, *(one.option for one in TARGETS)]
    assert target.schema["values_display"].keys() == set(target.schema["enum"])
    json.dumps({name: param.serialize() for name, param in reset_params(["g"]).items()})


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("target", "to-nowhere"),
        ("value", 7),
        ("groups", "g"),
        ("groups", [""]),
        ("topics", ["tills:zero"]),
        ("topics", ["tills:0,"]),
        ("skip", ["tills:0"]),
        ("skip", [7]),
        ("force", "yes"),
        ("reason", 1),
    ],
)
def test_airflow_refuses_what_is_of_no_use_before_there_is_a_run(name: str, answer: object) -> None:
    with pytest.raises(ParamValidationError):
        answered(**{name: answer})


@pytest.mark.parametrize(
    ("name", "answer"), [("topics", ["tills", "tills:0,1"]), ("skip", ["tills:0:7"]), ("groups", ["another"])]
)
def test_airflow_takes_what_the_command_takes(name: str, answer: object) -> None:
    assert answered(**{name: answer})[name] == answer


@pytest.mark.parametrize("target", [None, "", "choose"])
def test_without_a_target_a_checkpoint_is_chosen_later(target: str | None) -> None:
    assert target_of(target, None) is None
    assert target_of(target, "  ") is None


@pytest.mark.parametrize(
    ("target", "value", "found"),
    [
        ("to-checkpoint", " 12\n", ("to-checkpoint", "12")),
        ("to-checkpoint", 12, ("to-checkpoint", "12")),
        ("to_run", "d/r/1", ("to-run", "d/r/1")),
        ("to-earliest", "", ("to-earliest", None)),
        ("by-duration", "6h", ("by-duration", "PT6H")),
        ("shift-by", "-100", ("shift-by", "-100")),
        ("from-file", "g,t,0,7\n", ("from-file", "g,t,0,7")),
        ("to-datetime", "2026-01-01T10:00:00+02:00", ("to-datetime", "2026-01-01T08:00:00Z")),
    ],
)
def test_a_target_has_its_value(target: str, value: object, found: tuple[str, str | None]) -> None:
    assert target_of(target, value) == found


def test_a_time_without_a_zone_is_in_airflow_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ZONE, "Europe/Zurich")
    assert target_of("to-datetime", "2026-01-01T10:00") == ("to-datetime", "2026-01-01T09:00:00Z")
    assert "in Europe/Zurich" in str(reset_params()["value"].description)


@pytest.mark.parametrize(
    ("target", "value", "what"),
    [
        ("to-checkpoint", "twelve", "needs a whole number, got 'twelve'.*again, with the sequence of a checkpoint"),
        ("to-offset", "6h", "needs a whole number, got '6h'.*with an offset, such as 1000"),
        ("to-offset", None, "needs a value.*with an offset"),
        ("shift-by", "1.5", "with a number of offsets, negative to go back"),
        ("by-duration", "yesterday", "with a time back from now, such as 6h"),
        ("to-datetime", "6h", "with a past time"),
        ("to-datetime", None, "needs a value"),
        ("to-run", "flights", "with DAG/RUN"),
        ("from-file", None, "needs a value.*with lines of"),
        ("to-earliest", "12", "has no value, got '12'.*with no value"),
        ("to-nowhere", None, "is not a target.*with one of to-checkpoint"),
        ("choose", "12", "belongs to no target.*with the target that it is of"),
    ],
)
def test_a_value_of_the_wrong_type_says_what_to_change(target: str, value: str | None, what: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){what}"):
        target_of(target, value)


@pytest.mark.parametrize(
    ("answer", "found"),
    [(True, True), ("true", True), ("True ", True), (False, False), ("False", False), (None, False), ("", False)],
    ids=repr,
)
def test_a_yes_or_no_may_come_through_a_template(answer: object, found: bool) -> None:
    assert truth(answer, "forward") is found


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="forward is true or false, not 'perhaps'"):
        truth("perhaps", "forward")


@pytest.mark.parametrize(
    ("zone", "text"),
    [("utc", "2026-01-01 12:00:00 UTC"), ("Europe/Zurich", "2026-01-01 13:00:00 CET"), ("system", "2026-01-01 ")],
)
def test_times_are_shown_in_airflow_s_zone(monkeypatch: pytest.MonkeyPatch, zone: str, text: str) -> None:
    monkeypatch.setenv(ZONE, zone)
    assert shown(datetime(2026, 1, 1, 12, tzinfo=UTC)).startswith(text)
