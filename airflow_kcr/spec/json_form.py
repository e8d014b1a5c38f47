"""A spec as plain values and back: what the store holds, and the last step of reading a file.

One decoder for both. It reports the shape's findings and those of the checks together, each once; a place that had to
be mended to read the rest is reported for that alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_kcr.errors import SpecError
from airflow_kcr.protocol.durations import format_duration
from airflow_kcr.protocol.rules import RetentionRules
from airflow_kcr.protocol.start_positions import format_start
from airflow_kcr.protocol.timeout_checks import setting_name
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.spec.document import FOREVER_WORD
from airflow_kcr.spec.findings import path_text
from airflow_kcr.spec.model import FOREVER, BatchSpec, CheckpointSpec, GroupSpec, HistorySpec, RegionSpec
from airflow_kcr.spec.shape import shaped
from airflow_kcr.spec.sinks import SinkKind, SinkSpec

if TYPE_CHECKING:
    from airflow_kcr.spec.document import GroupDocument, RegionDocument

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
