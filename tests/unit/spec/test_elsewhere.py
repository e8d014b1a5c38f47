"""Other sinks than a region's own, as a document names them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.spec import parse
from airflow_kcr.spec.elsewhere import read_sinks, with_sinks
from tests.support.members import TOP

SPEC = parse("""\
region: tills
kafka: {bootstrap.servers: 'broker.invalid:9092'}
groups:
  - group_id: sales
    topics: [sales]
    pipeline: 'jobs.sales:process'
    delivery: exactly_once
    sinks: {rows: {kind: postgres, url: 'postgresql://h/d', table: sales}}
  - {group_id: counts, topics: [sales], pipeline: 'jobs.counts:process'}
""")
TRIED = {"kind": "postgres", "url": "postgresql://h/d", "table": "tried"}


def test_a_group_writes_into_others_and_the_rest_is_left_out() -> None:
    found = with_sinks(SPEC, {"sales": {"rows": TRIED}})
    (group,) = found.groups
    assert (group.group_id, group.pipeline, group.delivery) == ("sales", "jobs.sales:process", "exactly_once")
    assert [(sink.name, sink.table) for sink in group.sinks] == [("rows", "tried")]
    # Code that writes somewhere as yet unknown to the spec can be tried, too.
    (other,) = with_sinks(SPEC, {"counts": {"sums": TRIED}}).groups
    assert [sink.name for sink in other.sinks] == ["sums"]


@pytest.mark.parametrize(
    ("sinks", "why"),
    [
        ({}, r"^into names no group"),
        ({"sale": {"rows": TRIED}}, r"^into\.sale: region tills has no such group; did you mean 'sales'\?"),
        ({"sales": {"row": TRIED}}, r"^into\.sales lacks sink rows, which the pipeline of that group writes to"),
        ({"sales": {"rows": {**TRIED, "tables": "x"}}}, r"^into\.sales\.rows\.tables: no such field; did you mean"),
        (
            {"sales": {"rows": {"kind": "postgres"}}},
            r"^into\.sales\.rows: has no database.*; into\.sales\.rows\.table: is missing",
        ),
        ({"sales": {"rows": TRIED, "two": TRIED}}, r"^into\.sales"),
        ({"sales": [TRIED]}, r"^into\.sales"),
    ],
)
def test_what_is_wrong_is_named_by_its_place_in_the_document(sinks: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        with_sinks(SPEC, sinks)


def test_it_is_a_file_or_json(tmp_path: Path) -> None:
    wanted = {"sales": {"rows": TRIED}}
    file = tmp_path / "try.yaml"
    file.write_text("sales:\n  rows: {kind: postgres, url: 'postgresql://h/d', table: tried}\n")
    assert read_sinks(str(file)) == read_sinks(json.dumps(wanted)) == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "can't be read: No such file or directory"),
        ("- a\n", "must map groups to their sinks"),
        ("", "must map groups to their sinks"),
        ("a: [\n", "line 2"),
        ("a: 1\na: 2\n", "a: "),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "try.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=f"--into: .*try.yaml.*{why}"):
        read_sinks(str(file))


def test_the_file_of_the_how_to_is_one(tmp_path: Path) -> None:
    page = (TOP / "docs/how-to/recompute-a-checkpoint.md").read_text(encoding="utf-8")
    _, _, block = page.partition("<!-- run by: tests/unit/spec/test_elsewhere.py -->\n```yaml\n")
    file = tmp_path / "tried.yaml"
    file.write_text(block.partition("```")[0])
    live = replace(SPEC.groups[0], group_id="tills-sales", sinks=(replace(SPEC.groups[0].sinks[0], name="sales"),))
    (group,) = with_sinks(replace(SPEC, groups=(live,)), read_sinks(str(file))).groups
    assert [(sink.name, sink.table) for sink in group.sinks] == [("sales", "sales_tried")]
