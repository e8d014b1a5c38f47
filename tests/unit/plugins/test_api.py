"""The JSON of the console: the commands' documents, who may change what, and what a stale look is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from airflow_kcr.cli import app as kcr
from airflow_kcr.protocol.region.rows import RegionState, Requester
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, DesiredState
from tests.support.browsing import TestClient
from tests.support.driver import Driver
from tests.support.plans import statements
from tests.unit.plugins.test_page import as_role, page_at

if TYPE_CHECKING:
    from fastapi import FastAPI

FLIGHTS = "/api/stores/kcr_default/regions/flights"
ORIGIN = {"Origin": "http://testserver"}


@pytest.fixture
def app(database_url: str, driver: Driver) -> FastAPI:
    return page_at(database_url)


@pytest.fixture
def editor(app: FastAPI) -> TestClient:
    return as_role(app, "op")


def printed(url: str, *words: str) -> Any:  # noqa: ANN401 (JSON)
    """What a command prints with `-o json`."""
    ran = CliRunner().invoke(kcr, [*words, "--store", url, "-o", "json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def asked(client: TestClient, path: str, driver: Driver, **body: object) -> Any:  # noqa: ANN401 (of the client's library)
    """What is answered to a change of the region as it is."""
    return client.post(f"{FLIGHTS}{path}", json={"epoch": driver.region.epoch, **body}, headers=ORIGIN)


def busy(driver: Driver) -> None:
    """Two checkpoints, one of which a reset has undone."""
    driver.up()
    driver.process(driver.member(0), width=10)
    driver.checkpoint("one")
    driver.process(driver.member(0), width=10)
    driver.checkpoint("two")


def without_partitions(region: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a region as a page needs it, however many partitions there are."""
    for member in (member for group in region["groups"] for member in group["members"]):
        member["partition_count"] = len(member.pop("partitions"))
    return {name: value for name, value in region.items() if name not in {"unowned", "absent"}}


def test_what_is_read_is_what_the_commands_print(database_url: str, editor: TestClient, driver: Driver) -> None:
    busy(driver)
    (store,) = editor.get("/api/regions").json()["stores"]
    (row,) = store["regions"]
    assert row.pop("dags") == ["flights_checkpoint"]
    assert [row] == printed(database_url, "region", "list")
    shown = editor.get(FLIGHTS).json()
    assert shown["region"] == without_partitions(printed(database_url, "region", "show", "flights"))
    assert shown["dags"] == ["flights_checkpoint"]
    assert shown["may_change"]
    checkpoints = editor.get(f"{FLIGHTS}/checkpoints").json()["checkpoints"]
    assert checkpoints == printed(database_url, "checkpoint", "list", "flights")
    newest = checkpoints[-1]["sequence"]
    of_one = editor.get(f"{FLIGHTS}/checkpoints/{newest}").json()
    assert of_one["checkpoint"] == printed(database_url, "checkpoint", "show", "flights", str(newest))
    assert of_one["total"] == len(of_one["checkpoint"]["offsets"]) == 4
    assert editor.get(f"{FLIGHTS}/resets").json()["resets"] == printed(database_url, "reset", "list", "flights")
    events = editor.get(f"{FLIGHTS}/events").json()["events"]
    assert events == printed(database_url, "events", "flights")


def test_a_long_detail_of_an_event_is_cut_and_the_command_has_the_whole(
    database_url: str, editor: TestClient, driver: Driver
) -> None:
    busy(driver)
    sequence = editor.get(f"{FLIGHTS}/checkpoints").json()["checkpoints"][0]["sequence"]
    asked(editor, f"/checkpoints/{sequence}/pin", driver, label="audit", reason="x" * 5_000)
    body = editor.get(f"{FLIGHTS}/events?last=1").json()["events"][0]["body"]
    assert (body["name"], len(body["reason"]), body["reason"][-1]) == ("audit", 301, "…")
    assert printed(database_url, "events", "flights")[-1]["body"]["reason"] == "x" * 5_000


def test_events_are_read_without_the_region(editor: TestClient, driver: Driver) -> None:
    busy(driver)
    editor.get(f"{FLIGHTS}/events")  # the schema is checked once
    with statements() as run:
        editor.get(f"{FLIGHTS}/events")
    assert len(run) == 2
    assert not any("kcr.claim" in statement for statement in run)


