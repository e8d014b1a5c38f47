"""The console of the regions in a real browser, on Airflow's own API server; `pytest -m browser` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from airflow_kcr.airflow_features import CONSOLE
from airflow_kcr.embedded.airflow import Airflow
from airflow_kcr.embedded.airflow_client import AirflowClient
from airflow_kcr.hooks.links import region_path
from airflow_kcr.protocol.region.commands import ChangeDesiredState
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, DesiredState, RegionName
from airflow_kcr.store.schema_upgrade import upgrade
from tests.support.browser import Person, person_at
from tests.support.console_server import console_server
from tests.support.driver import Driver
from tests.support.installed_airflow import lacks
from tests.support.kafka import Kafka
from tests.support.live_region import live_region
from tests.support.tied import start_postgres

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.browser,
    pytest.mark.skipif(lacks(CONSOLE), reason="this Airflow lends no Chakra"),
]

REGION = "flights"
EVIL = "<img src=x onerror=alert(1)>"
SPEC = """\
region: {region}
kafka: {{bootstrap.servers: '{bootstrap}'}}
groups:
  - {{group_id: {group}, topics: [{topic}], members: 2, pipeline: 'jobs:process'}}
timeouts: {{lease: 2h, reset: 5h}}
"""
DAGS = '''
from datetime import UTC, datetime

from airflow_kcr.dags import region_dags
from airflow_kcr.spec import parse

SPEC = """{spec}"""
for dag in region_dags(parse(SPEC), start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    globals()[dag.dag_id] = dag
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Airflow's API server with regions that stand still."""

    airflow: Airflow
    flights: Driver
    """Six checkpoints, three of them undone by a reset, three after it, and a batch in flight."""


