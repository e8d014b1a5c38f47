"""What speaks against a batch's begin and end, and when its sink proves it done all the same.

An end is accepted while the region runs or drains, in the epoch, by the incarnation and under the claims that the batch
was begun with. One more way exists: a batch whose end was refused or never heard of turns out to be done, because a
fenced sink tells its progress in the reset that follows (`exactly_once`).
"""

from __future__ import annotations

from typing import Final

from airflow_kcr.protocol.invariants.history import Holder
from airflow_kcr.protocol.invariants.moment import Attempt, Moment
from airflow_kcr.protocol.region.rows import Batch, Outcome, RegionState
from airflow_kcr.protocol.seek_map import SeekSource

ENDING: Final = frozenset({RegionState.RUNNING, RegionState.DRAINING})
WAS_DONE: Final = frozenset({Outcome.DONE, Outcome.UNDONE})


def begin_flaw(moment: Moment, batch: Batch) -> str:
    """Return what speaks against a batch that begins now; empty: nothing."""
    if batch.epoch != moment.epoch:
        return f"was begun in epoch {batch.epoch}, the region was in epoch {moment.epoch}"
    incarnation = moment.present.get(batch.member)
    if incarnation != batch.incarnation:
        return f"was begun by incarnation {batch.incarnation} of {batch.member}, present was {incarnation or 'none'}"
    holder, claims = Holder(batch.member, batch.incarnation, batch.epoch), moment.claims
    for partition in batch.ranges:
        held = claims.get(partition)
        if held is None or held.holder != holder:
            return f"was begun on {partition}, which {batch.member} did not hold"
    return ""


def end_flaw(moment: Moment, batch: Batch) -> str:
    """Return what speaks against the end, now, of a batch that was done; empty: nothing."""
    since, until = batch.begun_after, batch.ended_after
    if until is None:
        return f"is {batch.outcome} without an end"
    if until < since:
        return f"began after event {since} and ended after event {until}"
    if moment.epoch != batch.epoch:
        return f"of epoch {batch.epoch} was accepted in epoch {moment.epoch}"
    if moment.newest.get(batch.member) != batch.incarnation:
        return f"of incarnation {batch.incarnation} of {batch.member} was accepted after a newer one was registered"
    holder, claims = Holder(batch.member, batch.incarnation, batch.epoch), moment.claims
    for partition in batch.ranges:
        held = claims.get(partition)
        if held is None or held.since > since or held.holder != holder:
            return f"was accepted although the claim of {batch.member} on {partition} had gone meanwhile"
    return "" if moment.state in ENDING else f"was accepted while the region was {moment.state}"


def proves(attempt: Attempt, batch: Batch) -> bool:
    """Whether a reset that is done proves a batch done whose end was not accepted.

    It has to be the one done next after the batch's epoch, which the caller sees to, in the same timeline, with entries
    that are progress at or beyond the ends of all its ranges. A batch is one transaction of its sink, so a partition
    that nobody could place, as the brokers have it no more, says nothing where another one of the batch does.
    """
    if attempt.timeline != batch.timeline:
        return False
    told = False
    for partition, range_ in batch.ranges.items():
        entry = attempt.seek.get(partition)
        if entry is None or entry.offset is None:
            continue
        if entry.source is not SeekSource.SINK_PROGRESS or entry.offset < range_.to:
            return False
        told = True
    return told