def test_lists_come_in_pages(editor: TestClient, driver: Driver) -> None:
    busy(driver)
    every = editor.get(f"{FLIGHTS}/events").json()["events"]
    newest = editor.get(f"{FLIGHTS}/events?last=2").json()["events"]
    earlier = editor.get(f"{FLIGHTS}/events?last=2&before={newest[0]['number']}").json()["events"]
    assert earlier + newest == every[-4:]
    assert editor.get(f"{FLIGHTS}/events?before=1").json()["events"] == []
    (last,) = editor.get(f"{FLIGHTS}/checkpoints?last=1").json()["checkpoints"]
    (first,) = editor.get(f"{FLIGHTS}/checkpoints?before={last['sequence']}").json()["checkpoints"]
    assert first["sequence"] < last["sequence"]
    assert editor.get(f"{FLIGHTS}/events?last=1000").status_code == 422


def test_partitions_are_sorted_filtered_and_paged_by_the_server(editor: TestClient, driver: Driver) -> None:
    busy(driver)

    def numbers(query: str) -> list[int]:
        return [row["partition"] for row in editor.get(f"{FLIGHTS}/partitions{query}").json()["partitions"]]

    assert numbers("") == [0, 1, 2, 3]
    assert numbers("?direction=down&count=2") == [3, 2]
    assert numbers("?start=3") == [3]
    assert numbers("?match=t-2") == [2]
    owner = str(driver.member(0))
    mine = editor.get(f"{FLIGHTS}/partitions?match={owner}&order=lag&direction=down").json()
    lags = [row["lag"] for row in mine["partitions"]]
    assert mine["total"] == len(lags) == 2
    assert lags == sorted(lags, reverse=True)
    assert {row["member_id"] for row in mine["partitions"]} == {owner}
    assert editor.get(f"{FLIGHTS}/partitions?order=nonsense").status_code == 422


def test_the_sign_moves_when_something_happens(editor: TestClient, driver: Driver) -> None:
    before = editor.get(f"{FLIGHTS}/sign").json()
    assert before["counter"] == editor.get(FLIGHTS).json()["counter"]
    driver.up()
    assert editor.get(f"{FLIGHTS}/sign").json()["counter"] > before["counter"]
    assert editor.get("/api/stores/kcr_default/regions/nowhere/sign").status_code == 404


def test_each_verb_is_asked_of_the_region_by_name_and_with_a_reason(editor: TestClient, driver: Driver) -> None:
    driver.up()
    answer = asked(editor, "/verbs/pause", driver, reason=" a look at the sink ")
    assert answer.json()["region"]["desired_state"] == "paused"
    event = driver.events[-1]
    assert "a look at the sink" in str(event.body)
    assert "ada" in str(event.body)
    assert asked(editor, "/verbs/resume", driver).json()["region"]["desired_state"] == "running"
    assert asked(editor, "/checkpoints", driver, reason="before the upgrade").status_code == 200
    assert driver.region.checkpoint is not None
    assert asked(editor, "/verbs/kill", driver).status_code == 422
    assert asked(editor, "/verbs/kill", driver, name="flight").status_code == 422
    assert driver.region.desired_state is DesiredState.RUNNING
    assert asked(editor, "/verbs/kill", driver, name="flights").json()["region"]["desired_state"] == "stopped"
    assert asked(editor, "/verbs/delete", driver).status_code == 404


def test_a_checkpoint_is_pinned_and_unpinned_and_the_history_says_by_whom(editor: TestClient, driver: Driver) -> None:
    busy(driver)
    sequence = editor.get(f"{FLIGHTS}/checkpoints").json()["checkpoints"][0]["sequence"]

    def pinned() -> object:
        return editor.get(f"{FLIGHTS}/checkpoints").json()["checkpoints"][0]["pinned_as"]

    assert asked(editor, f"/checkpoints/{sequence}/pin", driver, label="audit", reason="year's end").status_code == 200
    assert pinned() == "audit"
    assert editor.get(f"{FLIGHTS}/events?last=1").json()["events"][0]["body"] == {
        "sequence": sequence,
        "name": "audit",
        "reason": "year's end",
        "who": "ada",
    }
    assert asked(editor, f"/checkpoints/{sequence}/pin", driver, label="").status_code == 200
    assert pinned() is None
    answer = asked(editor, "/checkpoints/999/pin", driver, label="x")
    assert (answer.status_code, answer.json()["error"]) == (404, "UnknownCheckpoint")


