"""The tasks of a reset without a scheduler.

A region with two checkpoints, Kafka as a test wants it, answers of people.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.providers.standard.operators import hitl
from airflow.sdk import exceptions

from airflow_kcr.api.validation import Validation
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.protocol.region.rows import Requester
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.sdk import Context

    from airflow_kcr.protocol.validation import Check

RUN = "manual__2026-01-01T12:00:00+00:00"
DAG = "flights_reset"


@dataclass(slots=True)
class World:
    """Kafka, and what people are shown."""

    cluster: FakeCluster = field(default_factory=FakeCluster)
    checks: tuple[Check, ...] = ()
    """What validation finds."""

    shown: dict[str, Any] = field(default_factory=dict)
    """The last request to a person."""


def prepared(monkeypatch: pytest.MonkeyPatch) -> World:
    """Let operators see this world's Kafka, and keep what they would show."""
    world = World()

    def validate(self: KcrHook, name: str, groups: Collection[str] | None = None) -> Validation:
        return Validation(checks=world.checks, foreign_consumers={})

    monkeypatch.setattr(KcrHook, "cluster", staticmethod(world.cluster.clusters))
    monkeypatch.setattr(KcrHook, "validate", validate)

    def keep(**request: object) -> None:
        world.shown.clear()
        world.shown.update(request)

    monkeypatch.setattr(hitl, "upsert_hitl_detail", keep)
    return world


def with_two_checkpoints(driver: Driver) -> None:
    """Bring a region up, with checkpoints 2 and 3 at 100 and 200, and positions at 300."""
    driver.up()
    driver.process(width=100)
    driver.request_checkpoint("first", requester=Requester(dag_id="flights_checkpoint", run_id="monday"))
    driver.complete()
    driver.publish()
    driver.process(width=100)
    driver.checkpoint("second")
    driver.process(width=100)


def asked(operator: hitl.HITLOperator, context: Context) -> None:
    """Let a task ask a person, and wait."""
    # Before Airflow 3.3 a trigger waits for the answer.
    with pytest.raises(getattr(exceptions, "TaskAwaitingInput", TaskDeferred)):
        operator.execute(context)


def answer(option: str, *, by: str | None = "ada", **params: object) -> dict[str, Any]:
    """Return a person's answer as Airflow hands it over."""
    return {
        "chosen_options": [option],
        "params_input": params,
        "responded_at": datetime(2026, 1, 1, 12, 5, tzinfo=UTC),
        "responded_by_user": None if by is None else {"id": by, "name": by},
    }
