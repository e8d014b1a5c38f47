"""The JSON that the console reads and writes: the documents of `-o json`, with what frames a page of them.

Reading takes the right to see a region, changing it the right to trigger runs of one of its DAGs. What changes
something names the epoch that its user looked at, so that nothing is done to a region that was reset since.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 (FastAPI reads the annotation)
from airflow.configuration import conf
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from airflow_kcr import verbs
from airflow_kcr.api import Region
from airflow_kcr.api.checkpoints import shown_region
from airflow_kcr.api.clusters import Clusters
from airflow_kcr.api.partitions import CommitFinding
from airflow_kcr.api.regions import look
from airflow_kcr.api.validation import CHECK, validate
from airflow_kcr.api.views import GroupView, MemberView, RegionSummary, RegionView, document_of
from airflow_kcr.errors import (
    BrokerUnavailable,
    ConfigurationError,
    InvalidIdentifier,
    KcrError,
    RefusedError,
    StoreError,
    UnknownCheckpoint,
    UnknownRegion,
    UnknownReset,
)
from airflow_kcr.plugins.overview import Lend, PartitionOrder, StoreRegions, partition_page
from airflow_kcr.plugins.rights import Changer, FindWorkers, Looker, ReadOwners
from airflow_kcr.protocol.region.commands import Command, InEpoch, PinCheckpoint, RequestCheckpoint
from airflow_kcr.protocol.region.rows import CheckpointPurpose, Requester
from airflow_kcr.protocol.targets import TARGETS
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, RequestId, region_name
from airflow_kcr.store.garbage import uncollected

if TYPE_CHECKING:
    from airflow_kcr.store.regions import RegionStore

PAGE: Final = 200
"""How many rows an answer has at most."""

LONGEST: Final = 300
"""How many characters a detail of an event has at most."""

HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

NOT_SHOWN: Final = (
    "The regions of that connection are not shown here: the setting [kcr] page_conn_ids does not name it. An "
    "administrator of Airflow can add it there."
)

ELSEWHERE: Final = (
    "Changes are only taken from pages of this Airflow: the request names {origin} as its origin. If Airflow is behind "
    "a proxy, [api] base_url has to be the address that users open; scripts use kcr, or KcrHook."
)

STATUS: Final[tuple[tuple[type[KcrError], int], ...]] = (
    (UnknownRegion, 404),
    (UnknownCheckpoint, 404),
    (UnknownReset, 404),
    (InvalidIdentifier, 404),
    (RefusedError, 409),
    (ConfigurationError, 422),
    (StoreError, 503),
    (BrokerUnavailable, 503),
)
"""How errors are answered, the first that fits; others are 500."""

TARGET: Final = ("option", "label", "metavar", "wanted", "help", "form_field", "schema")
"""What the console knows of a target."""

VERBS: Final = {verb.name: verb for verb in (verbs.START, *verbs.STEERING)}

Count: TypeAlias = Annotated[int, Query(ge=1, le=PAGE)]
Number: TypeAlias = Annotated[int | None, Query(ge=0)]


class Asked(BaseModel):
    """What every change says."""

    model_config = ConfigDict(extra="forbid")

    epoch: int = Field(ge=0)
    """The region's, as the user has seen it."""

    reason: str = ""


class AskedVerb(Asked):
    """A verb of the region."""

    name: str = ""
    """The region's name, typed by the user; only to kill it."""


class AskedPin(Asked):
    """The label of a pin; empty: the checkpoint is unpinned."""

    label: str = Field(max_length=200)