def test_what_was_looked_at_before_a_reset_is_refused(editor: TestClient, driver: Driver) -> None:
    driver.up()
    stale = driver.region.epoch - 1
    for path, body in {
        "/verbs/pause": {},
        "/verbs/kill": {"name": "flights"},
        "/checkpoints": {},
        "/checkpoints/1/pin": {"label": "x"},
    }.items():
        answer = editor.post(f"{FLIGHTS}{path}", json={"epoch": stale, **body}, headers=ORIGIN)
        assert (answer.status_code, answer.json()["error"]) == (409, "StaleEpoch"), path
    assert driver.region.state is RegionState.RUNNING
    assert driver.region.desired_state is DesiredState.RUNNING
    assert editor.post(f"{FLIGHTS}/verbs/pause", json={}, headers=ORIGIN).status_code == 422


@pytest.mark.parametrize("origin", [None, "https://elsewhere.example", "http://testserver.elsewhere.example", "null"])
def test_a_change_that_another_site_asks_for_is_refused(editor: TestClient, driver: Driver, origin: str | None) -> None:
    driver.up()
    headers = {} if origin is None else {"Origin": origin}
    answer = editor.post(f"{FLIGHTS}/verbs/pause", json={"epoch": driver.region.epoch}, headers=headers)
    assert answer.status_code == 403
    assert "[api] base_url" in answer.json()["detail"]
    assert driver.region.desired_state is DesiredState.RUNNING


