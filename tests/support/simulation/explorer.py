"""A small explorer: every order in which two members' effects and a few happenings can come, to the last one.

Members are the real state machine, the store is the real verbs over a store in memory. A *move* is the smallest thing
that can happen: one pending effect executed and answered, one callback heard, one happening. From every state every
possible move is tried; a state that was seen before is not entered again, where *seen* leaves out what can't matter
(counters, instants, batches' numbers). No time passes: leases end only where a happening says so. What changes nothing for anybody is
not a move: a plan where nothing is left to read, what Kafka is told after a reset.

    python -m tests.support.simulation.explorer SCOPE

explores one scope and prints what it found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, TypeAlias

from airflow_kcr.errors import KcrError, MemberInUse, RefusedError
from airflow_kcr.protocol.delivery import Delivery
from airflow_kcr.protocol.invariants import History, verify
from airflow_kcr.protocol.member import effects, events
from airflow_kcr.protocol.member.effects import Effect
from airflow_kcr.protocol.member.state import Member, State
from airflow_kcr.protocol.member.step import step
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region.acknowledgement import Found
from airflow_kcr.protocol.region.claims import Assigned, Proposal
from airflow_kcr.protocol.region.coverage import is_quiet_batch
from airflow_kcr.protocol.region.membership import Arrival
from airflow_kcr.protocol.region.person import Apply
from airflow_kcr.protocol.region.rows import (
    Batch,
    CutPurpose,
    Lease,
    Outcome,
    PersonReset,
    PersonResetState,
    RegionState,
    Requester,
    ResetState,
)
from airflow_kcr.protocol.region.state import Region, Spec, base_offsets, is_live
from airflow_kcr.protocol.rules import GroupRules, RegionRules
from airflow_kcr.protocol.scopes import EVERYTHING
from airflow_kcr.protocol.seek_map import SeekEntry, SeekSource
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    AssignmentId,
    BatchId,
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
    RegionName,
    TopicId,
    TopicName,
)
from airflow_kcr.store.memory import MemoryTransactions
from airflow_kcr.store.regions import RegionStore
from tests.support.simulation.sinks import FencedSink
from tests.support.simulation.snapshots import Snapshot, put_back, taken
from tests.support.simulation.world import EPOCH

GROUP = GroupId("g")
NAME = RegionName("flights")
DAY = timedelta(days=1)
FOR_EVER = timedelta(days=10_000)
MEMBERS: Final = (MemberId(GROUP, 0), MemberId(GROUP, 1))
PARTITIONS: Final = tuple(GroupPartition(GROUP, TopicName("t"), n) for n in range(2))

STORE = Timeouts(lease=DAY, reset=FOR_EVER, drain=FOR_EVER, publish=FOR_EVER, commit=FOR_EVER)
PROCESS = Timeouts(
    lease=FOR_EVER, renew=FOR_EVER, reset=FOR_EVER, batch=FOR_EVER, close=FOR_EVER, commit=FOR_EVER, max_poll=FOR_EVER
)
ENDS_WITHIN = DAY
JUMP = 1.5 * DAY
"""One jump ends a lease that nobody renews, two also the time in which its process has ended itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is explored."""

    name: str
    happenings: tuple[str, ...]
    """Each may come once, at any moment: `cut`, `rebalance`, `forced`, `person`, `failure`, `crash`."""

    delivery: Delivery = Delivery.AT_LEAST_ONCE
    records: tuple[int, int] = (1, 1)
    """How many records each partition has; a batch takes one of each."""

    late: bool = False
    """Whether the store's answers may be on their way while other things happen."""


Move: TypeAlias = tuple[str, int, int]
"""What, which member, and which of its pending effects."""

