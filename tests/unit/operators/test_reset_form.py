"""The form of a reset: what Airflow refuses in it, and what an answer means."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import ParamValidationError
from airflow.sdk.definitions.param import ParamsDict

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.operators.reset_form import VALUED, reset_params, target_of, truth
from airflow_kcr.operators.reset_texts import shown
from airflow_kcr.protocol.targets import TARGETS, ByDuration, ToCheckpoint

ZONE = "AIRFLOW__CORE__DEFAULT_TIMEZONE"


def answered(**answers: object) -> dict[str, Any]:
    form = ParamsDict(reset_params(["tills-etl"]))
    form.update(answers)
    return form.validate()


def test_nothing_has_to_be_answered() -> None:
    assert answered() == {
        "target": "to-checkpoint",
        **dict.fromkeys(("checkpoint", "run", "time", "duration", "shift", "offset", "file"), None),
        "reason": None,
        "groups": None,
        "topics": None,
        "skip": None,
        "forward": False,
        "allow_partial": False,
        "force": False,
        "consent_upsert": False,
    }


def test_each_target_is_in_the_list_with_what_it_means_and_has_a_field_for_its_value() -> None:
    form = reset_params(["g"])
    target = form["target"]
    assert target.schema["enum"] == [one.option for one in TARGETS]
    assert target.schema["values_display"] == {one.option: one.label for one in TARGETS}
    assert [one.form_field for one in TARGETS if one.metavar] == list(form)[1:8]
    assert not any(one.schema for one in TARGETS if not one.metavar)
    json.dumps({name: param.serialize() for name, param in form.items()})


def test_the_help_of_a_field_is_a_line_and_says_what_is_left_out_if_it_is_empty() -> None:
    for name, param in reset_params().items():
        assert len(str(param.description)) <= 110, name
        if param.value is None and name not in {one.form_field for one in TARGETS}:
            assert "Empty: " in str(param.description), name


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("target", "to-nowhere"),
        ("target", None),
        ("checkpoint", "twelve"),
        ("checkpoint", 0),
        ("checkpoint", 1.5),
        ("run", "flights"),
        ("run", "flights/"),
        ("time", "6h"),
        ("time", "2026-01-01T10:00:00"),
        ("time", "2026-13-01T10:00:00Z"),
        ("duration", "yesterday"),
        ("duration", "-6h"),
        ("shift", "100"),
        ("offset", -1),
        ("offset", 2**53),
        ("file", "g,t,0,end"),
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
    ("name", "answer"),
    [
        ("checkpoint", 12),
        ("run", "flights_checkpoint/scheduled__2026-01-01T10:00:00+00:00"),
        ("time", "2026-01-01T10:00:00.000Z"),
        ("time", "2026-01-01T10:00:00+02:00"),
        ("duration", "6h"),
        ("duration", "1d12h30m"),
        ("duration", "PT6H0.5S"),
        ("duration", "500ms"),
        ("shift", -100),
        ("offset", 0),
        ("file", "g,t,0,7\ng,t,1,8\n"),
    ],
)
def test_what_a_field_takes_is_a_value_of_its_target(name: str, answer: object) -> None:
    (target,) = (one for one in TARGETS if one.form_field == name)
    form = answered(**{name: answer})
    assert target_of(target.option, {one.form_field: form[one.form_field] for one in VALUED})[1]


@pytest.mark.parametrize(
    ("name", "answer"), [("topics", ["tills", "tills:0,1"]), ("skip", ["tills:0:7"]), ("groups", ["another"])]
)
def test_airflow_takes_what_the_command_takes(name: str, answer: object) -> None:
    assert answered(**{name: answer})[name] == answer


@pytest.mark.parametrize("target", [None, "", "to-checkpoint", "by_duration"])
def test_a_value_that_is_left_empty_is_asked_for_later(target: str | None) -> None:
    expected = ByDuration if target == "by_duration" else ToCheckpoint
    assert target_of(target, {}) == (expected, None)
    assert target_of(target, {"checkpoint": None, "duration": "  "}) == (expected, None)


@pytest.mark.parametrize(
    ("target", "values", "found"),
    [
        ("to-checkpoint", {"checkpoint": " 12\n"}, "12"),
        ("to-checkpoint", {"checkpoint": 12, "offset": None}, "12"),
        ("to_run", {"run": "d/r/1"}, "d/r/1"),
        ("to-earliest", {"offset": ""}, None),
        ("by-duration", {"duration": "6h"}, "PT6H"),
        ("shift-by", {"shift": -100}, "-100"),
        ("to-offset", {"offset": 0}, "0"),
        ("from-file", {"file": "g,t,0,7\n"}, "g,t,0,7"),
        ("to-datetime", {"time": "2026-01-01T10:00:00+02:00"}, "2026-01-01T08:00:00Z"),
    ],
)
def test_a_target_has_its_value(target: str, values: dict[str, object], found: str | None) -> None:
    kind, value = target_of(target, values)
    assert (kind.option, value) == (target.replace("_", "-"), found)


def test_a_time_without_a_zone_is_in_airflow_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ZONE, "Europe/Zurich")
    assert target_of("to-datetime", {"time": "2026-01-01T10:00"})[1] == "2026-01-01T09:00:00Z"


@pytest.mark.parametrize(
    ("target", "values", "what"),
    [
        (
            "to-checkpoint",
            {"checkpoint": "twelve"},
            "needs a whole number, got 'twelve'.*again, with the sequence of a",
        ),
        ("to-offset", {"offset": "6h"}, "needs a whole number, got '6h'.*with an offset, such as 1000"),
        ("shift-by", {"shift": "1.5"}, "with a number of offsets, negative to go back"),
        ("by-duration", {"duration": "yesterday"}, "with a time back from now, such as 6h"),
        ("to-datetime", {"time": "6h"}, "with a past time"),
        ("to-run", {"run": "flights"}, "with DAG/RUN"),
        (
            "to-earliest",
            {"offset": 12},
            r"to-earliest does not take offset, of another.*with one of .*to-offset \(offset\)",
        ),
        ("to-offset", {"offset": 12, "shift": 1}, "to-offset does not take shift"),
        (None, {"offset": 12}, "to-checkpoint does not take offset"),
        ("to-nowhere", {}, "is not a target.*with one of to-checkpoint"),
    ],
)
def test_what_does_not_fit_says_what_to_change(target: str | None, values: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){what}"):
        target_of(target, values)


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
