"""How answers are sorted; that a real broker gives them is for the contract tests."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_kcr.kafka.calls import BrokerQuestion


def said(*, result: int | None = None, code: int | None = None) -> Future[int]:
    future: Future[int] = Future()
    if code is not None:
        future.set_exception(KafkaException(KafkaError(code)))
    elif result is not None:
        future.set_result(result)
    return future


def asked(**answers: Future[int]) -> BrokerQuestion[str, int]:
    question: BrokerQuestion[str, int] = BrokerQuestion(
        "x", sorted(answers), lambda _a, _k, _s: answers, lambda n: n >= 0
    )
    question.send(None, 1.0)  # type: ignore[arg-type]
    return question


def test_found_and_final_errors_are_settled() -> None:
    question = asked(a=said(result=1), b=said(code=KafkaError._UNKNOWN_PARTITION))
    assert question.take() is None
    assert (question.found, question.open) == ({"a": 1}, [])
    assert question.failed["b"].code() == KafkaError._UNKNOWN_PARTITION


@pytest.mark.parametrize("answer", [said(code=KafkaError.NOT_LEADER_FOR_PARTITION), said(result=-1001), said()])
def test_what_may_heal_stays_open(answer: Future[int]) -> None:
    # A result that is none is no answer: of a broker that went away the client makes one up.
    question = asked(a=said(result=1), b=answer)
    worst = question.take()
    assert worst is not None
    assert worst[0] == "b"
    assert (question.found, question.open) == ({"a": 1}, ["b"])


def test_a_refusal_counts_more_than_what_may_heal() -> None:
    question = asked(
        a=said(code=KafkaError._TIMED_OUT),
        b=said(code=KafkaError.TOPIC_AUTHORIZATION_FAILED),
        c=said(code=KafkaError._TIMED_OUT),
    )
    worst = question.take()
    assert worst is not None
    assert worst[0] == "b"


def test_what_is_no_error_of_kafka_is_raised() -> None:
    broken: Future[int] = Future()
    broken.set_exception(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        asked(a=broken).take()
