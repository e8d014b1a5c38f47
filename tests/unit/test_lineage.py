"""Events of OpenLineage: what they say, that a real endpoint takes them, and what they never hold or hold up."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from openlineage.client.facet_v2 import RunFacet
from openlineage.client.serde import Serde

from airflow_kcr import lineage
from airflow_kcr.api import Region
from airflow_kcr.cli.lineage import send_checkpoint
from airflow_kcr.errors import CheckpointNotUsable
from airflow_kcr.lineage import of_checkpoint, of_reset
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, Offset, Range, RequestId
from airflow_kcr.sinks.contract import DatasetName
from tests.support.driver import Driver
from tests.support.lineage_receiver import LineageReceiver
from tests.support.live_region import live_region

SPEC = """\
region: flights
kafka: {bootstrap.servers: 'SSL://${BROKER},other:9093'}
groups:
  - group_id: g
    topics: [t]
    members: 2
    pipeline: 'jobs.flights:process'
    sinks:
      table: {kind: postgres, table: air.delays, url: '${TABLE_URL}'}
      files: {kind: files, path: 's3a://${BUCKET}/delays'}
      own: {kind: custom, factory: 'jobs.lake:make'}
timeouts: {lease: 60s}
"""
SECRET = "hunter2"
ENVIRON = {
    "BROKER": "broker",
    "TABLE_URL": f"postgresql://me:{SECRET}@db:5433/air",
    "BUCKET": "lake",
    "OPENLINEAGE_PARENT_ID": "airflow/dag.task/0190b5a5-3c3e-7000-8000-000000000000",
}


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    with live_region(store_connection, SPEC) as driver:
        driver.up()
        driver.process()
        yield driver


@pytest.fixture
def region(driver: Driver) -> Region:
    return Region(driver.name, driver.store)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[LineageReceiver]:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    with LineageReceiver() as server:
        monkeypatch.setenv("OPENLINEAGE_URL", server.url)
        yield server


def document(event: Any) -> dict[str, Any]:  # noqa: ANN401 (the client's)
    """An event as it is sent."""
    return Serde.to_dict(event)


def sent(region: Region, sequence: int) -> dict[str, Any]:
    return document(of_checkpoint(region.checkpoints, sequence, lineage.context_of_process(ENVIRON)))


def recomputed(driver: Driver, sequence: int, requester: Requester | None = None, token: str = "one") -> None:
    """Replace the output of a checkpoint."""
    number = CheckpointNumber(sequence)
    ranges = {p: (Range(Offset(0), Offset(10)),) for p in driver.region.claims}
    begun = driver.store.handle(
        driver.name,
        commands.StartRecomputation(
            sequence=number,
            request_id=RequestId("again"),
            token=token,
            groups=(GroupId("g"),),
            ranges=ranges,
            lease=timedelta(seconds=60),
            requester=requester or Requester(),
        ),
    )
    read = ({p: held for p, (held,) in ranges.items()},)
    driver.handle(commands.FinishRecomputation(sequence=number, number=begun.number, batches=read))


def test_a_checkpoint_joins_its_topics_with_its_outputs(driver: Driver, region: Region) -> None:
    sequence = driver.checkpoint("a")
    event, row = sent(region, sequence), driver.region.checkpoints[sequence]
    assert (event["eventType"], event["job"]["name"]) == ("COMPLETE", "flights.checkpoint")
    assert [(one["namespace"], one["name"]) for one in event["inputs"]] == [("kafka://broker:9092", "t")]
    assert [(one["namespace"], one["name"]) for one in event["outputs"]] == [
        ("s3://lake", "delays"),
        ("postgres://db:5433", "air.air.delays"),
    ]
    version = event["outputs"][0]["facets"]["version"]["datasetVersion"]
    assert version == f"{row.timeline:06d}.{sequence:010d}"
    facets = event["run"]["facets"]
    assert facets["parent"]["job"] == {"namespace": "airflow", "name": "dag.task", "facets": {}}
    assert facets["kcr_checkpoint"]["ranges"] == {"g": {"t": {str(n): [[0, 10]] for n in range(4)}}}
    assert (facets["kcr_checkpoint"]["timeline"], facets["kcr_checkpoint"]["digest"]) == (row.timeline, row.digest)


def test_the_event_of_a_publication_is_the_same_however_often_it_is_made(driver: Driver, region: Region) -> None:
    first, second = driver.checkpoint("a"), driver.checkpoint("b")
    assert sent(region, first) == sent(region, first)
    assert sent(region, first)["run"]["runId"] != sent(region, second)["run"]["runId"]


def test_a_recomputation_names_the_run_whose_output_it_replaces(driver: Driver, region: Region) -> None:
    sequence = driver.checkpoint("a")
    before = sent(region, sequence)
    recomputed(driver, sequence)
    after = sent(region, sequence)
    facet = after["run"]["facets"]["kcr_checkpoint"]
    assert (facet["revision"], facet["replaces"]) == (1, before["run"]["runId"])
    assert after["run"]["runId"] != before["run"]["runId"]
    assert after["eventTime"] > before["eventTime"]


def test_a_restored_store_gives_a_revision_away_again_and_its_run_is_another(driver: Driver, region: Region) -> None:
    sequence = driver.checkpoint("a")
    older = driver.region.checkpoints[sequence]
    recomputed(driver, sequence)
    lost = sent(region, sequence)
    driver.change(lambda region, _now: region.with_checkpoint(older))
    recomputed(driver, sequence, token="two")
    again = sent(region, sequence)
    numbers = [one["run"]["facets"]["kcr_checkpoint"]["revision"] for one in (lost, again)]
    assert numbers == [1, 1]
    assert lost["run"]["runId"] != again["run"]["runId"]


def test_a_reset_names_the_runs_whose_output_it_has_undone(
    driver: Driver, region: Region, receiver: LineageReceiver
) -> None:
    first = driver.checkpoint("a")
    driver.process()
    second = driver.checkpoint("b")
    undone = sent(region, second)["run"]["runId"]
    driver.reset(ToCheckpoint(sequence=first), request_id="back", forced=True)
    driver.finish_reset()
    (view,) = region.resets.list(last=1)
    event = document(of_reset(region.checkpoints, view, lineage.context_of_process(ENVIRON)))
    facet = event["run"]["facets"]["kcr_reset"]
    assert facet["undone"] == [{"sequence": second, "run_id": undone}]
    assert (facet["cause"], facet["timeline"]) == ("person", driver.region.timeline)
    assert [one["name"] for one in event["outputs"]] == ["delays", "air.air.delays"]
    lineage.send_by_client(of_reset(region.checkpoints, view, lineage.context_of_process()))
    assert (len(receiver.received), receiver.refused) == (1, [])


def test_an_endpoint_that_validates_takes_what_the_client_sends(
    driver: Driver, region: Region, receiver: LineageReceiver
) -> None:
    sequence = driver.checkpoint("a")
    lineage.send_by_client(of_checkpoint(region.checkpoints, sequence, lineage.context_of_process()))
    recomputed(driver, sequence)
    lineage.send_by_client(of_checkpoint(region.checkpoints, sequence, lineage.context_of_process()))
    assert ([one["run"]["facets"]["kcr_checkpoint"]["revision"] for one in receiver.received], receiver.refused) == (
        [0, 1],
        [],
    )
    assert SECRET not in json.dumps(receiver.received)


def test_the_endpoint_refuses_what_is_no_event(receiver: LineageReceiver, driver: Driver, region: Region) -> None:
    event = of_checkpoint(region.checkpoints, driver.checkpoint("a"), lineage.context_of_process())
    event.run.facets = {"kcr_checkpoint": RunFacet()}
    with pytest.raises(Exception, match="422"):
        lineage.send_by_client(event)
    assert receiver.refused


def test_what_is_not_known_here_is_left_out_and_said(
    driver: Driver, region: Region, caplog: pytest.LogCaptureFixture
) -> None:
    sequence = driver.checkpoint("a")
    event = document(of_checkpoint(region.checkpoints, sequence, lineage.context_of_process({"BUCKET": "lake"})))
    assert (event["inputs"], [one["name"] for one in event["outputs"]]) == ([], ["delays"])
    assert "leaves out the topics of group g" in caplog.text
    assert "leaves out sink table of group g" in caplog.text


def test_a_checkpoint_that_is_not_published_has_no_event(driver: Driver, region: Region) -> None:
    driver.request_checkpoint("a")
    sequence = driver.complete()
    with pytest.raises(CheckpointNotUsable, match="is not published"):
        sent(region, sequence)


def test_an_endpoint_that_hangs_holds_no_one_longer_than_the_deadline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lineage, "DEADLINE", 0.05)
    release = threading.Event()
    lineage.send_within(lambda: None, lambda _: release.wait() and None, "checkpoint 1")  # type: ignore[arg-type, return-value]
    release.set()
    (line,) = caplog.messages
    assert line == "the lineage of checkpoint 1 was not sent within 0.05 s; going on without"


def test_an_endpoint_that_fails_is_one_line_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ConnectionError(f"https://{SECRET}@catalogue")

    with caplog.at_level(logging.WARNING):
        lineage.send_within(lambda: None, fail, "checkpoint 1")  # type: ignore[arg-type, return-value]
    assert caplog.messages == ["the lineage of checkpoint 1 was not sent: ConnectionError"]


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/data/out", ("file", "/data/out")),
        ("file:///data/out", ("file", "/data/out")),
        ("s3a://lake/a/b", ("s3", "lake", "a/b")),
        ("gs://lake/a", ("gs", "lake", "a")),
        ("hdfs://name:9000/a", ("hdfs", "name:9000", "/a")),
        ("abfss://box@account.dfs.core.windows.net/a", ("abfss", "box@account.dfs.core.windows.net", "/a")),
        (f"s3a://key:{SECRET}@lake/a", ("s3", "lake", "a")),
    ],
)
def test_places_have_the_names_of_the_convention(location: str, expected: tuple[str, ...]) -> None:
    *scheme, name = expected
    assert DatasetName.at(location) == ("://".join(scheme), name)


def test_a_command_sends_where_the_environment_says(
    driver: Driver, region: Region, receiver: LineageReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = driver.checkpoint("a")
    send_checkpoint(region, sequence, dag_run="dag/run")
    assert receiver.received == []
    send_checkpoint(region, sequence)
    assert [one["job"]["name"] for one in receiver.received] == ["flights.checkpoint"]
    monkeypatch.delenv("OPENLINEAGE_URL")
    send_checkpoint(region, sequence)
    assert len(receiver.received) == 1
