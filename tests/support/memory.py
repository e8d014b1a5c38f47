"""A store in memory: for tests and simulation, and as the plainest statement of what a store does.

It keeps each region as one value, the tables that grow with time, and the ledger as rows. Rules get what Postgres gives
them, no more: the working rows, and the rest by name. It is small on purpose: everything that decides is in `protocol`,
and the contract suite holds it against Postgres.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import TypeVar, assert_never

from airflow_kcr.errors import BatchRefused, RefusedError, RegionExists, UnknownMember, UnknownRegion
from airflow_kcr.ports import Heartbeats, Renewal, SinkPlace
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.offsets import SeekMap
from airflow_kcr.protocol.region import lost_logs
from airflow_kcr.protocol.region.archive import ResetPage
from airflow_kcr.protocol.region.commands import EventMark, Heartbeat
from airflow_kcr.protocol.region.events import Event, MemberRegistered
from airflow_kcr.protocol.region.incidents import WatcherMemory
from airflow_kcr.protocol.region.lag import LagSample, SampleKey, surplus
from airflow_kcr.protocol.region.liveness import Seen
from airflow_kcr.protocol.region.rows import Batch, Lease, Outcome, RegionState
from airflow_kcr.protocol.region.state import (
    BatchesProven,
    CheckpointsUndone,
    Forgotten,
    LedgerChange,
    Region,
    without,
)
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    DesiredState,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    RegionName,
    TopicPartition,
)
from airflow_kcr.store.answers import HistoryStart, Horizon, Replayed, Sign, Span
from airflow_kcr.store.postgres.history import Chronicle
from airflow_kcr.store.regions import B, BatchRule, RegionStore, Rule
from tests.support.past import Tables, working
from tests.support.rewinds import Rewinds

A = TypeVar("A")
V = TypeVar("V")

Ledger = dict[BatchId, Batch]


class MemoryTransactions(RegionStore):
    """Regions in memory, one caller at a time.

    Args:
        clock: the store's clock; returns instants with zone.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._regions: dict[RegionName, Region] = {}
        self._tables: dict[RegionName, Tables] = {}
        self._events: dict[RegionName, list[Event]] = {}
        self._ledgers: dict[RegionName, Ledger] = {}
        self._starts: dict[RegionName, list[HistoryStart]] = {}
        self._places: dict[RegionName, frozenset[SinkPlace]] = {}
        self._lag: dict[RegionName, dict[SampleKey, LagSample]] = {}
        self._memories: dict[RegionName, dict[str, WatcherMemory]] = {}
        self._event_positions: dict[RegionName, dict[str, EventNumber]] = {}

    def create(self, name: RegionName, rule: Callable[[datetime], Region]) -> Region:
        if name in self._regions:
            raise RegionExists(f"there is a region {name} already; change its spec instead of declaring it again")
        region = rule(self._clock())
        self._require_free_groups(region)
        self._events[name], self._ledgers[name], self._tables[name] = [], {}, Tables()
        self._starts[name], self._places[name], self._lag[name] = [], frozenset(), {}
        self._memories[name] = {}
        self._event_positions[name] = {}
        return self._stored(region)

    def decide(self, name: RegionName, rule: Rule[A]) -> tuple[Region, A]:
        region, answer = rule(self._region(name), self._clock())
        self._require_free_groups(region)
        return self._stored(region), answer

    def admit(self, name: RegionName, command: B, rule: BatchRule[B, A]) -> A:
        """Here the rule gets the whole region."""
        region, answer = rule(self._region(name), self._clock(), command)
        self._stored(region)
        return answer

    def renew(self, renewals: Collection[Renewal]) -> Heartbeats:
        return {renewal: self._renewed(renewal) for renewal in renewals}

    def _renewed(self, renewal: Renewal) -> Heartbeat | RefusedError:
        name, command, member = renewal.region, renewal.command, renewal.command.member
        try:
            region, now = self._region(name), self._clock()
        except UnknownRegion as error:
            return error
        row = region.members.get(member)
        if row is None:
            return UnknownMember(f"{member} is not registered in region {name}; register it first")
        renewed = row.incarnation == command.incarnation and region.is_live(member, now)
        if renewed:
            fresh = Lease(incarnation=command.incarnation, until=now + command.lease, lacks=command.lacks)
            self._regions[name] = replace(region, leases={**region.leases, member: fresh})
        return Heartbeat(
            now=now,
            counter=region.counter,
            epoch=region.epoch,
            incarnation=row.incarnation,
            renewed=renewed,
            reconcile_at=region.reconcile_at,
            is_other_history=self._is_other(name, command.newest),
        )

    def _is_other(self, name: RegionName, mark: EventMark | None) -> bool:
        known = self._events[name]
        return mark is not None and mark.number <= len(known) and known[mark.number - 1].at != mark.at

    def read(self, name: RegionName) -> tuple[Region, datetime]:
        return self._region(name), self._clock()

    def look(self, name: RegionName) -> tuple[Region, datetime, Seen]:
        seen = self.seen(name)
        return *self.read(name), seen

    def read_as(self, name: RegionName, member: MemberId, see: Callable[[Region, datetime], V]) -> V:
        """Here it is the whole region."""
        return see(*self.read(name))

    def names(self) -> tuple[RegionName, ...]:
        return tuple(sorted(self._regions))

    def names_with(self, groups: Collection[GroupId]) -> tuple[RegionName, ...]:
        return tuple(name for name in self.names() if self._region(name).own_groups.keys() & groups)

    def delete(self, name: RegionName, check: Callable[[Region, datetime], None]) -> None:
        check(self._region(name), self._clock())
        del self._regions[name], self._events[name], self._ledgers[name], self._tables[name]

    def events(self, name: RegionName, after: EventNumber, limit: int = 1000) -> tuple[Event, ...]:
        """An event's number is its place in the list, from 1."""
        self._region(name)
        return tuple(self._events[name][after : after + limit])

    def reset_page(self, name: RegionName, *, before: CheckpointNumber | None, last: int | None) -> ResetPage:
        return self.read(name)[0].archive.reset_page(before=before, last=last)

    def batch(self, name: RegionName, batch: BatchId) -> Batch | None:
        rewinds = Rewinds(self._tables_of(name).seek_maps)
        row = self._ledgers[name].get(batch)
        return None if row is None else rewinds.seen_in(row)

    def batches(self, name: RegionName) -> Iterator[Batch]:
        rewinds = Rewinds(self._tables_of(name).seek_maps)
        yield from map(rewinds.seen_in, self._ledgers[name].values())

    def batches_since(
        self, name: RegionName, after: CheckpointNumber, up_to: CheckpointNumber | None = None
    ) -> tuple[Batch, ...]:
        return tuple(b for b in self.batches(name) if b.sequence > after and (up_to is None or b.sequence <= up_to))

    def newest_work(self, name: RegionName) -> datetime | None:
        self._region(name)
        batch = next(reversed([*self._ledgers[name].values()]), None)
        return None if batch is None else batch.finished_at or batch.started_at

    def batches_with(self, name: RegionName, partition: GroupPartition, offset: Offset) -> tuple[Batch, ...]:
        return tuple(
            b
            for b in self.batches(name)
            if partition in b.ranges and b.ranges[partition].from_ <= offset < b.ranges[partition].to
        )

    def readers(self, name: RegionName, partition: TopicPartition) -> tuple[GroupPartition, ...]:
        begun = {p for batch in self.batches(name) for p in batch.ranges}
        return tuple(sorted(p for p in begun if p.topic_partition == partition))

    def taken(self, name: RegionName) -> frozenset[SinkPlace]:
        self._region(name)
        return self._places[name]

    def take(self, name: RegionName, place: SinkPlace) -> None:
        self._places[name] = self.taken(name) | {place}

    def let_go(self, name: RegionName, place: SinkPlace) -> None:
        self._places[name] = self.taken(name) - {place}

    def event_position(self, name: RegionName, reader: str) -> EventNumber | None:
        self._region(name)
        return self._event_positions[name].get(reader)

    def keep_event_position(self, name: RegionName, reader: str, number: EventNumber) -> None:
        self._region(name)
        known = self._event_positions[name]
        known[reader] = max(known.get(reader, number), number)

    def add_lag(self, name: RegionName, samples: Collection[LagSample]) -> None:
        self._region(name)
        kept = self._lag[name]
        known = {(key.group, key.at) for key in kept}
        new = [s for s in samples if (s.group, s.at) not in known]
        kept |= {SampleKey(s.group, s.at, len(s.points)): s for s in new}
        for key in surplus(kept, self._clock()):
            del kept[key]

    def lag_since(self, name: RegionName, instant: datetime, upto: datetime | None = None) -> tuple[LagSample, ...]:
        self._region(name)
        found = (s for s in self._lag[name].values() if s.at > instant and (upto is None or s.at <= upto))
        return tuple(sorted(found, key=lambda s: (s.at, s.group)))

    def remember(
        self, name: RegionName, watcher: str, rule: Callable[[WatcherMemory, datetime], tuple[WatcherMemory, A]]
    ) -> A:
        self._region(name)
        now = self._clock()
        known = self._memories[name]
        known[watcher], answer = rule(known.get(watcher, WatcherMemory(since=now)), now)
        return answer

    def signs(self, names: Collection[RegionName]) -> Mapping[RegionName, tuple[Sign, datetime]]:
        now = self._clock()
        found: dict[RegionName, tuple[Sign, datetime]] = {}
        for name in sorted(set(names) & self._regions.keys()):
            region = self._regions[name]
            begins = region.state is RegionState.RUNNING and region.desired_state is DesiredState.RUNNING
            sign = Sign(
                counter=region.counter,
                is_due=region.reconcile_at is not None and region.reconcile_at <= now,
                leases=sum(lease.until > now for lease in region.leases.values()),
                running=0 if begins else len(region.running),
            )
            found[name] = sign, now
        return found

    def replays(self, name: RegionName, spans: Collection[Span]) -> Mapping[Epoch, Replayed]:
        claims, maps = self._region(name).claims, self._tables_of(name).seek_maps
        batches = [*self._ledgers[name].values()]
        newest = max((span.last for span in spans), default=Epoch(0))
        recreated = {p for epoch, held in maps.items() if epoch > newest for p, e in held.items() if e.recreated}
        later = {p: c.started_to for p, c in claims.items() if c.started_to is not None and p not in recreated}
        found: dict[Epoch, Replayed] = {}
        for span in reversed([*spans]):
            entries = {epoch: held for epoch, held in sorted(maps.items()) if span.first <= epoch <= span.last}
            reached = {p: e.current for p, e in entries.get(span.first, SeekMap({})).items() if e.current is not None}
            for batch in batches:
                if span.since <= batch.epoch < span.first and batch.outcome in {Outcome.UNKNOWN, Outcome.DISCARDED}:
                    begun = {p: r.to for p, r in batch.ranges.items() if any(p in held for held in entries.values())}
                    reached |= {p: max(reached.get(p, to), to) for p, to in begun.items()}
            anew = {p for held in entries.values() for p, entry in held.items() if entry.recreated}
            rewound = replayed = 0
            for partition, place in reached.items():
                if partition in anew:
                    continue
                backs = [held.offsets[partition] for held in entries.values() if partition in held.offsets]
                rewound += max(place - min(backs), 0) if backs else 0
                resumed = entries[span.last].offsets.get(partition) if span.last in entries else None
                if resumed is not None:
                    replayed += max(min(place, later.get(partition, resumed)) - resumed, 0)
            found[span.first] = Replayed(rewound=rewound, replayed=replayed)
            later = {p: place for p, place in later.items() if p not in anew}
            later |= {p: max(later.get(p, place), place) for p, place in reached.items()}
        return found

    def registered(self, name: RegionName, member: MemberId, incarnation: Incarnation) -> str:
        self._region(name)
        told = (e.body for e in self._events[name] if isinstance(e.body, MemberRegistered))
        return next((b.label for b in told if (b.member, b.incarnation) == (member, incarnation)), "")

    def history(self, name: RegionName) -> History:
        """Nothing can happen in between."""
        batches = tuple(self.batches(name))
        return History(events=tuple(self._events[name]), batches=batches)

    def chronicle(self, name: RegionName) -> MemoryChronicle:
        self._region(name)
        batches = [*self._ledgers[name].values()]
        return MemoryChronicle(self._regions[name].counter, self._events[name], batches, self._starts[name])

    def wait(self, name: RegionName, after: EventNumber, timeout: timedelta) -> EventNumber:
        """In memory, no other process could move the counter meanwhile."""
        return max(self._region(name).counter, after)

    def _tables_of(self, name: RegionName) -> Tables:
        self._region(name)
        return self._tables[name]

    def _region(self, name: RegionName) -> Region:
        region = self._regions.get(name)
        if region is None:
            known = ", ".join(self.names()) or "none"
            raise UnknownRegion(f"there is no region {name!r} in this store; it has: {known}")
        return region

    def _require_free_groups(self, region: Region) -> None:
        for other in self._regions.values():
            shared = sorted(other.own_groups.items() & region.own_groups.items())
            if other.name != region.name and shared:
                raise lost_logs.group_taken(*shared[0], other.name)

    def _stored(self, region: Region) -> Region:
        tables = _with_rows(self._tables[region.name], region)
        for change in region.ledger:
            _apply(self._ledgers[region.name], change)
            tables = _applied(tables, change)
        self._events[region.name].extend(region.events)
        after = region.stored().without_forgotten(region.ledger)
        self._tables[region.name] = tables
        self._regions[region.name] = working(after, tables)
        return replace(after, archive=self._regions[region.name].archive)


