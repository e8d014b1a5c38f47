"""Exact ranges of a topic as a DataFrame (docs/explanation/decisions/consuming.md).

The read is bounded on both sides by offsets that the store has let begin, goes through the connector's V2 path, and
fails rather than leave a record out. Three things are not obvious:

- Only ranges with something in them are assigned: each further partition costs a task.
- If there are many small ranges, several are read by one task, one after the other. Rows and their order within a
  partition stay; the cost of a batch of few records at 200 partitions is less than half (docs, explanation of batches).
- Executors keep their Kafka consumers from batch to batch, by group id and partition. So the id is the same for all
  batches of a member, never the region's own, and another one as soon as any setting changes: the connector refuses
  two sets of settings under one id. They keep records that were fetched too far as well: of a topic that was deleted
  and created again, those of the old one would be read (seen). What follows that is a new timeline, so the id has it.
- A broker with a quota answers a fetch only if all its bytes fit into what the quota leaves of its last ten seconds. So
  a fetch is about as large as the ranges of the batch: of many large ones that want the same quota, few are answered.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.timeouts import LONGEST_STORE_GRACE
from airflow_kcr.protocol.values import GroupPartition, MemberId, Range, RegionId, RegionName, Timeline, checked_range
from airflow_kcr.settings import secrets_in
from airflow_kcr.spark.throttling import throttle_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_MIB: Final = 1 << 20

LARGEST_FETCH: Final = 4 * _MIB
"""Bytes of one partition that are fetched at a time: more is hardly faster."""

SMALLEST_FETCH: Final = _MIB // 256
"""Where that is all that a range needs, or Kafka throttles: under a quota of 1 kB/s two tasks still get one each while
a poll waits."""

FIRST_FETCH: Final = _MIB // 8
"""At first: it is nearly as fast as the largest, and of a quota of 250 kB/s eight partitions ask for four seconds."""

FETCH_GROWTH: Final = 32
"""By how much a fetch grows where a range is larger: each size has consumers of its own, which begin with nothing."""

RECORD: Final = 1_000
"""Bytes that a record is taken to have, where none is known."""

_FETCHES: Final = 2
"""In how many fetches a range should be read: records may be larger than the one that is known, or smaller."""

_WORTH: Final = 2
"""How many fetches of a size a partition must have brought before they grow to it.

What was fetched too far is thrown away then, and each partition fetches as much anew. Where there is a quota, the first
seconds are as fast as without, and say nothing of those that follow.
"""

_FIRST_FETCHES: Final = 80
"""In how many fetches each core reads its share of the first batch at least, where nothing was brought yet.

Fewer are faster, as the connector asks for the ends of the log after each poll. But there may be a quota, and a broker
counts over eleven seconds what it allows: where a fetch of each core is more than that, a core may wait for longer than
a poll does, and its task fails. So many let a batch take a quarter of an hour. One that takes longer is tried again by
Spark, or by the region, and then reads in small fetches.
"""

_FETCH: Final = "kafka.max.partition.fetch.bytes"

DEFAULTS: Final[Mapping[str, str]] = {
    "kafka.max.poll.records": "20000",
    _FETCH: str(LARGEST_FETCH),
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    "kafka.receive.buffer.bytes": "-1",
    "kafka.fetch.max.wait.ms": "1",
    "kafka.request.timeout.ms": "10000",
    "kafka.default.api.timeout.ms": "10000",
    "kafkaConsumer.pollTimeoutMs": "18000",
}
"""The connector's settings unless the user sets others; measured to be twice as fast as its own.

After each poll the connector asks the broker for both ends of the log, so few large polls are cheaper than many. It
asks behind the fetch that its client has sent already, which the broker holds for `fetch.max.wait.ms` at the end of the
log; nothing is gained by that, since what a batch reads is there. While a task works on a poll, the socket takes in the
next fetch: with a buffer that the system sizes (-1), all of it, with Kafka's own 64 KiB, next to nothing. Fetches are
smaller where the consumers of all partitions would fill an executor's memory (`fetch_within`), and for smaller ranges
(`fetch_of`).

The connector can't be interrupted while it waits for a broker (`WAITS`): these are the longest waits. A poll waits
longer than the eleven seconds over which a broker counts what a quota allows, or its first empty answer would be a
failure.
"""

WAITS: Final[Mapping[str, float]] = {
    "kafka.request.timeout.ms": 1 / 3,
    "kafka.default.api.timeout.ms": 1 / 3,
    "kafkaConsumer.pollTimeoutMs": 3 / 5,
}
"""What limits how long a batch waits for a broker that is away: a poll, then the ends of the log, or an admin's call.

