"""Who may see which region, and who may change it: users with that right to the runs of a DAG that works on it.

An application that a plugin adds is open to everyone unless each of its routes checks the user. Airflow's own check
takes the DAG from the request, so that callers could choose the DAG whose right is checked. Here the region decides:
its DAGs are those with the tag `kcr` whose tasks name the region and the connection of its store, as Airflow has
stored them.

Airflow's answers and stored DAGs are not its public interface, so only this module uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 (FastAPI reads the annotation)
from airflow.models.dag import DagModel, DagTag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException
from sqlalchemy import select

from airflow_kcr.hooks.links import is_literal

if TYPE_CHECKING:
    from uuid import UUID

    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

TAG: Final = "kcr"
"""The tag by which a DAG of a region is found."""

_OPERATORS: Final = "airflow_kcr.operators."
"""Where the operators are that act on a region; a sensor only waits for one."""

Place: TypeAlias = tuple[str, str]
"""A connection, and a region of its store."""

Owners: TypeAlias = Mapping[Place, frozenset[str]]
"""The ids of the DAGs that work on a region."""

Method: TypeAlias = Literal["GET", "POST"]
"""What is done to the runs of a DAG, as Airflow's auth managers ask: read them, or trigger one."""

NOT_YOURS: Final = (
    "You may see neither the runs of all DAGs nor those of a DAG that works on this region (one with the tag kcr whose "
    "tasks name it)."
)