class MemoryChronicle(Chronicle):
    """What is recorded of a region in memory."""

    def __init__(
        self, counter: EventNumber, events: Sequence[Event], batches: Sequence[Batch], starts: list[HistoryStart]
    ) -> None:
        self._starts = starts
        self._counter = counter
        self._events = events
        self._batches = batches

    def horizon(self) -> Horizon:
        return Horizon(counter=self._counter, ledger=len(self._batches))

    def events(self, after: EventNumber, upto: EventNumber) -> Iterator[Event]:
        yield from self._events[after:upto]

    def batches(self, after: int, upto: int) -> Iterator[Batch]:
        """A batch's place is the one in the list, from 1."""
        yield from self._batches[after:upto]

    def rows(self, batches: Collection[BatchId]) -> tuple[Batch, ...]:
        return tuple(b for b in self._batches if b.batch in batches)

    def start(self) -> HistoryStart | None:
        return self._starts[-1] if self._starts else None

    def horizon_before(self, instant: datetime, after: Horizon, events: int) -> Horizon | None:
        within = [e.number for e in self._events[after.counter : after.counter + events] if e.at < instant]
        counter = max((n for n in within if n < self._counter), default=None)
        if counter is None:
            return None
        return Horizon(counter=counter, ledger=sum(1 for b in self._batches if b.started_after <= counter))

    def move_start(self, earlier: HistoryStart | None, start: HistoryStart) -> bool:
        if earlier != self.start():
            return False
        self._starts.append(start)
        return True

    def drop(self, start: HistoryStart, floor: CheckpointNumber) -> Iterator[tuple[int, int]]:
        """What is in memory goes with the process, so that nothing need be dropped."""
        yield from ()


