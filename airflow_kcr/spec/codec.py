"""Plain values, as YAML and JSON give them, become a spec, or everything that is wrong with them; and back.

A class of the spec declares its form; Pydantic reads it. What doesn't fit is noted and taken out, or replaced where a
field can't be absent; then the rest is read again. So the checks see a whole spec, and their findings are left out only
at the places that were mended: there the reader has nothing of them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from airflow_kcr.errors import ConfigurationError, SpecError
from airflow_kcr.protocol.values import format_duration, parse_duration
from airflow_kcr.spec.fields import OWN_SENTENCE, Finding, Path, declared, path_text, unknown
from airflow_kcr.spec.sinks import FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _typeshed import DataclassInstance
    from pydantic_core import ErrorDetails

_S = TypeVar("_S", bound="DataclassInstance")
_SENTENCES: Final = {
    "missing": "is missing",
    "string_type": "must be a text; quote it",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list: [a, b]",
    "dict_type": "must be a mapping of names to values",
    "dataclass_type": "must be a mapping of fields to values",
}
_ONE_OR_THE_OTHER: Final = {"url": "${MENDED}", "conn_id": "mended"}
"""Fields of a sink whose absence is found at another place than theirs."""

_SINK_DEPTH: Final = 4
"""Of `groups[0].sinks.name`."""

_ROUNDS: Final = 5
"""Each round mends all that the one before found; a mended place can hide one more, but not endlessly."""


_TIMES: Final = ("timeouts", "batch.timeout", "batch.target")


@cache
def _form(kind: type[_S]) -> TypeAdapter[_S]:
    """Return what reads and writes specs of a class, by the class's declaration."""
    return TypeAdapter(kind)


def to_plain(spec: DataclassInstance) -> dict[str, Any]:
    """Return a spec as JSON values, without what is None."""
    plain: dict[str, Any] = _form(type(spec)).dump_python(spec, mode="json", exclude_none=True)
    return plain


def from_text(text: str, kind: type[_S]) -> _S:
    """Return the spec that a JSON text says.

    Args:
        text: as `RegionSpec.to_json_text` gave it.
        kind: `RegionSpec`, or what a program derived from it.

    Raises:
        SpecError: with everything that is wrong.
    """
    twice: list[tuple[str, str]] = []

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        again = sorted({name for name in names if names.count(name) > 1})
        twice.extend((name, "is there twice; only one of the two can count") for name in again)
        return dict(pairs)

    try:
        plain = json.loads(text, object_pairs_hook=made)
    except json.JSONDecodeError as error:
        problem = (f"line {error.lineno}, column {error.colno}", f"is not JSON: {error.msg}")
        raise SpecError((problem,)) from None
    except (RecursionError, ValueError):  # ValueError: a number with thousands of digits
        raise SpecError((("spec", "is nested too deeply, or has an endless number"),)) from None
    return from_plain(plain, kind, refused=twice)


def from_plain(
    value: object,
    kind: type[_S],
    lines: Mapping[str, int] | None = None,
    refused: Collection[tuple[str, str]] = (),
) -> _S:
    """Return the spec that plain values say.

    Args:
        value: as YAML or JSON give it; not changed.
        kind: as for `from_text`.
        lines: the line of each place, by its `path_text`, for the findings.
        refused: what is wrong with the text that the values come from, which may have left nothing in a place.

    Raises:
        SpecError: with everything that is wrong.
    """
    if value is None and refused:
        raise SpecError(tuple(refused))
    try:
        spec = _read(value, kind, lines or {}, frozenset(path for path, _ in refused))
    except SpecError as error:
        raise SpecError((*refused, *error.findings)) from None
    if refused:
        raise SpecError(tuple(refused))
    return spec


