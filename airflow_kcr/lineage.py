"""What data catalogues are told: one OpenLineage event for each published checkpoint, revision and reset.

An event's run id is made of the region's id and of the numbers of what it is about: sent twice, it is the same run.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final
from uuid import NAMESPACE_URL, uuid5

import attr
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    RunFacet,
    dataset_version_dataset,
    job_type_job,
    nominal_time_run,
    parent_run,
)

from airflow_kcr import __version__
from airflow_kcr.api import Region as OpenedRegion
from airflow_kcr.api import ResetView
from airflow_kcr.api.clusters import client_settings
from airflow_kcr.api.regions import Handle
from airflow_kcr.errors import CheckpointNotUsable, KcrError, StoreError, UnknownRegion
from airflow_kcr.floods import unflooded
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.lookup import require_checkpoint
from airflow_kcr.protocol.region.rows import Checkpoint, Recomputation
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    EventNumber,
    GroupId,
    GroupPartition,
    Range,
    RegionName,
    format_instant,
)
from airflow_kcr.sinks.checkpoints import ranges_of
from airflow_kcr.sinks.contract import DeclaredSink
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.group import sinks_of_region
from airflow_kcr.spec import RegionSpec, stored_spec
from airflow_kcr.store.regions import RegionStore

DEADLINE: Final = 5.0
"""Seconds that a task or command waits for an event to be made and sent."""

PRODUCER: Final = f"urn:airflow-kcr:{__version__}"
SCHEMAS: Final = "urn:airflow-kcr:openlineage:1:"
"""What the identifiers of the facets' schemas begin with."""

READER: Final = "lineage"
"""Under which name the store keeps how far a feed has come."""

PAGE: Final = 1_000
"""Events of a region that a feed reads at once, and of how many a region has them sent that it meets first."""

REFUSALS: Final = frozenset({400, 413, 422})
"""Statuses of HTTP by which an end point says that it will never take an event."""

_LOG = logging.getLogger(__name__)
_AGAIN = unflooded(f"{__name__}.again")


@attr.define
class KcrCheckpointRunFacet(RunFacet):
    """What a checkpoint has; docs/reference/lineage.md describes each field."""

    region: str
    region_id: str
    timeline: int
    sequence: int
    revision: int
    boundary: str | None
    inexact: bool
    digest: str
    ranges: object
    replaces: str | None
    _additional_skip_redact: ClassVar[list[str]] = ["ranges"]

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMAS}KcrCheckpointRunFacet"


@attr.define
class KcrResetRunFacet(RunFacet):
    """What a reset has undone; docs/reference/lineage.md describes each field."""

    region: str
    region_id: str
    timeline: int
    epoch: int
    cause: str
    undone: list[dict[str, object]]

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMAS}KcrResetRunFacet"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventContext:
    """On whose behalf events are sent.

    Args:
        namespace: of the jobs.
        parent: the run that has caused it.
        environ: where references of the spec are looked up.
    """

    namespace: str
    parent: parent_run.ParentRunFacet | None
    environ: Mapping[str, str]


def run_id(region: Region, row: Checkpoint, revision: int | None = None) -> str | None:
    """Return the run that has made the output of a checkpoint; None: which attempt has is not known any more.

    A store that was restored gives the number of a revision away a second time, so the attempt's token is part of it.

    Args:
        region: the checkpoint's.
        row: the checkpoint.
        revision: of its output; None: the newest.
    """
    number = row.revision if revision is None else revision
    if number == 0:
        return _uuid(region, row.timeline, row.sequence, 0)
    made = _attempt(row, number)
    return None if made is None else _uuid(region, row.timeline, row.sequence, number, made.token)


def of_checkpoint(handle: Handle, sequence: int, context: EventContext, revision: int | None = None) -> RunEvent:
    """Return the event of a published checkpoint, or of a revision of it.

    Args:
        handle: the region.
        sequence: the checkpoint's.
        context: on whose behalf it is sent.
        revision: 0: of its publication; None: the newest.

    Raises:
        KcrError: the store is away, or has no such checkpoint or revision.
    """
    region = handle.read()
    row = require_checkpoint(region, CheckpointNumber(sequence))
    spec = stored_spec(region.spec.text)
    number = row.revision if revision is None else revision
    made, run = _attempt(row, number), run_id(region, row, number)
    at = row.published_at if made is None else made.finished_at
    if at is None or run is None:
        what = "not published" if number == 0 else f"not known to have a revision {number}"
        raise CheckpointNotUsable(f"checkpoint {row.sequence} of region {region.name} is {what}")
    facets: dict[str, RunFacet] = {
        "kcr_checkpoint": KcrCheckpointRunFacet(
            region=region.name,
            region_id=region.region_id,
            timeline=row.timeline,
            sequence=row.sequence,
            revision=number,
            boundary=None if row.boundary is None else format_instant(row.boundary),
            inexact=bool(row.inexact),
            digest=row.digest,
            ranges=documents.write(_ranges(handle, spec, row), Mapping[GroupPartition, tuple[Range, ...]]),
            replaces=run_id(region, row, number - 1) if number else None,
            producer=PRODUCER,
        )
    }
    if row.boundary is not None:
        before = None if row.previous is None else region.archive.checkpoint(row.previous)
        start = row.boundary if before is None or before.boundary is None else before.boundary
        facets["nominalTime"] = nominal_time_run.NominalTimeRunFacet(
            nominalStartTime=format_instant(start), nominalEndTime=format_instant(row.boundary), producer=PRODUCER
        )
    return _event(
        "checkpoint",
        region,
        context,
        run=run,
        at=at,
        facets=facets,
        inputs=_inputs(region, spec, context.environ),
        outputs=_outputs(region, spec, context.environ, row if number == row.revision else None),
    )


