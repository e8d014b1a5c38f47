"""A checkpoint's records once more, by `kcr recompute` on a real broker, a real store and real Spark.

The first test of `test_runs.py`, which every run of CI has, recomputes one, too.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.dataset
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.driver.task import Task, compared_in
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, format_instant
from airflow_kcr.spec import parse
from tests.support.databases import execute
from tests.support.interval_pipeline import GATE, KILL, SUFFIX, at
from tests.support.kafka import Kafka
from tests.support.members import TOP
from tests.support.rested_region import NO_SPARK, WITHIN, RestedRegion, all_of, rested_region, until
from tests.support.table_files import NAME, warehouse

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.postgres]

FIRST, SECOND = 2, 4
HOUR = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)


@pytest.fixture
def runs(kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]) -> Iterator[RestedRegion]:
    """A region with the two checkpoints `FIRST` and `SECOND`."""
    with rested_region(kafka, database_url, tmp_path / "target", connector_jars) as found:
        twice(found)
        yield found


def twice(runs: RestedRegion) -> None:
    """Carry two runs out, of twenty records each; each start takes a number, too."""
    for number, (word, sequence) in enumerate((("first", FIRST), ("second", SECOND))):
        runs.fill(word, HOUR + timedelta(minutes=number))
        until = (HOUR + timedelta(minutes=number, seconds=30)).isoformat()
        done = runs.run("--until", until, "--dag-run", f"hours/{word}")
        assert done["sequence"] == sequence


def left(runs: RestedRegion) -> list[str]:
    """What recomputations have left beside the table."""
    found = execute(runs.table.url(), "SELECT relname FROM pg_class WHERE relname LIKE 'kcr_revision%'")
    return [name for (name,) in found]


def revision(runs: RestedRegion, sequence: int) -> int:
    with Region(runs.name, runs.store) as region:
        return region.checkpoints.show(sequence).checkpoint.revision


def test_its_output_is_replaced_and_nothing_else(runs: RestedRegion) -> None:
    with Region(runs.name, runs.store) as region:
        before = region.show()
    runs.environ = {SUFFIX: "!"}
    (answer,) = runs.recompute("--checkpoint", str(FIRST), "--request-id", "again")
    assert (answer["state"], answer["revision"], answer["sequence"]) == ("done", 1, FIRST)
    assert runs.rows() == all_of("first", suffix="!") + all_of("second")
    assert left(runs) == []
    # What is done is found, without Spark, and without the records.
    assert runs.recompute("--checkpoint", str(FIRST), "--request-id", "again", spark=NO_SPARK) == [answer]
    assert runs.recompute("--run", "hours/first", "--request-id", "again", spark=NO_SPARK) == [answer]
    with Region(runs.name, runs.store) as region:
        after = region.show()
        assert (after.epoch, after.timeline, after.last_complete) == (
            before.epoch,
            before.timeline,
            before.last_complete,
        )
    assert runs.at_rest()
    # By the boundaries of both, once more; and the region goes on from where it was.
    runs.environ = {SUFFIX: "?"}
    times = ("--from", HOUR.isoformat(), "--to", (HOUR + timedelta(minutes=2)).isoformat())
    assert [one["sequence"] for one in runs.recompute(*times)] == [FIRST, SECOND]
    assert runs.rows() == all_of("first", "second", suffix="?")
    runs.fill("third", HOUR + timedelta(minutes=5))
    runs.run()
    assert runs.rows() == all_of("first", "second", "third", suffix="?")
    assert (revision(runs, FIRST), revision(runs, SECOND), revision(runs, 6)) == (2, 1, 0)
    assert runs.at_rest()


def test_what_can_not_be_recomputed_is_refused_and_changes_nothing(runs: RestedRegion) -> None:
    with Region(runs.name, runs.store) as region:
        before = region.counter()
    group = ("--group", runs.group)
    for options, status, why in (
        ((), 2, "name the checkpoint"),
        (("--checkpoint", str(FIRST), "--from", "2026-01-01T00:00:00Z"), 2, "one of the three"),
        (("--checkpoint", "9", *group), 3, "no checkpoint 9"),
        (("--checkpoint", str(FIRST)), 2, f"group {runs.name}-count has no sink"),
        (("--checkpoint", str(FIRST), "--group", "strange"), 2, "has no group strange"),
        (("--from", "2020-01-01T00:00:00Z", "--to", "2020-01-02T00:00:00Z"), 3, "no checkpoint of a boundary after"),
        (("--from", "2026-01-01T00:00:00", "--to", "2026-01-02T00:00:00Z"), 2, "for '--from': 2026-01-01T00:00:00"),
        (("--from", "2026-01-01T00:00:00Z", "--to", "noon"), 2, "for '--to': 'noon' is not a time"),
        (("--run", "hours/third"), 3, "belongs to the run third of DAG hours"),
    ):
        ended, _, said = runs.kcr("recompute", runs.name, *options, *NO_SPARK)
        assert (ended, why in " ".join(said.split())) == (status, True), said
    runs.kafka.delete_records(runs.topic, {0: 1})
    ended, _, said = runs.kcr("recompute", runs.name, "--checkpoint", str(FIRST), *group, *NO_SPARK)
    lost = (
        f"{runs.group}:{runs.topic}-0, offsets 0 to 10: the log begins at 1, as retention or a deletion took what was"
    )
    since = f"{lost} before; its first record is of {format_instant(HOUR)}"
    assert (ended, since in " ".join(said.split())) == (3, True), said
    with Region(runs.name, runs.store) as region:
        assert region.counter() == before
        spec = region.spec().to_json_text().replace("interval_pipeline:process", "interval_pipeline:absent")
        region.apply(parse(spec))
        before = region.counter()
    ended, _, said = runs.kcr("recompute", runs.name, "--checkpoint", str(SECOND), *group, *NO_SPARK)
    assert (ended, "absent" in said) == (2, True), said
    with Region(runs.name, runs.store) as region:
        assert region.counter() == before
    assert runs.rows() == all_of("first", "second")


def test_one_that_is_killed_leaves_the_old_output_and_is_done_by_the_next_try(
    runs: RestedRegion, tmp_path: Path
) -> None:
    kill = tmp_path / "kill"
    kill.touch()
    runs.environ = {KILL: str(kill), SUFFIX: "!"}
    its = ("--checkpoint", str(SECOND), "--request-id", "again", "--group", runs.group, *runs.spark)
    status, _, said = runs.kcr("recompute", runs.name, *its)
    assert status < 0, said
    assert runs.rows() == all_of("first", "second")
    (answer,) = runs.recompute("--checkpoint", str(SECOND), "--request-id", "again")
    assert answer["revision"] == 1
    assert runs.rows() == all_of("first") + all_of("second", suffix="!")
    assert left(runs) == []
    assert runs.at_rest()


def test_members_that_live_do_not_notice(runs: RestedRegion, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    groups = {runs.group: "0,1", f"{runs.name}-count": "0"}
    with ExitStack() as stack:

        def begun(*arguments: str) -> subprocess.Popen[str]:
            process = stack.enter_context(runs.begun(*arguments, *runs.spark))
            stack.callback(process.kill)
            return process

        members = [begun("member", "run", runs.name, "--group", g, "--index", i) for g, i in groups.items()]
        runs.fill("third", HOUR + timedelta(minutes=5))
        until(lambda: runs.rows() == all_of("first", "second", "third"), "the members' first batches")
        region = stack.enter_context(Region(runs.name, runs.store))
        before, since = region.show(), region.counter()
        runs.environ = {GATE: str(gate), SUFFIX: "!"}
        again = begun("recompute", runs.name, "--checkpoint", str(FIRST), "--group", runs.group)
        until(at(gate).exists, "a batch that recomputes")
        # Beside it, records flow and a checkpoint is made.
        runs.fill("fourth", HOUR + timedelta(minutes=6))
        until(lambda: runs.rows() == all_of("first", "second", "third", "fourth"), "the members' next batches")
        region.request_checkpoint(request_id="beside")
        assert region.wait_for_checkpoint("beside").checkpoint is not None
        assert again.poll() is None
        gate.unlink()
        _, said = again.communicate(timeout=WITHIN)
        assert again.returncode == 0, said
        runs.fill("fifth", HOUR + timedelta(minutes=7))
        replaced = all_of("first", suffix="!") + all_of("second", "third", "fourth", "fifth")
        until(lambda: runs.rows() == replaced, "what was replaced, and the members' last batches")
        after = region.show()
        assert (after.state, after.epoch, after.timeline) == (before.state, before.epoch, before.timeline)
        kinds = {type(event.body) for event in region.events(since)}
        assert events.CheckpointRecomputed in kinds
        assert not kinds & {events.ResetBegun, events.MemberRegistered, events.MemberLeft, events.Claimed}
        region.stop()
        for process in members:
            _, said = process.communicate(timeout=WITHIN)
            assert process.returncode == 0, said
    assert revision(runs, FIRST) == 1
    assert runs.at_rest()


def test_a_reset_that_undoes_the_checkpoint_meanwhile_ends_it(runs: RestedRegion, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    runs.environ = {GATE: str(gate), SUFFIX: "!"}
    process = runs.begun("recompute", runs.name, "--checkpoint", str(SECOND), "--group", runs.group, *runs.spark)
    until(at(gate).exists, "a batch that recomputes")
    with Region(runs.name, runs.store) as region:
        wanted = ResetRequest(target=ToCheckpoint(sequence=CheckpointNumber(FIRST)))
        region.resets.apply(region.resets.plan(wanted), "wrong code")
    gate.unlink()
    _, said = process.communicate(timeout=WITHIN)
    assert process.returncode == 3, said
    assert "was undone by a reset" in " ".join(said.split())
    assert left(runs) == []
    runs.environ = {SUFFIX: "?"}
    runs.run()
    assert runs.rows() == all_of("first") + all_of("second", suffix="?")
    assert runs.at_rest()


def test_rows_of_a_table_of_mode_upsert_are_replaced_where_no_later_checkpoint_has_written(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    with rested_region(
        kafka, database_url, tmp_path / "target", connector_jars, sink=", mode: upsert, key: [value]"
    ) as runs:
        execute(runs.table.url(), "ALTER TABLE out ADD PRIMARY KEY (value)")
        twice(runs)
        runs.fill("first", HOUR + timedelta(minutes=5))  # the same keys once more
        runs.run()
        ended, _, said = runs.kcr("recompute", runs.name, "--checkpoint", str(FIRST), "--group", runs.group, *NO_SPARK)
        assert (ended, "--consent-upsert" in said) == (3, True), said
        runs.kafka.set_config(runs.topic, "cleanup.policy", "compact")
        its = ("--checkpoint", str(FIRST), "--group", runs.group, "--consent-upsert", *NO_SPARK)
        ended, _, said = runs.kcr("recompute", runs.name, *its)
        assert (ended, "--consent-compacted" in said) == (3, True), said
        runs.recompute("--checkpoint", str(FIRST), "--consent-upsert", "--consent-compacted")
        found = execute(runs.table.url(), "SELECT split_part(value, ' ', 1), kcr_sequence FROM out")
        assert Counter(found) == {("first", 6): 20, ("second", SECOND): 20}
        runs.recompute("--checkpoint", str(SECOND), "--consent-upsert", "--consent-compacted")
        assert runs.rows() == all_of("first", "second")


def test_new_code_is_tried_elsewhere_and_compared_and_the_region_does_not_notice(
    runs: RestedRegion, tmp_path: Path
) -> None:
    one, its = ("--checkpoint", str(FIRST)), ("--group", runs.group)
    # As a task starts it, which takes the comparison from what is printed.
    runs.environ = {SUFFIX: "!", **Task.of_this_process("", timedelta(0)).environment()}
    key = "kcr_topic,kcr_partition,kcr_offset"
    status, out, said = runs.kcr("recompute", runs.name, *one, *its, *runs.spark, "--compare", key)
    assert status == 0, said
    ((by_record,),) = [found for line in out.splitlines() if (found := compared_in(line)) is not None]
    assert (by_record["rows_before"], by_record["rows_after"], by_record["different"]) == (20, 20, 20)
    examples = by_record["examples"]
    assert isinstance(examples, dict)
    assert examples["different"][0]["before"] == [{"value": "first 0-0"}]
    assert examples["different"][0]["after"] == [{"value": "first 0-0!"}]
    status, _, said = runs.kcr("recompute", runs.name, *one, *its, *runs.spark, "--compare", "strange")
    assert (status, "has no column strange; it has value" in " ".join(said.split())) == (2, True), said
    tried = {runs.group: {"out": {"kind": "postgres", "url": runs.table.url(), "table": "tried"}}}
    for suffix in ("!", "?"):  # the second time in place of the first
        runs.environ = {SUFFIX: suffix}
        times = ("--from", HOUR.isoformat(), "--to", (HOUR + timedelta(minutes=2)).isoformat())
        answers = runs.recompute(*times, "--into", json.dumps(tried))
        assert [(a["purpose"], a["state"], a["revision"]) for a in answers] == [("into", "done", 0)] * 2
        assert runs.rows("tried") == all_of("first", "second", suffix=suffix)
    file = tmp_path / "live.yaml"
    file.write_text(json.dumps({runs.group: {"out": {**tried[runs.group]["out"], "table": "out"}}}))
    status, _, said = runs.kcr("recompute", runs.name, *one, *its, *NO_SPARK, "--into", str(file))
    assert (status, "writes to public.out" in " ".join(said.split())) == (2, True), said
    assert runs.rows() == all_of("first", "second")
    assert left(runs) == []
    assert revision(runs, FIRST) == 0
    runs.fill("third", HOUR + timedelta(minutes=5))
    runs.environ = {}
    runs.run()
    assert runs.rows() == all_of("first", "second", "third")
    assert runs.at_rest()


def test_a_group_s_checkpoints_are_written_into_a_folder(runs: RestedRegion, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    tried = {runs.group: {"out": {"kind": "files", "path": str(folder)}}}
    for suffix in ("", "!"):
        runs.environ = {SUFFIX: suffix}
        runs.recompute("--checkpoint", str(SECOND), "--into", json.dumps(tried))
        manifest = max(folder.glob("revisions/*/*.json"))
        files = json.loads(manifest.read_text().splitlines()[0])["files"]
        rows = pyarrow.dataset.dataset([str(folder / file["path"]) for file in files]).to_table()
        assert Counter(rows["value"].to_pylist()) == all_of("second", suffix=suffix)
    tried[runs.group]["out"]["path"] = str(tmp_path)
    its = ("--checkpoint", str(SECOND), "--group", runs.group, *runs.spark)
    status, _, said = runs.kcr("recompute", runs.name, *its, "--into", json.dumps(tried))
    assert (status, "is no sink's folder; name an empty one" in " ".join(said.split())) == (2, True), said


def test_checkpoints_are_written_into_a_table_of_iceberg_by_one_application(runs: RestedRegion, tmp_path: Path) -> None:
    made, logs = warehouse(tmp_path / "warehouse"), tmp_path / "applications"
    logs.mkdir()
    made.drop()
    made.catalog().create_table(NAME, Schema(NestedField(1, "value", StringType())))
    tried = {runs.group: {"out": {"kind": "iceberg", **made.spec()}}}
    times = ("--from", HOUR.isoformat(), "--to", (HOUR + timedelta(minutes=2)).isoformat())
    logged = ("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={logs.as_uri()}")
    for number, suffix in enumerate(("", "!"), 1):  # the second time in place of the first
        runs.environ = {SUFFIX: suffix}
        answers = runs.recompute(*times, *logged, "--into", json.dumps(tried))
        assert [(a["purpose"], a["state"]) for a in answers] == [("into", "done")] * 2
        found = made.table().scan().to_arrow().column("value").to_pylist()
        assert Counter(found) == all_of("first", "second", suffix=suffix)
        assert len(list(logs.iterdir())) == number
    assert runs.rows() == all_of("first", "second")
    assert runs.at_rest()


def test_a_checkpoint_is_written_into_a_sink_of_ones_own(runs: RestedRegion, tmp_path: Path) -> None:
    page = (TOP / "docs" / "how-to" / "write-your-own-sink.md").read_text(encoding="utf-8")
    code = re.search(r"## A template\n.*?```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    factory, root = tmp_path / "lake.py", tmp_path / "lake"
    factory.write_text(code[1], encoding="utf-8")
    sink = {"kind": "custom", "factory": f"{factory}:make", "options": {"path": str(root)}}
    with Region(
        runs.name, runs.store
    ) as region:  # what a custom sink keeps is unknown, so nothing more can be promised
        region.apply(parse(region.spec().to_json_text().replace("exactly_once", "at_least_once")))
    for suffix in ("", "!"):
        runs.environ = {SUFFIX: suffix}
        runs.recompute("--checkpoint", str(SECOND), "--into", json.dumps({runs.group: {"out": sink}}))
        [shown] = (root / "checkpoints").glob("*.json")
        replaced = json.loads((root / "replaced" / shown.name).read_text())
        folders = {folder for part in json.loads(shown.read_text()) for folder in replaced[part["folder"]]}
        rows = pyarrow.dataset.dataset([pyarrow.dataset.dataset(root / "batches" / one) for one in folders]).to_table()
        assert Counter(rows["value"].to_pylist()) == all_of("second", suffix=suffix)
    assert runs.rows() == all_of("first", "second")
    assert runs.at_rest()
