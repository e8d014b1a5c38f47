"""The API's answers as JSON: each says its facts, and one rule writes them.

- an instant is an ISO text in UTC, a duration its whole seconds, an enumeration its value;
- members, scopes and paths are texts as people write them;
- a named tuple is the list of its fields, another dataclass of the protocol the object of its fields.

What is read back has its own readers, as `PlanView.from_json`; what the store holds has its own form (`store.codec`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from pathlib import PurePath
from types import NoneType
from typing import Final

from airflow_kcr.protocol.instants import format_instant
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.scopes import Scope
from airflow_kcr.protocol.values import MemberId


class View:
    """An answer: what has a name in its facts is in its JSON; the rest is for people and stays out."""

    __slots__ = ()

    def facts(self) -> Mapping[str, object]:
        """Return what it says by the names of the JSON, as values; by itself every field."""
        return _fields(self)

    def to_json(self) -> dict[str, object]:
        """Return it as the commands write it with `-o json` (docs/reference/cli.md)."""
        return document_of(self.facts())


def document_of(facts: Mapping[str, object]) -> dict[str, object]:
    """Return facts as `json` writes them.

    Raises:
        TypeError: no rule says how a value is written; a mistake in the code, found by the first test that meets it.
    """
    return {name: value if type(value) in _PLAIN else _written(value) for name, value in facts.items()}


def run_of(requester: Requester) -> Mapping[str, str]:
    """Return the DAG run that has asked for something."""
    return {"dag_id": requester.dag_id, "run_id": requester.run_id}


_PLAIN: Final = frozenset({NoneType, bool, int, float, str})
"""Written as they are; nearly all that an answer for ten thousand partitions has."""


def _written(value: object) -> object:
    match value:
        case Enum():
            return value.value
        case None | str() | int() | float():
            return value
        case datetime():
            return format_instant(value)
        case timedelta():
            return int(value.total_seconds())
        case MemberId() | Scope() | PurePath():
            return str(value)
        case View():
            return value.to_json()
        case Mapping():
            return document_of(value)
        case tuple() | list():
            return [_written(one) for one in value]
    return document_of(_fields(value))


def _fields(value: object) -> Mapping[str, object]:
    if not is_dataclass(value):
        raise TypeError(f"no rule says how {value!r:.200} is written in JSON")
    return {field.name: getattr(value, field.name) for field in fields(value)}
