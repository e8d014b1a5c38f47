"""Whether the demo came out right: each data interval, each offset and each record against what Kafka itself says.

Kafka is asked without the region's store: the records of each interval are counted by the timestamps that the broker
gave them, and the group's offsets are those that an admin client lists.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from airflow_kcr.api import Region, opened
from airflow_kcr.embedded.demo.play import BUILD, CHECKPOINT, EVERY, ONCE, REASON, REGION, RESET, Play
from airflow_kcr.embedded.flights.producer import TOPIC, Produced
from airflow_kcr.embedded.flights.result import FlightsJudgement, judge
from airflow_kcr.embedded.jars import resolve, spark_connector
from airflow_kcr.embedded.services import FLIGHTS_OUTPUT
from airflow_kcr.protocol.region.rows import Batch, Checkpoint, Committed, Outcome
from airflow_kcr.protocol.values import Offset, RegionName
from airflow_kcr.sinks import read_checkpoint
from airflow_kcr.spark.session import SparkSettings, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SPARK: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    # A few thousand rows in hundreds of small files, read at once: Spark's own settings are for the contrary.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One data interval: what its run has checkpoint, and what Kafka has of it."""

    start: datetime
    end: datetime
    run: str
    """The state of its run; empty: there is none."""

    answer: int | None
    """The sequence of the checkpoint that its run has got."""

    checkpoint: Checkpoint | None
    """Of the interval; None: there is none."""

    in_checkpoint: int | None
    """Records between the checkpoint before and this one."""

    in_topic: int
    """Records that the broker took in the interval."""

    @property
    def sound(self) -> bool:
        """Whether its run has got the checkpoint of the interval, and that has exactly its records."""
        found = None if self.checkpoint is None else self.checkpoint.sequence
        return self.run == "success" and self.answer == found and self.in_checkpoint == self.in_topic


