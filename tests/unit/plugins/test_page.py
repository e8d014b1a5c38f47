from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from fastapi.routing import APIRoute

from airflow_kcr.api.regions import opened
from airflow_kcr.dags import region_dags
from airflow_kcr.embedded.processes import happened
from airflow_kcr.operators.region import KcrPauseOperator
from airflow_kcr.plugins import rights
from airflow_kcr.plugins.page import build_page
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.commands import ChangeDesiredState, PinCheckpoint, RequestReset
from airflow_kcr.protocol.region.liveness import Liveness
from airflow_kcr.protocol.region.rows import Requester, ResetCause
from airflow_kcr.protocol.region.waits import Rule, Wait
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import DesiredState, GroupId, Offset
from airflow_kcr.sensors.region import KcrRegionStateSensor
from airflow_kcr.spec import parse
from airflow_kcr.store.regions import RegionStore
from tests.support.browsing import TestClient
from tests.support.databases import execute
from tests.support.driver import Driver
from tests.support.live_region import SPEC, FakeCluster, live_region
from tests.support.plans import statements
from tests.support.scripts import rewind
from tests.support.web_routes import routes_of
from tests.support.words import values_in

if TYPE_CHECKING:
    from fastapi import FastAPI

EVIL = "<script>alert('x')</script>"


def page_at(url: str, **others: str) -> FastAPI:
    def lending(url: str) -> Callable[[], AbstractContextManager[RegionStore]]:
        return lambda: opened(url)

    create_auth_manager()
    lends = {"kcr_default": lending(url)} | {name: lending(other) for name, other in others.items()}
    app = build_page(lends, FakeCluster().clusters)
    flights = {(name, "flights"): frozenset({"flights_checkpoint"}) for name in lends}
    app.dependency_overrides[rights.owners] = lambda: lambda: flights
    app.dependency_overrides[rights.workers] = lambda: lambda dags: rights.Workers([], [], [])
    return app


def as_role(app: FastAPI, role: str | None) -> TestClient:
    """A browser of a user with that role; they are who they say, which is Airflow's own business."""
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ada", role=role)
    return TestClient(app)


@pytest.fixture
def app(database_url: str) -> FastAPI:
    return page_at(database_url)


@pytest.fixture
def viewer(app: FastAPI) -> TestClient:
    return as_role(app, "viewer")


def paths(app: FastAPI) -> list[str]:
    """Every way into the application, whatever kind of route it is."""
    found = [route.path for route in routes_of(app) if isinstance(route, APIRoute) and route.methods == {"GET"}]
    names = {"region": "flights", "store": "kcr_default", "sequence": "1", "number": "1", "name": "console.js"}
    return [path.format_map(names) for path in found]


# -- who may look -----------------------------------------------------------------------------------------------------


def test_there_are_no_ways_in_but_those_that_are_meant(app: FastAPI) -> None:
    assert [path for path in paths(app) if not path.startswith("/api/")] == [
        "/",
        "/regions/flights",
        "/stores/kcr_default/regions/flights",
        "/static/console.js",
    ]
    assert all(isinstance(route, APIRoute) for route in routes_of(app))
    changing = [route.path for route in routes_of(app) if isinstance(route, APIRoute) and route.methods != {"GET"}]
    assert all(path.startswith("/api/stores/{store}/regions/{region}/") for path in changing)


def test_the_regions_of_a_dag_are_those_that_its_operators_name() -> None:
    spec = parse(
        "region: minimal\nkafka: {bootstrap.servers: 'b:1'}\ngroups: [{group_id: g, topics: [t], pipeline: 'a:b'}]\n"
    )
    for dag in region_dags(spec, start_date=datetime(2026, 11, 1, tzinfo=UTC), kcr_conn_id="own"):
        assert set(rights.places_of(LazyDeserializedDAG.from_dag(dag).data)) == {("own", "minimal")}
    with DAG("others", schedule=None) as dag:
        KcrRegionStateSensor(task_id="wait", region="minimal", state="running")
        KcrPauseOperator(task_id="pause", region="{{ params.region }}")
    assert ("kcr_default", "minimal") not in set(rights.places_of(LazyDeserializedDAG.from_dag(dag).data))


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_what_fastapi_would_add_is_not_there(viewer: TestClient, path: str) -> None:
    assert viewer.get(path).status_code == 404


# -- what they see ----------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """The tags of a page and its links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in {"href", "src", "action"}]


