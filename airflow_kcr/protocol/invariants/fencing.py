"""R6, R9: who acted, and whether they were allowed to at that moment."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_kcr.protocol.invariants.acceptance import WAS_DONE, begin_flaw, end_flaw, proven_by
from airflow_kcr.protocol.invariants.history import Holder, Index, Timeline, Violation
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region.events import (
    Acknowledged,
    Contributed,
    CutCompleted,
    DrainBegun,
    Echoed,
    StateChanged,
)
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.values import EventNumber


def fenced(index: Index) -> Iterator[Violation]:
    """R6 (V) no accepted batch, contribution or echo carries an old epoch, incarnation or claim.

    A batch: at its begin, whatever became of it, its epoch and incarnation are the newest, its member has not left and
    holds every range by a claim of both; if it was done, these claims were held without a break until its end, in the
    same epoch and before any newer incarnation, while the region ran or drained; or the sink's progress proved it done
    in the reset that followed. A contribution and an echo: the same at their moment, for every partition they name; an
    acknowledgement: epoch and incarnation.

    It can't see leases, which are renewed without an event, nor whether a member that left gave up its claims or keeps
    its slot; nor what a zombie did in a sink (R1b).
    """
    for batch in index.history.batches:
        if batch.begun_after > index.last:
            continue
        flaw = begin_flaw(index, batch)
        if flaw:
            yield Violation("R6", f"batch {batch.batch} {flaw}", (batch.begun_after,))
        elif batch.outcome in WAS_DONE:
            flaw = end_flaw(index, batch)
            if flaw and proven_by(index, batch) is None:
                yield Violation("R6", f"batch {batch.batch} {flaw}", _moments(batch.begun_after, batch.ended_after))
    for event in index.history.events:
        match event.body:
            case Contributed() as body:
                yield from _act(index, event.number, body, body.offsets, f"a contribution to cut {body.sequence}")
            case Echoed(member=member) as body if member is not None:
                yield from _act(index, event.number, body, body.offsets, f"an echo of cut {body.sequence}")
            case Acknowledged() as body:
                yield from _act(index, event.number, body, EMPTY, "an acknowledgement")
            case _:
                pass


def _act(
    index: Index, number: EventNumber, body: Contributed | Echoed | Acknowledged, offsets: OffsetMap, what: str
) -> Iterator[Violation]:
    if body.member is None:
        return
    epoch = index.epochs.at(number)
    if body.epoch != epoch:
        yield Violation(
            "R6", f"{what} by {body.member} carries epoch {body.epoch}, the region is in {epoch}", (number,)
        )
        return
    present = index.present.get(body.member)
    incarnation = None if present is None else present.at(number)
    if incarnation != body.incarnation:
        was = incarnation or "none"
        detail = f"{what} carries incarnation {body.incarnation} of {body.member}, present is {was}"
        yield Violation("R6", detail, (number,))
        return
    holder = Holder(body.member, body.incarnation, body.epoch)
    strange = [p for p in offsets if index.holder(p, number) != holder]
    if strange:
        yield Violation("R6", f"{what} names {strange[0]}, which {body.member} does not hold", (number,))


def _moments(*numbers: EventNumber | None) -> tuple[EventNumber, ...]:
    return tuple(n for n in numbers if n is not None)


def still(index: Index) -> Iterator[Violation]:
    """R9 (V) nothing is begun between a drain's completion and the resume.

    No batch begins from a cut's `DrainBegun` until the region runs again, nor between the completion of the cut of a
    person's reset and that reset; more generally, none begins while the region's state is not RUNNING.

    It can't see what a pipeline does beside its batch.
    """
    held: Timeline[str] = Timeline("")
    for event in index.history.events:
        match event.body:
            case DrainBegun(sequence=sequence):
                held.put(event.number, f"cut {sequence} drains")
            case CutCompleted(sequence=sequence):
                held.put(event.number, f"cut {sequence} is complete and what asked for it has not taken effect")
            case StateChanged(before=RegionState.DRAINING):
                held.put(event.number, "")
            case _:
                pass
    for batch in index.history.batches:
        number = batch.begun_after
        state, why = index.states.at(number), held.at(number)
        if number <= index.last and (why or state is not RegionState.RUNNING):
            detail = f"batch {batch.batch} begins while {why or f'the region is {state}'}"
            yield Violation("R9", detail, (held.since(number) if why else index.states.since(number), number))
