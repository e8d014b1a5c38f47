"""Applies a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import ConfigurationError, RegionInState, StalePlan
from airflow_kcr.hooks import contexts
from airflow_kcr.operators.reset_documents import given, planned
from airflow_kcr.operators.waiting import WaitingOperator
from airflow_kcr.triggers.payloads import ResetDone

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.api import Region
    from airflow_kcr.operators.reset_documents import Planned


class KcrApplyResetOperator(WaitingOperator):
    """Applies a plan, and waits until every partition is where it goes; the members stay in their groups.

    It looks again first. What has changed since the plan was made (another epoch, other partitions, somebody else in a
    group, a log that has moved on) fails the task with what it is, and nothing is reset: clear the task of the plan,
    and whoever approves sees it anew. The reset has the name of the plan, so a retry finds it instead of making another
    one. The history says who approved it and why.

    Args:
        plan: what the task of the approval has returned, or that of the plan where nobody is to be asked (templated):
            `plan=approve.output`. Absent: that of the only task right before.
        reason: why, where nobody has said it on the way (templated).
        forced: without a drain, from the last done positions: the only way from a halted or starting region. Who is in
            the groups is then not looked at.
        consent_upsert: go back although tables of sinks of mode `upsert`, which the plan names, can't be restored.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    template_fields = (*WaitingOperator.template_fields, "plan", "reason")

    def __init__(
        self,
        *,
        plan: Mapping[str, object] | str | None = None,
        reason: str = "",
        forced: bool = False,
        consent_upsert: bool = False,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        super().__init__(**kwargs)
        self.plan = plan
        self.reason = reason
        self.forced = forced
        self.consent_upsert = consent_upsert

    def ask(self, context: Context, region: Region) -> ResetDone:
        """Apply the plan; one that is applied already is found.

        Raises:
            StalePlan: what it was made for has changed.
            UpsertNeedsConsent: it goes back behind a table that can't be restored.
            RegionInState: a check of the groups failed, or the region can't drain.
            ConfigurationError: it was not approved, or is of another region.
        """
        found = self._planned(context)
        if region.applied_reset(found.plan.plan) is None and not self.forced:
            self._require_membership(region)
        requester = contexts.requester(context)
        reason = found.reason or self.reason or f"run {requester.run_id} of DAG {requester.dag_id}"
        try:
            view = region.apply_reset(
                found.plan,
                reason,
                forced=self.forced,
                consent_upsert=self.consent_upsert,
                requester=replace(requester, who=found.by or requester.who),
            )
        except StalePlan as error:
            raise StalePlan(
                f"{error.message}. Nothing was reset: clear the task that made the plan, and those after it"
            ) from error
        self.log.info("Reset %s of region %s is %s", view.reset_id, self.region, view.state)
        return ResetDone(request_id=found.plan.plan)

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Return what was reset: id, plan, epoch, timeline, what it undid, and who asked."""
        plan = self._planned(context).plan.plan
        view = region.applied_reset(plan)
        if view is None:
            raise ConfigurationError(f"the reset of plan {plan} is gone; was the region deleted?")
        document = view.to_json()
        names = ("region", "id", "plan", "state", "target", "epoch", "timeline", "undone", "who", "reason")
        return {name: document[name] for name in names}

    def _planned(self, context: Context) -> Planned:
        document = given(self, context, self.plan, "plan")
        if document.get("approved") is False:
            raise ConfigurationError(f"the plan was rejected by {document.get('by') or 'somebody'}; it is not applied")
        return planned(document)

    def _require_membership(self, region: Region) -> None:
        """Refuse while a group is not what the region takes it for.

        Raises:
            RegionInState: a check failed; the message has all that did.
        """
        from airflow_kcr.protocol.evidence import Verdict
        from airflow_kcr.protocol.region.rows import RegionState

        if region.show().state == RegionState.STOPPED:
            return  # its groups have to be empty, which is looked at when it is applied
        checks = self.hook.validate(self.region).checks
        failed = [f"{c.group}, {c.question}: {c.detail}" for c in checks if c.verdict is Verdict.FAILED]
        if failed:
            raise RegionInState(
                f"{len(failed)} check(s) of the groups of region {self.region} failed: {'; '.join(failed)}. Nothing "
                "was reset; `kcr group validate` shows when they are all right, then clear this task"
            )