Key: TypeAlias = tuple[object, ...]
Counts: TypeAlias = tuple[tuple[tuple[GroupPartition, int], int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One member's process."""

    machine: Member
    now: float = 0.0
    pending: tuple[Effect, ...] = ()
    answers: tuple[events.Event, ...] = ()
    heard: tuple[events.Event, ...] = ()
    """Kafka's callbacks on their way, in order."""

    run: effects.Run | None = None
    row: Batch | None = None
    assignments: int = 0
    launches: int = 1
    alive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything, at one moment."""

    store: Snapshot
    processes: tuple[Process, ...]
    owned: tuple[frozenset[GroupPartition], ...]
    """What Kafka would assign to each member."""

    written: Counts = ()
    """How often each record was written to an unfenced sink."""

    fence: Epoch = Epoch(0)
    progress: tuple[tuple[GroupPartition, tuple[Lineage, Offset]], ...] = ()
    rows: Counts = ()
    left: tuple[str, ...] = ()
    """Happenings to come."""

    jumps: int = 0


@dataclass(slots=True)
class Found_:
    """What an exploration found."""

    scope: Scope
    states: int = 0
    moves: int = 0
    ends: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.scope.name}: {self.states} states, {self.moves} moves, {self.ends} ends, {len(self.wrong)} wrong"


class Explorer:
    """One scope's exploration.

    Args:
        scope: what may happen.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.jumps = 0
        self.transactions = MemoryTransactions(self._clock)
        self.store = RegionStore(self.transactions)
        self._plain: dict[int, tuple[object, Key]] = {}

    def _clock(self) -> datetime:
        return EPOCH + self.jumps * JUMP

    # -- the beginning -------------------------------------------------------------------------------------------

    def beginning(self) -> Scene:
        """Return a running region with both members ready for their first batch; how it got there is not explored."""
        group = GroupRules(
            group_id=GROUP, topics=(TopicName("t"),), members=2, delivery=self.scope.delivery, static_membership=True
        )
        rules = RegionRules(groups={GROUP: group}, timeouts=STORE, max_failures=3)
        self.store.declare(NAME, Spec(text="{}", rules=rules))
        self.store.start(NAME)
        owned = (frozenset(PARTITIONS[:1]), frozenset(PARTITIONS[1:]))
        scene = Scene(
            store=taken(self.transactions, NAME),
            processes=tuple(Process(machine=Member(member=m, timeouts=PROCESS)) for m in MEMBERS),
            owned=owned,
        )
        for index in range(len(MEMBERS)):
            scene = self._load(scene).deliver(index, events.Tick()).saved()
        while True:
            calm = [m for m in self.moves(scene) if not self._is_begin(scene, m)]
            if not calm:
                return replace(scene, left=self.scope.happenings)
            scene = self.after(scene, calm[0])

    def _is_begin(self, scene: Scene, move: Move) -> bool:
        what, index, place = move
        return what == "do" and isinstance(scene.processes[index].pending[place], effects.Plan | effects.Begin)

    # -- moves ---------------------------------------------------------------------------------------------------

    def moves(self, scene: Scene) -> list[Move]:
        """Return everything that can happen next."""
        found: list[Move] = []
        region = scene.store.region
        for index, process in enumerate(scene.processes):
            if process.alive:
                found += self._own_moves(scene, index, process, region)
        for name in scene.left:
            if self._may_happen(scene, name):
                found.append((name, 0, 0))
        return found

    def _own_moves(self, scene: Scene, index: int, process: Process, region: Region) -> Iterator[Move]:
        machine = process.machine
        for place, effect in enumerate(process.pending):
            if not isinstance(effect, effects.Register) or self._may_register(region, index, scene.jumps, machine):
                yield "do", index, place
        if process.answers:
            yield "answer", index, 0
        if process.heard:
            yield "hear", index, 0
        if process.run is not None:
            yield "finish", index, 0
            if "failure" in scene.left:
                yield "fail", index, 0
            if self.scope.delivery is Delivery.EXACTLY_ONCE and machine.batch is not None and machine.batch.doomed:
                yield "commit", index, 0
        view = machine.view
        is_behind = view is not None and view.counter != region.counter and not machine.view_is_stale
        if is_behind and "read" not in machine.awaited and machine.incarnation is not None:
            yield "hint", index, 0
        waits = machine.plan_after > process.now and self._has_data(machine.positions)
        if machine.claim_after > process.now or waits:
            yield "tick", index, 0

    def _may_register(self, region: Region, index: int, jumps: int, machine: Member) -> bool:
        row = region.members.get(MEMBERS[index])
        self.jumps = jumps
        live = is_live(region, MEMBERS[index], self._clock())
        return row is None or not live or row.incarnation == machine.previous

    def _may_happen(self, scene: Scene, name: str) -> bool:
        region = scene.store.region
        match name:
            case "failure":
                return False
            case "cut" | "person":
                return region.state is RegionState.RUNNING
            case "relaunch" | "lease_over":
                return not scene.processes[1].alive
            case _:
                return True

    def _has_data(self, positions: Mapping[GroupPartition, Offset]) -> bool:
        return any(o < self.scope.records[p.partition] for p, o in positions.items())

    def after(self, scene: Scene, move: Move) -> Scene:
        """Return what there is after a move."""
        bench = self._load(scene)
        bench.make(move)
        return bench.saved()

    def _load(self, scene: Scene) -> Bench:
        self.jumps = scene.jumps
        put_back(self.transactions, scene.store)
        return Bench(self, scene)

    # -- what must hold ------------------------------------------------------------------------------------------

    def flaws(self, before: Scene, scene: Scene) -> Iterator[str]:
        """Yield what is wrong with a state, by itself or as the successor of another."""
        region, ledger = scene.store.region, scene.store.ledger
        for partition in PARTITIONS:
            upto = Offset(0)
            for begin, end in sorted(_accepted(ledger, partition)):
                if begin < upto:
                    yield f"two accepted ranges of {partition} overlap at {begin}"
                upto = max(upto, end)
        for batch_id in ledger.keys() - before.store.ledger.keys():
            yield from _begin_flaws(before.store.region, ledger[batch_id])
        if region.state in {RegionState.RUNNING, RegionState.DRAINING}:
            for process in scene.processes:
                batch = process.machine.batch
                if process.alive and process.run is not None and batch is not None and batch.epoch < region.epoch:
                    yield f"the region runs in epoch {region.epoch} while a batch of epoch {batch.epoch} may write"
            if self.scope.delivery is Delivery.EXACTLY_ONCE and scene.fence < region.epoch:
                yield f"the region runs in epoch {region.epoch}, the fence stands at {scene.fence}"
        if region.base is not None and region.base_epoch is None and region.base != before.store.region.base:
            yield from _cut_flaws(region, ledger)

    def end_flaws(self, scene: Scene) -> Iterator[str]:
        """Yield what is wrong with a state after which nothing happens any more."""
        region = scene.store.region
        batches = tuple(scene.store.ledger.values())
        for violation in verify(History(events=scene.store.events, batches=batches)):
            yield str(violation)
        if region.state is not RegionState.RUNNING:
            yield f"nothing can happen any more, the region is {region.state}"
            return
        places = {p: region.claims[p].position for p in PARTITIONS}
        ends = {p: Offset(self.scope.records[p.partition]) for p in PARTITIONS}
        if places != ends:
            yield f"nothing can happen any more, positions are {places}, logs end at {ends}"
        yield from _sink_flaws(self.scope.delivery, scene, ends)

    # -- the key of a state --------------------------------------------------------------------------------------

    def key(self, scene: Scene) -> Key:
        """Return what tells two states apart that can go on differently."""
        self.jumps = scene.jumps
        region = scene.store.region
        return (
            _region_key(self, region, self._clock()),
            tuple(self._process_key(p, region) for p in scene.processes),
            scene.owned,
            scene.written,
            (scene.fence, scene.progress, scene.rows),
            scene.left,
            tuple(
                sorted(
                    (b.member, b.epoch, b.sequence, tuple(b.ranges.items()), b.outcome or "", tuple(b.undone_from.items()))
                    for b in scene.store.ledger.values()
                )
            ),
        )

    def _process_key(self, process: Process, region: Region) -> Key:
        if not process.alive:
            return ()
        machine = process.machine
        view = machine.view
        return (
            self.plain(machine),
            None if view is None else view.counter == region.counter,
            machine.claim_after > process.now,
            machine.plan_after > process.now,
            tuple(sorted((self.plain(e) for e in process.pending), key=repr)) if not self.scope.late
            else tuple(self.plain(e) for e in process.pending),
            tuple(self.plain(e) for e in process.answers),
            tuple(self.plain(e) for e in process.heard),
            process.run is not None,
        )

    def plain(self, value: object) -> Key:
        """Return a value without what can't matter, as nested tuples; once for each object."""
        known = self._plain.get(id(value))
        if known is None:
            known = self._plain[id(value)] = (value, (_plain(value),))
        return known[1]


LEFT_OUT: Final = frozenset(
    {
        "counter",
        "begun_after",
        "ended_after",
        "order",
        "since",
        "sent_at",
        "now",
        "lease_sent_at",
        "view_read_at",
        "view_read_from",
        "newest_counter",
        "claim_after",
        "claim_backoff",
        "plan_after",
        "commit_since",
        "terminated_at",
        "batch_detail",
        "detail",
        "why_not",
        "timeouts",
        "bounds",
    }
)
"""Fields that no decision of these scopes depends on, or that the key has in another form."""


def _plain(value: object) -> object:
    if isinstance(value, Enum | str | int | float | None):
        return value
    if isinstance(value, datetime):
        return None
    if isinstance(value, Mapping):
        return tuple((_plain(k), _plain(v)) for k, v in sorted(value.items()))
    if isinstance(value, frozenset):
        return tuple(sorted(_plain(v) for v in value))  # type: ignore[type-var]
    if is_dataclass(value):
        names = [f.name for f in fields(value) if f.name not in LEFT_OUT]
        return (type(value).__name__, *(_plain(getattr(value, n)) for n in names))
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    return repr(value)


def _region_key(explorer: Explorer, region: Region, now: datetime) -> Key:
    reset = region.reset
    done = max((e for e, r in region.resets.items() if r.state is ResetState.DONE), default=0)
    return (
        (region.state, region.wanted, region.epoch, region.lineage, region.next_sequence, region.base),
        (region.base_epoch, region.failures, region.open_cut, region.halt is None, done),
        tuple((m, r.incarnation, r.acknowledged, r.claimed, r.left, is_live(region, m, now)) for m, r in sorted(region.members.items())),
        explorer.plain(region.claims),
        tuple((b, is_quiet_batch(region, row, now)) for b, row in sorted(region.running.items())),
        explorer.plain(region.checkpoints),
        tuple(sorted(region.contributions)),
        explorer.plain(region.echoes),
        base_offsets(region),
        explorer.plain(region.seek),
        None if reset is None else (reset.cause, reset.must_publish, reset.person),
        tuple((n, r.state) for n, r in sorted(region.person_resets.items())),
        tuple((n, r.state) for n, r in sorted(region.requests.items())),
    )


def _accepted(ledger: Mapping[BatchId, Batch], partition: GroupPartition) -> Iterator[tuple[Offset, Offset]]:
    for batch in ledger.values():
        range_ = batch.ranges.get(partition)
        if batch.outcome is Outcome.DONE and range_ is not None:
            upto = min(range_.to, batch.undone_from.get(partition, range_.to))
            if upto > range_.from_:
                yield range_.from_, upto


def _begin_flaws(region: Region, batch: Batch) -> Iterator[str]:
    """Judge a begin by the region that it met."""
    if region.state is not RegionState.RUNNING or batch.epoch != region.epoch:
        yield f"batch {batch.batch} of epoch {batch.epoch} begins while the region is {region.state} in {region.epoch}"
    for partition, range_ in batch.ranges.items():
        claim = region.claims[partition]
        if (claim.owner, claim.incarnation, claim.epoch) != (batch.member, batch.incarnation, region.epoch):
            yield f"batch {batch.batch} begins on {partition} without a current claim"
        if claim.position != range_.from_:
            yield f"batch {batch.batch} begins {partition} at {range_.from_}, its position is {claim.position}"
    for other in region.running.values():
        if other.epoch == region.epoch and other.ranges.keys() & batch.ranges.keys():
            yield f"batch {batch.batch} begins while {other.batch} runs on the same partition"


def _cut_flaws(region: Region, ledger: Mapping[BatchId, Batch]) -> Iterator[str]:
    """Judge a cut at its completion: everything below it is accepted or was passed over, nothing beyond it is."""
    offsets = base_offsets(region)
    if offsets.keys() != frozenset(PARTITIONS):
        yield f"cut {region.base} does not cover {sorted(frozenset(PARTITIONS) - offsets.keys())}"
    for partition, offset in offsets.items():
        for _, upto in _accepted(ledger, partition):
            if upto > offset:
                yield f"cut {region.base} is at {offset} of {partition}, accepted is {upto}"
    running = [b.batch for b in region.running.values() if b.epoch == region.epoch]
    if running and region.state is not RegionState.STARTING:
        yield f"cut {region.base} is complete while {running[0]} runs"


def _sink_flaws(delivery: Delivery, scene: Scene, ends: Mapping[GroupPartition, Offset]) -> Iterator[str]:
    """Judge what the sinks hold (R1b)."""
    wanted = {(p, o) for p, end in ends.items() for o in range(end)}
    begun: dict[tuple[GroupPartition, int], int] = {}
    for batch in scene.store.ledger.values():
        for partition, range_ in batch.ranges.items():
            for offset in range(range_.from_, range_.to):
                begun[partition, offset] = begun.get((partition, offset), 0) + 1
    if delivery is Delivery.EXACTLY_ONCE:
        if dict(scene.rows) != dict.fromkeys(wanted, 1):
            yield f"R1b: the sink holds {scene.rows}"
        return
    written = dict(scene.written)
    more = [k for k, n in written.items() if n > begun.get(k, 0)]
    if more:
        yield f"R1b: {more[0]} was written more often than begun"
    rewinds = sum(r.base == r.sequence for r in scene.store.region.resets.values()) - 1
    if delivery is Delivery.AT_MOST_ONCE:
        double = [k for k, n in written.items() if n > 1 + rewinds]
        if double:
            yield f"R1b: {double[0]} was written {written[double[0]]} times, at_most_once"
        return
    lost = wanted - written.keys()
    if lost:
        yield f"R1b: {min(lost)} was never written"


@dataclass(slots=True)
class Bench:
    """One state, taken apart so that a move can be made."""

    explorer: Explorer
    scene: Scene
    processes: list[Process] = field(init=False)
    written: dict[tuple[GroupPartition, int], int] = field(init=False)
    sink: FencedSink = field(init=False)
    left: list[str] = field(init=False)
    owned: tuple[frozenset[GroupPartition], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.processes = list(self.scene.processes)
        self.written = dict(self.scene.written)
        self.sink = FencedSink(fence=self.scene.fence, progress=dict(self.scene.progress))
        self.sink.rows.update(dict(self.scene.rows))
        self.left = list(self.scene.left)
        self.owned = self.scene.owned

    def saved(self) -> Scene:
        """Return the state as it is now."""
        rows = {k: n for k, n in self.sink.rows.items() if n}
        return Scene(
            store=taken(self.explorer.transactions, NAME),
            processes=tuple(self.processes),
            owned=self.owned,
            written=tuple(sorted(self.written.items())),
            fence=self.sink.fence,
            progress=tuple(sorted(self.sink.progress.items())),
            rows=tuple(sorted(rows.items())),
            left=tuple(self.left),
            jumps=self.explorer.jumps,
        )

    # -- moves ---------------------------------------------------------------------------------------------------

    def make(self, move: Move) -> None:
        """Let one thing happen."""
        what, index, place = move
        process = self.processes[index]
        match what:
            case "do":
                effect = process.pending[place]
                rest = (*process.pending[:place], *process.pending[place + 1 :])
                self._put(index, pending=rest)
                answer = self._execute(index, effect)
                if answer is not None:
                    self._answered(index, effect, answer)
            case "answer":
                self._put(index, answers=process.answers[1:])
                self.deliver(index, process.answers[0])
            case "hear":
                self._put(index, heard=process.heard[1:])
                self.deliver(index, process.heard[0])
            case "finish" | "fail" | "commit":
                self._run_ended(index, what)
            case "hint":
                self.deliver(index, events.Renewed(sent_at=process.now, counter=self._region.counter))
            case "tick":
                self._put(index, now=max(process.machine.claim_after, process.machine.plan_after))
                self.deliver(index, events.Tick())
            case _:
                self.left.remove(what)
                self._happen(what)

    @property
    def _region(self) -> Region:
        return self.explorer.store.read(NAME)[0]

    def _put(self, index: int, **changes: object) -> None:
        self.processes[index] = replace(self.processes[index], **changes)  # type: ignore[arg-type]

    def deliver(self, index: int, event: events.Event) -> Bench:
        """Let a member step; what it wants is pending."""
        process = self.processes[index]
        machine, wanted = step(process.machine, event, process.now)
        kept = tuple(e for e in wanted if not isinstance(e, effects.CommitSeek))
        self._put(index, machine=machine, pending=(*process.pending, *kept))
        if machine.state is State.CLOSED:
            self._put(index, alive=False)
        self._skip_empty_plans(index)
        return self

    def _skip_empty_plans(self, index: int) -> None:
        """Answer a plan where there is nothing to read at once, and let it not be asked for again before there is."""
        pending = self.processes[index].pending
        for effect in pending:
            if isinstance(effect, effects.Plan) and not self.explorer._has_data(effect.positions):
                self._put(index, pending=tuple(e for e in pending if e is not effect))
                self.deliver(index, self._plan(index, effect.positions))
                return

    def _answered(self, index: int, effect: Effect, answer: events.Event) -> None:
        if self.explorer.scope.late and not isinstance(answer, events.Tick) and isinstance(effect, LATE):
            self._put(index, answers=(*self.processes[index].answers, answer))
        else:
            self.deliver(index, answer)

    # -- happenings ----------------------------------------------------------------------------------------------

    def _happen(self, what: str) -> None:
        store = self.explorer.store
        match what:
            case "cut":
                with suppress(RefusedError):
                    store.request_cut(NAME, Nonce("cut"), purpose=CutPurpose.DRAIN)
            case "forced" | "person":
                reset = PersonReset(
                    nonce=Nonce(what),
                    target=ToInitial(),
                    scope=EVERYTHING,
                    state=PersonResetState.WAITING,
                    requester=Requester(who="a person"),
                    requested_at=EPOCH,
                    order=0,
                    forced=what == "forced",
                )
                with suppress(RefusedError):
                    store.apply_reset(NAME, Apply(reset=reset, epoch=self._region.epoch))
            case "rebalance":
                self.owned = self.owned[::-1]
                for index in range(len(MEMBERS)):
                    self._assign(index, revoke=True)
            case "take_over":
                self.owned = (frozenset(PARTITIONS), frozenset())
                for index in range(len(MEMBERS)):
                    self._assign(index, revoke=True)
            case "crash":
                self._crash(1)
                self.left += ["lease_over", "relaunch"]
            case "relaunch":
                launches = self.processes[1].launches + 1
                machine = Member(member=MEMBERS[1], timeouts=PROCESS)
                self.processes[1] = Process(machine=machine, launches=launches)
                self.deliver(1, events.Tick())
            case "lease_over":
                self.left.append("quiet")
                self._jump()
            case "quiet":
                self._jump()
            case _:
                raise ValueError(what)

    def _assign(self, index: int, *, revoke: bool) -> None:
        process = self.processes[index]
        if not process.alive or not process.machine.in_group:
            return
        number = process.assignments + 1
        assigned = events.Assigned(assignment=AssignmentId(number), partitions=self.owned[index])
        came = (events.Revoked(), assigned) if revoke else (assigned,)
        self._put(index, heard=(*process.heard, *came), assignments=number)

    def _crash(self, index: int) -> None:
        run = self.processes[index].run
        if run is not None and self.explorer.scope.delivery is not Delivery.EXACTLY_ONCE:
            self._write(run)
        self._put(index, alive=False, run=None, pending=(), answers=(), heard=())

    def _jump(self) -> None:
        """Let so much time pass that a lease ends which nobody renews; everybody who lives has renewed."""
        self.explorer.jumps += 1
        now = EPOCH + self.explorer.jumps * JUMP
        region = self._region
        leases = dict(region.leases)
        for index, process in enumerate(self.processes):
            mine = process.machine.incarnation
            if process.alive and mine is not None and region.members[MEMBERS[index]].incarnation == mine:
                leases[MEMBERS[index]] = Lease(incarnation=mine, until=now + DAY)
        stored = taken(self.explorer.transactions, NAME)
        put_back(self.explorer.transactions, replace(stored, region=replace(region, leases=leases)))
        self.explorer.store.settle(NAME)

    # -- the pipeline --------------------------------------------------------------------------------------------

    def _write(self, run: effects.Run) -> None:
        for partition, range_ in run.ranges.items():
            for offset in range(range_.from_, range_.to):
                self.written[partition, offset] = self.written.get((partition, offset), 0) + 1

    def _run_ended(self, index: int, how: str) -> None:
        process = self.processes[index]
        run, row = process.run, process.row
        if run is None or row is None:
            return
        if how == "fail":
            self.left.remove("failure")
        fenced = self.explorer.scope.delivery is Delivery.EXACTLY_ONCE
        self._put(index, run=None)
        if not fenced:
            self._write(run)
        elif how != "fail" and not self.sink.publish(row.epoch, row.lineage, run.ranges, run.progress):
            how = "fail"
        if process.machine.batch is None:
            return
        if how == "fail":
            self.deliver(index, events.BatchFailed(batch=run.batch, why="a record can't be processed"))
        else:
            self.deliver(index, events.BatchFinished(batch=run.batch))

    # -- effects -------------------------------------------------------------------------------------------------

    def _execute(self, index: int, effect: Effect) -> events.Event | None:  # noqa: C901 - one row an effect
        store, member, process = self.explorer.store, MEMBERS[index], self.processes[index]
        match effect:
            case effects.Register(previous=previous):
                return self._register(index, previous)
            case effects.Read():
                return events.ViewRead(view=store.view(NAME, member))
            case effects.Join():
                self._assign(index, revoke=False)
            case effects.LeaveGroup() | effects.CloseKeepingSlot():
                return events.LeftGroup()
            case effects.Claim():
                return self._claim(index, effect)
            case effects.Plan(positions=positions):
                return self._plan(index, positions)
            case effects.Begin(request=request):
                try:
                    row = store.begin_batch(NAME, request)
                except KcrError as error:
                    return events.BeginRefused(batch=request.batch, why=error.message)
                self._put(index, row=row)
                return events.Begun(batch=row.batch)
            case effects.Run():
                self._put(index, run=effect)
            case effects.Cancel(batch=batch):
                if process.run is None:
                    return None
                if self.explorer.scope.delivery is not Delivery.EXACTLY_ONCE:
                    self._write(process.run)
                self._put(index, run=None)
                return events.BatchQuiet(batch=batch)
            case effects.End(batch=batch, incarnation=incarnation):
                try:
                    store.end_batch(NAME, batch, member, incarnation)
                except KcrError as error:
                    return events.EndRefused(batch=batch, why=error.message)
                return events.Ended(batch=batch)
            case effects.Discard(batch=batch, incarnation=incarnation):
                with suppress(RefusedError):
                    store.discard_batch(NAME, batch, member, incarnation)
                return events.Discarded(batch=batch)
            case effects.ResetSinks():
                return self._reset_sinks(effect)
            case effects.Acknowledge(caller=caller, found=found):
                try:
                    if found:
                        store.answer(NAME, caller, found)
                    store.acknowledge(NAME, caller)
                except KcrError as error:
                    return events.AcknowledgementRefused(epoch=caller.epoch, why=error.message)
                return events.Acknowledged(epoch=caller.epoch)
            case effects.PrepareSinks(sequence=sequence, partitions=partitions):
                bounds = {p: self._log(p) for p in partitions}
                return events.SinksPrepared(sequence=sequence, bounds=bounds, committed=EMPTY)
            case effects.Contribute(part=part):
                try:
                    store.contribute(NAME, part)
                except KcrError as error:
                    return events.ContributionRefused(sequence=part.sequence, why=error.message)
                return events.Contributed(sequence=part.sequence)
            case effects.Commit(sequence=sequence, offsets=offsets):
                # While a rebalance is under way the coordinator refuses.
                return events.Committed(sequence=sequence, offsets=EMPTY if process.heard else offsets)
            case effects.Publish(sequence=sequence):
                with suppress(RefusedError):
                    store.publish(NAME, sequence, member)
                return events.Published(sequence=sequence)
            case _:
                with suppress(RefusedError):
                    self._tell(member, effect)
                return events.Tick()
        return None

    def _tell(self, member: MemberId, effect: Effect) -> None:
        store = self.explorer.store
        match effect:
            case effects.Settle():
                store.settle(NAME)
            case effects.RequestReset(caller=caller, cause=cause, detail=detail):
                store.request_reset(NAME, caller, cause, detail)
            case effects.Echo(sequence=sequence, incarnation=incarnation, offsets=offsets):
                store.echo(NAME, sequence, member, incarnation, offsets)
            case effects.ReportOutOfRange(caller=caller, observed=observed):
                store.report_out_of_range(NAME, caller, observed)
            case effects.LeaveStore(incarnation=incarnation):
                store.leave(NAME, member, incarnation)
            case effects.KeepSlot(incarnation=incarnation):
                store.keep_slot(NAME, member, incarnation)
            case effects.ReportLater(memory=memory):
                store.report_later(NAME, memory)
            case _:
                raise ValueError(effect)

    def _register(self, index: int, previous: Incarnation | None) -> events.Event:
        arrival = Arrival(
            member=MEMBERS[index],
            token=f"{index}/{self.processes[index].launches}/{previous}",
            previous=previous,
            sinks_fenced=self.explorer.scope.delivery is Delivery.EXACTLY_ONCE,
            ends_within=ENDS_WITHIN,
        )
        try:
            incarnation = self.explorer.store.register(NAME, arrival)
        except MemberInUse as used:
            return events.RegistrationRefused(why=used.message)
        return events.Registered(incarnation=incarnation, sent_at=self.processes[index].now)

    def _claim(self, index: int, effect: effects.Claim) -> events.Event:
        start = SeekEntry(offset=Offset(0), source=SeekSource.START_POSITION)
        proposal = Proposal(
            member=MEMBERS[index],
            incarnation=effect.incarnation,
            assignment=effect.assignment,
            partitions={p: Assigned(bounds=self._log(p), initial=start) for p in sorted(effect.partitions)},
        )
        try:
            view = self.explorer.store.claim(NAME, proposal)
        except KcrError as error:
            return events.ClaimRefused(assignment=effect.assignment, why=error.message)
        return events.ClaimGranted(assignment=effect.assignment, view=view)

    def _log(self, partition: GroupPartition) -> LogBounds:
        end = Offset(self.explorer.scope.records[partition.partition])
        return LogBounds(start=Offset(0), end=end, topic_id=TopicId("topic-1"))

    def _plan(self, index: int, positions: OffsetMap) -> events.Event:
        made = sum(b.member == MEMBERS[index] for b in self.explorer.store.batches(NAME))
        ranges = {
            p: Range(o, Offset(o + 1)) for p, o in positions.items() if o < self.explorer.scope.records[p.partition]
        }
        return events.Planned(batch=BatchId(f"{index}/{made}"), ranges=ranges)

    def _reset_sinks(self, effect: effects.ResetSinks) -> events.Event:
        found = {p: Found(offset=Offset(0)) for p in effect.open}
        if self.explorer.scope.delivery is not Delivery.EXACTLY_ONCE:
            return events.SinksReset(epoch=effect.epoch, found=found)
        sink = self.sink
        if not sink.raise_fence(effect.epoch):
            return events.SinkFailed(epoch=effect.epoch, why="a newer epoch came", fence=sink.fence)
        for partition, offset in effect.resume.items():
            sink.roll_back(partition, effect.lineage, offset)
        for partition, target in effect.open.items():
            if target.source is SeekSource.SINK_PROGRESS:
                progress = sink.found(partition, effect.lineage)
                found[partition] = Found(offset=progress)
                if progress is None and target.fallback is not None:
                    sink.roll_back(partition, effect.lineage, target.fallback)
            elif (place := found[partition].offset) is not None:
                sink.roll_back(partition, effect.lineage, place)
        return events.SinksReset(epoch=effect.epoch, found=found)


LATE: Final = (effects.Read, effects.Claim, effects.Begin, effects.End, effects.Acknowledge, effects.Contribute)
"""Effects whose answer may be on its way while other things happen."""


# -- the search ----------------------------------------------------------------------------------------------------


def explore(scope: Scope, *, most: int = 5_000_000, stop_at: int = 1) -> Found_:
    """Explore a scope depth first, and say what was found.

    Args:
        scope: what may happen.
        most: give up beyond so many states.
        stop_at: give up after so many states with a flaw.
    """
    explorer, found = Explorer(scope), Found_(scope=scope)
    search = _Search(explorer=explorer, found=found, most=most, stop_at=stop_at)
    search.run()
    return found


@dataclass(slots=True, kw_only=True)
class _Search:
    explorer: Explorer
    found: Found_
    most: int
    stop_at: int
    numbers: dict[Key, int] = field(default_factory=dict)
    parents: list[tuple[int, str]] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)
    """The states that each can be entered from."""

    good: list[int] = field(default_factory=list)

    def run(self) -> None:
        explorer = self.explorer
        first = explorer.beginning()
        self._new(explorer.key(first), (-1, ""))
        stack = [(first, 0, self._ahead(first, 0))]
        while stack and len(self.found.wrong) < self.stop_at:
            scene, number, ahead = stack[-1]
            if not ahead:
                stack.pop()
                continue
            move = ahead.pop()
            label = self._label(scene, move)
            entered = explorer.after(scene, move)
            self.found.moves += 1
            key = explorer.key(entered)
            known = self.numbers.get(key)
            if known is not None:
                self.before[known].append(number)
                continue
            child = self._new(key, (number, label))
            self.before[child].append(number)
            for flaw in explorer.flaws(scene, entered):
                self._wrong(child, flaw)
            if len(self.numbers) > self.most:
                self._wrong(child, f"more than {self.most} states")
                return
            stack.append((entered, child, self._ahead(entered, child)))
        self.found.states = len(self.numbers)
        if not self.found.wrong:
            self._stuck()

    def _new(self, key: Key, parent: tuple[int, str]) -> int:
        number = self.numbers[key] = len(self.numbers)
        self.parents.append(parent)
        self.before.append([])
        self.found.states = len(self.numbers)
        return number

    def _ahead(self, scene: Scene, number: int) -> list[Move]:
        moves = self.explorer.moves(scene)
        if not moves:
            self.found.ends += 1
            self.good.append(number)
            for flaw in self.explorer.end_flaws(scene):
                self._wrong(number, flaw)
        return moves[::-1]

    def _label(self, scene: Scene, move: Move) -> str:
        what, index, place = move
        effect = scene.processes[index].pending[place] if what == "do" else None
        return what if effect is None and what not in OWN else f"{index} {what} {type(effect).__name__ if effect else ''}"

    def _wrong(self, number: int, flaw: str) -> None:
        way: list[str] = []
        at = number
        while at > 0:
            at, label = self.parents[at]
            way.append(label.strip())
        self.found.wrong.append(f"{flaw}\n      after: {'; '.join(reversed(way))}")

    def _stuck(self) -> None:
        """Find a state from which no end can be reached any more: a deadlock, or going round in circles."""
        reached, queue = set(self.good), list(self.good)
        while queue:
            for earlier in self.before[queue.pop()]:
                if earlier not in reached:
                    reached.add(earlier)
                    queue.append(earlier)
        lost = [n for n in range(len(self.numbers)) if n not in reached]
        if lost:
            self._wrong(lost[0], f"from {len(lost)} state(s) no end can be reached, this is one")


OWN: Final = frozenset({"answer", "hear", "finish", "fail", "commit", "hint", "tick"})

SCOPES: Final[Mapping[str, Scope]] = {
    scope.name: scope
    for scope in (
        Scope(name="cut", happenings=("cut",)),
        Scope(name="rebalance", happenings=("rebalance",)),
        Scope(name="rebalance and cut", happenings=("rebalance", "cut")),
    )
}


def main() -> None:
    """Explore the scope that the command line names."""
    found = explore(SCOPES[sys.argv[1]])
    print(found)  # noqa: T201 - this is what the command is for
    for text in found.wrong:
        print("WRONG", text)  # noqa: T201


if __name__ == "__main__":
    main()