class AskedPlan(BaseModel):
    """The options of `kcr reset plan`."""

    model_config = ConfigDict(extra="forbid")

    target: str
    value: str | None = None
    timezone: str = ""
    groups: list[str] = []
    topics: list[str] = []
    skip: list[str] = []
    forward: bool = False
    allow_partial: bool = False
    forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The stores that are shown, and how Kafka is reached."""

    lend: Mapping[str, Lend]
    clusters: Clusters

    @contextmanager
    def opened(self, store: str) -> Iterator[RegionStore]:
        """Lend a store.

        Raises:
            HTTPException: 404, it is not one of those.
        """
        if store not in self.lend:
            raise HTTPException(404, NOT_SHOWN)
        with self.lend[store]() as found:
            yield found

    @contextmanager
    def region(self, store: str, name: str, requester: Requester | None = None) -> Iterator[Region]:
        """Lend a region, for its requester."""
        with self.opened(store) as found:
            yield Region(name, found, clusters=self.clusters, requester=requester)


def from_here(request: Request) -> None:
    """Refuse a change that another site's page asks for in the name of the user whose cookie it uses.

    Raises:
        HTTPException: 403.
    """
    origin = urlsplit(request.headers.get("origin", "")).netloc
    own = {request.headers.get("host", ""), urlsplit(conf.get("api", "base_url", fallback="") or "").netloc} - {""}
    if origin not in own:
        raise HTTPException(403, ELSEWHERE.format(origin=origin or "nothing"))


def add_api(app: FastAPI, lend: Mapping[str, Lend], clusters: Clusters) -> None:
    """Add the routes of the console to the page.

    Args:
        app: the page.
        lend: what opens the stores, by their connections.
        clusters: how Kafka is reached, for plans and checks.
    """
    stores = Stores(lend=lend, clusters=clusters)
    app.add_exception_handler(KcrError, _refused)
    looks = APIRouter(prefix=REGION, dependencies=[Depends(_may_look)])
    changes = APIRouter(prefix=REGION, dependencies=[Depends(_may_change), Depends(from_here)])
    _list(app, stores)
    _show(looks, stores)
    _show_past(looks, stores)
    _change(changes, stores)
    _ask_kafka(changes, stores)
    app.include_router(looks)
    app.include_router(changes)


def _refused(request: Request, error: Exception) -> JSONResponse:
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
    message = error.message if isinstance(error, KcrError) else str(error)
    return JSONResponse({"detail": message, "error": type(error).__name__}, status, HEADERS)


def _answer(**facts: object) -> JSONResponse:
    return JSONResponse(document_of(facts), headers=HEADERS)


_OF_REGION: Final = tuple(name for name in RegionView.shown.data if name not in {"unowned", "absent"})
_OF_GROUP: Final = tuple(name for name in GroupView.shown.data if name != "members")
_OF_MEMBER: Final = tuple(name for name in MemberView.shown.data if name != "partitions")


def _brief(view: RegionView) -> dict[str, object]:
    """Return a region without the names of its partitions, of which there may be thousands: those have a page."""
    groups = [
        GroupView.shown.document(group, _OF_GROUP)
        | {
            "members": [
                MemberView.shown.document(one, _OF_MEMBER) | {"partition_count": len(one.partitions)}
                for one in group.members
            ]
        }
        for group in view.groups
    ]
    return RegionView.shown.document(view, _OF_REGION) | {"groups": groups}


REGION: Final = "/api/stores/{store}/regions/{region}"


def _list(routes: FastAPI, stores: Stores) -> None:
    @routes.get("/api/regions")
    def all_regions(may: Looker, read_owners: ReadOwners) -> JSONResponse:
        """All regions that the user may see, by store; one store that is away does not hide the others."""
        known, found = read_owners(), []
        for store in StoreRegions.read_all(stores.lend, may):
            name = store.kcr_conn_id
            listed = [one.to_json() | {"dags": may.of_dags(known, name, one.region)} for one in store.regions]
            found.append({"kcr_conn_id": name, "problem": store.problem, "regions": listed})
        return _answer(
            now=datetime.now(UTC),
            refresh_seconds=conf.getint("api", "auto_refresh_interval", fallback=3),
            stores=found,
            not_shown=may.not_shown,
        )

    @routes.get("/api/runs")
    def of_run(may: Looker, read_owners: ReadOwners, dag_id: str = "", run_id: str = "") -> JSONResponse:
        """The regions that a run's DAG works on, as far as the user may see them, and the run's checkpoints in each."""
        places = sorted(place for place, dags in read_owners().items() if dag_id in dags and may.has(*place))
        found = []
        for store, region in places:
            if store in stores.lend:
                with stores.region(store, region) as lent:
                    answers = lent.checkpoints.that_answered(dag_id, run_id)
                found.append({"kcr_conn_id": store, "region": region, "checkpoints": answers})
        return _answer(regions=found)


def _may_look(store: str, region: str, may: Looker) -> None:
    may.require(store, region)


def _may_change(store: str, region: str, may: Changer) -> None:
    may.require(store, region)


def _show(routes: APIRouter, stores: Stores) -> None:
    @routes.get("")
    def shown(
        store: str,
        region: str,
        may: Looker,
        change: Changer,
        read_owners: ReadOwners,
        workers: FindWorkers,
    ) -> JSONResponse:
        """The region, its DAGs, and whether the user may change it."""
        with stores.opened(store) as opened, uncollected():
            found = row, now, _, _ = look(opened, region_name(region))
            view = shown_region(*found)
            facts = {"region": _brief(view), "summary": RegionSummary.shown.document(view), "counter": row.counter}
        dags = may.of_dags(read_owners(), store, region)
        return _answer(
            **facts,
            now=now,
            may_change=change.has(store, region),
            dags=dags,
            **workers(dags)._asdict(),
            targets=[{name: getattr(one, name) for name in TARGET} for one in TARGETS],
        )

    @routes.get("/sign")
    def sign(store: str, region: str) -> JSONResponse:
        """Whether anything is new: one statement, and a number that moves with each event."""
        name = region_name(region)
        with stores.opened(store) as opened:
            found = opened.signs([name])
        if name not in found:
            raise UnknownRegion(f"there is no region {region}")
        (sign, now) = found[name]
        return _answer(now=now, counter=sign.counter, leases=sign.leases)

    @routes.get("/partitions")
    def partitions(
        store: str,
        region: str,
        match: str = "",
        order: PartitionOrder = PartitionOrder.PARTITION,
        direction: Literal["up", "down"] = "up",
        start: Annotated[int, Query(ge=0)] = 0,
        count: Count = 50,
    ) -> JSONResponse:
        """Some partitions, as the store knows them."""
        with stores.opened(store) as opened, uncollected():
            row, now = opened.read(region_name(region))
            found, total = partition_page(row, match, order, start, count, is_descending=direction == "down")
        return _answer(now=now, partitions=found, total=total)

    @routes.get("/lag")
    def lag_history(store: str, region: str) -> JSONResponse:
        """The newest kept samples of each group's lag, the oldest first."""
        with stores.region(store, region) as lent, uncollected():
            return _answer(samples=lent.lag_history()[-PAGE:])


