"""A region's history, and what it says about every moment: the ground on which the invariants stand.

A **history** is the events of a region, in commit order, and the batch rows of its ledger; nothing else is ever looked
at. A batch row is no event: `begun_after` and `ended_after` are event numbers, so a batch lies between two transitions.
The index holds what each transition changed, as timelines, so that a check can ask what was true when.

An index is built from the words of the invariants alone, not with the rules that decided: a check that used
the same code would agree with its mistakes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.events import (
    Contributed,
    CutCompleted,
    CutOpened,
    Event,
    ResetBegun,
)
from airflow_kcr.protocol.region.rows import Batch, RegionState
from airflow_kcr.protocol.scopes import Scope
from airflow_kcr.protocol.seek_map import SeekEntry
from airflow_kcr.protocol.values import (
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    Lineage,
    MemberId,
    Nonce,
    Offset,
    Range,
    TopicId,
)
from airflow_kcr.protocol.values import Sequence as CutSequence

T = TypeVar("T")

NEVER = EventNumber(2**63 - 1)
"""Later than every event."""


@dataclass(frozen=True, slots=True)
class History:
    """What happened to one region.

    Both have to be read in one snapshot of the store: a batch that ended after the events were read would look like
    records that nobody processed.
    """

    events: Sequence[Event]
    """From the first one on, in the order of their numbers."""

    batches: Sequence[Batch]


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """An invariant does not hold."""

    invariant: str
    """Its number in docs/reference/invariants.md, such as R5."""

    detail: str
    """What is wrong, in a sentence."""

    events: tuple[EventNumber, ...]
    """The transitions that contradict each other, or between which a batch contradicts them."""


class Timeline(Generic[T]):
    """A value over time: which one holds after which event."""

    __slots__ = ("_numbers", "_values")

    def __init__(self, first: T) -> None:
        self._numbers: list[EventNumber] = [EventNumber(0)]
        self._values: list[T] = [first]

    def put(self, number: EventNumber, value: T) -> None:
        """Note that `value` holds from event `number` on; numbers come in ascending order."""
        if value == self._values[-1]:
            return
        if number == self._numbers[-1]:
            self._values[-1] = value
            return
        self._numbers.append(number)
        self._values.append(value)

    def at(self, number: EventNumber) -> T:
        """Return what holds after event `number`."""
        return self._values[self.span(number)]

    def span(self, number: EventNumber) -> int:
        """Return a number that is the same for two moments between which nothing changed."""
        return bisect_right(self._numbers, number) - 1

    def since(self, number: EventNumber) -> EventNumber:
        """Return the event from which on holds what holds after event `number`."""
        return self._numbers[self.span(number)]

    @property
    def last(self) -> T:
        """What holds at the end of the history."""
        return self._values[-1]

    def __iter__(self) -> Iterator[tuple[EventNumber, T]]:
        return iter(zip(self._numbers, self._values, strict=True))


class Holder(NamedTuple):
    """Whose a claim is."""

    member: MemberId
    incarnation: Incarnation
    epoch: Epoch


class Place(NamedTuple):
    """Where one partition was told to go on, and when."""

    number: EventNumber
    offset: Offset | None
    """None: open."""

    opens: bool
    """Whether it belongs to the seek map that opened a lineage."""


class Start(NamedTuple):
    """An initial offset that was stored."""

    number: EventNumber
    offset: Offset
    topic_id: TopicId


class Handled(NamedTuple):
    """One range of one partition, with the batch that began it."""

    number: EventNumber
    """After which event it was begun, or accepted."""

    range: Range
    batch: Batch


@dataclass(slots=True, kw_only=True)
class Cut:
    """One cut, from its opening."""

    number: EventNumber
    opened: CutOpened
    parts: list[tuple[EventNumber, Contributed]] = field(default_factory=list)
    drained: EventNumber | None = None
    completed: tuple[EventNumber, CutCompleted] | None = None
    aborted: EventNumber | None = None
    published: EventNumber | None = None
    retired: EventNumber | None = None
    undone: EventNumber | None = None
    """When a lineage opened below it."""

    def is_open(self, number: EventNumber) -> bool:
        """Whether it was open after event `number`."""
        ended = self.aborted if self.completed is None else self.completed[0]
        return self.number <= number and (ended is None or number < ended)

    def is_on_path(self, number: EventNumber) -> bool:
        """Whether it was complete and not undone after event `number`."""
        complete = self.completed is not None and self.completed[0] <= number
        return complete and (self.undone is None or number < self.undone)

    def is_usable(self, number: EventNumber) -> bool:
        """Whether it was on the path and had its offsets after event `number`."""
        return self.is_on_path(number) and (self.retired is None or number < self.retired)


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One epoch that a reset began."""

    number: EventNumber
    begun: ResetBegun
    seek: dict[GroupPartition, SeekEntry]
    """Its seek map, as it was written in the end."""

    opens: bool
    """Whether its seek map opened a lineage."""

    undone: tuple[CutSequence, ...] = ()
    """The cuts on the path that its map, as far as it was known then, lies below."""

    done: EventNumber | None = None


