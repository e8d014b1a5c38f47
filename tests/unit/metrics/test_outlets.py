"""The ways out of a member's process: Prometheus, and OpenTelemetry whatever its end point does."""

from __future__ import annotations

import logging
import socket
import threading
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from urllib.request import urlopen

import opentelemetry.metrics
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from airflow_kcr.metrics.declared import FAILURES, MEMBER_METRICS, METRICS, MemberFacts
from airflow_kcr.metrics.outlets import LAST_EXPORT, _Asked, published, push
from airflow_kcr.protocol.values import GroupId, MemberId, RegionName
from airflow_kcr.runtime.metrics import UNKNOWN, Counts, Metrics, Snapshot
from tests.support.runtime_fakes import p
from tests.unit.metrics.test_exporter import free_port, taken
from tests.unit.runtime.test_metrics import at_work

COUNTS = Counts(batches=3, records=70, rebalances=2, failed_batches=1, batch_time=timedelta(seconds=1.5))


def snapshot() -> Snapshot:
    known = Metrics(counts=COUNTS).snapshot(at_work(), {})
    return replace(known, lag=dict.fromkeys(known.lag, 8))


def facts() -> list[MemberFacts]:
    return [MemberFacts(region=RegionName("flights"), snapshot=snapshot())]


def test_prometheus_gets_what_a_member_has_counted() -> None:
    port = free_port()
    with published(MEMBER_METRICS, facts, port), urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    found = {s.name: s.value for s in samples if "cause" not in s.labels and "state" not in s.labels}
    assert found["kcr_batches_total"] == 3
    assert found["kcr_batch_records_total"] == 70
    assert found["kcr_batch_seconds_total"] == 1.5
    assert found["kcr_member_lag"] == 16
    assert "kcr_member_longest_drain_seconds" not in found  # not known before the first
    assert {s.labels["cause"]: s.value for s in samples if "cause" in s.labels} == dict.fromkeys(FAILURES, 0) | {
        "batch": 1
    }


@pytest.mark.parametrize("name", ['a "quoted" \\ {x="y"}', "two\nlines", "g" * 249, "☃"])
def test_a_group_of_any_name_stays_a_label(name: str) -> None:
    machine = at_work()
    named = replace(machine, process=replace(machine.process, member=MemberId(GroupId(name), 0)))
    known = [MemberFacts(region=RegionName("flights"), snapshot=replace(snapshot(), machine=named))]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Asked(MEMBER_METRICS, lambda: known))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    found = {sample.labels["group"] for family in families for sample in family.samples}
    assert found == {name}


def test_a_lag_that_is_not_known_is_absent() -> None:
    (lag,) = [metric for metric in MEMBER_METRICS if metric.name == "kcr_member_lag"]
    assert [value for _, value in lag.read(facts()[0])] == [16]
    unread = replace(snapshot(), lag={p(0): 8, p(1): UNKNOWN})
    assert list(lag.read(MemberFacts(region=RegionName("flights"), snapshot=unread))) == []


def test_a_port_that_is_taken_is_one_line_and_the_members_go_on(caplog: pytest.LogCaptureFixture) -> None:
    with taken() as port, published(MEMBER_METRICS, facts, port):
        (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"the members go on: port {port} can't be served" in line


def test_without_a_port_and_an_end_point_nothing_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), published(MEMBER_METRICS, facts, None):
        assert caplog.messages == []


def test_an_otlp_end_point_that_hangs_keeps_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with taken() as port:  # accepts a connection, and never answers
        url = f"http://localhost:{port}/v1/metrics"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
        began = monotonic()
        with published(MEMBER_METRICS, facts, None):
            pass
        assert monotonic() - began < LAST_EXPORT / 1_000 + 5


def test_opentelemetry_is_sent_what_prometheus_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        url = f"http://127.0.0.1:{one.getsockname()[1]}/v1/metrics"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
        end = push(MEMBER_METRICS, facts)
        connection, _ = one.accept()
        with connection, connection.makefile("rb") as request:
            length = 0
            while (line := request.readline().strip()) != b"":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            sent = ExportMetricsServiceRequest.FromString(request.read(length))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        end()
    (scope,) = sent.resource_metrics[0].scope_metrics
    by_name = {metric.name: metric for metric in scope.metrics}
    (point,) = by_name["kcr_batches_total"].sum.data_points
    assert point.as_int or point.as_double == 3
    assert {pair.key: pair.value.string_value for pair in point.attributes}["region"] == "flights"
    assert by_name["kcr_batches_total"].sum.is_monotonic
    assert [p.as_double for p in by_name["kcr_member_lag"].gauge.data_points] == [16.0]


def test_a_meter_provider_that_the_process_has_is_used_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://localhost:9/v1/metrics")
    reader = InMemoryMetricReader()
    own = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(opentelemetry.metrics, "get_meter_provider", lambda: own)
    threads = threading.active_count()
    with published(MEMBER_METRICS, facts, None):
        assert threading.active_count() == threads  # none that would send them a second time
        assert values_in(reader)["kcr_batches_total"] == [3]
    assert "kcr_batches_total" not in values_in(reader)
    other = own.get_meter("theirs").create_counter("still_there")
    other.add(1)
    assert values_in(reader) == {"still_there": [1]}


def values_in(reader: InMemoryMetricReader) -> dict[str, list[float]]:
    """What a provider sends at this moment, by name."""
    data = reader.get_metrics_data()
    scopes = () if data is None else data.resource_metrics[0].scope_metrics
    return {
        metric.name: [point.value for point in metric.data.data_points]  # type: ignore[union-attr]
        for scope in scopes
        for metric in scope.metrics
        if metric.data.data_points
    }


def test_the_names_are_unique() -> None:
    names = [metric.name.removesuffix("_total") for metric in METRICS]
    names += [metric.name.removesuffix("_total") for metric in MEMBER_METRICS]
    assert len(set(names)) == len(names)
