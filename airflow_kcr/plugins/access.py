"""Who may see which region: whoever may see the runs of a DAG that works on it, or of all DAGs.

An application that a plugin adds is open to everybody unless each of its routes asks. Airflow's own check takes the DAG
from the request, so that whoever calls would choose whose right is asked. Here the region decides: its DAGs are those
with the tag `kcr` whose tasks name the region and the connection of its store, as Airflow has stored them.

How Airflow answers, and stores DAGs, is no public interface of it, so nobody else uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 (FastAPI reads the annotation)
from airflow.models.dag import DagModel, DagTag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException
from sqlalchemy import select

from airflow_kcr.hooks.connections import DEFAULT_CONNECTION

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


@dataclass(frozen=True, slots=True)
class Rights:
    """What somebody may see."""

    everything: bool
    places: frozenset[Place]
    """Those regions, where it is not everything."""

    def has(self, store: str, region: str) -> bool:
        """Whether a region of a connection's store may be shown."""
        return self.everything or (store, region) in self.places

    def has_any_of(self, store: str) -> bool:
        """Whether anything of a connection's store may be shown."""
        return self.everything or any(one == store for one, _ in self.places)

    def require(self, store: str, region: str) -> None:
        """Refuse a region that may not be shown, whether or not there is one.

        Raises:
            HTTPException: 403.
        """
        if not self.has(store, region):
            raise HTTPException(403, NOT_YOURS)


def owners() -> Callable[[], Owners]:
    """Return what reads which DAGs work on which regions; tests put their own in its place."""
    return _stored_owners


def rights(user: GetUserDep, read_owners: Annotated[Callable[[], Owners], Depends(owners)]) -> Rights:
    """Return what the user may see: 401 for who is nobody, 403 for who may see nothing."""

    def may_see(dag_id: str | None) -> bool:
        team = DagModel.get_team_name(dag_id) if dag_id is not None else None
        details = DagDetails(id=dag_id, team_name=team)
        found: bool = get_auth_manager().is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.RUN, details=details, user=user
        )
        return found

    if may_see(None):
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

    Args:
        stored: the DAG, as Airflow serialises it.
    """
    for task in stored.get("dag", {}).get("tasks", ()):
        fields = task.get("__var", {})
        said = {**fields.get("partial_kwargs", {}), **fields}
        region, store = said.get("region"), said.get("kcr_conn_id") or DEFAULT_CONNECTION
        if str(fields.get("_task_module", "")).startswith(_OPERATORS) and isinstance(region, str):
            yield str(store), region
