"""The console of the regions in a real browser, on Airflow's own API server; `pytest -m browser` runs it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

import pytest
from selenium.webdriver.common.keys import Keys

from airflow_kcr.airflow_features import CONSOLE
from airflow_kcr.embedded.airflow import Airflow
from airflow_kcr.embedded.airflow_client import AirflowClient
from airflow_kcr.hooks.links import region_path
from airflow_kcr.protocol.region.commands import ChangeDesiredState
from airflow_kcr.protocol.region.resets import halt
from airflow_kcr.protocol.region.rows import Halt, HaltReason, Requester
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, DesiredState, RegionName
from airflow_kcr.store.schema_upgrade import upgrade
from tests.support.aged_past import spread_past
from tests.support.browser import Clicks, Person, person_at
from tests.support.console_server import console_server
from tests.support.databases import execute
from tests.support.driver import Driver
from tests.support.installed_airflow import lacks
from tests.support.kafka import Kafka
from tests.support.lag_samples import keep_lag
from tests.support.live_region import FakeCluster, live_region
from tests.support.tied import start_postgres

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.browser,
    pytest.mark.skipif(lacks(CONSOLE), reason="this Airflow lends no Chakra"),
]

REGION = "flights"
IN_TWO_SECONDS = 2.0
EVIL = "<img src=x onerror=alert(1)>"
SPEC = """\
region: {region}
kafka: {{bootstrap.servers: '{bootstrap}'}}
groups:
  - group_id: {group}
    topics: [{topic}]
    members: 2
    pipeline: 'jobs:process'
    sinks: {{lake: {{kind: custom, factory: 'jobs:lake'}}}}
timeouts: {{lease: 2h, reset: 5h}}
"""
DAGS = '''
from datetime import UTC, datetime

from airflow_kcr.dags import region_dags
from airflow_kcr.spec import parse

SPECS = ["""{spec}""", """{hostile}"""]
for spec in SPECS:
    for dag in region_dags(parse(spec), start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        globals()[dag.dag_id] = dag

from airflow.sdk import DAG, Param

from airflow_kcr.operators.recompute import KcrRecomputeOperator

params = {{"checkpoint": Param(None, type=["integer", "null"]), "reason": Param("", type="string")}}
with DAG("flights_recompute", schedule=None, params=params, tags=["kcr"]):
    KcrRecomputeOperator(task_id="recompute", region="flights", checkpoint="{{{{ params.checkpoint }}}}")

from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("flights_report", schedule=None):
    EmptyOperator(task_id="sums")
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Airflow's API server with regions that stand still."""

    airflow: Airflow
    metadata: str
    """The URL of Airflow's own database."""

    store_url: str
    topic: str
    """Of all regions, with four partitions of 300 records."""

    hostile: str
    """The spec of a region that isn't declared yet, whose group has markup for a name; its DAGs are there."""

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
        stack.callback(kafka.delete_topic, topic)
        stack.callback(postgres.stop)
        flights = stack.enter_context(live_region(store, spec(REGION, "g")))
        stopped = stack.enter_context(live_region(store, spec("halfway", "h")))
        stack.enter_context(live_region(store, spec("fresh", "f")))
        stopped.store.handle(stopped.name, ChangeDesiredState(desired_state=DesiredState.RUNNING))
        stopped.store.handle(stopped.name, ChangeDesiredState(desired_state=DesiredState.STOPPED))
        hostile = spec("hostile", f"'{EVIL}'")
        dags = DAGS.format(spec=spec(REGION, "g"), hostile=hostile)
        airflow = stack.enter_context(console_server(folder, metadata, store, dags))
        for number in range(4):
            flights.grow(flights.partition(number), end=300, topic_id=kafka.topic_id(topic))
        flights.up()
        for number in range(6):
            flights.process(width=10)
            flights.checkpoint(f"c{number}", requester=of_run(f"before__{number}"))
        asked = Requester(who="ada", reason="wrong rates since noon")
        flights.reset(ToCheckpoint(sequence=checkpoints(flights)[2]), requester=asked)
        flights.complete()
        flights.finish_reset()
        cluster = FakeCluster(ends=dict.fromkeys(range(4), 300))
        for number in range(3):
            keep_lag(flights, cluster, minutes=9 - 3 * number)
            flights.process(width=10)
            flights.checkpoint(f"r{number}", requester=of_run(f"after__{number}"))
        flights.start_batch(flights.member(0), 10)
        keep_lag(flights, cluster, minutes=0)
        spread_past(store, REGION)
        yield Console(
            airflow=airflow, metadata=metadata, store_url=store, topic=topic, hostile=hostile, flights=flights
        )


