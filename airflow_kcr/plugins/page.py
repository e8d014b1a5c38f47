"""The page of the regions: a small application inside Airflow's API server, which only shows.

Its pages are made here, with every value escaped; they load nothing, from nobody, and run no script. All addresses in
them are relative, so it does not matter below which path Airflow is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from airflow_kcr.api.opening import regions
from airflow_kcr.errors import InvalidIdentifier, KcrError, UnknownRegion
from airflow_kcr.plugins.access import may_look
from airflow_kcr.plugins.overview import Overview
from airflow_kcr.protocol.values import region_name

if TYPE_CHECKING:
    from airflow_kcr.store.regions import RegionStore

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

NONE: Final = "-"
"""Stands for what there is none of."""


def build_page(lend: Callable[[], AbstractContextManager[RegionStore]]) -> FastAPI:
    """Return the application; every route of it asks who is there.

    Args:
        lend: opens the store, for one request.
    """
    app = FastAPI(title="Regions", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/", dependencies=[may_look()], response_class=HTMLResponse)
    def listed() -> HTMLResponse:
        with lend() as store:
            return _page("regions.html", regions=regions(store))

    @app.get("/regions/{region}", dependencies=[may_look()], response_class=HTMLResponse)
    def shown(region: str) -> HTMLResponse:
        with lend() as store:
            overview = Overview.of(*store.read(region_name(region)))
        return _page("region.html", it=overview)

    @app.exception_handler(KcrError)
    def failed(request: Request, error: Exception) -> HTMLResponse:
        is_missing = isinstance(error, UnknownRegion | InvalidIdentifier)
        message = error.message if isinstance(error, KcrError) else str(error)
        up = "../" if "/regions/" in request.url.path else "./"
        return _page("problem.html", status=404 if is_missing else 503, message=message, up=up)

    return app


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
    found.filters |= {"instant": _instant, "number": _number}
    return found


def _instant(value: datetime | None) -> str:
    return NONE if value is None else value.strftime("%Y-%m-%d %H:%M:%S")


def _number(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"
