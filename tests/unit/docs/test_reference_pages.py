"""What the reference pages make from the code is current, and their tables of moves are what regions really do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from airflow_kcr.protocol.region import events, rows
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.values import DesiredState
from tests.support import docs_pages
from tests.support.catalogue import SNAPSHOT, tables_in
from tests.support.simulation import run
from tests.support.simulation.lossy import LossyTransactions

SEEDS = range(40)
STORED = tables_in(SNAPSHOT.read_text())


@pytest.mark.parametrize("path", docs_pages.pages(), ids=lambda path: path.stem)
def test_a_page_is_current(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert docs_pages.renewed(text) == text, f"renew the page: {docs_pages.COMMAND}"


def test_every_block_is_on_exactly_one_page() -> None:
    found = [m["name"] for path in docs_pages.pages() for m in docs_pages.BLOCK.finditer(path.read_text("utf-8"))]
    assert sorted(found) == sorted(docs_pages.BLOCKS)


def test_no_comment_begins_a_block_that_does_not_end() -> None:
    for path in docs_pages.pages():
        text = path.read_text(encoding="utf-8")
        assert text.count("<!-- generated: ") == len(docs_pages.BLOCK.findall(text)), path


def test_every_table_of_the_store_is_explained() -> None:
    listed = {name: keys for name, _, keys in docs_pages.checked_tables()["store-tables"]}
    assert listed == {f"`{name}`": ", ".join(f"`{k}`" for k in keys) for name, (_, keys) in STORED.items()}


def test_every_scenario_of_the_list_has_a_test_and_the_other_way_round() -> None:
    text = (docs_pages.ANNEX / "scenarios.md").read_text(encoding="utf-8")
    listed = {int(number) for number in re.findall(r"^\| C(\d+) \| [^`]", text, re.MULTILINE)}
    assert listed == docs_pages.scenario_tests().keys()


def test_every_test_that_a_page_names_exists() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (docs_pages.TOP / "tests").rglob("test_*.py"))
    known = set(re.findall(r"def (test_\w+)", sources))
    for path in docs_pages.pages():
        named = set(re.findall(r"`(test_\w+)`", path.read_text(encoding="utf-8")))
        assert named <= known, f"{path.name}: {sorted(named - known)}"


class Watching(LossyTransactions):
    """A store that notes every move of a row from one state to another."""

    moves: set[tuple[str, Enum | None, Enum]] = set()  # noqa: RUF012 (shared by the runs of one test on purpose)

    def _stored(self, region: Region) -> Region:
        before = self._regions.get(region.name)
        for event in region.events:
            if isinstance(event.body, events.StateChanged):
                self.moves.add(("region", event.body.before, event.body.after))
        if before is not None:
            self._note("checkpoint", before.checkpoints, region.checkpoints)
            self._note("request", before.requests, region.requests)
            self._note("reset", before.resets, region.resets)
            self._note("person-reset", before.person_resets, region.person_resets)
            for sequence, row in before.checkpoints.items():
                self.moves.add(("committed", row.committed, region.checkpoints[sequence].committed))
        return super()._stored(region)

    def _note(self, what: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> None:
        for key, row in after.items():
            self.moves.add((what, before[key].state if key in before else None, row.state))


KINDS: Mapping[str, type[Enum]] = {
    "region": rows.RegionState,
    "checkpoint": rows.CheckpointState,
    "request": rows.RequestState,
    "reset": rows.ResetState,
    "person-reset": rows.PersonResetState,
    "committed": rows.Committed,
}


def legal(what: str) -> dict[str, set[str]]:
    """Return the states that a page has after each, by their texts."""
    found: dict[str, set[str]] = {}
    for before, after, _ in docs_pages.checked_tables()[f"{what}-moves"]:
        found.setdefault(before.strip("`"), set()).add(after.strip("`"))
    return found


def text(state: Enum | None) -> str:
    return "(new)" if state is None else str(state.value)


def leads_to(moves: Mapping[str, set[str]], before: str, after: str) -> bool:
    """Whether one state follows another, over others within one transaction if need be."""
    reached: set[str] = set()
    wave = moves.get(before, set())
    while wave - reached:
        reached |= wave
        wave = {follower for state in wave for follower in moves.get(state, ())}
    return before == after or after in reached


@pytest.mark.long
def test_simulated_regions_make_no_move_that_the_tables_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LossyTransactions", Watching)
    Watching.moves.clear()
    for seed in SEEDS:
        run.Simulation(seed).run()
    tables = {what: legal(what) for what in KINDS}
    seen = {(what, text(before), text(after)) for what, before, after in Watching.moves}
    assert {(what, b, a) for what, b, a in seen if not leads_to(tables[what], b, a)} == set()
    direct = {(b, a) for what, b, a in seen if what == "region"}
    assert all(a in tables["region"].get(b, ()) for b, a in direct)
    assert len(direct) > 8, "the runs saw too little to say anything"


def test_every_state_is_in_its_table_of_moves() -> None:
    for what, kind in KINDS.items():
        moves = legal(what)
        assert (moves.keys() - {"(new)"}) | set().union(*moves.values()) == {text(state) for state in kind}, what


def test_values_with_one_text_are_explained_each_by_its_own() -> None:
    assert DesiredState.RUNNING.value == rows.ResetState.RUNNING.value, "two classes, one text"
    assert "Start nothing" in docs_pages.BLOCKS["desired-state"]()
    assert "Members cancel" in docs_pages.BLOCKS["reset-states"]()
    assert "Its finish was accepted" in docs_pages.BLOCKS["outcomes"]()


def test_every_delivery_is_explained() -> None:
    text = (docs_pages.DOCS / "explanation" / "delivery.md").read_text(encoding="utf-8")
    assert all(f"| `{delivery.value}` |" in text for delivery in Delivery)
