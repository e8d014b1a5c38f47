"""Checkpoints as asset events.

What a checkpoint DAG says when one is published, and what a DAG downstream makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast

from airflow.providers.common.compat.sdk import AirflowSkipException

from airflow_kcr.errors import ConfigurationError, UnknownCheckpoint, UnknownRegion
from airflow_kcr.hooks.assets import SCHEME
from airflow_kcr.hooks.kcr import KcrHook, translated
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import CheckpointNumber, Timeline
from airflow_kcr.sinks.checkpoints import CheckpointId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.sdk import Context
    from pydantic import JsonValue

    from airflow_kcr.api import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCheckpoint:
    """What an asset event of a region says."""

    region: str
    region_id: str
    """Which region of that name."""

    timeline: int
    sequence: int
    boundary: str | None
    """The instant it is aligned to, as ISO 8601; None: it has none."""

    digest: str
    """A hash over its offsets."""

    revision: int = 0
    """How often its output had been replaced; above 0, what came before with this key was made of the older output."""

    tables: tuple[TableVersion, ...] = ()
    """Its output in tables that people own: each with the version, and the tag if the format has tags, by which readers
    find the table as it was with the checkpoint."""

    @property
    def partition_key(self) -> str:
        """The event's partition key: `TIMELINE.SEQUENCE`, zero-padded, so that keys sort as checkpoints do."""
        return str(CheckpointId(Timeline(self.timeline), CheckpointNumber(self.sequence)))

    def to_json(self) -> dict[str, JsonValue]:
        """Return it as the event's `extra`."""
        return cast("dict[str, JsonValue]", documents.write(self, PublishedCheckpoint))

    @classmethod
    def from_json(cls, extra: Mapping[str, object]) -> Self:
        """Return what the `extra` of an event says.

        Raises:
            ConfigurationError: it is none of a published checkpoint.
        """
        try:
            return documents.read(extra, cls)
        except ValueError as error:
            raise ConfigurationError(
                f"the run was triggered by an event of a region's asset that names no checkpoint (it has "
                f"{', '.join(sorted(extra)) or 'nothing'}); only KcrCommitCheckpointOperator emits them"
            ) from error


def checkpoint_of(context: Context, kcr_conn_id: str = KcrHook.default_conn_name) -> PublishedCheckpoint:
    """Return the checkpoint that triggered a run, if it still describes its region's past.

    A reset does not take back events that are on their way, so the store is asked. Call it first in whatever builds on
    a checkpoint. Of several events, the newest checkpoint's counts, and of that one the newest revision's.

    Args:
        context: the task's; of a DAG that is scheduled on the asset of a region.
        kcr_conn_id: the store's connection.

    Raises:
        AirflowSkipException: a reset has undone the checkpoint, or the region was recreated; the reason is said.
        AirflowFailException: the run was triggered by no event of a region, or by one that names no checkpoint.
        AirflowException: the store is away.
    """
    with translated():
        found = max(_events(context), key=lambda event: (event.timeline, event.sequence, event.revision), default=None)
        if found is None:
            raise ConfigurationError(
                "the run was triggered by no event of a region: give its DAG the schedule "
                "checkpoint_schedule(REGION), and don't trigger it by hand"
            )
        with KcrHook(kcr_conn_id).region(found.region) as region:
            why = gone(region, found)
    if why:
        raise AirflowSkipException(why)
    return found


def _events(context: Context) -> Iterator[PublishedCheckpoint]:
    for asset, events in context["triggering_asset_events"].items():
        if (getattr(asset, "uri", None) or "").startswith(f"{SCHEME}://"):
            for event in events:
                yield PublishedCheckpoint.from_json(event.extra or {})


def gone(region: Region, published: PublishedCheckpoint) -> str:
    """Return why a checkpoint that was published once describes its region's past no more; empty: it does.

    Args:
        region: of its name.
        published: the checkpoint, as its event names it.
    """
    name, sequence = region.name, published.sequence
    try:
        if region.region_id() != published.region_id:
            return f"region {name} was deleted and declared again, and the event is of the earlier one"
        row = region.checkpoints.show(sequence).checkpoint
    except UnknownRegion:
        return f"region {name} does not exist any more"
    except UnknownCheckpoint:
        return f"region {name} has no checkpoint {sequence}: its store was restored from before it"
    if row.digest != published.digest:
        return f"checkpoint {sequence} of region {name} is another one now: its store was restored from before it"
    if row.undone_by is not None:
        return (
            f"a reset has undone checkpoint {sequence} of region {name} (it opened timeline {row.undone_by}); its "
            "records are processed again, and the checkpoint that then holds them has an event of its own"
        )
    return ""
