"""From a run that was wrong to the approved reset and the cleared runs, in a browser, counted in clicks and seconds.

Another user looks at the region meanwhile, in another browser.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from airflow_kcr.embedded.flights import producer
from airflow_kcr.hooks.links import region_path
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.values import DesiredState, RequestId
from airflow_kcr.spec import parse
from tests.support.browser import Clicks, Person
from tests.support.live_airflow import LiveAirflow
from tests.support.members import BRISK, Live, named

pytestmark = [pytest.mark.timeout(900), pytest.mark.browser]

REGION = "desks"
RESET, CHECKPOINT = f"{REGION}_reset", f"{REGION}_checkpoint"
SPEC = """\
region: desks
kafka: {{bootstrap.servers: '{bootstrap}'}}
groups: [{{group_id: desks-etl, topics: [desks], pipeline: 'none:none', members: 2}}]
"""
DAGS = """\
from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_kcr.dags import region_dags
from airflow_kcr.spec import parse

dags = region_dags(parse(SPEC), start_date=datetime(2026, 1, 1, tzinfo=UTC))
"""
AT_MOST_CLICKS, AT_MOST_SECONDS = 6, 60.0
APPROVE, CLEAR = "button[data-answer=Approve]:not([disabled])", "button[data-verb=clear]"
RUNS = ("good", "wrong", "later")


def checkpoint_of(live: Live, run: str) -> None:
    request_id = RequestId(f"of {run}")
    asked = Requester(who="airflow", dag_id=CHECKPOINT, run_id=run)
    live.handle(RequestCheckpoint(request_id=request_id, requester=asked))
    live.until(lambda: live.is_committed(request_id), f"the checkpoint of {run}")


def button(text: str) -> str:
    return f"//button[normalize-space()='{text}'][not(@disabled)]"


def test_a_bad_run_is_reset_and_what_it_undid_is_cleared_in_six_clicks_and_a_minute(
    airflow: LiveAirflow,
    browser: Callable[[str], Person],
    tmp_path_factory: pytest.TempPathFactory,
    record_property: Callable[[str, object], None],
) -> None:
    producer.ensure_topic(airflow.kafka.settings, REGION)
    spec = parse(SPEC.format(bootstrap=airflow.kafka.bootstrap_servers) + BRISK)
    with named(airflow.kafka, airflow.store_url, spec, tmp_path_factory.mktemp(REGION)) as live:
        live.start(0, 1)
        for run in RUNS:
            live.fill(100)
            live.until(live.consumed, "the records")
            checkpoint_of(live, run)
        airflow.add_dags(REGION, DAGS.replace("SPEC", repr(spec.to_json_text())), RESET)
        airflow.editor.wait_for_dags([CHECKPOINT])
        for run in RUNS:
            airflow.editor.request("POST", f"dags/{CHECKPOINT}/dagRuns", {"dag_run_id": run, "logical_date": None})
            airflow.editor.request("PATCH", f"dags/{CHECKPOINT}/dagRuns/{run}", {"state": "success"})
        other = browser("admin")
        other.goes(region_path(REGION))
        other.reads("2 of 2 present")
        Clicks(other).on(By.XPATH, button("Pause"))
        other.one("[role*=dialog] input[name=reason]").send_keys("before the reset")
        epoch = live.region().epoch
        editor = browser("editor")
        editor.goes(f"/dags/{CHECKPOINT}/runs/wrong/")
        editor.reads("wrong", "Checkpoint")

        clicks, started = Clicks(editor), time.monotonic()
        clicks.on(By.PARTIAL_LINK_TEXT, "Checkpoint")
        clicks.on(By.XPATH, button("Go back to before this run …"))
        editor.sees(lambda: focused(editor) == "reason", "the reason in focus")
        editor.driver.switch_to.active_element.send_keys("wrong rates", Keys.NULL)
        clicks.on(By.XPATH, button(f"Trigger {RESET}"))
        clicks.on(By.CSS_SELECTOR, APPROVE)
        editor.sees(lambda: not editor.driver.find_elements(By.CSS_SELECTOR, APPROVE), "the answer taken")
        # Where the scheduler is late to hear that the asking process ended, Airflow has the question asked once more.
        if editor.one(f"{CLEAR}, {APPROVE}").get_attribute("data-answer"):
            clicks.on(By.CSS_SELECTOR, APPROVE)
        clicks.on(By.CSS_SELECTOR, CLEAR)
        editor.reads("2 run(s) cleared")
        took = time.monotonic() - started

        editor.takes_picture("console-reset-done")
        record_property("clicks", clicks.count)
        record_property("seconds", round(took, 1))
        states = {run.run_id: run.state for run in airflow.editor.runs(CHECKPOINT)}
        assert states == {"good": "success", "wrong": "queued", "later": "queued"}
        (reset,) = live.region().person_resets.values()
        assert reset.requester.reason == "wrong rates"
        assert clicks.count <= AT_MOST_CLICKS
        assert took <= AT_MOST_SECONDS

        # The other sees what has happened behind the dialog, which is of the time before: its action is refused.
        assert live.region().epoch > epoch
        other.sees(lambda: fact(other, "Epoch") == str(live.region().epoch), "the new epoch")
        other.press("button[data-verb=pause]")
        other.reads("Nothing was changed; the page now shows the region as it is", f"epoch {epoch}")
        assert live.region().desired_state is DesiredState.RUNNING
        other.types(Keys.ESCAPE)
        other.sees(lambda: not other.driver.find_elements(By.CSS_SELECTOR, "[role*=dialog]"), "no dialog")
        Clicks(other).on(By.LINK_TEXT, "Resets")
        other.reads("editor: wrong rates", "3 checkpoints")  # with the one that it drained to


def fact(person: Person, name: str) -> str:
    return person.driver.find_element(By.XPATH, f"//dt[.='{name}']/following-sibling::dd[1]").text


def focused(person: Person) -> str | None:
    return person.driver.switch_to.active_element.get_attribute("name")
