"""Gives a DAG run its cut."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks import contexts
from airflow_kcr.hooks.failing import translated
from airflow_kcr.operators.intervals import require_fit
from airflow_kcr.operators.waiting import WaitingOperator
from airflow_kcr.protocol.instants import checked_instant, format_instant, parse_instant
from airflow_kcr.triggers.payloads import Answer, CutPublished

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from airflow_kcr.api import Region
    from airflow_kcr.protocol.region.rows import Checkpoint


class KcrDrainOperator(WaitingOperator):
    """Asks for the run's cut, waits until it is published, and returns which checkpoint it is.

    The cut is aligned to the end of the run's data interval, so it holds exactly the interval's records; where the
    region has cut itself there already (`request: auto`), that cut is found. A run without an interval (manual, or
    triggered by an asset) gets a cut wherever the members are.

    The request is named after the run and the task. A retried or cleared task finds the cut that it was given; only
    where a reset has undone that one, or where it was aborted, is another made.

    Args:
        until: the bound instead of the interval's end (templated), an instant with a zone. Unlike the interval, it is
            not compared with the region's schedule: you say which records you want.
        allow_inexact: cut even where a partition is past the bound, and say so in the result.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    template_fields = (*WaitingOperator.template_fields, "until")

    def __init__(self, *, until: datetime | str | None = None, allow_inexact: bool = False, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.until = until
        self.allow_inexact = allow_inexact

    def ask(self, context: Context, region: Region) -> CutPublished:
        """Ask for the cut, under the name of run and task.

        Raises:
            ConfigurationError: the run's data interval is of no length, or does not fit the region's schedule; `until`
                is no instant.
            RegionInState, CutRefused: the region can't be cut as asked.
        """
        from airflow_kcr.protocol.region.rows import CutPurpose

        asked = region.drain(
            self._bound(context, region),
            nonce=contexts.nonce(context),
            allow_inexact=self.allow_inexact,
            purpose=CutPurpose.REQUEST,
        )
        return CutPublished(nonce=asked.request.nonce)

    def resume(
        self,
        context: Context,
        event: Mapping[str, object],
        waiting_for: Mapping[str, Any] | None = None,
        asked_at: str = "",
    ) -> dict[str, Any]:
        """Go on after the trigger; a cut that a reset has undone meanwhile is asked for anew, under the same name."""
        with translated():
            Answer.from_json(event).require_reached()
        return self.execute(context)

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Return the checkpoint: region, lineage, sequence, bound and whether it is inexact."""
        cut = region.cut(contexts.nonce(context))
        row = cut.checkpoint
        if row is None:
            raise ConfigurationError(f"the cut of nonce {cut.request.nonce} is gone; was the region deleted?")
        for remark in self._remarks(context, region, row):
            self.log.warning("%s", remark)
        self.log.info("Checkpoint %d of region %s, lineage %d, is published", row.sequence, self.region, row.lineage)
        return {
            "region": self.region,
            "lineage": int(row.lineage),
            "sequence": int(row.sequence),
            "bound": None if row.bound is None else format_instant(row.bound),
            "inexact": bool(row.inexact),
        }

    def _bound(self, context: Context, region: Region) -> datetime | None:
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
        """Return how the cut's records differ from the interval's, in sentences; none: they are the same."""
        found = [f"{partition}: {why}" for partition, why in sorted(row.inexact.items())]
        interval = None if self.until is not None else contexts.interval_of(context)
        if interval is None:
            return found
        start, end = (checked_instant(moment) for moment in interval)
        if row.bound is not None and row.bound > end:
            found.append(
                f"no cut was made at {format_instant(end)}, the end of the run's interval: the first one beyond it, of "
                f"{format_instant(row.bound)}, answers, and holds the records of all intervals up to there"
            )
        previous = region.checkpoint_before(row.sequence)
        if previous is None:
            found.append(f"it is the region's first cut: it holds all records before {format_instant(end)}")
        elif previous.bound is None:
            found.append(
                f"cut {previous.sequence} before it has no bound: the interval's records up to there are in that one"
            )
        elif previous.bound < start:
            found.append(
                f"no cut was made at {format_instant(start)}, the begin of the run's interval: this one holds the "
                f"records since {format_instant(previous.bound)}"
            )
        return found