def _read(value: object, kind: type[_S], lines: Mapping[str, int], refused: frozenset[str]) -> _S:
    if not isinstance(value, Mapping):
        what = "is empty" if value is None else "must be a mapping of fields to values"
        raise SpecError((("spec", f"{what}; it begins with `region: NAME`"),))
    plain: dict[str, Any] = copy.deepcopy(dict(value))
    spec, shape, checks = _validated(plain, kind)
    mended = [path_text(path) for path, _ in shape]
    # Where something was refused there may be nothing, which is no further finding.
    findings = [(path_text(path), text) for path, text in shape if path_text(path) not in refused]
    findings += [(path, text) for path, text in checks if not _concerns(path, mended)]
    if spec is None or findings:
        raise SpecError(_in_order(findings, lines))
    return spec


def _validated(plain: dict[str, Any], kind: type[_S]) -> tuple[_S | None, list[Finding], list[tuple[str, str]]]:
    """Mend `plain` until it has the shape of `kind`.

    Returns:
        What it then is, what had to be mended, and what is wrong with the rest, or with what it was mended with.

    Raises:
        SpecError: mending has no end.
    """
    shape = [Finding(path, "has no value; give it one, or leave it out") for path in _drop_empty(plain, ())]
    checks = _one_batch_timeout(plain)
    for _ in range(_ROUNDS):
        try:
            return _form(kind).validate_python(plain), shape, checks
        except SpecError as error:  # of the checks, which see a whole spec only
            return None, shape, [*checks, *error.findings]
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
        seen = {finding.path for finding in shape}
        shape += [Finding(d["loc"], _sentence(d, kind)) for d in details if d["loc"] not in seen]
        for detail in details:
            _mend(plain, detail)
    raise SpecError(tuple((path_text(path), text) for path, text in shape))


def _sentence(detail: ErrorDetails, kind: type[DataclassInstance]) -> str:
    error, loc = detail["type"], detail["loc"]
    if error == OWN_SENTENCE:
        return detail["msg"]
    if error in {"extra_forbidden", "unexpected_keyword_argument"}:
        return unknown(str(loc[-1]), _fields_around(loc, kind))
    return _SENTENCES.get(error, "has the wrong type")


def _fields_around(path: Path, kind: type[DataclassInstance]) -> list[str]:
    """Return what the file may have beside `path`."""
    for part in path[:-1]:
        field = declared(kind).get(str(part))
        kind = kind if field is None or field.section is None else field.section
    return list(declared(kind))


def _one_batch_timeout(plain: dict[str, Any]) -> list[tuple[str, str]]:
    """Read `timeouts.batch`, an earlier name, as `batch.timeout`; return what is wrong if both are given and differ."""
    times, batch = plain.get("timeouts"), plain.get("batch", {})
    if not isinstance(times, dict) or not isinstance(batch, dict) or "batch" not in times:
        return []
    given = times["batch"], batch.get("timeout", times["batch"])
    try:
        one, other = (parse_duration(text) for text in given if isinstance(text, str))
    except (ConfigurationError, ValueError):  # it has its finding where it is
        return []
    plain["batch"] = {**batch, "timeout": given[1]}
    del times["batch"]
    return [] if one == other else [two_batch_timeouts(one, other)]


def two_batch_timeouts(repeated: timedelta, timeout: timedelta) -> tuple[str, str]:
    """Return the place and the text of the finding that `timeouts.batch` differs from `batch.timeout`."""
    text = f"is {format_duration(repeated)}, and batch.timeout is {format_duration(timeout)}; leave it out"
    return "timeouts.batch", text


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
        at[last] = {"kind": next(iter(FIELDS))}
    elif last == "mode" and "key" in at:
        at[last] = "upsert"
    elif last == "kind":
        at[last] = max(FIELDS, key=lambda kind: len(at.keys() & FIELDS[kind]))
    elif last in _ONE_OR_THE_OTHER:
        at[last] = _ONE_OR_THE_OTHER[last]
    else:
        at.pop(last, None)


def _group(index: int | str) -> dict[str, Any]:
    return {
        "group_id": f"mended-{index}",
        "pipeline": "mended:mended",
        "topics": ["mended"],
        "kafka": {"bootstrap.servers": "mended"},
    }
