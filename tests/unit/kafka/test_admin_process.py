from __future__ import annotations

import json
from typing import Any

from airflow_kcr.kafka.admin_process import serve


def answers(*lines: str) -> list[dict[str, Any]]:
    said: list[str] = []
    serve(lines, said.append)
    return [json.loads(line) for line in said]


def settings(**more: str) -> str:
    return json.dumps({"settings": {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"} | more})


def test_settings_come_first() -> None:
    assert answers(settings()) == [{"ready": True}]


def test_settings_that_the_client_does_not_take_are_an_error_without_values() -> None:
    (answer,) = answers(settings(**{"no.such": "x", "sasl.password": "hunter2"}))
    assert answer["failure"] == "ConfigurationError"
    assert "no.such" in answer["message"]
    assert "hunter2" not in answer["message"]


def test_a_line_that_means_nothing_is_answered_and_does_not_end_the_process() -> None:
    _, odd, unknown, empty = answers(settings(), "{", '{"call": "nope", "timeout": 1}', "{}")
    assert [answer["failure"] for answer in (odd, unknown, empty)] == ["KcrError"] * 3


def test_every_request_has_its_deadline() -> None:
    _, answer = answers(settings(), '{"call": "describe", "group": "g", "timeout": 0.3}')
    assert answer["failure"] == "BrokerUnavailable"
    assert "the description of group g: tried 127.0.0.1:1 for 0.3 s" in answer["message"]
