"""What leaves the process of a region holds no secret and no record, wherever these were put."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from airflow_kcr import lineage, traces
from airflow_kcr.api import Region
from airflow_kcr.lineage import READER, Feed, context_of_process
from airflow_kcr.metrics.declared import MEMBER_METRICS, MemberFacts
from airflow_kcr.metrics.exporter import Exporter
from airflow_kcr.metrics.outlets import families
from airflow_kcr.protocol.region.rows import Requester, ResetCause
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import EventNumber
from airflow_kcr.runtime.metrics import Counts, Metrics
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster, live_region
from tests.unit.runtime.test_metrics import at_work
from tests.unit.test_lineage import document, recomputed

SECRET = "hunter2"
SPEC = """\
region: flights
kafka:
  bootstrap.servers: 'SASL_SSL://broker:9093'
  security.protocol: SASL_SSL
  sasl.mechanism: PLAIN
  sasl.username: '${USER_NAME}'
  sasl.password: '${PASSWORD}'
groups:
  - group_id: g
    topics: [t]
    members: 2
    pipeline: 'jobs.flights:process'
    sinks:
      table: {kind: postgres, table: air.delays, url: '${TABLE_URL}'}
      files: {kind: files, path: '${BUCKET}'}
timeouts: {lease: 60s}
"""
ENVIRON = {
    "USER_NAME": f"me-{SECRET}",
    "PASSWORD": SECRET,
    "TABLE_URL": f"postgresql://me:{SECRET}@db:5433/air?sslpassword={SECRET}",
    "BUCKET": f"s3a://key:{SECRET}@lake/delays",
    "OPENLINEAGE_API_KEY": SECRET,
}
RECORD = f'could not parse the record {{"card": "{SECRET}"}}'
"""What a pipeline may say of a record that it fails at."""


@pytest.fixture
def driver(store_connection: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A region that has a checkpoint, a recomputation, a failed batch and a person's reset behind it."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    with live_region(store_connection, SPEC) as driver:
        driver.store.keep_event_position(driver.name, READER, EventNumber(0))
        driver.up()
        driver.process()
        by = Requester(who="me", reason=SECRET)
        driver.request_checkpoint("a", requester=by)
        first = driver.complete()
        driver.publish()
        recomputed(driver, first)
        driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, RECORD)
        driver.finish_reset()
        driver.process()
        driver.reset(ToCheckpoint(sequence=first), request_id="back", forced=True)
        driver.finish_reset()
        yield driver


def test_no_metric_has_a_secret(driver: Driver) -> None:
    registry = CollectorRegistry(auto_describe=False)
    exporter = Exporter(driver.store, FakeCluster().clusters)
    registry.register(exporter)
    exporter.read()
    of_regions = generate_latest(registry).decode()
    assert 'kcr_region_kafka_up{region="flights"} 1.0' in of_regions
    troubled = Metrics(counts=Counts(troubles=1, last_trouble=RECORD)).snapshot(at_work(), {})
    facts = [
        MemberFacts(region=driver.name, snapshot=replace(troubled, machine=replace(troubled.machine, lacks=SECRET)))
    ]
    of_members = [sample for family in families(MEMBER_METRICS, facts) for sample in family.samples]
    assert of_members
    assert SECRET not in of_regions + str(of_members)


def test_no_event_of_lineage_has_a_secret(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    sent = list[object]()
    Feed(driver.store, context_of_process(), lambda event: sent.append(document(event))).catch_up()
    text = json.dumps(sent)
    assert all(part in text for part in ("kcr_checkpoint", "kcr_reset", '"air.air.delays"', '"delays"'))
    assert SECRET not in text + caplog.text


def test_no_span_has_a_secret(driver: Driver) -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    region = Region(driver.name, driver.store)
    sequence = next(row.sequence for row in region.checkpoints.read().archive.checkpoints() if row.published_at)
    traces.record(region.checkpoints, sequence, provider)
    spans = [one.to_json() for one in kept.get_finished_spans()]
    assert len(spans) > 4
    assert SECRET not in str(spans)


def test_what_an_end_point_says_is_not_repeated(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: object) -> None:
        raise ConnectionError(f"https://{SECRET}@catalogue")

    Feed(driver.store, context_of_process(), refuse).catch_up()
    lineage.send_within(lambda: None, refuse, "checkpoint 1")  # type: ignore[arg-type, return-value]
    assert "ConnectionError" in caplog.text
    assert SECRET not in caplog.text
