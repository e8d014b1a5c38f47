"""Whether the demo came out right: each data interval, each offset and each record against what Kafka itself says."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from airflow_kcr.api import Region, opened
from airflow_kcr.embedded import jars
from airflow_kcr.embedded.airflow import User
from airflow_kcr.embedded.demo.play import (
    BUILD,
    CHECKPOINT,
    REASON,
    REGION,
    RESET,
    Happened,
    Play,
    Script,
    declare,
    producing,
)
from airflow_kcr.embedded.demo.stage import (
    Audience,
    Curtain,
    DemoPhase,
    Launches,
    Timed,
    committed_offsets,
    count_by_interval,
    prepared,
    staged,
    tied,
)
from airflow_kcr.embedded.flights import data
from airflow_kcr.embedded.flights.data import GROUP
from airflow_kcr.embedded.flights.producer import TOPIC
from airflow_kcr.embedded.flights.result import FlightsJudgement, FlightsQuestion, judge
from airflow_kcr.embedded.jars import java, resolve, spark_connector
from airflow_kcr.protocol.region.rows import Batch, Checkpoint, Committed, Outcome
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.spark.session import SparkSettings, member_session, open_session

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

    timeline: int | None
    sequence: int | None
    """Of its checkpoint; None: there is none."""

    in_checkpoint: int | None
    """Records between the checkpoint before and this one."""

    in_topic: int
    """Records that the broker took in the interval."""

    @property
    def sound(self) -> bool:
        """Whether its run has got the checkpoint of the interval, and that has exactly its records."""
        return self.run == "success" and self.answer == self.sequence and self.in_checkpoint == self.in_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCheck:
    """One question, and its answer."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoVerdict:
    """All of it."""

    intervals: tuple[Interval, ...]
    checks: tuple[DemoCheck, ...]

    @property
    def sound(self) -> bool:
        """Whether there is no difference at all."""
        return all(one.sound for one in self.intervals) and all(one.passed for one in self.checks)


def judged(play: Play) -> DemoVerdict:
    """Judge everything, once the region has stopped.

    Raises:
        BrokerUnavailable, ServiceFailed, StoreError: a broker, service or store does not answer.
    """
    found = play.found
    if found.last_boundary is None:
        return DemoVerdict(
            intervals=(), checks=(DemoCheck(name="intervals", passed=False, detail="there was no last one"),)
        )
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="result") as pool:
        computing = pool.submit(_result, play)  # Spark takes its time to start
        intervals = tuple(_intervals(play, found.last_boundary))
        of_services = (
            _kafka(play),
            _committed(play),
            _history(play.region),
            _killed(found),
            _refused(found),
            _reset(play),
            _downstream(play),
        )
        of_records = tuple(_of_records(computing.result(), play.region, play.stage.store_url))
    return DemoVerdict(intervals=intervals, checks=(*of_records, *of_services))


# -- intervals ---------------------------------------------------------------------------------------------------------


def _intervals(play: Play, last: datetime) -> Iterator[Interval]:
    every, since = play.script.every, play.found.since
    ends = list(interval_ends(since, last, every))
    counted = count_by_interval(play.stage.settings, TOPIC, ends)
    checkpoints = {row.boundary: row for row in play.checkpoints()}
    runs = {run.interval_end: run for run in play.editor.runs(CHECKPOINT)}
    before = 0
    for end, in_topic in zip(ends, counted, strict=True):
        checkpoint, run = checkpoints.get(end), runs.get(end)
        upto = before if checkpoint is None else sum(play.region.checkpoint(checkpoint.sequence).offsets.values())
        yield Interval(
            start=end - every,
            end=end,
            run="" if run is None else run.state,
            answer=play.answer_of(run) if run is not None and run.state == "success" else None,
            timeline=None if checkpoint is None else int(checkpoint.timeline),
            sequence=None if checkpoint is None else int(checkpoint.sequence),
            in_checkpoint=None if checkpoint is None else upto - before,
            in_topic=in_topic,
        )
        before = upto


def interval_ends(since: datetime, last: datetime, every: timedelta) -> Iterator[datetime]:
    """Yield the end of each interval, up to the last boundary."""
    end = since + every
    while end <= last:
        yield end
        end += every


# -- records -----------------------------------------------------------------------------------------------------------


def _result(play: Play) -> FlightsJudgement:
    """Compare what the pipeline has written with the same computed from the topic, and from the source."""
    produced = play.found.produced
    flights = play.stage.folder / "flights.csv"
    data.write_flights(flights, None if produced is None else produced.records)
    with opened(play.stage.store_url) as store:
        region, _ = store.read(RegionName(REGION))
        batches = tuple(store.batches(RegionName(REGION)))
    jars = tuple(str(jar) for jar in resolve(spark_connector()))
    settings = SparkSettings(app_name="kcr demo", master="local[*]", jars=jars, conf=dict(_SPARK), log_level="OFF")
    with _told_to(play.stage.folder / "spark.log"):
        session = open_session(settings)
    try:
        question = FlightsQuestion(
            region=region,
            batches=batches,
            output=str(play.stage.output),
            kafka=dict(play.stage.settings),
            flights=Path(flights),
        )
        return judge(member_session(session), question)
    finally:
        session.stop()


