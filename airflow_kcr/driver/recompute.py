"""A process that recomputes one checkpoint: it reads the checkpoint's records once more, mostly to replace its output.

It is no member: it joins no group and holds no partition, so that a region goes on beside it, or rests. Everything that
can be wrong is found before anything runs: the checkpoint, the sinks, the pipeline, and whether the logs still have the
records. What it makes is held back by the sinks until all of it is there (`sinks.contract.Revision`); so whenever this
process dies, the old output stands, and another one begins anew.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Final, TextIO

from rich.console import Console

from airflow_kcr.api.clusters import Cluster, reader_with
from airflow_kcr.api.recomputations import (
    LEASE,
    Compare,
    Into,
    OutputComparison,
    RecomputationView,
    RegionRecomputation,
    Replace,
)
from airflow_kcr.driver.application import (
    application_of,
    bounded_limits_of,
    connector_settings,
    fetch_for,
    of_each_cluster,
)
from airflow_kcr.driver.logins import session_for
from airflow_kcr.driver.parent_watchdog import ParentWatchdog
from airflow_kcr.driver.parts import Parts, load, sentence
from airflow_kcr.driver.process import end_at_once, handled, log_to
from airflow_kcr.driver.starting import START_WITHIN, StartPatience
from airflow_kcr.driver.task import Task, compared_line, tell
from airflow_kcr.driver.watch import Watch
from airflow_kcr.errors import (
    BatchFailed,
    CheckpointNotUsable,
    KcrError,
    RecomputationRefused,
    RefusedError,
    ResetInProgress,
    StoreError,
)
from airflow_kcr.kafka.logins import advice
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region import recomputations, rows, timelines
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    EventNumber,
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    Range,
    RegionId,
    TopicId,
    TopicName,
    format_instant,
)
from airflow_kcr.runtime.planner import BatchSize, shares
from airflow_kcr.sinks.checkpoints import CompleteCheckpoint, ranges_of
from airflow_kcr.sinks.contract import Revision, Sink, SinkOfBatch
from airflow_kcr.sinks.files.contents import CheckpointContents, RegionLedger
from airflow_kcr.sinks.group import sinks_of_region, spark_packages
from airflow_kcr.spark.causes import essential_line
from airflow_kcr.spark.comparison import compared, require_key
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.pulse import Pulse
from airflow_kcr.spark.reads import Source
from airflow_kcr.spark.session import SparkSettings, executor_memory, stop_session
from airflow_kcr.spec import RegionSpec, stored_spec
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

_RENEWALS: Final = LEASE.total_seconds() / 6
"""Seconds between two renewals."""

RESETS_WITHIN: Final = timedelta(minutes=10)
"""How long output that is ready waits for resets of the region to be over."""


def recompute(
    store: RegionStore,
    recomputations: Sequence[RegionRecomputation],
    spark: SparkSettings,
    reading: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    *,
    start_within: timedelta = START_WITHIN,
) -> list[RecomputationView]:
    """Recompute checkpoints, and return the recomputations; one that is done already is found, and nothing runs.

    Args:
        store: where the region is.
        recomputations: of one region, at least one: one after the other, in one application.
        spark: how Spark is started for them.
        reading: options of Spark's Kafka connector, over those of the project.
        environ: where references of the spec are looked up; it says which task this works for, where it does.
        start_within: how long it waits while the store, a broker or a sink's database is away, or another recomputation
            of the checkpoint is at work.

    Raises:
        UnknownRegion, UnknownCheckpoint, CheckpointNotUsable, RecomputationRefused, UpsertNeedsConsent: as for
            `RegionRecomputation.begin`; or the logs have lost records of it, or a reset has undone it meanwhile.
        ConfigurationError: the pipeline or a setting is unusable, or a sink can't replace what it has shown.
        BatchFailed: the pipeline failed; nothing of its checkpoint was replaced.
        SinkError: a sink refused; the message says whether anything was replaced.
    """
    log_to(Console(stderr=True))
    region = recomputations[0].region
    patience = StartPatience(region, start_within)
    watch = Watch(Pulse(environ), end_at_once)
    task = Task.from_environment(environ)
    watchdog = ParentWatchdog(store, region, task=task, end_process=end_at_once)
    done: list[RecomputationView] = []
    listener = None if task is None else sys.stdout
    with watchdog.watching(), watch.watching(), handled(_end, signal.SIGTERM), ExitStack() as stack:
        application = _Application(spark, watch, stack, listener)
        for recomputation in recomputations:
            known = patience.answered(recomputation.done)
            if known is not None:
                done.append(known)
                continue
            found = patience.answered(partial(_found, store, recomputation, environ))
            wanted = {p: ranges for its in found.ranges.values() for p, ranges in its.items()}
            begin = partial(recomputation.begin, tuple(found.parts), wanted)
            # Another one of the checkpoint is at work until it is over, or lost.
            begun = patience.answered(begin, (RecomputationRefused,))
            try:
                with ExitStack() as held:
                    its = _Recomputing(store, recomputation, found, begun.number, application, reading, held)
                    done.append(recomputation.finish(its.carried_out(), its.comparisons, its.tables))
            except BaseException as error:
                _give_up(recomputation, error)
                raise
            if listener is not None and isinstance(recomputation.output, Compare):
                tell(listener, compared_line([one.to_json() for one in done[-1].comparisons]))
    return done


@dataclass(slots=True)
class _Application:
    """The Spark application of recomputations that follow each other; the first that has records starts it."""

    _settings: SparkSettings
    _watch: Watch
    """Of Spark's JVM."""

    _stack: ExitStack
    """Ends it."""

    _listener: TextIO | None
    """Told which application it is, for the task's link to Spark's page; None: there is no task."""

    _spark: SparkSession | None = None

    def session(self, found: _Found, partitions: int) -> SparkSession:
        """Return Spark, started with what the sinks of all groups need: the next checkpoint may have records of others.

        Args:
            found: what is recomputed.
            partitions: how many of them are read.
        """
        if self._spark is None:
            self._watch.begin(found.spec.rules().timeouts.lease)
            settings = self._settings
            packages = (*settings.packages, *spark_packages(found.spec, found.parts))
            consumers = settings.consumers or partitions
            clusters = (parts.kafka for parts in found.parts.values())
            self._spark = session_for(replace(settings, consumers=consumers, packages=packages), clusters)
            self._stack.callback(stop_session, self._spark)
            if self._listener is not None:
                tell(self._listener, application_of(self._spark).line())
        return self._spark


