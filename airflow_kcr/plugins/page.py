"""The page of the regions: a small application inside Airflow's API server, which only shows.

Its pages are made here, with every value escaped; they load nothing from elsewhere and run no script. All addresses in
them are relative, so it does not matter below which path Airflow is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeAlias

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 (FastAPI reads the annotation)
from airflow.models.dag import DagModel, DagTag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from sqlalchemy import select

from airflow_kcr.api import RegionSummary
from airflow_kcr.api.regions import regions
from airflow_kcr.api.views import span
from airflow_kcr.errors import InvalidIdentifier, KcrError, UnknownRegion
from airflow_kcr.hooks.connections import DEFAULT_CONNECTION
from airflow_kcr.hooks.links import is_literal, region_place
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

NOT_SHOWN: Final = (
    "The regions of that connection are not shown here: the setting [kcr] page_conn_ids does not name it. An "
    "administrator of Airflow can add it there."
)

NONE: Final = "-"
"""Stands for what there is none of."""


Lend: TypeAlias = Callable[[], AbstractContextManager["RegionStore"]]
"""Opens a store, for one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRegions:
    """The regions of one store, or why they can't be shown."""

    kcr_conn_id: str
    regions: tuple[RegionSummary, ...] = ()
    problem: str = ""

    @classmethod
    def read(cls, kcr_conn_id: str, lend: Lend, may: Rights) -> Self:
        """Return the regions of a store that may be seen; one store that is away does not hide the others."""
        try:
            with lend() as store:
                seen = tuple(one for one in regions(store) if may.has(kcr_conn_id, one.region))
            return cls(kcr_conn_id=kcr_conn_id, regions=seen)
        except KcrError as error:
            return cls(kcr_conn_id=kcr_conn_id, problem=error.message)

    def place(self, region: str) -> str:
        """Return the relative address of a region."""
        return region_place(region, self.kcr_conn_id)