@contextmanager
def _told_to(log: Path) -> Iterator[None]:
    """Have standard error go to a file, that of processes which are started meanwhile too."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _of_records(result: FlightsJudgement, region: Region, store_url: str) -> Iterator[DemoCheck]:
    counts = result.counts
    yield DemoCheck(
        name="every record once",
        passed=counts.exact and counts.malformed == 0,
        detail=f"{counts.in_topic:,} in the topic, {counts.accepted:,} accepted, {counts.missing} missing, "
        f"{counts.surplus} too many",
    )
    file = result.with_file
    groups = result.with_topic.groups
    yield DemoCheck(
        name="the result",
        passed=result.with_topic.equal and file is not None and file.equal,
        detail=f"{groups:,} sums by carrier and hour, {result.with_topic.different} unlike those computed from the "
        f"topic, {0 if file is None else file.different} unlike those from the source",
    )
    yield _duplicates(result, region, store_url)


def _duplicates(result: FlightsJudgement, region: Region, store_url: str) -> DemoCheck:
    """Whether the ledger accounts for every record that was processed more than once."""
    with opened(store_url) as store:
        batches = tuple(store.batches(RegionName(REGION)))
    by_outcome: Counter[str] = Counter()
    for batch in batches:
        for outcome, records in repeated(batch):
            by_outcome[outcome] += records
    # Undone output had been written; how much of a batch that never finished was written is unknown.
    least, most = by_outcome[str(Outcome.UNDONE)], sum(by_outcome.values())
    found, stray = result.counts.duplicates, result.counts.stray
    told = ", ".join(f"{records:,} {outcome}" for outcome, records in sorted(by_outcome.items()) if records)
    return DemoCheck(
        name="duplicates",
        passed=least <= found <= most and stray == 0,
        detail=f"{found:,} records written again; by the ledger: {told or 'none'}; {stray} in output that it does not "
        "know",
    )


def repeated(batch: Batch) -> Iterator[tuple[str, int]]:
    """Yield how many records of a batch were processed again, with why."""
    for place, range_ in batch.ranges.items():
        if batch.outcome is Outcome.DONE or batch.outcome is Outcome.UNDONE:
            yield str(Outcome.UNDONE), range_.to - max(range_.from_, batch.undone_from.get(place, range_.to))
        else:
            yield str(batch.outcome or "unended"), range_.width


# -- offsets and history -----------------------------------------------------------------------------------------------


def _kafka(play: Play) -> DemoCheck:
    """Whether Kafka holds, by its own tool, what the newest checkpoint has."""
    newest = _newest(play)
    stored: dict[tuple[str, int], int] = {
        (p.topic, p.partition): int(o) for p, o in play.region.checkpoint(newest.sequence).offsets.items()
    }
    held = committed_offsets(play.stage.kafka.bootstrap_servers, GROUP)
    # A partition that never had a record may be without an entry; its offset is 0 either way.
    differing = sorted(place for place in stored.keys() | held.keys() if stored.get(place, 0) != held.get(place, 0))
    return DemoCheck(
        name="kafka-consumer-groups",
        passed=not differing,
        detail=f"{len(stored)} partitions, {sum(held.values()):,} records committed; "
        + (f"different: {differing}" if differing else f"the same as in checkpoint {newest.sequence}"),
    )


def _newest(play: Play) -> Checkpoint:
    rows = [one.checkpoint for one in play.region.checkpoints() if one.checkpoint.is_current]
    return rows[-1]


def _committed(play: Play) -> DemoCheck:
    states = Counter(str(row.committed) for row in play.checkpoints())
    newest = _newest(play)
    return DemoCheck(
        name="commits",
        passed=newest.committed is Committed.YES and not states[str(Committed.NO)],
        detail=", ".join(f"{count} {state}" for state, count in sorted(states.items())),
    )


def _history(region: Region) -> DemoCheck:
    verdict = region.verify()
    return DemoCheck(
        name="kcr verify",
        passed=not verdict.violations,
        detail=f"{verdict.checked_events} events, {len(verdict.violations)} violations",
    )


# -- what was done to it -----------------------------------------------------------------------------------------------


def _killed(found: Happened) -> DemoCheck:
    return DemoCheck(
        name="killed consumer",
        passed=found.killed > 0 and found.retried == 2,
        detail=f"{found.killed} processes killed, {found.retried} tries of its task",
    )


def _refused(found: Happened) -> DemoCheck:
    return DemoCheck(
        name="the viewer",
        passed=found.viewer_refused == 3,
        detail=f"was refused {found.viewer_refused} times (403): to trigger the reset, to choose, to approve",
    )


def _reset(play: Play) -> DemoCheck:
    found = play.found
    mine = [one for one in play.region.resets() if one.requester.run_id == found.reset_run]
    done = [one for one in mine if one.state == "done" and REASON in one.requester.reason]
    detail = "the history has no reset of this run"
    if mine:
        who = mine[0].requester
        detail = (
            f"to checkpoint {found.reset_to}, {mine[0].state}; asked by {who.who} in {who.dag_id}: {who.reason}; "
            f"undid {len(mine[0].undone)} checkpoints, {len(found.cleared)} runs cleared"
        )
    return DemoCheck(name=f"the reset ({RESET})", passed=len(done) == 1, detail=detail)


def _downstream(play: Play) -> DemoCheck:
    """Whether what builds on a checkpoint ran once for each that counts."""
    keys = play.built()
    wanted = {(int(row.timeline), int(row.sequence)) for row in play.checkpoints(play.found.last_boundary)}
    lacking = sorted(wanted - keys.keys())
    twice = sorted(key for key, count in keys.items() if count > 1)
    return DemoCheck(
        name=f"downstream ({BUILD})",
        passed=not lacking and not twice,
        detail=f"{len(wanted & keys.keys())} of {len(wanted)} checkpoints, {len(keys.keys() - wanted)} of undone ones"
        + (f"; lacking: {lacking}" if lacking else "")
        + (f"; twice: {twice}" if twice else ""),
    )


# The demo as a whole: the stage, the acts in their order, the judgement, and everything stopped again.


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where everything is reached while it runs."""

    airflow: str
    users: tuple[User, ...]
    store_url: str
    kafka: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How the demo came out."""

    verdict: DemoVerdict
    happened: Happened
    seconds: dict[str, float]
    addresses: Addresses


@contextmanager
def performed(
    audience: Audience,
    folder: Path,
    *,
    script: Script | None = None,
    curtain: Curtain | None = None,
    launches: Launches = tied,
) -> Iterator[Summary]:
    """Perform the demo, and lend its summary while the services still run; they stop at the end.

    Args:
        audience: whom it is shown to.
        folder: where everything is kept.
        script: how long and how much.
        curtain: whether the services stop at the end.
        launches: how their processes are launched.

    Raises:
        KcrError: an act failed; the message says which, and why.
    """
    chosen = script or Script()
    java()  # report a missing requirement before there is anything to clean up
    timed, falling = Timed(audience), curtain or Curtain()
    with ExitStack() as stack:
        making = stack.enter_context(prepared(folder, falling, launches))
        with timed.phase("download") as phase:
            _download(phase)
        with timed.phase("start Kafka and Postgres"):
            stage = stack.enter_context(staged(folder, making, falling, launches))
        with timed.phase("declare the region"):
            found = declare(stage, chosen)
        production = stack.enter_context(producing(stage, chosen))
        with timed.phase("start Airflow"):
            airflow = stack.enter_context(stage.airflow(since=found.since, every=chosen.every))
        region = stack.enter_context(Region(REGION, stage.store_url))
        editor = stack.enter_context(airflow.client("editor"))
        play = Play(stage=stage, airflow=airflow, region=region, editor=editor, script=chosen, found=found)
        with timed.phase("start the consumers") as phase:
            play.start_consumers(phase)
        with timed.phase("checkpoint intervals") as phase:
            play.wait_for_intervals(phase, chosen.before_kill)
        with timed.phase("kill a consumer") as phase:
            play.kill_a_consumer(phase)
        with timed.phase("checkpoint intervals") as phase:
            play.wait_for_checkpoints(phase, chosen.before_reset)
        with timed.phase("reset from Airflow") as phase:
            last = play.reset(phase, production)
        with timed.phase("checkpoint the intervals again") as phase:
            play.finish(phase, last)
        with timed.phase("stop the region") as phase:
            play.stop(phase)
        with timed.phase("check everything"):
            verdict = judged(play)
        addresses = Addresses(
            airflow=airflow.url,
            users=airflow.users,
            store_url=stage.store_url,
            kafka=stage.kafka.bootstrap_servers,
            folder=folder,
        )
        yield Summary(verdict=verdict, happened=found, seconds=timed.seconds, addresses=addresses)


def _download(phase: DemoPhase) -> None:
    wanted = (jars.KAFKA_BROKER, jars.KAFKA_TOOLS, jars.spark_connector())
    phase.tell(0, len(wanted), ", ".join(one.name for one in wanted))
    jars.resolve_all(wanted, lambda done, name: phase.tell(done, len(wanted), f"{name} has come"))


@contextmanager
def own_folder(*, keep: bool) -> Iterator[Path]:
    """Lend a new folder, which is gone at the end.

    Args:
        keep: whether it stays if all went well, for what still runs in it.
    """
    folder = Path(tempfile.mkdtemp(prefix="kcr-demo-"))
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
