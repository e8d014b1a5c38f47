"""A small exhaustive explorer: every order in which two members' steps and a few happenings can come.

The store is the real verbs over a store in memory; a member's step is one verb, taken as soon as it has any effect: it
claims, begins, ends or discards, contributes, publishes, reads back, acknowledges. From every state every step
is tried, and a state that was seen before is not entered again. No time passes. What a step of the real member does in
between (it looks, it plans, it waits) changes nothing in the store, so the orders of verbs are the orders that matter
there.

Every state is checked for what must hold at once; every final state, in which no process has a step left, by the
invariants over its history, by what the sink holds, and by whether the region runs. The judgement of liveness is asked
in all of
them: no state may stand still without saying why, and a final one waits for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import commands, liveness, rows
from airflow_kcr.protocol.region.liveness import Liveness, LivenessVerdict, LogEnd, Seen
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToInitial
from airflow_kcr.protocol.values import (
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    RegionName,
    TopicName,
)
from tests.support.driver import START, Driver
from tests.support.memory import MemoryTransactions
from tests.support.simulation.snapshots import Snapshot, put_back, taken
from tests.support.simulation.world import EPOCH
from tests.support.verifying import verify

GROUP, NAME = GroupId("g"), RegionName("flights")
MEMBERS = (MemberId(GROUP, 0), MemberId(GROUP, 1))
PARTITIONS = tuple(GroupPartition(GROUP, TopicName("t"), n) for n in range(2))
FIRST = Incarnation(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is outside of the store."""

    assigned: tuple[frozenset[GroupPartition], ...] = (frozenset({PARTITIONS[0]}), frozenset({PARTITIONS[1]}))
    generation: int = 1
    claimed: tuple[int, ...] = (0, 0)
    """The generation that each member has claimed."""

    left: frozenset[str] = frozenset()
    """Happenings that may still come."""

    written: tuple[tuple[GroupPartition, int], ...] = ()
    """What the batches that ended, or failed late, have written, in order of partition and offset."""


@dataclass(slots=True)
class Explored:
    """What an exploration found."""

    states: int = 0
    moves: int = 0
    ends: int = 0
    wrong: list[str] = field(default_factory=list)