def build_page(stores: Mapping[str, Lend]) -> FastAPI:
    """Return the application; every route of it asks who is there, and shows what they may see.

    Args:
        stores: what opens them, by their connections, in the order in which they are shown.
    """
    app = FastAPI(title="Regions", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/", response_class=HTMLResponse)
    def listed(may: Looker) -> HTMLResponse:
        found = [StoreRegions.read(name, lend, may) for name, lend in stores.items() if may.has_any_of(name)]
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
                overview = Overview.of(*opened.look(region_name(region)))
        except KcrError as error:
            status = 404 if isinstance(error, UnknownRegion | InvalidIdentifier) else 503
            return _page("problem.html", status=status, message=error.message, up=up)
        return _page("region.html", it=overview, store=store, is_one_of_many=len(stores) > 1, up=up)

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
    found.filters |= {"instant": _instant, "number": _number, "span": span}
    return found


def _instant(value: datetime | None) -> str:
    return NONE if value is None else value.strftime("%Y-%m-%d %H:%M:%S")


def _number(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


# Who may see which region: users who may see the runs of a DAG that works on it, or of all DAGs.
#
# An application that a plugin adds is open to everyone unless each of its routes checks the user. Airflow's own check
# takes the DAG from the request, so that callers could choose the DAG whose right is checked. Here the region decides:
# its DAGs are those with the tag `kcr` whose tasks name the region and the connection of its store, as Airflow has
# stored them.
#
# Airflow's answers and stored DAGs are not its public interface, so only this module uses them.

TAG: Final = "kcr"
"""The tag by which a DAG of a region is found."""

_OPERATORS: Final = "airflow_kcr.operators."
"""Where the operators are that act on a region; a sensor only waits for one."""

Place: TypeAlias = tuple[str, str]
"""A connection, and a region of its store."""

Owners: TypeAlias = Mapping[Place, frozenset[str]]
"""The ids of the DAGs that work on a region."""

NOT_YOURS: Final = (
    "You may see neither the runs of all DAGs nor those of a DAG that works on this region (one with the tag kcr whose "
    "tasks name it)."
)


ANY_DAG: Final = "any DAG"
"""An id that no DAG can have: only a right to all DAGs holds for it."""

UNKNOWN: Final = ""
"""Stands for the store of a region whose connection can't be known, in a `Place`."""

NO_CONNECTION: Final = (
    "Of {regions} a DAG of yours names the region, but not in which store it is: a mapped task gives no kcr_conn_id to "
    "partial(), or the connection is a template. It is not guessed; name the connection there, and deploy the DAG anew."
)


@dataclass(frozen=True, slots=True)
class Rights:
    """What a user may see."""

    everything: bool
    places: frozenset[Place]
    """Those regions, where it is not everything."""

    def has(self, store: str, region: str) -> bool:
        """Whether a region of a connection's store may be shown."""
        return self.everything or (store, region) in self.places

    def has_any_of(self, store: str) -> bool:
        """Whether anything of a connection's store may be shown."""
        return self.everything or any(one == store for one, _ in self.places)

    @property
    def not_shown(self) -> str:
        """Why regions of the user's own DAGs are not shown; empty: there are none such."""
        regions = sorted(region for store, region in self.places if store == UNKNOWN)
        return NO_CONNECTION.format(regions=", ".join(regions)) if regions else ""

    def require(self, store: str, region: str) -> None:
        """Refuse a region that may not be shown, whether or not there is one.

        Raises:
            HTTPException: 403.
        """
        if not self.has(store, region):
            raise HTTPException(403, f"{NOT_YOURS} {self.not_shown}".rstrip())


def owners() -> Callable[[], Owners]:
    """Return what reads which DAGs work on which regions; tests put their own in its place."""
    return _stored_owners


def rights(user: GetUserDep, read_owners: Annotated[Callable[[], Owners], Depends(owners)]) -> Rights:
    """Return what the user may see: 401 if not logged in, 403 if they may see nothing."""

    def may_see(dag_id: str | None) -> bool:
        team = None if dag_id in {None, ANY_DAG} else DagModel.get_team_name(dag_id)
        details = DagDetails(id=dag_id, team_name=team)
        found: bool = get_auth_manager().is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.RUN, details=details, user=user
        )
        return found

    # Without an id, some auth managers ask for the right to list DAGs, which a right to any one of them brings.
    if may_see(None) and may_see(ANY_DAG):
        return Rights(everything=True, places=frozenset())
    known = read_owners()
    seen = {dag_id for dag_id in frozenset().union(*known.values()) if may_see(dag_id)}
    places = frozenset(place for place, dags in known.items() if dags & seen)
    if not places:
        raise HTTPException(403, NOT_YOURS)
    return Rights(everything=False, places=places)


Looker: TypeAlias = Annotated[Rights, Depends(rights)]
"""What a route takes that only shows something."""


def _stored_owners() -> Owners:
    """Read the stored DAGs that have the tag."""
    found: dict[Place, set[str]] = {}
    with create_session() as session:
        tagged = select(DagTag.dag_id).join(DagModel, DagModel.dag_id == DagTag.dag_id)
        for dag_id in session.scalars(tagged.where(DagTag.name == TAG, DagModel.is_stale.is_(False))):
            stored = SerializedDagModel.get(dag_id, session=session)
            for place in places_of({} if stored is None else stored.data or {}):
                found.setdefault(place, set()).add(dag_id)
    return {place: frozenset(dags) for place, dags in found.items()}


def places_of(stored: Mapping[str, Any]) -> Iterator[Place]:
    """Yield the regions that the tasks of a DAG act on; one whose name is a template still is none.

    Of a mapped task Airflow stores what `partial` was given. Without a connection there, it may be that of
    `default_args`, or another one for each mapped task: no reason to show the region of that name in the default store.

    Args:
        stored: the DAG, as Airflow serialises it.
    """
    for task in stored.get("dag", {}).get("tasks", ()):
        fields = task.get("__var", {})
        said = {**fields.get("partial_kwargs", {}), **fields}
        region, store = said.get("region"), said.get("kcr_conn_id")
        if str(fields.get("_task_module", "")).startswith(_OPERATORS) and is_literal(region):
            yield store if is_literal(store) else UNKNOWN, region
