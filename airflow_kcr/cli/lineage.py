"""Lineage from a command that has made a checkpoint or a reset: sent where the environment says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_kcr.floods import unflooded

if TYPE_CHECKING:
    from airflow_kcr.api import Region, ResetView


def send_checkpoint(region: Region, sequence: int | None, dag_run: str = "") -> None:
    """Send the event of a published checkpoint, if OpenLineage is configured.

    Args:
        region: the checkpoint's.
        sequence: the checkpoint's; None: there is none.
        dag_run: the run of Airflow that has called; its task sends the event.
    """
    if sequence is not None and not dag_run and _is_configured():
        from airflow_kcr import lineage

        handle, by = region.checkpoints, lineage.context_of_process()
        what = f"checkpoint {sequence} of region {region.name}"
        lineage.send_within(lambda: lineage.of_checkpoint(handle, sequence, by), lineage.send_by_client, what)


def send_reset(region: Region, reset: ResetView) -> None:
    """Send the event of a reset that is done, if OpenLineage is configured.

    Args:
        region: the reset's.
        reset: the reset.
    """
    if reset.attempts and reset.state == "done" and _is_configured():
        from airflow_kcr import lineage

        handle, by = region.checkpoints, lineage.context_of_process()
        what = f"reset {reset.reset_id}"
        lineage.send_within(lambda: lineage.of_reset(handle, reset, by), lineage.send_by_client, what)


def _is_configured() -> bool:
    """Whether the environment says where events go to; if so and the client is missing, one line says so."""
    import os

    named = any(name in os.environ for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG"))
    if not named and not any(name.startswith("OPENLINEAGE__TRANSPORT") for name in os.environ):
        return False
    try:
        import openlineage.client  # noqa: F401
    except ImportError:
        unflooded(__name__).warning("lineage is not sent: install airflow-kcr[lineage]")
        return False
    return True
