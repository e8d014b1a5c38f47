"""A reset to any target in Airflow's pages, with the clicks and seconds that it takes; `pytest -m browser` runs it.

Counted is from "I know the bad run" to "reset approved": from the DAG's page on. `-rP` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from airflow_kcr.embedded.flights import producer
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.rows import PersonReset, Requester
from airflow_kcr.protocol.targets import TARGETS
from airflow_kcr.protocol.values import RequestId
from airflow_kcr.spec import parse
from tests.support.live_airflow import LiveAirflow
from tests.support.members import BRISK, Live, named

if TYPE_CHECKING:
    from tests.support.browser import Person

pytestmark = [pytest.mark.timeout(900)]

REGION = "kiosks"
DAG = f"{REGION}_reset"
SPEC = """\
region: kiosks
kafka: {{bootstrap.servers: '{bootstrap}'}}
groups: [{{group_id: kiosks-etl, topics: [kiosks], pipeline: 'none:none', members: 2}}]
"""
DAGS = """\
from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_kcr.dags import region_dags
from airflow_kcr.spec import parse

dags = region_dags(parse(SPEC), start_date=datetime(2026, 1, 1, tzinfo=UTC))
"""
CLICKS = 6
"""The most that an approved reset may take; each further field of the form may take one more."""

MOVES_NOTHING = {"to-latest", "to-current"}
"""Where everything is consumed."""


@pytest.fixture(scope="module")
def kiosks(airflow: LiveAirflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A running region, and its reset DAG."""
    producer.ensure_topic(airflow.kafka.settings, REGION)
    text = SPEC.format(bootstrap=airflow.kafka.bootstrap_servers) + BRISK
    with named(airflow.kafka, airflow.store_url, parse(text), tmp_path_factory.mktemp(REGION)) as one:
        one.fill(200)
        one.start(0, 1)
        airflow.add_dags(DAG, DAGS.replace("SPEC", repr(text)), DAG)
        yield one


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Who looks at the reset DAG; each stays in one browser, on pages that Airflow keeps up to date."""

    editor: Person
    viewer: Person


@pytest.fixture(scope="module")
def people(airflow: LiveAirflow, kiosks: Live) -> Iterator[People]:
    """An editor and a viewer at the page of the reset DAG."""
    from tests.support.browser import person_at  # its library is for these tests alone

    with ExitStack() as stack:

        def opened(name: str) -> Person:
            (user,) = [one for one in airflow.airflow.known.users if one.name == name]
            person = stack.enter_context(person_at(airflow.airflow.known.url))
            person.logs_in(user.name, user.password)
            person.goes(f"/dags/{DAG}")
            return person

        yield People(editor=opened("editor"), viewer=opened("viewer"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRun:
    """The run of a checkpoint that the region can go back to, with records processed since."""

    run_id: str
    sequence: int
    resets: frozenset[RequestId]
    """Those that there were before."""

    began: float = field(default_factory=monotonic)

    def reset(self, kiosks: Live) -> PersonReset:
        """Return the reset that was made since."""
        (found,) = (one for name, one in kiosks.region().person_resets.items() if name not in self.resets)
        return found


@pytest.fixture
def bad(kiosks: Live, request: pytest.FixtureRequest) -> BadRun:
    """A bad run of its own for each test."""
    run = f"scheduled__{request.node.name}"
    kiosks.until(kiosks.consumed, "the records")
    asked = RequestId(run)
    kiosks.handle(RequestCheckpoint(request_id=asked, requester=Requester(dag_id=f"{REGION}_checkpoint", run_id=run)))
    kiosks.until(lambda: kiosks.is_committed(asked), "the checkpoint")
    kiosks.fill(20)
    kiosks.until(kiosks.consumed, "the records since")
    region = kiosks.region()
    sequence = region.requests[asked].sequence
    assert sequence is not None
    return BadRun(run_id=run, sequence=int(sequence), resets=frozenset(region.person_resets))


def value_of(kind: str, bad: BadRun) -> str:
    """Return what is written into the form; empty: the target has no value."""
    match kind:
        case "to-checkpoint":
            return str(bad.sequence)
        case "to-run":
            return f"{REGION}_checkpoint/{bad.run_id}"
        case "to-datetime":
            return f"{datetime.now(UTC) - timedelta(hours=1):%Y-%m-%dT%H:%M:%S}"
        case "by-duration":
            return "1h"
        case "shift-by":
            return "-10"
        case "to-offset":
            return "150"
        case "from-file":
            return f"{REGION}-etl,{REGION},0,7\n{REGION}-etl,{REGION},1,8"
        case _:
            return ""


def opens_form(person: Person) -> None:
    """Begin to trigger the reset DAG; what was clicked is counted from here."""
    person.closes_dialog()
    if not person.driver.current_url.endswith(f"/dags/{DAG}"):
        person.follows(DAG)
    person.one("[data-testid=trigger-dag-button]")
    person.clicks.clear()
    person.press("[data-testid=trigger-dag-button]")
    person.reads("Run Parameters", "Advanced Options")


def triggers(person: Person, airflow: LiveAirflow) -> str:
    """Trigger it, and return the run, whose page Airflow opens by itself."""
    known = {one.run_id for one in airflow.editor.runs(DAG)}
    person.press("[data-testid=trigger-dag-submit]")
    (run,) = person.sees(lambda: {one.run_id for one in airflow.editor.runs(DAG)} - known, "the run")
    return run


def is_refused(viewer: Person, button: str, question: str) -> None:
    """Have a viewer answer a question, and see that it is refused."""
    viewer.lacks("Access Denied")  # an earlier one
    viewer.presses_labelled("Required Actions")
    viewer.reads(question)
    viewer.press(f"[data-testid=hitl-option-{button}]")
    viewer.reads("Access Denied")
    viewer.closes_dialog()


def approves(
    airflow: LiveAirflow, people: People, kiosks: Live, bad: BadRun, run: str, *, further: int = 0
) -> PersonReset:
    """Approve the plan, count what it took, and return the reset that was made.

    Args:
        airflow: where.
        people: who.
        kiosks: the region.
        bad: the run that is processed again.
        run: of the reset DAG.
        further: how many fields of the form had to be clicked beside target and reason.
    """
    people.editor.press("[data-testid=hitl-option-Approve]")
    airflow.editor.wait_for_task(DAG, run, "approve", within=240)
    seconds, clicks = monotonic() - bad.began, people.editor.clicks
    assert airflow.editor.wait_for_run(DAG, run).state == "success"
    reset = bad.reset(kiosks)
    assert str(reset.state) == "done"
    assert (reset.requester.who, reset.requester.reason) == ("editor", f"bad run {bad.run_id}")
    print(f"{reset.target.option}: {len(clicks)} clicks, {seconds:.1f} s: {', '.join(clicks)}")  # noqa: T201 - for -rP
    assert len(clicks) <= CLICKS + further, clicks
    return reset


@pytest.mark.parametrize("kind", [one.option for one in TARGETS])
def test_each_target_is_asked_for_and_approved_by_an_editor_and_by_no_viewer(
    airflow: LiveAirflow, kiosks: Live, people: People, bad: BadRun, kind: str
) -> None:
    editor = people.editor
    opens_form(editor)
    editor.chooses("target", f"{kind}:")
    value = value_of(kind, bad)
    if value:
        editor.goes_on_to_write("value", value)
    editor.writes("reason", f"bad run {bad.run_id}")
    editor.takes_picture("reset-form")
    run = triggers(editor, airflow)
    airflow.question(DAG, run, "approve")
    editor.presses_labelled("Required Actions")
    title = f"Reset region {REGION}: {kind}"
    plan = editor.reads(title, "Records processed again", f"bad run {bad.run_id}")
    assert ("It moves nothing" in plan) == (kind in MOVES_NOTHING), plan
    is_refused(people.viewer, "Approve", title)
    assert kiosks.region().person_resets.keys() == bad.resets

    made = approves(airflow, people, kiosks, bad, run).target.option
    assert made == ("to-datetime" if kind == "by-duration" else kind), "back from when it was planned"


def test_every_field_of_the_form_reaches_the_reset(
    airflow: LiveAirflow, kiosks: Live, people: People, bad: BadRun
) -> None:
    editor = people.editor
    opens_form(editor)
    editor.chooses("target", "to-offset:")
    editor.goes_on_to_write("value", "150")
    editor.chooses("groups", f"{REGION}-etl")
    editor.writes("topics", f"{REGION}:0,1")
    editor.writes("skip", f"{REGION}:0:160")
    editor.switches("force")
    editor.switches("consent_upsert")
    editor.writes("reason", f"bad run {bad.run_id}")
    run = triggers(editor, airflow)
    airflow.question(DAG, run, "approve")
    editor.presses_labelled("Required Actions")
    plan = editor.reads(f"Reset region {REGION}: to-offset 150?", f"--topic {REGION}:0,1", "2 of 6 partition(s)")
    assert "yes: without a drain" in plan
    assert f"{REGION}-0 at 160" in plan
    is_refused(people.viewer, "Approve", f"Reset region {REGION}: to-offset 150?")

    reset = approves(airflow, people, kiosks, bad, run, further=5)
    assert (reset.forced, reset.consent_upsert) == (True, True)
    assert str(reset.scope) == f"--group {REGION}-etl --topic {REGION}:0,1"
    assert {(each.topic, each.partition): at for each, at in reset.skip.items()} == {(REGION, 0): 160}


def test_a_viewer_can_not_trigger_a_reset(airflow: LiveAirflow, people: People) -> None:
    known = airflow.editor.runs(DAG)
    opens_form(people.viewer)
    people.viewer.press("[data-testid=trigger-dag-submit]")
    people.viewer.reads("403")
    people.viewer.closes_dialog()
    assert airflow.editor.runs(DAG) == known
