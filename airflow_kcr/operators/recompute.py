"""A checkpoint's records once more, by the pipeline as it is now, in one task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks import kcr
from airflow_kcr.operators.application import ApplicationOperator
from airflow_kcr.operators.events import outlets_of
from airflow_kcr.operators.intervals import boundary_of
from airflow_kcr.operators.recomputing import RecomputingOperator
from airflow_kcr.protocol.values import format_instant

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.api import Region


class KcrRecomputeOperator(RecomputingOperator):
    """Recomputes a checkpoint, like `kcr recompute`: processes its records again and replaces its output.

    It uses the pipeline and the sinks of the spec in force. Readers see the old output until all of the new one is
    there; members and runs of intervals go on meanwhile. The task emits the checkpoint's event again, with the same
    partition key and with `revision`, which counts how often the output was replaced.

    Without `checkpoint` and `run`, it takes the checkpoint at the end of the run's data interval.

    A retry finds a recomputation that is done, and repeats one that isn't. The task fails for good if a reset has
    undone the checkpoint, Kafka no longer has its records, or a sink can't replace.

    With `into` or `compare`, to try new code on past intervals, nothing is replaced and no event is emitted. `into`
    writes the output into other sinks. `compare` returns how the output differs from the present one, with counts and
    examples, and drops it.

    Args:
        region: the region's name (templated).
        checkpoint: the sequence of the checkpoint (templated); or
        run: the DAG run that it is of, as `DAG_ID/RUN_ID` (templated).
        groups: whose output is replaced (templated); absent: all.
        consent_upsert: recompute tables of mode `upsert` although rows that were overwritten don't come back.
        consent_compacted: recompute although compaction may have taken records, whose output then goes.
        into: other sinks (templated), as in the spec, by group and name: `{"tills": {"sales": {"kind": …}}}`. At least
            those that the pipeline writes to; no region may write to their places.
        compare: the columns that name a row (templated), or `kcr_topic`, `kcr_partition`, `kcr_offset`.
        downstream: `rerun`: DAGs scheduled by the partitions of the region's asset run again. `tell`: the event has no
            partition key, so they don't; from Airflow 3.3 on.
        outlets: further ones, beside the region's asset.
        kwargs: as for `KcrConsumeOperator`; `kcr_conn_id`, `conn_id` and `conf` among them.

    Raises:
        InvalidIdentifier: the region's name is none.
        ConfigurationError: two of checkpoint and run are given, or of into, compare and a consent; `downstream` is none
            of its words, or `tell` before Airflow 3.3.
    """

    template_fields: Sequence[str] = (
        *ApplicationOperator.template_fields,
        *("checkpoint", "run", "groups", "into", "compare"),
    )

    def __init__(
        self,
        *,
        region: str,
        checkpoint: int | str | None = None,
        run: str | None = None,
        outlets: Any = None,  # noqa: ANN401 (Airflow's own)
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        if checkpoint is not None and run is not None:
            raise ConfigurationError("KcrRecomputeOperator takes checkpoint or run, or none of the two")
        # What replaces nothing emits no event of the region.
        is_replaced = kwargs.get("into") is None and not kwargs.get("compare")
        super().__init__(region=region, outlets=outlets_of(region, outlets) if is_replaced else outlets, **kwargs)
        self.checkpoint = checkpoint
        self.run = run

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override] # the provider's returns nothing
        """Recompute, and return the checkpoint: region, timeline, sequence, boundary, revision.

        With `into`, return the recomputation; with `compare`, `comparisons`, one of each sink.

        Args:
            context: the task's.

        Raises:
            AirflowFailException: a retry can't help: something is configured wrongly, or the region refuses.
            AirflowException: it may: the application was ended, or it failed.
        """
        with self.lent(context) as region:
            sequence = self._sequence(context, region)
        return self.recompute(context, sequence, kcr.cleared_request_id(context))

    def _sequence(self, context: Context, region: Region) -> int:
        if self.checkpoint is not None:
            if not str(self.checkpoint).isdecimal():
                raise ConfigurationError(f"checkpoint is {self.checkpoint!r}; write the number of one")
            return int(self.checkpoint)
        if self.run is not None:
            dag_id, _, run_id = self.run.partition("/")
            return region.checkpoints.number_of_run(dag_id, run_id)
        boundary = boundary_of(context, region.spec(), None)
        if boundary is None:
            raise ConfigurationError(
                "the run has no data interval whose checkpoint could be recomputed: give checkpoint or run"
            )
        (found,) = region.checkpoints.between(boundary - timedelta(microseconds=1), boundary)
        self.log.info("checkpoint %d of region %s ends at %s", found, region.name, format_instant(boundary))
        return found
