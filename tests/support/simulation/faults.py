"""What happens to a simulated region: each fault is one function, drawn by the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from airflow_kcr.driver.recompute import ranges_in
from airflow_kcr.protocol import values
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import commands, rows
from airflow_kcr.protocol.region.rows import PersonReset, PersonResetState, Requester, ResetCause
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.scopes import EVERYTHING, Scope
from airflow_kcr.protocol.targets import ShiftBy, Target, ToCheckpoint, ToCurrent, ToDatetime, ToEarliest, ToInitial
from airflow_kcr.protocol.values import CheckpointNumber, Incarnation, RequestId
from airflow_kcr.sinks.files.contents import RegionLedger
from tests.support.driver import PAUSE, START, STOP
from tests.support.simulation.broker import Consumer
from tests.support.simulation.snapshots import taken

if TYPE_CHECKING:
    from tests.support.simulation.host import Host
    from tests.support.simulation.run import Simulation


def _host(simulation: Simulation) -> Host | None:
    hosts = sorted(simulation.hosts.items())
    return simulation.world.random.choice(hosts)[1] if hosts else None


def crash(simulation: Simulation) -> None:
    """kill -9 of one process."""
    host = _host(simulation)
    if host is not None:
        host.crash()


def crash_all(simulation: Simulation) -> None:
    """kill -9 of a driver that hosts every member; they come back staggered."""
    for host in list(simulation.hosts.values()):
        host.crash()


def freeze(simulation: Simulation) -> None:
    """A process stops for a while and wakes up as a zombie."""
    host = _host(simulation)
    if host is not None:
        host.freeze(simulation.world.random.choice((0.5, 1.5, 3.0, 6.0, 12.0)))


def restart(simulation: Simulation) -> None:
    """SIGTERM; the process comes back."""
    host = _host(simulation)
    if host is not None:
        host.terminate()


def replace_live(simulation: Simulation) -> None:
    """A second process for a member that is alive: frozen first, or simply still there."""
    host = _host(simulation)
    if host is not None:
        host.freeze(simulation.world.random.uniform(2.5, 9.0))
        del simulation.hosts[host.member]
        simulation.world.after(0.5, lambda: simulation.launch(host.member))


def store_away_for_one(simulation: Simulation) -> None:
    """One process can't reach the store."""
    host = _host(simulation)
    if host is not None:
        host.store_back_at = simulation.world.now + simulation.world.random.choice((0.7, 3.0, 8.0, 14.0))


def store_away(simulation: Simulation) -> None:
    """The store is unreachable, for less or more than a lease."""
    back_at = simulation.world.now + simulation.world.random.choice((0.5, 1.0, 4.0, 9.0))
    for side in simulation.sides:
        side.store_back_at = back_at


def frozen_transaction(simulation: Simulation) -> None:
    """A transaction holds the region's lock until Postgres ends its transaction: half a lease."""
    for side in simulation.sides:
        side.store_back_at = simulation.world.now + 1.0


def lost_answers(simulation: Simulation) -> None:
    """Answers to COMMIT get lost for a while."""
    simulation.store.lost = 0.2
    simulation.world.after(6.0, lambda: setattr(simulation.store, "lost", 0.0))


def coordinator_moves(simulation: Simulation) -> None:
    """Commits get no answer for a while, written or not."""
    broker = simulation.struck.broker
    broker.lost_answers = 0.7
    simulation.world.after(5.0, lambda: setattr(broker, "lost_answers", 0.0))


def partition_added(simulation: Simulation) -> None:
    """The topic grows."""
    if len(simulation.struck.broker.logs) < 8:
        simulation.struck.broker.add_partition()


def grown_while_down(simulation: Simulation) -> None:
    """The topic grows while some processes, or all, are down; static members come back to their old assignment."""
    hosts = sorted(simulation.hosts.items())
    for _, host in simulation.world.random.sample(hosts, simulation.world.random.randint(0, len(hosts))):
        host.crash()
    partition_added(simulation)


