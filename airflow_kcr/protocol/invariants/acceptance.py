"""When a batch was accepted, and what speaks against it.

An end is accepted while the region runs or drains, in the epoch, by the incarnation and under the claims that the batch
was begun with. One more way exists: a batch whose end was refused or never heard of turns out to be done, because a
fenced sink tells its progress in the reset that follows (`exactly_once`).
"""

from __future__ import annotations

from airflow_kcr.protocol.invariants.history import Attempt, Holder, Index
from airflow_kcr.protocol.region.rows import Batch, Outcome, RegionState
from airflow_kcr.protocol.seek_map import SeekSource
from airflow_kcr.protocol.values import EventNumber

ENDING = frozenset({RegionState.RUNNING, RegionState.DRAINING})
WAS_DONE = frozenset({Outcome.DONE, Outcome.UNDONE})


def begin_flaw(index: Index, batch: Batch) -> str:
    """Return what speaks against a batch's begin; empty: nothing."""
    at = batch.begun_after
    epoch = index.epochs.at(at)
    if batch.epoch != epoch:
        return f"was begun in epoch {batch.epoch}, the region was in epoch {epoch}"
    present = index.present.get(batch.member)
    incarnation = None if present is None else present.at(at)
    if incarnation != batch.incarnation:
        return f"was begun by incarnation {batch.incarnation} of {batch.member}, present was {incarnation or 'none'}"
    holder = _holder(batch)
    for partition in batch.ranges:
        if index.holder(partition, at) != holder:
            return f"was begun on {partition}, which {batch.member} did not hold"
    return ""


def end_flaw(index: Index, batch: Batch) -> str:
    """Return what speaks against the end of a batch that was done; empty: nothing."""
    since, until = batch.begun_after, batch.ended_after
    if until is None:
        return f"is {batch.outcome} without an end"
    if until < since:
        return f"began after event {since} and ended after event {until}"
    if index.epochs.at(until) != batch.epoch:
        return f"of epoch {batch.epoch} was accepted in epoch {index.epochs.at(until)}"
    newest = index.newest.get(batch.member)
    if newest is None or newest.at(until) != batch.incarnation:
        return f"of incarnation {batch.incarnation} of {batch.member} was accepted after a newer one was registered"
    for partition in batch.ranges:
        if not index.is_held(partition, _holder(batch), since, until):
            return f"was accepted although the claim of {batch.member} on {partition} had gone meanwhile"
    state = index.states.at(until)
    return "" if state in ENDING else f"was accepted while the region was {state}"


def accepted_after(index: Index, batch: Batch) -> EventNumber | None:
    """Return after which event a batch counted as accepted; None if it never did."""
    if batch.outcome not in WAS_DONE or batch.ended_after is None:
        return None
    if end_flaw(index, batch):
        proof = proven_by(index, batch)
        if proof is not None and proof.done is not None:
            return proof.done
    return batch.ended_after


def proven_by(index: Index, batch: Batch) -> Attempt | None:
    """Return the reset in which a sink's progress proved a batch done whose end was not accepted.

    That is the reset done next after the batch's epoch, in the same lineage, whose entries are progress at or beyond
    the ends of all its ranges.
    """
    done = (a for e, a in sorted(index.attempts.items()) if e > batch.epoch and a.done is not None)
    attempt = next(done, None)
    if attempt is None or attempt.begun.lineage != batch.lineage:
        return None
    for partition, range_ in batch.ranges.items():
        entry = attempt.seek.get(partition)
        if entry is None or entry.source is not SeekSource.SINK_PROGRESS or (entry.offset or 0) < range_.to:
            return None
    return attempt


def _holder(batch: Batch) -> Holder:
    return Holder(batch.member, batch.incarnation, batch.epoch)
