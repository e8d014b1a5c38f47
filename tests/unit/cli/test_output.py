from __future__ import annotations

import sys
from datetime import timedelta

import pytest

from airflow_kcr.api import Progress
from airflow_kcr.cli import conventions, region
from airflow_kcr.cli.conventions import Answer, OutputFormat, chosen, plain, show
from airflow_kcr.protocol.values import TopicName, TopicPartition


@pytest.mark.parametrize(("is_terminal", "expected"), [(True, OutputFormat.TABLE), (False, OutputFormat.JSON)])
def test_people_get_a_table_and_programs_get_json(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, expected: OutputFormat
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert chosen(None) is expected
    assert chosen(OutputFormat.CSV) is OutputFormat.CSV


def test_a_cell_is_written_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [{"a": "g[0]", "b": None, "c": True}, {"a": 'say "hi", x', "b": 1, "c": False}]
    answer = Answer(document=rows, columns=("a", "b", "c"), rows=rows, numbers=frozenset({"b"}))
    show(answer, OutputFormat.TABLE)
    assert [line.split() for line in capsys.readouterr().out.splitlines()][:2] == [
        ["a", "b", "c"],
        ["g[0]", "-", "yes"],
    ]
    show(answer, OutputFormat.CSV)
    assert capsys.readouterr().out == 'a,b,c\ng[0],,true\n"say ""hi"", x",1,false\n'


def test_a_table_in_a_file_is_never_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"a": "x" * 500, "b": "end"}]
    show(Answer(document=rows, columns=("a", "b"), rows=rows), OutputFormat.TABLE)
    assert capsys.readouterr().out.splitlines()[1].split() == ["x" * 500, "end"]


def test_facts_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    show(
        Answer(document={}, columns=(), rows=[], facts={"state": "running", "halted": "", "restore_point": None}),
        OutputFormat.TABLE,
    )
    assert capsys.readouterr().out.split() == ["state", "running"]


@pytest.mark.parametrize(("value", "cell"), [(None, "-"), (True, "yes"), (False, "no"), (0, "0"), ("x", "x")])
def test_values_are_shown_for_people(value: object, cell: str) -> None:
    assert plain(value) == cell


def test_partitions_are_written_in_runs() -> None:
    owned = [TopicPartition(TopicName(t), n) for t, n in (("b", 1), ("a", 0), ("a", 1), ("a", 2), ("a", 7))]
    assert region.compact(owned) == "a 0-2,7 b 1"
    assert region.compact([]) == ""


def test_a_log_is_told_of_changes_and_not_of_every_look(capsys: pytest.CaptureFixture[str]) -> None:
    log = conventions._Log()
    for second, missing in ((0, "a"), (1, "a"), (2, "b"), (6, "b"), (20, "b")):
        log(Progress(what="it", waited=timedelta(seconds=second), state="", missing=(missing,)))
    assert capsys.readouterr().err.splitlines() == ["kcr: waiting for it: a", "kcr: waiting for it: b"]


def test_notes_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    conventions.note("hello")
    assert capsys.readouterr() == ("", "kcr: hello\n")
