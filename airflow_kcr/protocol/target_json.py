"""Reset targets as JSON, both ways: how they are stored with the reset.

One object: `kind` and the target's own fields, which are texts, integers, or the list of a file's entries. Texts are
the canonical ones of `instants` and `durations`. Nothing is formatted by locale: a number of a thousand and more
would get separators, and could not be read again.
"""

from __future__ import annotations

from typing import Final

from airflow_kcr.errors import InvalidTarget, NumberOutOfRange, OverlappingOffsets
from airflow_kcr.protocol.durations import format_duration
from airflow_kcr.protocol.instants import format_instant
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.targets import (
    ByDuration,
    FromFile,
    ShiftBy,
    Target,
    TargetKind,
    ToCheckpoint,
    ToDatetime,
    ToOffset,
    ToRun,
    parse_target,
)
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, Offset, TopicName

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
            target = FromFile(entries=_entries(entries))
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


def _entries(rows: list[object]) -> OffsetMap:
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
