from __future__ import annotations

import io
import threading
from dataclasses import replace
from datetime import timedelta

from rich.console import Console

from airflow_kcr.driver.progress import MemberProgress, line, shown, table, total
from airflow_kcr.runtime.metrics import Counts

ONE = MemberProgress(
    member="etl[0]",
    state="processing",
    partitions=3,
    records_per_second=52_300.4,
    lag=1_000,
    checkpoint="7 draining",
    counts=Counts(records=1_200_000, last_batch=timedelta(seconds=1.5)),
)
IDLE = MemberProgress(member="etl[1]", state="holding (drained)", partitions=0, records_per_second=0.0, lag=None)


def text_of(members: list[MemberProgress]) -> str:
    console = Console(file=io.StringIO(), width=140, record=True)
    console.print(table("flights", members))
    return console.export_text()


def test_the_sum_of_members_knows_no_lag_as_long_as_one_of_them_does_not() -> None:
    everybody = total([ONE, IDLE])
    assert (everybody.partitions, everybody.counts.records, everybody.lag) == (3, 1_200_000, None)
    assert everybody.checkpoint == "7 draining"
    assert total([ONE, ONE]).lag == 2_000
    assert total([]).lag == 0


def test_the_table_has_a_row_for_each_member_and_one_for_all() -> None:
    text = text_of([ONE, IDLE])
    for part in (
        "flights",
        "etl[0]",
        "processing",
        "1,200,000",
        "52,300",
        "1,000",
        "1.50 s",
        "7 draining",
        "etl[1]",
        "all",
    ):
        assert part in text
    assert "all" not in text_of([ONE])


def test_the_line_says_it_all_in_one_line() -> None:
    assert line("flights", [ONE, IDLE]) == (
        "flights: 1,200,000 records, 52,300/s, - offsets behind; checkpoint 7 draining "
        "(etl[0] processing, etl[1] holding (drained))"
    )
    assert line(
        "flights", [IDLE, replace(ONE, counts=Counts(resets=2, troubles=1, last_trouble="broker 1 is down"))]
    ) == (
        "flights: 0 records, 52,300/s, - offsets behind; checkpoint 7 draining (etl[1] holding (drained), "
        "etl[0] processing); since the start: resets: 2, complaints: 1 (the last: broker 1 is down)"
    )
    assert line("flights", []) == "flights: 0 records, 0/s, 0 offsets behind (no member)"


def test_off_a_terminal_a_line_is_written_now_and_then_and_at_the_end() -> None:
    out, asked = io.StringIO(), threading.Event()

    def progress() -> list[MemberProgress]:
        asked.set()
        return [ONE]

    with shown("flights", progress, console=Console(file=out, width=40), every=timedelta(milliseconds=1)):
        assert asked.wait(10)
    lines = out.getvalue().splitlines()
    assert len(lines) >= 2
    assert set(lines) == {line("flights", [ONE])}


def test_on_a_terminal_the_table_is_shown_and_stays() -> None:
    out = io.StringIO()
    console = Console(file=out, width=140, force_terminal=True, color_system=None)
    with shown("flights", lambda: [ONE], console=console):
        pass
    assert "etl[0]" in out.getvalue()


def test_a_complaint_is_shown_as_it_is_whatever_it_looks_like_and_in_one_line() -> None:
    odd = replace(ONE, counts=Counts(troubles=1, last_trouble="[thrd:a:1/bootstrap]: no\n  answer [/tmp/x]"))
    shown_as = "complaints: 1 (the last: [thrd:a:1/bootstrap]: no answer [/tmp/x])"
    assert shown_as in line("flights", [odd])
    assert shown_as in text_of([odd])
