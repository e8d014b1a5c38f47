"""What tasks send by Airflow's own metrics, to a real OTLP receiver."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import opentelemetry.metrics
import pytest
from airflow.sdk._shared.observability.metrics import otel_logger
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk.observability import stats as airflow_stats
from airflow.sdk.observability.metrics.otel_logger import get_otel_logger
from airflow.sdk.observability.metrics.statsd_logger import get_statsd_logger
from opentelemetry.metrics import _internal
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider

from airflow_kcr.hooks import stats
from airflow_kcr.operators.checkpoint import KcrCommitCheckpointOperator
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.values import RegionName
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.driver import Driver
from tests.support.endpoint import Receiver


@contextmanager
def configured(factory: Callable[..., Any]) -> Iterator[None]:
    """Have Airflow send its metrics by what is made, as it does when a task starts."""
    # Airflow 3.2 has a class for that, and one name of each metric.
    is_module = hasattr(airflow_stats, "initialize")
    of: Any = airflow_stats if is_module else airflow_stats.Stats
    names = {"export_legacy_names": False} if is_module else {}
    of.initialize(factory=factory, **names)
    try:
        yield
    finally:
        of.initialize(factory=NoStatsLogger, **names)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Where Airflow is configured to send its metrics to."""
    with Receiver() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setattr(_internal, "_METER_PROVIDER", None)  # put back at the end: it is the process's own
        monkeypatch.setattr(otel_logger, "atexit_register_metrics_flush", lambda: None)
        with configured(factory=get_otel_logger):
            yield server
        provider().shutdown()


def provider() -> MeterProvider:
    """The one that Airflow has made."""
    found = opentelemetry.metrics.get_meter_provider()
    assert isinstance(found, MeterProvider)
    return found


def sent(receiver: Receiver) -> dict[tuple[str, ...], float]:
    """What was received, by name, and labels as `name=value`."""
    provider().force_flush()
    values = {}
    for body in receiver.received:
        for of_resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (metric for scope in of_resource.scope_metrics for metric in scope.metrics):
                for point in (*metric.sum.data_points, *metric.gauge.data_points):
                    labels = sorted(f"{pair.key}={pair.value.string_value}" for pair in point.attributes)
                    values[(metric.name, *labels)] = point.as_double or point.as_int
    return values


@pytest.fixture
def committed(driver: Driver) -> None:
    """A committed checkpoint of the run."""
    driver.up()
    driver.process()
    driver.checkpoint("one", requester=Requester(who="airflow", dag_id="flights_checkpoint", run_id="run-1"))


def commit() -> None:
    context = task_context(FakeTask(task_id="commit", run_id="run-1"))
    KcrCommitCheckpointOperator(task_id="commit", region="flights").execute(context)


def test_a_checkpoint_is_counted_with_how_long_its_phases_took(receiver: Receiver, committed: None) -> None:
    commit()
    found = sent(receiver)
    assert found["airflow.kcr_task_checkpoints_total", "region=flights"] == 1
    drain = found["airflow.kcr_task_checkpoint_seconds", "phase=drain", "region=flights"]
    publish = found["airflow.kcr_task_checkpoint_seconds", "phase=publish", "region=flights"]
    assert drain > 0
    assert publish > 0
    assert not [name for name, *_ in found if "reset" in name or "rewound" in name]


def test_a_reset_is_counted_with_how_far_it_went_back(receiver: Receiver) -> None:
    stats.send(RegionName("flights"), rewound=40)
    stats.send(RegionName("flights"), rewound=0)
    found = sent(receiver)
    assert found["airflow.kcr_task_resets_total", "region=flights"] == 2
    assert found["airflow.kcr_task_rewound_records_total", "region=flights"] == 40


def test_statsd_has_the_labels_as_influx_tags_or_loses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.getsockname()[1]))
        received = []
        for tagged in ("True", "False"):
            monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", tagged)
            client = get_statsd_logger()
            with configured(factory=lambda made=client: made), closing(client.statsd):
                stats.send(RegionName("flights"), rewound=40)
            received.append({server.recv(1_000).decode() for _ in range(2)})
    assert received == [
        {
            "airflow.kcr_task_resets_total,region=flights:1|c",
            "airflow.kcr_task_rewound_records_total,region=flights:40|c",
        },
        {"airflow.kcr_task_resets_total:1|c", "airflow.kcr_task_rewound_records_total:40|c"},
    ]


def test_metrics_that_can_not_be_sent_are_one_line_and_cost_no_task(
    committed: None, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ValueError("no such client")

    with configured(factory=broken):
        commit()
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line == "the metrics of region flights were not sent: ValueError: no such client"
