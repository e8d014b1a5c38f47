"""Gives a DAG run its checkpoint."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks import contexts
from airflow_kcr.hooks.failing import translated
from airflow_kcr.operators.intervals import require_fit
from airflow_kcr.operators.waiting import WaitingOperator
from airflow_kcr.protocol.instants import checked_instant, format_instant, parse_instant
from airflow_kcr.triggers.payloads import Answer, CheckpointPublished

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from airflow_kcr.api import Region
    from airflow_kcr.protocol.region.rows import Checkpoint


class KcrDrainOperator(WaitingOperator):
    """Asks for the run's checkpoint, waits until it is published, and returns which checkpoint it is.

    The checkpoint is aligned to the end of the run's data interval, so it holds exactly the interval's records; where
    the region has checkpointed itself there already (`request: auto`), that checkpoint is found. A run without an
    interval (manual, or triggered by an asset) gets a checkpoint wherever the members are.

    The request is named after the run and the task. A retried or cleared task finds the checkpoint that it was given;
    only where a reset has undone that one, or where it was aborted, is another made.

    Args:
        until: the boundary instead of the interval's end (templated), an instant with a zone. Unlike the interval, it
            is not compared with the region's schedule: you say which records you want.
        allow_inexact: checkpoint even where a partition is past the boundary, and say so in the result.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    template_fields = (*WaitingOperator.template_fields, "until")

    def __init__(self, *, until: datetime | str | None = None, allow_inexact: bool = False, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.until = until
        self.allow_inexact = allow_inexact

    def ask(self, context: Context, region: Region) -> CheckpointPublished:
        """Ask for the checkpoint, under the name of run and task.

        Raises:
            ConfigurationError: the run's data interval is of no length, or does not fit the region's schedule; `until`
                is no instant.
            RegionInState, CheckpointRefused: the region can't be checkpointed as asked.
        """
        from airflow_kcr.protocol.region.rows import CheckpointPurpose

        asked = region.drain(
            self._boundary(context, region),
            request_id=contexts.request_id(context),
            allow_inexact=self.allow_inexact,
            purpose=CheckpointPurpose.REQUEST,
        )
        return CheckpointPublished(request_id=asked.request.request_id)

    def resume(
        self,
        context: Context,
        event: Mapping[str, object],
        waiting_for: Mapping[str, Any] | None = None,
        asked_at: str = "",
    ) -> dict[str, Any]:
        """Go on after the trigger.

        A checkpoint that a reset has undone meanwhile is asked for anew, under the same name.
        """
        with translated():
            Answer.from_json(event).require_reached()
        return self.execute(context)

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Return the checkpoint: region, timeline, sequence, boundary and whether it is inexact."""
        checkpoint_request = region.checkpoint_request(contexts.request_id(context))
        row = checkpoint_request.checkpoint
        if row is None:
            raise ConfigurationError(
                f"the checkpoint of request id {checkpoint_request.request.request_id} is gone; was the region deleted?"
            )
        for remark in self._remarks(context, region, row):
            self.log.warning("%s", remark)
        self.log.info("Checkpoint %d of region %s, timeline %d, is published", row.sequence, self.region, row.timeline)
        return {
            "region": self.region,
            "timeline": int(row.timeline),
            "sequence": int(row.sequence),
            "boundary": None if row.boundary is None else format_instant(row.boundary),
            "inexact": bool(row.inexact),
        }

    def _boundary(self, context: Context, region: Region) -> datetime | None:
        if isinstance(self.until, datetime):
            return checked_instant(self.until)
        if self.until is not None:
            return parse_instant(str(self.until))
        interval = contexts.interval_of(context)
        if interval is None:
            return None
        start, end = (checked_instant(moment) for moment in interval)
        require_fit(region.spec(), start, end)
        return end

    def _remarks(self, context: Context, region: Region, row: Checkpoint) -> list[str]:
        """Return how the checkpoint's records differ from the interval's, in sentences; none: they are the same."""
        found = [f"{partition}: {why}" for partition, why in sorted(row.inexact.items())]
        interval = None if self.until is not None else contexts.interval_of(context)
        if interval is None:
            return found
        start, end = (checked_instant(moment) for moment in interval)
        if row.boundary is not None and row.boundary > end:
            found.append(
                f"no checkpoint was made at {format_instant(end)}, the end of the run's interval: the first one "
                "beyond it, of "
                f"{format_instant(row.boundary)}, answers, and holds the records of all intervals up to there"
            )
        previous = region.checkpoint_before(row.sequence)
        if previous is None:
            found.append(f"it is the region's first checkpoint: it holds all records before {format_instant(end)}")
        elif previous.boundary is None:
            found.append(
                f"checkpoint {previous.sequence} before it has no boundary: the interval's records up to there are in "
                "that one"
            )
        elif previous.boundary < start:
            found.append(
                f"no checkpoint was made at {format_instant(start)}, the begin of the run's interval: this one holds "
                "the "
                f"records since {format_instant(previous.boundary)}"
            )
        return found