NOT_YOURS_TO_CHANGE: Final = (
    "You may look at this region, but not change it: that takes the right to trigger runs of all DAGs, or of a DAG "
    "that works on this region (one with the tag kcr whose tasks name it)."
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
    """The regions to whose DAGs' runs a user has a right: to read them, or to trigger one."""

    everything: bool
    """Whether it is a right to all DAGs."""

    dags: Owners
    """By region, those of its DAGs that the right is to, where it is not to all."""

    refusal: str = NOT_YOURS
    """What a user without it is told."""

    @classmethod
    def of(cls, user: BaseUser, method: Method, read_owners: Callable[[], Owners]) -> Self:
        """Return a user's rights.

        Args:
            user: as Airflow has logged them in.
            method: what is done to the runs of a DAG.
            read_owners: reads which DAGs work on which regions; not called where the right is to all DAGs.
        """

        def may(dag_id: str | None) -> bool:
            team = None if dag_id in {None, ANY_DAG} else DagModel.get_team_name(dag_id)
            details = DagDetails(id=dag_id, team_name=team)
            found: bool = get_auth_manager().is_authorized_dag(
                method=method, access_entity=DagAccessEntity.RUN, details=details, user=user
            )
            return found

        refusal = NOT_YOURS if method == "GET" else NOT_YOURS_TO_CHANGE
        # Without an id, some auth managers ask for the right to list DAGs, which a right to any one of them brings.
        if may(None) and may(ANY_DAG):
            return cls(everything=True, dags={}, refusal=refusal)
        known = read_owners()
        own = {dag_id for dag_id in frozenset().union(*known.values()) if may(dag_id)}
        dags = {place: dags & own for place, dags in known.items() if dags & own}
        return cls(everything=False, dags=dags, refusal=refusal)

    def has(self, store: str, region: str) -> bool:
        """Whether it holds for a region of a connection's store."""
        return self.everything or (store, region) in self.dags

    def has_any_of(self, store: str) -> bool:
        """Whether it holds for anything of a connection's store."""
        return self.everything or any(one == store for one, _ in self.dags)

    def of_dags(self, known: Owners, store: str, region: str) -> list[str]:
        """Return the DAGs that work on a region and that it holds for, in the order of their ids."""
        return sorted((known if self.everything else self.dags).get((store, region), ()))

    @property
    def not_shown(self) -> str:
        """Why regions of the user's own DAGs are not shown; empty: there are none such."""
        regions = sorted(region for store, region in self.dags if store == UNKNOWN)
        return NO_CONNECTION.format(regions=", ".join(regions)) if regions else ""

    def require(self, store: str, region: str) -> None:
        """Refuse a region that it does not hold for, whether or not there is one.

        Raises:
            HTTPException: 403.
        """
        if not self.has(store, region):
            raise HTTPException(403, f"{self.refusal} {self.not_shown}".rstrip())


def owners() -> Callable[[], Owners]:
    """Return what reads which DAGs work on which regions, once for a request; tests put their own in its place."""
    return lru_cache(maxsize=1)(_stored_owners)


ReadOwners: TypeAlias = Annotated[Callable[[], Owners], Depends(owners)]


def looker(user: GetUserDep, read_owners: ReadOwners) -> Rights:
    """Return what the user may see: 401 if not logged in, 403 if they may see nothing."""
    found = Rights.of(user, "GET", read_owners)
    if not found.everything and not found.dags:
        raise HTTPException(403, NOT_YOURS)
    return found


def changer(user: GetUserDep, read_owners: ReadOwners) -> Rights:
    """Return what the user may change, perhaps nothing: 401 if not logged in."""
    return Rights.of(user, "POST", read_owners)


Looker: TypeAlias = Annotated[Rights, Depends(looker)]
"""What a route takes that only shows something."""

Changer: TypeAlias = Annotated[Rights, Depends(changer)]
"""What a route takes that changes something, or says whether the user could."""


def _stored_owners() -> Owners:
    """Read the stored DAGs that have the tag."""
    with create_session() as session:
        tagged = select(DagTag.dag_id).join(DagModel, DagModel.dag_id == DagTag.dag_id)
        dag_ids = session.scalars(tagged.where(DagTag.name == TAG, DagModel.is_stale.is_(False))).all()
    found: dict[Place, set[str]] = {}
    for dag_id, work in _works_of(dag_ids).items():
        for place in work.places:
            found.setdefault(place, set()).add(dag_id)
    return {place: frozenset(dags) for place, dags in found.items()}


class _Work(NamedTuple):
    """What a stored DAG does to regions."""

    places: frozenset[Place]
    takes_target: bool
    takes_checkpoint: bool
    has_intervals: bool


def _works_of(dag_ids: Collection[str]) -> dict[str, _Work]:
    """Return what DAGs do, as they are stored now.

    A page that is open asks every few seconds, so a DAG is read again only when it is stored anew: Airflow writes a
    version that no run has yet in place, and its hash tells.
    """
    model = SerializedDagModel
    with create_session() as session:
        newest = {
            dag_id: session.execute(
                model.latest_item_select_object(dag_id).with_only_columns(  # type: ignore[no-untyped-call]
                    model.id, model.dag_hash
                )
            ).one_or_none()
            for dag_id in dag_ids
        }
    return {dag_id: _work(*version) for dag_id, version in newest.items() if version is not None}


@lru_cache(maxsize=10_000)
def _work(version: UUID, content: str) -> _Work:
    """Read a stored version of a DAG, which has this hash."""
    with create_session() as session:
        stored = session.get(SerializedDagModel, version)
        data = {} if stored is None else stored.data or {}
    has_intervals = "KcrIntervalOperator" in _kinds(data)
    return _Work(frozenset(places_of(data)), takes_target(data), takes_checkpoint(data), has_intervals)


class Workers(NamedTuple):
    """The DAGs by which a region is reset, and its checkpoints are recomputed."""

    reset_dags: list[str]
    """A run of one of these resets the region to the target that its params name."""

    recompute_dags: list[str]
    """A run of one of these recomputes the checkpoint that its params name."""

    interval_dags: list[str]
    """A run of one of these recomputes its interval where it is cleared."""


def workers() -> Callable[[Collection[str]], Workers]:
    """Return what finds those of some DAGs that reset or recompute; tests put their own in its place."""
    return _workers


FindWorkers: TypeAlias = Annotated[Callable[[Collection[str]], Workers], Depends(workers)]


def _workers(dag_ids: Collection[str]) -> Workers:
    works = _works_of(dag_ids).items()
    return Workers(
        [dag_id for dag_id, work in works if work.takes_target],
        [dag_id for dag_id, work in works if work.takes_checkpoint],
        [dag_id for dag_id, work in works if work.has_intervals],
    )


def takes_target(stored: Mapping[str, Any]) -> bool:
    """Whether a DAG, as Airflow serialises it, applies a reset, and has the params of `reset_params`."""
    return "KcrApplyResetOperator" in _kinds(stored) and {"target", "checkpoint", "reason"} <= _params(stored)


def takes_checkpoint(stored: Mapping[str, Any]) -> bool:
    """Whether a DAG, as Airflow serialises it, recomputes, and has the params `checkpoint` and `reason`."""
    return "KcrRecomputeOperator" in _kinds(stored) and {"checkpoint", "reason"} <= _params(stored)


def _kinds(stored: Mapping[str, Any]) -> set[object]:
    return {task.get("__var", {}).get("task_type") for task in stored.get("dag", {}).get("tasks", ())}


def _params(stored: Mapping[str, Any]) -> set[str]:
    return {name for name, _ in stored.get("dag", {}).get("params", ())}


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
