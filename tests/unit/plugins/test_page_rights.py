"""Who sees which region, by the auth managers' own classes: FAB's, which knows single DAGs, and the simple one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from fastapi.routing import APIRoute

from airflow_kcr.operators.region import KcrPauseOperator
from airflow_kcr.plugins import rights
from tests.support.browsing import TestClient
from tests.support.live_region import live_region
from tests.support.web_routes import routes_of
from tests.unit.plugins.test_page import page_at

if TYPE_CHECKING:
    from fastapi import FastAPI

OWNERS = {
    ("kcr_default", "flights"): frozenset({"flights_checkpoint"}),
    ("other", "flights"): frozenset({"others"}),
    ("kcr_default", "tills"): frozenset({"tills_checkpoint"}),
}
BODIES = {
    "pause": {"epoch": 0},
    "checkpoints": {"epoch": 0},
    "pin": {"epoch": 0, "label": "kept"},
    "plan": {"target": "to-earliest"},
    "recomputation": {"epoch": 0},
}
"""What is sent to change something, by the end of the path."""

FLIGHTS = ("/regions/flights", "/stores/kcr_default/regions/flights")

SEES = {
    "nobody": (403, 403),
    "viewer": (200, 200),
    "viewer who triggers": (200, 200),
    "editor of another DAG": (200, 403),
    "editor": (200, 200),
    "editor who only reads runs": (200, 200),
    "admin": (200, 200),
}
"""What the list and the pages of region flights answer to each; the editors may see one DAG of it."""

TAKES = {
    "GET /": "the list",
    "GET /api/regions": "the list",
    "GET /api/runs": "the list",
    "GET /static/{name}": "a login",
    "GET /regions/{region}": "the region",
    "GET /stores/{store}/regions/{region}": "the region",
    **{
        f"GET /api/stores/{{store}}/regions/{{region}}{of}": "the region"
        for of in (
            *("", "/sign", "/partitions", "/lag", "/checkpoints", "/checkpoints/{sequence}"),
            "/checkpoints/{sequence}/context",
            *("/resets", "/resets/{number}/runs", "/events"),
        )
    },
    **{
        f"POST /api/stores/{{store}}/regions/{{region}}{of}": "to change the region"
        for of in (
            *("/checkpoints", "/checkpoints/{sequence}/pin", "/plan", "/verbs/{verb}", "/validation"),
            *("/checkpoints/{sequence}/comparison", "/checkpoints/{sequence}/recomputation"),
        )
    },
}
"""What each route takes a right to; one that is not here fails the tests."""

CHANGES = {"editor", "admin"}
"""Who may change region flights."""

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

ORIGIN = {"Origin": "http://testserver"}
"""Of the test client's own address."""


@pytest.fixture
def app(database_url: str) -> Iterator[FastAPI]:
    with live_region(database_url):
        app = page_at(database_url)
        app.dependency_overrides[rights.owners] = lambda: lambda: OWNERS
        yield app