def _show_past(routes: APIRouter, stores: Stores) -> None:
    @routes.get("/checkpoints")
    def checkpoints(store: str, region: str, before: Number = None, last: Count = 50) -> JSONResponse:
        """The newest checkpoints before a number, the oldest first."""
        with stores.region(store, region) as lent, uncollected():
            return _answer(checkpoints=lent.checkpoints.list(before=before, last=last))

    @routes.get("/checkpoints/{sequence}")
    def checkpoint(
        store: str, region: str, sequence: int, start: Annotated[int, Query(ge=0)] = 0, count: Count = 100
    ) -> JSONResponse:
        """One checkpoint, with some of its offsets."""
        with stores.region(store, region) as lent, uncollected():
            document = lent.checkpoints.show(sequence).to_json()
        offsets = document["offsets"]
        rows = offsets if isinstance(offsets, list) else []
        return _answer(checkpoint={**document, "offsets": rows[start : start + count]}, total=len(rows))

    @routes.get("/checkpoints/{sequence}/context")
    def context(
        store: str, region: str, sequence: int, start: Annotated[int, Query(ge=0)] = 0, count: Count = 100
    ) -> JSONResponse:
        """What lies around a checkpoint, with some of its ranges."""
        with stores.region(store, region) as lent, uncollected():
            found = lent.checkpoints.context(sequence)
        return _answer(
            context={**found.to_json(), "ranges": found.ranges[start : start + count]}, total=len(found.ranges)
        )

    @routes.get("/resets")
    def resets(store: str, region: str, before: Number = None, last: Count = 50) -> JSONResponse:
        """The newest resets before a number, the oldest first."""
        with stores.region(store, region) as lent:
            return _answer(resets=lent.resets.list(before=before, last=last))

    @routes.get("/resets/{number}/runs")
    def undone_runs(store: str, region: str, number: int) -> JSONResponse:
        """The DAG runs whose checkpoints a reset has undone, in the order of those."""
        with stores.region(store, region) as lent:
            runs = lent.resets.undone_runs(str(number))
        return _answer(runs=[{"dag_id": run.dag_id, "run_id": run.run_id} for run in runs])

    @routes.get("/events")
    def events(store: str, region: str, before: Number = None, last: Count = 50) -> JSONResponse:
        """The newest events before a number, the oldest first; `kcr events` has the whole of long details."""
        with stores.region(store, region) as lent:
            found = lent.brief_events(before=before, last=last, longest=LONGEST)
        return _answer(events=[event._asdict() for event in found])


