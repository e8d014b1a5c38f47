"""Runs, tasks and questions of Airflow, as its REST interface shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a DAG."""

    dag_id: str
    run_id: str
    state: str
    interval_start: datetime | None
    interval_end: datetime | None
    began: datetime | None
    ended: datetime | None
    partition_key: str | None

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """Return the run that an answer describes."""
        return cls(
            dag_id=found["dag_id"],
            run_id=found["dag_run_id"],
            state=found["state"],
            interval_start=_instant(found["data_interval_start"]),
            interval_end=_instant(found["data_interval_end"]),
            began=_instant(found["start_date"]),
            ended=_instant(found["end_date"]),
            partition_key=found.get("partition_key"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInstance:
    """A task of a run; `map_index` is -1 where it is not mapped, `state` None before it is looked at.

    `id` is another one for each try.
    """

    id: str
    task_id: str
    map_index: int
    state: str | None
    try_number: int
    began: datetime | None
    ended: datetime | None

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """Return the task instance that an answer describes."""
        return cls(
            id=found["id"],
            task_id=found["task_id"],
            map_index=found["map_index"],
            state=found["state"],
            try_number=found["try_number"],
            began=_instant(found["start_date"]),
            ended=_instant(found["end_date"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a task asks a person."""

    subject: str
    body: str
    options: tuple[str, ...]
    params: Mapping[str, Mapping[str, Any]]
    """The fields of its form by their names, each with its `value` and its `schema`."""


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
