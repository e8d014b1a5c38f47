"""The JSON of each answer, to the byte: names, their order, and how values are written.

A change to `answers.jsonl` is one that programs which read the commands' JSON have to follow.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final, Protocol

import pytest

from airflow_kcr.api.checkpoints import CheckpointRequestView, CheckpointSummary, CheckpointView, Reach
from airflow_kcr.api.ledger import Fate, RecordStart, RecordView, Repetition
from airflow_kcr.api.partitions import Comparison, Lag
from airflow_kcr.api.regions import Applied, Change
from airflow_kcr.api.reset_plans import PlanLine, PlanView, ResetRequest, Totals
from airflow_kcr.api.reset_views import ResetView
from airflow_kcr.api.verdict import Verdict
from airflow_kcr.api.views import GroupView, MemberView, RegionSummary, RegionView
from airflow_kcr.ports import Replayed
from airflow_kcr.protocol.invariants.accounting import OffsetDelivery, Redelivery
from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.member.state import State
from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.liveness import Liveness, Rule, Wait
from airflow_kcr.protocol.region.rows import (
    Absence,
    Checkpoint,
    CheckpointPurpose,
    CheckpointRequest,
    CheckpointState,
    Committed,
    Outcome,
    PersonReset,
    PersonResetState,
    Requester,
    RequestState,
    ResetAttempt,
    ResetCause,
    ResetState,
)
from airflow_kcr.protocol.rules import Assignor, GroupProtocol, UpsertSink
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.targets import ToDatetime
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
    RegionName,
    RequestId,
    Timeline,
    TopicName,
    TopicPartition,
)
from airflow_kcr.spec import Difference, TakesEffect


class Document(Protocol):
    def to_json(self) -> dict[str, object]: ...


ETL: Final = GroupId("flights-etl")
FLIGHTS: Final = TopicName("flights")
P2: Final = GroupPartition(ETL, FLIGHTS, 2)
SIX: Final = datetime(2026, 1, 1, 7, tzinfo=timezone(timedelta(hours=1)))
"""Written in UTC, whatever its zone."""

RUN: Final = Requester(who="me", dag_id="flights_checkpoint", run_id="manual__1", reason="why")
MEMBER: Final = MemberId(ETL, 1)
VIOLATION: Final = Violation(invariant="R5", detail="offsets went back", events=(EventNumber(7), EventNumber(9)))
LIVENESS: Final = Liveness(
    waits=(Wait(rule=Rule.BATCH, since=SIX, what="a consumer", until=SIX + timedelta(minutes=1), group=ETL),), now=SIX
)
ROW: Final = Checkpoint(
    sequence=CheckpointNumber(4),
    timeline=Timeline(1),
    epoch=Epoch(3),
    state=CheckpointState.PUBLISHED,
    purpose=CheckpointPurpose.SCHEDULE,
    request_id=RequestId("n"),
    participants={MEMBER: Incarnation(1)},
    opened_at=SIX,
    boundary=SIX,
    inexact={P2: "equal timestamps"},
    committed=Committed.YES,
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
ATTEMPT: Final = ResetAttempt(
    epoch=Epoch(5),
    sequence=CheckpointNumber(6),
    timeline=Timeline(2),
    cause=ResetCause.PERSON,
    state=ResetState.DONE,
    started_at=SIX,
    done_at=SIX,
    detail="me",
)
REQUEST: Final = ResetRequest(
    target=ToDatetime(instant=SIX),
    scope=parse_scope(["flights-etl"], ["flights:2"]),
    skip=OffsetMap({P2: Offset(9)}),
)
LINE: Final = PlanLine(
    partition=P2, current=10, target=7, source="record", in_scope=True, asked=5, log_start=7, log_end=20
)
DELIVERY: Final = OffsetDelivery(
    batch=BatchId("b11"),
    member=MEMBER,
    incarnation=Incarnation(2),
    epoch=Epoch(3),
    timeline=Timeline(1),
    sequence=CheckpointNumber(4),
    started_after=EventNumber(8),
    outcome=Outcome.DONE,
)
START: Final = RecordStart(
    delivery=DELIVERY, started_at=SIX, finished_at=None, process="host 1", cause="", checkpoint=None, runs=(RUN,)
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
        absent=((P2, Absence(since=SIX, is_gone=True)),),
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
        request=CheckpointRequest(
            request_id=RequestId("n"),
            purpose=CheckpointPurpose.DRAIN,
            state=RequestState.ANSWERED,
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
            epoch=Epoch(5),
            cause=ResetCause.PERSON,
        ),
        detail="me",
    ),
    Verdict(
        region=RegionName("r"),
        checked_events=9,
        checked_batches=2,
        violations=(VIOLATION,),
        after=EventNumber(6),
    ),
    PlanView(
        plan="p",
        region="r",
        epoch=5,
        made_at=SIX,
        request=REQUEST,
        lines=(LINE,),
        totals=Totals(partitions=1, moved=1, replay=3, skip=0, clamped=1, unreachable=0),
        undoes=(5,),
        runs=(RUN,),
        ignored=(P2,),
        upserts=(UpsertSink(ETL, "out", "t"),),
        overtaken_at=SIX,
    ),
    ResetView(
        region="r",
        attempts=(ATTEMPT,),
        asked=PersonReset(
            request_id=RequestId("p"),
            target=REQUEST.target,
            scope=REQUEST.scope,
            state=PersonResetState.DONE,
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


WRITTEN: Final = Path(__file__).with_name("answers.jsonl")
"""A line for each answer: its class and its JSON."""


@pytest.mark.parametrize(
    ("answer", "line"),
    list(zip(PINNED, WRITTEN.read_text(encoding="utf-8").splitlines(), strict=True)),
    ids=[type(answer).__name__ for answer in PINNED],
)
def test_an_answer_is_written_as_before(answer: Document, line: str) -> None:
    assert json.dumps({type(answer).__name__: answer.to_json()}) == line