class Explorer:
    """Explores one scope.

    Args:
        happenings: each may come once, at any moment: `checkpoint`, `rebalance`, `reset`, `forced`, `failure`.
        records: how many records each partition has; a batch takes one of each.
        delivery: of the group.
    """

    def __init__(
        self, happenings: tuple[str, ...], *, records: int = 1, delivery: Delivery = Delivery.AT_LEAST_ONCE
    ) -> None:
        self.delivery = delivery
        self.records = records
        self.store = MemoryTransactions(lambda: EPOCH)
        self.driver = Driver(partitions=2, delivery=delivery, transactions=self.store)
        for partition in PARTITIONS:
            self.driver.grow(partition, end=records)
        self.driver.handle(START)
        for member in MEMBERS:
            self.driver.join(member)
        self.world = World(left=frozenset(happenings))
        for index in (0, 1):
            self.world = self.claim(index)
        for index in (0, 1):
            self.acknowledge(index)

    @property
    def region(self) -> Region:
        """The region as stored."""
        return self.driver.region

    # -- one step ------------------------------------------------------------------------------------------------

    def moves(self) -> Iterator[Callable[[], World]]:
        """Yield every possible step; one that is refused or changes nothing is none."""
        for index in (0, 1):
            for step in (
                self.claim,
                self.begin,
                self.end,
                self.discard,
                self.contribute,
                self.read_back,
                self.acknowledge,
            ):
                yield lambda step=step, index=index: step(index)  # type: ignore[misc]
        yield self.publish
        for name in sorted(self.world.left):
            yield lambda name=name: self.happen(name)  # type: ignore[misc]

    def claim(self, index: int) -> World:
        """Claim the assignment, once in each generation and epoch, nothing of an older epoch running."""
        region, world = self.region, self.world
        running = [b for b in region.running.values() if b.member == MEMBERS[index] and b.epoch != region.epoch]
        fresh = world.claimed[index] == world.generation
        if running or (fresh and region.members[MEMBERS[index]].claimed == region.epoch):
            return world
        self.driver.processes[MEMBERS[index]].assignments = world.generation - 1
        self.driver.claim(MEMBERS[index], world.assigned[index])
        claimed = tuple(world.generation if i == index else g for i, g in enumerate(world.claimed))
        return replace(world, claimed=claimed)

    def begin(self, index: int) -> World:
        """Begin a batch of one record of every partition that has one left."""
        if self.mine(index) is None:
            self.driver.start_batch(MEMBERS[index], 1)
        return self.world

    def mine(self, index: int) -> rows.Batch | None:
        """Return the member's running batch."""
        return next((b for b in self.region.running.values() if b.member == MEMBERS[index]), None)

    def end(self, index: int) -> World:
        """Write the batch's output, then end it; refused, the output stays and the work is discarded."""
        batch = self.mine(index)
        if batch is None:
            return self.world
        world = self._wrote(batch)
        try:
            self.driver.handle(commands.FinishBatch(batch=batch.batch, member=batch.member, incarnation=FIRST))
        except KcrError:
            self._discarded(index, batch, rows.ResetCause.BATCH_REFUSED)
        return world

    def discard(self, index: int) -> World:
        """Cancel a batch of an older epoch."""
        batch = self.mine(index)
        if batch is not None and batch.epoch != self.region.epoch:
            self._discarded(index, batch, rows.ResetCause.BATCH_REFUSED)
        return self.world

    def _discarded(self, index: int, batch: rows.Batch, cause: rows.ResetCause) -> None:
        self.driver.discard(batch.batch)
        caller = commands.Caller(member=MEMBERS[index], incarnation=FIRST, epoch=batch.epoch)
        self.driver.handle(commands.RequestReset(caller=caller, cause=cause, detail=""))

    def _wrote(self, batch: rows.Batch) -> World:
        written = [*self.world.written, *((p, r.from_) for p, r in batch.ranges.items())]
        return replace(self.world, written=tuple(sorted(written)))

    def contribute(self, index: int) -> World:
        """Contribute the positions to the open checkpoint."""
        region = self.region
        if region.open_checkpoint is not None and (region.open_checkpoint, MEMBERS[index]) not in region.contributions:
            self.driver.contribute(MEMBERS[index])
        return self.world

    def read_back(self, index: int) -> World:
        """Report the restore point as read back for the partitions held, once."""
        region = self.region
        if region.restore_sequence is None or region.restore_epoch is not None:
            return self.world
        offsets = region.offsets[region.restore_sequence].restrict(self.driver.claims(MEMBERS[index]))
        if offsets and not offsets.keys() <= region.read_backs.get(region.restore_sequence, OffsetMap()).keys():
            self.driver.read_back(MEMBERS[index])
        return self.world

    def acknowledge(self, index: int) -> World:
        """Acknowledge the running reset, once, nothing of an older epoch running."""
        region = self.region
        if self.mine(index) is None and region.members[MEMBERS[index]].acknowledged != region.epoch:
            self.driver.acknowledge(MEMBERS[index])
        return self.world

    def publish(self) -> World:
        """Publish the earliest complete checkpoint."""
        complete = [s for s, c in sorted(self.region.checkpoints.items()) if c.state is rows.CheckpointState.COMPLETE]
        if complete:
            self.driver.handle(commands.PublishCheckpoint(sequence=complete[0]))
        return self.world

    def happen(self, name: str) -> World:
        """Let a happening come."""
        world = replace(self.world, left=self.world.left - {name})
        match name:
            case "rebalance":
                return replace(world, assigned=world.assigned[::-1], generation=world.generation + 1)
            case "checkpoint":
                self.driver.request_checkpoint("checkpoint")
            case "failure":
                batch = self.mine(0)
                if batch is None:
                    return self.world
                self._discarded(0, batch, rows.ResetCause.BATCH_FAILED)
            case _:
                self.driver.reset(ToInitial(), request_id="person", forced=name == "forced")
        return world

    # -- all of them ---------------------------------------------------------------------------------------------

    def key(self) -> tuple[object, ...]:
        """Return what tells two states apart: all that decides what can still happen, and what the sink holds.

        Numbers that only count (epochs, sequences, events) are compared with the present one instead; how often a
        record was written is left to the first way that leads here.
        """
        region, world = self.region, self.world
        epoch = region.epoch
        claims = sorted(
            (p, str(c.owner), c.epoch == epoch, c.resume, c.position, c.started_to) for p, c in region.claims.items()
        )
        members = [(m.acknowledged == epoch, m.claimed == epoch) for _, m in sorted(region.members.items())]
        running = sorted((str(b.member), b.epoch == epoch, str(b.ranges)) for b in region.running.values())
        checkpoint = (
            None
            if region.checkpoint is None
            else (region.checkpoint.purpose, len(region.checkpoint.participants), str(region.checkpoint.state))
        )
        parts = sorted(str(m) for s, m in region.contributions if s == region.open_checkpoint)
        complete = sum(1 for c in region.checkpoints.values() if c.state is rows.CheckpointState.COMPLETE)
        restore_point = (
            None
            if region.restore_sequence is None or region.restore_epoch is not None
            else region.checkpoints[region.restore_sequence]
        )
        known_read_back = (
            () if restore_point is None else tuple(region.read_backs.get(restore_point.sequence, OffsetMap()).items())
        )
        committed = None if restore_point is None else restore_point.committed
        asked = sorted((str(n), str(r.state)) for n, r in region.requests.items())
        persons = [str(r.state) for r in region.person_resets.values()]
        return (
            region.state,
            tuple(claims),
            tuple(members),
            tuple(running),
            (
                checkpoint,
                tuple(parts),
                complete,
                committed,
                known_read_back,
                tuple(region.restore_point_offsets().items()),
            ),
            (tuple(asked), tuple(persons), region.failures),
            (world.assigned, tuple(g == world.generation for g in world.claimed), world.left, frozenset(world.written)),
        )

    def explore(self, most: int = 200_000) -> Explored:
        """Return what was found in every state that can be reached."""
        found, seen = Explored(), {self.key()}
        open_states = [(taken(self.store, NAME), self.world)]
        while open_states and len(seen) < most and not found.wrong:
            snapshot, world = open_states.pop()
            found.states += 1
            enabled = 0
            for number in range(len(self._at(snapshot, world))):
                move = self._at(snapshot, world)[number]
                before = self.key()
                try:
                    self.world = move()
                except KcrError:
                    continue
                key = self.key()
                if key == before:
                    continue
                enabled += 1
                found.moves += 1
                if key not in seen:
                    seen.add(key)
                    found.wrong += self._flaws()
                    open_states.append((taken(self.store, NAME), self.world))
            if enabled == 0:
                self._at(snapshot, world)
                found.ends += 1
                found.wrong += self._final_flaws()
        if len(seen) >= most:
            found.wrong.append(f"more than {most} states; the scope is too large")
        return found

    def _at(self, snapshot: Snapshot, world: World) -> list[Callable[[], World]]:
        put_back(self.store, snapshot)
        self.world = world
        return list(self.moves())

    def _flaws(self) -> list[str]:
        """What must hold at once: nothing accepted twice in one timeline, no member at a place that is not its own."""
        accepted: Counter[tuple[int, GroupPartition, int]] = Counter()
        for batch in self.store.batches(NAME):
            if batch.outcome is rows.Outcome.DONE:
                for partition, range_ in batch.ranges.items():
                    if range_.from_ < batch.undone_from.get(partition, range_.to):
                        accepted[batch.timeline, partition, range_.from_] += 1
        flaws = [f"{place} was accepted {n} times" for place, n in accepted.items() if n > 1]
        return flaws + self._liveness_flaws()

    def _liveness_flaws(self) -> list[str]:
        """What the judgement of liveness must say in every state: a region that does not run says what it waits for."""
        found = self._judged()
        if found.verdict is LivenessVerdict.STALLED:
            return [f"no time has passed, and it says {found.text()}"]
        if self.region.state is not rows.RegionState.RUNNING and not found.waits:
            return [f"the region is {self.region.state} and nobody says what it waits for"]
        return []

    def _judged(self) -> Liveness:
        ends = {p: LogEnd(Offset(self.records), EPOCH) for p in PARTITIONS}
        return liveness.judge(self.region, EPOCH, Seen(worked_at=EPOCH, ends=ends))

    def _final_flaws(self) -> list[str]:
        region = self.region
        events = self.store.events(NAME, EventNumber(0), 10_000)
        batches = tuple(self.store.batches(NAME))
        flaws = [f"{v.invariant}: {v.detail}" for v in verify(History(events=events, batches=batches))]
        if region.state is not rows.RegionState.RUNNING:
            flaws.append(f"nobody has a step left and the region is {region.state}")
        found = self._judged()
        if found.waits:
            flaws.append(f"nobody has a step left, and it says {found.text()}")
        written = Counter(self.world.written)
        wanted = [(p, o) for p in PARTITIONS for o in range(self.records)]
        if self.delivery is not Delivery.AT_MOST_ONCE:
            flaws += [f"{p}@{o} was never written" for p, o in wanted if written[p, o] == 0]
        begun: Counter[tuple[GroupPartition, int]] = Counter()
        begun.update((p, int(r.from_)) for b in batches for p, r in b.ranges.items())
        return flaws + [
            f"{place} was written more often than begun" for place, n in written.items() if n > begun[place]
        ]