def of_run(run_id: str) -> Requester:
    return Requester(who="airflow", dag_id=f"{REGION}_checkpoint", run_id=run_id)


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
    assert str(viewer.one("svg[role=img]").get_attribute("aria-label")).startswith("Lag from 1,080 to 960")
    viewer.one("input[aria-label='Filter regions']").send_keys("fre")
    viewer.sees(lambda: "match=fre" in viewer.driver.current_url and "halfway" not in viewer.reads("fresh"), "filter")
    viewer.goes("/plugin/kcr?match=stopped")
    viewer.sees(lambda: "halfway" in viewer.reads("halfway") and "fresh" not in viewer.links(), "the filter")


def first_cells(person: Person) -> list[str]:
    return [one.text for one in person.driver.find_elements("css selector", "tbody th")]


def test_reload_and_back_keep_the_order_and_the_filter(viewer: Person) -> None:
    viewer.goes("/plugin/kcr")
    viewer.sees(lambda: first_cells(viewer) == ["fresh", "halfway", "flights"], "the regions by condition")
    pressed(viewer, "Region")
    viewer.sees(lambda: first_cells(viewer) == ["flights", "fresh", "halfway"], "the regions by name")
    viewer.one("input[aria-label='Filter regions']").send_keys("s")
    viewer.sees(lambda: "match=s" in viewer.driver.current_url, "the filter in the address")
    viewer.one("input[aria-label='Filter regions']").send_keys("topped")
    viewer.sees(lambda: first_cells(viewer) == ["halfway"], "the region that is stopped")
    viewer.driver.refresh()
    viewer.sees(lambda: first_cells(viewer) == ["halfway"], "the same after a reload")
    viewer.driver.find_element("link text", "halfway").click()
    viewer.reads("What it waits for")
    viewer.driver.back()
    viewer.sees(lambda: first_cells(viewer) == ["halfway"], "the same after a way back")
    assert viewer.one("input[aria-label='Filter regions']").get_attribute("value") == "stopped"
    assert "sort=region" in viewer.driver.current_url


def test_reload_and_back_keep_the_order_and_the_filter_of_partitions(viewer: Person) -> None:
    by_name = ["g: t-0", "g: t-1", "g: t-2", "g: t-3"]
    viewer.goes(f"{region_path(REGION)}?tab=partitions")
    viewer.sees(lambda: [*reversed(first_cells(viewer))] == by_name, "the partitions by lag")
    pressed(viewer, "Partition")
    viewer.sees(lambda: first_cells(viewer) == by_name, "the partitions by name")
    viewer.one("input[aria-label='Filter partitions']").send_keys("g[1]")
    viewer.sees(lambda: first_cells(viewer) == ["g: t-2", "g: t-3"], "those of one member")
    viewer.driver.refresh()
    viewer.sees(lambda: first_cells(viewer) == ["g: t-2", "g: t-3"], "the same after a reload")
    viewer.driver.find_element("link text", "All regions").click()
    viewer.reads("halfway")
    viewer.driver.back()
    viewer.sees(lambda: first_cells(viewer) == ["g: t-2", "g: t-3"], "the same after a way back")


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
    viewer.reads("CheckpointRequested", "flights_checkpoint")


def run_tab(number: int, *, of: str = "after") -> str:
    return f"/dags/{REGION}_checkpoint/runs/{of}__{number}/plugin/kcr_run"


