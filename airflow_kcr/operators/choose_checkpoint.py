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
    from datetime import datetime

    from airflow.sdk import BaseOperatorLink, Context

    from airflow_kcr.api import WayBack

CHOOSE: Final = "Choose"
CANCEL: Final = "Cancel"

LABEL_RUNS: Final = 1
"""How many DAG runs an entry of the list names: a run id fills most of its line."""

TABLE_RUNS: Final = 3
"""How many of them a row of the table names."""

NOTHING_MOVES: Final = (
    "Nothing has been processed since any of these checkpoints: a reset to one of them moves no partition."
)


class KcrChooseCheckpointOperator(HITLOperator):
    """Shows a person the checkpoints that a region can go back to, as they are then, and returns the one chosen.

    Each checkpoint is listed with its boundary, the DAG runs that it answers, and how many records would be processed
    again as things stand. The newest one that would move a partition is proposed; where none would, that is said.

    The list is made when the task runs, and the answer is looked up in the store again: Airflow does not compare it
    with the list, and retention may have been quicker than the person. What retention had overtaken when the newest
    checkpoint was made is not in the list. Cancelled, it is skipped, and what comes after it too. When nobody answers
    within `response_timeout`, it fails; there is no default answer.

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
            found = region.ways_back(self.newest)
        self.subject = f"Reset region {self.region}: to which checkpoint?"
        self.body = _body(found)
        self.params = ParamsDict(
            {
                "checkpoint": Param(
                    int(next((one for one in found if one.moved), found[0]).checkpoint.sequence),
                    type="integer",
                    enum=[int(one.checkpoint.sequence) for one in found],
                    values_display={str(one.checkpoint.sequence): _label(one) for one in found},
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
            "timeline": int(row.timeline),
            "boundary": None if row.boundary is None else row.boundary.isoformat(),
            "by": responder(event),
            "reason": str(answer.get("reason") or ""),
        }


def _sequence(answer: Mapping[str, object]) -> int:
    value = answer.get("checkpoint")
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ConfigurationError(f"the answer names no checkpoint, but {value!r}; clear this task to choose one")


def _label(one: WayBack) -> str:
    row = one.checkpoint
    made = "" if row.ended_at is None else f"made {_time(row.ended_at)}"
    boundary = "" if row.boundary is None else f"boundary {_time(row.boundary)}"
    runs = _listed([run.run_id for run in one.runs], LABEL_RUNS)
    pinned = f"pinned as {row.pinned_as}" if row.pinned_as else ""
    return " · ".join(text for text in (str(row.sequence), boundary or made, runs, _again(one), pinned) if text)


def _again(one: WayBack) -> str:
    if not one.moved:
        return "moves nothing"
    records = "1 record" if one.replay == 1 else f"{one.replay:,} records"
    return f"{records} again"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _listed(texts: Sequence[str], most: int) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _body(found: Sequence[WayBack]) -> str:
    from airflow_kcr.operators.plan_markdown import table

    rows = [
        (
            str(one.checkpoint.sequence),
            "" if one.checkpoint.boundary is None else _time(one.checkpoint.boundary),
            _listed([f"{run.dag_id} / {run.run_id}" for run in one.runs], TABLE_RUNS) or "none",
            f"{one.replay:,}" if one.moved else "moves nothing",
            "" if one.checkpoint.ended_at is None else _time(one.checkpoint.ended_at),
            one.checkpoint.pinned_as,
        )
        for one in found
    ]
    head = ("Checkpoint", "Boundary", "DAG runs answered", "Records again", "Made at", "Pinned as")
    parts = [table(head, rows, numbers=(0, 3))]
    if not any(one.moved for one in found):
        parts.insert(0, NOTHING_MOVES)
    return "\n\n".join(parts)
