"""One simulated run: a region drawn from the seed, faults drawn from the seed, quiet at the end, and the judgement.

    python -m tests.support.simulation.run 4711
    python -m tests.support.simulation.run 4711 consumer

replays a seed and prints its history; the second one in groups of the consumer protocol.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Final

from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.member.state import MemberMachine
from airflow_kcr.protocol.region import rows
from airflow_kcr.protocol.region.commands import ChangeSpec, DeclareRegion, Register, RequestCheckpoint
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.region.waits import Rule
from airflow_kcr.protocol.rules import (
    CheckpointMode,
    CheckpointRules,
    Delivery,
    GroupProtocol,
    GroupRules,
    OutOfRangePolicy,
    RegionRules,
    RetentionRules,
)
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    DesiredState,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    MemberId,
    RegionId,
    RegionName,
    RequestId,
)
from airflow_kcr.schedules import Every
from tests.support import start_failures
from tests.support.driver import START
from tests.support.simulation.broker import Broker, Log
from tests.support.simulation.deciding_broker import DecidingBroker
from tests.support.simulation.faults import (
    FAULTS,
    MISTAKES,
    OF_ONE,
    OF_SPECS,
    found_again,
    lost_while_down,
    recomputed,
    reset_to_equal_ones,
    spec_changed,
    two_runs,
)
from tests.support.simulation.host import Host, Surroundings
from tests.support.simulation.judge import judge
from tests.support.simulation.lossy import LossyTransactions
from tests.support.simulation.snapshots import Snapshot, put_back
from tests.support.simulation.watch import Watch
from tests.support.simulation.world import World
from tests.support.whole import everything

GROUP = GroupId("g")
NAME = RegionName("flights")
FAULTS_END = 45.0
IDLE_PERIOD = 4
LIVENESS = 75.0
"""Seconds within which a region is where it is wanted once faults have stopped: a static session, a lease with its
boundary, an attempt or two, and the backlog (R14)."""

TIMEOUTS = Timeouts(
    lease=timedelta(seconds=2),
    renew=timedelta(seconds=0.5),
    reset=timedelta(seconds=20),
    drain=timedelta(seconds=8),
    publish=timedelta(seconds=10),
    commit=timedelta(seconds=4),
    close=timedelta(seconds=2),
    batch=timedelta(seconds=5),
    max_poll=timedelta(seconds=60),
    relaunch=timedelta(seconds=9),
    session=timedelta(seconds=8),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """One group, on a broker and with a sink of its own."""

    group: GroupId = GROUP
    members: int
    partitions: int
    delivery: Delivery
    static: bool
    holds_output: bool = False
    """Whether processes keep what they write for themselves until a checkpoint, as a sink of a user's own may."""

    protocol: GroupProtocol = GroupProtocol.CLASSIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What kind of region a seed draws."""

    groups: tuple[GroupShape, ...]
    period: int | None
    mode: CheckpointMode
    catchup: bool
    faults: int
    records: int | None = None
    """A checkpoint after N records of all members together."""

    idle: tuple[float, float] = (0.0, 0.0)
    """From when until when nothing is produced: checkpoints of these boundaries have equal offsets."""

    loses_at: float = 0.0
    """When a partition is lost while processes are down; 0: none is."""

    finds_at: float = 0.0
    """When it is there again; 0: never."""

    runs_at: float = 0.0
    """When the region is stopped for two runs; 0: it is not."""

    recomputes_at: float = 0.0
    """When a checkpoint is recomputed beside the members; 0: none is."""

    clusters: tuple[tuple[float, str], ...] = ()
    """When something strikes one of several groups or brokers, and what: a name of `faults.OF_ONE`."""

    specs: tuple[tuple[float, str], ...] = ()
    """When the spec is changed, and by what: a name of `faults.OF_SPECS`."""


def drawn(world: World) -> Shape:
    """Draw a region."""
    random = world.random
    members = random.choice((1, 2, 2, 3, 3, 4))
    by_count = members == 1 and random.random() < 0.5
    idle = _idle(world)
    loses_at, found = _moment(world, "lost", 1 / 6, 4.0, FAULTS_END - 8.0), _moment(world, "found", 0.5, 1.0, 18.0)
    first = GroupShape(
        members=members,
        partitions=random.choice((1, 2, 3, 4, 5)),
        delivery=random.choice(list(Delivery)),
        static=random.random() < 0.6,
    )
    others = () if by_count else _others(world)
    shape = Shape(
        groups=(first, *others),
        period=None if by_count else random.choice((None, 7, 15)),
        records=random.randint(20, 60) if by_count else None,
        mode=random.choice((CheckpointMode.AUTO, CheckpointMode.AUTO, CheckpointMode.DAG_RUN)),
        catchup=random.random() < 0.3,
        faults=random.randint(0, 7),
        idle=idle,
        loses_at=loses_at,
        finds_at=loses_at + found if loses_at and found else 0.0,
        runs_at=_moment(world, "runs", 0.25, 2.0, FAULTS_END - 20.0),
        recomputes_at=_moment(world, "recomputes", 1 / 3, 6.0, FAULTS_END - 2.0),
        specs=_specs(world),
        clusters=_clusters(world) if others else (),
    )
    shape = replace(shape, groups=tuple(_holding(world, one) for one in shape.groups))
    if counted := _counted(world):
        return replace(shape, period=None, records=counted if shape.records is None else shape.records)
    if not idle[1] or shape.period is None or shape.mode is not CheckpointMode.AUTO:
        return shape
    # Several boundaries fall into the stretch.
    return replace(shape, period=IDLE_PERIOD)


def drawn_in(seed: int, protocol: GroupProtocol) -> Shape:
    """Draw a region whose groups all use one protocol; the rest is as the seed draws it."""
    shape = drawn(World(seed))
    return replace(shape, groups=tuple(replace(one, protocol=protocol) for one in shape.groups))


def _idle(world: World) -> tuple[float, float]:
    """Draw a stretch without records, in a third of the regions, by chance of its own: other draws stay as they are."""
    random = Random(f"idle {world.seed}")
    begin = random.uniform(0.0, 20.0)
    return (begin, begin + random.uniform(15.0, 30.0)) if random.random() < 0.33 else (0.0, 0.0)


def _counted(world: World) -> int:
    """Draw a count of records for a checkpoint, in a sixth of the regions, by chance of its own; 0: none."""
    random = Random(f"count {world.seed}")
    return random.randint(20, 200) if random.random() < 1 / 6 else 0


def _holding(world: World, group: GroupShape) -> GroupShape:
    """Draw whether a group's sink holds output, in a third of those that may, by chance of its own."""
    random = Random(f"holds {group.group} {world.seed}")
    holds = group.delivery is not Delivery.EXACTLY_ONCE and random.random() < 1 / 3
    return replace(group, holds_output=holds)


