"""A region's history, and what it says about every moment: the ground on which the invariants stand.

A **history** is the events of a region, in commit order, and the batch rows of its ledger; nothing else is ever read. A
batch row is no event: `started_after` and `finished_after` are event numbers, so a batch lies between two transitions.
The index holds what each transition changed, as series, so that a check can ask what was true when.

An index is built from the words of the invariants alone, not with the rules that decided: a check that used
the same code would agree with its mistakes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry
from airflow_kcr.protocol.region.events import (
    CheckpointCompleted,
    CheckpointOpened,
    Contributed,
    Event,
    ResetBegun,
)
from airflow_kcr.protocol.region.rows import Batch, RegionState
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.scopes import Scope
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RequestId,
    Timeline,
    TopicId,
)

T = TypeVar("T")

NEVER = EventNumber(2**63 - 1)
"""Later than every event."""


@dataclass(frozen=True, slots=True)
class History:
    """What happened to one region.

    Both have to be read in one snapshot of the store: a batch that finished after the events were read would look like
    unprocessed records.
    """

    events: Sequence[Event]
    """From the first one on, in the order of their numbers."""

    batches: Sequence[Batch]


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """An invariant does not hold."""

    invariant: str
    """Its number in tests/annex/invariants.md, such as R5."""

    detail: str
    """What is wrong, in a sentence."""

    events: tuple[EventNumber, ...]
    """The transitions that contradict each other, or between which a batch contradicts them."""


class Series(Generic[T]):
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
    """Where and when one partition was sent."""

    number: EventNumber
    offset: Offset | None
    """None: open."""

    opens: bool
    """Whether it belongs to the seek map that opened a timeline."""


class Start(NamedTuple):
    """An initial offset that was stored."""

    number: EventNumber
    offset: Offset
    topic_id: TopicId


class Handled(NamedTuple):
    """One range of one partition, with the batch that began it."""

    number: EventNumber
    """After which event it was started, or accepted."""

    range: Range
    batch: Batch


@dataclass(slots=True, kw_only=True)
class CheckpointHistory:
    """One checkpoint, from its opening."""

    number: EventNumber
    opened: CheckpointOpened
    parts: list[tuple[EventNumber, Contributed]] = field(default_factory=list)
    drained: EventNumber | None = None
    completed: tuple[EventNumber, CheckpointCompleted] | None = None
    aborted: EventNumber | None = None
    published: EventNumber | None = None
    retired: EventNumber | None = None
    undone: EventNumber | None = None
    """When a timeline opened below it."""

    def is_open(self, number: EventNumber) -> bool:
        """Whether it was open after event `number`."""
        ended = self.aborted if self.completed is None else self.completed[0]
        return self.number <= number and (ended is None or number < ended)

    def is_current(self, number: EventNumber) -> bool:
        """Whether it was complete and not undone after event `number`."""
        complete = self.completed is not None and self.completed[0] <= number
        return complete and (self.undone is None or number < self.undone)

    def is_usable(self, number: EventNumber) -> bool:
        """Whether it was on the current timeline and had its offsets after event `number`."""
        return self.is_current(number) and (self.retired is None or number < self.retired)


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One epoch that a reset began."""

    number: EventNumber
    begun: ResetBegun
    seek: dict[GroupPartition, SeekEntry]
    """Its seek map, as it was written in the end."""

    opens: bool
    """Whether its seek map opened a timeline."""

    undone: tuple[CheckpointNumber, ...] = ()
    """The current checkpoints that its map, as far as it was known then, lies below."""

    done: EventNumber | None = None


@dataclass(slots=True, kw_only=True)
class PersonRequest:
    """A person's reset, from its acceptance."""

    number: EventNumber
    forced: bool
    scope: Scope
    asked: EventNumber | None = None
    """When its checkpoint was asked for."""

    begun: Epoch | None = None
    ended: EventNumber | None = None


@dataclass(slots=True, kw_only=True)
class Index:
    """What a history says about each moment, built once."""

    history: History
    epochs: Series[Epoch] = field(default_factory=lambda: Series(Epoch(0)))
    timelines: Series[Timeline] = field(default_factory=lambda: Series(Timeline(0)))
    states: Series[RegionState] = field(default_factory=lambda: Series(RegionState.STOPPED))
    unowned: Series[frozenset[GroupPartition]] = field(default_factory=lambda: Series(frozenset()))
    """The partitions that the brokers have and no member owns, as far as a member told of them."""

    restore_points: Series[CheckpointNumber | None] = field(default_factory=lambda: Series(None))
    stamps: Series[CheckpointNumber] = field(default_factory=lambda: Series(CheckpointNumber(1)))
    """The sequence that a batch is stamped with: the open checkpoint's, else the next one."""

    deliveries: Series[Mapping[GroupId, Delivery]] = field(default_factory=lambda: Series({}))
    newest: dict[MemberId, Series[Incarnation]] = field(default_factory=dict)
    """The newest incarnation of each member."""

    present: dict[MemberId, Series[Incarnation | None]] = field(default_factory=dict)
    """The same, None once it has left."""

    claims: dict[GroupPartition, Series[Holder | None]] = field(default_factory=dict)
    resumes: dict[GroupPartition, list[Place]] = field(default_factory=lambda: defaultdict(list))
    """The resume points of each partition, past skipped offsets: by seek entries and by completed checkpoints."""

    seeks: dict[GroupPartition, list[Place]] = field(default_factory=lambda: defaultdict(list))
    """The seek entries of each partition as they were written."""

    skips: dict[GroupPartition, dict[Offset, EventNumber]] = field(default_factory=lambda: defaultdict(dict))
    starts: dict[GroupPartition, list[Start]] = field(default_factory=lambda: defaultdict(list))
    checkpoints: dict[CheckpointNumber, CheckpointHistory] = field(default_factory=dict)
    attempts: dict[Epoch, Attempt] = field(default_factory=dict)
    persons: dict[RequestId, PersonRequest] = field(default_factory=dict)
    begun: dict[GroupPartition, list[Handled]] = field(default_factory=lambda: defaultdict(list))
    """Every range that was started, in the order of its start."""

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
        series = self.claims.get(partition)
        return None if series is None else series.at(number)

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

    def usable(self, number: EventNumber) -> list[CheckpointNumber]:
        """Return the current checkpoints that had their offsets after event `number`, oldest first."""
        return [s for s, checkpoint in sorted(self.checkpoints.items()) if checkpoint.is_usable(number)]


def offsets_of(checkpoint: CheckpointHistory) -> OffsetMap:
    """Return the offsets of a complete checkpoint; none of one that is not."""
    return OffsetMap() if checkpoint.completed is None else checkpoint.completed[1].offsets