@pytest.fixture(scope="module")
def console(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    folder = tmp_path_factory.mktemp("console")
    postgres = start_postgres(folder / "postgres")  # by an address that a connection of Airflow can have
    topic = kafka.topic(4, name="t")  # as the driver calls it
    kafka.fill(topic, dict.fromkeys(range(4), 300))

    def spec(region: str, group: str) -> str:
        return SPEC.format(region=region, group=group, bootstrap=kafka.bootstrap_servers, topic=topic)

    metadata, store = postgres.ensure_database("airflow"), postgres.ensure_database("kcr")
    upgrade(store)
    with ExitStack() as stack:
        stack.callback(postgres.stop)
        flights = stack.enter_context(live_region(store, spec(REGION, "g")))
        stopped = stack.enter_context(live_region(store, spec("halfway", "h")))
        stack.enter_context(live_region(store, spec("fresh", "f")))
        stopped.store.handle(stopped.name, ChangeDesiredState(desired_state=DesiredState.RUNNING))
        stopped.store.handle(stopped.name, ChangeDesiredState(desired_state=DesiredState.STOPPED))
        dags = DAGS.format(spec=spec(REGION, "g"))
        airflow = stack.enter_context(console_server(folder, metadata, store, dags))
        for number in range(4):
            flights.grow(flights.partition(number), end=300, topic_id=kafka.topic_id(topic))
        flights.up()
        for number in range(6):
            flights.process(width=10)
            flights.checkpoint(f"c{number}", requester=of_run(f"before__{number}"))
        flights.reset(ToCheckpoint(sequence=checkpoints(flights)[2]))
        flights.complete()
        flights.finish_reset()
        for number in range(3):
            flights.process(width=10)
            flights.checkpoint(f"r{number}", requester=of_run(f"after__{number}"))
        flights.start_batch(flights.member(0), 10)
        yield Console(airflow=airflow, flights=flights)


def of_run(run_id: str) -> Requester:
    return Requester(who="airflow", dag_id=f"{REGION}_checkpoint", run_id=run_id, reason=EVIL)


def checkpoints(driver: Driver) -> list[CheckpointNumber]:
    return [row.sequence for row in driver.region.archive.checkpoints() if row.is_complete]


@pytest.fixture
def editor(console: Console) -> Iterator[Person]:
    yield from logged_in(console, "editor")


@pytest.fixture
def viewer(console: Console) -> Iterator[Person]:
    yield from logged_in(console, "viewer")


def logged_in(console: Console, name: str) -> Iterator[Person]:
    (user,) = (one for one in console.airflow.known.users if one.name == name)
    with person_at(console.airflow.known.url) as person:
        person.logs_in(user.name, user.password)
        yield person


def test_every_region_says_what_it_is_and_is_filtered_and_sorted_in_the_address(viewer: Person) -> None:
    viewer.goes("/plugin/kcr")
    text = viewer.reads("flights", "halfway", "fresh")
    assert [line for line in text.splitlines() if line in {"new", "stopped", "running"}] == [
        "new",
        "stopped",
        "running",
    ]
    assert "2 of 2" in text
    assert viewer.links()["flights_reset"].endswith("/dags/flights_reset")
    viewer.one("input[aria-label='Filter regions']").send_keys("fre")
    viewer.sees(lambda: "match=fre" in viewer.driver.current_url and "halfway" not in viewer.reads("fresh"), "filter")
    viewer.goes("/plugin/kcr?match=stopped")
    viewer.sees(lambda: "halfway" in viewer.reads("halfway") and "fresh" not in viewer.links(), "the filter")


def test_a_region_shows_its_members_its_past_as_a_branch_and_its_pages(console: Console, viewer: Person) -> None:
    viewer.goes(region_path(REGION))
    viewer.reads("What it waits for", "processing", "2 of 2 present", "flights_checkpoint")
    viewer.takes_picture("console-overview")
    viewer.driver.find_element("link text", "Checkpoints").click()
    viewer.reads("timeline 1", "timeline 2", "undone by timeline 2", "after__2", "before__5")
    marks = viewer.driver.find_elements("css selector", "svg g[role=button]")
    assert len(marks) == len(console.flights.region.archive.checkpoints())
    assert len(viewer.driver.find_elements("css selector", "svg path[stroke-dasharray]")) == 1
    viewer.takes_picture("console-checkpoints")
    marks[0].send_keys("\ue007")  # Enter: the keyboard is enough
    viewer.reads("Drained in", "Offsets", "In Kafka")
    viewer.driver.find_element("link text", "Partitions").click()
    viewer.reads("1 to 4 of 4")
    viewer.driver.find_element("link text", "Resets").click()
    viewer.reads("to-checkpoint", "4 checkpoints")
    viewer.driver.find_element("link text", "Events").click()
    assert EVIL in viewer.reads("CheckpointRequested")
    assert viewer.driver.find_elements("css selector", "img[src=x]") == []


@pytest.mark.parametrize(
    ("tab", "shown"),
    [
        ("overview", "Restore point"),
        ("checkpoints", "timeline 2"),
        ("partitions", "1 to 4 of 4"),
        ("resets", "to-checkpoint"),
        ("events", "CheckpointPublished"),
    ],
)
def test_nothing_of_a_page_is_cut_off_on_a_phone(viewer: Person, tab: str, shown: str) -> None:
    viewer.driver.set_window_size(420, 900)
    viewer.goes(f"{region_path(REGION)}?tab={tab}")
    viewer.reads("flights", shown)
    viewer.takes_picture(f"console-phone-{tab}")
    assert viewer.driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


def test_what_happens_is_seen_without_a_reload(console: Console, viewer: Person) -> None:
    viewer.goes(region_path("fresh"))
    viewer.reads("new", "0 of 2 present")
    store = console.flights.store
    fresh = RegionName("fresh")
    store.handle(fresh, ChangeDesiredState(desired_state=DesiredState.RUNNING))
    viewer.reads("starting")
    store.handle(fresh, ChangeDesiredState(desired_state=DesiredState.STOPPED))
    viewer.reads("stopped")


def test_a_region_that_is_not_there_is_said(viewer: Person) -> None:
    viewer.goes(region_path("nowhere"))
    viewer.reads("nowhere", "there is no region")


def pinned_as(console: Console, sequence: CheckpointNumber) -> str:
    row = console.flights.region.checkpoint_of(sequence)
    return "" if row is None else row.pinned_as


def pressed(person: Person, text: str) -> None:
    person.sees(lambda: person.driver.find_element("xpath", f"//button[normalize-space()='{text}']"), text).click()


def confirmed(person: Person, verb: str, **fields: str) -> None:
    for name, value in fields.items():
        person.one(f"[role*=dialog] input[name={name}]").send_keys(value)
    person.press(f"button[data-verb={verb}]")


def test_a_viewer_has_no_buttons(viewer: Person) -> None:
    viewer.goes(region_path(REGION))
    viewer.reads("You may look at this region, but not change it.")
    assert viewer.driver.find_elements("xpath", "//button[normalize-space()='Pause']") == []


def test_an_editor_pauses_and_resumes_with_a_reason_and_pins_a_checkpoint(console: Console, editor: Person) -> None:
    editor.goes(region_path(REGION))
    pressed(editor, "Pause")
    editor.reads("Batches in flight finish")
    confirmed(editor, "pause", reason="a look at the sink")
    editor.sees(lambda: console.flights.region.desired_state is DesiredState.PAUSED, "the pause")
    assert "a look at the sink" in str([event.body for event in console.flights.events[-3:]])
    pressed(editor, "Resume")
    confirmed(editor, "resume")
    editor.sees(lambda: console.flights.region.desired_state is DesiredState.RUNNING, "the region running")
    first = checkpoints(console.flights)[0]
    editor.goes(f"{region_path(REGION)}?tab=checkpoints")
    editor.press(f"button[aria-label='Checkpoint {first}']")
    pressed(editor, "Pin")
    confirmed(editor, "pin", label=EVIL)
    editor.sees(lambda: pinned_as(console, first) == EVIL, "the pin")
    editor.reads(EVIL)


def test_what_was_seen_before_a_reset_is_refused_and_the_page_is_fresh(console: Console, editor: Person) -> None:
    editor.goes(region_path("halfway"))
    pressed(editor, "Start")
    editor.one("[role*=dialog] input[name=reason]")
    store = console.flights.store
    store.handle(RegionName("halfway"), ChangeDesiredState(desired_state=DesiredState.RUNNING))
    confirmed(editor, "start")
    editor.reads("Nothing was changed; the page now shows the region as it is")
    store.handle(RegionName("halfway"), ChangeDesiredState(desired_state=DesiredState.STOPPED))


def test_a_reset_is_planned_as_one_chooses_and_requested_from_the_region_s_own_dag(
    console: Console, editor: Person
) -> None:
    first = checkpoints(console.flights)[0]
    editor.goes(region_path(REGION))
    pressed(editor, "Reset …")
    editor.reads("Give the sequence of a checkpoint")
    editor.press(f"option[value='{first}']")
    editor.reads("What it would do", "records processed again", "DAG runs undone")
    editor.takes_picture("console-reset")
    editor.one("input[name=reason]").send_keys("wrong rates")
    pressed(editor, "Request by flights_reset")
    editor.reads("The reset is requested")
    with AirflowClient(
        url=console.airflow.known.url, user="editor", password=console.airflow.known.passwords["editor"]
    ) as client:
        (run,) = client.request("GET", "dags/flights_reset/dagRuns")["dag_runs"]
    assert run["conf"]["target"] == "to-checkpoint"
    assert run["conf"]["value"] == str(first)
    assert run["conf"]["reason"] == "wrong rates"


def test_the_runs_that_a_reset_has_undone_are_cleared_by_airflow_in_the_user_s_name(
    console: Console, editor: Person
) -> None:
    known, dag = console.airflow.known, f"{REGION}_checkpoint"
    with AirflowClient(url=known.url, user="editor", password=known.passwords["editor"]) as client:
        for number in range(3, 6):
            asked = {"dag_run_id": f"before__{number}", "logical_date": None}
            client.request("POST", f"dags/{dag}/dagRuns", asked)
            client.request("PATCH", f"dags/{dag}/dagRuns/before__{number}", {"state": "success"})
        editor.goes(f"{region_path(REGION)}?tab=resets")
        pressed(editor, "4 checkpoints")
        editor.reads("before__3", "before__5")
        pressed(editor, "Clear them …")
        editor.sees(
            lambda: editor.driver.find_elements("xpath", "//button[contains(., 'task instance(s) of 3 run')]"), "sum"
        )
        editor.takes_picture("console-clear")
        editor.driver.find_element("xpath", "//button[contains(., 'task instance(s) of 3 run')]").click()
        editor.reads("3 run(s) cleared")
        states = {run["state"] for run in client.request("GET", f"dags/{dag}/dagRuns")["dag_runs"]}
    assert states == {"queued"}