def with_runs(console: Console, *names: str, region: str = REGION) -> None:
    """Make the DAG runs that the checkpoints answer, as far as they are not there."""
    known, dag = console.airflow.known, f"{region}_checkpoint"
    with AirflowClient(url=known.url, user="editor", password=known.passwords["editor"]) as client:
        there = {run["dag_run_id"] for run in client.request("GET", f"dags/{dag}/dagRuns")["dag_runs"]}
        for name in set(names) - there:
            client.request("POST", f"dags/{dag}/dagRuns", {"dag_run_id": name, "logical_date": None})
            client.request("PATCH", f"dags/{dag}/dagRuns/{name}", {"state": "success"})


def test_a_run_leads_to_its_checkpoint_and_back_by_a_click_each(console: Console, viewer: Person) -> None:
    with_runs(console, "after__0", "after__1", "after__2", "before__4")
    number = checkpoints(console.flights)[-2]
    viewer.goes(f"/dags/{REGION}_checkpoint/runs/after__1/")
    clicks = Clicks(viewer)
    clicks.on("partial link text", "Checkpoint")
    viewer.reads("published", "Before it", "after__0", "After it", "after__2", "40 offsets", "by reset flights/")
    viewer.takes_picture("console-run")
    assert clicks.count == 1
    clicks.on("link text", str(number))
    viewer.reads("Drained in", "after__1")
    assert f"checkpoint={number}" in viewer.driver.current_url
    viewer.driver.back()
    clicks.on("partial link text", "after__0")
    viewer.reads("after__1", "by reset flights/")
    assert "/runs/after__0/plugin/kcr_run" in viewer.driver.current_url
    viewer.goes(f"{region_path(REGION)}?tab=checkpoints&checkpoint={number}")
    viewer.reads("Drained in")
    clicks = Clicks(viewer)
    clicks.on("link text", "after__1")
    viewer.sees(lambda: viewer.driver.current_url.endswith("/runs/after__1"), "the run")
    assert clicks.count == 1


def test_a_run_that_a_reset_has_undone_says_by_which(console: Console, viewer: Person) -> None:
    with_runs(console, "before__4")
    viewer.goes(run_tab(4, of="before"))
    viewer.reads("A reset has undone this checkpoint:", "flights/")
    viewer.goes(f"/dags/{REGION}_checkpoint/runs/before__4/tasks/drain/plugin/kcr_task")
    viewer.reads("A reset has undone this checkpoint:", "flights/")


def test_the_health_of_all_regions_is_a_click_away(viewer: Person) -> None:
    viewer.goes("/plugin/kcr")
    viewer.reads("flights", "halfway", "fresh")  # the server is warm
    viewer.goes("/plugin/kcr/regions/flights")
    viewer.reads("What it waits for")
    clicks, started = Clicks(viewer), time.monotonic()
    clicks.on("link text", "All regions")
    viewer.reads("flights", "halfway", "fresh", "Condition")
    took = time.monotonic() - started
    assert clicks.count == 1
    assert took <= IN_TWO_SECONDS


def test_charts_are_drawn_and_kept_as_svg_and_png(console: Console, viewer: Person, tmp_path: Path) -> None:
    viewer.keeps_files(tmp_path)
    viewer.goes(f"{region_path(REGION)}?tab=charts")
    viewer.reads("Duration of checkpoints", "Replay windows of resets", "went back over, offsets")
    viewer.takes_picture("console-charts")
    assert len(viewer.driver.find_elements("css selector", "figure svg rect")) >= len(checkpoints(console.flights))
    viewer.press("button[aria-label='Duration of checkpoints as SVG']")
    svg = viewer.sees(lambda: next(iter(tmp_path.glob("*.svg")), None), "the SVG")
    assert svg is not None
    text = svg.read_text("utf-8")
    assert "<rect" in text
    assert "var(" not in text
    viewer.press("button[aria-label='Duration of checkpoints as PNG']")
    png = viewer.sees(lambda: next(iter(tmp_path.glob("*.png")), None), "the PNG")
    assert png is not None
    assert png.read_bytes().startswith(b"\x89PNG")