Until then a cancelled batch goes on; with Kafka's own settings for a minute, and its process would end itself first
(`Timeouts.process_end_limit`). A poll and a call may follow each other, so each has at most this share of what a batch
has. An admin client takes no shorter timeout for a call than for a request.
"""

_SHARE: Final = 3
"""Of an executor's memory, consumers may hold one part in so many."""

_OF_CONSUMER: Final = 5 * _MIB // 2
"""What the consumer of a partition takes on an executor, without a record; measured."""

_OF_FETCH: Final = 3
"""How many fetches it holds at most, between batches too; measured."""

_SMALLEST_SHARE: Final = _MIB // 4

_EXACT: Final[Mapping[str, str]] = {"failOnDataLoss": "true", "kafka.isolation.level": "read_committed"}
"""What makes a read exact; the only values that are accepted."""

_RANGES: Final = "a batch reads exactly the ranges that the store let begin; leave it out"
_REFUSED: Final[Mapping[str, str]] = {
    "assign": _RANGES,
    "subscribe": _RANGES,
    "subscribepattern": _RANGES,
    "startingoffsets": _RANGES,
    "endingoffsets": _RANGES,
    "startingtimestamp": _RANGES,
    "endingtimestamp": _RANGES,
    "startingoffsetsbytimestamp": _RANGES,
    "endingoffsetsbytimestamp": _RANGES,
    "startingoffsetsbytimestampstrategy": _RANGES,
    "failondataloss": "a record that can't be read must fail the batch; leave it out",
    "kafka.isolation.level": "ends of logs are last stable offsets, so aborted records must not be read; leave it out",
    "kafka.group.id": "executors keep consumers by it, so it is made from the region, the member and the settings",
    "groupidprefix": "executors keep consumers by the group id, so it is made from region, member and settings",
    "kafka.auto.offset.reset": "positions come from the store; leave it out",
    "kafka.enable.auto.commit": "Kafka is committed only at checkpoints, by the region; leave it out",
    "kafka.key.deserializer": "the connector hands on bytes; decode them in the pipeline",
    "kafka.value.deserializer": "the connector hands on bytes; decode them in the pipeline",
    "kafka.interceptor.classes": "an interceptor could drop or change records; do that in the pipeline",
}

REFUSED_BY_NAME: Final = (
    "it holds a secret, which the command line would show; write it into the kafka settings of the spec as "
    "${NAME}, or into the connection that kafka_conn_id names"
)
"""Why an option of the connector is refused, and what to write instead."""

_REMEMBERED: Final = 60.0
"""Seconds for which Kafka is taken to throttle after it was seen to."""

_RECORDS_PER_TASK: Final = 20_000
"""Below this, a task costs more than it works."""

_TASKS_PER_CORE: Final = 2
"""Kept even for few records: pipelines do more with a record than read it, and ranges are not all alike."""