def words(text: str) -> str:
    """The text of a page without its tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", text.partition("</style>")[2]).split())


def test_regions_are_listed_and_lead_to_their_pages(viewer: TestClient, driver: Driver) -> None:
    driver.up()
    text = viewer.get("/").text
    assert "flights running running progressing - unknown 2 of 2" in words(text)
    assert Tags(text).links == ["regions/flights"]
    assert viewer.get("/regions/flights").status_code == 200


def test_a_store_without_regions_says_how_to_make_one(viewer: TestClient) -> None:
    assert "There is no region in this store yet." in words(viewer.get("/").text)


def test_a_region_shows_members_partitions_checkpoints_and_resets(viewer: TestClient, driver: Driver) -> None:
    driver.up()
    driver.process(width=10)
    driver.request_checkpoint("n")
    sequence = driver.complete()
    delays = TableVersion(
        group=GroupId("g"), sink="out", table="db.delays", files=1, rows=2, version="3", tag=f"kcr_1_{sequence}"
    )
    driver.publish((delays,))
    for member in sorted(driver.processes):
        driver.read_back(member)
    driver.process(width=5)
    said = words(viewer.get("/regions/flights").text)
    assert "State running Desired state running" in said
    assert f"Newest checkpoint {sequence}" in said
    assert "Group g: protocol classic, assignor range." in said
    assert "g[0] processing yes 1 2" in said
    place = driver.partition(0)
    claim = driver.region.claims[place]
    assert claim.position == 15
    # of a log that ends at 1,000: 10 were checkpointed, 5 more are done
    assert f"{place} g[0] 15 10 1,000 985" in said
    assert "Offsets behind, as seen at that checkpoint 3,940" in said
    assert f"{sequence} {driver.region.timeline} published request" in said
    assert f"db.delays at kcr_1_{sequence}." in said
    assert "start" in said.partition("Resets")[2]


def test_a_refresh_takes_as_many_statements_whatever_there_is_to_show(viewer: TestClient, driver: Driver) -> None:
    driver.up()
    taken: list[list[int]] = []
    for number in range(3):
        for checkpoint in range(1 + 3 * number):
            driver.process()
            driver.checkpoint(f"{number}-{checkpoint}")
        sizes = list[int]()
        for place in ("/", f"/regions/{driver.name}"):
            with statements() as run:
                assert viewer.get(place).status_code == 200
            sizes.append(len(run))
        taken.append(sizes)
    assert taken == [taken[0]] * 3


def test_each_checkpoint_has_the_word_of_its_own_state(viewer: TestClient, driver: Driver) -> None:
    driver.up()
    driver.process(width=10)
    driver.checkpoint("n")
    driver.process(width=10)
    driver.request_checkpoint("still open")
    said = words(viewer.get("/regions/flights").text)
    assert "draining request" in said
    assert "undone" not in said
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED, "a test")
    driver.finish_reset()
    said = words(viewer.get("/regions/flights").text)
    assert "aborted request" in said
    assert "undone" not in said
    driver.complete()  # the request is tried again
    driver.publish()
    rewind(driver, ToOffset(offset=Offset(0)))
    said = words(viewer.get("/regions/flights").text)
    assert f"undone by a reset (timeline {driver.region.timeline})." in said
    assert values_in(said) == []


def test_a_boundary_that_has_passed_without_a_checkpoint_is_marked_with_how_long_ago(
    database_url: str, viewer: TestClient
) -> None:
    with live_region(database_url, f"{SPEC}checkpoint: {{every: 1s, request: dag_run, grace: 0s}}\n") as driver:
        driver.up()
        assert happened(lambda: "overdue by" in viewer.get("/regions/flights").text, within=30, pause=0.1)
        for path in ("/", "/regions/flights"):
            text = viewer.get(path).text
            assert 'class="late"' in text
            assert re.search(r"\d\d:\d\d:\d\d \(overdue by \d+ s\)", words(text))


def test_the_overview_marks_a_region_that_makes_no_progress_and_says_what_it_waits_for(
    viewer: TestClient, driver: Driver, database_url: str
) -> None:
    driver.up()
    assert "<td>progressing</td>" in viewer.get("/").text
    execute(database_url, "UPDATE kcr.lease SET valid_until = valid_until - interval '1 day'")
    assert re.search(r'<td class="late" title="stalled: members since [^"]+">stalled</td>', viewer.get("/").text)


def test_a_new_region_has_nothing_to_show_yet_and_says_so(viewer: TestClient, driver: Driver) -> None:
    said = words(viewer.get("/regions/flights").text)
    assert "State stopped" in said
    assert "No member has claimed a partition yet." in said
    assert "No checkpoint was made yet." in said
    assert "There was none." in said


def test_a_halted_region_says_why_and_what_can_be_done(viewer: TestClient, driver: Driver) -> None:
    driver.up()
    while driver.region.halt is None:
        driver.finish_reset()
        caller = driver.caller(driver.member(0))
        driver.handle(RequestReset(caller=caller, cause=ResetCause.BATCH_FAILED, detail=EVIL))
    said = words(viewer.get("/regions/flights").text)
    assert "State halted" in said
    assert "choices:" in said
    assert "&lt;script&gt;" in said


def test_a_stalled_region_is_an_alert_with_the_rule_that_waits(
    viewer: TestClient, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.up()
    assert "Progress progressing" in words(viewer.get("/regions/flights").text)
    now = driver.store.read(driver.name)[1]
    slow = Wait(rule=Rule.RUN, since=now, what=EVIL)
    monkeypatch.setattr(liveness, "judge", lambda *_: Liveness(waits=(slow,), now=now))
    assert "Progress waiting" in words(viewer.get("/regions/flights").text)
    monkeypatch.setattr(liveness, "judge", lambda *_: Liveness(waits=(replace(slow, until=now),), now=now))
    text = viewer.get("/regions/flights").text
    assert 'class="trouble" role="alert">stalled: run since ' in text
    assert "script" not in Tags(text).tags


def test_what_people_have_written_is_text_and_nothing_else(viewer: TestClient, driver: Driver) -> None:
    driver.up()
    sequence = driver.checkpoint("n")
    driver.handle(PinCheckpoint(sequence=sequence, label=EVIL, reason=""))
    driver.handle(
        ChangeDesiredState(
            desired_state=DesiredState.STOPPED, requester=Requester(who=EVIL, dag_id=EVIL, run_id=EVIL, reason=EVIL)
        )
    )
    text = viewer.get("/regions/flights").text
    assert "&lt;script&gt;" in text
    assert "script" not in Tags(text).tags


def test_a_page_changes_nothing_loads_nothing_runs_nothing_and_may_be_framed_by_airflow_alone(
    viewer: TestClient, app: FastAPI, driver: Driver
) -> None:
    before = driver.region.counter
    for path in paths(app):
        answer = viewer.get(path)
        assert driver.region.counter == before
        assert answer.headers["cache-control"] == ("no-cache" if path.startswith("/static/") else "no-store"), path
        if path.startswith(("/api/", "/static/")):
            continue
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
        seen = Tags(answer.text)
        assert not seen.tags & {"script", "link", "img", "iframe", "form", "object", "embed", "restore_point"}
        assert all(not link.startswith(("http", "/")) for link in seen.links)
        assert "url(" not in answer.text
        assert "@import" not in answer.text


# -- what can go wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nowhere", "No%20Region!", "%3Cscript%3E"])
def test_a_region_that_is_not_there_is_said_in_words(viewer: TestClient, name: str) -> None:
    answer = viewer.get(f"/regions/{name}")
    assert answer.status_code == 404
    assert "region" in words(answer.text)
    assert Tags(answer.text).links == ["../"]
    assert "script" not in Tags(answer.text).tags


def test_a_store_that_is_away_or_has_no_tables_is_said_without_its_password(empty_database_url: str) -> None:
    bare = as_role(page_at(empty_database_url), "viewer").get("/")
    assert bare.status_code == 503
    assert "run `kcr store upgrade`" in words(bare.text)
    away = as_role(page_at("postgresql://kcr:hunter2@127.0.0.1:1/kcr"), "viewer").get("/")
    assert away.status_code == 503
    assert "127.0.0.1:1" in away.text
    assert "hunter2" not in away.text
    assert Tags(away.text).links == []


# -- several stores ---------------------------------------------------------------------------------------------------


def test_each_store_has_its_regions_and_one_that_is_away_hides_no_other(
    database_url: str, empty_database_url: str, driver: Driver
) -> None:
    driver.up()
    client = as_role(page_at(database_url, team_kcr=empty_database_url), "viewer")
    listed = client.get("/")
    assert listed.status_code == 200
    said = words(listed.text)
    assert "kcr_default Region" in said
    assert "flights running" in said
    assert "team_kcr" in said
    assert "run `kcr store upgrade`" in said
    assert client.get("/stores/team_kcr/regions/flights").status_code == 503


def test_a_region_of_another_store_is_found_under_its_connection(
    database_url: str, empty_database_url: str, driver: Driver
) -> None:
    client = as_role(page_at(empty_database_url, **{"team/kcr x": database_url}), "viewer")
    links = Tags(client.get("/").text).links
    assert links == ["stores/team%2Fkcr%20x/regions/flights"]
    client = as_role(page_at(empty_database_url, team_kcr=database_url), "viewer")
    (link,) = Tags(client.get("/").text).links
    shown = client.get(f"/{link}")
    assert shown.status_code == 200
    assert "Store team_kcr State stopped" in words(shown.text)
    (up,) = Tags(shown.text).links
    assert client.get(f"/{link.rpartition('/')[0]}/{up}").url.path == "/"


def test_a_store_that_is_not_to_be_shown_is_not(viewer: TestClient, driver: Driver) -> None:
    answer = viewer.get("/stores/team_kcr/regions/flights")
    assert answer.status_code == 404
    assert "page_conn_ids" in words(answer.text)
    assert "team_kcr" not in answer.text
