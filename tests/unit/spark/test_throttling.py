"""What a member's watch says of a quota, from what Kafka and Spark answer it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_kcr.spark import throttling
from airflow_kcr.spark.throttling import ThrottlingWatch
from tests.support.runtime_fakes import eventually

if TYPE_CHECKING:
    import pytest


class Asked:
    """Kafka, which puts a fetch off for some time, and says how often it was asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.times = seconds, 0

    def __call__(self) -> float:
        self.times += 1
        return self.seconds


def watch() -> ThrottlingWatch:
    return ThrottlingWatch(asked_after=0.01)


def test_a_batch_of_a_client_that_is_not_throttled_is_not_slowed() -> None:
    asked, one = Asked(0.0), watch()
    with one.over("a batch", asked):
        eventually(lambda: asked.times > 2, "some questions")
    assert one.slowed() == ""


def test_a_broker_that_throttles_is_asked_again_after_a_while_and_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(throttling, "_ASKED_AGAIN", 3_600.0)
    asked, one = Asked(0.5), watch()
    with caplog.at_level(logging.WARNING), one.over("a batch", asked):
        eventually(lambda: one.slowed() != "", "seen")
    with one.over("another", asked):
        eventually(lambda: asked.times == 2, "asked for each batch")
    assert asked.times == 2
    assert [record.getMessage()[:26] for record in caplog.records] == ["a batch: Kafka throttles w"]
