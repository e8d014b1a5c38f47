"""A region that is deleted and declared again under its name: nothing of the second is lost, doubled, or the first's.

Real broker, real store, a member on real Spark, and `kcr` itself. What the first region left is refused before anything
is consumed, with what to do, or can't be mistaken for the second one's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_kcr.api import Region
from airflow_kcr.goals import STOPPED
from airflow_kcr.protocol.region import events
from airflow_kcr.sinks import read_checkpoint
from airflow_kcr.spec import RegionSpec
from tests.support.databases import execute
from tests.support.faults import checkpoints, finished, resets, told
from tests.support.kafka import Kafka, Record
from tests.support.members import TOP, Lend, Live
from tests.support.tied import Postgres, start_postgres

PARTITIONS = 2
EACH = 100
"""Records of each partition: of the second topic as many as of the first, so that ends and offsets are the same."""

WITHIN = 240.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500), pytest.mark.postgres]


@dataclass(slots=True)
class Again:
    """A region, and what its sink has written."""

    live: Live
    store: str
    table: str
    """The address of the table's database, which executors write to by TCP."""

    folder: Path
    spec: RegionSpec

    def lives(self, *, reset: bool = False) -> None:
        """Have a member process everything; after a reset once more, if that is asked for."""
        process = self.live.start(0)
        self.live.until(lambda: "hosting" in process.said() or not process.running, "hosting", WITHIN)
        assert process.running, process.said()
        finished(self.live, WITHIN)
        if reset:
            self.live.reset()
            self.live.until(lambda: len(resets(self.live)) == 1, "a reset", WITHIN)
            finished(self.live, WITHIN)
        with Region(self.live.name, self.live.store) as region:
            region.stop()
            region.wait_for(STOPPED)
        assert process.wait(WITHIN) == 0, process.said()

    def refused(self) -> str:
        """Start a member that must not consume anything, and return what it said."""
        process = self.live.start(0)
        assert process.wait(WITHIN) != 0
        assert list(self.live.store.batches(self.live.name)) == []
        assert told(self.live, events.MemberRegistered) == []
        return process.said()

    def kcr(self, *arguments: str) -> str:
        """Return what a command says that succeeds."""
        environ = {**os.environ, "KCR_STORE_URL": self.store}
        command = [sys.executable, "-m", "airflow_kcr", *arguments]
        done = subprocess.run(
            command, cwd=TOP, env=environ, capture_output=True, text=True, timeout=WITHIN, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def delete(self, *options: str) -> str:
        """Delete the region; return what it leaves behind, as the command says."""
        return self.kcr("region", "delete", self.live.name, "--yes", *options)

    def declare(self, spec: RegionSpec | None = None) -> None:
        """Declare the region again."""
        with Region(self.live.name, self.live.store) as region:
            region.apply(spec or self.spec)

    def fill(self, word: str) -> None:
        """Produce the topic's records."""
        numbers = [(n, o) for n in range(PARTITIONS) for o in range(EACH)]
        records = [Record(value=f"{word} {n}-{o}".encode(), partition=n) for n, o in numbers]
        self.live.kafka.produce(self.live.topic, records)

    def make_topic_anew(self) -> None:
        """Delete the topic and make one of its name, with other records."""
        self.live.kafka.delete_topic(self.live.topic)
        self.live.kafka.topic(PARTITIONS, name=self.live.topic)
        self.fill("new")

    def execute(self, statement: str) -> None:
        """Execute a statement in the table's database."""
        execute(self.table, statement)

    def rows(self) -> Counter[str]:
        """How often the table has each value."""
        return Counter(dict(execute(self.table, "SELECT value, count(*) FROM out GROUP BY value")))


def all_of(*words: str) -> Counter[str]:
    """Every record of these topics once, as the pipeline writes it."""
    return Counter(f"{word} {n}-{o}".upper() for word in words for n in range(PARTITIONS) for o in range(EACH))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Postgres]:
    """The server of the table."""
    with start_postgres(tmp_path / "target") as started:
        yield started


