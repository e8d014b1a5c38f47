"""A process that starts waits for what is away, up to a time, and for nothing that refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_kcr import errors
from airflow_kcr.driver.starting import PAUSE, StartPatience
from airflow_kcr.errors import BrokerUnavailable, ConfigurationError, KcrError, StoreRefused, StoreUnavailable
from tests.support.runtime_fakes import FLIGHTS


class Tries:
    """Attempts at a start, each of which takes no time; between two the clock goes on."""

    def __init__(self, within: float) -> None:
        self.now, self.made = 1000.0, 0
        self.patience = StartPatience(FLIGHTS, timedelta(seconds=within), clock=lambda: self.now, pause=self._pause)

    def _pause(self, seconds: float) -> None:
        self.now += seconds

    def until(self, answers: Callable[[int], bool], error: KcrError) -> int:
        """Return how many attempts were made until one was answered."""

        def attempt() -> int:
            self.made += 1
            if not answers(self.made):
                raise error
            return self.made

        return self.patience.answered(attempt)


AWAY = [StoreUnavailable, errors.StoreBusy, errors.OutcomeUnknown, BrokerUnavailable, errors.SinkUnavailable]
REFUSING = [
    *(
        StoreRefused,
        errors.SinkRefused,
        errors.SinkError,
        errors.CredentialsRefused,
        ConfigurationError,
        errors.SchemaMissing,
        errors.UnknownRegion,
    ),
]


@pytest.mark.parametrize("kind", AWAY)
def test_what_is_away_is_waited_for_with_one_line_before_and_one_after(
    kind: type[KcrError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert Tries(60).until(lambda made: made == 31, kind("nothing listens there")) == 31
    assert caplog.messages == [
        "region flights: its members wait up to 60 s to start: nothing listens there",
        f"region flights: its members go on after {30 * PAUSE:.0f} s",
    ]


@pytest.mark.parametrize("kind", AWAY)
def test_what_stays_away_is_given_up_in_time_with_its_own_error(kind: type[KcrError]) -> None:
    tries = Tries(60)
    with pytest.raises(kind, match="nothing listens there"):
        tries.until(lambda made: False, kind("nothing listens there"))
    assert tries.now == 1060.0


@pytest.mark.parametrize("kind", REFUSING)
def test_what_refuses_is_not_asked_again(kind: type[KcrError], caplog: pytest.LogCaptureFixture) -> None:
    tries = Tries(60)
    with pytest.raises(kind):
        tries.until(lambda made: False, kind("no"))
    assert (tries.made, caplog.messages) == (1, [])


def test_what_comes_back_and_then_refuses_ends_the_wait() -> None:
    tries = Tries(60)

    def attempt() -> None:
        tries.made += 1
        raise StoreUnavailable("nothing listens there") if tries.made < 5 else StoreRefused("a wrong password")

    with pytest.raises(StoreRefused):
        tries.patience.answered(attempt)
    assert tries.made == 5


def test_without_patience_nothing_is_tried_twice() -> None:
    tries = Tries(0)
    with pytest.raises(StoreUnavailable):
        tries.until(lambda made: False, StoreUnavailable("nothing listens there"))
    assert tries.made == 1


def test_nothing_is_said_of_a_start_that_has_nothing_to_wait_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert Tries(60).until(lambda made: True, StoreUnavailable()) == 1
    assert caplog.messages == []