def test_an_editor_validates_the_groups_and_compares_with_kafka(console: Console, editor: Person) -> None:
    editor.goes(region_path(REGION))
    pressed(editor, "Validate groups")
    editor.reads("verdict", "participants", "topics")
    first = checkpoints(console.flights)[0]
    editor.goes(f"{region_path(REGION)}?tab=checkpoints&checkpoint={first}")
    pressed(editor, "Compare with Kafka")
    editor.reads(f"4 of 4 committed offsets differ from checkpoint {first}", "not_committed")


def test_a_member_leads_to_the_task_that_hosts_it(console: Console, editor: Person) -> None:
    known, dag = console.airflow.known, f"{REGION}_consumers"
    with AirflowClient(url=known.url, user="editor", password=known.passwords["editor"]) as client:
        client.request("POST", f"dags/{dag}/dagRuns", {"dag_run_id": "hosts", "logical_date": None})
    execute(
        console.metadata,
        "UPDATE task_instance SET state = 'running', rendered_map_index = 'g 1' "
        f"WHERE dag_id = '{dag}' AND task_id = 'consume' AND map_index = 1",
    )
    editor.goes(region_path(REGION))
    editor.reads("g[0]", "g[1]", "Lease ends")
    task = editor.sees(lambda: editor.driver.find_element("link text", "consume"), "the task")
    assert str(task.get_attribute("href")).endswith(f"/dags/{dag}/runs/hosts/tasks/consume/mapped/1")


@contextmanager
def store_away(console: Console) -> Iterator[None]:
    """Let nothing connect to the store."""
    gone = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'kcr'"
    execute(console.metadata, "ALTER DATABASE kcr ALLOW_CONNECTIONS false", gone)
    try:
        yield
    finally:
        execute(console.metadata, "ALTER DATABASE kcr ALLOW_CONNECTIONS true")


def test_a_store_that_goes_away_is_said_beside_what_was_read_and_the_page_recovers(
    console: Console, viewer: Person
) -> None:
    viewer.goes(region_path(REGION))
    viewer.reads("What it waits for")
    with store_away(console):
        viewer.sees(lambda: viewer.driver.find_elements("css selector", "[role=alert]"), "what is wrong")
        viewer.takes_picture("console-store-away")
        assert "What it waits for" in viewer.reads("not currently accepting connections")
    viewer.sees(lambda: not viewer.driver.find_elements("css selector", "[role=alert]"), "the page as before")


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


def test_the_keyboard_alone_is_enough_to_pause_and_resume(console: Console, editor: Person) -> None:
    editor.goes(region_path(REGION))
    for button, wanted in (("Pause", DesiredState.PAUSED), ("Resume", DesiredState.RUNNING)):
        editor.reads(button)
        tabs_to(editor, button)
        editor.types(Keys.ENTER)
        editor.one("[role*=dialog] input[name=reason]")
        tabs_to(editor, "", name="reason")
        editor.types("by keyboard", Keys.ENTER)
        editor.sees(partial(is_desired, console, wanted), wanted)


@pytest.mark.parametrize("action", ["Pause", "Checkpoint now", "Stop", "Reset …", "Kill"])
def test_the_keyboard_alone_opens_each_action_and_escape_leads_back_to_its_button(editor: Person, action: str) -> None:
    editor.goes(region_path(REGION))
    editor.reads(action, "2 of 2 present")
    tabs_to(editor, action)
    editor.types(Keys.ENTER)
    editor.one("[role*=dialog] input[name=reason]")
    editor.stands_still()
    editor.types(Keys.ESCAPE)
    editor.sees(lambda: not editor.driver.find_elements("css selector", "[role*=dialog]"), "no dialog")
    editor.sees(lambda: editor.driver.switch_to.active_element.text == action, f"the focus on {action}")


