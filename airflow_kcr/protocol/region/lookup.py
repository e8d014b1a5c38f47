"""A checkpoint as it is named: by its number, a DAG run or the target of a reset; and whether it can be used so.

A reset goes to checkpoints on the current timeline; to another branch only as an explicit forward jump, to an open or
aborted one only by name (`allow_partial`).
"""

from __future__ import annotations

from datetime import datetime

from airflow_kcr.errors import CheckpointNotUsable, UnknownCheckpoint
from airflow_kcr.protocol import values
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region import rows, timelines
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.targets import ToCheckpoint, ToRun
from airflow_kcr.protocol.values import few


def target_checkpoint(region: Region, request: rows.ResetRequest) -> values.CheckpointNumber | None:
    """Return the checkpoint that a person's target names; None for any other target.

    Raises:
        UnknownCheckpoint: there is none of that number, or no checkpoint of that DAG run on the current timeline.
        CheckpointNotUsable: the run has checkpoints of several boundaries; the message lists them.
    """
    match request.target:
        case ToCheckpoint(sequence=sequence):
            return require_checkpoint(region, sequence).sequence
        case ToRun(dag_id=dag_id, run_id=run_id):
            return of_run(region, dag_id, run_id)
        case _:
            return None


def require_checkpoint(region: Region, sequence: values.CheckpointNumber) -> rows.Checkpoint:
    """Return a checkpoint's row.

    Raises:
        UnknownCheckpoint: there is none of that sequence; the message names those that there are.
    """
    row = region.checkpoint_of(sequence)
    if row is None:
        known = [str(other.sequence) for other in region.archive.checkpoints(last=10)]
        newest = f"its newest are {', '.join(known)}" if known else "it has none yet"
        raise UnknownCheckpoint(f"region {region.name} has no checkpoint {sequence}; {newest}")
    return row


def require_current(region: Region, sequence: values.CheckpointNumber) -> rows.Checkpoint:
    """Return a checkpoint's row if it describes the region's past, or may yet come to.

    Raises:
        UnknownCheckpoint: there is none of that sequence.
        CheckpointNotUsable: it was aborted, or a reset has undone it; the message says which.
    """
    row = require_checkpoint(region, sequence)
    if row.undone_by is not None:
        raise CheckpointNotUsable(
            f"checkpoint {sequence} of region {region.name} was undone by a reset, which opened timeline "
            f"{row.undone_by}; its records are processed again, and the checkpoint that holds them has another number"
        )
    if row.state is rows.CheckpointState.ABORTED:
        raise CheckpointNotUsable(f"checkpoint {sequence} of region {region.name} was aborted: {row.abort_reason}")
    return row


def of_run(region: Region, dag_id: str, run_id: str, *, has_offsets: bool = True) -> values.CheckpointNumber:
    """Return the newest current checkpoint that answered a request of a DAG run.

    Args:
        region: the region.
        dag_id: the run's DAG.
        run_id: the run.
        has_offsets: whether it has to have its offsets still; else it may be retired.

    Raises:
        UnknownCheckpoint: there is none; the message says so if there was one, and a reset has undone it.
        CheckpointNotUsable: there are several, of different boundaries; the message lists them.
    """
    asked = region.archive.requests_of_run(dag_id, run_id)
    answers = sorted({request.sequence for request in asked if request.sequence is not None})
    checkpoints = [row for sequence in answers if (row := region.checkpoint_of(sequence)) is not None]
    found = [row for row in checkpoints if row.is_current and (row.is_complete or not has_offsets)]
    if not found:
        raise UnknownCheckpoint(
            f"no checkpoint on the current timeline belongs to the run {run_id} of DAG {dag_id}"
            + "".join(_undone(row) for row in checkpoints[-1:])
        )
    bounds = {c.boundary for c in found}
    if len(bounds) > 1:
        listed = ", ".join(f"{c.sequence} (boundary {c.boundary})" for c in found)
        raise CheckpointNotUsable(
            f"the run {run_id} of DAG {dag_id} has several checkpoints: {listed}; name one of them"
        )
    return found[-1].sequence


def _undone(row: rows.Checkpoint) -> str:
    """What a run may do whose checkpoint a reset has undone; empty: none has."""
    if row.undone_by is None:
        return ""
    return (
        f": its checkpoint, checkpoint {row.sequence}, was undone by a reset, which opened timeline "
        f"{row.undone_by}; clear the task that asked for it, and it asks for a new one"
    )


def require_usable(region: Region, now: datetime, request: rows.ResetRequest) -> None:
    """Refuse a target that can't be used as it is asked for, before anything is stored.

    Raises:
        InvalidTarget: the scope, or a file's entry, names what is not in the region; a time lies in the future.
        UnknownCheckpoint, CheckpointNotUsable: the message says which option would allow it, if one would.
    """
    partitions = region.universe()
    request.scope.select(partitions)
    request.target.require_fit(partitions, request.scope)
    request.target.time_needed(now)
    sequence = target_checkpoint(region, request)
    row = None if sequence is None else region.checkpoint_of(sequence)
    if sequence is None or row is None:
        return
    if row.state is rows.CheckpointState.RETIRED:
        raise CheckpointNotUsable(f"checkpoint {sequence} is retired; its offsets are gone")
    if not row.is_complete and not request.allow_partial:
        raise CheckpointNotUsable(
            f"checkpoint {sequence} is {row.state}, not complete; allow_partial uses it with its gaps filled and marked"
        )
    if row.is_complete and not row.is_current and not request.forward:
        raise CheckpointNotUsable(
            f"checkpoint {sequence} is not on the current timeline: timeline {row.undone_by} opened before it; a "
            f"forward jump (--forward) goes there without processing what lies between; "
            f"missing: {missing_text(region, row)}"
        )
    lost = [p for p in timelines.lost_to(region, sequence) if p in request.scope]
    if lost:
        named = ", ".join(sorted({p.topic for p in lost}))
        raise CheckpointNotUsable(
            f"checkpoint {sequence} is older than its topic: {named} was deleted and created again since, so its "
            "offsets mean other records now; choose a newer checkpoint, or leave that topic out of the scope"
        )


def missing_text(region: Region, row: rows.Checkpoint) -> str:
    """Return what a forward jump to a checkpoint of another branch would leave out, by partition."""
    gaps = [
        f"{p} [{position}, {o})"
        for p, o in (region.offsets_of(row.sequence) or EMPTY).items()
        if (position := region.claim_of(p).position) is not None and position < o
    ]
    return few(gaps, 10) or "nothing"
