"""Recomputations: the records of a published checkpoint are processed once more, mostly to replace its output.

The region goes on beside one: no claim, position, epoch or lease of a member is read or written, and no batch waits.
What runs is recorded with its checkpoint. Of two processes only the later one may replace output: each asks whether it
still may in the very transaction that replaces it (`sinks.contract.Revision`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from airflow_kcr.errors import CheckpointNotUsable, RecomputationRefused, UnknownCheckpoint
from airflow_kcr.protocol.region import commands, events, rows
from airflow_kcr.protocol.region.lookup import require_checkpoint
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, RequestId, drawn, format_instant, replace

_RUNNING: Final = rows.RecomputationState.RUNNING

KEPT: Final = 20
"""How many recomputations of a checkpoint are remembered, beside the one that made the output in force."""


def replaceable(region: Region, sequence: CheckpointNumber) -> rows.Checkpoint:
    """Return a checkpoint whose output can be replaced.

    Raises:
        UnknownCheckpoint: there is none of that number.
        CheckpointNotUsable: it is not published, was undone by a reset, or is retired.
    """
    row = require_checkpoint(region, sequence)
    if row.undone_by is not None:
        raise CheckpointNotUsable(
            f"checkpoint {sequence} of region {region.name} was undone by a reset, which opened timeline "
            f"{row.undone_by}: what counts of its records is in later checkpoints; recompute those"
        )
    if row.state is not rows.CheckpointState.PUBLISHED:
        raise CheckpointNotUsable(
            f"checkpoint {sequence} of region {region.name} is {row.state}; only a published one, whose offsets are "
            "kept, can be recomputed"
        )
    return row


def newest(row: rows.Checkpoint, request_id: RequestId) -> rows.Recomputation | None:
    """Return the newest recomputation of a checkpoint under a request id."""
    return next((one for one in reversed(row.recomputations) if one.request_id == request_id), None)


def done(
    region: Region,
    sequence: CheckpointNumber,
    request_id: RequestId,
    purpose: rows.RecomputationPurpose,
    into: tuple[str, ...],
) -> rows.Recomputation | None:
    """Return the recomputation of a checkpoint that a request id names, if it need not be carried out again.

    One that is done stays done when its checkpoint is retired. A comparison is kept nowhere, so that it is always
    carried out.

    Raises:
        UnknownCheckpoint, CheckpointNotUsable: as for `replaceable`, if it has to be carried out.
        RecomputationRefused: the request id names one of another purpose, or into other places.
    """
    row = require_checkpoint(region, sequence)
    known = newest(row, request_id)
    if known is not None and (known.purpose, known.into) != (purpose, into):
        what = {"purpose": known.purpose, "into": ", ".join(known.into) or None}
        raise RecomputationRefused(
            f"request id {request_id} names another recomputation of checkpoint {row.sequence} "
            f"({', '.join(f'{name} {value}' for name, value in what.items() if value)}); give this one an id of its own"
        )
    is_done = known is not None and known.state is rows.RecomputationState.DONE and row.undone_by is None
    if is_done and purpose is not rows.RecomputationPurpose.COMPARE:
        return known
    replaceable(region, sequence)
    return None


def start(region: Region, now: datetime, command: commands.StartRecomputation) -> Region:
    """Return the region with a recomputation started, or found.

    Raises:
        UnknownCheckpoint, CheckpointNotUsable: as for `replaceable`.
        RecomputationRefused: the checkpoint is being recomputed under another request id, or this one names another
            recomputation.
    """
    if done(region, command.sequence, command.request_id, command.purpose, command.into) is not None:
        return region
    row = replaceable(region, command.sequence)
    known = newest(row, command.request_id)
    if known is not None and known.state is _RUNNING and known.token == command.token:
        return region
    for other in row.recomputations:
        if other.state is not _RUNNING:
            continue
        if other.request_id != command.request_id and other.until > now:
            raise RecomputationRefused(
                f"checkpoint {row.sequence} of region {region.name} is being recomputed already (request "
                f"{other.request_id}, asked for by {other.requester.who or 'a script'}); ask again when that one is "
                f"over, or its process is lost, which is known at {format_instant(other.until)}"
            )
        region = _failed(region, now, command.sequence, other, "another process took its place")
    number, until = EventNumber(region.counter + 1), now + command.lease
    begun = drawn(rows.Recomputation, command, number=number, started_at=now, until=until)
    row = replaceable(region, command.sequence)
    region = region.with_checkpoint(replace(row, recomputations=(*_remembered(row), begun)))
    return region.record(now, drawn(events.RecomputationBegun, command))


def renew(region: Region, now: datetime, command: commands.RenewRecomputation) -> Region:
    """Return the region with a recomputation known to live.

    Raises:
        UnknownCheckpoint, CheckpointNotUsable: as for `replaceable`.
        RecomputationRefused: it is over, as another process took its place.
    """
    running = _running(region, command.sequence, command.number)
    return _with(region, command.sequence, replace(running, until=now + command.lease))


def finish(region: Region, now: datetime, command: commands.FinishRecomputation) -> Region:
    """Return the region with a recomputation done; said again, nothing changes.

    Raises:
        UnknownCheckpoint, CheckpointNotUsable, RecomputationRefused: as for `renew`.
    """
    one = of_number(region, command.sequence, command.number)
    if one.state is rows.RecomputationState.DONE:
        return region
    running = _running(region, command.sequence, command.number)
    row, revision = replaceable(region, command.sequence), 0
    if running.purpose is rows.RecomputationPurpose.REPLACE:
        revision = row.revision + 1
        tables = {one.place: one for one in (*row.tables, *command.tables)}
        region = region.with_checkpoint(replace(row, tables=tuple(tables.values())))
    done = replace(running, state=rows.RecomputationState.DONE, finished_at=now, revision=revision)
    return _with(region, command.sequence, done).record(now, drawn(events.CheckpointRecomputed, command))


def fail(region: Region, now: datetime, command: commands.FailRecomputation) -> Region:
    """Return the region with a recomputation that came to nothing; one that is over stays what it is.

    Raises:
        UnknownCheckpoint: there is none of that number, or no such recomputation.
    """
    one = of_number(region, command.sequence, command.number)
    return _failed(region, now, command.sequence, one, command.why) if one.state is _RUNNING else region


def is_over(row: rows.Checkpoint, number: EventNumber) -> bool:
    """Whether a recomputation of a checkpoint has ended; one that is not remembered any more has."""
    states = {one.number: one.state for one in row.recomputations}
    return states[number] is not _RUNNING if number in states else number < max(states, default=EventNumber(0))


def of_number(region: Region, sequence: CheckpointNumber, number: EventNumber) -> rows.Recomputation:
    """Return a recomputation of a checkpoint.

    Raises:
        UnknownCheckpoint: there is none of that number, or no such recomputation.
    """
    row = region.checkpoint_of(sequence)
    found = None if row is None else next((one for one in row.recomputations if one.number == number), None)
    if found is None:
        raise UnknownCheckpoint(f"region {region.name} has no recomputation {number} of checkpoint {sequence}")
    return found


def _remembered(row: rows.Checkpoint) -> tuple[rows.Recomputation, ...]:
    """Return the recomputations that stay known as another one begins: all of them have ended."""
    held = row.recomputations
    return tuple(one for one in held[:-KEPT] if one.revision and one.revision == row.revision) + held[-KEPT:]


def _running(region: Region, sequence: CheckpointNumber, number: EventNumber) -> rows.Recomputation:
    replaceable(region, sequence)
    one = of_number(region, sequence, number)
    if one.state is not _RUNNING:
        raise RecomputationRefused(
            f"this recomputation of checkpoint {sequence} of region {region.name} is over: {one.failure or one.state}; "
            "it replaces nothing"
        )
    return one


def _failed(region: Region, now: datetime, sequence: CheckpointNumber, one: rows.Recomputation, why: str) -> Region:
    failed = replace(one, state=rows.RecomputationState.FAILED, finished_at=now, failure=why)
    body = events.RecomputationFailed(sequence=sequence, number=one.number, why=why)
    return _with(region, sequence, failed).record(now, body)


def _with(region: Region, sequence: CheckpointNumber, changed: rows.Recomputation) -> Region:
    row = require_checkpoint(region, sequence)
    held = tuple(changed if one.number == changed.number else one for one in row.recomputations)
    return region.with_checkpoint(replace(row, recomputations=held))
