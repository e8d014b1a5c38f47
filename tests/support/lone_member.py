"""One member's state machine without anything around it: a test feeds events and looks at what is wanted done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, overload

from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.member.messages import Effect
from airflow_kcr.protocol.member.state import MemberMachine, State
from airflow_kcr.protocol.member.step import step
from airflow_kcr.protocol.region import rows
from airflow_kcr.protocol.region.commands import Register
from airflow_kcr.protocol.region.view import MemberRegion
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
    CheckpointNumber,
    DesiredState,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    Offset,
    Range,
    RequestId,
    Timeline,
    TopicName,
)
from tests.support import answers
from tests.support.answers import ME
from tests.support.driver import BEGINNING

MINE = tuple(GroupPartition(GroupId("g"), TopicName("t"), n) for n in range(2))

PROCESS = Register(member=ME, token="t")

Kind = TypeVar("Kind")


def claims_of(
    partitions: Iterable[GroupPartition] = MINE,
    *,
    position: int = 0,
    resume: int = 0,
    epoch: int = 1,
    incarnation: int = 1,
) -> dict[GroupPartition, rows.Claim]:
    """Return claims of this member."""
    claim = rows.Claim(
        owner=ME,
        incarnation=Incarnation(incarnation),
        epoch=Epoch(epoch),
        resume=Offset(resume),
        position=Offset(position),
        started_to=Offset(position),
    )
    return dict.fromkeys(partitions, claim)


def view_of(claims: Mapping[GroupPartition, rows.Claim] | None = None, *, incarnation: int = 1) -> MemberRegion:
    """Return what a member of a running region sees."""
    return MemberRegion(
        counter=EventNumber(10),
        epoch=Epoch(1),
        timeline=Timeline(1),
        state=rows.RegionState.RUNNING,
        desired_state=DesiredState.RUNNING,
        next_sequence=CheckpointNumber(2),
        spec_digest="of its text",
        incarnation=Incarnation(incarnation),
        acknowledged=True,
        claims={} if claims is None else claims,
    )


def checkpoint_view(state: rows.CheckpointState, sequence: int = 2) -> rows.Checkpoint:
    """Return an open checkpoint that this member's first incarnation is among the participants of."""
    return rows.Checkpoint(
        sequence=CheckpointNumber(sequence),
        timeline=Timeline(1),
        epoch=Epoch(1),
        state=state,
        purpose=rows.CheckpointPurpose.REQUEST,
        request_id=RequestId("n"),
        participants={ME: Incarnation(1)},
        opened_at=BEGINNING,
    )


@dataclass(slots=True)
class LoneMember:
    """A member, its clock, and what it wanted last; what it asks of the store is shown as the command itself."""

    member: MemberMachine = field(default_factory=lambda: MemberMachine(process=PROCESS, timeouts=Timeouts()))
    now: float = 0.0
    last: tuple[Effect, ...] = ()
    all: list[Effect] = field(default_factory=list)

    @property
    def state(self) -> State:
        """The member's state."""
        return self.member.state

    @property
    def view(self) -> MemberRegion:
        """What it has read last."""
        assert self.member.view is not None
        return self.member.view

    def feed(self, *happened: messages.Event) -> tuple[Effect, ...]:
        """Let these events happen now, and return what is wanted after them."""
        wanted: list[Effect] = []
        for event in happened:
            self.member, effects = step(self.member, event, self.now)
            wanted.extend(effects)
        self.last = tuple(wanted)
        self.all.extend(wanted)
        return self.last

    def wait(self, seconds: float, *, renewing: bool = True) -> tuple[Effect, ...]:
        """Let time pass in steps of a second, the lease being renewed; return all that was wanted meanwhile."""
        wanted: list[Effect] = []
        while seconds > 0:
            self.now += min(1.0, seconds)
            seconds -= 1.0
            if renewing and self.member.incarnation is not None:
                counter = EventNumber(0) if self.member.view is None else self.member.view.counter
                wanted.extend(self.feed(answers.renewed(sent_at=self.now, counter=counter)))
            wanted.extend(self.feed(messages.Notice.TICK))
        self.last = tuple(wanted)
        return self.last

    @overload
    def wanted(self, kind: type[Kind]) -> list[Kind]: ...

    @overload
    def wanted(self, kind: messages.GroupRequest) -> list[messages.GroupRequest]: ...

    def wanted(self, kind: type[Kind] | messages.GroupRequest) -> list[Kind] | list[messages.GroupRequest]:
        """Return the effects of one kind that were wanted last, or the requests that are one."""
        if isinstance(kind, messages.GroupRequest):
            return [kind] * self.last.count(kind)
        found: list[Kind] = [e for e in self.last if isinstance(e, kind)]
        return found

    def join(self, incarnation: int = 1) -> LoneMember:
        """Register, and see a running region in which nothing is held yet."""
        self.feed(messages.Notice.TICK)
        self.feed(answers.registered(incarnation=Incarnation(incarnation), sent_at=self.now))
        self.feed(answers.view_read(view=view_of(incarnation=incarnation)))
        return self

    def assign(self, partitions: Iterable[GroupPartition] = MINE, assignment: int = 1) -> LoneMember:
        """Be assigned partitions by Kafka."""
        self.feed(messages.Assigned(assignment=AssignmentId(assignment), partitions=frozenset(partitions)))
        return self

    def grant(self, view: MemberRegion | None = None, assignment: int = 1) -> LoneMember:
        """Have the claim of an assignment granted."""
        seen = view or view_of(claims_of())
        self.feed(answers.claim_granted(assignment=AssignmentId(assignment), view=seen))
        return self

    def processing(self) -> LoneMember:
        """Join a running region and hold two partitions."""
        return self.join().assign().grant()

    def plan(self, batch: str = "b1", width: int = 10) -> LoneMember:
        """Have the planner answer with ranges from where the member is."""
        ranges = {p: Range(o, Offset(o + width)) for p, o in self.member.positions.items()}
        self.feed(messages.RangesPlanned(batch=BatchId(batch), ranges=ranges))
        return self

    def in_batch(self) -> LoneMember:
        """Be in the middle of a batch."""
        self.processing().plan()
        self.feed(answers.batch_started(batch=BatchId("b1"), ranges=dict.fromkeys(MINE, Range(Offset(0), Offset(10)))))
        return self

    def superseded(self) -> LoneMember:
        """Hear from the store that another process is this member now."""
        self.feed(answers.not_renewed(incarnation=Incarnation(self.member.memory.incarnation + 1)))
        return self

    def see(self, view: MemberRegion) -> LoneMember:
        """Read the region."""
        self.feed(answers.view_read(view=view))
        return self
