"""One interval of a region that rests between its runs, in one task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from airflow_kcr.errors import CheckpointRefused, ConfigurationError, SinkError
from airflow_kcr.hooks import kcr
from airflow_kcr.operators.events import outlets_of, settled
from airflow_kcr.operators.intervals import boundary_of, interval_of, remarks
from airflow_kcr.operators.recomputing import RecomputingOperator
from airflow_kcr.operators.region import read_spec
from airflow_kcr.operators.running import RunningOperator
from airflow_kcr.protocol.values import RequestId

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.api import Region
    from airflow_kcr.protocol.region.rows import Checkpoint
    from airflow_kcr.spec import RegionSpec


OnClear: TypeAlias = Literal["recompute", "find"]
"""What a task that is cleared does, whose run has its checkpoint."""

_ON_CLEAR: Final = ("recompute", "find")


class KcrIntervalOperator(RunningOperator, RecomputingOperator):
    """Processes the records of the run's data interval, like `kcr run`, and leaves nothing running.

    The task starts one Spark application with all members of the region, waits until they have committed the interval's
    checkpoint, and emits the region's event, as `KcrCommitCheckpointOperator` does. If the interval has no record,
    Spark isn't started. A run without an interval (manual, or triggered by an asset) takes what the topics have now.

    A retry continues where the try before it ended. A cleared task, or a run of a backfill, recomputes an interval that
    is processed, as `KcrRecomputeOperator` does; later intervals stay as they are. Where a reset has undone the
    checkpoint, it processes the interval anew. A region that runs by itself is refused, and so is a run beside another
    one: give the DAG `max_active_runs=1`.

    If the task is killed, its application ends. In a cluster's deploy mode it goes on, and the next try takes its
    members over, or finds the checkpoint.

    Args:
        region: the region's name (templated); or
        spec: its spec, as for `KcrApplyRegionOperator`: each run applies it first.
        until: the end instead of the interval's (templated), an instant with a zone. It need not be one of the region's
            schedule.
        allow_inexact: checkpoint even where a partition is past that instant; the result has `inexact`.
        on_clear: `recompute`, as above; `find`: a cleared task finds its checkpoint, and changes nothing.
        consent_upsert: recompute tables of mode `upsert` although rows that were overwritten don't come back.
        consent_compacted: recompute although compaction may have taken records, whose output then goes.
        downstream: of a recomputation, as for `KcrRecomputeOperator`.
        outlets: further ones, beside the region's asset.
        group_id: host members of this group only (templated), beside `KcrRunMembersOperator` for the others.
        indexes: which members of the group (templated).
        kwargs: as for `KcrConsumeOperator`; `kcr_conn_id`, `conn_id` and `conf` among them.

    Raises:
        InvalidIdentifier: the region's name is none.
        SpecError: the spec has contradictions, all of them named.
        ConfigurationError: both region and spec are given, or none; or `on_clear` is none of its words.
    """

    def __init__(
        self,
        *,
        region: str = "",
        spec: RegionSpec | Mapping[str, object] | str | Path | None = None,
        on_clear: OnClear = "recompute",
        outlets: Any = None,  # noqa: ANN401 (Airflow's own)
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        if bool(region) == (spec is not None):
            raise ConfigurationError("KcrIntervalOperator takes region or spec, one of the two")
        if on_clear not in _ON_CLEAR:
            raise ConfigurationError(f"on_clear is {on_clear!r}; write one of {', '.join(_ON_CLEAR)}")
        found = None if spec is None else read_spec(spec)
        name = region if found is None else found.region
        super().__init__(region=name, outlets=outlets_of(name, outlets), **kwargs)
        self.spec = found
        self.on_clear: OnClear = on_clear

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override] # the provider's returns nothing
        """Carry the run out, and return its checkpoint: region, timeline, sequence, boundary, whether it is inexact.

        Args:
            context: the task's.

        Raises:
            AirflowFailException: a retry can't help: something is configured wrongly, or the region refuses.
            AirflowException: it may: the application was ended, or it failed.
        """
        request_id = kcr.request_id(context)
        with self.lent(context) as region:
            if self.spec is not None:
                applied = region.apply(self.spec)
                self.log.info("Region %s is %s", applied.region, applied.change)
            row = self._to_recompute(context, region)
        if row is not None:
            return self.recompute(context, int(row.sequence), kcr.cleared_request_id(context))
        self.carry_out(context, request_id)
        with self.lent(context) as region:
            return self._returned(context, region)

    def resume(self, context: Context, event: Mapping[str, object]) -> dict[str, Any]:
        """Go on after the trigger: the run is over.

        Args:
            context: the task's.
            event: `payloads.TriggerAnswer` as JSON.

        Raises:
            AirflowFailException: there will be no checkpoint.
            AirflowException: the application has ended before the run was over.
        """
        self.require_reached(event)
        with self.lent(context) as region:
            return self._returned(context, region)

    def _to_recompute(self, context: Context, region: Region) -> Checkpoint | None:
        """Return the checkpoint that a cleared task recomputes, or one of a backfill; None: it makes or finds one."""
        if self.on_clear == "find":
            return None
        if kcr.is_cleared(context, self.retries or 0):
            return self._made(context, region)
        # Of a DAG of partitions, a backfill makes runs beside those that there were.
        return self._made_by_another(context, region) if kcr.is_backfill(context) else None

    def _made(self, context: Context, region: Region) -> Checkpoint | None:
        """Return the current checkpoint that this run has made."""
        request_id = RequestId(kcr.request_id(context))
        try:
            asked = region.checkpoint_request(request_id)
        except ConfigurationError:
            return None  # no try has come as far as to ask
        row = asked.checkpoint
        return row if row is not None and row.is_current else None

    def _made_by_another(self, context: Context, region: Region) -> Checkpoint | None:
        """Return the current checkpoint at the end of this run's interval, if another run has made it."""
        boundary = boundary_of(context, region.spec(), self.until)
        row = None if boundary is None else region.checkpoints.at(boundary)
        return row if row is not None and row.request_id != kcr.request_id(context) else None

    def _returned(self, context: Context, region: Region) -> dict[str, Any]:
        row, previous = region.answered(kcr.request_id(context))
        if row is None:
            raise CheckpointRefused(f"the run of region {self.region} has ended without its checkpoint; see its log")
        if row.published_at is None:
            raise SinkError(
                f"checkpoint {row.sequence} of region {self.region} is complete, and a sink does not show it yet"
            )
        interval = None if self.until is not None else interval_of(context, region.spec())
        for remark in remarks(interval, row, previous):
            self.log.warning("%s", remark)
        return settled(self, context, region, int(row.sequence))
