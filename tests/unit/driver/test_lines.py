from __future__ import annotations

import logging

import pytest

from airflow_kcr.driver.task import KEPT, LOG_FORMAT, RunningApplication, Sieve

APPLICATION = RunningApplication(
    application="local-1", ui="http://here:4040", host="here", pid=7, started=99, members={"g[0]": 3}
)
INFO = "2026-01-01 12:00:00,123 INFO region flights: hosting g[0]"
WARNING = "2026-01-01 12:00:00,123 WARNING g[0]: the store does not answer"
SPARK = "26/01/01 12:00:00 INFO SparkContext: Running Spark version 4.0.1"


def shown(*lines: str) -> list[tuple[int, str]]:
    sieve = Sieve()
    return [found for line in lines if (found := sieve.take(f"{line}\n")) is not None]


def test_an_application_survives_the_way_through_a_line() -> None:
    assert RunningApplication.read(APPLICATION.line()) == APPLICATION
    assert "\n" not in APPLICATION.line()


def test_its_label_names_host_process_and_application() -> None:
    assert APPLICATION.label() == "here, process 7, local-1, http://here:4040"
    assert RunningApplication(application="local-1", host="here", pid=7).label() == "here, process 7, local-1"


@pytest.mark.parametrize("line", ["", SPARK, "kcr-application: ", "kcr-application: []", 'kcr-application: {"ui": 1}'])
def test_a_line_that_tells_of_no_application_is_none(line: str) -> None:
    assert RunningApplication.read(line) is None


def test_what_the_log_writes_is_recognised() -> None:
    record = logging.LogRecord("a", logging.WARNING, "f", 1, "late by %d s", (3,), None)
    assert shown(logging.Formatter(LOG_FORMAT).format(record)) == [(logging.WARNING, "late by 3 s")]


def test_log_lines_and_progress_are_shown_at_their_level_and_sparks_are_not() -> None:
    assert shown(
        SPARK, INFO, ":: resolving", "region flights: 10 records", "WARNING: Using incubator modules", WARNING
    ) == [
        (logging.INFO, "region flights: hosting g[0]"),
        (logging.INFO, "region flights: 10 records"),
        (logging.WARNING, "g[0]: the store does not answer"),
    ]


def test_a_traceback_is_shown_with_the_line_that_it_explains_and_hidden_with_sparks() -> None:
    traceback = ("Traceback (most recent call last):", '  File "jobs.py", line 1', "ValueError: 3")
    assert [text for _, text in shown(WARNING, *traceback)][1:] == list(traceback)
    assert shown(SPARK, *traceback) == []


def test_the_last_hidden_lines_are_kept_and_the_verdict_too() -> None:
    sieve = Sieve()
    for number in range(KEPT + 5):
        sieve.take(f"Spark says {number}\n")
    found = sieve.take("kcr: there is no region flights\n")
    assert (len(sieve.hidden), sieve.hidden[0]) == (KEPT, "Spark says 5")
    assert found is not None
    assert (found[0], sieve.verdict) == (logging.ERROR, "there is no region flights")
