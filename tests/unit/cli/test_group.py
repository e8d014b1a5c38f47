from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.driver import Driver
from tests.support.live_region import FakeCluster
from tests.unit.cli.conftest import Kcr

INPUT = {"members": {"C0": ["t0", "t1"], "C1": ["t0", "t1"]}, "topics": {"t0": 3, "t1": 3}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "members.json"
    path.write_text(json.dumps(INPUT))
    return path


@pytest.mark.parametrize(
    ("assignor", "first"),
    [
        ("range", [["t0", 0], ["t0", 1], ["t1", 0], ["t1", 1]]),
        ("roundrobin", [["t0", 0], ["t0", 2], ["t1", 1]]),
        ("sticky", None),
    ],
)
def test_an_assignment_is_answered_in_the_promised_form(
    kcr: Kcr, file: Path, assignor: str, first: list[object] | None
) -> None:
    answer = kcr.json("group", "assignment", "--input", file, "--assignor", assignor)
    assert list(answer) == ["C0", "C1"]
    assert first is None or answer["C0"] == first
    assert sum(map(len, answer.values())) == 6


def test_the_input_may_be_standard_input(kcr: Kcr) -> None:
    called = kcr("group", "assignment", "--input", "-", "--assignor", "range", text=json.dumps(INPUT))
    assert json.loads(called.stdout)["C1"] == [["t0", 2], ["t1", 2]]


def test_a_table_has_a_line_for_each_member_and_csv_one_for_each_partition(kcr: Kcr, file: Path) -> None:
    table = kcr("group", "assignment", "--input", file, "--assignor", "range", "-o", "table").stdout.splitlines()
    assert table[1].split() == ["C0", "4", "t0", "0-1", "t1", "0-1"]
    lines = kcr("group", "assignment", "--input", file, "--assignor", "range", "-o", "csv").stdout.splitlines()
    assert lines[:2] == ["member,topic,partition", "C0,t0,0"]
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1, is not JSON"),
        ('{"members": {}}', '"topics"'),
        ('{"members": [], "topics": {}}', "members must be"),
    ],
)
def test_bad_input_names_the_field(kcr: Kcr, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert said in kcr.refused("group", "assignment", "--input", path, "--assignor", "range", status=2)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("flights", "--input", "-"),
        ("--input", "-"),
        ("--input", "-", "--assignor", "range", "--members", "2"),
        ("--input", "nowhere.json", "--assignor", "range"),
        ("--input", "-", "--assignor", "cooperative-sticky"),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(kcr: Kcr, arguments: tuple[str, ...]) -> None:
    kcr.refused("group", "assignment", *arguments, status=2)


def test_a_region_is_previewed_with_another_number_of_members(kcr: Kcr, driver: Driver, cluster: FakeCluster) -> None:
    assert kcr.json("group", "assignment", "flights", "--members", 4) == {f"g[{n}]": [["t", n]] for n in range(4)}
    assert kcr.json("group", "assignment", "flights", "--assignor", "roundrobin")["g[0]"] == [["t", 0], ["t", 2]]


@pytest.mark.parametrize(("arguments", "assignor"), [((), "range"), (("--assignor", "uniform"), "uniform")])
def test_a_preview_says_the_protocol_and_the_assignor_of_each_group(
    kcr: Kcr, driver: Driver, cluster: FakeCluster, arguments: tuple[str, ...], assignor: str
) -> None:
    first, _, titles, *_ = kcr("group", "assignment", "flights", *arguments, "-o", "table").stdout.splitlines()
    assert first.split() == ["g", "protocol", "classic,", "assignor", assignor]
    assert titles.split() == ["member", "count", "partitions"]


def test_a_region_without_a_store_is_wrong_usage(kcr: Kcr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KCR_STORE_URL")
    assert "KCR_STORE_URL" in kcr.refused("group", "assignment", "flights", status=2)