def test_behind_a_proxy_the_address_that_users_open_is_the_origin(
    editor: TestClient, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team")
    driver.up()
    body, headers = {"epoch": driver.region.epoch}, {"Origin": "https://airflow.example"}
    assert editor.post(f"{FLIGHTS}/verbs/pause", json=body, headers=headers).status_code == 200


def test_a_viewer_reads_and_is_told_what_changing_takes(app: FastAPI, driver: Driver) -> None:
    driver.up()
    viewer = as_role(app, "viewer")
    assert not viewer.get(FLIGHTS).json()["may_change"]
    answer = asked(viewer, "/verbs/pause", driver)
    assert answer.status_code == 403
    assert "the right to trigger runs" in answer.json()["detail"]
    assert driver.region.desired_state is DesiredState.RUNNING


def test_a_plan_is_that_of_the_command_and_changes_nothing(editor: TestClient, driver: Driver) -> None:
    busy(driver)
    before = driver.region.counter
    plan = asked_plan(editor, target="to-earliest").json()
    assert plan["plan"]["totals"]["replay"] > 0
    assert plan["notes"]["target"] == "to-earliest"
    assert plan["moves"].endswith("partition(s)")
    answer = asked_plan(editor, target="to-checkpoint", value="999")
    assert (answer.status_code, answer.json()["error"]) == (404, "UnknownCheckpoint")
    answer = asked_plan(editor, target="to-offset", value="many")
    assert answer.status_code == 422
    assert driver.region.counter == before


def test_a_run_s_checkpoints_are_found_in_the_regions_of_its_dag_alone(
    app: FastAPI, editor: TestClient, driver: Driver
) -> None:
    driver.up()
    for number in range(2):
        driver.process(driver.member(0), width=10)
        asked_by = Requester(who="airflow", dag_id="flights_checkpoint", run_id=f"run {number}")
        driver.checkpoint(f"c{number}", requester=asked_by)

    def found(client: TestClient, dag: str, run: str) -> Any:  # noqa: ANN401 (JSON)
        return client.get("/api/runs", params={"dag_id": dag, "run_id": run}).json()["regions"]

    sequences = [row["sequence"] for row in editor.get(f"{FLIGHTS}/checkpoints").json()["checkpoints"]]
    expected = {"kcr_conn_id": "kcr_default", "region": "flights", "checkpoints": sequences[-1:]}
    assert found(editor, "flights_checkpoint", "run 1") == [expected]
    assert found(editor, "flights_checkpoint", "run 2") == [{**expected, "checkpoints": []}]
    assert found(editor, "others", "run 1") == []
    assert as_role(app, None).get("/api/runs").status_code == 403


def test_the_context_of_a_checkpoint_is_that_of_the_command_a_page_of_its_ranges_at_a_time(
    database_url: str, editor: TestClient, driver: Driver
) -> None:
    busy(driver)
    newest = editor.get(f"{FLIGHTS}/checkpoints").json()["checkpoints"][-1]["sequence"]
    answer = editor.get(f"{FLIGHTS}/checkpoints/{newest}/context").json()
    assert answer["context"] == printed(database_url, "checkpoint", "context", "flights", str(newest))
    assert answer["total"] == len(answer["context"]["ranges"]) == 2
    page = editor.get(f"{FLIGHTS}/checkpoints/{newest}/context?start=1&count=1").json()
    assert page["context"]["ranges"] == answer["context"]["ranges"][1:2]


def test_kafka_is_asked_for_users_who_may_change_the_region_alone(
    app: FastAPI, editor: TestClient, driver: Driver
) -> None:
    busy(driver)
    newest = editor.get(f"{FLIGHTS}/checkpoints").json()["checkpoints"][-1]["sequence"]
    paths = [f"{FLIGHTS}/validation", f"{FLIGHTS}/checkpoints/{newest}/comparison"]
    checks, comparison = (editor.post(path, headers=ORIGIN).json() for path in paths)
    assert {"group": "g", "check": "topics", "verdict": "ok"}.items() <= one(checks["checks"], "topics").items()
    assert comparison["total"] == comparison["different"] == 4
    assert {row["finding"] for row in comparison["comparison"]} == {"not_committed"}
    assert [editor.post(path).status_code for path in paths] == [403, 403]
    viewer = as_role(app, "viewer")
    assert [viewer.post(path, headers=ORIGIN).status_code for path in paths] == [403, 403]


def one(checks: list[dict[str, str]], question: str) -> dict[str, str]:
    return next(check for check in checks if check["check"] == question)


def test_a_recomputation_is_planned_in_the_epoch_that_was_seen(editor: TestClient, driver: Driver) -> None:
    busy(driver)
    newest = editor.get(f"{FLIGHTS}/checkpoints").json()["checkpoints"][-1]["sequence"]
    path = f"/checkpoints/{newest}/recomputation"
    answer = asked(editor, path, driver)
    assert (answer.status_code, "has no sink in the spec" in answer.json()["detail"]) == (422, True)
    stale = editor.post(f"{FLIGHTS}{path}", json={"epoch": driver.region.epoch - 1}, headers=ORIGIN)
    assert (stale.status_code, stale.json()["error"]) == (409, "StaleEpoch")


def asked_plan(client: TestClient, **body: object) -> Any:  # noqa: ANN401 (of the client's library)
    return client.post(f"{FLIGHTS}/plan", json=body, headers=ORIGIN)


def test_the_runs_that_a_reset_has_undone_are_named(editor: TestClient, driver: Driver) -> None:
    busy(driver)
    resets = editor.get(f"{FLIGHTS}/resets").json()["resets"]
    number = resets[0]["id"].rpartition("/")[2]
    assert editor.get(f"{FLIGHTS}/resets/{number}/runs").json() == {"runs": []}
    assert editor.get(f"{FLIGHTS}/resets/999/runs").status_code == 404


def test_the_run_of_a_reset_is_none_that_it_has_undone(editor: TestClient, driver: Driver) -> None:
    # Cleared with the others, it would reset the region once more.
    busy(driver)
    good = editor.get(f"{FLIGHTS}/checkpoints").json()["checkpoints"][-1]["sequence"]
    driver.process(driver.member(0), width=10)
    driver.checkpoint("wrong", requester=Requester(who="airflow", dag_id="flights_checkpoint", run_id="wrong"))
    asked = Requester(who="ada", dag_id="flights_reset", run_id="manual", reason="wrong rates")
    driver.reset(ToCheckpoint(sequence=CheckpointNumber(good)), requester=asked)
    driver.complete()
    driver.finish_reset()
    reset = editor.get(f"{FLIGHTS}/resets").json()["resets"][-1]
    assert (reset["run_id"], len(reset["undone"])) == ("manual", 2)
    runs = editor.get(f"{FLIGHTS}/resets/{reset['id'].rpartition('/')[2]}/runs").json()["runs"]
    assert runs == [{"dag_id": "flights_checkpoint", "run_id": "wrong"}]


def test_a_store_that_is_away_is_said_and_hides_no_other(database_url: str, driver: Driver) -> None:
    away = "postgresql://kcr:hunter2@127.0.0.1:1/kcr"
    client = as_role(page_at(database_url, team=away), "op")
    first, second = client.get("/api/regions").json()["stores"]
    assert [one["region"] for one in first["regions"]] == ["flights"]
    assert second["regions"] == []
    assert "127.0.0.1:1" in second["problem"]
    answer = client.get("/api/stores/team/regions/flights")
    assert (answer.status_code, answer.json()["error"]) == (503, "StoreUnavailable")
    assert "hunter2" not in answer.text + json.dumps(second)
    assert client.get("/api/stores/nowhere/regions/flights").status_code == 404