@pytest.fixture
def again(
    request: pytest.FixtureRequest,
    lend_on_spark: Lend,
    kafka: Kafka,
    target: Postgres,
    database_url: str,
    tmp_path: Path,
) -> Iterator[Again]:
    """A region of one member on Spark, with a table or a folder, whose topic has its first records."""
    folder = tmp_path / "out"
    table = f"{{kind: postgres, url: '{target.url()}', table: out}}"
    sink = {"table": table, "folder": f"{{kind: files, path: '{folder}'}}"}[request.param]
    group = f", delivery: exactly_once, sinks: {{out: {sink}}}"
    with lend_on_spark(group=group, name=kafka.group_id("again")) as one:
        with Region(one.name, one.store) as region:
            spec = region.spec()
        found = Again(one, database_url, target.url(), folder, spec)
        found.fill("old")
        yield found


def way_out(*options: str) -> Callable[[Again], None]:
    """Refuse the second region, and settle it with a command."""

    def taken(again: Again) -> None:
        said = again.refused()
        assert f"kcr region output {again.live.name} --keep" in said, said
        assert all(option in said for option in options)
        again.kcr("region", "output", again.live.name, *options)

    return taken


def nothing(again: Again) -> None:
    """The second region can't be mistaken for the first."""


in_a_table = pytest.mark.parametrize("again", ["table"], indirect=True)
in_a_folder = pytest.mark.parametrize("again", ["folder"], indirect=True)


@in_a_table
@pytest.mark.parametrize(
    ("reset", "deleted", "between", "settled", "expected"),
    [
        pytest.param(False, (), Again.make_topic_anew, way_out("--delete"), ("new",), id="rows deleted"),
        pytest.param(False, (), Again.make_topic_anew, way_out("--keep"), ("old", "new"), id="rows kept"),
        pytest.param(False, (), Again.make_topic_anew, way_out("--take-over"), ("new",), id="rows taken over"),
        pytest.param(True, (), Again.make_topic_anew, way_out("--delete"), ("new",), id="reset in the first life"),
        pytest.param(False, ("--with-output",), Again.make_topic_anew, nothing, ("new",), id="deleted with output"),
        pytest.param(True, (), lambda again: again.execute("DROP TABLE out"), nothing, ("old",), id="table dropped"),
    ],
)
def test_all_records_of_the_second_region_are_in_the_table(
    again: Again,
    reset: bool,
    deleted: tuple[str, ...],
    between: Callable[[Again], None],
    settled: Callable[[Again], None],
    expected: tuple[str, ...],
) -> None:
    again.lives(reset=reset)
    assert again.rows() == all_of("old")
    left = again.delete(*deleted)
    assert ("keeps what it wrote to out" in left) is not bool(deleted)
    between(again)
    again.declare()
    settled(again)
    again.lives()
    assert again.rows() == all_of(*expected)
    again.kcr("verify", again.live.name)


def cleared(again: Again) -> None:
    """All that is in the folder is deleted by hand."""
    shutil.rmtree(again.folder)


def named_anew(again: Again) -> None:
    """The second region's spec names another folder."""
    again.folder = again.folder.with_name("another")
    (group,) = again.spec.groups
    (sink,) = group.sinks
    group = replace(group, sinks=(replace(sink, path=str(again.folder)),))
    again.declare(replace(again.spec, groups=(group,)))


@in_a_folder
@pytest.mark.parametrize(
    "mended", [cleared, named_anew, None], ids=["cleared", "another folder", "deleted with output"]
)
def test_no_checkpoint_of_the_second_region_reads_as_one_of_the_first(
    again: Again, mended: Callable[[Again], None] | None, request: pytest.FixtureRequest
) -> None:
    again.lives()
    first = checkpoints(again.live)[-1].sequence
    again.delete(*(() if mended else ("--with-output",)))
    again.make_topic_anew()
    again.declare()
    if mended is not None:
        said = again.refused()
        assert "is the folder of sink out" in said
        assert "name another one in the spec, or delete all that is in this one" in said
        assert "out of region id" in again.kcr("region", "output", again.live.name)
        mended(again)
    again.lives()
    spark = request.getfixturevalue("spark")
    second = [row.sequence for row in checkpoints(again.live)]
    assert first in second, "the numbers are the same"
    rows = [row for n in second for row in read_checkpoint(spark, str(again.folder), sequence=n).collect()]
    assert Counter(row["value"] for row in rows) == all_of("new")
    again.kcr("verify", again.live.name)
