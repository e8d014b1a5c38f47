"""Reads plain values into the file's shape, and goes on after what doesn't fit, so that every finding is there at once.

What doesn't fit is noted and taken out, or replaced where a field can't be absent; then the rest is read again. So the
later checks see a whole document, and must only keep silent about the places that were mended.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ValidationError

from airflow_kcr.errors import SpecError
from airflow_kcr.spec.document import (
    OWN_SENTENCE,
    BatchDocument,
    CheckpointDocument,
    GroupDocument,
    HistoryDocument,
    RegionDocument,
    RetentionDocument,
    SinkDocument,
    TimeoutsDocument,
)
from airflow_kcr.spec.findings import Finding, Path, path_text, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic_core import ErrorDetails

_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "groups": GroupDocument,
    "checkpoint": CheckpointDocument,
    "batch": BatchDocument,
    "timeouts": TimeoutsDocument,
    "retention": RetentionDocument,
    "history": HistoryDocument,
}
_SENTENCES: Final = {
    "missing": "is missing",
    "string_type": "must be a text; quote it",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "list_type": "must be a list: [a, b]",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of fields to values",
    "model_attributes_type": "must be a mapping of fields to values",
}
_SINK: Final = {
    "kind": "postgres",
    "table": "mended",
    "url": "${MENDED}",
    "conn_id": "mended",
    "path": "/mended",
    "factory": "m:f",
}
_SINK_DEPTH: Final = 4
"""Of `groups[0].sinks.name`."""

_ROUNDS: Final = 5
"""Each round mends all that the one before found; a mended place can hide one more, but not endlessly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """A document of the right shape, and what had to be mended for it to be one."""

    document: RegionDocument
    findings: tuple[Finding, ...]


def shaped(value: object) -> Shaped:
    """Return `value` as a document, with everything about its shape that is wrong.

    Args:
        value: plain values, as YAML or JSON give them; not changed.

    Raises:
        SpecError: it is no mapping at all, so that nothing else can be said about it.
    """
    if not isinstance(value, Mapping):
        what = "is empty" if value is None else "must be a mapping of fields to values"
        raise SpecError((("spec", f"{what}; it begins with `region: NAME`"),))
    mended: dict[str, Any] = copy.deepcopy(dict(value))
    findings = [Finding(path, "has no value; give it one, or leave it out") for path in _drop_empty(mended, ())]
    for _ in range(_ROUNDS):
        try:
            return Shaped(document=RegionDocument.model_validate(mended), findings=tuple(findings))
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
        seen = {finding.path for finding in findings}
        findings += [Finding(d["loc"], _sentence(d)) for d in details if d["loc"] not in seen]
        for detail in details:
            _mend(mended, detail)
    raise SpecError(tuple((path_text(path), text) for path, text in findings))


def _sentence(detail: ErrorDetails) -> str:
    kind, loc = detail["type"], detail["loc"]
    if kind == OWN_SENTENCE:
        return detail["msg"]
    if kind == "extra_forbidden":
        return unknown(str(loc[-1]), _fields_at(loc))
    return _SENTENCES.get(kind, "has the wrong type")


def _fields_at(path: Path) -> list[str]:
    model: type[BaseModel] = RegionDocument
    if _is_in_sink(path):
        model = SinkDocument
    elif len(path) > 1:
        model = _SECTIONS[str(path[0])]
    return [field.alias or name for name, field in model.model_fields.items()]


def _drop_empty(value: object, path: Path) -> Iterator[Path]:
    """Take fields without a value out, and yield where they were."""
    if isinstance(value, dict):
        for name in [name for name, item in value.items() if item is None]:
            del value[name]
            yield (*path, name)
        for name, item in value.items():
            yield from _drop_empty(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _drop_empty(item, (*path, index))


def _mend(document: Any, detail: ErrorDetails) -> None:  # noqa: ANN401 (any plain value)
    """Take out what `detail` is about, or put something harmless in its place."""
    *parents, last = detail["loc"]
    at = document
    for part in parents:
        at = at[part]
    if _is_in_sink(detail["loc"]):
        _mend_sink(at, detail["loc"])
    elif isinstance(last, int):
        at[last] = f"mended-{last}" if "topics" in parents else _group(last)
    elif last == "groups":
        at[last] = [_group(0)]
    elif last in {"region", "group_id", "pipeline"}:
        index = parents[-1] if parents else 0
        at[last] = _group(index).get(str(last), "mended")
    else:
        at.pop(last, None)


def _is_in_sink(path: Path) -> bool:
    """Whether `path` is a sink, `groups[0].sinks.name`, or beneath one."""
    return len(path) >= _SINK_DEPTH and (path[0], path[2]) == ("groups", "sinks")


def _mend_sink(at: Any, path: Path) -> None:  # noqa: ANN401 (any plain value)
    """Mend the last part of `path`, which is in `at`, so that nothing else seems to be wrong with the sink."""
    last = path[-1]
    if isinstance(last, int):
        at[last] = f"mended-{last}"
    elif len(path) == _SINK_DEPTH:
        at[last] = {name: _SINK[name] for name in ("kind", "table", "url")}
    elif last == "mode" and "key" in at:
        at[last] = "upsert"
    elif last == "kind" and "path" in at:
        at[last] = "files"
    elif last in _SINK:
        at[last] = _SINK[last]
    else:
        at.pop(last, None)


def _group(index: int | str) -> dict[str, Any]:
    return {
        "group_id": f"mended-{index}",
        "pipeline": "mended:mended",
        "topics": ["mended"],
        "kafka": {"bootstrap.servers": "mended"},
    }