_PROCESS_KEY: Final = secrets.token_bytes(32)
"""Keys the hash of the settings, which may hold passwords: group ids are seen in logs. Made again by each process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where and how one member's batches are read; its settings may hold secrets, and are not shown.

    Args:
        region: for the executors' group id.
        region_id: likewise: the timelines of another region of the name begin anew, and a process may host both.
        member: likewise.
        kafka: client settings as Kafka's Java client names them (`bootstrap.servers`, `security.protocol`, …), secrets
            filled in, without the prefix `kafka.`.
        options: options of the connector, over `DEFAULTS`; those of the client have the prefix `kafka.`.
        fetch: how many bytes of a partition to fetch at a time at most, unless client or options say so.
        ends_within: how long a batch may go on after it was cancelled.
        record: how many bytes a record has, as far as is known by now.
        login: what to do where the brokers don't let an executor in.

    Raises:
        ConfigurationError: options or client settings that would make reads inexact, all of them by name; no server;
            options that hold a secret.
    """

    region: RegionName
    region_id: RegionId
    member: MemberId
    kafka: Mapping[str, str] = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    fetch: int = LARGEST_FETCH
    ends_within: timedelta = LONGEST_STORE_GRACE
    record: Callable[[], int] = field(default=lambda: RECORD, repr=False)
    login: str = ""

    def __post_init__(self) -> None:
        refused = _refusals(self._given())
        refused += tuple((name, f"is refused: {REFUSED_BY_NAME}") for name in secrets_in(self.options))
        if refused:
            lines = "\n".join(f"  {name}: {why}" for name, why in refused)
            raise ConfigurationError(f"{self.member} can't read Kafka with these settings:\n{lines}")
        if not self._settings().get("kafka.bootstrap.servers"):
            raise ConfigurationError(f"{self.member} can't read Kafka: bootstrap.servers is missing")

    def settings(self, timeline: Timeline) -> dict[str, str]:
        """Return the connector's options that are the same for all reads of a timeline."""
        return {**self._settings(), "kafka.group.id": self.executor_group(timeline)}

    def executor_group(self, timeline: Timeline) -> str:
        """The group id of the executors' consumers; they are assigned partitions, so no broker ever sees a group."""
        settings = json.dumps([self.region_id, sorted(self._settings().items())]).encode()
        digest = hashlib.blake2b(settings, key=_PROCESS_KEY, digest_size=6).hexdigest()
        return f"kcr-{self.region}-{self.member.group}-{self.member.index}-{timeline}-{digest}"

    def _given(self) -> Iterator[tuple[str, str]]:
        yield from ((f"kafka.{name}", value) for name, value in self.kafka.items())
        yield from self.options.items()

    def _waits(self) -> Iterator[tuple[str, str]]:
        limit = self.ends_within // timedelta(milliseconds=1)
        yield from ((name, str(min(int(limit * share), int(DEFAULTS[name])))) for name, share in WAITS.items())

    def _settings(self) -> dict[str, str]:
        # The connector's options know no case, so neither do overrides.
        merged: dict[str, tuple[str, str]] = {}
        for name, value in (
            *DEFAULTS.items(),
            (_FETCH, str(self.fetch)),
            *self._waits(),
            *self._given(),
            *_EXACT.items(),
        ):
            merged[name.lower()] = (name, value)
        return dict(merged.values())


