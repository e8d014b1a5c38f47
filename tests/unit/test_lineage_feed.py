"""The lineage of all regions of a store: everything that happened, each event once, whatever was away meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from openlineage.client.facet_v2 import RunFacet

from airflow_kcr import lineage
from airflow_kcr.api import Region
from airflow_kcr.errors import StoreUnavailable
from airflow_kcr.lineage import READER, EventContext, Feed, context_of_process, of_checkpoint, send_by_client
from airflow_kcr.protocol.region.rows import Requester, ResetCause
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import EventNumber, RegionName
from tests.support.driver import Driver
from tests.support.lineage_receiver import LineageReceiver
from tests.support.live_region import live_region
from tests.unit.test_lineage import ENVIRON, SPEC, document, recomputed

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    with live_region(store_connection, SPEC) as driver:
        driver.store.keep_event_position(driver.name, READER, EventNumber(0))
        driver.up()
        driver.process()
        yield driver


@pytest.fixture
def context() -> EventContext:
    return context_of_process(ENVIRON)


def kinds(sent: list[RunEvent]) -> list[tuple[str, object]]:
    """What the events are of: job, and the checkpoint with its revision, or the epoch of the reset."""
    found = [document(one) for one in sent]
    facets = [one["run"]["facets"] for one in found]
    numbers = [
        (f["kcr_checkpoint"]["sequence"], f["kcr_checkpoint"]["revision"])
        if "kcr_checkpoint" in f
        else f["kcr_reset"]["epoch"]
        for f in facets
    ]
    return [(one["job"]["name"].partition(".")[2], number) for one, number in zip(found, numbers, strict=True)]


def test_everything_is_sent_once_and_in_its_order_over_restarts(driver: Driver, context: EventContext) -> None:
    sent: list[RunEvent] = []
    first = driver.checkpoint("a")
    Feed(driver.store, context, sent.append).catch_up()
    assert kinds(sent) == [("checkpoint", (first, 0))]
    assert document(sent[0]) == document(of_checkpoint(Region(driver.name, driver.store).checkpoints, first, context))
    recomputed(driver, first)
    driver.process()
    second = driver.checkpoint("b")
    driver.reset(ToCheckpoint(sequence=first), request_id="back", forced=True)
    driver.finish_reset()
    epoch = driver.region.epoch
    for _ in range(2):
        Feed(driver.store, context, sent.append).catch_up()
    assert kinds(sent)[1:] == [("checkpoint", (first, 1)), ("checkpoint", (second, 0)), ("reset", epoch)]


def test_what_happened_while_the_end_point_was_away_is_sent_later_each_revision_as_its_own(
    driver: Driver, context: EventContext, caplog: pytest.LogCaptureFixture
) -> None:
    sequence = driver.checkpoint("a")
    recomputed(driver, sequence)

    def away(_: object) -> None:
        raise ConnectionError("https://hunter2@catalogue")

    Feed(driver.store, context, away).catch_up()
    assert "lineage waits for its end point, and is sent later: ConnectionError" in caplog.messages
    sent: list[RunEvent] = []

    def taken_once(event: RunEvent) -> None:
        if sent:
            raise ConnectionError
        sent.append(event)

    Feed(driver.store, context, taken_once).catch_up()
    Feed(driver.store, context, sent.append).catch_up()
    assert kinds(sent) == [("checkpoint", (sequence, 0)), ("checkpoint", (sequence, 1))]
    before, after = (document(one) for one in sent)
    assert after["run"]["facets"]["kcr_checkpoint"]["replaces"] == before["run"]["runId"]
    assert before["eventTime"] < after["eventTime"]
    # Where the files are that a recomputation has replaced is not known any more.
    versions = [{"version" in output["facets"] for output in one["outputs"]} for one in (before, after)]
    assert versions == [{False}, {False, True}]


def test_what_a_dag_run_has_asked_for_is_left_to_its_task(driver: Driver, context: EventContext) -> None:
    airflow = Requester(who="airflow", dag_id="dag", run_id="run")
    first = driver.checkpoint("run", requester=airflow)
    recomputed(driver, first, airflow)
    driver.process()
    own = driver.checkpoint("own")
    driver.reset(ToCheckpoint(sequence=first), request_id="back", forced=True, requester=airflow)
    driver.finish_reset()
    sent: list[RunEvent] = []
    Feed(driver.store, context, sent.append).catch_up()
    assert kinds(sent) == [("checkpoint", (own, 0))]


def test_a_region_that_is_deleted_meanwhile_keeps_no_other(
    driver: Driver, context: EventContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence, names = driver.checkpoint("a"), driver.store.names()
    monkeypatch.setattr(type(driver.store), "names", lambda _: (RegionName("earlier"), *names))
    sent: list[RunEvent] = []
    Feed(driver.store, context, sent.append).catch_up()
    assert kinds(sent) == [("checkpoint", (sequence, 0))]


def test_a_reset_that_no_person_has_asked_for_undoes_nothing_and_is_not_sent(
    driver: Driver, context: EventContext
) -> None:
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    driver.finish_reset()
    sent: list[RunEvent] = []
    Feed(driver.store, context, sent.append).catch_up()
    assert sent == []


def test_an_event_that_is_refused_keeps_no_other(
    driver: Driver, context: EventContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = driver.checkpoint("a"), driver.checkpoint("b")
    with LineageReceiver() as receiver:
        monkeypatch.setenv("OPENLINEAGE_URL", receiver.url)

        def send(event: RunEvent) -> None:
            if kinds([event]) == [("checkpoint", (first, 0))]:
                event.run.facets = {"kcr_checkpoint": RunFacet()}
            send_by_client(event)

        Feed(driver.store, context, send).catch_up()
        assert receiver.refused
        assert [one["run"]["facets"]["kcr_checkpoint"]["sequence"] for one in receiver.received] == [second]
    assert "was not sent: HTTPError" in caplog.text


def test_of_a_region_that_it_meets_the_newest_events_are_sent(
    driver: Driver, context: EventContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.checkpoint("a")
    known = driver.region.counter
    second = driver.checkpoint("b")
    monkeypatch.setattr(lineage, "PAGE", driver.region.counter - known)
    monkeypatch.setattr(lineage, "READER", "another")
    sent: list[RunEvent] = []
    Feed(driver.store, context, sent.append).catch_up()
    assert kinds(sent) == [("checkpoint", (second, 0))]


def test_one_that_can_not_be_made_keeps_no_other(
    driver: Driver, context: EventContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = driver.checkpoint("a"), driver.checkpoint("b")
    make = lineage.of_checkpoint

    def some(handle: object, sequence: int, *arguments: object, **named: object) -> RunEvent:
        if sequence == first:
            raise LookupError("hunter2")
        return make(handle, sequence, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(lineage, "of_checkpoint", some)
    sent: list[RunEvent] = []
    Feed(driver.store, context, sent.append).catch_up()
    assert kinds(sent) == [("checkpoint", (second, 0))]
    assert "CheckpointPublished in region flights was not sent: LookupError" in caplog.text


def test_a_store_that_is_away_is_one_line(
    driver: Driver, context: EventContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sequence = driver.checkpoint("a")

    def away(*_: object) -> None:
        raise StoreUnavailable("the store at x does not answer")

    sent: list[RunEvent] = []
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patched:
        patched.setattr(type(driver.store), "events", away)
        Feed(driver.store, context, sent.append).catch_up()
    assert caplog.messages == ["lineage waits for the store: the store at x does not answer"]
    Feed(driver.store, context, sent.append).catch_up()
    assert kinds(sent) == [("checkpoint", (sequence, 0))]
