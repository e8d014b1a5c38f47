"""Proves that a checkpoint is published and committed, and tells whoever builds on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import ConfigurationError, GroupNotEmpty, KcrError
from airflow_kcr.hooks import contexts
from airflow_kcr.hooks.assets import region_asset
from airflow_kcr.hooks.checkpoints import PublishedCheckpoint
from airflow_kcr.operators.waiting import WaitingOperator
from airflow_kcr.protocol.instants import format_instant
from airflow_kcr.triggers.payloads import CheckpointCommitted

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.api import CheckpointView, Region


class KcrCommitCheckpointOperator(WaitingOperator):
    """Waits until a checkpoint is published and it is settled whether Kafka holds its offsets; then emits its event.

    Kafka has them: fine. A later checkpoint has taken its place meanwhile: fine, and said. Kafka has something else:
    while the groups are empty it is told from here; with members in them the task fails, may be retried, and is well as
    soon as the members have committed, at the latest with the next checkpoint.

    The event is one of the asset `kcr://REGION`, an outlet of the task, with the partition key `TIMELINE.SEQUENCE`. A
    DAG with `schedule=PartitionedAssetTimetable(assets=region_asset(REGION))` runs once for each; `checkpoint_of` reads
    it there. Where one checkpoint answers several runs, as it does for intervals from before the region's first
    checkpoint, only the run that asked first emits its event. A region whose name is only known at run time (a
    template) has no outlet, and no event.

    Args:
        checkpoint: which one (templated): its sequence, or what `KcrDrainOperator` has returned; None: the one that
            answered this run's requests.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.

    Raises:
        InvalidIdentifier: the region's name is none.
    """

    template_fields = (*WaitingOperator.template_fields, "checkpoint")

    def __init__(
        self,
        *,
        region: str,
        checkpoint: Mapping[str, Any] | int | str | None = None,
        outlets: Any = None,  # noqa: ANN401 (Airflow's own)
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        own = [region_asset(region)] if _is_known(region) else []
        given = [] if outlets is None else list(outlets) if isinstance(outlets, list | tuple) else [outlets]
        super().__init__(region=region, outlets=[*given, *own], **kwargs)
        self.checkpoint = checkpoint

    def ask(self, context: Context, region: Region) -> CheckpointCommitted:
        """Return which checkpoint to wait for; nothing is asked of the region.

        Raises:
            ConfigurationError: `checkpoint` is none of this region.
            UnknownCheckpoint, CheckpointNotUsable: this run has none, or several.
        """
        return CheckpointCommitted(sequence=self._sequence(context, region))

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Repair Kafka's side if that is needed, emit the event, and return the checkpoint as the drain does."""
        from airflow_kcr.protocol.region.rows import Committed

        view = region.checkpoint(self._sequence(context, region))
        if view.checkpoint.committed is Committed.NO:
            view = self._repaired(region, view)
        row = view.checkpoint
        self.log.info(
            "Checkpoint %d of region %s is published; committed: %s", row.sequence, self.region, row.committed
        )
        if row.committed is Committed.SUPERSEDED:
            self.log.info("Kafka holds, or is being told, the offsets of a later checkpoint or of a reset")
        self._emit(context, view)
        return {
            "region": self.region,
            "timeline": int(row.timeline),
            "sequence": int(row.sequence),
            "boundary": None if row.boundary is None else format_instant(row.boundary),
            "inexact": bool(row.inexact),
        }

    def _sequence(self, context: Context, region: Region) -> int:
        given = self.checkpoint
        if given is None:
            asked = contexts.requester(context)
            return region.checkpoint_of_run(asked.dag_id, asked.run_id).checkpoint.sequence
        if isinstance(given, Mapping):
            if given.get("region") != self.region:
                raise ConfigurationError(f"checkpoint is one of region {given.get('region')!r}, not of {self.region}")
            given = given.get("sequence")
        if isinstance(given, bool) or not str(given).isdecimal():
            raise ConfigurationError(
                f"checkpoint is {given!r}; give a sequence, or what KcrDrainOperator has returned (drain.output)"
            )
        return int(str(given))

    def _repaired(self, region: Region, view: CheckpointView) -> CheckpointView:
        """Return the checkpoint after Kafka was told its offsets from here, if it is the restore point."""
        row = view.checkpoint
        if region.show().restore_point != row.sequence:
            self.log.info("Kafka was never told of checkpoint %d; it is not the restore point any more", row.sequence)
            return view
        self.log.warning("Kafka does not hold checkpoint %d, the restore point; telling it from here", row.sequence)
        try:
            return region.repair_commit(row.sequence)
        except GroupNotEmpty as error:
            # No refusal for good: members are there, and it is they who commit.
            raise KcrError(
                f"Kafka does not hold checkpoint {row.sequence} of region {self.region}, and can't be told from "
                f"outside: {error.message}. Its members commit by themselves, at the latest with the next checkpoint"
            ) from error

    def _emit(self, context: Context, view: CheckpointView) -> None:
        if not _is_known(self.region):
            return
        row = view.checkpoint
        published = PublishedCheckpoint(
            region=self.region,
            timeline=int(row.timeline),
            sequence=int(row.sequence),
            boundary=None if row.boundary is None else format_instant(row.boundary),
            digest=row.digest,
        )
        first, asked = next(iter(view.runs), None), contexts.requester(context)
        runs = {(one.dag_id, one.run_id) for one in view.runs}
        if first is not None and (asked.dag_id, asked.run_id) in runs - {(first.dag_id, first.run_id)}:
            self.log.info("Its event is that of run %s of DAG %s, which asked first", first.run_id, first.dag_id)
            return
        asset = region_asset(self.region)
        if asset not in self.outlets:
            # The name was a template: Airflow drops events of what is no outlet, and says so only in its own log.
            self.log.warning("Region %s is known only at run time, so no asset event is emitted", self.region)
            return
        event = context["outlet_events"][asset]
        event.extra = dict(published.to_json())
        event.add_partitions(published.partition_key)


def _is_known(region: object) -> bool:
    """Whether a region's name is one, and no template that becomes one."""
    return isinstance(region, str) and "{" not in region
