"""The tables beside a target: who has written into it, under which fence, and up to where."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.values import Epoch, GroupId, GroupPartition, Offset, Timeline, TopicName
from airflow_kcr.sinks.postgres.target import Target, TargetPlace

if TYPE_CHECKING:
    import psycopg


def ensure_tables(connection: psycopg.Connection, place: TargetPlace) -> None:
    """Make the three tables where they are missing."""
    place.run(connection, "lock_ddl")
    place.run(connection, "make_tables")


def crash_mark(connection: psycopg.Connection, place: TargetPlace) -> str:
    """Return the present mark; empty where a crash of the server has taken it, or a standby took the server's place."""
    return place.value(connection, "crash_mark") or ""


def ensure_crash_mark(connection: psycopg.Connection, place: TargetPlace) -> str:
    """Return the present mark; if there is none, a new one, the first writer's."""
    if not crash_mark(connection, place):
        place.run(connection, "make_crash_mark", mark=uuid.uuid4().hex)
    return crash_mark(connection, place)


# Who has written into the target

_MOST_NUMBERS: Final = 1_000
"""How many numbers a new sink steps over that were noted of unknown sinks: Postgres counts anew in a new table."""


def ensure_source(connection: psycopg.Connection, place: TargetPlace, target: Target) -> int:
    """Return the number of a sink; a new one gets a number, and a fence that refuses no epoch."""
    for _ in range(_MOST_NUMBERS):
        place.run(connection, "make_source", region=target.region, **target.writer)
        found = source_of(connection, place, target)
        if found is not None:
            return found
    raise LookupError(f"the fence of {target} is gone")  # deleted in between, by hand


def source_of(connection: psycopg.Connection, place: TargetPlace, target: Target) -> int | None:
    """Return the number of a sink; None: it has none yet."""
    found: int | None = place.value(connection, "source", **target.writer)
    return found


def remember_target(connection: psycopg.Connection, place: TargetPlace, source: int) -> None:
    """Note which table the target is, and that it is the right one."""
    place.run(connection, "remember_target", source=source)


def is_same(connection: psycopg.Connection, place: TargetPlace, source: int | None) -> bool:
    """Whether the table is the one that a sink has written to, as far as anything of it counts.

    A table's oid is what tells. TRUNCATE keeps it, and so does a restore of rows alone: they can't be told from here.

    Args:
        connection: in a transaction.
        place: of the target.
        source: the sink's number; None: it has written nothing.
    """
    return not place.value(connection, "is_swapped", source=source)


def require_same(connection: psycopg.Connection, target: Target, place: TargetPlace) -> None:
    """Refuse a table that took the place of the one that the sink has written to; another name is another table."""
    if not is_same(connection, place, place.source):
        raise ConfigurationError(f"{target}: {another_table(place.shown)}")
    remember_target(connection, place, place.source)


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


def raise_fence(connection: psycopg.Connection, place: TargetPlace, epoch: Epoch) -> Epoch:
    """Raise the fence to `epoch` where it is lower, and return where it stands.

    Waits for every transaction that has seen the lower one, until it is over or Postgres ends it.
    """
    place.run(connection, "raise_fence", epoch=epoch)
    return _standing(connection, place, "read_fence")


def lock_fence(connection: psycopg.Connection, place: TargetPlace) -> Epoch:
    """Return where the fence stands; it can't be raised until this transaction is over."""
    return _standing(connection, place, "lock_fence")


def _standing(connection: psycopg.Connection, place: TargetPlace, statement: str) -> Epoch:
    """Return the epoch of a fence.

    Raises:
        SinkError: the table of the target's name is not the one that its progress is of, or the fence is gone.
    """
    found = place.run(connection, statement).fetchone()
    if found is None:
        raise SinkError(lost_fence(place.shown))
    epoch, is_the_same = found
    if not is_the_same:
        raise SinkError(another_table(place.shown))
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


def highest_timeline(connection: psycopg.Connection, place: TargetPlace) -> Timeline:
    """Return the highest timeline of any partition; 0 if there is no progress."""
    return Timeline(place.value(connection, "highest_timeline"))


def lock_progress(
    connection: psycopg.Connection, place: TargetPlace, group: GroupId, partitions: Iterable[GroupPartition]
) -> dict[GroupPartition, TargetProgress]:
    """Return the progress of these partitions, locked until this transaction is over; always in the same order."""
    rows = place.run(connection, "lock_progress", **_named(sorted(partitions)))
    return {
        GroupPartition(group, TopicName(topic), partition): TargetProgress(
            timeline=Timeline(timeline), offset=Offset(offset), batch=batch
        )
        for topic, partition, timeline, offset, batch in rows
    }


def start_progress(
    connection: psycopg.Connection,
    place: TargetPlace,
    timeline: Timeline,
    epoch: Epoch,
    starts: Mapping[GroupPartition, Offset],
) -> None:
    """Note where partitions start that have no progress; of two at once the second waits and does nothing."""
    place.run(connection, "start_progress", timeline=timeline, epoch=epoch, **with_offsets(starts))


def set_progress(
    connection: psycopg.Connection,
    place: TargetPlace,
    *,
    timeline: Timeline,
    epoch: Epoch,
    batch: str,
    offsets: Mapping[GroupPartition, Offset],
    stepped_over: Mapping[GroupPartition, int],
) -> None:
    """Write the progress of partitions that have a row, which this transaction has locked.

    Args:
        connection: in the transaction.
        place: of the target.
        timeline: of what was written.
        epoch: the writer's.
        batch: which one; empty for a reset.
        offsets: where each partition is now.
        stepped_over: how many offsets were left out on the way; added up within a timeline.
    """
    over = [stepped_over.get(partition, 0) for partition in sorted(offsets)]
    named = with_offsets(offsets)
    place.run(connection, "set_progress", timeline=timeline, epoch=epoch, batch=batch, over=over, **named)


def with_offsets(offsets: Mapping[GroupPartition, Offset]) -> dict[str, list[object]]:
    """Return partitions and their offsets as statements take them, in the order in which all are locked."""
    partitions = sorted(offsets)
    return {**_named(partitions), "offsets": [offsets[partition] for partition in partitions]}


def _named(partitions: Sequence[GroupPartition]) -> dict[str, list[object]]:
    return {"topics": [p.topic for p in partitions], "partitions": [p.partition for p in partitions]}
