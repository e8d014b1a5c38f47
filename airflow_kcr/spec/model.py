"""The region spec as values: the same fields as the file, frozen, and sound.

A `RegionSpec` that exists has no findings, whether a file was read or a program built it: its construction checks it
as a whole (`checks`). What the file leaves out has the default written here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from airflow_kcr.errors import SpecError
from airflow_kcr.kafka_settings import KafkaSettings
from airflow_kcr.protocol.delivery import Delivery, UpsertSink
from airflow_kcr.protocol.durations import format_duration
from airflow_kcr.protocol.rules import (
    Assignor,
    CheckpointMode,
    CheckpointRules,
    ForeignConsumerPolicy,
    GroupRules,
    OutOfRangePolicy,
    RegionRules,
    RetentionRules,
    Schedule,
)
from airflow_kcr.protocol.start_positions import EARLIEST, StartPosition, format_start
from airflow_kcr.protocol.timeout_checks import setting_name
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId, TopicName
from airflow_kcr.schedules import CronSchedule, Every
from airflow_kcr.spec.checks import findings_of
from airflow_kcr.spec.document import FOREVER_WORD
from airflow_kcr.spec.findings import path_text
from airflow_kcr.spec.shape import shaped
from airflow_kcr.spec.sinks import SinkKind, SinkSpec

if TYPE_CHECKING:
    from airflow_kcr.spec.document import GroupDocument, RegionDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """One consumer group of the region. It reads `topics`, or what matches `pattern`."""

    group_id: str
    pipeline: str
    """`module:function`, or `path/to/file.py:function`."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression that begins a topic's name: starts with `^`, and leaves the end open as librdkafka does."""

    members: int = 1
    start: StartPosition = EARLIEST
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    assignor: Assignor | None = None
    """None: `effective_assignor` chooses."""

    kafka: Mapping[str, str] | None = None
    """Client settings where this group's cluster is another one; they replace the region's altogether."""

    kafka_conn_id: str | None = None
    static_membership: bool = True
    sinks: tuple[SinkSpec, ...] = ()
    """Where its pipeline writes to; in the file a mapping of names."""

    def __post_init__(self) -> None:
        topics: object = self.topics  # a lone text, as no type checker would allow: else each letter is a topic
        object.__setattr__(self, "topics", (topics,) if isinstance(topics, str) else tuple(self.topics))
        object.__setattr__(self, "kafka", _settings(self.kafka))
        object.__setattr__(self, "sinks", tuple(sorted(self.sinks, key=lambda sink: sink.name)))

    @property
    def effective_assignor(self) -> Assignor:
        """How partitions are spread: as asked, else `range`, and `roundrobin` where `range` would pile them up.

        `range` spreads each topic by itself, so the first members get the first partitions of every topic.
        """
        if self.assignor is not None:
            return self.assignor
        return Assignor.RANGE if self.pattern is None and len(self.topics) == 1 else Assignor.ROUNDROBIN

    def rules(self) -> GroupRules:
        """Return what the protocol decides by."""
        return GroupRules(
            group_id=GroupId(self.group_id),
            topics=tuple(TopicName(topic) for topic in self.topics),
            pattern=self.pattern,
            members=self.members,
            delivery=self.delivery,
            start=self.start,
            assignor=self.effective_assignor,
            static_membership=self.static_membership,
            upserts=tuple(
                UpsertSink(GroupId(self.group_id), sink.name, sink.table or "")
                for sink in self.sinks
                if not sink.mode.restorable
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """When checkpoints are made: by one of `every`, `cron` and `records`, or only on request."""

    every: timedelta | None = None
    """Aligned to 1970-01-01T00:00Z."""

    cron: str | None = None
    records: int | None = None
    """Offsets counted from the restore point; only where the region has one member in total."""

    timezone: str = "UTC"
    """Whose clock `cron` goes by."""

    request: CheckpointMode = CheckpointMode.AUTO
    grace: timedelta = timedelta(seconds=2)
    catchup: bool = False

    @property
    def schedule(self) -> Schedule | None:
        """The instants of the boundaries; None: there are none."""
        if self.every is not None:
            return Every(self.every)
        return None if self.cron is None else CronSchedule(self.cron, self.timezone)

    def rules(self) -> CheckpointRules:
        """Return what the protocol decides by."""
        return CheckpointRules(
            schedule=self.schedule,
            records=self.records,
            mode=self.request,
            grace=self.grace,
            catchup=self.catchup,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """How large batches are, and how long one may take."""

    target: timedelta = timedelta(seconds=2)
    """How long a batch should take; its size adapts to that."""

    linger: timedelta = timedelta(0)
    """How long fewer than `min_records` are waited with, before a boundary or a checkpoint wants them."""

    min_records: int = 1_000
    max_records: int = 2_000_000
    timeout: timedelta = timedelta(minutes=2)


FOREVER: Final = timedelta.max
"""The age at which nothing of a history is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySpec:
    """When certified history leaves the store, and where it goes. No decision depends on it."""

    keep: timedelta = timedelta(days=90)
    """How old everything in a certificate must be before it may be closed; `FOREVER`: nothing ever is."""

    archive: str | None = None
    """The folder of the archive files; None: nothing is dropped, whatever its age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """A region as its owner wants it.

    Raises:
        SpecError: with everything that is wrong, each with its path.
    """

    region: str
    groups: tuple[GroupSpec, ...]
    kafka: Mapping[str, str] | None = None
    """librdkafka's settings, `${NAME}` unresolved; or `kafka_conn_id`."""

    kafka_conn_id: str | None = None
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    batch: BatchSpec = field(default_factory=BatchSpec)
    timeouts: Timeouts = field(default_factory=Timeouts)
    """All times; its `batch` is always `batch.timeout`, whatever it was given as."""

    max_failures: int = 5
    """How many failures in a row are answered by a reset; one more halts the region."""

    foreign_consumers: ForeignConsumerPolicy = ForeignConsumerPolicy.FAIL
    out_of_range: OutOfRangePolicy = OutOfRangePolicy.FAIL
    beyond_end: OutOfRangePolicy = OutOfRangePolicy.FAIL
    retention: RetentionRules = field(default_factory=RetentionRules)
    history: HistorySpec = field(default_factory=HistorySpec)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        object.__setattr__(self, "kafka", _settings(self.kafka))
        object.__setattr__(self, "timeouts", replace(self.timeouts, batch=self.batch.timeout))
        findings = tuple((path_text(path), text) for path, text in findings_of(self))
        if findings:
            raise SpecError(findings)

    def group(self, group_id: str) -> GroupSpec:
        """Return the group of that id.

        Raises:
            KeyError: the region has none.
        """
        for group in self.groups:
            if group.group_id == group_id:
                return group
        raise KeyError(group_id)

    def cluster_of(self, group_id: str) -> tuple[Mapping[str, str] | None, str | None]:
        """Return how a group's cluster is reached: its client settings or its connection id, the other being None.

        Raises:
            KeyError: the region has no such group.
        """
        group = self.group(group_id)
        if group.kafka is not None or group.kafka_conn_id is not None:
            return group.kafka, group.kafka_conn_id
        return self.kafka, self.kafka_conn_id

    def rules(self) -> RegionRules:
        """Return what the protocol decides by."""
        return RegionRules(
            groups={GroupId(group.group_id): group.rules() for group in self.groups},
            checkpoint=self.checkpoint.rules(),
            timeouts=self.timeouts,
            max_failures=self.max_failures,
            foreign_consumers=self.foreign_consumers,
            out_of_range=self.out_of_range,
            beyond_end=self.beyond_end,
            retention=self.retention,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values, defaults written out, so that a later default doesn't change it.

        What is None is left out; Kafka settings keep their references. `from_json` of it is equal to this.
        """
        return to_json(self)

    def to_json_text(self) -> str:
        """Return the one text of `to_json`: sorted keys, no spaces. Equal specs have equal texts."""
        return to_json_text(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str) -> Self:
        """Return the spec that JSON values, or a JSON text, say; what is left out has its default.

        Raises:
            SpecError: with everything that is wrong, each with its path.
        """
        return from_json(value, cls)


def _settings(settings: Mapping[str, str] | None) -> KafkaSettings | None:
    return None if settings is None else KafkaSettings(settings)


# A spec as plain values and back: what the store holds, and the last step of reading a file.
#
# One decoder for both. It reports the shape's findings and those of the checks together, each once; a place that had to
# be mended to read the rest is reported for that alone.

_S = TypeVar("_S", bound=RegionSpec)

TIMEOUT_NAMES: Final[Mapping[str, str]] = {
    field.name: setting_name(field.name).removeprefix("timeouts.")
    for field in fields(Timeouts)
    if field.name != "batch"
}
"""What the file calls each field of `Timeouts`; the one missing is `batch.timeout`."""


_TIMES: Final = ("timeouts", "batch.timeout", "batch.target")


def from_json(value: Mapping[str, Any] | str, kind: type[_S]) -> _S:
    """Return the spec that JSON values, or a JSON text, say.

    Args:
        value: as `to_json` or `to_json_text` gave it.
        kind: `RegionSpec`, or what a program derived from it.

    Raises:
        SpecError: with everything that is wrong.
    """
    if not isinstance(value, str):
        return decoded(value, kind)
    twice: list[tuple[str, str]] = []

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        again = sorted({name for name in names if names.count(name) > 1})
        twice.extend((name, "is there twice; only one of the two can count") for name in again)
        return dict(pairs)

    try:
        plain = json.loads(value, object_pairs_hook=made)
    except json.JSONDecodeError as error:
        problem = (f"line {error.lineno}, column {error.colno}", f"is not JSON: {error.msg}")
        raise SpecError((problem,)) from None
    except (RecursionError, ValueError):  # ValueError: a number with thousands of digits
        raise SpecError((("spec", "is nested too deeply, or has an endless number"),)) from None
    return decoded(plain, kind, refused=twice)


def decoded(
    value: object,
    kind: type[_S],
    lines: Mapping[str, int] | None = None,
    refused: Collection[tuple[str, str]] = (),
) -> _S:
    """Return the spec that plain values say.

    Args:
        value: as YAML or JSON give it.
        kind: as for `from_json`.
        lines: the line of each place, by its `path_text`, for the findings.
        refused: what is wrong with the text that the values come from, which may have left nothing in a place.

    Raises:
        SpecError: with everything that is wrong.
    """
    if value is None and refused:
        raise SpecError(tuple(refused))
    try:
        spec = _decoded(value, kind, lines or {}, frozenset(path for path, _ in refused))
    except SpecError as error:
        raise SpecError((*refused, *error.findings)) from None
    if refused:
        raise SpecError(tuple(refused))
    return spec


def _decoded(value: object, kind: type[_S], lines: Mapping[str, int], refused: frozenset[str]) -> _S:
    shape = shaped(value)
    found = [(path_text(path), text) for path, text in shape.findings]
    mended = [path for path, _ in found]
    # Where something was refused there may be nothing, which is no further finding.
    findings = [(path, text) for path, text in found if path not in refused]
    findings += _two_batch_timeouts(shape.document)
    spec = None
    try:
        spec = _built(shape.document, kind)
    except SpecError as error:
        findings += [finding for finding in error.findings if not _concerns(finding[0], mended)]
    if spec is None or findings:
        raise SpecError(_in_order(findings, lines)) from None
    return spec


def to_json(spec: RegionSpec) -> dict[str, Any]:
    """Return `spec` as JSON values (see `RegionSpec.to_json`)."""
    plain: dict[str, Any] = _without_none(
        {
            "region": spec.region,
            "kafka": spec.kafka,
            "kafka_conn_id": spec.kafka_conn_id,
            "groups": [_group_fields(group) for group in spec.groups],
            "checkpoint": _fields(spec.checkpoint),
            "batch": _fields(spec.batch),
            "timeouts": {name: getattr(spec.timeouts, field) for field, name in TIMEOUT_NAMES.items()},
            "max_failures": spec.max_failures,
            "foreign_consumers": spec.foreign_consumers,
            "out_of_range": spec.out_of_range,
            "beyond_end": spec.beyond_end,
            "retention": {"keep": spec.retention.keep, "for": spec.retention.max_age},
            "history": {"keep": _keep(spec.history), "archive": spec.history.archive},
        }
    )
    return plain


def to_json_text(spec: RegionSpec) -> str:
    """Return `spec` as its one JSON text (see `RegionSpec.to_json_text`)."""
    return json.dumps(to_json(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _built(document: RegionDocument, kind: type[_S]) -> _S:
    given = document.given()
    timeouts = document.timeouts.given()
    batch = document.batch.given()
    if "batch" in timeouts:
        batch.setdefault("timeout", timeouts.pop("batch"))
    return kind(
        **{
            **given,
            "groups": tuple(map(_group, document.groups)),
            "checkpoint": CheckpointSpec(**document.checkpoint.given()),
            "batch": BatchSpec(**batch),
            "timeouts": Timeouts(
                **{field: timeouts[name] for field, name in TIMEOUT_NAMES.items() if name in timeouts}
            ),
            "retention": RetentionRules(**document.retention.given()),
            "history": HistorySpec(**document.history.given()),
        }
    )


def _group(document: GroupDocument) -> GroupSpec:
    sinks = {name: sink.given() for name, sink in (document.sinks or {}).items()}
    return GroupSpec(**{**document.given(), "sinks": tuple(SinkSpec(name=name, **sinks[name]) for name in sinks)})


def _two_batch_timeouts(document: RegionDocument) -> list[tuple[str, str]]:
    one, other = document.timeouts.batch, document.batch.timeout
    if one is None or other is None or one == other:
        return []
    return [
        ("timeouts.batch", f"is {format_duration(one)}, and batch.timeout is {format_duration(other)}; leave it out")
    ]


def _concerns(path: str, mended: Iterable[str]) -> bool:
    """Whether a finding of the checks is about a place that was mended, so that its reader has nothing of it."""
    places = list(mended)
    if any(path == place or path.startswith((f"{place}.", f"{place}[")) for place in places):
        return True
    # A clash names two times; the one that it isn't filed under may be the one that was mended.
    return path.startswith(_TIMES) and any(place.startswith(_TIMES) for place in places)


def _in_order(findings: list[tuple[str, str]], lines: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    """Return the findings with their lines, in the order of the file."""
    placed = sorted(((_line(path, lines), path, text) for path, text in findings), key=lambda each: each[0])
    return tuple((path, f"line {line}: {text}" if line else text) for line, path, text in placed)


def _line(path: str, lines: Mapping[str, int]) -> int:
    """Return the line of `path`, or of the nearest place around it that has one; 0 for what is nowhere."""
    while path and path not in lines:
        path = re.sub(r"(?:^|[.\[])[^.\[]*\Z", "", path)
    return lines.get(path, 0)


def _group_fields(group: GroupSpec) -> dict[str, Any]:
    sinks = {sink.name: _sink_fields(sink) for sink in group.sinks}
    return _fields(group) | {"start": format_start(group.start), "sinks": sinks or None}


def _sink_fields(sink: SinkSpec) -> dict[str, Any]:
    mode = sink.mode if sink.kind is SinkKind.POSTGRES else None
    return _fields(sink) | {"name": None, "key": sink.key or None, "mode": mode}


def _fields(value: GroupSpec | SinkSpec | CheckpointSpec | BatchSpec) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _keep(history: HistorySpec) -> timedelta | str:
    return FOREVER_WORD if history.keep == FOREVER else history.keep


def _without_none(value: Any) -> Any:  # noqa: ANN401 (any value of a spec)
    match value:
        case Mapping():
            return {name: _without_none(item) for name, item in value.items() if item is not None}
        case list() | tuple():
            return [_without_none(item) for item in value]
        case timedelta():
            return format_duration(value)
        case StrEnum():
            return value.value
        case _:
            return value
