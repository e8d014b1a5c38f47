from __future__ import annotations

import subprocess
import sys

import pytest
from airflow import plugins_manager
from airflow.api_fastapi.app import RESERVED_URL_PREFIXES, create_auth_manager
from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse
from fastapi import FastAPI

from airflow_kcr.hooks.links import region_path
from airflow_kcr.plugins import KcrPlugin, shown_connections
from tests.support.browsing import TestClient


def test_airflow_loads_the_plugin_and_mounts_its_page() -> None:
    apps, middlewares = plugins_manager.get_fastapi_plugins()
    (ours,) = [app for app in apps if app["url_prefix"] == "/kcr"]
    assert isinstance(ours["app"], FastAPI)
    assert middlewares == []
    assert not any(ours["url_prefix"].startswith(prefix) for prefix in RESERVED_URL_PREFIXES)


def test_the_view_is_one_that_airflow_takes() -> None:
    for view in KcrPlugin.external_views:
        ExternalViewResponse.model_validate(view)
    assert KcrPlugin.external_views[0]["href"] == "/kcr/"


def test_the_link_of_a_task_leads_into_the_page_and_asks_who_is_there() -> None:
    create_auth_manager()
    outer = FastAPI()
    for app in KcrPlugin().fastapi_apps:
        outer.mount(app["url_prefix"], app["app"])
    (view,) = KcrPlugin.external_views
    frame, _, inside = region_path("flights").partition(f"/plugin/{view['url_route']}")
    assert frame == ""
    assert inside.startswith(view["href"])
    assert TestClient(outer).get(inside).status_code == 401


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


@pytest.mark.parametrize("library", ["fastapi", "jinja2.sandbox", "airflow_kcr.plugins.page"])
def test_whoever_only_loads_the_plugin_does_not_pay_for_the_page(library: str) -> None:
    look = (
        "import sys; import airflow.sdk.plugins_manager\n"
        "from airflow.sdk import BaseOperator; before = set(sys.modules)\n"
        f"import airflow_kcr.plugins; print({library!r} in set(sys.modules) - before)"
    )
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", look], check=True, capture_output=True, text=True)
    assert ran.stdout.split()[-1] == "False"