def test_the_keyboard_alone_goes_through_the_parts_of_a_region_and_sorts(viewer: Person) -> None:
    viewer.goes(region_path(REGION))
    viewer.reads("2 of 2 present")
    tabs_to(viewer, "Partitions")
    viewer.types(Keys.ENTER)
    viewer.reads("1 to 4 of 4")
    tabs_to(viewer, "Member")
    viewer.types(Keys.ENTER)
    viewer.sees(lambda: "order=member" in viewer.driver.current_url, "the order")


def is_desired(console: Console, wanted: DesiredState) -> bool:
    return console.flights.region.desired_state is wanted


def tabs_to(person: Person, text: str, *, name: str | None = None) -> None:
    """Press the tabulator until a button with a text has the focus, or a field of a name."""

    def is_there() -> bool:
        focused = person.driver.switch_to.active_element
        return focused.get_attribute("name") == name if name else focused.text == text

    for _ in range(60):
        if is_there():
            return
        person.types(Keys.TAB)
    raise AssertionError(f"the tabulator does not come to {name or text}")


@pytest.fixture
def admin(console: Console) -> Iterator[Person]:
    yield from logged_in(console, "admin")


def test_of_two_who_start_a_region_one_sees_the_other_s_start_and_is_refused(
    console: Console, editor: Person, admin: Person
) -> None:
    for person in (editor, admin):
        person.goes(region_path("halfway"))
        pressed(person, "Start")
        person.one("[role*=dialog] input[name=reason]")
    confirmed(admin, "start", reason="it is time")
    editor.reads("starting")  # behind the dialog
    confirmed(editor, "start", reason="too slow")
    editor.reads("Nothing was changed; the page now shows the region as it is")
    editor.types(Keys.ESCAPE)
    editor.driver.find_element("link text", "Events").click()
    assert "too slow" not in editor.reads("admin: it is time")
    console.flights.store.handle(RegionName("halfway"), ChangeDesiredState(desired_state=DesiredState.STOPPED))


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
    pressed(editor, "Trigger flights_reset")
    editor.reads("The reset is requested")
    with AirflowClient(
        url=console.airflow.known.url, user="editor", password=console.airflow.known.passwords["editor"]
    ) as client:
        (run,) = client.request("GET", "dags/flights_reset/dagRuns")["dag_runs"]
    assert run["conf"]["target"] == "to-checkpoint"
    assert run["conf"]["checkpoint"] == first
    assert run["conf"]["reason"] == "wrong rates"


def opens_reset(person: Person, target: str, *, region: str = REGION) -> None:
    """Open the drawer of a reset with a target."""
    person.goes(region_path(region))
    pressed(person, "Reset …")
    person.press(f"option[value='{target}']")


def conf_of_reset(console: Console, editor: Person, reason: str) -> Mapping[str, object]:
    """Trigger the reset that the drawer shows, and return the conf that its DAG run has."""
    editor.one("input[name=reason]").send_keys(reason)
    pressed(editor, "Trigger flights_reset")
    editor.reads("The reset is requested")
    known = console.airflow.known
    with AirflowClient(url=known.url, user="editor", password=known.passwords["editor"]) as client:
        runs = client.request("GET", "dags/flights_reset/dagRuns")["dag_runs"]
    (conf,) = (run["conf"] for run in runs if run["conf"]["reason"] == reason)
    return cast("Mapping[str, object]", conf)


def test_a_reset_takes_an_offset_for_each_partition_from_a_table(console: Console, editor: Person) -> None:
    opens_reset(editor, "by-partition")
    editor.reads("Give the offset of one partition or more", "1 to 4 of 4")
    field = "input[aria-label='Offset of g: {}']"
    editor.one(field.format(f"{console.topic}-2")).send_keys("7")
    editor.one(field.format(f"{console.topic}-0")).send_keys("12")
    editor.reads("2 partition(s) chosen", "2 of 4 partition(s)")
    # Those that the filter hides keep what was written.
    editor.one("[role=dialog] input[aria-label='Filter partitions']").send_keys("g[1]")
    editor.reads("1 to 2 of 2")
    editor.one(field.format(f"{console.topic}-2")).send_keys(Keys.BACKSPACE, "9")
    editor.reads("2 partition(s) chosen", "2 of 4 partition(s)")
    conf = conf_of_reset(console, editor, "by table")
    assert conf["target"] == "from-file"
    lines = sorted(str(conf["file"]).splitlines())
    assert lines == [f'"g",{console.topic},0,12', f'"g",{console.topic},2,9']