@dataclass(slots=True, kw_only=True)
class PersonRequest:
    """A person's reset, from its acceptance."""

    number: EventNumber
    forced: bool
    scope: Scope
    asked: EventNumber | None = None
    """When its cut was asked for."""

    begun: Epoch | None = None
    ended: EventNumber | None = None


@dataclass(slots=True, kw_only=True)
class Index:
    """What a history says about each moment, built once."""

    history: History
    epochs: Timeline[Epoch] = field(default_factory=lambda: Timeline(Epoch(0)))
    lineages: Timeline[Lineage] = field(default_factory=lambda: Timeline(Lineage(0)))
    states: Timeline[RegionState] = field(default_factory=lambda: Timeline(RegionState.STOPPED))
    unowned: Timeline[frozenset[GroupPartition]] = field(default_factory=lambda: Timeline(frozenset()))
    """The partitions that the brokers have and no member owns, as far as a member told of them."""

    bases: Timeline[CutSequence | None] = field(default_factory=lambda: Timeline(None))
    stamps: Timeline[CutSequence] = field(default_factory=lambda: Timeline(CutSequence(1)))
    """The sequence that a batch is stamped with: the open cut's, else the next one."""

    deliveries: Timeline[Mapping[GroupId, Delivery]] = field(default_factory=lambda: Timeline({}))
    newest: dict[MemberId, Timeline[Incarnation]] = field(default_factory=dict)
    """The newest incarnation of each member."""

    present: dict[MemberId, Timeline[Incarnation | None]] = field(default_factory=dict)
    """The same, None once it has left."""

    claims: dict[GroupPartition, Timeline[Holder | None]] = field(default_factory=dict)
    resumes: dict[GroupPartition, list[Place]] = field(default_factory=lambda: defaultdict(list))
    """The resume points of each partition, past skipped offsets: by seek entries and by completed cuts."""

    seeks: dict[GroupPartition, list[Place]] = field(default_factory=lambda: defaultdict(list))
    """The seek entries of each partition as they were written."""

    skips: dict[GroupPartition, dict[Offset, EventNumber]] = field(default_factory=lambda: defaultdict(dict))
    starts: dict[GroupPartition, list[Start]] = field(default_factory=lambda: defaultdict(list))
    cuts: dict[CutSequence, Cut] = field(default_factory=dict)
    attempts: dict[Epoch, Attempt] = field(default_factory=dict)
    persons: dict[Nonce, PersonRequest] = field(default_factory=dict)
    begun: dict[GroupPartition, list[Handled]] = field(default_factory=lambda: defaultdict(list))
    """Every range that was begun, in the order of its begin."""

    @property
    def last(self) -> EventNumber:
        """The number of the last event."""
        return self.history.events[-1].number if self.history.events else EventNumber(0)

    def following(self, number: EventNumber, count: int = 10) -> Sequence[Event]:
        """Return the next few events after event `number`."""
        first = bisect_right(self.history.events, number, key=lambda e: e.number)
        return self.history.events[first : first + count]

    def delivery(self, group: GroupId, number: EventNumber) -> Delivery:
        """Return the delivery of a group after event `number`."""
        return self.deliveries.at(number).get(group, Delivery.AT_LEAST_ONCE)

    def holder(self, partition: GroupPartition, number: EventNumber) -> Holder | None:
        """Return whose claim a partition was after event `number`."""
        timeline = self.claims.get(partition)
        return None if timeline is None else timeline.at(number)

    def is_held(self, partition: GroupPartition, holder: Holder, since: EventNumber, until: EventNumber) -> bool:
        """Whether a claim was one holder's all the time between two moments."""
        timeline = self.claims.get(partition)
        return timeline is not None and timeline.at(since) == holder and timeline.span(since) == timeline.span(until)

    def past_skips(self, partition: GroupPartition, offset: Offset, number: EventNumber) -> Offset:
        """Return the next offset at or after `offset` that was not skipped after event `number`."""
        skips = self.skips.get(partition, {})
        while skips.get(offset, NEVER) <= number:
            offset = Offset(offset + 1)
        return offset

    def skipped(self, partition: GroupPartition, number: EventNumber) -> tuple[Range, ...]:
        """Return the offsets that were skipped after event `number`."""
        skips = self.skips.get(partition, {})
        return tuple(Range(o, Offset(o + 1)) for o, since in sorted(skips.items()) if since <= number)

    def usable(self, number: EventNumber) -> list[CutSequence]:
        """Return the cuts on the path that had their offsets after event `number`, oldest first."""
        return [s for s, cut in sorted(self.cuts.items()) if cut.is_usable(number)]


def offsets_of(cut: Cut) -> OffsetMap:
    """Return the offsets of a complete cut; none of one that is not."""
    return OffsetMap() if cut.completed is None else cut.completed[1].offsets
