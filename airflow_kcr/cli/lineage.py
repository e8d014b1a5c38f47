"""Lineage from commands: of the checkpoint or reset that one has made, or of all regions while one watches them.

It is sent where the environment says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from airflow_kcr.floods import unflooded

if TYPE_CHECKING:
    from airflow_kcr.api import Region, ResetView
    from airflow_kcr.store.regions import RegionStore

PERIOD: Final = 30.0
"""Seconds between two looks for what has happened in the regions of a store."""


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


@contextmanager
def feeding(store: RegionStore) -> Iterator[None]:
    """Send what happens in all regions of a store until the end of the block, if OpenLineage is configured.

    A thread of its own does so, for which nothing waits.

    Args:
        store: where the regions are.
    """
    if not _is_configured():
        yield
        return
    from airflow_kcr import lineage

    feed, ending = lineage.Feed(store, lineage.context_of_process(), lineage.send_by_client), Event()

    def work() -> None:
        feed.catch_up()
        while not ending.wait(PERIOD):
            feed.catch_up()

    thread = Thread(target=work, name="kcr-lineage", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(lineage.DEADLINE)


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