def _moment(world: World, name: str, chance: float, first: float, last: float) -> float:
    """Draw when something happens that has a name, in a share of the regions, by chance of its own; 0: it does not.

    Other draws stay as they are.
    """
    random = Random(f"{name} {world.seed}")
    return random.uniform(first, last) if random.random() < chance else 0.0


def _others(world: World) -> tuple[GroupShape, ...]:
    """Draw one or two further groups, in a quarter of the regions, by chance of its own: other draws stay as they are.

    Small ones, as a run costs what its members do.
    """
    random = Random(f"groups {world.seed}")
    number = random.choice((1, 1, 2)) if random.random() < 0.25 else 0
    return tuple(
        GroupShape(
            group=GroupId(group),
            members=random.choice((1, 1, 2)),
            partitions=random.choice((1, 2)),
            delivery=random.choice(list(Delivery)),
            static=random.random() < 0.6,
        )
        for group in ("h", "k")[:number]
    )


def _clusters(world: World) -> tuple[tuple[float, str], ...]:
    """Draw what strikes one of several groups, by chance of its own."""
    random = Random(f"clusters {world.seed}")
    return tuple(
        (random.uniform(2.0, FAULTS_END - 12.0), random.choice(OF_ONE).__name__) for _ in range(random.randint(0, 3))
    )


