"""The event of a checkpoint: one of the asset `kcr://REGION`, with the partition key `TIMELINE.SEQUENCE`.

A task that ends with a checkpoint emits it, once Kafka holds the checkpoint's offsets, or those of a later one. The
event's extra names the checkpoint, also where Airflow takes no key from tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import GroupNotEmpty, KcrError
from airflow_kcr.hooks import kcr, stats
from airflow_kcr.hooks.assets import region_asset
from airflow_kcr.hooks.checkpoints import PublishedCheckpoint
from airflow_kcr.hooks.compat import add_key
from airflow_kcr.hooks.kcr import RegionTask
from airflow_kcr.hooks.lineage import send_checkpoint
from airflow_kcr.protocol.values import format_instant

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import OutletEventAccessorProtocol

    from airflow_kcr.api import CheckpointView, Region
    from airflow_kcr.protocol.region.rows import Checkpoint


def outlets_of(region: str, outlets: Any) -> list[Any]:  # noqa: ANN401 (Airflow's own)
    """Return the author's outlets, and the region's asset where its name is known by now.

    Raises:
        InvalidIdentifier: the region's name is none.
    """
    own = [region_asset(region)] if _is_known(region) else []
    given = [] if outlets is None else list(outlets) if isinstance(outlets, list | tuple) else [outlets]
    return [*given, *own]


def settled(task: RegionTask, context: Context, region: Region, sequence: int) -> dict[str, Any]:
    """Repair Kafka's side of a published checkpoint if that is needed, emit its event, and return its document.

    Args:
        task: whose event it is; its outlets become what the event is emitted for.
        context: the task's.
        region: the checkpoint's.
        sequence: the checkpoint's.

    Raises:
        KcrError: Kafka does not hold it, and can't be told from here.
    """
    from airflow_kcr.protocol.region.rows import Committed

    view = region.checkpoints.show(sequence)
    if view.checkpoint.committed is Committed.NO:
        view = _repaired(task, region, view)
    row = view.checkpoint
    task.log.info("Checkpoint %d of region %s is published; committed: %s", row.sequence, region.name, row.committed)
    if row.committed is Committed.SUPERSEDED:
        task.log.info("Kafka holds, or is being told, the offsets of a later checkpoint or of a reset")
    _emit(task, context, region, view)
    stats.send(region.name, checkpoint=row)
    return document(region.name, row)


def revised(task: RegionTask, context: Context, region: Region, sequence: int, *, is_rerun: bool) -> dict[str, Any]:
    """Emit the event of a checkpoint whose output was replaced, and return its document.

    Args:
        task: whose event it is; its outlets become what the event is emitted for.
        context: the task's.
        region: the checkpoint's.
        sequence: the checkpoint's.
        is_rerun: whether the event has the checkpoint's partition key, so that DAGs downstream run for it again.
    """
    row = region.checkpoints.show(sequence).checkpoint
    task.log.info("Checkpoint %d of region %s was recomputed; revision %d", row.sequence, region.name, row.revision)
    event, partition_key = _event(task, context, region, row)
    if is_rerun:
        add_key(event, partition_key)
    return document(region.name, row)


def _repaired(task: RegionTask, region: Region, view: CheckpointView) -> CheckpointView:
    """Return the checkpoint after committing its offsets to Kafka from here, if it is the restore point."""
    row = view.checkpoint
    if region.show().restore_point != row.sequence:
        task.log.info("Kafka was never told of checkpoint %d; it is not the restore point any more", row.sequence)
        return view
    task.log.warning("Kafka does not hold checkpoint %d, the restore point; telling it from here", row.sequence)
    try:
        return region.checkpoints.repair(row.sequence)
    except GroupNotEmpty as error:
        # No refusal for good: members are there, and it is they who commit.
        raise KcrError(
            f"Kafka does not hold checkpoint {row.sequence} of region {region.name}, and can't be told from "
            f"outside: {error.message}. Its members commit by themselves, at the latest with the next checkpoint"
        ) from error


def _emit(task: RegionTask, context: Context, region: Region, view: CheckpointView) -> None:
    from airflow_kcr.traces import record

    first, asked = next(iter(view.runs), None), kcr.requester(context)
    runs = {(one.dag_id, one.run_id) for one in view.runs}
    if first is not None and (asked.dag_id, asked.run_id) in runs - {(first.dag_id, first.run_id)}:
        task.log.info("Its event is that of run %s of DAG %s, which asked first", first.run_id, first.dag_id)
        task.outlets = [one for one in task.outlets if one != region_asset(region.name)]
        return
    event, partition_key = _event(task, context, region, view.checkpoint)
    add_key(event, partition_key)
    record(region.checkpoints, view.checkpoint.sequence)


def _event(
    task: RegionTask, context: Context, region: Region, row: Checkpoint
) -> tuple[OutletEventAccessorProtocol, str]:
    """Return the event of a checkpoint, which the task now emits, and the partition key of the checkpoint.

    Airflow emits an event of each outlet when the task has succeeded, and asks for them only then: the author's are
    among them, and the asset of a name that was a template too.
    """
    asset = region_asset(region.name)
    task.outlets = [*(one for one in task.outlets if one != asset), asset]
    published = PublishedCheckpoint(
        region=region.name,
        region_id=region.region_id(),
        timeline=int(row.timeline),
        sequence=int(row.sequence),
        boundary=None if row.boundary is None else format_instant(row.boundary),
        digest=row.digest,
        revision=row.revision,
        tables=row.tables,
    )
    event = context["outlet_events"][asset]
    event.extra = dict(published.to_json())
    send_checkpoint(task.hook, context, region, row.sequence)
    return event, published.partition_key


def document(region: str, row: Checkpoint) -> dict[str, Any]:
    """Return what drain, commit, run and recompute return of a checkpoint."""
    from airflow_kcr.api.checkpoints import PUBLISHED

    return {"region": region, **PUBLISHED.document(row)}


def _is_known(region: object) -> bool:
    """Whether a region's name is one, and no template that becomes one."""
    return isinstance(region, str) and "{" not in region