def _with_rows(tables: Tables, region: Region) -> Tables:
    """Return the tables with the rows that a region holds: a decision has changed some of them, and added others."""
    return Tables(**{f.name: {**getattr(tables, f.name), **getattr(region, f.name)} for f in fields(Tables)})


def _applied(tables: Tables, change: LedgerChange) -> Tables:
    match change:
        case Forgotten(sequences=sequences, boundaries=up_to, limit=limit):
            gone = frozenset(sequences)
            old = [key for key in tables.boundary_offsets if up_to is not None and key[2] <= up_to]
            oldest = sorted(old, key=lambda key: (key[2], key[0], key[1]))[:limit]
            return replace(
                tables,
                offsets=without(tables.offsets, gone),
                frozen=without(tables.frozen, gone),
                read_backs=without(tables.read_backs, gone),
                contributions={key: part for key, part in tables.contributions.items() if key[0] not in gone},
                boundary_offsets=without(tables.boundary_offsets, frozenset(oldest)),
            )
        case CheckpointsUndone(sequences=sequences, by=timeline):
            rows = {s: replace(tables.checkpoints[s], undone_by=timeline) for s in sequences}
            return replace(tables, checkpoints={**tables.checkpoints, **rows})
        case _:
            return tables


def _apply(ledger: Ledger, change: LedgerChange) -> None:
    match change:
        case Batch():
            is_new = change.outcome is None and change.quiesced_after is None
            if is_new and change.batch in ledger:
                raise BatchRefused("a batch of this id exists already; make a new id for every batch")
            ledger[change.batch] = change
        case BatchesProven():
            ledger.update({b.batch: proven(b, change) for b in ledger.values()})
        case Forgotten() | CheckpointsUndone():
            pass  # not of the ledger of batches
        case _:
            assert_never(change)


def proven(batch: Batch, change: BatchesProven) -> Batch:
    """Return a batch that a sink's progress proves done: its transaction was committed, whatever was heard of it."""
    if batch.epoch != change.epoch or batch.outcome not in {Outcome.UNKNOWN, Outcome.DISCARDED}:
        return batch
    told = [r.to <= change.progress[p] for p, r in batch.ranges.items() if p in change.progress]
    if all(told) and (told or not batch.ranges):
        return replace(batch, outcome=Outcome.DONE, proven_in=change.proven_in)
    return batch