def _give_up(recomputation: RegionRecomputation, error: BaseException) -> None:
    """Tell the store that it came to nothing, so that another one need not wait; where that fails, it will."""
    if isinstance(error, KcrError):
        why = sentence(error)
    else:
        why = essential_line(error) if isinstance(error, Exception) else "its process was ended"
    try:
        recomputation.fail(why)
    except KcrError as away:
        _LOG.warning("the store could not be told that the recomputation has ended: %s", away)


def _end(number: int, frame: FrameType | None) -> None:
    """End the process on a signal as an error does, so that it tells the store and drops what is held back."""
    raise SystemExit(128 + number)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What is recomputed, everything but Spark found in order."""

    region: Region
    spec: RegionSpec
    checkpoint: rows.Checkpoint
    parts: Mapping[GroupId, Parts]
    contents: Mapping[GroupId, CheckpointContents]
    ranges: Mapping[GroupId, Mapping[GroupPartition, tuple[Range, ...]]]
    """What the checkpoint has of each group, ranges that follow each other joined."""


def _found(store: RegionStore, recomputation: RegionRecomputation, environ: Mapping[str, str]) -> _Found:
    """Return what there is to recompute.

    Raises:
        ConfigurationError, UpsertNeedsConsent: as `RegionRecomputation.groups`; the pipeline or a sink is unusable.
        SinkError: a sink's database can't be reached.
        CheckpointNotUsable: the logs have not got all of its records any more.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    groups, name, sequence = recomputation.groups(), recomputation.region, recomputation.sequence
    region, _ = store.read(name)
    spec, ledger = recomputation.spec(), RegionLedger(store, name)
    region_id, taken = region.region_id, store.taken(name)
    if isinstance(recomputation.output, Into):
        region_id, taken = elsewhere(region_id), frozenset()
        live = tuple(sinks_of_region(stored_spec(region.spec.text), environ, region_id=region.region_id))
        for sink in sinks_of_region(spec, environ, region_id=region_id):
            sink.require_apart(live)
    parts = {group: load(spec, group, environ, region_id=region_id, taken=taken) for group in groups}
    contents = {group: ledger.contents(sequence, group) for group in groups}
    ranges = {group: ranges_in(group, its) for group, its in contents.items()}
    with ExitStack() as stack:
        clusters = of_each_cluster(parts, lambda kafka: stack.enter_context(reader_with(kafka)))
        topics, lost = region.archive.topics(sequence), list[str]()
        for group, cluster in clusters.items():
            lost += losses(cluster, ranges[group], topics)
            if isinstance(recomputation.output, Replace) and not recomputation.output.consent_compacted:
                require_uncompacted(sequence, cluster.compacted({partition.topic for partition in ranges[group]}))
    if lost:
        raise CheckpointNotUsable(f"records of checkpoint {sequence} can't be read any more: {'; '.join(lost)}")
    return _Found(
        region=region,
        spec=spec,
        checkpoint=recomputations.replaceable(region, sequence),
        parts=parts,
        contents=contents,
        ranges=ranges,
    )