def lost_while_down(simulation: Simulation) -> None:
    """A listed topic is deleted while some processes, or all, are down; static members come back to their old place."""
    if len(simulation.struck.broker.logs) < 2:
        return
    hosts = sorted(simulation.hosts.items())
    for _, host in simulation.world.random.sample(hosts, simulation.world.random.randint(0, len(hosts))):
        host.crash()
    simulation.struck.broker.lose_partition()


def found_again(simulation: Simulation) -> None:
    """What was lost is there again, as it was."""
    for side in simulation.sides:
        side.broker.find_partition()


def retention(simulation: Simulation) -> None:
    """Retention takes the older half of a log, perhaps beyond a member's position."""
    log = simulation.world.random.choice(simulation.struck.broker.logs)
    log.start = max(log.start, len(log.stamps) // 2)


def open_transaction(simulation: Simulation) -> None:
    """A producer's transaction stays open for a while; what follows it can't be read."""
    log = simulation.world.random.choice(simulation.struck.broker.logs)
    if log.open_from is None:
        log.open_from = len(log.stamps)
        simulation.world.after(simulation.world.random.uniform(1, 9), lambda: setattr(log, "open_from", None))


def record_from_the_future(simulation: Simulation) -> None:
    """A producer's clock is wrong by years."""
    number = simulation.world.random.randrange(len(simulation.struck.broker.logs))
    simulation.struck.broker.produce(number, 1, ahead=timedelta(days=20_000))


def foreign_consumer(simulation: Simulation) -> None:
    """A foreign consumer joins the group, takes partitions, and leaves again."""
    visit, world = _foreign(simulation), simulation.world
    until = world.now + world.random.uniform(1, 8)
    visit(lambda: world.now >= until)


def foreign_consumer_stays(simulation: Simulation) -> None:
    """A foreign consumer joins the group and keeps its partitions until it is removed at the end."""
    visit = _foreign(simulation)
    visit(lambda: not simulation.producing)


def _foreign(simulation: Simulation) -> Callable[[Callable[[], bool]], None]:
    """Let a foreign consumer join; return what has it stay until something holds."""
    broker = simulation.struck.broker
    foreign = Consumer(number=broker.new_number(), static_id=None, hear=lambda what, held: None)
    broker.join(foreign)

    def poll(over: Callable[[], bool]) -> None:
        if over():
            broker.leave(foreign.number)
            return
        broker.poll(foreign.number)
        simulation.world.after(0.5, partial(poll, over))

    return poll


def poison(simulation: Simulation) -> None:
    """A record that no batch survives, until the pipeline is mended."""
    number = simulation.world.random.randrange(len(simulation.struck.broker.logs))
    log = simulation.struck.broker.logs[number]
    around = simulation.struck
    around.poison = around.broker.partition(number)
    around.poison_offset = len(log.stamps) + 1
    simulation.world.after(simulation.world.random.uniform(2, 12), lambda: setattr(around, "poison", None))


def slow_batches(simulation: Simulation) -> None:
    """Batches hang, some beyond their timeout."""
    around = simulation.struck
    around.slow = 0.5
    simulation.world.after(6.0, lambda: setattr(around, "slow", 0.03))


def never_back(simulation: Simulation) -> None:
    """A process dies and is not started again before the end; the others take over its partitions."""
    host = _host(simulation)
    if host is not None and len(simulation.hosts) > 1:
        simulation.absent.add(host.member)
        host.crash()


def lost_notification(simulation: Simulation) -> None:
    """Nothing tells one process, for a while or for good, that there is something to read."""
    host = _host(simulation)
    if host is not None:
        host.notifications_back_at = simulation.world.now + simulation.world.random.choice((3.0, 10.0, 1_000.0))


def attempts_used_up(simulation: Simulation) -> None:
    """One process's sinks fail in a reset, or hang for longer than an attempt may take; a reset begins."""
    host = _host(simulation)
    if host is None:
        return
    world, reset = simulation.world, host.machine.timeouts.reset.total_seconds()
    host.sinks_fail = world.chance(0.5)
    host.sinks_back_at = world.now + world.random.choice((4.0, 12.0, reset + 3.0))
    caller = commands.Caller(
        member=host.member, incarnation=host.machine.incarnation or Incarnation(0), epoch=simulation.region.epoch
    )
    store, name = simulation.store, simulation.around.name
    simulation.person(
        lambda: store.handle(
            name, commands.RequestReset(caller=caller, cause=ResetCause.BATCH_REFUSED, detail="the sinks are looked at")
        )
    )


def clock_jump(simulation: Simulation) -> None:
    """The store's clock jumps: forward, so that leases end at once, or a little back."""
    random = simulation.world.random
    simulation.world.skew += random.choice((random.uniform(1.0, 30.0), -random.uniform(0.5, 3.0)))


def store_restored(simulation: Simulation) -> None:
    """The store is restored to some seconds earlier; a member that has seen later numbers halts the region."""
    backup = taken(simulation.store, simulation.around.name)
    delay = simulation.world.random.uniform(0.5, 10.0)
    simulation.world.after(delay, lambda: simulation.restore(backup))


def pause(simulation: Simulation) -> None:
    """A person pauses, and resumes later."""
    simulation.person(lambda: simulation.store.handle(simulation.around.name, PAUSE))
    simulation.world.after(
        simulation.world.random.uniform(1, 8),
        lambda: simulation.person(lambda: simulation.store.handle(simulation.around.name, START)),
    )


def stop(simulation: Simulation) -> None:
    """A person stops the region, and starts it later."""
    simulation.person(lambda: simulation.store.handle(simulation.around.name, STOP))
    simulation.world.after(
        simulation.world.random.uniform(2, 12),
        lambda: simulation.person(lambda: simulation.store.handle(simulation.around.name, START)),
    )


def two_runs(simulation: Simulation) -> None:
    """A person stops the region, asks for runs up to two instants, whatever the first has come to, and starts it later.

    Each is asked for again and again, as by a task that is tried again.
    """
    store, name, world = simulation.store, simulation.around.name, simulation.world
    random = Random(f"two runs {world.seed}")

    def ask(number: int, boundary: datetime, tries: int) -> None:
        wanted = commands.Run(request_id=RequestId(f"interval-{number}"), boundary=boundary, allow_inexact=True)
        simulation.person(lambda: store.handle(name, wanted))
        if tries:
            world.after(3.0, lambda: ask(number, boundary, tries - 1))

    simulation.person(lambda: store.handle(name, STOP))
    begins = random.uniform(1.0, 4.0)
    first = world.clock() + timedelta(seconds=begins - random.uniform(0.0, 5.0))
    second = first + timedelta(seconds=random.uniform(1.0, 4.0))
    world.after(begins, lambda: ask(1, first, 2))
    world.after(begins + random.uniform(2.0, 6.0), lambda: ask(2, second, 2))
    world.after(16.0, lambda: simulation.person(lambda: store.handle(name, START)))


def recomputed(simulation: Simulation) -> None:
    """A process recomputes a checkpoint beside the members; another try may begin while the last one still works.

    It exchanges rows as a table's sink does: whether it still counts is asked in the same transaction.
    """
    store, name, world, side = simulation.store, simulation.around.name, simulation.world, simulation.struck
    random, group = Random(f"recomputed {world.seed}"), simulation.struck.broker.group
    lease, request_id = timedelta(seconds=5), RequestId("recomputed")

    def begin(tries: int) -> None:
        kept = sorted(s for s, row in simulation.region.checkpoints.items() if _is_recomputable(row))
        if kept and not simulation.restored:
            sequence = random.choice(kept)
            simulation.person(lambda: attempt(sequence, tries))
        elif tries:
            world.after(2.0, lambda: begin(tries - 1))

    def attempt(sequence: CheckpointNumber, tries: int) -> None:
        ranges = ranges_in(group, RegionLedger(store, name).contents(sequence, group))
        start = commands.StartRecomputation(
            sequence=sequence,
            request_id=request_id,
            token=str(tries),
            groups=(group,),
            ranges=ranges,
            lease=lease,
        )
        number = store.handle(name, start).number
        finish = commands.FinishRecomputation(
            sequence=sequence,
            number=number,
            batches=tuple({p: held} for p, its in ranges.items() for held in its),
        )
        takes = random.uniform(0.2, 8.0)
        world.after(takes, lambda: simulation.person(lambda: replaced(finish, ranges)))
        if tries and random.random() < 0.6:
            world.after(random.uniform(0.2, 8.0), lambda: simulation.person(lambda: attempt(sequence, tries - 1)))

    def replaced(
        finish: commands.FinishRecomputation, ranges: Mapping[values.GroupPartition, tuple[values.Range, ...]]
    ) -> None:
        renew = commands.RenewRecomputation(sequence=finish.sequence, number=finish.number, lease=lease)
        if store.handle(name, renew).state in rows.RESET_STATES:
            world.after(0.5, lambda: simulation.person(lambda: replaced(finish, ranges)))
            return
        if side.delivery is Delivery.EXACTLY_ONCE:
            side.fenced_sink.replace(ranges)
        if random.random() < 0.8:  # else it dies before it can say so
            store.handle(name, finish)

    begin(8)


def _is_recomputable(row: rows.Checkpoint) -> bool:
    return row.state is rows.CheckpointState.PUBLISHED and row.undone_by is None


def kill(simulation: Simulation) -> None:
    """A person kills the region, and starts it later."""
    simulation.person(lambda: simulation.store.handle(simulation.around.name, commands.KillRegion()))
    simulation.world.after(
        simulation.world.random.uniform(0.5, 8),
        lambda: simulation.person(lambda: simulation.store.handle(simulation.around.name, START)),
    )


def _target(simulation: Simulation) -> Target:
    region, random = simulation.region, simulation.world.random
    checkpoints = [s for s, c in region.checkpoints.items() if c.is_complete]
    choices: list[Target] = [
        ToInitial(),
        ToCurrent(),
        ToEarliest(),
        ShiftBy(by=-random.randint(1, 20)),
        ToDatetime(instant=simulation.world.clock() - timedelta(seconds=random.randint(1, 20))),
    ]
    choices += [ToCheckpoint(sequence=CheckpointNumber(s)) for s in checkpoints] * 2
    return random.choice(choices)


def _wanted(simulation: Simulation, target: Target) -> PersonReset:
    return PersonReset(
        request_id=RequestId(f"person-{simulation.world.random.getrandbits(30):x}"),
        target=target,
        scope=EVERYTHING,
        state=PersonResetState.WAITING,
        requester=Requester(who="a person"),
        requested_at=simulation.world.clock(),
        order=0,
    )


def _apply(simulation: Simulation, wanted: PersonReset) -> None:
    apply = commands.ApplyReset(reset=wanted, epoch=simulation.region.epoch)
    simulation.person(lambda: simulation.store.handle(simulation.around.name, apply))
    if simulation.world.chance(0.3):
        simulation.person(lambda: simulation.store.handle(simulation.around.name, apply))


def reset(simulation: Simulation) -> None:
    """A person resets online; sometimes asks twice with one request id."""
    _apply(simulation, _wanted(simulation, _target(simulation)))


def reset_to_equal_ones(simulation: Simulation) -> None:
    """A person resets to every kept checkpoint that has the newest one's offsets in turn, the oldest one last."""
    region = simulation.region
    kept = [s for s, c in sorted(region.checkpoints.items()) if c.is_complete and c.is_current]
    equal = [s for s in kept if region.offsets[s] == region.offsets[kept[-1]]]
    for turn, sequence in enumerate(reversed(equal)):
        target = ToCheckpoint(sequence=CheckpointNumber(sequence))
        simulation.world.after(turn * 2.0, partial(_reset_to, simulation, target))


def _reset_to(simulation: Simulation, target: Target) -> None:
    _apply(simulation, _wanted(simulation, target))


def forced_reset(simulation: Simulation) -> None:
    """A person resets by force."""
    _apply(simulation, replace(_wanted(simulation, _target(simulation)), forced=True))


def two_resets(simulation: Simulation) -> None:
    """Two persons reset at once."""
    _apply(simulation, _wanted(simulation, _target(simulation)))
    _apply(simulation, _wanted(simulation, _target(simulation)))


def skip_record(simulation: Simulation) -> None:
    """A person steps over one record, by force, where a partition is."""
    region = simulation.region
    places = {p: c.position for p, c in sorted(region.claims.items()) if c.position is not None}
    if places:
        skip = OffsetMap([next(iter(places.items()))])
        wanted = replace(_wanted(simulation, ToCurrent()), forced=True, skip=skip)
        _apply(simulation, wanted)


def spec_changed(simulation: Simulation) -> None:
    """A person changes the spec in a way that members are built anew for."""
    simulation.change_spec()


def spec_that_none_can_start_with(simulation: Simulation) -> None:
    """The same with a mistake, which members that live find or not; it is put right some seconds later."""
    simulation.change_spec(keeps_out=simulation.members)
    simulation.world.after(simulation.world.random.uniform(4, 14), simulation.change_spec)


def spec_that_some_can_not_start_with(simulation: Simulation) -> None:
    """The same with a mistake that keeps some out, as one group's pipeline or one machine has it; the others start."""
    members = simulation.members
    some = simulation.world.random.sample(members, simulation.world.random.randint(1, max(1, len(members) - 1)))
    simulation.change_spec(keeps_out=some)
    simulation.world.after(simulation.world.random.uniform(4, 14), simulation.change_spec)


def retire(simulation: Simulation) -> None:
    """Retirement runs, twice."""
    simulation.person(lambda: simulation.store.handle(simulation.around.name, commands.RetireCheckpoints()))
    simulation.person(lambda: simulation.store.handle(simulation.around.name, commands.RetireCheckpoints()))


FAULTS: Final[tuple[Callable[[Simulation], None], ...]] = (
    crash,
    crash,
    crash_all,
    freeze,
    freeze,
    restart,
    replace_live,
    store_away_for_one,
    store_away,
    frozen_transaction,
    lost_answers,
    coordinator_moves,
    partition_added,
    grown_while_down,
    retention,
    open_transaction,
    record_from_the_future,
    foreign_consumer,
    foreign_consumer_stays,
    never_back,
    lost_notification,
    attempts_used_up,
    clock_jump,
    store_restored,
    poison,
    slow_batches,
    pause,
    stop,
    kill,
    reset,
    reset,
    forced_reset,
    two_resets,
    skip_record,
    retire,
)


def cluster_away(simulation: Simulation) -> None:
    """One cluster answers no client, for less or more than a session and a drain; the others' groups go on."""
    broker = simulation.struck.broker
    broker.back_at = simulation.world.now + simulation.world.random.choice((1.0, 3.0, 6.0, 11.0))


def late_answers(simulation: Simulation) -> None:
    """Everything that one cluster answers comes late, for a while."""
    broker = simulation.struck.broker
    broker.late = simulation.world.random.choice((0.5, 1.5, 3.0))
    simulation.world.after(simulation.world.random.uniform(3, 10), lambda: setattr(broker, "late", 0.0))


def reset_of_one_group(simulation: Simulation) -> None:
    """A person resets one group; the others stay where they are."""
    scope = Scope(groups=frozenset({simulation.struck.broker.group}))
    _apply(simulation, replace(_wanted(simulation, _target(simulation)), scope=scope))


def killed_in_one_group(simulation: Simulation) -> None:
    """kill -9 of a member of one group; the others live."""
    group = simulation.struck.broker.group
    hosts = [host for member, host in sorted(simulation.hosts.items()) if member.group == group]
    if hosts:
        simulation.world.random.choice(hosts).crash()


OF_ONE: Final = (cluster_away, late_answers, reset_of_one_group, killed_in_one_group, retention, partition_added)
"""What strikes one of several groups or clusters; drawn where a region has several."""

MISTAKES: Final = (spec_that_none_can_start_with, spec_that_some_can_not_start_with)
"""Changes of the spec that are to be put right."""

OF_SPECS: Final = (spec_changed, *MISTAKES)

DRAWN_APART: Final = (*OF_ONE[:4], lost_while_down, found_again, reset_to_equal_ones, two_runs, recomputed, *OF_SPECS)
"""Faults that are drawn by a chance of their own, with the shape of the region."""
