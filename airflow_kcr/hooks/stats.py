"""Metrics from a task: those of `metrics.declared` that tasks have, sent as Airflow's own metrics are configured."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import Stats

if TYPE_CHECKING:
    from airflow_kcr.protocol.region.rows import Checkpoint
    from airflow_kcr.protocol.values import RegionName

_LOG = logging.getLogger(__name__)


def send(region: RegionName, *, checkpoint: Checkpoint | None = None, rewound: int | None = None) -> None:
    """Send the metrics of a task that has done its work; where Airflow sends none, nothing.

    Args:
        region: of the task.
        checkpoint: with which it ends.
        rewound: how many offsets its reset went back; None: it was no reset.
    """
    # The rows of a region, which no DAG file needs to be parsed.
    from airflow_kcr.metrics.declared import TASK_METRICS, TaskFacts

    facts = TaskFacts(region=region, checkpoint=checkpoint, rewound=rewound)
    try:
        for metric in TASK_METRICS:
            for labels, value in metric.read(facts):
                tags = dict(zip(metric.labels, labels, strict=True))
                if metric.is_counter:
                    Stats.incr(metric.name, int(value), tags=tags)
                else:
                    Stats.gauge(metric.name, value, tags=tags)
    except Exception as error:  # noqa: BLE001 (of a client that the user configures; it is never worth a task)
        _LOG.warning("the metrics of region %s were not sent: %s: %s", region, type(error).__name__, error)
