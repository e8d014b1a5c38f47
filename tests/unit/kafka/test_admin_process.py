"""The child's side of admin calls, without a child: what it answers to which question."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from airflow_kcr.errors import BrokerUnavailable, ConfigurationError
from airflow_kcr.kafka import questions
from airflow_kcr.kafka.admin_child import serve
from airflow_kcr.kafka.admin_process import Answer, Request
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.settings import KafkaSettings


def answers(settings: KafkaSettings, *asked: tuple[object, float]) -> dict[int, Any]:
    """Return what is answered to the settings and to each question, in the order in which the answers came."""
    said: list[Answer] = []
    left = [(number, *one) for number, one in enumerate([(settings, 1.0), *asked])]

    class Line:
        """Gives one question after the other, and then ends."""

        send = staticmethod(said.append)

        def recv(self) -> Request:
            if not left:
                raise EOFError
            return left.pop(0)

    serve(cast("Any", Line()))
    return {number: error or answer for number, answer, error in said}


def settings(**more: str) -> KafkaSettings:
    return KafkaSettings({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"} | more)


DESCRIBE = partial(questions.describe, group=GroupId("g"))


def test_settings_that_the_client_does_not_take_are_an_error_without_values_and_the_last_answer() -> None:
    found = answers(settings(**{"no.such": "x", "sasl.password": "hunter2"}), (DESCRIBE, 1.0))
    assert found.keys() == {0}
    assert isinstance(found[0], ConfigurationError)
    assert "no.such" in found[0].message
    assert "hunter2" not in found[0].message


def test_every_question_has_its_deadline_and_none_waits_for_another() -> None:
    found = answers(settings(), (DESCRIBE, 2.0), (DESCRIBE, 0.3))
    assert list(found) == [0, 2, 1]
    assert isinstance(found[2], BrokerUnavailable)
    assert "the description of group g: tried 127.0.0.1:1 for 0.3 s" in found[2].message