@pytest.fixture
def under_fab(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have FAB's own manager decide; rights need no application of Flask, and what FAB imports warns."""
    pytest.importorskip("airflow.providers.fab", reason="the auth manager of FAB is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from airflow.providers.fab.auth_manager.fab_auth_manager import FabAuthManager
    manager = object.__new__(FabAuthManager)
    monkeypatch.setattr(rights, "get_auth_manager", lambda: manager)


def fab_user(*granted: tuple[str, str]) -> Any:  # noqa: ANN401 (FAB's own)
    from airflow.providers.fab.auth_manager.models import Action, Permission, Resource, Role, User

    permissions = [Permission(action=Action(name=may), resource=Resource(name=what)) for may, what in granted]
    return User(username="ada", roles=[Role(name="r", permissions=permissions)])


def fab_users() -> dict[str, Any]:
    reads, runs, triggers = "can_read", ("can_read", "DAG Runs"), ("can_create", "DAG Runs")
    return {
        "nobody": fab_user(),
        "viewer": fab_user((reads, "DAGs"), runs),
        "viewer who triggers": fab_user((reads, "DAGs"), runs, triggers),
        "editor of another DAG": fab_user(
            runs, triggers, (reads, "DAG:tills_checkpoint"), ("can_edit", "DAG:tills_checkpoint")
        ),
        "editor": fab_user(runs, triggers, (reads, "DAG:flights_checkpoint"), ("can_edit", "DAG:flights_checkpoint")),
        "editor who only reads runs": fab_user(
            runs, (reads, "DAG:flights_checkpoint"), ("can_edit", "DAG:flights_checkpoint")
        ),
        "admin": fab_user((reads, "DAGs"), ("can_edit", "DAGs"), runs, triggers),
    }


def ways_in(app: FastAPI) -> dict[str, dict[str, str]]:
    """Every path of the application with what each of its methods takes; there is nothing but routes."""
    values = {
        "region": "flights",
        "store": "kcr_default",
        "sequence": "1",
        "number": "1",
        "verb": "pause",
        "name": "console.js",
    }
    found: dict[str, dict[str, str]] = {}
    for route in routes_of(app):
        assert isinstance(route, APIRoute)
        takes = {method: TAKES[f"{method} {route.path}"] for method in route.methods}
        path = route.path
        for name, value in values.items():
            path = path.replace("{" + name + "}", value)
        assert "{" not in path
        found.setdefault(path, {}).update(takes)
    return found


def asks(app: FastAPI, user: object, who: str) -> None:
    app.dependency_overrides[get_user] = lambda: user
    client = TestClient(app)
    listed, shown = SEES[who]
    has = {"a login"}
    has |= {"the list"} if listed == 200 else set()
    has |= {"the region"} if shown == 200 else set()
    has |= {"to change the region"} if shown == 200 and who in CHANGES else set()
    for path, takes in ways_in(app).items():
        for method in METHODS:
            answer = client.request(method, path, json=BODIES.get(path.rpartition("/")[2]), headers=ORIGIN)
            if method not in takes:
                assert answer.status_code == 405, (who, method, path)
            else:
                assert (answer.status_code != 403) == (takes[method] in has), (who, method, path, answer.text)
                assert answer.status_code in {200, 403, 404, 409, 422}, (who, method, path, answer.text)
    text = client.get("/").text
    assert ("regions/flights" in text) == (shown == 200), who


def test_whoever_is_not_logged_in_gets_nothing_from_any_route(app: FastAPI) -> None:
    client = TestClient(app)
    for path, takes in ways_in(app).items():
        for method in takes:
            answer = client.request(method, path, json=BODIES.get(path.rpartition("/")[2]), headers=ORIGIN)
            assert answer.status_code == 401, (method, path, answer.text)


@pytest.mark.parametrize("who", SEES)
def test_under_fab_a_region_is_shown_to_who_may_read_one_of_its_dags_or_all_dags(
    app: FastAPI, under_fab: None, who: str
) -> None:
    asks(app, fab_users()[who], who)
    client = TestClient(app)
    if who == "editor":
        told = client.get("/stores/other/regions/flights")
        assert (told.status_code, told.json()["detail"]) == (403, rights.NOT_YOURS)
        assert client.get("/regions/tills").status_code == 403
    if who == "editor of another DAG":
        assert client.get("/regions/tills").status_code == 404, "there is none: said only to who may know"


@pytest.mark.parametrize(
    ("who", "role"), [("nobody", None), ("viewer", "viewer"), ("editor", "user"), ("editor", "op"), ("admin", "admin")]
)
def test_under_the_simple_manager_whoever_has_a_role_sees_all(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, who: str, role: str | None
) -> None:
    monkeypatch.setattr(rights, "get_auth_manager", SimpleAuthManager)
    asks(app, SimpleAuthManagerUser(username="ada", role=role), who)


# -- a connection that can't be known ---------------------------------------------------------------------------------


def plain(region: str) -> None:
    KcrPauseOperator(task_id="pause", region=region)


def in_expand(region: str) -> None:
    KcrPauseOperator.partial(task_id="pause", region=region).expand(kcr_conn_id=["a", "b"])


def in_expand_kwargs(region: str) -> None:
    KcrPauseOperator.partial(task_id="pause", region=region).expand_kwargs([{"kcr_conn_id": "a"}])


def mapped(region: str) -> None:
    KcrPauseOperator.partial(task_id="pause", region=region).expand(timeout=[60])


def in_partial(region: str) -> None:
    KcrPauseOperator.partial(task_id="pause", region=region, kcr_conn_id="b").expand(timeout=[60])


def template(region: str) -> None:
    KcrPauseOperator(task_id="pause", region=region, kcr_conn_id="{{ params.store }}")


@pytest.mark.parametrize(
    ("make", "default", "store"),
    [
        (plain, None, "kcr_default"),
        (plain, "own", "own"),
        (mapped, None, rights.UNKNOWN),
        (mapped, "own", rights.UNKNOWN),
        (in_expand, None, rights.UNKNOWN),
        (in_expand_kwargs, None, rights.UNKNOWN),
        (in_partial, "own", "b"),
        (template, None, rights.UNKNOWN),
    ],
)
def test_the_store_of_a_task_is_the_one_that_its_dag_says_or_unknown(
    make: Callable[[str], None], default: str | None, store: str
) -> None:
    with DAG("d", schedule=None, default_args={"kcr_conn_id": default} if default else {}) as dag:
        make("flights")
    assert list(rights.places_of(LazyDeserializedDAG.from_dag(dag).data)) == [(store, "flights")]


def test_a_region_whose_store_is_unknown_is_not_shown_and_the_reason_is(app: FastAPI, under_fab: None) -> None:
    unknown = {(rights.UNKNOWN, "flights"): frozenset({"flights_checkpoint"})}
    app.dependency_overrides[rights.owners] = lambda: lambda: unknown
    app.dependency_overrides[get_user] = lambda: fab_users()["editor"]
    client = TestClient(app)
    for path in FLIGHTS:
        answer = client.get(path)
        assert answer.status_code == 403
        assert "a mapped task gives no kcr_conn_id to partial()" in answer.json()["detail"]
    listed = client.get("/")
    assert (listed.status_code, "regions/flights" in listed.text) == (200, False)
    assert "a mapped task gives no kcr_conn_id to partial()" in listed.text
