"""A checkpoint's records once more, by the pipeline as it is now: what an operator has Spark do for that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from airflow_kcr.airflow_features import CHECKPOINT_KEYS
from airflow_kcr.driver.task import Task
from airflow_kcr.errors import ConfigurationError, TimedOut
from airflow_kcr.goals import RecomputationDone
from airflow_kcr.hooks import kcr
from airflow_kcr.hooks.compat import require
from airflow_kcr.hooks.kcr import translated
from airflow_kcr.operators.application import ApplicationOperator
from airflow_kcr.operators.events import revised
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, RequestId

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.api import Region
    from airflow_kcr.api.recomputations import RecomputationView, RegionRecomputation
    from airflow_kcr.hooks.spark_submit import KcrSparkSubmitHook, Submission

Downstream: TypeAlias = Literal["rerun", "tell"]
"""What a revision means for the DAGs downstream: they run again for its partition key, or only its event says so."""

_WORDS: Final = ("rerun", "tell")


class RecomputingOperator(ApplicationOperator):
    """An operator that can have a checkpoint recomputed.

    Args:
        downstream: what DAGs downstream do.
        groups: whose output is replaced; absent: that of all groups.
        consent_upsert: recompute tables of mode `upsert`, too.
        consent_compacted: read topics once more that are compacted, too.
        into: other sinks, by group and name, that the output goes into instead; nothing is replaced.
        compare: the columns by which the output is compared instead with what is shown; nothing is replaced.
        kwargs: as for `ApplicationOperator`.
    """

    def __init__(
        self,
        *,
        downstream: Downstream = "rerun",
        groups: Sequence[str] = (),
        consent_upsert: bool = False,
        consent_compacted: bool = False,
        into: Mapping[str, object] | None = None,
        compare: Sequence[str] = (),
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        if downstream not in _WORDS:
            raise ConfigurationError(f"downstream is {downstream!r}; write one of {', '.join(_WORDS)}")
        if [into is not None, bool(compare), consent_upsert or consent_compacted].count(True) > 1:
            raise ConfigurationError("give one of into, compare and consent_…: the first two replace nothing")
        if downstream == "tell":
            # Without keys, each event has the DAGs downstream run.
            require(CHECKPOINT_KEYS, "downstream='tell'")
        super().__init__(**kwargs)
        self.downstream: Downstream = downstream
        self.groups = groups
        self.consent_upsert = consent_upsert
        self.consent_compacted = consent_compacted
        self.into = into
        self.compare = (compare,) if isinstance(compare, str) else compare

    def recompute(self, context: Context, sequence: int, request_id: str) -> dict[str, Any]:
        """Have a checkpoint recomputed, or find that it is, and return its document.

        Args:
            context: the task's.
            sequence: the checkpoint's.
            request_id: of the recomputation; that of another try is found by it.

        Raises:
            AirflowFailException: a retry can't help.
            AirflowException: it may.
        """
        with self.lent(context) as region:
            wanted = self._wanted(region, sequence, request_id)
            done = wanted.done()
            if done is not None:
                return self._recomputed(context, region, done)
            groups, spec, newest = wanted.groups(), wanted.spec(), region.counter()
        with translated():
            arguments = self._arguments(context, sequence, request_id)
            submission = self.submission(spec, groups, f"kcr recompute {self.region}", *arguments)
            submit = self.started(context, spec, submission, Task.of_this_process("", timedelta(0)))
            if self.compare and submit.compared is None:
                raise TimedOut(f"the application has ended, and did not say how checkpoint {sequence} compares")
        if self.compare:
            return {"region": self.region, "sequence": sequence, "comparisons": submit.compared}
        if not submit.is_cluster:
            with self.lent(context) as region:
                done = self._wanted(region, sequence, request_id).done()
                if done is None:
                    raise TimedOut(f"the application has ended, and checkpoint {sequence} was not recomputed")
                return self._recomputed(context, region, done)
        goal = RecomputationDone(
            sequence=CheckpointNumber(sequence),
            request_id=RequestId(request_id),
            after=EventNumber(newest),
            come_by=self.come_by(),
        )
        self.wait_for_cluster(context, submit, goal, then="resume_recomputed", sequence=sequence, request_id=request_id)

    def prepared(self, context: Context, submission: Submission, environment: Mapping[str, str]) -> KcrSparkSubmitHook:
        """Return the hook that starts the application; nothing has been started."""
        submit = super().prepared(context, submission, environment)
        if self.compare and submit.is_cluster:
            raise ConfigurationError(
                "compare needs what the application prints, which a driver in the cluster prints there; use deploy "
                "mode client, or write into other sinks (into)"
            )
        return submit

    def resume_recomputed(
        self, context: Context, event: Mapping[str, object], sequence: int, request_id: str
    ) -> dict[str, Any]:
        """Go on after the trigger: the recomputation is done.

        Args:
            context: the task's.
            event: `payloads.TriggerAnswer` as JSON.
            sequence: the checkpoint's.
            request_id: of the recomputation.

        Raises:
            AirflowFailException: it can't be done.
            AirflowException: the application has ended before it was.
        """
        self.require_reached(event)
        with self.lent(context) as region:
            done = self._wanted(region, sequence, request_id).done()
            if done is None:
                raise TimedOut(f"checkpoint {sequence} was recomputed, and is not recomputed any more")
            return self._recomputed(context, region, done)

    def _wanted(self, region: Region, sequence: int, request_id: str) -> RegionRecomputation:
        from airflow_kcr.api.recomputations import Compare, Into, RecomputedOutput, Replace

        output: RecomputedOutput = Replace(consent_upsert=self.consent_upsert, consent_compacted=self.consent_compacted)
        if self.into is not None:
            output = Into(sinks=self.into)
        elif self.compare:
            output = Compare(key=tuple(self.compare))
        return region.recompute(sequence, groups=self.groups, request_id=request_id, output=output)

    def _recomputed(self, context: Context, region: Region, done: RecomputationView) -> dict[str, Any]:
        if self.into is not None:
            return done.to_json()
        return revised(self, context, region, done.checkpoint.sequence, is_rerun=self.downstream == "rerun")

    def _arguments(self, context: Context, sequence: int, request_id: str) -> list[str]:
        options = {
            "--checkpoint": str(sequence),
            "--request-id": request_id,
            "--dag-run": kcr.run_name(context),
            "--into": None if self.into is None else json.dumps(self.into),
            "--compare": ",".join(self.compare) or None,
        }
        named = [part for name, value in options.items() if value is not None for part in (name, value)]
        groups = [part for group in self.groups for part in ("--group", group)]
        consents = {"--consent-upsert": self.consent_upsert, "--consent-compacted": self.consent_compacted}
        return ["recompute", self.region, *named, *groups, *(option for option, given in consents.items() if given)]
