"""The task of those members of a run that have an application of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_kcr.hooks import kcr
from airflow_kcr.operators.running import RunningOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class KcrRunMembersOperator(RunningOperator):
    """Hosts some members of a run in an application of their own, beside the task that carries the run out.

    A `KcrIntervalOperator` with `group_id` and `indexes` starts an application with those members only. The others need
    a task of this operator each, in the same DAG, not before or after it, with the same `until`; `region_dags` makes
    them::

        run = KcrIntervalOperator(task_id="run", region="flights", group_id="flights-etl", indexes=[0, 1])
        KcrRunMembersOperator.partial(task_id="members", region="flights", run_task_id="run").expand_kwargs(
            [{"group_id": "flights-etl", "indexes": [2, 3]}, {"group_id": "flights-audit", "indexes": [0]}]
        )

    The task succeeds when the run has its checkpoint; it emits no event. A cleared task finds the checkpoint, and
    processes the interval anew only where a reset has undone it.

    Args:
        run_task_id: the task of the `KcrIntervalOperator`, which is not mapped.
        group_id: the group (templated).
        indexes: which of its members (templated).
        kwargs: as for `KcrIntervalOperator`: `region`, `until`, `allow_inexact`, and those for Spark.
    """

    def __init__(
        self,
        *,
        run_task_id: str,
        group_id: str,
        indexes: int | str | Sequence[int],
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        super().__init__(group_id=group_id, indexes=indexes, **kwargs)
        self.run_task_id = run_task_id

    def execute(self, context: Context) -> None:
        """Host the members until the run is over.

        Args:
            context: the task's.

        Raises:
            AirflowFailException: a retry can't help: something is configured wrongly, or the region refuses.
            AirflowException: it may: the application was ended, or it failed.
        """
        self.carry_out(context, kcr.request_id_of(context, self.run_task_id))

    def resume(self, context: Context, event: Mapping[str, object]) -> None:
        """Go on after the trigger: the run is over.

        Args:
            context: the task's.
            event: `payloads.TriggerAnswer` as JSON.

        Raises:
            AirflowFailException: there will be no checkpoint.
            AirflowException: the application has ended before the run was over.
        """
        self.require_reached(event)
