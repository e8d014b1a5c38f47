"""Asks a person whether a reset may be applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict

from airflow_kcr.errors import StalePlan
from airflow_kcr.hooks.failing import translated
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.hooks.links import RegionLink
from airflow_kcr.operators.plan_markdown import markdown
from airflow_kcr.operators.reset_documents import Planned, answered, asking, given, planned, responder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import BaseOperatorLink, Context

SHOWN: Final = "kcr_plan_shown"
"""The XCom that holds the name of the plan that the person was shown."""


class KcrApproveResetOperator(ApprovalOperator):
    """Shows a person a plan, its sums first and then its worst partitions, and returns it approved, by whom and why.

    Rejected, the tasks after it are skipped. When nobody answers within `response_timeout`, it fails; there is no
    default answer. Who may answer is Airflow's to say: a viewer sees the plan, and can't.

    Args:
        region: the region's name, for the link to its page (templated).
        plan: what the task of the plan has returned (templated): `plan=plan.output`. Absent: that of the only task
            right before.
        kcr_conn_id: the Airflow connection of the store, for that link (templated); nothing is asked of the store.
        kwargs: as for `ApprovalOperator`.
    """

    template_fields: Sequence[str] = ("region", "plan", "kcr_conn_id")
    operator_extra_links: Sequence[BaseOperatorLink] = (RegionLink(),)
    ui_color = "#e4f0f7"

    def __init__(
        self,
        *,
        region: str,
        plan: Mapping[str, object] | str | None = None,
        kcr_conn_id: str = KcrHook.default_conn_name,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        kwargs = asking(type(self).__name__, kwargs)
        kwargs.setdefault("subject", "Reset: approve the plan")
        super().__init__(**kwargs)
        self.region = region
        self.plan = plan
        self.kcr_conn_id = kcr_conn_id

    def execute(self, context: Context) -> None:
        """Show the plan, and wait for the person without a slot.

        Raises:
            AirflowFailException: there is no plan.
            TaskAwaitingInput: always, else; the task goes on in `execute_complete`.
        """
        RegionLink().persist(context, self.region, self.kcr_conn_id)
        found = self._planned(context)
        self.subject = f"Reset region {found.plan.region}: {found.plan.target}?"
        self.body = markdown(found.plan, found.reason, found.by)
        self.params = ParamsDict(
            {
                "reason": Param(
                    found.reason or None,
                    type=["null", "string"],
                    title="Reason",
                    description="Others find it in the history.",
                )
            }
        )
        context["ti"].xcom_push(key=SHOWN, value=found.plan.plan)
        super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, object]:
        """Return the plan with who approved it, when and why; rejected, skip what comes after.

        Raises:
            AirflowFailException: the plan is another one than was shown.
            AirflowFailException: nobody answered in time.
        """
        with answered():
            super().execute_complete(context, event)
        found = self._planned(context)
        pull: Any = context["ti"].xcom_pull
        shown = pull(task_ids=self.task_id, key=SHOWN)
        if shown != found.plan.plan:
            with translated():
                raise StalePlan(
                    f"the plan that was shown ({shown}) is not the one that there is now ({found.plan.plan}): it was "
                    "made anew meanwhile; clear this task to look at it"
                )
        reason = str((event["params_input"] or {}).get("reason") or found.reason)
        return {
            "plan": dict(found.document),
            "approved": event["chosen_options"] == [self.APPROVE],
            "by": responder(event),
            "at": str(event["responded_at"].isoformat()),
            "reason": reason,
        }

    def _planned(self, context: Context) -> Planned:
        with translated():
            return planned(given(self, context, self.plan, "plan"))
