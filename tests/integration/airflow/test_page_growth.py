"""An API server that has the page open for days: a day is N readings, taken one right after the other."""

from __future__ import annotations

import os
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import pytest
import uvicorn
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dag import DagModel
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from airflow_kcr.plugins import KcrPlugin
from tests.support.driver import Driver
from tests.support.footprint import Footprint, footprint
from tests.support.live_region import live_region

if TYPE_CHECKING:
    from fastapi import FastAPI

READINGS = int(os.environ.get("KCR_SOAK_READINGS", "17280"))
"""Of the page: one each five seconds, by a person who reloads it all day long."""

PARTS = 3
"""What is made once, caches filled and connections opened, is made in the first of N equal parts."""

WITHIN = 60.0
"""Seconds for an answer, on a machine that has much else to do."""


def connections(engine: Engine) -> int:
    """Return how many connections the package holds to the database."""
    of_ours = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'kcr'"
    with engine.connect() as connection:
        found: int = connection.execute(text(of_ours)).scalar_one()
    return found


@contextmanager
def asking(url: str) -> Iterator[Engine]:
    """Lend what asks the server about its connections, over one that is not called `kcr`."""
    engine = create_engine(url, poolclass=NullPool)
    try:
        yield engine
    finally:
        engine.dispose()


def shown(done: int, what: str, has: Footprint, held: int) -> None:
    """Tell what there is, to be seen with -s while a long one runs."""
    print(f"{done} {what}: {has}, {held} connections", flush=True)  # noqa: T201


def _happens(driver: Driver, request: str) -> None:
    """Let something happen in a region: a whole checkpoint, by members that are alive."""
    driver.heartbeat()
    driver.checkpoint(request)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_server_of_the_page_has_no_more_after_thrice_the_readings(store_connection: str, page: str) -> None:
    read(store_connection, page, readings=150)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_a_server_of_the_page_has_no_more_after_a_day_of_readings(store_connection: str, page: str) -> None:
    read(store_connection, page, readings=READINGS)


@pytest.fixture
def page(store_connection: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the plugin's pages, as a server serves them to a person who may see everything."""
    # Airflow's own tables are not there.
    monkeypatch.setattr(DagModel, "get_team_name", lambda dag_id: None)
    create_auth_manager()
    (mounted,) = KcrPlugin().fastapi_apps
    app: FastAPI = mounted["app"]
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ada", role="admin")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, name="page server", daemon=True)
    thread.start()
    deadline = monotonic() + WITHIN
    while not server.started:
        assert thread.is_alive() and monotonic() < deadline, "the server did not start"  # noqa: PT018
        thread.join(0.01)
    try:
        (listening,) = server.servers[0].sockets
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(WITHIN)


def read(url: str, page: str, *, readings: int) -> None:
    """Read both pages so often, with a checkpoint now and then, and compare what the process has."""
    found: list[tuple[Footprint, int]] = []
    with live_region(url) as driver, asking(url) as engine:
        driver.up()
        for part in range(1, PARTS + 1):
            for number in range(readings * (part - 1) // PARTS, readings * part // PARTS):
                if number % 10 == 0:
                    _happens(driver, f"c-{number}")
                answer = got(f"{page}/") if number % 2 else got(f"{page}/regions/{driver.name}")
                assert str(driver.name) in answer
            found.append((footprint(), connections(engine)))
            shown(readings * part // PARTS, "readings", *found[-1])
    (first, connected), (last, still) = found[0], found[-1]
    assert last.growth_since(first) == {}
    assert still <= connected


def got(address: str) -> str:
    """Return a page."""
    with urllib.request.urlopen(address, timeout=WITHIN) as answer:
        return str(answer.read().decode())
