"""Lineage from a task: events of checkpoints and resets, sent as Airflow's OpenLineage provider is configured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context
    from openlineage.client.event_v2 import RunEvent

    from airflow_kcr.api import Region, ResetView
    from airflow_kcr.hooks.kcr import KcrHook
    from airflow_kcr.lineage import EventContext


def send_checkpoint(hook: KcrHook, context: Context, region: Region, sequence: int) -> None:
    """Send the event of a published checkpoint; without the provider, or where it is off, nothing.

    Args:
        hook: of the region's store, by which its connections are found.
        context: the task's.
        region: the checkpoint's.
        sequence: the checkpoint's.
    """
    if _is_active():
        from airflow_kcr import lineage

        handle = region.checkpoints
        _send(
            hook,
            context,
            region,
            f"checkpoint {sequence} of region {region.name}",
            lambda by: lineage.of_checkpoint(handle, sequence, by),
        )


def send_reset(hook: KcrHook, context: Context, region: Region, reset: ResetView) -> None:
    """Send the event of a reset that is done; one that has changed nothing has none.

    Args:
        hook: of the region's store, by which its connections are found.
        context: the task's.
        region: the reset's.
        reset: the reset.
    """
    if reset.attempts and _is_active():
        from airflow_kcr import lineage

        handle = region.checkpoints
        _send(hook, context, region, f"reset {reset.reset_id}", lambda by: lineage.of_reset(handle, reset, by))


def _is_active() -> bool:
    try:
        from airflow.providers.openlineage.api import is_openlineage_active
    except ImportError:
        return False
    return bool(is_openlineage_active())


def _send(hook: KcrHook, context: Context, region: Region, what: str, make: Callable[[EventContext], RunEvent]) -> None:
    from airflow.providers.openlineage.api import emit

    from airflow_kcr import lineage

    # Here, not in the thread that sends: Airflow's supervisor is asked for both, and answers one at a time.
    try:
        caller = _caller(hook, context, region)
    except Exception as error:  # noqa: BLE001 (of a connection or the provider; it is never worth a task)
        lineage.report_unsent(what, error)
        return
    lineage.send_within(lambda: make(caller), emit, what)


def _caller(hook: KcrHook, context: Context, region: Region) -> EventContext:
    from airflow.providers.openlineage import conf
    from airflow.providers.openlineage.plugins import macros
    from openlineage.client.facet_v2 import parent_run

    from airflow_kcr.lineage import PRODUCER, EventContext

    ti, namespace = context["ti"], conf.namespace()
    parent = parent_run.ParentRunFacet(
        run=parent_run.Run(runId=macros.lineage_run_id(ti)),
        job=parent_run.Job(namespace=namespace, name=macros.lineage_job_name(ti)),
        root=parent_run.Root(
            run=parent_run.RootRun(runId=macros.lineage_root_run_id(ti)),
            job=parent_run.RootJob(
                namespace=macros.lineage_root_job_namespace(ti), name=macros.lineage_root_job_name(ti)
            ),
        ),
        producer=PRODUCER,
    )
    environ = {**os.environ, **hook.environment(region.spec())}
    return EventContext(namespace=namespace, parent=parent, environ=environ)
