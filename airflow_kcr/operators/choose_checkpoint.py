"""Asks a person for the checkpoint to go back to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowSkipException

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError
from airflow_kcr.hooks import contexts
from airflow_kcr.hooks.failing import translated
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.hooks.links import RegionLink
from airflow_kcr.operators.reset_documents import answered, asking, responder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import BaseOperatorLink, Context

    from airflow_kcr.api import CheckpointView

CHOOSE: Final = "Choose"
CANCEL: Final = "Cancel"


class KcrChooseCheckpointOperator(HITLOperator):
    """Shows a person the checkpoints that a region can go back to, as they are then, and returns the one chosen.

    The list is made when the task runs, and the answer is looked up in the store again: Airflow does not compare it
    with the list, and retention may have been quicker than the person. What retention had overtaken when the newest cut
    was made is not in the list. Cancelled, it is skipped, and what comes after
    it too. When nobody answers within `response_timeout`, it fails; there is no default answer.

    Args:
        region: the region's name (templated).
        kcr_conn_id: the Airflow connection of the store (templated).
        newest: how many checkpoints are shown, the newest first.
        kwargs: as for `HITLOperator`, but for what this operator says itself.
    """

    template_fields: Sequence[str] = ("region", "kcr_conn_id")
    operator_extra_links: Sequence[BaseOperatorLink] = (RegionLink(),)
    ui_color = "#e4f0f7"

    def __init__(
        self,
        *,
        region: str,
        kcr_conn_id: str = KcrHook.default_conn_name,
        newest: int = 20,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        kwargs = asking(type(self).__name__, kwargs)
        kwargs.setdefault("subject", "Reset: choose a checkpoint")
        super().__init__(options=[CHOOSE, CANCEL], **kwargs)
        if newest < 1:
            raise ConfigurationError(f"newest is how many checkpoints are shown, at least one, not {newest}")
        self.region = region
        self.kcr_conn_id = kcr_conn_id
        self.newest = newest

    def execute(self, context: Context) -> None:
        """Show the checkpoints, and wait for the person without a slot.

        Raises:
            AirflowFailException: the region has no checkpoint to go back to.
            TaskAwaitingInput: always, else; the task goes on in `execute_complete`.
        """
        RegionLink().persist(context, self.region, self.kcr_conn_id)
        with translated(), KcrHook(self.kcr_conn_id).region(self.region, contexts.requester(context)) as region:
            usable = [one for one in region.checkpoints() if one.checkpoint.is_complete and one.checkpoint.is_on_path]
            reachable = [one for one in usable if one.reach is None or not one.reach.is_unreachable]
            shown = [one.checkpoint.sequence for one in reversed(reachable)][: self.newest]
            found = region.checkpoint_views(shown)
            if not found:
                lost = f" that the logs still have ({len(usable)} are unreachable)" if usable else ""
                raise CheckpointNotUsable(
                    f"region {self.region} has no complete checkpoint on its path{lost}; plan with another target"
                )
        self.subject = f"Reset region {self.region}: to which checkpoint?"
        self.body = _body(found)
        self.params = ParamsDict(
            {
                "checkpoint": Param(
                    int(found[0].checkpoint.sequence),
                    type="integer",
                    enum=[int(view.checkpoint.sequence) for view in found],
                    values_display={str(view.checkpoint.sequence): _label(view) for view in found},
                    title="Checkpoint",
                ),
                "reason": Param(
                    None, type=["null", "string"], title="Reason", description="Others find it in the history."
                ),
            }
        )
        super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, object]:
        """Return what was chosen, looked up in the store again.

        Raises:
            AirflowSkipException: it was cancelled.
            AirflowFailException: it is no checkpoint that the region can go back to.
            AirflowFailException: nobody answered in time.
        """
        with answered():
            super().execute_complete(context, event)
        if event["chosen_options"] != [CHOOSE]:
            raise AirflowSkipException(f"{responder(event) or 'somebody'} cancelled; nothing is reset")
        answer = event["params_input"] or {}
        with translated():
            sequence = _sequence(answer)
            with KcrHook(self.kcr_conn_id).region(self.region, contexts.requester(context)) as region:
                row = region.checkpoint(sequence).checkpoint
            if not row.is_complete or not row.is_on_path:
                what = row.state if not row.is_complete else "not on the current path any more"
                raise CheckpointNotUsable(f"checkpoint {sequence} is {what}; clear this task to choose another one")
        return {
            "region": self.region,
            "checkpoint": int(row.sequence),
            "lineage": int(row.lineage),
            "bound": None if row.bound is None else row.bound.isoformat(),
            "by": responder(event),
            "reason": str(answer.get("reason") or ""),
        }


def _sequence(answer: Mapping[str, object]) -> int:
    value = answer.get("checkpoint")
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ConfigurationError(f"the answer names no checkpoint, but {value!r}; clear this task to choose one")


def _label(view: CheckpointView) -> str:
    row = view.checkpoint
    when = "" if row.ended_at is None else f"{row.ended_at:%Y-%m-%d %H:%M:%S} UTC"
    bound = "" if row.bound is None else f"bound {row.bound:%Y-%m-%d %H:%M:%S} UTC"
    run = view.requester.run_id
    pinned = f"pinned as {row.pinned_as}" if row.pinned_as else ""
    return " · ".join(text for text in (str(row.sequence), bound or when, run, pinned) if text)


def _body(found: Sequence[CheckpointView]) -> str:
    from airflow_kcr.operators.plan_markdown import table

    rows = [
        (
            str(view.checkpoint.sequence),
            "" if view.checkpoint.bound is None else f"{view.checkpoint.bound:%Y-%m-%d %H:%M:%S} UTC",
            "" if view.checkpoint.ended_at is None else f"{view.checkpoint.ended_at:%Y-%m-%d %H:%M:%S} UTC",
            f"{view.requester.dag_id} / {view.requester.run_id}" if view.requester.dag_id else view.requester.who,
            view.checkpoint.pinned_as,
        )
        for view in found
    ]
    return table(("Checkpoint", "Bound", "Made at", "Asked for by", "Pinned as"), rows, numbers=(0,))