def _specs(world: World) -> tuple[tuple[float, str], ...]:
    """Draw when the spec changes, in a quarter of the regions, by chance of its own: other draws stay as they are."""
    random = Random(f"spec {world.seed}")
    changes = random.choice((1, 1, 2)) if random.random() < 0.25 else 0
    drawn = [(random.uniform(3.0, FAULTS_END - 10.0), random.random() < 0.5) for _ in range(changes)]
    mistakes = Random(f"mistake {world.seed}")
    return tuple((at, (mistakes.choice(MISTAKES) if broken else spec_changed).__name__) for at, broken in drawn)


_BROKERS: Final[Mapping[GroupProtocol, type[Broker]]] = {
    GroupProtocol.CLASSIC: Broker,
    GroupProtocol.CONSUMER: DecidingBroker,
}


class Simulation:
    """One run.

    Args:
        seed: draws everything.
        shape: the region; None: drawn from the seed.
    """

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.world = World(seed)
        self.shape = shape or drawn(self.world)
        self.store = LossyTransactions(self.world)
        self.sides = tuple(
            Surroundings(
                world=self.world,
                broker=_BROKERS[one.protocol](self.world, one.group, one.partitions, 8.0 if one.static else 4.0),
                store=self.store,
                name=NAME,
                delivery=one.delivery,
                holds_output=one.holds_output,
            )
            for one in self.shape.groups
        )
        """Each group with its broker and its sink."""

        self.struck = self.sides[0]
        """The one that a fault of a broker, a log or a sink strikes."""

        self.hosts: dict[MemberId, Host] = {}
        self.relaunch = True
        self.producing = True
        self.notes: list[str] = []
        self.faults: list[str] = []
        """The faults that struck, in order."""

        self.absent: set[MemberId] = set()
        """Members that are not launched before the end."""

        self.specs = 1
        """How many a person has applied: a restored store gives their revisions to others."""

        self.mistakes: dict[str, frozenset[MemberId]] = {}
        """By digest, the specs that members can't start with."""

        self.waited: frozenset[Rule] = frozenset()
        """The rules that waited at some time, as `liveness` has them."""

        self.restored = False
        """Whether the store was put back to an older state: its history no longer has all that happened."""

        self.restored_to: Region | None = None
        self.witnesses: tuple[tuple[Host, Epoch], ...] = ()
        """The processes that lived through the newest restore, with the newest epoch that each had seen."""

    @property
    def around(self) -> Surroundings:
        """The first group's."""
        return self.sides[0]

    @property
    def broker(self) -> Broker:
        """The first group's."""
        return self.around.broker

    @property
    def members(self) -> tuple[MemberId, ...]:
        """Every member that there shall be."""
        return tuple(MemberId(one.group, index) for one in self.shape.groups for index in range(one.members))

    @property
    def logs(self) -> dict[GroupPartition, Log]:
        """The logs of all brokers."""
        return {s.broker.partition(n): log for s in self.sides for n, log in enumerate(s.broker.logs)}

    # -- the region ----------------------------------------------------------------------------------------------

    def rules(self) -> RegionRules:
        """The rules of the drawn region."""
        shape = self.shape
        schedule = None if shape.period is None else Every(timedelta(seconds=shape.period))
        groups = {
            one.group: GroupRules(
                group_id=one.group,
                topics=(Broker.topic,),
                members=one.members,
                delivery=one.delivery,
                static_membership=one.static,
                protocol=one.protocol,
                holds_output=one.holds_output,
            )
            for one in self.shape.groups
        }
        return RegionRules(
            groups=groups,
            checkpoint=CheckpointRules(
                schedule=schedule,
                mode=shape.mode,
                catchup=shape.catchup,
                grace=timedelta(seconds=1),
                records=shape.records,
            ),
            timeouts=TIMEOUTS,
            out_of_range=OutOfRangePolicy.EARLIEST,
            beyond_end=OutOfRangePolicy.LATEST,
            retention=RetentionRules(keep=3),
        )

    @property
    def region(self) -> Region:
        """The region as stored."""
        return everything(self.store.read(NAME)[0])

    def events(self) -> tuple[Event, ...]:
        """The whole history."""
        found: list[Event] = []
        while page := self.store.events(NAME, EventNumber(len(found)), 10_000):
            found.extend(page)
        return tuple(found)

    def person(self, act: Callable[[], object]) -> None:
        """Let a person do something; being refused is nothing special."""
        try:
            act()
        except KcrError as error:
            self.notes.append(f"{self.world.now:.2f} refused: {type(error).__name__}: {error.message}")

    # -- processes -----------------------------------------------------------------------------------------------

    def launch(self, member: MemberId) -> None:
        """Start a process for a member, as Airflow's retry would."""
        if member in self.hosts:
            return
        spec = self.region.spec
        if member in self.mistakes.get(spec.digest, ()):
            self._fails_to_start(member, spec)
            return
        (one,) = (one for one in self.shape.groups if one.group == member.group)
        (around,) = (side for side in self.sides if side.broker.group == member.group)
        process = Register(
            member=member,
            token=f"{member}/{self.world.random.getrandbits(40):x}",
            sinks_fenced=one.delivery is Delivery.EXACTLY_ONCE,
            ends_within=TIMEOUTS.process_end_limit,
            spec_digest=spec.digest,
        )
        machine = MemberMachine(process=process, timeouts=TIMEOUTS, static=one.static)
        self.hosts[member] = Host(around, machine, self._ended)

    def _fails_to_start(self, member: MemberId, spec: Spec) -> None:
        if self.world.now >= self.around.store_back_at:
            self.person(lambda: start_failures.say(self.store, NAME, [member], "no such module"))
        self.world.after(self.world.random.uniform(0.3, 9.0), lambda: self._relaunched(member))

    # -- the spec ------------------------------------------------------------------------------------------------

    def change_spec(self, keeps_out: Collection[MemberId] = ()) -> None:
        """Apply a spec that members are built anew for; some, or all, can't be built from it."""
        self.specs += 1
        region = self.region
        newest = region.next_spec or region.spec
        spec = Spec(text=f'{{"spec":{self.specs}}}', rules=newest.rules, revision=newest.revision + 1)
        if keeps_out:
            self.mistakes[spec.digest] = frozenset(keeps_out)
        self.person(lambda: self.store.handle(NAME, ChangeSpec(at_once=region.spec, later=spec)))

    def _ended(self, host: Host, how: str) -> None:
        if self.hosts.get(host.member) is host:
            del self.hosts[host.member]
        self.world.after(self.world.random.uniform(0.3, 9.0), lambda: self._relaunched(host.member))

    def _relaunched(self, member: MemberId) -> None:
        if not self.relaunch or member in self.absent or member in self.hosts:
            return
        if self.region.state is rows.RegionState.STOPPED:
            self.world.after(2.0, lambda: self._relaunched(member))
            return
        self.launch(member)

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self) -> tuple[str, ...]:
        """Run to the end, and return what is wrong with it; nothing: all is well."""
        spec = Spec(text="{}", rules=self.rules())
        self.store.handle(NAME, DeclareRegion(spec=spec, region_id=RegionId("the only one")))
        self.store.handle(NAME, START)
        for member in self.members:
            self.world.after(self.world.random.uniform(0, 6), partial(self.launch, member))
        self._produce()
        self._ask()
        for _ in range(self.shape.faults):
            fault = self.world.random.choice(FAULTS)
            self.world.after(self.world.random.uniform(2, FAULTS_END - 5), partial(self._fault, fault))
        self._draw_apart()
        watch = Watch(self)
        while self.world.now < FAULTS_END:
            self.world.run_until(self.world.now + 1.0)
            watch.look()
        self._heal()
        end = FAULTS_END + LIVENESS
        while self.world.now < end and not self._is_done():
            self.world.run_until(self.world.now + 1.0)
            watch.look()
        found = watch.look()
        self.waited = frozenset(watch.rules)
        wrong = [*watch.wrong, *(text for side in self.sides for text in side.wrong)]
        wrong += [t for s in self.sides if isinstance(s.broker, DecidingBroker) for t in s.broker.ownership.wrong]
        if not self._is_done():
            wrong.append(f"R14: not done after {LIVENESS} s: {self._standing()}; it says {found.text()}")
        elif found.stalled:
            wrong.append(f"R14: done, and yet {found.text()}")
        return (*wrong, *judge(self))

    def _draw_apart(self) -> None:
        """Have happen what the shape says beside the faults."""
        shape, named = self.shape, {fault.__name__: fault for fault in (*OF_ONE, *OF_SPECS)}
        moments: list[tuple[float, Callable[[Simulation], None]]] = [
            (shape.idle[1] and shape.idle[1] - 8.0, reset_to_equal_ones),
            (shape.loses_at, lost_while_down),
            (shape.finds_at, found_again),
            (shape.runs_at, two_runs),
            (shape.recomputes_at, recomputed),
            *((at, named[name]) for at, name in (*shape.clusters, *shape.specs)),
        ]
        for at, fault in moments:
            if at:
                self.world.after(at, partial(self._fault, fault))

    def _fault(self, fault: Callable[[Simulation], None]) -> None:
        self.faults.append(fault.__name__)
        if len(self.sides) > 1:
            self.struck = self.world.random.choice(self.sides)
        self.notes.append(f"{self.world.now:.2f} fault: {fault.__name__} ({self.struck.broker.group})")
        fault(self)

    def restore(self, backup: Snapshot) -> None:
        """Put the store back to a backup."""
        self.restored = True
        self.restored_to = backup.region
        self.witnesses = tuple((h, h.machine.memory.epoch) for h in self.hosts.values())
        self.notes.append(f"{self.world.now:.2f} the store is as it was at event {backup.region.counter}")
        put_back(self.store, backup)

    def _produce(self) -> None:
        if not self.producing:
            return
        begin, end = self.shape.idle
        for broker in (side.broker for side in self.sides):
            for number in range(len(broker.logs)):
                records = self.world.random.randint(0, 4)
                broker.produce(number, 0 if begin <= self.world.now < end else records)
        self.world.after(self.world.random.uniform(0.2, 1.5), self._produce)

    def _ask(self) -> None:
        """DAG runs ask for their checkpoints.

        Of the boundaries that have passed, or, without a schedule, from time to time.
        """
        self.world.after(self.world.random.uniform(1.0, 6.0), self._ask)
        region = self.region
        if not self.producing and self.world.now > FAULTS_END:
            return
        schedule = region.rules.checkpoint.schedule
        if schedule is None:
            request_id = RequestId(f"run-{int(self.world.now) // 5}")
            self.person(lambda: self.store.handle(NAME, RequestCheckpoint(request_id=request_id)))
        elif region.rules.checkpoint.mode is CheckpointMode.DAG_RUN:
            boundary = schedule.at_or_before(self.world.clock())
            self.person(
                lambda: self.store.handle(
                    NAME, RequestCheckpoint(request_id=RequestId(f"run-{boundary}"), boundary=boundary)
                )
            )

    def _heal(self) -> None:
        """Stop all faults; a person lets the region run, and asks for one last checkpoint when all is processed."""
        self.producing = False
        self.absent.clear()
        self.store.lost = 0.0
        for side in self.sides:
            side.poison = None
            side.slow = side.store_back_at = 0.0
            side.broker.heal()
        if {s.digest for s in (self.region.spec, self.region.next_spec) if s is not None} & self.mistakes.keys():
            self.change_spec()
        self.person(lambda: self.store.handle(NAME, START))
        for member in self.members:
            self._relaunched(member)
        self.world.after(4.0, self._unstick)

    def _unstick(self) -> None:
        """A halted or stopped region is resumed by a person; a run that holds at a boundary asks for its checkpoint."""
        region = self.region
        if (
            region.state in {rows.RegionState.HALTED, rows.RegionState.STOPPED}
            or region.desired_state is not DesiredState.RUNNING
        ):
            self.person(lambda: self.store.handle(NAME, START))
            for member in self.members:
                self._relaunched(member)
        schedule = region.rules.checkpoint.schedule
        if schedule is not None and region.rules.checkpoint.mode is CheckpointMode.DAG_RUN:
            boundary = schedule.at_or_before(self.world.clock())
            request_id = RequestId(f"run-{boundary}")
            self.person(
                lambda: self.store.handle(
                    NAME, RequestCheckpoint(request_id=request_id, boundary=boundary, allow_inexact=True)
                )
            )
        if self._is_caught_up():
            self.person(
                lambda: self.store.handle(
                    NAME, RequestCheckpoint(request_id=RequestId("last"), purpose=rows.CheckpointPurpose.DRAIN)
                )
            )
        self.world.after(4.0, self._unstick)

    def _is_caught_up(self) -> bool:
        region = self.region
        # Also while a checkpoint drains: where one is due as often as the person looks, every look meets one that does.
        if region.state not in {rows.RegionState.RUNNING, rows.RegionState.DRAINING}:
            return False
        places = {p: c.position for p, c in region.claims.items()}
        return all(places.get(p) is not None and (places[p] or 0) >= log.stable_end for p, log in self.logs.items())

    def _is_done(self) -> bool:
        region = self.region
        last = region.requests.get(RequestId("last"))
        if last is None or last.state is not rows.RequestState.ANSWERED or last.sequence is None:
            return False
        checkpoint = region.checkpoints[last.sequence]
        settled = (
            checkpoint.state is not rows.CheckpointState.COMPLETE and checkpoint.committed is not rows.Committed.PENDING
        )
        return settled and region.state is rows.RegionState.RUNNING

    def _standing(self) -> str:
        region = self.region
        hosts = {str(m): f"{h.machine.state}/{h.machine.why}" for m, h in self.hosts.items()}
        places = {str(p): (c.position, str(c.owner)) for p, c in region.claims.items()}
        ends = {str(p): log.stable_end for p, log in self.logs.items()}
        return (
            f"{region.state}/{region.desired_state} checkpoint {region.checkpoint} hosts {hosts} claims {places} "
            f"ends {ends}"
        )


def replay(seed: int, protocol: GroupProtocol | None = None) -> None:
    """Run one seed and print its history."""
    simulation = Simulation(seed, None if protocol is None else drawn_in(seed, protocol))
    print(simulation.shape)  # noqa: T201 - this is what the command is for
    wrong = simulation.run()
    for note in simulation.notes:
        print("note", note)  # noqa: T201
    for event in simulation.events():
        at: datetime = event.at
        print(f"{event.number:5} {at:%M:%S.%f} e{event.epoch} t{event.timeline} {event.body}"[:400])  # noqa: T201
    for line in wrong:
        print("WRONG", line)  # noqa: T201


if __name__ == "__main__":
    replay(int(sys.argv[1]), *map(GroupProtocol, sys.argv[2:3]))
