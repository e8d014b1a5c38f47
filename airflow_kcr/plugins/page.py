"""The page of the regions: a small application inside Airflow's API server, which only shows.

Its pages are made here, with every value escaped; they load nothing from elsewhere and run no script. All addresses in
them are relative, so it does not matter below which path Airflow is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 (FastAPI reads the annotation)
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from airflow_kcr.api.clusters import Clusters
from airflow_kcr.api.regions import look
from airflow_kcr.api.views import span
from airflow_kcr.errors import InvalidIdentifier, KcrError, UnknownRegion
from airflow_kcr.hooks.connections import DEFAULT_CONNECTION
from airflow_kcr.plugins.api import NOT_SHOWN, add_api
from airflow_kcr.plugins.overview import Lend, Overview, StoreRegions
from airflow_kcr.plugins.rights import Looker
from airflow_kcr.protocol.values import region_name

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

STATIC: Final = Path(__file__).parent / "static"
"""The modules of the console, hand-written and served as they are."""

NONE: Final = "-"
"""Stands for what there is none of."""


def build_page(stores: Mapping[str, Lend], clusters: Clusters) -> FastAPI:
    """Return the application; every route of it asks who is there, and shows what they may see.

    Args:
        stores: what opens them, by their connections, in the order in which they are shown.
        clusters: how Kafka is reached, for plans of resets and checks of groups.
    """
    app = FastAPI(title="Regions", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/", response_class=HTMLResponse)
    def listed(may: Looker) -> HTMLResponse:
        found = list(StoreRegions.read_all(stores, may))
        status = 503 if found and all(one.problem for one in found) else 200
        return _page("regions.html", status=status, stores=found, not_shown=may.not_shown)

    @app.get("/regions/{region}", response_class=HTMLResponse)
    def shown(region: str, may: Looker) -> HTMLResponse:
        may.require(DEFAULT_CONNECTION, region)
        return region_page(DEFAULT_CONNECTION, region, up="../")

    @app.get("/stores/{store}/regions/{region}", response_class=HTMLResponse)
    def shown_of(store: str, region: str, may: Looker) -> HTMLResponse:
        may.require(store, region)
        return region_page(store, region, up="../../../")

    def region_page(store: str, region: str, *, up: str) -> HTMLResponse:
        lend = stores.get(store)
        if lend is None:
            return _page("problem.html", status=404, message=NOT_SHOWN, up=up)
        try:
            with lend() as opened:
                overview = Overview.of(*look(opened, region_name(region)))
        except KcrError as error:
            status = 404 if isinstance(error, UnknownRegion | InvalidIdentifier) else 503
            return _page("problem.html", status=status, message=error.message, up=up)
        return _page("region.html", it=overview, store=store, is_one_of_many=len(stores) > 1, up=up)

    @app.get("/static/{name}")
    def static(name: str, user: GetUserDep) -> FileResponse:
        if name not in modules():
            raise HTTPException(404, f"there is no module {name}")
        return FileResponse(STATIC / name, media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    add_api(app, stores, clusters)
    return app


@lru_cache(maxsize=1)
def modules() -> frozenset[str]:
    """Return the names of the console's modules."""
    return frozenset(path.name for path in STATIC.glob("*.js"))


def _page(template: str, *, status: int = 200, **values: object) -> HTMLResponse:
    return HTMLResponse(_templates().get_template(template).render(values), status_code=status, headers=HEADERS)


@lru_cache(maxsize=1)
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("airflow_kcr.plugins"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"instant": _instant, "number": _number, "span": span}
    return found


def _instant(value: datetime | None) -> str:
    return NONE if value is None else value.strftime("%Y-%m-%d %H:%M:%S")


def _number(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"