def of_reset(handle: Handle, reset: ResetView, context: EventContext) -> RunEvent:
    """Return the event of a reset that is done; its outputs are where what it has undone was.

    Args:
        handle: the region.
        reset: one with an attempt.
        context: on whose behalf it is sent.

    Raises:
        KcrError: the store is away.
    """
    region, last = handle.read(), reset.attempts[-1]
    rows = (region.archive.checkpoint(sequence) for sequence in reset.undone)
    facet = KcrResetRunFacet(
        region=region.name,
        region_id=region.region_id,
        timeline=last.timeline,
        epoch=last.epoch,
        cause=reset.cause,
        undone=[{"sequence": int(row.sequence), "run_id": run_id(region, row)} for row in rows if row is not None],
        producer=PRODUCER,
    )
    spec = stored_spec(region.spec.text)
    return _event(
        "reset",
        region,
        context,
        run=_uuid(region, "reset", last.epoch),
        at=reset.finished_at or last.started_at,
        facets={"kcr_reset": facet},
        outputs=_outputs(region, spec, context.environ),
    )


def _attempt(row: Checkpoint, revision: int) -> Recomputation | None:
    """Return the recomputation that has made a revision; None: it is the publication, or not known any more."""
    return next((one for one in row.recomputations if one.revision and one.revision == revision), None)


def _uuid(region: Region, *numbers: object) -> str:
    return str(uuid5(NAMESPACE_URL, f"urn:airflow-kcr:{region.region_id}:{':'.join(map(str, numbers))}"))


def _event(
    job: str,
    region: Region,
    context: EventContext,
    *,
    run: str,
    at: datetime,
    facets: Mapping[str, RunFacet],
    inputs: Iterable[InputDataset] = (),
    outputs: Iterable[OutputDataset],
) -> RunEvent:
    parent = {} if context.parent is None else {"parent": context.parent}
    kind = job_type_job.JobTypeJobFacet(
        processingType="BATCH", integration="KCR", jobType=job.upper(), producer=PRODUCER
    )
    return RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=format_instant(at),  # as recorded: a repeated event has the same
        run=Run(runId=run, facets={**facets, **parent}),
        job=Job(namespace=context.namespace, name=f"{region.name}.{job}", facets={"jobType": kind}),
        inputs=list(inputs),
        outputs=list(outputs),
        producer=PRODUCER,
    )


def _ranges(handle: Handle, spec: RegionSpec, row: Checkpoint) -> dict[GroupPartition, tuple[Range, ...]]:
    ledger = RegionLedger(handle.store, handle.name)
    return {
        GroupPartition(GroupId(group.group_id), *place): ranges
        for group in spec.groups
        for place, ranges in ranges_of(ledger.contents(row.sequence, GroupId(group.group_id)).batches).items()
    }


def _inputs(region: Region, spec: RegionSpec, environ: Mapping[str, str]) -> Iterator[InputDataset]:
    """Yield the topics, each once for a cluster; a cluster whose settings are not known here is left out."""
    found: set[tuple[str, str]] = set()
    for group in spec.groups:
        try:
            servers = client_settings(spec, GroupId(group.group_id), environ)["bootstrap.servers"]
        except KcrError as error:
            _AGAIN.warning("lineage leaves out the topics of group %s: %s", group.group_id, error)
            continue
        host = servers.partition(",")[0].rpartition("://")[2].strip()
        host = host if host.rpartition(":")[2].isdecimal() else f"{host}:9092"
        found |= {(host, claimed.topic) for claimed in region.claims if claimed.group == group.group_id}
    for host, topic in sorted(found):
        yield InputDataset(namespace=f"kafka://{host}", name=topic)


def _outputs(
    region: Region,
    spec: RegionSpec,
    environ: Mapping[str, str],
    row: Checkpoint | None = None,
) -> Iterator[OutputDataset]:
    """Yield the places of the sinks that have a name; one that is not known here is left out."""
    for sink in sinks_of_region(spec, environ, region_id=region.region_id):
        try:
            found = sink.dataset()
        except KcrError as error:
            _AGAIN.warning("lineage leaves out %s: %s", sink.owner.name, error)
            continue
        if found is not None:
            yield OutputDataset(namespace=found.namespace, name=found.name, facets=_version(sink, row))