def test_a_reset_takes_the_offsets_of_a_file_and_says_what_is_wrong_with_one(
    console: Console, editor: Person, tmp_path: Path
) -> None:
    (tmp_path / "wrong.csv").write_text("g,elsewhere,0,5\n")
    (tmp_path / "right.csv").write_text(f"g,{console.topic},1,5\ng,{console.topic},3,6\n")
    opens_reset(editor, "from-file")
    editor.reads("Lines of GROUP,TOPIC,PARTITION,OFFSET")
    editor.one("input[type=file]").send_keys(str(tmp_path / "wrong.csv"))
    editor.reads("elsewhere", "1 line(s)")
    editor.one("input[type=file]").send_keys(str(tmp_path / "right.csv"))
    editor.reads("2 of 4 partition(s)", "2 line(s)")
    assert conf_of_reset(console, editor, "by file")["file"] == f"g,{console.topic},1,5\ng,{console.topic},3,6"


def lives_in(person: Person, zone: str) -> None:
    """Choose a time zone in Airflow, for the pages that are opened from now on."""
    person.driver.execute_script("localStorage.setItem('timezone', JSON.stringify(arguments[0]))", zone)


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/St_Johns"])
def test_times_are_in_the_zone_that_the_user_has_chosen_in_airflow(viewer: Person, zone: str) -> None:
    lives_in(viewer, zone)
    viewer.goes(f"{region_path(REGION)}?tab=checkpoints")
    viewer.reads("timeline 2")
    for one in viewer.driver.find_elements("css selector", "tbody time"):
        local = datetime.fromisoformat(str(one.get_attribute("datetime"))).astimezone(ZoneInfo(zone))
        written = f"{local:%Y-%m-%d %H:%M:%S}"
        assert one.text.startswith(written)
        assert one.get_attribute("title") == f"{written} {zone}"


# In summer and in winter: the clocks of that zone are set.
@pytest.mark.parametrize(("day", "utc"), [("07-01", "06:30:00"), ("01-20", "07:30:00")])
def test_a_reset_to_a_time_has_a_date_picker_in_that_zone(console: Console, editor: Person, day: str, utc: str) -> None:
    date = f"{datetime.now(UTC).year - 1}-{day}"
    lives_in(editor, "Europe/Zurich")
    opens_reset(editor, "to-datetime")
    picker = editor.one("input[type=datetime-local]")
    editor.reads("Time in Europe/Zurich")
    # Typed, its parts depend on the browser's language.
    editor.driver.execute_script(
        "Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(...arguments);"
        "arguments[0].dispatchEvent(new Event('input', { bubbles: true }))",
        picker,
        f"{date}T08:30",
    )
    editor.reads("4 of 4 partition(s)")
    assert conf_of_reset(console, editor, f"to {date}")["time"] == f"{date}T{utc}.000Z"


def test_a_recomputation_is_shown_first_and_requested_with_a_reason_from_a_dag_that_takes_the_checkpoint(
    console: Console, editor: Person
) -> None:
    with_runs(console, "after__1")
    number = checkpoints(console.flights)[-2]
    editor.goes(run_tab(1))
    pressed(editor, "Recompute this run …")
    editor.reads("Offsets processed again", "g/lake: custom", "a run of flights_recompute")
    editor.takes_picture("console-recompute")
    assert not editor.one("button[data-verb=recompute]").is_enabled()
    confirmed(editor, "recompute", reason="wrong rates")
    editor.reads("Requested:", "manual__")
    known = console.airflow.known
    with AirflowClient(url=known.url, user="editor", password=known.passwords["editor"]) as client:
        (run,) = client.request("GET", "dags/flights_recompute/dagRuns")["dag_runs"]
    assert (run["conf"], run["note"]) == ({"checkpoint": number, "reason": "wrong rates"}, "wrong rates")


