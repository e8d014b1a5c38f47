"""A reset as two people see it in their browsers, and the page of the regions; `pytest -m browser` runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_kcr.airflow_features import CONSOLE
from airflow_kcr.embedded.flights import producer
from airflow_kcr.hooks.links import region_path
from airflow_kcr.spec import parse
from tests.integration.airflow.test_reset_dag import DAGS
from tests.support.browser import Person
from tests.support.installed_airflow import lacks
from tests.support.live_airflow import LiveAirflow
from tests.support.members import BRISK, Live, named

pytestmark = [pytest.mark.timeout(900)]

REGION = "tills"
DAG = f"{REGION}_reset"
SPEC = """\
region: tills
kafka: {{bootstrap.servers: '{bootstrap}'}}
groups: [{{group_id: tills-etl, topics: [tills], pipeline: 'none:none', members: 2}}]
"""
LINKED = '''

from airflow.sdk import BaseOperator

from airflow_kcr.hooks.links import SparkUiLink
from airflow_kcr.operators.consume import KcrConsumeOperator


class Linked(BaseOperator):
    """Stands for a consumer whose application has said where its page is."""

    operator_extra_links = KcrConsumeOperator.operator_extra_links

    def __init__(self, *, region, **kwargs):
        super().__init__(**kwargs)
        self.region, self.kcr_conn_id = region, "kcr_default"

    def execute(self, context):
        SparkUiLink().persist(context, "http://driver.example:4040")


with DAG("NAME_linked", schedule=None):
    Linked(task_id="consume", region="NAME")
'''


@pytest.fixture(scope="module")
def tills(airflow: LiveAirflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A running region with four checkpoints, and its DAGs."""
    producer.ensure_topic(airflow.kafka.settings, REGION)
    spec = parse(SPEC.format(bootstrap=airflow.kafka.bootstrap_servers) + BRISK)
    with named(airflow.kafka, airflow.store_url, spec, tmp_path_factory.mktemp("tills")) as one:
        one.fill(200)
        one.start(0, 1)
        for _ in range(4):
            one.until(one.consumed, "the records")
            one.checkpoint()
            one.fill(100)
        airflow.add_dags(DAG, (DAGS + LINKED).replace("NAME", REGION), DAG, f"{REGION}_linked")
        yield one


@pytest.mark.skipif(lacks(CONSOLE), reason="this Airflow's own pages have other buttons, and it lends no Chakra")
def test_a_reset_is_chosen_looked_at_approved_and_seen_by_an_editor_and_by_no_viewer(
    airflow: LiveAirflow, tills: Live, browser: Callable[[str], Person]
) -> None:
    editor, viewer = browser("editor"), browser("viewer")
    client = airflow.editor

    editor.goes(f"/dags/{DAG}")
    editor.press("[data-testid=trigger-dag-button]")
    editor.reads("Trigger Dag", "Advanced Options")
    editor.press("[data-testid=trigger-dag-submit]")
    editor.sees(lambda: client.runs(DAG), "the run")
    run = client.runs(DAG)[-1].run_id

    airflow.question(DAG, run, "choose")
    for person in (viewer, editor):
        person.goes_to_task(DAG, run, "choose", "required_actions")
        person.reads(f"Reset region {REGION}: to which checkpoint?", "Made at")
    viewer.press("[data-testid=hitl-option-Choose]")
    viewer.reads("Access Denied")
    second = sorted(tills.region().checkpoints)[1]
    editor.takes_picture("reset-choose")
    editor.chooses("checkpoint", f"{second} ·")
    editor.writes("reason", "wrong rates")
    editor.press("[data-testid=hitl-option-Choose]")

    airflow.question(DAG, run, "approve")
    for person in (viewer, editor):
        person.goes_to_task(DAG, run, "approve", "required_actions")
        shown = person.reads(f"Reset region {REGION}: to-checkpoint {second}?", "Records processed again")
        assert "wrong rates" in shown
        assert "editor" in shown
    viewer.press("[data-testid=hitl-option-Approve]")
    viewer.reads("Access Denied")
    assert tills.region().person_resets == {}
    editor.takes_picture("reset-approve")
    editor.press("[data-testid=hitl-option-Approve]")
    client.wait_for_run(DAG, run)

    editor.goes_to_task(DAG, run, "apply")
    editor.reads("Success")
    viewer.goes_to_task(DAG, run, "apply", "details")
    viewer.reads("Extra Links")
    link = viewer.links()["Region"]
    assert link == f"{airflow.airflow.known.url}/plugin/kcr/regions/{REGION}"
    viewer.driver.find_element("link text", "Region").click()
    viewer.one("button[aria-label=Browse]")  # Airflow's own menu is still there
    viewer.reads("Checkpoints", "Resets")
    viewer.driver.find_element("link text", "Resets").click()
    page = viewer.reads("wrong rates")
    assert f"to-checkpoint {second}" in page
    assert "editor: wrong rates" in page
    viewer.driver.find_element("link text", "Checkpoints").click()
    viewer.reads("undone by timeline")


@pytest.mark.skipif(lacks(CONSOLE), reason="this Airflow lends no Chakra")
def test_the_regions_are_in_airflow_s_menu_and_each_has_its_page(
    airflow: LiveAirflow, tills: Live, browser: Callable[[str], Person]
) -> None:
    viewer = browser("viewer")
    viewer.press("button[aria-label=Browse]")
    viewer.sees(lambda: "Regions" in viewer.links() or viewer.driver.find_element("link text", "Regions"), "Regions")
    viewer.driver.find_element("partial link text", "Regions").click()
    viewer.reads(REGION, "2 of 2")
    viewer.driver.find_element("link text", REGION).click()
    viewer.reads("Members", "tills-etl[0]", "Checkpoints", "Resets")
    viewer.takes_picture("region")
    viewer.driver.find_element("link text", "All regions").click()
    viewer.reads("Condition")
    viewer.goes(region_path(REGION))
    viewer.reads("Members", "tills-etl[0]", "Checkpoints", "Resets")
    viewer.goes(region_path("nowhere"))
    viewer.reads("nowhere", "there is no region")


def test_where_airflow_lends_no_chakra_its_menu_leads_to_the_plain_page(
    airflow: LiveAirflow, tills: Live, browser: Callable[[str], Person]
) -> None:
    viewer = browser("viewer")
    viewer.lacks("ChakraUI")  # as Airflow 3.1 does by itself
    viewer.goes(region_path(REGION))
    viewer.enters_frame()
    viewer.reads("tills-etl[0]", "Checkpoints", "Resets")
    viewer.takes_picture("plain-region")
    viewer.driver.find_element("link text", "All regions").click()
    viewer.reads(REGION)


def test_a_consumer_has_a_link_to_its_region_and_one_to_spark(
    airflow: LiveAirflow, tills: Live, browser: Callable[[str], Person]
) -> None:
    run = airflow.editor.trigger(f"{REGION}_linked").run_id
    airflow.editor.wait_for_run(f"{REGION}_linked", run)
    viewer = browser("viewer")
    viewer.goes_to_task(f"{REGION}_linked", run, "consume", "details")
    viewer.reads("Extra Links", "Region", "Spark UI")
    links = viewer.links()
    assert links["Spark UI"].rstrip("/") == "http://driver.example:4040"
    assert links["Region"] == f"{airflow.airflow.known.url}/plugin/kcr/regions/{REGION}"
