"""The tables beside a target: who has written into it, under which fence, and up to where."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.values import Epoch, GroupPartition, Offset, Timeline, TopicName
from airflow_kcr.sinks.postgres.target import TargetTable


def ensure_tables(table: TargetTable) -> None:
    """Make the three tables where they are missing."""
    table.run("lock_ddl")
    table.run("make_tables")


def crash_mark(table: TargetTable) -> str:
    """Return the present mark; empty where a crash of the server has taken it, or a standby took the server's place."""
    return table.value("crash_mark") or ""


def ensure_crash_mark(table: TargetTable) -> str:
    """Return the present mark; if there is none, a new one, the first writer's."""
    if not crash_mark(table):
        table.run("make_crash_mark", mark=uuid.uuid4().hex)
    return crash_mark(table)


# Who has written into the target


_MOST_NUMBERS: Final = 1_000
"""How many numbers a new sink steps over that were noted of unknown sinks: Postgres counts anew in a new table."""


def ensure_source(table: TargetTable) -> int:
    """Return the number of a sink; a new one gets a number, and a fence that refuses no epoch."""
    for _ in range(_MOST_NUMBERS):
        table.run("make_source", region=table.target.owner.region, **table.target.writer)
        found = source_of(table)
        if found is not None:
            return found
    raise LookupError(f"the fence of {table.target} is gone")  # deleted in between, by hand


def source_of(table: TargetTable) -> int | None:
    """Return the number of a sink; None: it has none yet."""
    found: int | None = table.value("source", **table.target.writer)
    return found


def remember_target(table: TargetTable, source: int) -> None:
    """Note which table the target is, and that it is the right one."""
    table.run("remember_target", source=source)


def is_same(table: TargetTable, source: int | None) -> bool:
    """Whether the table is the one that a sink has written to, as far as anything of it counts.

    A table's oid is what tells. TRUNCATE keeps it, and so does a restore of rows alone: they can't be told from here.

    Args:
        table: of the sink.
        source: the sink's number; None: it has written nothing.
    """
    return not table.value("is_swapped", source=source)


def require_same(table: TargetTable) -> None:
    """Refuse a table that took the place of the one that the sink has written to; another name is another table."""
    if not is_same(table, table.source):
        raise ConfigurationError(f"{table.target}: {another_table(table.shown)}")
    remember_target(table, table.source)


def another_table(shown: str) -> str:
    """Return what is said of a target that was dropped, made anew, renamed or restored."""
    return (
        f"table {shown} is not the one that this sink has written to: it was dropped, made anew, swapped or restored, "
        "and may lack rows that the sink's progress counts; stop the region, then put the table back, or accept this "
        "one with `kcr region output REGION --take-over`, and reset the region to before the rows that are missing"
    )


def lost_fence(shown: str) -> str:
    """Return what is said of a database that was made anew, or restored from before the sink wrote to it."""
    return (
        f"this sink has written to {shown} before, and its fence and progress are gone: the database, the schema or "
        "the sink's tables were dropped, made anew or restored from before; stop the region, then put them back, or "
        "accept what is there with `kcr region output REGION --take-over`, and reset the region to before the rows "
        "that are missing"
    )


# The fence


def raise_fence(table: TargetTable, epoch: Epoch) -> Epoch:
    """Raise the fence to `epoch` where it is lower, and return where it stands.

    Waits for every transaction that has seen the lower one, until it is over or Postgres ends it.
    """
    table.run("raise_fence", epoch=epoch)
    return _standing(table, "read_fence")


def lock_fence(table: TargetTable) -> Epoch:
    """Return where the fence stands; it can't be raised until this transaction is over."""
    return _standing(table, "lock_fence")


def _standing(table: TargetTable, statement: str) -> Epoch:
    """Return the epoch of a fence.

    Raises:
        SinkError: the table of the target's name is not the one that its progress is of, or the fence is gone.
    """
    found = table.run(statement).fetchone()
    if found is None:
        raise SinkError(lost_fence(table.shown))
    epoch, is_the_same = found
    if not is_the_same:
        raise SinkError(another_table(table.shown))
    return Epoch(epoch)


# Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetProgress:
    """How far the target is on one partition."""

    timeline: Timeline
    offset: Offset
    """The next one that is not in it."""

    batch: str
    """The batch that brought it there; empty where a reset did."""


def highest_timeline(table: TargetTable) -> Timeline:
    """Return the highest timeline of any partition; 0 if there is no progress."""
    return Timeline(table.value("highest_timeline"))


def lock_progress(table: TargetTable, partitions: Iterable[GroupPartition]) -> dict[GroupPartition, TargetProgress]:
    """Return the progress of these partitions, locked until this transaction is over; always in the same order."""
    rows = table.run("lock_progress", **_named(sorted(partitions)))
    return {
        GroupPartition(table.target.owner.group, TopicName(topic), partition): TargetProgress(
            timeline=Timeline(timeline), offset=Offset(offset), batch=batch
        )
        for topic, partition, timeline, offset, batch in rows
    }


def start_progress(
    table: TargetTable,
    timeline: Timeline,
    epoch: Epoch,
    starts: Mapping[GroupPartition, Offset],
) -> None:
    """Note where partitions start that have no progress; of two at once the second waits and does nothing."""
    table.run("start_progress", timeline=timeline, epoch=epoch, **with_offsets(starts))


def set_progress(
    table: TargetTable,
    *,
    timeline: Timeline,
    epoch: Epoch,
    batch: str,
    offsets: Mapping[GroupPartition, Offset],
    stepped_over: Mapping[GroupPartition, int],
) -> None:
    """Write the progress of partitions that have a row, which this transaction has locked.

    Args:
        table: of the sink.
        timeline: of what was written.
        epoch: the writer's.
        batch: which one; empty for a reset.
        offsets: where each partition is now.
        stepped_over: how many offsets were left out on the way; added up within a timeline.
    """
    over = [stepped_over.get(partition, 0) for partition in sorted(offsets)]
    named = with_offsets(offsets)
    table.run("set_progress", timeline=timeline, epoch=epoch, batch=batch, over=over, **named)


def with_offsets(offsets: Mapping[GroupPartition, Offset]) -> dict[str, list[object]]:
    """Return partitions and their offsets as statements take them, in the order in which all are locked."""
    partitions = sorted(offsets)
    return {**_named(partitions), "offsets": [offsets[partition] for partition in partitions]}


def _named(partitions: Sequence[GroupPartition]) -> dict[str, list[object]]:
    return {"topics": [p.topic for p in partitions], "partitions": [p.partition for p in partitions]}
