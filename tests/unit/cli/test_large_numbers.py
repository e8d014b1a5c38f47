"""The command line beside sequences with more digits than 32 bits hold."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.support.driver import Driver
from tests.support.live_region import FakeCluster
from tests.unit.cli.conftest import Kcr


@pytest.mark.parametrize("first", [1_000, 2**31])
def test_checkpoints_plans_files_and_resets_are_found_by_their_sequence(
    kcr: Kcr, driver: Driver, cluster: FakeCluster, tmp_path: Path, first: int
) -> None:
    driver.number_from(first)
    driver.up()
    driver.process()
    checkpoint = driver.checkpoint("n")
    driver.process()
    assert checkpoint == first + 1

    assert [row["sequence"] for row in kcr.json("checkpoint", "list", "flights")] == [checkpoint]
    assert kcr.json("checkpoint", "show", "flights", checkpoint)["sequence"] == checkpoint
    assert str(checkpoint) in kcr("checkpoint", "list", "flights", "-o", "table").stdout.replace(",", "")
    assert kcr.json("checkpoint", "compare", "flights", checkpoint)

    saved = tmp_path / "plan.json"
    plan = kcr.json("reset", "plan", "flights", "--to-checkpoint", checkpoint, "--save", saved)
    assert {row["target"] for row in plan["entries"]} == {10}
    file = tmp_path / "offsets.csv"
    file.write_text(kcr("reset", "plan", "flights", "--to-checkpoint", checkpoint, "-o", "csv").stdout)
    assert {row[-1] for row in csv.reader(io.StringIO(file.read_text()))} >= {"10"}
    again = kcr.json("reset", "plan", "flights", "--from-file", file)
    assert {row["target"] for row in again["entries"]} == {10}

    kcr.json("reset", "apply", saved, "--reason", "to see")
    driver.complete()
    driver.publish()
    driver.finish_reset()
    shown = kcr.json("reset", "show", f"flights/{first + 3}")
    assert (shown["state"], shown["target"]) == ("done", f"to-checkpoint {checkpoint}")
    assert kcr.json("verify", "flights")["violations"] == []
    assert kcr.json("reset", "plan", "flights", "--to-checkpoint", checkpoint)["totals"]["moved"] == 0
    assert str(first + 99) in kcr.refused("reset", "plan", "flights", "--to-checkpoint", first + 99, status=3)
