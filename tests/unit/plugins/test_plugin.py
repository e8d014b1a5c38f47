from __future__ import annotations

import re
from typing import Any

import pytest
from airflow import plugins_manager
from airflow.api_fastapi.app import RESERVED_URL_PREFIXES, create_auth_manager
from airflow.api_fastapi.core_api.datamodels.plugins import ReactAppResponse
from fastapi import FastAPI

from airflow_kcr.hooks.links import region_path
from airflow_kcr.plugins import KcrPlugin, shown_connections
from airflow_kcr.plugins.page import STATIC, modules
from tests.support.browsing import TestClient


def mounted_by_airflow() -> tuple[list[Any], list[Any]]:
    """The applications and middlewares of all plugins."""
    known: Any = plugins_manager
    if not hasattr(known, "get_fastapi_plugins"):  # up to Airflow 3.1
        known.initialize_fastapi_plugins()
        return known.fastapi_apps, known.fastapi_root_middlewares
    found: tuple[list[Any], list[Any]] = known.get_fastapi_plugins()
    return found


def test_airflow_loads_the_plugin_and_mounts_its_page() -> None:
    apps, middlewares = mounted_by_airflow()
    (ours,) = [app for app in apps if app["url_prefix"] == "/kcr"]
    assert isinstance(ours["app"], FastAPI)
    assert middlewares == []
    assert not any(ours["url_prefix"].startswith(prefix) for prefix in RESERVED_URL_PREFIXES)


def mounted() -> TestClient:
    """A browser at what Airflow mounts, of a user who is not logged in."""
    create_auth_manager()
    outer = FastAPI()
    for app in KcrPlugin().fastapi_apps:
        outer.mount(app["url_prefix"], app["app"])
    return TestClient(outer)


def test_the_console_is_an_app_that_airflow_takes_and_its_modules_ask_who_is_there() -> None:
    for app in KcrPlugin.react_apps:
        ReactAppResponse.model_validate(app)
        assert mounted().get(app["bundle_url"]).status_code == 401


def test_the_link_of_a_task_leads_into_the_console_and_the_same_place_of_the_page_asks_who_is_there() -> None:
    (app,) = (one for one in KcrPlugin.react_apps if one["destination"] == "nav")
    frame, _, place = region_path("flights").partition(f"/plugin/{app['url_route']}")
    assert frame == ""
    assert mounted().get(f"/kcr{place}").status_code == 401


def test_each_module_imports_only_modules_that_are_served() -> None:
    for name in modules():
        text = (STATIC / name).read_text(encoding="utf-8")
        assert text.startswith("// @ts-check")
        assert [line for line in text.splitlines() if len(line) > 120] == [], name
        assert set(re.findall(r' from "./([^"]+)"', text)) <= modules(), name
        assert not re.search(r"dangerouslySetInnerHTML|innerHTML|eval\(", text), name


def test_asking_twice_gives_the_same_page() -> None:
    plugin = KcrPlugin()
    assert plugin.fastapi_apps[0]["app"] is plugin.fastapi_apps[0]["app"]


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        (None, ("kcr_default",)),
        ("", ("kcr_default",)),
        ("team_kcr", ("team_kcr",)),
        (" kcr_default , team_kcr,kcr_default,", ("kcr_default", "team_kcr")),
    ],
)
def test_the_page_shows_the_stores_that_the_setting_names(
    monkeypatch: pytest.MonkeyPatch, named: str | None, shown: tuple[str, ...]
) -> None:
    if named is not None:
        monkeypatch.setenv("AIRFLOW__KCR__PAGE_CONN_IDS", named)
    assert shown_connections() == shown
