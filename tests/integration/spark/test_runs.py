"""A region that rests between its runs, by `kcr run` on a real broker, a real store and real Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType
from typer.testing import CliRunner

from airflow_kcr.api import Region
from airflow_kcr.cli import app
from airflow_kcr.spec import parse
from tests.conftest import StartKafka
from tests.support.breaking_proxy import breaking_proxy
from tests.support.faults import group_size
from tests.support.interval_pipeline import GATE, KILL, SUFFIX, at
from tests.support.kafka import Kafka
from tests.support.rested_region import NO_SPARK, WITHIN, RestedRegion, all_of, rested_region, until
from tests.support.table_files import MADE, Warehouse

pytestmark = [pytest.mark.timeout(900), pytest.mark.postgres]


@pytest.fixture
def runs(kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]) -> Iterator[RestedRegion]:
    """A declared region that has never run."""
    with rested_region(kafka, database_url, tmp_path / "target", connector_jars) as found:
        yield found


@pytest.mark.long
def test_each_run_has_the_records_of_its_interval_and_can_be_recomputed(runs: RestedRegion) -> None:
    hour = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    runs.fill("first", hour - timedelta(minutes=1))
    runs.fill("second", hour + timedelta(minutes=1))
    # The first run has no record before its end, and finds that out without Spark.
    begun = runs.run("--until", (hour - timedelta(hours=1)).isoformat(), spark=NO_SPARK)
    assert (begun["state"], begun["checkpoint"], begun["inexact"]) == ("answered", "published", False)
    assert runs.at_rest()
    first = runs.run("--until", hour.isoformat(), "--request-id", "one")
    assert first["sequence"] != begun["sequence"]
    assert (first["state"], first["checkpoint"], first["inexact"]) == ("answered", "published", False)
    assert runs.rows() == all_of("first")
    assert runs.at_rest()
    # The same run again, and one of an interval without a record, need no Spark.
    assert runs.run("--until", hour.isoformat(), "--request-id", "one", spark=NO_SPARK) == first
    idle = runs.run("--until", (hour + timedelta(seconds=30)).isoformat(), spark=NO_SPARK)
    assert idle["sequence"] == int(str(first["sequence"])) + 1
    assert runs.at_rest()
    # What is there now.
    runs.run()
    assert runs.rows() == all_of("first", "second")
    assert runs.at_rest()
    runs.run(spark=NO_SPARK)
    assert runs.at_rest()
    # The first one's output, and nothing else, is replaced.
    runs.environ = {SUFFIX: "!"}
    (again,) = runs.recompute("--checkpoint", str(first["sequence"]))
    assert (again["state"], again["revision"]) == ("done", 1)
    assert runs.rows() == all_of("first", suffix="!") + all_of("second")
    assert runs.at_rest()


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(MADE))
def test_an_interval_without_a_record_is_shown_in_a_table_without_spark(
    kind: str, runs: RestedRegion, tmp_path: Path
) -> None:
    made = MADE[kind](tmp_path / "warehouse")
    if isinstance(made, Warehouse):
        made.drop()
        made.catalog().create_table(made.name, Schema(NestedField(1, "value", StringType())))
    else:
        empty = pyarrow.table({"value": pyarrow.array([], pyarrow.string())})
        deltalake.write_deltalake(tmp_path / "warehouse", empty, mode="overwrite", schema_mode="overwrite")
    with Region(runs.name, runs.store) as region:
        spec = json.loads(region.spec().to_json_text())
        spec["groups"][0]["sinks"] = {"out": {"kind": kind, **made.spec()}}
        region.apply(parse(json.dumps(spec)))
    hour = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    runs.fill("first", hour - timedelta(minutes=1))
    first = runs.run("--until", hour.isoformat())
    idle = runs.run("--until", (hour + timedelta(seconds=30)).isoformat(), spark=NO_SPARK)
    assert (idle["sequence"], idle["checkpoint"]) == (int(str(first["sequence"])) + 1, "published")
    assert made.commits()[-1]["kcr.sequence"] == str(idle["sequence"])
    assert runs.at_rest()
    runs.fill("second", hour + timedelta(minutes=1))
    runs.run()
    assert Counter(made.rows()["value"].to_pylist()) == all_of("first", "second")
    assert runs.at_rest()


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_with_its_next_try(runs: RestedRegion, tmp_path: Path) -> None:
    kill = tmp_path / "kill"
    kill.touch()
    runs.environ = {KILL: str(kill)}
    runs.fill("first", datetime.now(UTC) - timedelta(hours=2))
    status, _, said = runs.kcr("run", runs.name, "--request-id", "one", "--master", "local[2]", "--jars", runs.jars)
    assert status < 0, said
    runs.run("--request-id", "one", "--takeover")
    assert runs.rows() == all_of("first")
    assert runs.at_rest()


@pytest.mark.long
def test_a_late_run_that_was_killed_and_then_cleared_twice_leaves_the_table_of_an_undisturbed_one(
    runs: RestedRegion, kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    hour = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    untils = [(hour + timedelta(hours=number)).isoformat() for number in range(3)]
    kill = tmp_path / "kill"

    def fill(region: RestedRegion) -> None:
        for number, word in enumerate(("first", "second", "third")):
            region.fill(word, hour + timedelta(hours=number, minutes=-1))

    with rested_region(kafka, database_url, tmp_path / "undisturbed", connector_jars) as undisturbed:
        fill(undisturbed)
        for until in untils:
            undisturbed.run("--until", until)
        fill(runs)
        runs.run("--until", untils[0])
        kill.touch()
        runs.environ = {KILL: str(kill)}
        status, _, said = runs.kcr("run", runs.name, "--until", untils[1], "--request-id", "late", *runs.spark)
        assert status < 0, said
        late = runs.run("--until", untils[1], "--request-id", "late", "--takeover")
        runs.run("--until", untils[2])
        for _ in range(2):
            runs.recompute("--checkpoint", str(late["sequence"]))
        assert (runs.at_rest(), undisturbed.at_rest()) == (True, True)
        assert runs.table_in_order() == undisturbed.table_in_order()
    assert [boundary for *_, boundary in runs.table_in_order()] == [at for at in untils for _ in range(20)]


@pytest.mark.long
def test_applications_of_one_run_of_which_one_is_killed_end_it_together(runs: RestedRegion, tmp_path: Path) -> None:
    kill = tmp_path / "kill"
    kill.touch()
    runs.fill("first", datetime.now(UTC) - timedelta(hours=2))
    # The members of one group are in two of them.
    first, second = (("--request-id", "one", "--group", runs.group, "--index", index) for index in "01")
    count = ("--request-id", "one", "--group", f"{runs.name}-count")
    runs.environ = {KILL: str(kill)}
    with runs.begun("run", runs.name, *first, *runs.spark) as killed, ThreadPoolExecutor() as beside:
        runs.environ = {}
        others = [beside.submit(runs.run, *one) for one in (second, count)]
        _, said = killed.communicate(timeout=WITHIN)
        assert killed.returncode < 0, said
        assert not any(one.done() for one in others)  # they wait for the member that was lost
        answer = runs.run(*first, "--takeover")
        assert [one.result() for one in others] == [answer, answer]
    assert (answer["state"], answer["checkpoint"]) == ("answered", "published")
    assert runs.rows() == all_of("first")
    assert runs.at_rest()
    # One that comes when it is over finds the checkpoint, and with nothing to read none starts Spark.
    assert runs.run(*count, spark=NO_SPARK) == answer
    idle = [runs.run("--request-id", "two", *part[2:], spark=NO_SPARK) for part in (count, second, first)]
    assert [one["sequence"] for one in idle] == [int(str(answer["sequence"])) + 1] * 3
    assert runs.at_rest()


@pytest.mark.long
@pytest.mark.parametrize("away", ["store", "broker"])
def test_a_run_goes_on_when_what_was_away_is_back(
    away: str, kafka_set: StartKafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    kafka, gate = kafka_set(), tmp_path / "gate"
    gate.touch()
    with (
        breaking_proxy(database_url) as (wire, through),
        rested_region(kafka, database_url, tmp_path / "target", connector_jars) as runs,
    ):
        runs.fill("first", datetime.now(UTC) - timedelta(hours=2))
        runs.environ = {GATE: str(gate), "KCR_STORE_URL": through.render_as_string(hide_password=False)}
        with runs.begun("run", runs.name, *runs.spark) as process:
            try:
                until(at(gate).exists, "a batch that waits")
                if away == "store":
                    wire.sever()
                    until(lambda: group_size(kafka, runs.group) == 0, "its members have left the group")
                    wire.mend()
                    gate.unlink()
                else:
                    kafka.broker(1).kill()
                    gate.unlink()
                    kafka.broker(1).start()
                _, said = process.communicate(timeout=WITHIN)
            finally:
                process.kill()
        assert process.returncode == 0, said
        assert runs.rows() == all_of("first")
        assert runs.at_rest()


def test_what_can_not_run_is_refused_and_changes_nothing(runs: RestedRegion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCR_STORE_URL", runs.store)
    runs.fill("first", datetime.now(UTC) - timedelta(hours=2))
    with Region(runs.name, runs.store) as region:
        before = region.counter()
        spec = region.spec()
    for options, status, why in (
        (("--until", "2030-01-01T00:00:00Z"), 3, "until: 2030-01-01T00:00:00Z is yet to come"),
        (("--until", "2026-01-01T00:00:00"), 2, "for '--until': 2026-01-01T00:00:00 has no zone"),
        (("--group", runs.group), 2, "--request-id"),
        (("--request-id", "r", "--index", "0"), 2, "--index"),
        (("--request-id", "r", "--group", runs.group, "--index", "0,x"), 2, "--index"),
        (("--request-id", "r", "--group", runs.group, "--index", "2"), 3, "indexes 0 to 1; index 2"),
        (("--request-id", "r", "--group", "other"), 3, "has no group 'other'"),
    ):
        # In this process: none of them gets as far as Spark, and a process each takes seconds.
        refused = CliRunner().invoke(app, ["run", runs.name, *options, *NO_SPARK])
        assert (refused.exit_code, why in refused.stderr) == (status, True), refused.stderr
    with Region(runs.name, runs.store) as region:
        assert region.counter() == before
        region.start()
        before = region.counter()
        ended, _, said = runs.kcr("run", runs.name, *NO_SPARK)
        assert (ended, f"region {runs.name} is starting by itself" in said) == (3, True), said
        assert region.counter() == before
        region.stop()
        groups = spec.to_json_text().replace("interval_pipeline:count", "interval_pipeline:absent")
        region.apply(parse(groups))
        before = region.counter()
    ended, _, said = runs.kcr("run", runs.name, *NO_SPARK)
    assert ended == 2, said
    assert "absent" in said
    assert runs.at_rest()