TRIGGERED = (
    """INSERT INTO asset (id, name, uri, "group", extra, created_at, updated_at)
    VALUES (1000, 'lake', 'x://lake', 'asset', '{}', now(), now())""",
    """INSERT INTO asset_event
    (id, asset_id, extra, source_dag_id, source_task_id, source_run_id, source_map_index, timestamp)
    VALUES (1000, 1000, '{}', 'flights_checkpoint', 'commit', 'before__4', -1, now())""",
    # Airflow's API fails on the event of a run that has not started.
    "UPDATE dag_run SET start_date = now() WHERE run_id = 'sums_of_before__4'",
    """INSERT INTO dagrun_asset_event (dag_run_id, event_id)
    SELECT id, 1000 FROM dag_run WHERE dag_id = 'flights_report' AND run_id = 'sums_of_before__4'""",
)


def test_the_runs_that_a_reset_has_undone_and_ticked_those_downstream_are_cleared_in_the_user_s_name(
    console: Console, editor: Person
) -> None:
    known, dag = console.airflow.known, f"{REGION}_checkpoint"
    with AirflowClient(url=known.url, user="editor", password=known.passwords["editor"]) as client:
        undone = [f"before__{number}" for number in range(3, 6)]
        with_runs(console, *undone)
        report = "dags/flights_report/dagRuns"
        client.request("POST", report, {"dag_run_id": "sums_of_before__4", "logical_date": None})
        client.request("PATCH", f"{report}/sums_of_before__4", {"state": "success"})
        execute(console.metadata, *TRIGGERED)
        editor.goes(f"{region_path(REGION)}?tab=resets")
        pressed(editor, "4 checkpoints")
        editor.reads("before__3", "before__5")
        editor.sees(
            lambda: editor.driver.find_elements("xpath", "//button[contains(., 'task instance(s) of 3 run')]"), "sum"
        )
        editor.takes_picture("console-clear")
        editor.driver.find_element("xpath", "//label[contains(., 'runs downstream')]").click()
        editor.reads("flights_report / sums_of_before__4")
        editor.sees(lambda: editor.driver.find_element("xpath", "//button[contains(., 'of 4 run')]"), "4 runs").click()
        editor.reads("4 run(s) cleared")
        (sums,) = client.request("GET", report)["dag_runs"]
        assert sums["state"] == "queued"
        runs = client.request("GET", f"dags/{dag}/dagRuns")["dag_runs"]
    states = {run["dag_run_id"]: run["state"] for run in runs if run["dag_run_id"] in undone}
    assert states == dict.fromkeys(undone, "queued")


def halted(region: Region, now: datetime) -> tuple[Region, None]:
    reason = Halt(reason=HaltReason.FOREIGN_CONSUMER, text="out of order", choices=("start it",))
    return halt(region, now, reason), None


def test_airflow_s_home_page_names_a_region_in_trouble_and_no_other(console: Console, viewer: Person) -> None:
    viewer.goes("/")
    viewer.reads("Stats")
    assert viewer.driver.find_elements("css selector", "section[aria-label='Regions in trouble']") == []
    halfway, store = RegionName("halfway"), console.flights.store
    store.decide(halfway, halted)
    viewer.goes("/")
    strip = viewer.one("section[aria-label='Regions in trouble']")
    assert " ".join(strip.text.split()) == "Region halfway is halted: out of order"
    viewer.takes_picture("console-home")
    viewer.driver.find_element("link text", "halfway").click()
    viewer.reads("Halted: out of order")
    store.handle(halfway, ChangeDesiredState(desired_state=DesiredState.RUNNING))
    store.handle(halfway, ChangeDesiredState(desired_state=DesiredState.STOPPED))
    viewer.goes("/")
    viewer.reads("Stats")
    viewer.sees(lambda: "halted" not in viewer.reads("Stats"), "no halt")
