from __future__ import annotations

from datetime import timedelta

from airflow_kcr.kafka.control import Complaints


def test_the_first_of_a_kind_is_told_at_once_and_the_next_are_counted() -> None:
    complaints = Complaints(timedelta(seconds=5))
    assert complaints.heard("down", "broker 1 is down", 0.0) == "broker 1 is down"
    assert complaints.heard("down", "broker 2 is down", 1.0) is None
    assert complaints.heard("auth", "no", 1.0) == "no"
    assert complaints.heard("down", "broker 3 is down", 2.0) is None
    assert complaints.due(4.9) == ()
    assert complaints.due(5.0) == ("broker 3 is down (2 more in the last 5 s)",)
    assert complaints.due(20.0) == ()


def test_a_kind_that_was_silent_long_enough_is_told_at_once_again() -> None:
    complaints = Complaints(timedelta(seconds=5))
    complaints.heard("down", "one", 0.0)
    assert complaints.heard("down", "two", 6.0) == "two"
    assert complaints.heard("down", "three", 7.0) is None