def elsewhere(region_id: RegionId) -> RegionId:
    """Return in whose name recomputations of a region write into other sinks than its own."""
    return RegionId(f"{region_id} elsewhere")


def ranges_in(group: GroupId, checkpoint: CompleteCheckpoint) -> dict[GroupPartition, tuple[Range, ...]]:
    """Return what a checkpoint has of a group by partition, in order, ranges that follow each other joined."""
    return {GroupPartition(group, *place): ranges for place, ranges in ranges_of(checkpoint.batches).items()}


def losses(
    cluster: Cluster, ranges: Mapping[GroupPartition, Sequence[Range]], topics: Mapping[GroupPartition, TopicId]
) -> list[str]:
    """Return which records are not in their logs any more, a sentence for each partition: why, and since when.

    Args:
        cluster: whose logs are read now.
        ranges: of each partition in order, at least one.
        topics: the id of each topic when the checkpoint was made, as far as it is known.
    """
    logs = cluster.logs.bounds(tuple(ranges))
    reasons = {p: _loss(its, logs.get(p), topics.get(p, TopicId(""))) for p, its in ranges.items()}
    lost = {p: why for p, why in sorted(reasons.items()) if why}
    firsts = cluster.first_records({p: logs[p].start for p in lost if p in logs})
    sentences = []
    for partition, why in lost.items():
        its, since = ranges[partition], firsts[partition].found if partition in firsts else None
        told = "" if since is None else f"; its first record is of {format_instant(since)}"
        sentences.append(f"{partition}, offsets {its[0].from_} to {its[-1].to}: {why}{told}")
    return sentences


def _loss(ranges: Sequence[Range], log: LogBounds | None, topic_id: TopicId) -> str:
    """Return why the records of ranges can't be read from their log; empty: they can."""
    if log is None:
        return "the brokers have no such partition"
    if timelines.is_recreated(topic_id, log.topic_id):
        return "the topic was deleted and created again since"
    if log.start > ranges[0].from_:
        return f"the log begins at {log.start}, as retention or a deletion took what was before"
    return "" if log.end >= ranges[-1].to else f"the log ends at {log.end}; the brokers have lost records"


