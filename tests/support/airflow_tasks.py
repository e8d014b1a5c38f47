"""Operators without a scheduler: what `execute` is given (a run, a task, the XComs that it pushes), and a deferral."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from uuid import UUID, uuid4

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk.api.datamodels._generated import DagRun, DagRunState, DagRunType
from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
from airflow.sdk.execution_time.context import OutletEventAccessors, TriggeringAssetEventsAccessor
from pydantic import BaseModel

from airflow_kcr.airflow_features import CHECKPOINT_KEYS
from airflow_kcr.hooks.assets import region_asset
from airflow_kcr.hooks.checkpoints import PublishedCheckpoint
from airflow_kcr.hooks.compat import has
from airflow_kcr.triggers.payloads import Status, TriggerAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Asset, BaseOperator, Context
    from airflow.sdk.types import OutletEventAccessorProtocol

M = TypeVar("M", bound=BaseModel)
REACHED: Final = TriggerAnswer(status=Status.REACHED).to_json()
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass(slots=True)
class FakeTask:
    """The task instance of a context."""

    task_id: str = "task"
    map_index: int | None = -1
    try_number: int = 1
    dag_id: str = "flights_checkpoint"
    run_id: str = "scheduled__2026-01-01T12:05:00+00:00"
    id: UUID = field(default_factory=uuid4)
    max_tries: int = 0
    """More than the task's retries once it was cleared."""

    xcoms: dict[str, object] = field(default_factory=dict)
    results: dict[str, object] = field(default_factory=dict)
    """What other tasks have returned, by their ids."""

    def xcom_pull(self, task_ids: str | None = None, key: str = "return_value") -> object:
        """Return what another task has returned, or what this one has pushed."""
        return self.xcoms.get(key) if task_ids in {None, self.task_id} else self.results.get(str(task_ids))

    def xcom_push(self, key: str, value: object) -> None:
        """Keep what a task says; like Airflow, only what JSON can hold."""
        self.xcoms[key] = json.loads(json.dumps(value))


def task_context(
    task: FakeTask | None = None,
    *,
    interval: tuple[datetime, datetime] | None = None,
    user: str | None = None,
    run_type: DagRunType = DagRunType.SCHEDULED,
) -> Context:
    """Return the context of a task, with the accessors of its events.

    Args:
        task: its instance; absent: any.
        interval: the run's data interval; None: it has none.
        user: who triggered the run.
        run_type: how it came to be.
    """
    task = task or FakeTask()
    start, end = interval or (None, None)
    run = _known(
        DagRun,
        dag_id=task.dag_id,
        run_id=task.run_id,
        logical_date=start,
        data_interval_start=start,
        data_interval_end=end,
        run_after=end or NOON,
        start_date=NOON,
        end_date=None,
        run_type=run_type,
        state=DagRunState.RUNNING,
        triggering_user_name=user,
        consumed_asset_events=[],
        partition_key=None,
    )
    known = {"dag_run": run, "ti": task, "task_instance": task, "run_id": task.run_id}
    return cast("Context", {**known, "outlet_events": OutletEventAccessors()})


def _known(model: type[M], **values: object) -> M:
    """Make one of what Airflow hands to tasks; older ones have no partition keys, and refuse them."""
    return model.model_validate({name: value for name, value in values.items() if name in model.model_fields})


def triggered(*extras: dict[str, object], asset: Asset | None = None) -> Context:
    """Return the context of a run that events of an asset, with these extras, have triggered.

    Args:
        extras: of the events.
        asset: absent: the one of region `flights`.
    """
    asset = asset or region_asset("flights")
    context = task_context()
    context["triggering_asset_events"] = TriggeringAssetEventsAccessor.build(
        _known(
            AssetEventDagRunReferenceResult,
            asset={"name": asset.name, "uri": asset.uri, "extra": {}},
            extra=extra,
            source_task_id="commit",
            source_dag_id="flights_checkpoint",
            source_run_id="run-1",
            source_map_index=-1,
            source_aliases=[],
            timestamp=NOON,
            partition_key=None,
        )
        for extra in extras
    )
    return context


def deferred(operator: BaseOperator, context: Context | None = None) -> TaskDeferred:
    """Execute a task that gives its slot up, and return how it does."""
    with pytest.raises(TaskDeferred) as raised:
        operator.execute(context or task_context())
    return raised.value


def resumed(
    operator: BaseOperator,
    waits: TaskDeferred,
    context: Context | None = None,
    event: Mapping[str, object] = REACHED,
) -> Any:  # noqa: ANN401 - as each operator answers
    """Resume a task as Airflow does: maybe another instance, in another process."""
    resume = getattr(operator, waits.method_name)
    return resume(context or task_context(), event=event, **(waits.kwargs or {}))


def keys_of(event: OutletEventAccessorProtocol) -> set[str]:
    """Return the partition keys that a task has given an event; without such keys, the one that its extra names."""
    if has(CHECKPOINT_KEYS):
        return event.partition_keys
    return {PublishedCheckpoint.from_json(event.extra).partition_key} if event.extra else set()
