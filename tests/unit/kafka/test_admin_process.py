"""The child's side of admin calls, without a child: what it answers to which line."""

from __future__ import annotations

import json
from typing import Any

from airflow_kcr.kafka.admin_child import serve


def answers(*lines: str) -> dict[int | None, dict[str, Any]]:
    said: list[str] = []
    serve(iter(lines), said.append)
    return {answer.pop("number"): answer for answer in map(json.loads, said)}


def settings(**more: str) -> str:
    return json.dumps({"settings": {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"} | more})


def test_settings_come_first() -> None:
    assert answers(settings()) == {0: {"answer": {}}}


def test_settings_that_the_client_does_not_take_are_an_error_without_values_and_the_last_answer() -> None:
    found = answers(settings(**{"no.such": "x", "sasl.password": "hunter2"}), '{"number": 1}')
    assert found.keys() == {0}
    assert found[0]["failure"] == "ConfigurationError"
    assert "no.such" in found[0]["message"]
    assert "hunter2" not in found[0]["message"]


def test_a_line_that_means_nothing_is_answered_and_does_not_end_the_process() -> None:
    found = answers(settings(), "{", '{"number": 1, "call": "nope", "timeout": 1}', '{"number": 2}')
    assert [found[number]["failure"] for number in (None, 1, 2)] == ["KcrError"] * 3


def test_every_request_has_its_deadline_and_none_waits_for_another() -> None:
    slow, quick = (
        json.dumps({"number": number, "call": "describe", "group": "g", "timeout": seconds})
        for number, seconds in ((1, 2), (2, 0.3))
    )
    found = answers(settings(), slow, quick)
    assert list(found) == [0, 2, 1]
    assert found[2]["failure"] == "BrokerUnavailable"
    assert "the description of group g: tried 127.0.0.1:1 for 0.3 s" in found[2]["message"]
