"""What leaves a real Airflow of a checkpoint: its lineage by Airflow's provider, its trace, and its asset's page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from airflow_kcr.embedded.processes import happened
from airflow_kcr.sinks.checkpoints import CheckpointId
from tests.integration.airflow.test_checkpoints import CHECKPOINTS, MINUTE, Members, ended
from tests.support.browser import Person
from tests.support.lineage_receiver import LineageReceiver
from tests.support.live_airflow import LiveAirflow
from tests.support.live_region import SPEC, live_region
from tests.support.otlp_receiver import TRACES, OtlpReceiver

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

DAG = "told_checkpoint"


@pytest.fixture(scope="module")
def catalogue() -> Iterator[LineageReceiver]:
    with LineageReceiver() as server:
        yield server


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as server:
        yield server


@pytest.fixture(scope="module")
def runs(
    airflow: LiveAirflow,
    catalogue: LineageReceiver,
    collector: OtlpReceiver,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[str]]:
    """Two runs of a DAG, each with its checkpoint, of an Airflow that is told where to send lineage and traces."""
    lake = tmp_path_factory.mktemp("lake")
    spec = SPEC.replace("region: flights", "region: told").replace("group_id: g,", "group_id: told,")
    spec = spec.replace("process'}", f"process', sinks: {{out: {{kind: files, path: '{lake}'}}}}}}")
    since = datetime.now(UTC).replace(second=0, microsecond=0) - 3 * MINUTE
    with (
        live_region(airflow.store_url, spec + "checkpoint: {every: 1m, request: dag_run}\n") as driver,
        airflow.configured(
            {
                "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "http", "url": catalogue.url}),
                "AIRFLOW__OPENLINEAGE__NAMESPACE": "here",
                "AIRFLOW__TRACES__OTEL_ON": "True",
                "OTEL_TRACES_EXPORTER": "otlp_proto_http",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}{TRACES}",
            }
        ),
    ):
        for partition, bounds in list(driver.logs.items()):
            driver.grow(partition, end=100_000, start=bounds.start)
        driver.up()
        members = Members(driver)
        try:
            dags = CHECKPOINTS.replace("REGION", "told").replace("SINCE", since.isoformat())
            airflow.add_dags("told", dags, DAG)
            yield ended(airflow, DAG, 2)
        finally:
            airflow.editor.pause(DAG)
            members.end()


def answer(airflow: LiveAirflow, run_id: str) -> dict[str, Any]:
    found = airflow.editor.result(DAG, run_id, "commit")
    assert isinstance(found, dict)
    return found


def test_the_catalogue_is_told_which_topics_made_which_files_in_which_run(
    airflow: LiveAirflow, catalogue: LineageReceiver, runs: list[str]
) -> None:
    found = answer(airflow, runs[1])

    def own() -> list[dict[str, Any]]:
        return [
            one
            for one in catalogue.received
            if one["run"]["facets"].get("kcr_checkpoint", {}).get("sequence") == found["sequence"]
        ]

    (event,) = own()
    assert (event["eventType"], event["job"]["namespace"], event["job"]["name"]) == (
        *("COMPLETE", "here", "told.checkpoint"),
    )
    assert [(one["namespace"], one["name"]) for one in event["inputs"]] == [("kafka://broker.invalid:9092", "t")]
    (output,) = event["outputs"]
    assert output["namespace"] == "file"
    facets, run = event["run"]["facets"], airflow.editor.run(DAG, runs[1])
    nominal = [datetime.fromisoformat(facets["nominalTime"][f"nominal{end}Time"]) for end in ("Start", "End")]
    assert run.interval_end is not None
    assert nominal == [run.interval_end - MINUTE, run.interval_end]
    parent = facets["parent"]
    assert (parent["job"]["name"], parent["root"]["job"]["name"]) == (f"{DAG}.commit", DAG)
    # What the provider says of the task and of the DAG run has these run ids.
    assert happened(
        lambda: (
            {parent["run"]["runId"], parent["root"]["run"]["runId"]}
            <= {one["run"]["runId"] for one in catalogue.received if "kcr_checkpoint" not in one["run"]["facets"]}
        ),
        within=60,
        pause=0.5,
    )
    assert len(own()) == 1
    assert catalogue.refused == []


def test_the_trace_of_a_checkpoint_is_linked_to_that_of_its_run(
    airflow: LiveAirflow, collector: OtlpReceiver, runs: list[str]
) -> None:
    sequence = answer(airflow, runs[1])["sequence"]

    def is_root(span: Span) -> bool:
        named = {attribute.key: attribute.value for attribute in span.attributes}
        return span.name == "checkpoint" and named["kcr.sequence"].int_value == sequence

    (root,) = filter(is_root, collector.spans)
    (link,) = root.links
    (task,) = [span for span in collector.spans if (span.trace_id, span.span_id) == (link.trace_id, link.span_id)]
    assert "commit" in {a.value.string_value for a in task.attributes} | {task.name}
    own = {span.name for span in collector.spans if span.trace_id == root.trace_id}
    assert own >= {"checkpoint", "request", "drain", "contribute", "publish", "commit"}


@pytest.mark.browser
def test_the_page_of_an_asset_names_the_checkpoint(
    airflow: LiveAirflow, browser: Callable[[str], Person], runs: list[str]
) -> None:
    found = answer(airflow, runs[1])
    (asset,) = airflow.editor.request("GET", "assets", uri_pattern="kcr://told")["assets"]
    person = browser("viewer")
    person.goes(f"/assets/{asset['id']}")
    person.reads("kcr://told", str(CheckpointId(found["timeline"], found["sequence"])))
