"""The judgement of a simulated run: the invariants, and what the sinks hold (R1b, per delivery)."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Outcome
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.values import EventNumber, GroupPartition
from tests.support.simulation.handovers import Handovers
from tests.support.verifying import verify

if TYPE_CHECKING:
    from airflow_kcr.protocol.region.rows import Batch
    from airflow_kcr.protocol.values import Incarnation, MemberId
    from tests.support.simulation.host import Surroundings
    from tests.support.simulation.run import Simulation

_NEVER = "is below it and was never accepted"

Places = set[tuple[GroupPartition, int]]


def judge(simulation: Simulation) -> tuple[str, ...]:
    """Return everything that is wrong with a run."""
    batches = tuple(simulation.store.batches(simulation.around.name))
    history = History(events=simulation.events(), batches=batches)
    violations = [f"{v.invariant}: {v.detail} {v.events}" for v in verify(history)]
    if simulation.restored:
        # Sinks hold what the store has forgotten. Where their progress decides, records go on beyond what the ledger
        # knows of; whatever else the remaining history says must hold as ever.
        fenced = {side.broker.group for side in simulation.sides if side.delivery is Delivery.EXACTLY_ONCE}
        forgotten = tuple(f"R1a: {group}:" for group in fenced)
        lost = (*_restored(simulation), *violations)
        return tuple(v for v in lost if not (v.startswith(forgotten) and v.split(" (")[0].endswith(_NEVER)))
    violations += [f"handover: {text}" for text in handovers(simulation).wrong]
    return (*violations, *(text for side in simulation.sides for text in _output(simulation, side, batches)))


def handovers(simulation: Simulation) -> Handovers:
    """Return what the history of a run says of partitions that went on with another owner."""
    holding = {side.broker.group for side in simulation.sides if side.holds_output}
    found = Handovers(batches=tuple(simulation.store.batches(simulation.around.name)), holding=holding)
    return found.take(simulation.events())


def _restored(simulation: Simulation) -> list[str]:
    """C33: a member that remembers later numbers than the restored store halts the region, and no number is used
    again."""
    said: list[str] = []
    backup, floor, seen = simulation.restored_to, 0, False
    for event in simulation.events()[0 if backup is None else backup.counter :]:
        match event.body:
            case events.StoreRestoredSeen(member=member):
                seen = True
                floor = max(floor, *(e for h, e in simulation.witnesses if h.member == member), 0)
            case events.ResetBegun(epoch=epoch) if epoch <= floor:
                said.append(f"C33: epoch {epoch} begins again, a member had seen {floor}")
            case _:
                pass
    later = [h for h, epoch in simulation.witnesses if h.alive and backup is not None and epoch > backup.epoch]
    if later and not seen:
        said.append(f"C33: {later[0].member} has seen later numbers, the region was not halted")
    return said


def _output(simulation: Simulation, side: Surroundings, batches: tuple[Batch, ...]) -> list[str]:
    delivery = side.delivery
    region = simulation.region
    passed = _passed_over(simulation)
    wanted: Places = {
        (p, o)
        for (p, _), start in region.initial.items()
        if p.group == side.broker.group
        for o in range(start.offset, region.claims[p].position or start.offset)
    } - passed
    begun: Counter[tuple[GroupPartition, int]] = Counter()
    unsure: Places = set()
    for batch in batches:
        for partition, range_ in batch.ranges.items():
            for offset in range(range_.from_, range_.to):
                begun[partition, offset] += 1
                if batch.outcome is not Outcome.DONE:
                    unsure.add((partition, offset))
    if delivery is Delivery.EXACTLY_ONCE:
        rows = side.fenced_sink.rows
        missing = sorted(k for k in wanted if rows[k] < 1)
        double = sorted(k for k, n in rows.items() if n > 1)
        return _said("missing", missing) + _said("doubled", double)
    written = side.open_sink.count()
    missing = sorted(k for k in wanted if written[k] < 1)
    if delivery is Delivery.AT_MOST_ONCE:
        rewound = _rewound(simulation)
        unsure |= _lost_with_process(simulation, side, batches)
        double = sorted(k for k, n in written.items() if n > 1 + rewound[k])
        return _said("missing and not explained", [k for k in missing if k not in unsure]) + _said("doubled", double)
    unexplained = sorted(k for k, n in written.items() if n > begun[k])
    return (
        _said("missing", missing)
        + _said("written more often than begun", unexplained)
        + _said("in a checkpoint, and its sink was never asked to prepare them", _unprepared(simulation, side, batches))
    )


def _lost_with_process(simulation: Simulation, side: Surroundings, batches: tuple[Batch, ...]) -> Places:
    """What only a process has that was never asked for it: it ended before the next checkpoint, or was cut off from it.

    One that is frozen to the end of a run is as lost as a dead one. One that contributed later was asked: what it has
    not handed over by then is missing.
    """
    asked: dict[tuple[MemberId, Incarnation], EventNumber] = {}
    for event in simulation.events():
        if isinstance(event.body, events.Contributed):
            asked[event.body.member, event.body.incarnation] = event.number
    held = {row.batch for process in side.processes for row, _ in process.held}
    return {
        (partition, offset)
        for batch in batches
        if batch.batch in held and batch.finished_after is not None
        if asked.get((batch.member, batch.incarnation), EventNumber(0)) <= batch.finished_after
        for partition, range_ in batch.ranges.items()
        for offset in range(range_.from_, range_.to)
    }


def _unprepared(
    simulation: Simulation, side: Surroundings, batches: tuple[Batch, ...]
) -> list[tuple[GroupPartition, int]]:
    """What a sink that holds output would be asked to publish, and does not have: a sink of a user's own fails there.

    Each batch that still counts and that a complete checkpoint has must have been prepared by its own process.
    """
    if not side.holds_output:
        return []
    completed = [e.number for e in simulation.events() if isinstance(e.body, events.CheckpointCompleted)]
    last = max(completed, default=0)
    prepared = set(side.open_sink.written)
    return sorted(
        (partition, offset)
        for batch in batches
        if batch.outcome is Outcome.DONE and batch.finished_after is not None and batch.finished_after < last
        for partition, range_ in batch.ranges.items()
        if partition.group == side.broker.group
        for offset in range(range_.from_, batch.undone_from.get(partition, range_.to))
        if (partition, offset, batch.batch) not in prepared
    )


def _said(what: str, places: list[tuple[GroupPartition, int]]) -> list[str]:
    if not places:
        return []
    return [f"R1b: {len(places)} record(s) {what}: {', '.join(f'{p}@{o}' for p, o in places[:8])}"]


def _passed_over(simulation: Simulation) -> Places:
    """Records that a reset jumped over, or that a person chose to skip."""
    passed: Places = set()
    for event in simulation.events():
        match event.body:
            case events.ResetBegun(seek=seek) | events.SeekWritten(seek=seek):
                for partition, entry in seek.items():
                    if entry.offset is not None and entry.current is not None:
                        passed.update((partition, o) for o in range(entry.current, entry.offset))
            case events.Skipped(offsets=offsets):
                passed.update(offsets.items())
            case _:
                pass
    return passed


def _rewound(simulation: Simulation) -> Counter[tuple[GroupPartition, int]]:
    """How often a new timeline went back before a record that may have been processed."""
    furthest: dict[GroupPartition, int] = defaultdict(int)
    rewound: Counter[tuple[GroupPartition, int]] = Counter()
    begun = sorted(simulation.store.batches(simulation.around.name), key=lambda b: b.started_after)
    openings = [e for e in simulation.events() if isinstance(e.body, events.ResetBegun | events.SeekWritten)]
    timelines: set[int] = set()
    for event in openings:
        if isinstance(event.body, events.ResetBegun):
            timelines.add(event.timeline)
        for batch in begun:
            if batch.started_after < event.number:
                for partition, range_ in batch.ranges.items():
                    furthest[partition] = max(furthest[partition], range_.to)
        seek = event.body.seek  # type: ignore[attr-defined]
        for partition, entry in seek.items():
            if entry.offset is not None:
                rewound.update((partition, o) for o in range(entry.offset, furthest[partition]))
    return rewound
