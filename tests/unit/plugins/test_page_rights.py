"""Who sees which region, by the auth managers' own classes: FAB's, which knows single DAGs, and the simple one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dag import DagModel
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_kcr.api.regions import opened
from airflow_kcr.operators.region import KcrPauseOperator
from airflow_kcr.plugins import page
from tests.support.browsing import TestClient
from tests.support.live_region import live_region

if TYPE_CHECKING:
    from fastapi import FastAPI

OWNERS = {
    ("kcr_default", "flights"): frozenset({"flights_checkpoint"}),
    ("other", "flights"): frozenset({"others"}),
    ("kcr_default", "tills"): frozenset({"tills_checkpoint"}),
}
FLIGHTS = ("/regions/flights", "/stores/kcr_default/regions/flights")

SEES = {
    "nobody": (403, 403),
    "viewer": (200, 200),
    "editor of another DAG": (200, 403),
    "editor": (200, 200),
    "admin": (200, 200),
}
"""What the list and the pages of region flights answer to each; the editor may see one DAG of it."""


@pytest.fixture
def app(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FastAPI]:
    monkeypatch.setattr(DagModel, "get_team_name", lambda dag_id: None)
    create_auth_manager()
    with live_region(database_url):
        app = page.build_page({"kcr_default": lambda: opened(database_url)})
        app.dependency_overrides[page.owners] = lambda: lambda: OWNERS
        yield app


@pytest.fixture
def under_fab(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have FAB's own manager decide; rights need no application of Flask, and what FAB imports warns."""
    pytest.importorskip("airflow.providers.fab", reason="the auth manager of FAB is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from airflow.providers.fab.auth_manager.fab_auth_manager import FabAuthManager
    manager = object.__new__(FabAuthManager)
    monkeypatch.setattr(page, "get_auth_manager", lambda: manager)


def fab_user(*granted: tuple[str, str]) -> Any:  # noqa: ANN401 (FAB's own)
    from airflow.providers.fab.auth_manager.models import Action, Permission, Resource, Role, User

    permissions = [Permission(action=Action(name=may), resource=Resource(name=what)) for may, what in granted]
    return User(username="ada", roles=[Role(name="r", permissions=permissions)])


def fab_users() -> dict[str, Any]:
    reads, runs, edits = "can_read", ("can_read", "DAG Runs"), ("can_edit", "DAG Runs")
    return {
        "nobody": fab_user(),
        "viewer": fab_user((reads, "DAGs"), runs),
        "editor of another DAG": fab_user(
            runs, edits, (reads, "DAG:tills_checkpoint"), ("can_edit", "DAG:tills_checkpoint")
        ),
        "editor": fab_user(runs, edits, (reads, "DAG:flights_checkpoint"), ("can_edit", "DAG:flights_checkpoint")),
        "admin": fab_user((reads, "DAGs"), ("can_edit", "DAGs"), runs, edits),
    }


def asks(app: FastAPI, user: object, who: str) -> None:
    app.dependency_overrides[get_user] = lambda: user
    client = TestClient(app)
    listed, shown = SEES[who]
    for path, status in (("/", listed), *((path, shown) for path in FLIGHTS)):
        assert client.get(path).status_code == status, (who, path)
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert client.request(method, path).status_code == 405, (who, method, path)
    text = client.get("/").text
    assert ("regions/flights" in text) == (shown == 200), who


@pytest.mark.parametrize("who", SEES)
def test_under_fab_a_region_is_shown_to_who_may_read_one_of_its_dags_or_all_dags(
    app: FastAPI, under_fab: None, who: str
) -> None:
    asks(app, fab_users()[who], who)
    if who == "editor":
        client = TestClient(app)
        assert client.get("/stores/other/regions/flights").status_code == 403
        assert client.get("/regions/tills").status_code == 403


@pytest.mark.parametrize(
    ("who", "role"), [("nobody", None), ("viewer", "viewer"), ("editor", "user"), ("editor", "op"), ("admin", "admin")]
)
def test_under_the_simple_manager_whoever_has_a_role_sees_all(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, who: str, role: str | None
) -> None:
    monkeypatch.setattr(page, "get_auth_manager", SimpleAuthManager)
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
        (mapped, None, page.UNKNOWN),
        (mapped, "own", page.UNKNOWN),
        (in_expand, None, page.UNKNOWN),
        (in_expand_kwargs, None, page.UNKNOWN),
        (in_partial, "own", "b"),
        (template, None, page.UNKNOWN),
    ],
)
def test_the_store_of_a_task_is_the_one_that_its_dag_says_or_unknown(
    make: Callable[[str], None], default: str | None, store: str
) -> None:
    with DAG("d", schedule=None, default_args={"kcr_conn_id": default} if default else {}) as dag:
        make("flights")
    assert list(page.places_of(DagSerialization.to_dict(dag))) == [(store, "flights")]


def test_a_region_whose_store_is_unknown_is_not_shown_and_the_reason_is(app: FastAPI, under_fab: None) -> None:
    unknown = {(page.UNKNOWN, "flights"): frozenset({"flights_checkpoint"})}
    app.dependency_overrides[page.owners] = lambda: lambda: unknown
    app.dependency_overrides[get_user] = lambda: fab_users()["editor"]
    client = TestClient(app)
    for path in FLIGHTS:
        answer = client.get(path)
        assert answer.status_code == 403
        assert "a mapped task gives no kcr_conn_id to partial()" in answer.json()["detail"]
    listed = client.get("/")
    assert (listed.status_code, "regions/flights" in listed.text) == (200, False)
    assert "a mapped task gives no kcr_conn_id to partial()" in listed.text
