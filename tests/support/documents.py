"""Documents of every kind that leaves the process, made of fixed values; `tests/unit/golden` has each to the byte.

A change to `answers.jsonl` is one that programs which read the commands' JSON have to follow. Where a change is meant,
`python -m tests.support.documents` writes the files anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, NewType, Protocol, Union, get_args, get_origin, get_type_hints

from airflow_kcr.api.checkpoints import CheckpointRequestView, CheckpointSummary, CheckpointView, Reach
from airflow_kcr.api.ledger import Fate, RecordStart, RecordView, Repetition, event_to_json
from airflow_kcr.api.partitions import Comparison, Lag
from airflow_kcr.api.reset_views import ResetView
from airflow_kcr.api.specs import Applied, Change
from airflow_kcr.api.verdict import Verdict
from airflow_kcr.api.views import GroupView, MemberView, RegionSummary, RegionView
from airflow_kcr.goals import (
    CheckpointCommitted,
    CheckpointExists,
    MembersEnded,
    Reaching,
    RegionReaches,
    RequestPublished,
    ResetFinished,
    WaitingFor,
)
from airflow_kcr.hooks.checkpoints import PublishedCheckpoint
from airflow_kcr.protocol import documents, targets
from airflow_kcr.protocol.invariants.accounting import Redelivery
from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.member.state import State
from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region import rows
from airflow_kcr.protocol.region.events import BODIES, Event, ResetBegun
from airflow_kcr.protocol.region.liveness import Liveness
from airflow_kcr.protocol.region.plans import Plan, Totals
from airflow_kcr.protocol.region.waits import Rule, Wait
from airflow_kcr.protocol.rules import Assignor, GroupProtocol, UpsertSink
from airflow_kcr.protocol.scopes import EVERYTHING, Scope, parse_scope
from airflow_kcr.protocol.target_resolution import PlanLine
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RegionId,
    RegionName,
    RequestId,
    Timeline,
    TopicId,
    TopicName,
    TopicPartition,
)
from airflow_kcr.runtime.leases import CommitNote
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.files.layout import BatchList, ColumnType, DataFile, Manifest, Marker, Retired, Timelines, Undone
from airflow_kcr.spec import Difference, TakesEffect
from airflow_kcr.store.regions import Replayed
from airflow_kcr.triggers.payloads import LagBelow, MembershipHealthy, Progresses, Status, TriggerAnswer


class Document(Protocol):
    def to_json(self) -> Mapping[str, object]: ...


ETL: Final = GroupId("flights-etl")
FLIGHTS: Final = TopicName("flights")
P2: Final = GroupPartition(ETL, FLIGHTS, 2)
SIX: Final = datetime(2026, 1, 1, 7, tzinfo=timezone(timedelta(hours=1)))
"""Written in UTC, whatever its zone."""

RUN: Final = rows.Requester(who="me", dag_id="flights_checkpoint", run_id="manual__1", reason="why")
MEMBER: Final = MemberId(ETL, 1)
VIOLATION: Final = Violation(invariant="R5", detail="offsets went back", events=(EventNumber(7), EventNumber(9)))
LIVENESS: Final = Liveness(
    waits=(Wait(rule=Rule.BATCH, since=SIX, what="a consumer", until=SIX + timedelta(minutes=1), group=ETL),), now=SIX
)
ROW: Final = rows.Checkpoint(
    sequence=CheckpointNumber(4),
    timeline=Timeline(1),
    epoch=Epoch(3),
    state=rows.CheckpointState.PUBLISHED,
    purpose=rows.CheckpointPurpose.SCHEDULE,
    request_id=RequestId("n"),
    participants={MEMBER: Incarnation(1)},
    opened_at=SIX,
    boundary=SIX,
    inexact={P2: "equal timestamps"},
    committed=rows.Committed.YES,
    finished_at=SIX,
    published_at=SIX,
    pinned_as="release",
)
SHOWN: Final = MemberView(
    member=MEMBER,
    incarnation=2,
    state=State.PROCESSING,
    alive=True,
    partitions=(TopicPartition(FLIGHTS, 2),),
    label="host 1",
    version="0.1",
)
ATTEMPT: Final = rows.ResetAttempt(
    epoch=Epoch(5),
    sequence=CheckpointNumber(6),
    timeline=Timeline(2),
    cause=rows.ResetCause.PERSON,
    state=rows.ResetState.DONE,
    started_at=SIX,
    done_at=SIX,
    detail="me",
)
REQUEST: Final = rows.ResetRequest(
    target=targets.ToDatetime(instant=SIX),
    scope=parse_scope(["flights-etl"], ["flights:2"]),
    skip=OffsetMap({P2: Offset(9)}),
)
LINE: Final = PlanLine(
    partition=P2,
    current=Offset(10),
    target=Offset(7),
    source=SeekSource.EXPLICIT,
    asked=5,
    log_start=Offset(7),
    log_end=Offset(20),
)
BATCH: Final = rows.Batch(
    batch=BatchId("b11"),
    member=MEMBER,
    incarnation=Incarnation(2),
    epoch=Epoch(3),
    timeline=Timeline(1),
    sequence=CheckpointNumber(4),
    ranges={P2: Range(Offset(7), Offset(10))},
    started_at=SIX,
    started_after=EventNumber(8),
    outcome=rows.Outcome.DONE,
)
START: Final = RecordStart(
    batch=BATCH, outcome=rows.Outcome.DONE, process="host 1", cause="", checkpoint=None, runs=(RUN,)
)
PINNED: Final[tuple[Document, ...]] = (
    Applied(
        region="r", change=Change.CHANGED, differences=(Difference("groups[g].members", TakesEffect.NEXT_CHECKPOINT),)
    ),
    SHOWN,
    RegionSummary(
        region="r",
        state="running",
        desired_state="running",
        epoch=3,
        timeline=1,
        last_complete=4,
        next_boundary=SIX,
        members=2,
        alive=1,
        liveness=LIVENESS,
        overdue=timedelta(seconds=61, milliseconds=900),
    ),
    RegionView(
        region_id="id of r",
        region="r",
        state="running",
        desired_state="running",
        epoch=3,
        timeline=1,
        next_sequence=5,
        restore_point=4,
        last_complete=4,
        next_boundary=None,
        members=2,
        alive=1,
        groups=(GroupView(group_id=ETL, protocol=GroupProtocol.CONSUMER, assignor=Assignor.UNIFORM, members=(SHOWN,)),),
        liveness=LIVENESS,
        unowned=((P2, SIX),),
        absent=((P2, rows.Absence(since=SIX, is_gone=True)),),
        foreign_consumers=(ForeignConsumer(group=ETL, client_id="c", host="/10.0.0.1"),),
        note="see",
    ),
    CheckpointSummary(checkpoint=ROW, kept="pinned", reach=Reach(lost=(P2,), overtaken_at=SIX)),
    CheckpointView(
        region="r",
        checkpoint=ROW,
        requester=RUN,
        offsets=OffsetMap({P2: Offset(10)}),
        read_backs=OffsetMap({P2: Offset(10)}),
    ),
    CheckpointRequestView(
        region="r",
        request=rows.CheckpointRequest(
            request_id=RequestId("n"),
            purpose=rows.CheckpointPurpose.DRAIN,
            state=rows.RequestState.ANSWERED,
            requested_at=SIX,
            order=1,
            boundary=SIX,
            sequence=CheckpointNumber(4),
        ),
        checkpoint=ROW,
    ),
    Lag(partition=P2, position=10, committed=9, log_start=0, log_end=20, member=MEMBER),
    Comparison(partition=P2, offset=10, committed=9, log_start=0, log_end=20),
    RecordView(partition=P2, offset=Offset(9), fate=Fate.PROCESSED, starts=(START,)),
    Repetition(
        redelivery=Redelivery(
            partition=P2,
            range=Range(Offset(7), Offset(10)),
            batch=BatchId("b12"),
            earlier=(BatchId("b11"),),
            reset=ResetBegun(
                epoch=Epoch(5),
                sequence=CheckpointNumber(4),
                timeline=Timeline(2),
                cause=rows.ResetCause.PERSON,
                attempt=1,
                restore_point=None,
                seek=SeekMap({}),
                undoes=(),
                person=None,
                detail="me",
            ),
        ),
    ),
    Verdict(
        region=RegionName("r"),
        checked_events=9,
        checked_batches=2,
        violations=(VIOLATION,),
        after=EventNumber(6),
    ),
    Plan(
        plan=RequestId("p"),
        region=RegionName("r"),
        region_id=RegionId("1"),
        epoch=Epoch(5),
        made_at=SIX,
        request=REQUEST,
        requester=rows.Requester(who="me"),
        entries=(LINE,),
        totals=Totals(partitions=1, moved=1, replay=3, skip=0, clamped=1, unreachable=0),
        undoes=(CheckpointNumber(5),),
        runs=(RUN,),
        ignored=(P2,),
        upserts=(UpsertSink(ETL, "out", "t"),),
        overtaken_at=SIX,
    ),
    ResetView(
        region="r",
        attempts=(ATTEMPT,),
        asked=rows.PersonReset(
            request_id=RequestId("p"),
            target=REQUEST.target,
            scope=REQUEST.scope,
            state=rows.PersonResetState.DONE,
            requester=RUN,
            requested_at=SIX,
            order=2,
            skip=REQUEST.skip,
            finished_at=SIX,
        ),
        undone=(CheckpointNumber(5),),
        counted=Replayed(rewound=3, replayed=2),
    ),
)


OFFSETS: Final = OffsetMap({P2: Offset(9), P2._replace(partition=3): Offset(2**63 - 1)})
ENTRY: Final = SeekEntry(
    offset=Offset(7),
    source=SeekSource.EXPLICIT,
    current=Offset(9),
    clamped_from=-3,
    recreated=TopicId("old"),
)
TARGETS: Final[tuple[targets.Target, ...]] = (
    targets.ToCheckpoint(sequence=CheckpointNumber(12)),
    targets.ToInitial(),
    targets.ToRun(dag_id="hourly", run_id="manual__1/2"),
    targets.ToEarliest(),
    targets.ToLatest(),
    targets.ToDatetime(instant=SIX),
    targets.ByDuration(back=timedelta(days=1, hours=6)),
    targets.ShiftBy(by=-10),
    targets.ToOffset(offset=Offset(7)),
    targets.ToCurrent(),
    targets.FromFile(entries=OFFSETS),
)
SCOPES: Final = (
    EVERYTHING,
    parse_scope(["b", "a"], ["flights:2,0", "weather"]),
    replace(EVERYTHING, planned=frozenset(OFFSETS)),
)
WAITS: Final[tuple[WaitingFor, ...]] = (
    RequestPublished(request_id=RequestId("flights_checkpoint/manual__1/drain/-1")),
    CheckpointCommitted(sequence=CheckpointNumber(7)),
    CheckpointExists(boundary=datetime(2026, 1, 1, 1, tzinfo=UTC)),
    CheckpointExists(sequence=CheckpointNumber(7)),
    RegionReaches(state=Reaching.PAUSED),
    Progresses(),
    ResetFinished(request_id=RequestId("plan-1")),
    MembersEnded(group=GroupId("g"), indexes=(0, 1), before=(3, 0)),
    MembershipHealthy(),
    MembershipHealthy(groups=("a", "b")),
    LagBelow(records=100),
)
OWNER: Final = SinkOwner(region=RegionName("r"), region_id=RegionId("id"), group=GroupId("g"), sink="out")
FILE: Final = DataFile(path="data/0000000/000001.0000000004/b-3/part-0.parquet", bytes=12)
FILES: Final = (
    Marker(owner=OWNER, since=1, layout=2),
    ColumnType(column="a.b", type="integer"),
    BatchList(batch=BatchId("b"), schema="{}", files=(FILE, DataFile(path="p", bytes=0, schema=1))),
    Manifest(
        owner=OWNER,
        timeline=1,
        sequence=4,
        digest="d",
        boundary=None,
        previous="000001.0000000003",
        batches=("b",),
        schemas=("{}",),
        files=(FILE,),
    ),
    Timelines(timeline=2, undone=(Undone(2, 5, 6),)),
    Retired(digest="d", batches=("b",), schemas=("{}",)),
)
NOTE: Final = CommitNote(
    region=RegionName("r"),
    region_id=RegionId("id"),
    timeline=Timeline(1),
    sequence=CheckpointNumber(4),
    epoch=Epoch(3),
)


def sample(hint: object) -> Any:  # noqa: ANN401 (of the type that the hint names)
    """Return one value of a type, the same each time, with no field at its default."""
    plain = hint.__supertype__ if isinstance(hint, NewType) else hint
    known: dict[object, object] = {
        str: "text",
        int: 7,
        bool: True,
        datetime: SIX,
        timedelta: timedelta(minutes=90),
        OffsetMap: OFFSETS,
        SeekMap: SeekMap({P2: ENTRY}),
        GroupPartition: P2,
        MemberId: MEMBER,
        Scope: SCOPES[1],
        targets.Target: TARGETS[0],
    }
    if plain in known:
        return known[plain]
    arguments = [a for a in get_args(plain) if a not in {NoneType, ...}]
    match get_origin(plain):
        case None:
            pass
        case origin if origin in {Union, UnionType}:
            return sample(arguments[0])
        case origin if origin is Mapping:
            return {sample(arguments[0]): sample(arguments[1])}
        case origin:
            return origin([sample(arguments[0])])
    if isinstance(plain, type) and issubclass(plain, Enum):
        return list(plain)[-1]
    assert isinstance(plain, type)
    assert is_dataclass(plain)
    hints = get_type_hints(plain)
    return plain(**{field.name: sample(hints[field.name]) for field in fields(plain)})


def _lines() -> Iterator[tuple[str, str, object]]:
    """Yield documents, each with the name of its file and of its class."""
    for answer in PINNED:
        yield "answers", type(answer).__name__, answer.to_json()
    for kind, body in sorted(BODIES.items()):
        event = Event(number=EventNumber(1), at=SIX, epoch=Epoch(3), timeline=Timeline(1), body=sample(body))
        yield "events", kind, documents.write(event.body, body)
        yield "shown_events", kind, event_to_json(event)
    for row in (
        rows.PersonReset,
        rows.Checkpoint,
        rows.ResetAttempt,
        rows.CheckpointRequest,
        rows.Halt,
        rows.StartFailure,
    ):
        yield "rows", row.__name__, documents.write(sample(row), row)
    for target in TARGETS:
        yield "targets", type(target).__name__, documents.write(target, targets.Target)
    for scope in SCOPES:
        yield "targets", "Scope", documents.write(scope, Scope)
    for wait in WAITS:
        yield "triggers", type(wait).__name__, wait.to_json()
    for status in Status:
        yield "triggers", "TriggerAnswer", TriggerAnswer(status=status, detail="g[1] is late").to_json()
    plan = next(answer for answer in PINNED if isinstance(answer, Plan))
    forced = replace(plan.request, forced=True, consent_upsert=True)
    for one in (plan, replace(plan, requester=RUN, request=forced)):
        yield "xcom", "Plan", one.summary() | {"digest": one.digest}
    published = PublishedCheckpoint(region="r", region_id="id", timeline=1, sequence=4, boundary=None, digest="d")
    yield "xcom", "PublishedCheckpoint", published.to_json()
    for file in FILES:
        yield "files", type(file).__name__, file.text()
    yield "note", "CommitNote", NOTE.text()


def golden() -> dict[str, str]:
    """Return the text of each file, a line for each document: its class and its JSON."""
    texts: dict[str, str] = {}
    for file, name, document in _lines():
        texts[file] = texts.get(file, "") + json.dumps({name: document}, ensure_ascii=False) + "\n"
    return texts


GOLDEN: Final = Path(__file__).parents[1] / "unit" / "golden"

if __name__ == "__main__":
    for name, text in golden().items():
        (GOLDEN / f"{name}.jsonl").write_text(text, encoding="utf-8")
