"""The trace of a checkpoint, as an exporter gets it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import ProxyTracerProvider

from airflow_kcr import traces
from airflow_kcr.api import Region
from airflow_kcr.api.regions import Handle
from tests.support.driver import Driver


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made


@pytest.fixture
def driver() -> Driver:
    """A region in memory, whose clock stands still but where the test moves it."""
    made = Driver()
    made.up()
    made.process()
    return made


def test_each_phase_is_a_span_with_its_recorded_times(
    driver: Driver, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    driver.request_checkpoint("a")
    driver.clock.advance(2)
    for member in sorted(driver.processes):
        # The last one's clock runs ahead.
        driver.handle(replace(driver.part_of(member), prepared_in=timedelta(seconds=1 + 9 * member.index)))
    sequence = driver.region.restore_sequence
    assert sequence is not None
    driver.clock.advance(3)
    driver.publish()
    driver.clock.advance(1)
    for member in sorted(driver.processes):
        driver.read_back(member)
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("run") as run:
        traces.record(Region(driver.name, driver.store).checkpoints, sequence, provider)
    spans = {one.name: one for one in exporter.get_finished_spans()}
    took = {name: (one.end_time or 0) - (one.start_time or 0) for name, one in spans.items() if name != "run"}
    second = 1_000_000_000
    assert took == {
        "checkpoint": 6 * second,
        "request": 0,
        "drain": 2 * second,
        "contribute": 2 * second,
        "prepare": 2 * second,
        "publish": 3 * second,
        "commit": 4 * second,
    }
    assert took.keys() == traces.SPANS.keys()
    root = spans["checkpoint"]
    assert root.parent is None
    assert [link.context for link in root.links] == [run.get_span_context()]
    assert all(spans[name].parent == root.context for name in ("request", "drain", "publish", "commit"))
    assert spans["contribute"].parent == spans["drain"].context
    assert spans["prepare"].parent == spans["contribute"].context
    prepared = [one for one in exporter.get_finished_spans() if one.name == "prepare"]
    assert [(one.end_time or 0) - (one.start_time or 0) for one in prepared] == [second, 2 * second]
    for name in ("contribute", "commit"):
        members = {(one.attributes or {})["kcr.member"] for one in exporter.get_finished_spans() if one.name == name}
        assert members == {str(member) for member in driver.processes}


def test_a_request_that_waited_is_part_of_the_trace(
    driver: Driver, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    driver.request_checkpoint("a")
    driver.request_checkpoint("b")
    driver.clock.advance(2)
    driver.complete()
    driver.publish()
    sequence = driver.complete()
    driver.publish()
    traces.record(Region(driver.name, driver.store).checkpoints, sequence, provider)
    spans = {one.name: one for one in exporter.get_finished_spans()}
    assert (spans["request"].end_time or 0) - (spans["request"].start_time or 0) == 2_000_000_000
    assert "prepare" not in spans  # no member said how long it took
    assert "commit" not in spans  # not known yet


def test_a_checkpoint_that_is_not_published_has_no_trace(
    driver: Driver, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    driver.request_checkpoint("a")
    traces.record(Region(driver.name, driver.store).checkpoints, driver.complete(), provider)
    assert exporter.get_finished_spans() == ()


def test_without_a_provider_the_store_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise AssertionError("the store was read")

    monkeypatch.setattr(Handle, "read", fail)
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", ProxyTracerProvider)
    traces.record(Region("flights", Driver().store).checkpoints, 1)