def _version(sink: DeclaredSink, row: Checkpoint | None) -> dict[str, DatasetFacet]:
    name = "" if row is None else sink.version(row)
    if not name:
        return {}
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=name, producer=PRODUCER)}


# Sending


def send_within(make: Callable[[], RunEvent], send: Callable[[RunEvent], None], what: str) -> None:
    """Make an event and send it; what fails or takes too long is one line in the log, and changes nothing.

    Args:
        make: makes the event.
        send: sends it.
        what: the event, for the log.
    """

    def work() -> None:
        try:
            send(make())
        except Exception as error:  # noqa: BLE001 (a catalogue is never worth a task)
            report_unsent(what, error)

    # A thread of ours: one of a pool would be waited for as the process ends.
    thread = threading.Thread(target=work, name="kcr-lineage", daemon=True)
    thread.start()
    thread.join(DEADLINE)
    if thread.is_alive():
        _LOG.warning("the lineage of %s was not sent within %g s; going on without", what, DEADLINE)


def report_unsent(what: str, error: Exception) -> None:
    """Say in one line that an event was not sent; the error's own words may hold the key of the endpoint."""
    _LOG.warning("the lineage of %s was not sent: %s", what, type(error).__name__)


def context_of_process(environ: Mapping[str, str] = os.environ) -> EventContext:
    """Return the context that the environment names: `OPENLINEAGE_NAMESPACE`, `OPENLINEAGE_PARENT_ID`."""
    names = environ.get("OPENLINEAGE_PARENT_ID", "").rsplit("/", 2)
    parent = None
    if len(names) == 3:
        job = parent_run.Job(namespace=names[0], name=names[1])
        parent = parent_run.ParentRunFacet(run=parent_run.Run(runId=names[2]), job=job, producer=PRODUCER)
    return EventContext(namespace=environ.get("OPENLINEAGE_NAMESPACE", "default"), parent=parent, environ=environ)


def send_by_client(event: RunEvent) -> None:
    """Send an event to where the client's own configuration says."""
    from openlineage.client import OpenLineageClient

    client = OpenLineageClient()
    try:
        client.emit(event)
    finally:
        client.close()


class Feed:
    """Sends what happens in all regions of a store, in its order, each event until it is taken.

    The store keeps how far it has come, so an end point or a process that was away has all of it later: of what
    happened once, twice or after a restart, the event is the same. What a DAG run has asked for is left to its task.

    Args:
        store: where the regions are.
        context: on whose behalf events are sent.
        send: sends one, and raises if it was not taken.
    """

    def __init__(self, store: RegionStore, context: EventContext, send: Callable[[RunEvent], None]) -> None:
        self._store, self._context, self._send = store, context, send

    def catch_up(self) -> None:
        """Send what was not sent yet; what fails is one line in the log, and is tried again the next time."""
        try:
            for name in self._store.names():
                with suppress(UnknownRegion):  # deleted meanwhile
                    self._catch_up(name)
        except KcrError as error:
            _AGAIN.warning("lineage waits for the store: %s", error)
        except Exception as error:  # noqa: BLE001 (its own words may hold the key of the end point)
            _AGAIN.warning("lineage waits for its end point, and is sent later: %s", type(error).__name__)

    def _catch_up(self, name: RegionName) -> None:
        region = OpenedRegion(name, self._store)
        after = self._store.event_position(name, READER)
        if after is None:
            after = EventNumber(max(region.read().counter - PAGE, 0))
        while page := self._store.events(name, after, PAGE):
            for event in page:
                made = self._made(region, event.body)
                if made is not None:
                    self._deliver(made, name)
                    self._store.keep_event_position(name, READER, event.number)
            after = page[-1].number
            self._store.keep_event_position(name, READER, after)

    def _deliver(self, made: RunEvent, name: RegionName) -> None:
        try:
            self._send(made)
        except Exception as error:
            if getattr(getattr(error, "response", None), "status_code", None) not in REFUSALS:
                raise
            report_unsent(f"region {name}, run {made.run.runId},", error)

    def _made(self, region: OpenedRegion, body: events.Body) -> RunEvent | None:
        try:
            match body:
                case events.CheckpointPublished():
                    is_ours = not region.read().archive.requests_for([body.sequence])
                    return of_checkpoint(region, body.sequence, self._context, revision=0) if is_ours else None
                case events.CheckpointRecomputed():
                    return self._of_recomputation(region, body)
                case events.ResetDone():
                    reset = region.resets.show(str(body.sequence))
                    is_ours = reset.asked is not None and not reset.requester.dag_id
                    return of_reset(region, reset, self._context) if is_ours else None
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 (one that can't be made must not keep the others)
            report_unsent(f"{type(body).__name__} in region {region.name}", error)
        return None

    def _of_recomputation(self, region: OpenedRegion, body: events.CheckpointRecomputed) -> RunEvent | None:
        row = require_checkpoint(region.read(), body.sequence)
        made = next((one for one in row.recomputations if one.number == body.number and one.revision), None)
        if made is None or made.requester.dag_id:
            return None
        return of_checkpoint(region, body.sequence, self._context, made.revision)
