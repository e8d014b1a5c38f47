"""Reset targets: where a person sends the partitions in scope.

Eleven kinds: `to-checkpoint`, `to-initial` and `to-run` are ours; the other eight are those of
`kafka-consumer-groups --reset-offsets`, with Kafka's meaning wherever it has one. A target is a value: it is stored
with the reset, resolved for the plan, and resolved again when it is applied. What each resolves to is in
`target_resolution`, the stored form in `target_json`, which partitions it moves in `scopes`.

- Nothing is symbolic or local: instants have a zone, offsets are numbers >= 0.
- `needs` says what must have been read before a target can be resolved. `to-current` is the only one that depends on
  nothing but the checkpoint. Stored offsets need the log too, not to be found but to know that they can still be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

from airflow_kcr.errors import ConfigurationError, InvalidTarget, NumberOutOfRange, OverlappingOffsets
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.scopes import EVERYTHING, Scope, parse_scope
from airflow_kcr.protocol.values import (
    MAX_NUMBER,
    CheckpointNumber,
    GroupId,
    GroupPartition,
    Offset,
    TopicName,
    checked_instant,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)

if TYPE_CHECKING:
    from datetime import datetime, timedelta

__all__ = [
    "EVERYTHING",
    "ByDuration",
    "FromFile",
    "Needs",
    "Scope",
    "ShiftBy",
    "Target",
    "TargetKind",
    "ToCheckpoint",
    "ToCurrent",
    "ToDatetime",
    "ToEarliest",
    "ToInitial",
    "ToLatest",
    "ToOffset",
    "ToRun",
    "describe",
    "parse_scope",
    "parse_target",
]


class TargetKind(StrEnum):
    """The name of a target: its command line option without the dashes."""

    TO_CHECKPOINT = "to-checkpoint"
    TO_INITIAL = "to-initial"
    TO_RUN = "to-run"
    TO_EARLIEST = "to-earliest"
    TO_LATEST = "to-latest"
    TO_DATETIME = "to-datetime"
    BY_DURATION = "by-duration"
    SHIFT_BY = "shift-by"
    TO_OFFSET = "to-offset"
    TO_CURRENT = "to-current"
    FROM_FILE = "from-file"


class Needs(Flag):
    """What has to be read before a target can be resolved."""

    NOTHING = 0
    """The positions of the checkpoint are enough."""

    LOG_BOUNDS = 1
    """Log start and end of every partition in scope."""

    TIME_INDEX = 2
    """The offset at one instant, see `target_resolution.times_needed`."""

    CHECKPOINT = 4
    """The offsets of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToCheckpoint:
    """The merge of a checkpoint; what it lacks goes to an earlier checkpoint's place, else to its initial offset."""

    kind: ClassVar = TargetKind.TO_CHECKPOINT
    needs: ClassVar = Needs.CHECKPOINT | Needs.LOG_BOUNDS

    sequence: CheckpointNumber

    def __post_init__(self) -> None:
        _whole(self.sequence, self.kind, "a checkpoint's sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToInitial:
    """The stored initial offset of each partition: everything the region has ever read."""

    kind: ClassVar = TargetKind.TO_INITIAL
    needs: ClassVar = Needs.LOG_BOUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ToRun:
    """The newest complete current checkpoint that answered a request id of a DAG run; the caller finds it."""

    kind: ClassVar = TargetKind.TO_RUN
    needs: ClassVar = Needs.CHECKPOINT | Needs.LOG_BOUNDS

    dag_id: str
    run_id: str

    def __post_init__(self) -> None:
        if not self.dag_id or not self.run_id or "/" in self.dag_id:
            raise InvalidTarget(f"--{self.kind} needs DAG/RUN, got {self.dag_id!r} and {self.run_id!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToEarliest:
    """The log start."""

    kind: ClassVar = TargetKind.TO_EARLIEST
    needs: ClassVar = Needs.LOG_BOUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ToLatest:
    """The log end: the last stable offset, never the high watermark."""

    kind: ClassVar = TargetKind.TO_LATEST
    needs: ClassVar = Needs.LOG_BOUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDatetime:
    """The first record at or after an instant of the past; the log end if there is none."""

    kind: ClassVar = TargetKind.TO_DATETIME
    needs: ClassVar = Needs.TIME_INDEX | Needs.LOG_BOUNDS

    instant: datetime
    """Given in any zone, kept in UTC: equal instants are equal values, also where local clocks were turned back."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "instant", checked_instant(self.instant))
        except ConfigurationError as error:
            raise InvalidTarget(f"--{self.kind}: {error.message}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDuration:
    """The first record at or after this long before the log is read; the log end if there is none."""

    kind: ClassVar = TargetKind.BY_DURATION
    needs: ClassVar = Needs.TIME_INDEX | Needs.LOG_BOUNDS

    back: timedelta
    """>= 0."""

    def __post_init__(self) -> None:
        try:
            format_duration(self.back)
        except ConfigurationError as error:
            raise InvalidTarget(f"--{self.kind}: {error.message}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftBy:
    """The current position moved by a number of offsets, clamped into the log."""

    kind: ClassVar = TargetKind.SHIFT_BY
    needs: ClassVar = Needs.LOG_BOUNDS

    by: int
    """Negative: back, to process again; positive: forward, to skip."""

    def __post_init__(self) -> None:
        _whole(abs(self.by), self.kind, "a number of offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToOffset:
    """One offset for every partition in scope, clamped into each log."""

    kind: ClassVar = TargetKind.TO_OFFSET
    needs: ClassVar = Needs.LOG_BOUNDS

    offset: Offset

    def __post_init__(self) -> None:
        _whole(self.offset, self.kind, "an offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToCurrent:
    """The current position: a new timeline without moving anything."""

    kind: ClassVar = TargetKind.TO_CURRENT
    needs: ClassVar = Needs.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class FromFile:
    """The offsets of a reset CSV, clamped into each log; partitions that the file lacks keep their position."""

    kind: ClassVar = TargetKind.FROM_FILE
    needs: ClassVar = Needs.LOG_BOUNDS

    entries: OffsetMap
    """What `offsets.read_offsets` has found; at least one."""

    def __post_init__(self) -> None:
        if not self.entries:
            raise InvalidTarget(f"--{self.kind}: there is no offset in it")


Target = (
    ToCheckpoint
    | ToInitial
    | ToRun
    | ToEarliest
    | ToLatest
    | ToDatetime
    | ByDuration
    | ShiftBy
    | ToOffset
    | ToCurrent
    | FromFile
)

_PLAIN: Final[dict[TargetKind, Target]] = {
    target.kind: target for target in (ToInitial(), ToEarliest(), ToLatest(), ToCurrent())
}
"""The targets that have no value."""


def parse_target(kind: str, value: str | None = None) -> Target:
    """Return the target that a command line option says.

    Args:
        kind: the option without its dashes. A `from-file` target is built from the file's entries instead.
        value: the option's value; None for the options that have none.

    Raises:
        InvalidTarget: there is no such option, its value is missing or too much, or can't be read.
    """
    try:
        known = TargetKind(kind)
    except ValueError:
        raise InvalidTarget(f"{kind!r} is not a target: use one of {', '.join(TargetKind)}") from None
    if known in _PLAIN:
        if value is not None:
            raise InvalidTarget(f"--{known} has no value, got {value!r}")
        return _PLAIN[known]
    if value is None:
        raise InvalidTarget(f"--{known} needs a value")
    try:
        return _with_value(known, value)
    except InvalidTarget:
        raise
    except ConfigurationError as error:
        raise InvalidTarget(f"--{known}: {error.message}") from None


def describe(target: Target) -> str:
    """Return a target in words, for plans and events: its option's name and its value."""
    match target:
        case ToCheckpoint(sequence=value) | ShiftBy(by=value) | ToOffset(offset=value):
            return f"{target.kind} {value}"
        case ToRun(dag_id=dag_id, run_id=run_id):
            return f"{target.kind} {dag_id}/{run_id}"
        case ToDatetime(instant=instant):
            return f"{target.kind} {format_instant(instant)}"
        case ByDuration(back=back):
            return f"{target.kind} {format_duration(back)}"
        case FromFile(entries=entries):
            return f"{target.kind} of {len(entries)} partition(s)"
        case _:
            return str(target.kind)


def _with_value(kind: TargetKind, value: str) -> Target:
    match kind:
        case TargetKind.TO_CHECKPOINT:
            return ToCheckpoint(sequence=CheckpointNumber(_integer(value, kind)))
        case TargetKind.TO_RUN:
            # A dag_id has no slash in it; a run_id may.
            dag_id, _, run_id = value.partition("/")
            return ToRun(dag_id=dag_id, run_id=run_id)
        case TargetKind.TO_DATETIME:
            return ToDatetime(instant=parse_instant(value))
        case TargetKind.BY_DURATION:
            return ByDuration(back=parse_duration(value))
        case TargetKind.SHIFT_BY:
            return ShiftBy(by=_integer(value, kind))
        case TargetKind.TO_OFFSET:
            return ToOffset(offset=Offset(_integer(value, kind)))
        case _:
            raise InvalidTarget(f"--{kind} is read from a file, not from {value!r}")


def _integer(text: str, kind: TargetKind) -> int:
    digits = text[1:] if text[:1] in {"-", "+"} else text
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidTarget(f"--{kind} needs a whole number, got {text!r:.60}")
    if len(digits.lstrip("0")) > len(str(MAX_NUMBER)):
        raise InvalidTarget(f"--{kind} needs a number of at most {MAX_NUMBER}, got {text:.60}")
    return int(text)


def _whole(number: int, kind: TargetKind, what: str) -> None:
    """Refuse what the store could not hold."""
    if not 0 <= number <= MAX_NUMBER:
        raise InvalidTarget(f"--{kind} needs {what} between 0 and {MAX_NUMBER}, got {number}")


# Reset targets as JSON, both ways: how they are stored with the reset.
#
# One object: `kind` and the target's own fields, which are texts, integers, or the list of a file's entries. Texts are
# the canonical ones of `values`. Nothing is formatted by locale: a number of a thousand and
# more would get separators, and could not be read again.

_TEXT: Final = {TargetKind.TO_DATETIME: "instant", TargetKind.BY_DURATION: "duration"}


def target_to_json(target: Target) -> dict[str, object]:
    """Return `target` as an object that `json` writes as it is; `target_from_json` of it is `target` again."""
    value: dict[str, object] = {}
    match target:
        case ToCheckpoint(sequence=sequence):
            value = {"sequence": int(sequence)}
        case ToRun(dag_id=dag_id, run_id=run_id):
            value = {"dag_id": dag_id, "run_id": run_id}
        case ToDatetime(instant=instant):
            value = {_TEXT[target.kind]: format_instant(instant)}
        case ByDuration(back=back):
            value = {_TEXT[target.kind]: format_duration(back)}
        case ShiftBy(by=by):
            value = {"by": int(by)}
        case ToOffset(offset=offset):
            value = {"offset": int(offset)}
        case FromFile(entries=entries):
            value = {"entries": [[str(p.group), str(p.topic), p.partition, int(o)] for p, o in entries.items()]}
        case _:
            pass
    return {"kind": str(target.kind), **value}


def target_from_json(document: object) -> Target:
    """Return the target that `target_to_json` has written.

    Raises:
        InvalidTarget: the document is not of that form: an unknown kind, or a field that is missing, of another type,
            too much, or without meaning.
    """
    target: Target | None = None
    match document:
        case {"kind": "to-checkpoint", "sequence": int(number), **rest} if _only(rest, number):
            target = ToCheckpoint(sequence=CheckpointNumber(number))
        case {"kind": "to-run", "dag_id": str(dag_id), "run_id": str(run_id), **rest} if _only(rest):
            target = ToRun(dag_id=dag_id, run_id=run_id)
        case {"kind": "shift-by", "by": int(number), **rest} if _only(rest, number):
            target = ShiftBy(by=number)
        case {"kind": "to-offset", "offset": int(number), **rest} if _only(rest, number):
            target = ToOffset(offset=Offset(number))
        case {"kind": "from-file", "entries": list(entries), **rest} if _only(rest):
            target = FromFile(entries=offsets_listed(entries))
        case {"kind": str(kind), **rest}:
            target = _by_text(kind, rest)
    if target is None:
        raise _not_stored(document)
    return target


def _by_text(kind: str, fields: dict[object, object]) -> Target | None:
    """Return a target whose value is one text, or that has none."""
    match [*fields.items()]:
        case []:
            return parse_target(kind)
        case [(name, str(value))] if kind in _TEXT and name == _TEXT[TargetKind(kind)]:
            return parse_target(kind, value)
    return None


def offsets_listed(rows: list[object]) -> OffsetMap:
    """Return the offsets of `[group, topic, partition, offset]` rows.

    Raises:
        InvalidTarget: a row is not of that form, or two are about one partition.
    """
    pairs: list[tuple[GroupPartition, Offset]] = []
    for row in rows:
        match row:
            case [str(group), str(topic), int(partition), int(offset)] if _only({}, partition, offset):
                pairs.append((GroupPartition(GroupId(group), TopicName(topic), partition), Offset(offset)))
            case _:
                raise _not_stored(row)
    try:
        return OffsetMap(pairs)
    except (NumberOutOfRange, OverlappingOffsets) as error:
        raise InvalidTarget(error.message) from None


def _only(rest: dict[object, object], *numbers: object) -> bool:
    """Whether nothing is left over and no "number" is a truth value, which Python takes for an integer."""
    return not rest and not any(isinstance(number, bool) for number in numbers)


def _not_stored(document: object) -> InvalidTarget:
    return InvalidTarget(f"not a stored target: {document!r:.200}")
