"""Reset targets: where a person sends the partitions in scope.

Eleven classes: `to-checkpoint`, `to-initial` and `to-run` are ours; the other eight are those of
`kafka-consumer-groups --reset-offsets`, with Kafka's meaning wherever it has one. A target is a value: it is stored
with the reset, resolved for the plan, and resolved again when it is applied. Each class says all there is to say of
its target: its option and help, its text, the field of a form that has its value, what has to be read for it, and
where it sends one partition. `TARGETS` is the list from which the command line, the form in Airflow, the console and
docs/reference/targets.md are made.

- A target is its text, `to-offset 120`, wherever it is written down.
- Nothing is symbolic or local: instants have a zone, offsets are numbers >= 0.
- `needs_logs`, `needs_time` and `needs_checkpoint` say what must have been read before a target can be resolved.
  `to-current` is the only one that depends on nothing but the checkpoint. Stored offsets need the log too, not to be
  found but to know that they can still be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Self

from airflow_kcr.errors import ConfigurationError, InvalidTarget
from airflow_kcr.protocol import values
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry, SeekMap, SeekSource, read_offsets, write_offsets
from airflow_kcr.protocol.rules import at_offset, at_time
from airflow_kcr.protocol.values import GroupPartition, Offset, few, format_instant

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime, timedelta

    from airflow_kcr.protocol.observations import LogView
    from airflow_kcr.protocol.scopes import Scope


_LARGEST: Final = 2**53 - 1
"""The largest number of a field: a browser would round one above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a target is resolved against.

    The checkpoint's positions, what is stored, and the logs, all given by the caller.
    """

    partitions: Collection[GroupPartition]
    """Every partition of the region."""

    current: OffsetMap
    """Their positions at the checkpoint; for a forced reset, the last done ones. One never claimed has none."""

    initial: OffsetMap
    """Their stored initial offsets."""

    log: LogView
    """What the target needs of the logs; log bounds beyond that are used to report what is unreachable."""

    checkpoint: OffsetMap | None = None
    """The offsets of the target checkpoint; None for targets that name none."""

    fills: SeekMap = field(default_factory=lambda: SeekMap({}))
    """What fills the gaps of a checkpoint, before the initial offsets do."""

    recreated: Collection[GroupPartition] = ()
    """Partitions whose log is of another topic than everything that is stored: only the log itself names a place."""

    def position(self, partition: GroupPartition) -> Offset | None:
        """Return where the partition stands: its position, else where its first owner would begin."""
        return self.current.get(partition, self.initial.get(partition))


class Target:
    """Where a person sends the partitions in scope."""

    __slots__ = ()

    option: ClassVar[str]
    """The name of its option on the command line, without the dashes."""

    help: ClassVar[str]
    metavar: ClassVar[str] = ""
    """What stands for its value in the help; empty: it has no value."""

    wanted: ClassVar[str] = "no value"
    """What its value has to be, in words."""

    label: ClassVar[str]
    """How it is named in a list of targets to choose from."""

    form_field: ClassVar[str] = ""
    """The name of the field of a form that has its value; empty: it has no value."""

    schema: ClassVar[Mapping[str, object]] = {}
    """The JSON schema of that field, which refuses as much as can be known without the region."""

    needs_logs: ClassVar[bool] = True
    """Whether log start and end of every partition in scope have to be read first."""

    needs_time: ClassVar[bool] = False
    """Whether the offset at one instant has to be looked up first, see `time_needed`."""

    needs_checkpoint: ClassVar[bool] = False
    """Whether the offsets of a checkpoint have to be read first."""

    is_stored: ClassVar[bool] = False
    """Whether its places are promises about what was processed, which are never clamped."""

    takes_in_later: ClassVar[bool] = False
    """Whether a partition that is found after a reset was accepted goes there too: back to its beginning.

    A stored place speaks for the whole region: a checkpoint does not have that partition, so what was read of it since
    is undone with the rest, in the sinks as well. A computed place was shown for the partitions of the plan; a later
    one may be behind it, and would step over records that no plan has shown.
    """

    @classmethod
    def of_value(cls, value: str) -> Self:
        """Return the target with the value of its option; only for those that have one.

        Raises:
            ConfigurationError: it can't be read.
        """
        raise InvalidTarget(f"--{cls.option} has no value, got {value!r}")

    @classmethod
    def from_text(cls, text: str) -> Target:
        """Return the target of a `text`.

        Raises:
            InvalidTarget: it is the text of none.
        """
        option, space, value = text.partition(" ")
        return parse_target(option, value if space else None)

    @property
    def value(self) -> str:
        """The value of its option; empty: it has none."""
        return ""

    @property
    def text(self) -> str:
        """The one text of the target, from which `from_text` makes it again."""
        return f"{self.option} {self.value}" if self.metavar else self.option

    def __str__(self) -> str:
        """Return the target in words, for plans and events."""
        return self.text

    def entry(self, partition: GroupPartition, situation: Situation) -> SeekEntry | None:
        """Return where a partition in scope goes.

        None: to its initial offset; without one its entry stays open for its first owner.
        """
        raise NotImplementedError

    def goes_back(self, partition: GroupPartition, current: Offset) -> bool:
        """Return whether a partition may go back from where it is, as far as that is known before its log is read."""
        return True

    def time_needed(self, read_at: datetime) -> datetime | None:
        """Return the instant whose offsets must be looked up, in UTC; None: no look-up is needed.

        Args:
            read_at: the store's clock when the logs are read, as it will be in the log view.

        Raises:
            InvalidTarget: the instant is after `read_at`.
        """
        return None

    def anchored(self, now: datetime) -> Target:
        """Return the target with a duration replaced by the instant that it means now.

        Members read their logs at different moments; all of them have to use the same instant.
        """
        return self

    def names(self, partition: GroupPartition) -> bool:
        """Return whether it says where a partition goes; where it doesn't, the partition keeps its position."""
        return True

    def require_fit(self, partitions: Collection[GroupPartition], scope: Scope) -> None:
        """Refuse a target that names partitions which are not in the region, or out of the scope.

        Raises:
            InvalidTarget: with those partitions.
        """


