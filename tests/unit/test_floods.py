"""Lines that come again and again: the first, then one a minute with how many were left out."""

from __future__ import annotations

import logging
import re

import pytest

from airflow_kcr.api import group_watch
from airflow_kcr.floods import EVERY, REASONS, FloodFilter, unflooded
from airflow_kcr.kafka import settings
from airflow_kcr.runtime import effects, host
from airflow_kcr.store import schema_upgrade

LEFT_OUT = re.compile(r" \(([\d,]+) more like it in the ([\d,]+) s before are left out\)$")


class Outage:
    """A logger with a clock of its own, and what came through."""

    def __init__(self) -> None:
        self.now, self.filter = 0.0, FloodFilter(clock=lambda: self.now)
        self.said: list[str] = []
        self.log = logging.Logger("outage")  # noqa: LOG001 - no other test has it
        self.log.addFilter(self.filter)
        handler = logging.Handler()
        handler.emit = lambda record: self.said.append(record.getMessage())  # type: ignore[method-assign]
        self.log.addHandler(handler)

    def last(self, seconds: float, each: float, *words: str) -> int:
        """Say the same words so often, for so long; return how many lines that would have been."""
        made = int(seconds / each)
        for number in range(made):
            self.log.warning("try %d: %s", number, words[number % len(words)])
            self.now += each
        return made


@pytest.fixture
def outage() -> Outage:
    return Outage()


def left_out(said: list[str]) -> int:
    return sum(int(found[1].replace(",", "")) for line in said if (found := LEFT_OUT.search(line)))


def test_the_first_line_is_told_at_once_and_then_one_a_minute_with_how_many_there_were(outage: Outage) -> None:
    outage.last(130, 0.5, "nothing listens")
    assert outage.said == [
        "try 0: nothing listens",
        "try 120: nothing listens (119 more like it in the 60 s before are left out)",
        "try 240: nothing listens (119 more like it in the 60 s before are left out)",
    ]


def test_an_outage_of_a_weekend_is_a_few_thousand_lines_that_count_them_all(outage: Outage) -> None:
    minutes = 48 * 60
    made = outage.last(minutes * 60, 5, "nothing listens")
    assert made == 34_560
    assert len(outage.said) == minutes
    outage.last(10, 5, "nothing listens")
    assert len(outage.said) + left_out(outage.said) == made + 1
    assert sum(map(len, outage.said)) < 300_000


def test_each_reason_has_a_line_of_its_own(outage: Outage) -> None:
    outage.last(30, 0.5, "nothing listens", "the leader is not known")
    assert outage.said == ["try 0: nothing listens", "try 1: the leader is not known"]


def test_an_error_is_no_warning(outage: Outage) -> None:
    outage.log.warning("away")
    outage.log.error("away")
    assert outage.said == ["away", "away"]


def test_what_comes_less_often_is_told_as_it_is(outage: Outage) -> None:
    assert outage.last(1_000, EVERY, "nothing listens") == len(outage.said)
    assert left_out(outage.said) == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            "FAIL [kcr-r-g-0#consumer-1] [thrd:127.0.0.1:9092/1]: 127.0.0.1:9092/1: Connect to ipv4#127.0.0.1:9092 "
            "failed: Connection refused (after 0ms in state CONNECT)",
            "FAIL [kcr-r-g-1#consumer-7] [thrd:127.0.0.1:9093/2]: 127.0.0.1:9093/2: Connect to ipv4#127.0.0.1:9093 "
            "failed: Connection refused (after 12ms in state CONNECT, 30 identical error(s) suppressed)",
        ),
        ("g[0]: can't claim yet: tried for 10.0 s", "g[1]: can't claim yet: tried for 9.8 s"),
        ("batch 6f1c00aa is not published", "batch 0b77ee01 is not published"),
    ],
    ids=["librdkafka", "members", "ids"],
)
def test_numbers_make_no_reason(outage: Outage, first: str, second: str) -> None:
    outage.log.error(first)
    outage.log.error(second)
    assert outage.said == [first]


def test_words_that_never_repeat_take_no_memory(outage: Outage) -> None:
    words = ("".join(chr(ord("a") + int(digit)) for digit in str(number)) for number in range(10 * REASONS))
    for word in words:
        outage.log.warning("%s", word)
    assert len(outage.said) == 10 * REASONS
    assert len(outage.filter._reasons) == REASONS
    # Those that were told last are still known.
    outage.log.warning("jjj")
    assert len(outage.said) == 10 * REASONS


def test_a_logger_has_one_filter_however_often_it_is_asked_for() -> None:
    names = [one.name for one in unflooded("airflow_kcr.tried").filters if isinstance(one, FloodFilter)]
    assert len(names) == len(unflooded("airflow_kcr.tried").filters) == 1


LOGGERS = [effects._AGAIN, host._AGAIN, group_watch._AGAIN, schema_upgrade._AGAIN, settings._log]


@pytest.mark.parametrize("logger", LOGGERS, ids=lambda logger: str(logger.name))
def test_what_is_told_with_each_try_is_told_by_such_a_logger(logger: logging.Logger) -> None:
    assert len([one for one in logger.filters if isinstance(one, FloodFilter)]) == 1