def fetch_within(memory: int, partitions: int) -> int:
    """Return how many bytes of a partition to fetch at a time, so that all consumers fit into their share.

    Args:
        memory: of one executor, in bytes.
        partitions: how many it may read.

    Returns:
        At most `LARGEST_FETCH`; at least what is worth a request, whether or not that fits.
    """
    each = memory // _SHARE // max(partitions, 1)
    return min(max((each - _OF_CONSUMER) // _OF_FETCH, _SMALLEST_SHARE), LARGEST_FETCH)


def held(partitions: int, fetch: int) -> int:
    """Return how many bytes the consumers of so many partitions hold on an executor at most, with fetches of a size."""
    return partitions * (_OF_CONSUMER + _OF_FETCH * fetch)


def fetch_of(ranges: Collection[Range], record: int, most: int, before: int, first: int = FIRST_FETCH) -> int:
    """Return how many bytes of a partition to fetch at a time for these ranges: about half of what the widest has.

    Args:
        ranges: of a batch.
        record: how many bytes a record has.
        most: what an executor has memory for. If that is less than `LARGEST_FETCH`, there is none either for the
            consumers of several sizes, and all fetches have this one.
        before: how many records were read before.
        first: up to which size fetches need not have brought anything before.
    """
    fetch = SMALLEST_FETCH if most == LARGEST_FETCH else most
    wanted = record * max((range_.width for range_ in ranges), default=0) // _FETCHES
    brought = record * before // max(len(ranges), 1)
    while fetch < min(wanted, most) and (FETCH_GROWTH * fetch <= first or FETCH_GROWTH * fetch * _WORTH <= brought):
        fetch *= FETCH_GROWTH
    return min(max(fetch, min(first, wanted)), most)


def first_fetch(ranges: Collection[Range], record: int, cores: int) -> int:
    """Return up to which size fetches of a first batch need not have brought anything before; see `fetch_of`.

    Args:
        ranges: of the batch.
        record: how many bytes a record has.
        cores: how many tasks the application can run at a time.
    """
    share = record * sum(range_.width for range_ in ranges) // max(min(cores, len(ranges)), 1)
    return max(FIRST_FETCH, share // _FIRST_FETCHES)


def _refusals(options: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the options of the connector that a user may not give, each as (name, why); they know no case."""
    exact = {name.lower(): value for name, value in _EXACT.items()}
    return tuple(
        (name, f"is refused: {_REFUSED[name.lower()]}")
        for name, value in options
        if name.lower() in _REFUSED and str(value).lower() != exact.get(name.lower())
    )


def tasks_for(ranges: Mapping[GroupPartition, Range], cores: int) -> int:
    """Return how many tasks read these ranges: one for each, or fewer where they are many and small.

    Spark gives neighbours to one task, as many to each as it can. So the number is one by which that comes out even:
    of six ranges in four tasks, two tasks would have one and two would have two, and a core would wait for another.

    Args:
        ranges: at least one, none of them empty.
        cores: how many tasks the application can run at a time.
    """
    offsets = sum(range_.width for range_ in ranges.values())
    tasks = min(len(ranges), max(_TASKS_PER_CORE * cores, -(-offsets // _RECORDS_PER_TASK)))
    each = len(ranges) // tasks
    return -(-len(ranges) // each)


def offset_options(ranges: Mapping[GroupPartition, Range]) -> dict[str, str]:
    """Return the connector's options that say what to read: these ranges, none of which is empty."""
    assign: dict[str, list[int]] = {}
    begins: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for place, range_ in sorted(ranges.items()):
        assign.setdefault(place.topic, []).append(place.partition)
        begins.setdefault(place.topic, {})[str(place.partition)] = range_.from_
        ends.setdefault(place.topic, {})[str(place.partition)] = range_.to
    return {"assign": json.dumps(assign), "startingOffsets": json.dumps(begins), "endingOffsets": json.dumps(ends)}


class Reader:
    """Reads ranges of one source, one read at a time.

    Each option is a call to the JVM and an object there: those that stay the same are set once for a timeline and a
    size of fetches. That only grows within a timeline, with the batches: consumers of another size start with nothing
    of what was fetched. It grows no more while Kafka throttles.

    Args:
        spark: a session made by `session.member_session`, or reads would not go through V2.
        source: where and how to read.
    """

    def __init__(self, spark: SparkSession, source: Source) -> None:
        self._spark, self._source = spark, source
        self._told: tuple[Timeline, int, DataFrameReader] | None = None
        self._read = 0
        """Records, in the timeline so far."""

        self._grows_from = 0.0

    def read(self, ranges: Mapping[GroupPartition, Range], timeline: Timeline) -> DataFrame:
        """Return the records of these ranges; nothing is read yet.

        The columns are the connector's: key, value, topic, partition, offset, timestamp, timestampType.

        Args:
            ranges: at least one offset in all; empty ranges are left out.
            timeline: of the batch.

        Raises:
            NumberOutOfRange: a range is reversed, or none has an offset.
        """
        full = {place: range_ for place, range_ in ranges.items() if range_.width}
        for place, range_ in (full or ranges).items():
            checked_range(range_, place)
        frame = self._reader(full, timeline).options(**offset_options(full)).load()
        tasks = tasks_for(full, self._spark.sparkContext.defaultParallelism)
        return frame.coalesce(tasks) if tasks < len(full) else frame

    def throttled(self, ranges: Mapping[GroupPartition, Range], timeline: Timeline) -> float:
        """Return for how many seconds Kafka has put off a fetch like those of a batch, asked now; 0.0: it has not.

        Args:
            ranges: of the batch.
            timeline: likewise.

        Raises:
            Py4JError: Kafka doesn't answer, or Spark doesn't.
        """
        place, range_ = next(item for item in ranges.items() if item[1].width)
        fetch = SMALLEST_FETCH if self._told is None else self._told[1]
        options = replace(self._source, fetch=fetch).settings(timeline)
        seconds = throttle_time(self._spark, options, place, range_.from_)
        if seconds:
            self._grows_from = time.monotonic() + _REMEMBERED
        return seconds

    def _reader(self, ranges: Mapping[GroupPartition, Range], timeline: Timeline) -> DataFrameReader:
        told = self._told if self._told is not None and self._told[0] == timeline else None
        before = 0 if told is None else self._read
        self._read = before + sum(range_.width for range_ in ranges.values())
        throttled, record, widths = time.monotonic() < self._grows_from, self._source.record(), ranges.values()
        first = SMALLEST_FETCH if throttled else FIRST_FETCH
        if told is None and not throttled:
            first = first_fetch(widths, record, self._spark.sparkContext.defaultParallelism)
        fetch = fetch_of(widths, record, self._source.fetch, before, first)
        if told is not None and (fetch <= told[1] or throttled):
            return told[2]
        options = replace(self._source, fetch=fetch).settings(timeline)
        self._told = timeline, fetch, self._spark.read.format("kafka").options(**options)
        return self._told[2]