def require_uncompacted(sequence: CheckpointNumber, compacted: Collection[TopicName]) -> None:
    """Refuse to replace what was made of records that compaction may have taken since.

    Args:
        sequence: the checkpoint's.
        compacted: topics of its groups whose `cleanup.policy` has `compact`.

    Raises:
        CheckpointNotUsable: there is one.
    """
    if compacted:
        raise CheckpointNotUsable(
            f"topic {', '.join(sorted(compacted))} is compacted (cleanup.policy): records of checkpoint {sequence} may "
            "be gone, no log tells which, and their output would go with them; see what would differ (--compare), "
            "or, to recompute it of what is left, give --consent-compacted (consent_compacted=True in Python)"
        )


class Backlog:
    """What is still to be read.

    Args:
        ranges: by partition in order; batches don't cross their gaps.
    """

    def __init__(self, ranges: Mapping[GroupPartition, Sequence[Range]]) -> None:
        self._left = {partition: list(its) for partition, its in ranges.items()}

    def take(self, size: int) -> dict[GroupPartition, Range]:
        """Return the ranges of the next batch, of every partition a share; none: all is taken.

        Args:
            size: how many records it may have, >= 1.
        """
        taken: dict[GroupPartition, Range] = {}
        backlog = {partition: its[0].to - its[0].from_ for partition, its in self._left.items() if its}
        for partition, count in shares(backlog, size).items():
            first, *rest = self._left[partition]
            cut = Offset(first.from_ + count)
            taken[partition] = Range(first.from_, cut)
            self._left[partition] = rest if cut == first.to else [Range(cut, first.to), *rest]
        return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """One sink, and what is held back of it."""

    group: GroupId
    name: str
    sink: Sink
    revision: Revision