class _OfCheckpoint(Target):
    """A target whose places a checkpoint holds."""

    __slots__ = ()

    needs_checkpoint = is_stored = takes_in_later = True

    def entry(self, partition: GroupPartition, situation: Situation) -> SeekEntry | None:
        checkpoint = situation.checkpoint or EMPTY
        if partition in checkpoint:
            return SeekEntry(offset=checkpoint[partition], source=SeekSource.MERGED)
        return situation.fills.get(partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToCheckpoint(_OfCheckpoint):
    """The merge of a checkpoint; what it lacks goes to an earlier checkpoint's place, else to its initial offset."""

    option = "to-checkpoint"
    help = "The offsets of a checkpoint."
    metavar = "SEQUENCE"
    wanted = "the sequence of a checkpoint, such as 12"
    label = "A checkpoint"
    form_field = "checkpoint"
    schema: ClassVar = {"type": "integer", "minimum": 1, "maximum": _LARGEST}

    sequence: values.CheckpointNumber

    def __post_init__(self) -> None:
        _require_storable(self.sequence, self, "a checkpoint's sequence")

    @classmethod
    def of_value(cls, value: str) -> Self:
        return cls(sequence=values.CheckpointNumber(_integer(value, cls)))

    @property
    def value(self) -> str:
        return str(self.sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToRun(_OfCheckpoint):
    """The newest complete current checkpoint that answered a request id of a DAG run; the caller finds it."""

    option = "to-run"
    help = "The checkpoint that belongs to a DAG run."
    metavar = "DAG/RUN"
    wanted = "DAG/RUN, such as flights_checkpoint/scheduled__2026-01-01T10:00:00+00:00"
    label = "The checkpoint of a DAG run"
    form_field = "run"
    schema: ClassVar = {"type": "string", "pattern": r"^\s*[^/\s]+/\S"}

    dag_id: str
    run_id: str

    def __post_init__(self) -> None:
        if not self.dag_id or not self.run_id or "/" in self.dag_id:
            raise InvalidTarget(f"--{self.option} needs DAG/RUN, got {self.dag_id!r} and {self.run_id!r}")

    @classmethod
    def of_value(cls, value: str) -> Self:
        # A dag_id has no slash in it; a run_id may.
        dag_id, _, run_id = value.partition("/")
        return cls(dag_id=dag_id, run_id=run_id)

    @property
    def value(self) -> str:
        return f"{self.dag_id}/{self.run_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToInitial(Target):
    """The stored initial offset of each partition: everything the region has ever read."""

    option = "to-initial"
    help = "Where the region first started: reprocess everything."
    label = "Where the region first started"
    is_stored = takes_in_later = True

    def entry(self, partition: GroupPartition, situation: Situation) -> SeekEntry | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToCurrent(Target):
    """The current position: a new timeline without moving anything."""

    option = "to-current"
    help = "The present positions: nothing moves."
    label = "The present positions"
    needs_logs = False
    is_stored = True

    def entry(self, partition: GroupPartition, situation: Situation) -> SeekEntry | None:
        current = situation.current.get(partition)
        return None if current is None else SeekEntry(offset=current, source=SeekSource.EXPLICIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToEarliest(Target):
    """The log start."""

    option = "to-earliest"
    help = "The start of each log."
    label = "The start of each log"

    def entry(self, partition: GroupPartition, situation: Situation) -> SeekEntry | None:
        bounds = situation.log.bounds[partition]
        return at_offset(bounds.start, bounds, SeekSource.EXPLICIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToLatest(Target):
    """The log end: the last stable offset, never the high watermark."""

    option = "to-latest"
    help = "The end of each log."
    label = "The end of each log"

    def entry(self, partition: GroupPartition, situation: Situation) -> SeekEntry | None:
        bounds = situation.log.bounds[partition]
        return at_offset(bounds.end, bounds, SeekSource.EXPLICIT)

    def goes_back(self, partition: GroupPartition, current: Offset) -> bool:
        return False


class _ByTime(Target):
    """A target that the time index of the logs answers."""

    __slots__ = ()

    needs_time = True

    def entry(self, partition: GroupPartition, situation: Situation) -> SeekEntry | None:
        return at_time(partition, situation.log, SeekSource.EXPLICIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDatetime(_ByTime):
    """The first record at or after an instant of the past; the log end if there is none."""

    option = "to-datetime"
    help = "The first record at or after a past time, such as 2026-01-01T10:00:00Z."
    metavar = "TIME"
    wanted = "a past time, such as 2026-01-01T10:00"
    label = "A time"
    form_field = "time"
    schema: ClassVar = {
        "type": "string",
        "format": "date-time",
        "pattern": r"^\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3]):\d\d.*(Z|[+-]\d\d:\d\d)$",
    }

    instant: datetime
    """Given in any zone, kept in UTC: equal instants are equal values, also where local clocks were turned back."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "instant", values.checked_instant(self.instant))
        except ConfigurationError as error:
            raise InvalidTarget(f"--{self.option}: {error.message}") from None

    @classmethod
    def of_value(cls, value: str) -> Self:
        return cls(instant=values.parse_instant(value))

    @property
    def value(self) -> str:
        return format_instant(self.instant)

    def time_needed(self, read_at: datetime) -> datetime | None:
        if self.instant > read_at:
            raise InvalidTarget(f"{self} is in the future; it is {format_instant(read_at)} now")
        return self.instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDuration(_ByTime):
    """The first record at or after this long before the log is read; the log end if there is none."""

    option = "by-duration"
    help = "Back in time from now, such as 6h or PT6H."
    metavar = "DURATION"
    wanted = "a time back from now, such as 6h"
    label = "Back in time from now"
    form_field = "duration"
    schema: ClassVar = {
        "type": "string",
        "pattern": r"^\s*(P[0-9WDTHMS.,]+|([0-9]+(w|d|h|ms|us|m|s))+)\s*$",
        "examples": ["30m", "6h", "7d"],
    }

    back: timedelta
    """>= 0."""

    def __post_init__(self) -> None:
        try:
            values.format_duration(self.back)
        except ConfigurationError as error:
            raise InvalidTarget(f"--{self.option}: {error.message}") from None

    @classmethod
    def of_value(cls, value: str) -> Self:
        return cls(back=values.parse_duration(value))

    @property
    def value(self) -> str:
        return values.format_duration(self.back)

    def time_needed(self, read_at: datetime) -> datetime | None:
        return values.back_from(read_at, self.back)

    def anchored(self, now: datetime) -> Target:
        return ToDatetime(instant=values.back_from(now, self.back))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftBy(Target):
    """The current position moved by a number of offsets, clamped into the log."""

    option = "shift-by"
    help = "Forward by N offsets, or back if negative (-100)."
    metavar = "RECORDS"
    wanted = "a number of offsets, negative to go back, such as -100"
    label = "Forward or back by a number of offsets"
    form_field = "shift"
    schema: ClassVar = {"type": "integer", "minimum": -_LARGEST, "maximum": _LARGEST}

    by: int
    """Negative: back, to process again; positive: forward, to skip."""

    def __post_init__(self) -> None:
        _require_storable(abs(self.by), self, "a number of offsets")

    @classmethod
    def of_value(cls, value: str) -> Self:
        return cls(by=_integer(value, cls))

    @property
    def value(self) -> str:
        return str(self.by)

    def entry(self, partition: GroupPartition, situation: Situation) -> SeekEntry | None:
        position = situation.position(partition)
        if position is None or partition in situation.recreated:
            raise InvalidTarget(
                f"{partition} has no position in this log that could be shifted; leave it out of the scope"
            )
        # What was asked for is stored with the entry, and the store's numbers have an end.
        asked = min(position + self.by, values.MAX_NUMBER)
        return at_offset(asked, situation.log.bounds[partition], SeekSource.EXPLICIT)

    def goes_back(self, partition: GroupPartition, current: Offset) -> bool:
        return self.by < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToOffset(Target):
    """One offset for every partition in scope, clamped into each log."""

    option = "to-offset"
    help = "One offset for every partition."
    metavar = "OFFSET"
    wanted = "an offset, such as 1000"
    label = "One offset for every partition"
    form_field = "offset"
    schema: ClassVar = {"type": "integer", "minimum": 0, "maximum": _LARGEST}

    offset: Offset

    def __post_init__(self) -> None:
        _require_storable(self.offset, self, "an offset")

    @classmethod
    def of_value(cls, value: str) -> Self:
        return cls(offset=Offset(_integer(value, cls)))

    @property
    def value(self) -> str:
        return str(self.offset)

    def entry(self, partition: GroupPartition, situation: Situation) -> SeekEntry | None:
        return at_offset(self.offset, situation.log.bounds[partition], SeekSource.EXPLICIT)

    def goes_back(self, partition: GroupPartition, current: Offset) -> bool:
        return self.offset < current


@dataclass(frozen=True, slots=True, kw_only=True)
class FromFile(Target):
    """The offsets of a reset CSV, clamped into each log; partitions that the file lacks keep their position."""

    option = "from-file"
    help = "The offsets in a reset CSV from Kafka's tool or -o csv; - reads standard input."
    metavar = "FILE"
    wanted = "lines of GROUP,TOPIC,PARTITION,OFFSET, as kcr reset plan -o csv prints them"
    label = "The offsets of a file"
    form_field = "file"
    schema: ClassVar = {"type": "string", "format": "multiline", "pattern": r",\s*[0-9]+\s*$"}

    entries: OffsetMap
    """What `offsets.read_offsets` has found; at least one."""

    def __post_init__(self) -> None:
        if not self.entries:
            raise InvalidTarget(f"--{self.option}: there is no offset in it")

    @classmethod
    def of_value(cls, value: str) -> Self:
        return cls(entries=read_offsets(value))

    @property
    def value(self) -> str:
        return write_offsets(self.entries, with_group=True)

    def __str__(self) -> str:
        return f"{self.option} of {len(self.entries)} partition(s)"

    def entry(self, partition: GroupPartition, situation: Situation) -> SeekEntry | None:
        return at_offset(self.entries[partition], situation.log.bounds[partition], SeekSource.EXPLICIT)

    def goes_back(self, partition: GroupPartition, current: Offset) -> bool:
        return self.entries.get(partition, current) < current

    def names(self, partition: GroupPartition) -> bool:
        return partition in self.entries

    def require_fit(self, partitions: Collection[GroupPartition], scope: Scope) -> None:
        known = frozenset(partitions)
        strange = [p for p in self.entries if p not in known]
        if strange:
            raise InvalidTarget(f"the file names {few(strange)}, which the region does not have; nothing was used")
        outside = [p for p in self.entries if p not in scope]
        if outside:
            raise InvalidTarget(f"the file names {few(outside)}, out of the scope {scope}; nothing was used")


TARGETS: Final[tuple[type[Target], ...]] = (
    ToCheckpoint,
    ToRun,
    ToInitial,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToDatetime,
    ByDuration,
    ShiftBy,
    ToOffset,
    FromFile,
)
"""Every target, in the order in which they are offered."""


def target_named(option: str) -> type[Target]:
    """Return the target of an option.

    Args:
        option: its name without the dashes.

    Raises:
        InvalidTarget: there is none.
    """
    found = next((one for one in TARGETS if one.option == option), None)
    if found is None:
        names = ", ".join(one.option for one in TARGETS)
        raise InvalidTarget(f"{option!r} is not a target: use one of {names}")
    return found


def parse_target(option: str, value: str | None = None) -> Target:
    """Return the target that a command line option says.

    Args:
        option: its name without the dashes.
        value: its value; None for the options that have none. Of `from-file`, the text of the file.

    Raises:
        InvalidTarget: there is no such option, its value is missing or too much, or can't be read.
    """
    kind = target_named(option)
    if value is None and kind.metavar:
        raise InvalidTarget(f"--{option} needs a value")
    try:
        return kind() if value is None else kind.of_value(value)
    except InvalidTarget:
        raise
    except ConfigurationError as error:
        raise InvalidTarget(f"--{option}: {error.message}") from None


def _integer(text: str, kind: type[Target]) -> int:
    digits = text[1:] if text[:1] in {"-", "+"} else text
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidTarget(f"--{kind.option} needs a whole number, got {text!r:.60}")
    if len(digits.lstrip("0")) > len(str(values.MAX_NUMBER)):
        raise InvalidTarget(f"--{kind.option} needs a number of at most {values.MAX_NUMBER}, got {text:.60}")
    return int(text)


def _require_storable(number: int, target: Target, what: str) -> None:
    if not 0 <= number <= values.MAX_NUMBER:
        raise InvalidTarget(f"--{target.option} needs {what} between 0 and {values.MAX_NUMBER}, got {number}")