class DemoCheck(NamedTuple):
    """One question, and its answer."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoVerdict:
    """All of it."""

    produced: Produced
    intervals: tuple[Interval, ...]
    checks: tuple[DemoCheck, ...]

    @property
    def sound(self) -> bool:
        """Whether there is no difference at all."""
        return all(one.sound for one in self.intervals) and all(one.passed for one in self.checks)


def judged(play: Play) -> DemoVerdict:
    """Judge everything, once the region has stopped.

    Raises:
        ServiceFailed, StoreError: a service or the store does not answer.
    """
    newest = [one.checkpoint for one in play.region.checkpoints.list() if one.checkpoint.is_current][-1]
    offsets = {place: Offset(offset) for place, offset in play.region.checkpoints.show(newest.sequence).offsets.items()}
    with opened(play.stage.store_url) as store:
        batches = tuple(store.batches(RegionName(REGION)))
    output, bootstrap = str(play.stage.folder / FLIGHTS_OUTPUT), play.stage.kafka["bootstrap.servers"]
    with _spark(play.stage.folder / "spark.log") as spark:
        kafka = {"bootstrap.servers": bootstrap}
        result = judge(spark, offsets, batches, output, kafka, play.produced.records)
        records = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", TOPIC)
        in_topic = count_by_interval(records.load(), play.ends)
        recomputed = _recomputed(play, spark, result.in_topic)
    states = Counter(str(row.committed) for row in play.checkpoints())
    history = play.region.verify()
    checks = (
        DemoCheck(
            "every record once",
            not (result.missing or result.surplus or result.malformed),
            f"{result.in_topic:,} in the topic, {result.accepted:,} accepted, {result.missing} missing, "
            f"{result.surplus} too many",
        ),
        DemoCheck(
            "the result",
            result.unlike_topic == result.unlike_source == 0,
            f"{result.groups:,} sums by carrier and hour, {result.unlike_topic} unlike those computed from the topic, "
            f"{result.unlike_source} unlike those from the source",
        ),
        _duplicates(result, batches),
        held_by_kafka(play.region, newest),
        DemoCheck(
            "commits",
            newest.committed is Committed.YES and not states[Committed.NO],
            ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if count),
        ),
        DemoCheck(
            "kcr verify",
            not history.violations,
            f"{history.checked_events} events, {len(history.violations)} violations",
        ),
        DemoCheck(
            "killed consumer",
            play.killed > 0 and play.retried == 2,
            f"{play.killed} processes killed, {play.retried} tries of its task",
        ),
        DemoCheck(
            "the viewer",
            play.viewer_refused == 3,
            f"was refused {play.viewer_refused} times (403): to trigger the reset, to choose, to approve",
        ),
        _reset(play),
        _downstream(play),
        recomputed,
    )
    return DemoVerdict(produced=play.produced, intervals=tuple(_intervals(play, in_topic)), checks=checks)


# -- intervals ---------------------------------------------------------------------------------------------------------


def count_by_interval(records: DataFrame, ends: Sequence[datetime]) -> list[int]:
    """Return how many records the broker took in each interval; the first one has what is older, too."""
    moment = F.col("timestamp")
    past = [F.when(moment >= F.lit(end), 1).otherwise(0) for end in ends]
    number = sum(past[1:], past[0]).alias("number")
    counted = {row["number"]: row["count"] for row in records.groupBy(number).count().collect()}
    return [counted.get(number, 0) for number in range(len(ends))]


def _intervals(play: Play, counted: Sequence[int]) -> Iterator[Interval]:
    checkpoints = {row.boundary: row for row in play.checkpoints()}
    runs = {run.interval_end: run for run in play.editor.runs(CHECKPOINT)}
    before = 0
    for end, in_topic in zip(play.ends, counted, strict=True):
        checkpoint, run = checkpoints.get(end), runs.get(end)
        upto = before if checkpoint is None else sum(play.region.checkpoints.show(checkpoint.sequence).offsets.values())
        yield Interval(
            start=end - EVERY,
            end=end,
            run="" if run is None else run.state,
            answer=play.answer_of(run) if run is not None and run.state == "success" else None,
            checkpoint=checkpoint,
            in_checkpoint=None if checkpoint is None else upto - before,
            in_topic=in_topic,
        )
        before = upto


# -- records -----------------------------------------------------------------------------------------------------------


@contextmanager
def _spark(log: Path) -> Iterator[SparkSession]:
    """Lend a session whose JVM writes to a log what it would write on the screen."""
    jars = tuple(str(jar) for jar in resolve(spark_connector()))
    settings = SparkSettings(app_name="kcr demo", master="local[*]", jars=jars, conf=dict(_SPARK), log_level="OFF")
    sys.stderr.flush()
    screen = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        session = open_session(settings)
    finally:
        os.dup2(screen, 2)
        os.close(screen)
    try:
        yield session
    finally:
        session.stop()


def _duplicates(found: FlightsJudgement, batches: Sequence[Batch]) -> DemoCheck:
    """Whether the ledger accounts for every record that was processed more than once."""
    again = sum((repeated(batch) for batch in batches), Counter[str]())
    # Undone output had been written; how much of a batch that never finished was written is unknown.
    told = ", ".join(f"{records:,} {outcome}" for outcome, records in sorted(again.items()))
    return DemoCheck(
        "duplicates",
        again[Outcome.UNDONE] <= found.duplicates <= again.total() and found.stray == 0,
        f"{found.duplicates:,} records written again; by the ledger: {told or 'none'}; {found.stray} in output that it "
        "does not know",
    )


def repeated(batch: Batch) -> Counter[str]:
    """Return how many records of a batch were processed again, by why."""
    if batch.outcome not in {Outcome.DONE, Outcome.UNDONE}:
        return Counter({str(batch.outcome or "unended"): sum(range_.width for range_ in batch.ranges.values())})
    undone = (
        range_.to - max(range_.from_, batch.undone_from.get(place, range_.to)) for place, range_ in batch.ranges.items()
    )
    return Counter({str(Outcome.UNDONE): sum(undone)})


# -- offsets and history -----------------------------------------------------------------------------------------------


def held_by_kafka(region: Region, newest: Checkpoint) -> DemoCheck:
    """Return whether Kafka holds what the newest checkpoint has, as `kcr checkpoint compare` shows it."""
    found = region.checkpoints.compare(newest.sequence)
    # A partition that never had a record may be without an entry; its offset is 0 either way.
    differing = [str(one.partition) for one in found if one.offset != (one.committed or 0)]
    return DemoCheck(
        "committed offsets",
        not differing,
        f"{len(found)} partitions, {sum(one.committed or 0 for one in found):,} records committed; "
        + (f"different: {', '.join(differing)}" if differing else f"the same as in checkpoint {newest.sequence}"),
    )


# -- what was done to it -----------------------------------------------------------------------------------------------


def _reset(play: Play) -> DemoCheck:
    name = f"the reset ({RESET})"
    for one in play.region.resets.list():
        who = one.requester
        if who.run_id == play.reset_run:
            return DemoCheck(
                name,
                one.state == "done" and REASON in who.reason,
                f"to checkpoint {play.reset_to}, {one.state}; asked by {who.who} in {who.dag_id}: {who.reason}; "
                f"undid {len(one.undone)} checkpoints, {play.cleared} runs cleared",
            )
    return DemoCheck(name, False, "the history has no reset of this run")


def _downstream(play: Play) -> DemoCheck:
    """Whether something was built on each checkpoint that counts, and on none twice."""
    keys, lacking = play.built(), play.unbuilt()
    wanted = {(int(row.timeline), int(row.sequence)) for row in play.checkpoints()}
    twice = sorted(key for key, count in keys.items() if count > 1)
    return DemoCheck(
        f"downstream ({BUILD})",
        not lacking and not twice,
        f"{len(wanted) - len(lacking)} of {len(wanted)} checkpoints, {len(keys.keys() - wanted)} of undone ones"
        + (f"; lacking: {lacking}" if lacking else "")
        + (f"; twice: {twice}" if twice else ""),
    )


def _recomputed(play: Play, spark: SparkSession, in_topic: int) -> DemoCheck:
    """Whether the run that was cleared has each flight once, and a second version of that."""
    folder = f"{play.stage.folder / FLIGHTS_OUTPUT}-once"
    sequence, revision = play.recomputed.get("sequence"), play.recomputed.get("revision")
    rows = read_checkpoint(spark, folder, sequence=int(str(sequence or 0)))
    count, records = rows.count(), rows.select("kcr_topic", "kcr_partition", "kcr_offset").distinct().count()
    with Region(ONCE, play.stage.store_url) as region:
        violations = region.verify().violations
    return DemoCheck(
        f"the recomputed run ({ONCE})",
        revision == 1 and count == records == in_topic and not violations,
        f"revision {revision} of checkpoint {sequence}: {count:,} rows of {records:,} records, {len(violations)} "
        "violations",
    )