def _change(routes: APIRouter, stores: Stores) -> None:
    def handle(store: str, region: str, asked: Asked, command: Command[object]) -> JSONResponse:
        name, epoch = region_name(region), Epoch(asked.epoch)
        with stores.opened(store) as opened:
            opened.handle(name, InEpoch(epoch=epoch, command=command))
            return _answer(region=_brief(shown_region(*look(opened, name))))

    @routes.post("/checkpoints")
    def drain(store: str, region: str, asked: Asked, user: GetUserDep) -> JSONResponse:
        """Request a checkpoint now, as `kcr region drain`."""
        command = RequestCheckpoint(
            request_id=RequestId(f"drain:{uuid.uuid4()}"),
            purpose=CheckpointPurpose.DRAIN,
            requester=Requester(who=user.get_name(), reason=asked.reason.strip()),
        )
        return handle(store, region, asked, command)

    @routes.post("/checkpoints/{sequence}/pin")
    def pin(store: str, region: str, sequence: int, asked: AskedPin, user: GetUserDep) -> JSONResponse:
        """Pin a checkpoint, or unpin it with an empty label."""
        number = CheckpointNumber(sequence)
        pin = PinCheckpoint(
            sequence=number, label=asked.label.strip(), reason=asked.reason.strip(), who=user.get_name()
        )
        return handle(store, region, asked, pin)

    @routes.post("/plan")
    def plan(store: str, region: str, asked: AskedPlan, user: GetUserDep) -> JSONResponse:
        """What a reset would do, with its worst partitions; changes nothing."""
        with stores.region(store, region, Requester(who=user.get_name())) as lent:
            request = lent.resets.request(
                asked.target.replace("_", "-"), asked.value,
                groups=asked.groups, topics=asked.topics, skip=asked.skip, timezone=asked.timezone,
            )  # fmt: skip
            request = replace(request, forward=asked.forward, allow_partial=asked.allow_partial, forced=asked.forced)
            found = lent.resets.plan(request)
        return _answer(plan=found.summary(), moves=found.moves, notes=found.heading())

    @routes.post("/verbs/{verb}")
    def steer(
        store: str, region: str, verb: Annotated[str, Path()], asked: AskedVerb, user: GetUserDep
    ) -> JSONResponse:
        """Start, resume, pause, stop or kill the region."""
        if verb not in VERBS:
            raise HTTPException(404, f"there is no verb {verb}; there are {', '.join(VERBS)}")
        if verb == verbs.KILL.name and asked.name != region:
            raise HTTPException(422, f"to kill a region, type its name: {region}")
        requester = Requester(who=user.get_name(), reason=asked.reason.strip())
        return handle(store, region, asked, VERBS[verb].command(requester))

    @routes.post("/checkpoints/{sequence}/recomputation")
    def recomputation(store: str, region: str, sequence: int, asked: Asked) -> JSONResponse:
        """What a recomputation of a checkpoint would do; a DAG of the region carries it out."""
        with stores.opened(store) as opened:
            opened.read(region_name(region))[0].require_epoch(Epoch(asked.epoch))
            lent = Region(region, opened, clusters=stores.clusters)
            return _answer(plan=lent.recompute(sequence).plan())


def _ask_kafka(routes: APIRouter, stores: Stores) -> None:
    """What Kafka is asked: by users who may change the region, as it connects to Kafka with the region's settings."""

    @routes.post("/validation")
    def validation(store: str, region: str) -> JSONResponse:
        """The answer of `kcr group validate`; changes nothing."""
        with stores.opened(store) as opened:
            found = validate(opened, region_name(region), stores.clusters)
        return _answer(checks=[CHECK.document(check) for check in found.checks])

    @routes.post("/checkpoints/{sequence}/comparison")
    def comparison(store: str, region: str, sequence: int) -> JSONResponse:
        """The answer of `kcr checkpoint compare`, differences first; changes nothing."""
        with stores.region(store, region) as lent:
            found = lent.checkpoints.compare(sequence)
        rows = sorted(found, key=lambda one: one.finding is CommitFinding.EQUAL)
        different = sum(one.finding is not CommitFinding.EQUAL for one in found)
        return _answer(comparison=rows[:PAGE], total=len(rows), different=different)