@dataclass(slots=True)
class _Recomputing:
    """A recomputation that runs: its application, its batches, and the thread that keeps it alive."""

    _store: RegionStore
    _recomputation: RegionRecomputation
    _found: _Found
    _number: EventNumber
    _application: _Application
    _reading: Mapping[str, str]
    """Options of Spark's Kafka connector."""

    _stack: ExitStack
    """Ends what was started for it."""

    comparisons: list[OutputComparison] = field(default_factory=list)
    tables: list[TableVersion] = field(default_factory=list)
    _running: tuple[SparkEngine, BatchId, float] | None = None
    """The batch that runs, by which engine, and since when."""

    _refusal: KcrError | None = None
    """Why it was cancelled."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def _times(self) -> Timeouts:
        return self._found.spec.rules().timeouts

    def carried_out(self) -> list[Mapping[GroupPartition, Range]]:
        """Read everything once more, and do with the output what is wanted; return what was read, by batch."""
        self._stack.callback(self._over.set)
        threading.Thread(target=self._renew, name="renews the recomputation", daemon=True).start()
        wanted = {group: its for group, its in self._found.ranges.items() if its}
        if not wanted:
            return []  # the checkpoint has nothing of these groups, so neither has any sink
        held: list[_Held] = []
        batches: list[Mapping[GroupPartition, Range]] = []
        spark = self._application.session(self._found, sum(map(len, wanted.values())))
        for group in wanted:
            of_group = list(self._held(group, spark))
            held += of_group
            batches += self._processed(group, spark, {one.name: one.revision for one in of_group})
        self._require_going_on()
        match self._recomputation.output:
            case Compare(key=key):
                self.comparisons += [self._compared(one, key, spark) for one in held]
            case _:
                self._show(held)
        return batches

    def _show(self, held: Iterable[_Held]) -> None:
        deadline = time.monotonic() + RESETS_WITHIN.total_seconds()
        for one in held:
            while not self._is_replaced(one.revision, deadline):
                pass  # another reset has started since it was waited for

    def _compared(self, one: _Held, key: tuple[str, ...], spark: SparkSession) -> OutputComparison:
        contents = self._found.contents[one.group]
        before, after = one.sink.shown(contents, spark), one.revision.held(spark)
        return compared(before, after, sequence=contents.id.sequence, group=one.group, sink=one.name, key=key)

    def _is_replaced(self, revision: Revision, deadline: float) -> bool:
        """Return whether output was replaced, having waited until the region is in no reset."""
        recomputation = self._recomputation
        recomputation.wait_for_resets(deadline)
        try:
            self.tables += revision.replace(recomputation.require_wanted)
        except ResetInProgress:
            return False
        return True

    def _held(self, group: GroupId, spark: SparkSession) -> Iterator[_Held]:
        """Yield what holds the output of a group back, of each of its sinks."""
        contents, output = self._found.contents[group], self._recomputation.output
        for declared in self._found.parts[group].sinks:
            if declared.group != group:
                continue
            sink = declared.open(spark, self._store)
            match output:
                case Into():
                    sink.claim()
                case Compare(key=key):
                    require_key(key, sink.shown(contents, spark), sink.owner.name)
            revision = sink.revised(contents, self._number)
            self._stack.callback(revision.drop)
            yield _Held(group=group, name=declared.spec.name, sink=sink, revision=revision)

    def _processed(
        self, group: GroupId, spark: SparkSession, revisions: Mapping[str, Revision]
    ) -> Iterator[Mapping[GroupPartition, Range]]:
        """Run the pipeline of a group over what the checkpoint has of it, and yield the ranges of each batch."""
        found, member = self._found, MemberId(group, 0)
        parts, ranges = found.parts[group], found.ranges[group]
        source = Source(
            region=self._recomputation.region,
            region_id=found.region.region_id,
            member=member,
            kafka=connector_settings(self._recomputation.region, member, parts.kafka),
            options=self._reading,
            fetch=fetch_for(f"group {group}", len(ranges), executor_memory(spark)),
            ends_within=self._times.process_end_limit,
            login=advice(parts.kafka, in_spark=True),
        )
        engine = SparkEngine(
            spark,
            parts.pipeline,
            source,
            lambda call: {name: SinkOfBatch(revision, call) for name, revision in revisions.items()},
        )
        size, backlog = BatchSize.first(bounded_limits_of(found.spec)), Backlog(ranges)
        while batch := backlog.take(size.records):
            records, began = sum(r.to - r.from_ for r in batch.values()), time.monotonic()
            self._require_going_on()
            self._process(engine, member, batch)
            size = size.after(records, time.monotonic() - began)
            _LOG.info("group %s: %d offsets recomputed", group, records)
            yield batch

    def _process(self, engine: SparkEngine, member: MemberId, ranges: Mapping[GroupPartition, Range]) -> None:
        checkpoint = self._found.checkpoint
        call = BatchCall(
            region=self._recomputation.region,
            member=member,
            batch=BatchId(uuid.uuid4().hex),
            epoch=self._found.region.epoch,
            timeline=checkpoint.timeline,
            sequence=checkpoint.sequence,
            ranges=ranges,
            progress=EMPTY,
            boundary=checkpoint.boundary,
        )
        with self._lock:
            self._running = engine, call.batch, time.monotonic()
        try:
            report = engine.run(call)
        except KcrError:
            self._require_going_on()
            raise
        finally:
            with self._lock:
                self._running = None
        for warning in report.warnings:
            _LOG.warning("%s", warning)

    def _require_going_on(self) -> None:
        """Raise why the recomputation was cancelled, if it was."""
        if self._refusal is not None:
            raise self._refusal

    def _renew(self) -> None:
        """Say again and again that it lives; cancel it where it does not count any more, or a batch takes too long."""
        while not self._over.wait(_RENEWALS):
            try:
                self._recomputation.renew()
            except RefusedError as error:
                self._cancel(error)
                return
            except StoreError as error:
                _LOG.warning("the store could not be told that the recomputation lives, it is tried again: %s", error)
            with self._lock:
                running = self._running
            if running is not None and time.monotonic() - running[2] > self._times.batch.total_seconds():
                limit = f"{self._times.batch.total_seconds():g} s"
                self._cancel(BatchFailed(f"a batch took longer than {limit} (batch.timeout); nothing was replaced"))
                return

    def _cancel(self, why: KcrError) -> None:
        self._refusal = why
        with self._lock:
            running = self._running
        if running is not None:
            running[0].cancel(running[1])
