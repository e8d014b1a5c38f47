"""The verbs: declare, start, pause, resume, drain, stop, kill; and what a restored store means.

Four ways to stop, each with one meaning: **pause** finishes the batch and keeps membership; **drain** cuts, then goes
on or stays paused; **stop** drains, commits everywhere, then all leave; **kill** leaves now, and the next start resumes
at the base. Draining and resuming is always safe. Verbs set `wanted`, so a pause survives a crash (scenario C24).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from airflow_kcr.errors import RegionInState
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import (
    automatic,
    completion,
    cuts,
    events,
    membership,
    noted,
    person,
    requests,
    resets,
    specs,
)
from airflow_kcr.protocol.region.rows import (
    RESET_STATES,
    Committed,
    CutPhase,
    CutPurpose,
    Halt,
    HaltReason,
    Member,
    Noted,
    RegionState,
    Requester,
    ResetCause,
    Wanted,
)
from airflow_kcr.protocol.region.state import Region, Spec, live_members, moved_to, put, record
from airflow_kcr.protocol.values import (
    MAX_NUMBER,
    Epoch,
    EventNumber,
    GroupPartition,
    Incarnation,
    Lineage,
    MemberId,
    Nonce,
    RegionName,
    Sequence,
)

NOBODY: Final = Requester()

_RESTORED_CHOICES: Final = (
    "compare the newest checkpoint with Kafka's committed offsets and the sinks",
    "resume: every record since the restored base is processed again",
    "apply a forced reset to the place that the sinks agree on",
)


def declare(name: RegionName, spec: Spec, now: datetime) -> Region:
    """Return a new region, stopped."""
    deliveries = {str(g): str(rules.delivery) for g, rules in spec.rules.groups.items()}
    return record(Region(name=name, spec=spec), now, events.RegionCreated(deliveries=deliveries))


def _want(region: Region, now: datetime, wanted: Wanted, requester: Requester) -> Region:
    if wanted is region.wanted:
        return region
    return record(replace(region, wanted=wanted), now, events.WantedChanged(wanted=wanted, requester=requester))


def start(region: Region, now: datetime, requester: Requester = NOBODY) -> Region:
    """Return a stopped or halted region in its start, which is a reset: same targets, quiet, fences, acknowledgements.

    In any other state nothing but `wanted` changes: joining never raises the epoch.
    """
    region = _want(region, now, Wanted.RUNNING, requester)
    if region.stopping is not None:
        # Its last cut is complete and the others still wait for its echoes: nobody has left, so nobody need start.
        region = moved_to(replace(region, stopping=None), now, RegionState.RUNNING, "resumed before it had stopped")
    if region.state not in {RegionState.STOPPED, RegionState.HALTED}:
        return requests.cancel(region, now, "the region was resumed", purposes=frozenset({CutPurpose.STOP}))
    opening = _at_restored_base(region)
    region = specs.take_pending(replace(region, failures=0), now)
    return resets.begin(region, now, ResetCause.START, opening=opening, detail=requester.who)


def _at_restored_base(region: Region) -> resets.Opening | None:
    """Return the opening of a resume after a restore: the base as the store now has it, in a lineage of its own.

    Sinks may hold what the store has forgotten, of lineages that it never heard of. In a newer one they go back to the
    base, which is what the choice of a resume says.
    """
    if region.halt is None or region.halt.reason is not HaltReason.RESTORED or region.base is None:
        return None
    checkpoint = region.base if region.base_epoch is None else None
    return resets.Opening(seek=automatic.base_map(region), checkpoint=checkpoint)


def pause(region: Region, now: datetime, requester: Requester = NOBODY) -> Region:
    """Return the region paused: batches in flight end, none begins, members keep their membership.

    A cut that approaches a bound is aborted, as nobody will get there; its request is asked again after the resume.

    Raises:
        RegionInState: it is stopped or stopping.
    """
    if region.state is RegionState.STOPPED or region.wanted is Wanted.STOPPED:
        raise RegionInState(f"region {region.name} is stopped or stopping; start it, then pause it")
    region = _want(region, now, Wanted.PAUSED, requester)
    return _give_up_approach(region, now, "the region was paused")


def _give_up_approach(region: Region, now: datetime, why: str) -> Region:
    cut = region.cut
    if cut is None or cut.phase is not CutPhase.APPROACHING:
        return region
    region = cuts.abort(region, now, why)
    if cut.purpose not in requests.BY_PERSON:
        return region
    # A person's later word counts: what may approach in a paused region would be opened again at once.
    return requests.cancel_one(region, now, region.requests[cut.nonce], why)


def stop(region: Region, now: datetime, requester: Requester = NOBODY) -> Region:
    """Return the region on its way to STOPPED: a cut, published and committed, then all leave.

    Without a live member it is stopped at once, marked undrained; so it is when halted, which can't drain (C60).
    """
    region = _want(region, now, Wanted.STOPPED, requester)
    if region.state is RegionState.STOPPED:
        return region
    region = person.fail_all(region, now, "the region was stopped")
    if not live_members(region, now) or region.state is RegionState.HALTED:
        return stopped(region, now, drained=False)
    region = _give_up_approach(region, now, "the region was stopped")
    return ask_stop_cut(region, now)


def ask_stop_cut(region: Region, now: datetime) -> Region:
    """Return the region with the cut of its stop asked for, if none is under way; also after a reset came between."""
    nonce = Nonce(f"stop:{region.epoch}:{region.base}")
    if region.wanted is not Wanted.STOPPED or region.stopping is not None or region.state is RegionState.STOPPED:
        return region
    if any(r.purpose is CutPurpose.STOP for r in requests.queue(region)):
        return region
    if region.cut is not None and region.cut.purpose is CutPurpose.STOP:
        return region
    return requests.ask(region, now, nonce=nonce, purpose=CutPurpose.STOP)


def stopped(region: Region, now: datetime, *, drained: bool) -> Region:
    """Return the region stopped: open cut, requests and the running reset are given up; leases end by themselves."""
    region = cuts.abort(region, now, "the region stopped")
    every = frozenset(CutPurpose)
    region = requests.cancel(region, now, "the region stopped", purposes=every)
    region = resets.give_up(region, now, "the region stopped; the next start goes to the base")
    region = resets.settle_commit(region, now, Committed.NO, "the region stopped first")
    region = noted.taken_over(region, now)
    region = record(replace(region, stopping=None, halt=None, unowned={}), now, events.Stopped(drained=drained))
    return moved_to(region, now, RegionState.STOPPED, "drained" if drained else "undrained")


def kill(region: Region, now: datetime, requester: Requester = NOBODY) -> Region:
    """Return the region stopped in a new epoch: whatever runs is void, all leave now; the next start is at the base."""
    region = person.fail_all(_want(region, now, Wanted.STOPPED, requester), now, "the region was killed")
    region = stopped(region, now, drained=False) if region.state is not RegionState.STOPPED else region
    # A region whose epochs are used up is killed to be deleted; nobody lives in it, so that none is needed to fence.
    region = replace(region, epoch=Epoch(min(region.epoch + 1, MAX_NUMBER)))
    body = events.Killed(epoch=region.epoch, requester=requester)
    return record(region, now, body)


def require_deletable(region: Region, now: datetime) -> None:
    """Refuse to delete a region that anybody may still be working for.

    Raises:
        RegionInState: it is not stopped, or a member still holds a lease.
    """
    live = live_members(region, now)
    if region.state is not RegionState.STOPPED or live:
        holders = f"; leases are held by {', '.join(map(str, live))}" if live else ""
        raise RegionInState(f"region {region.name} is {region.state}{holders}; stop it before deleting it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a member remembers of later times than the store: all of it, it has read in the store."""

    member: MemberId
    epoch: Epoch
    incarnation: Incarnation
    sequence: Sequence
    lineage: Lineage = Lineage(0)
    counter: EventNumber = EventNumber(0)
    """Of the region's events; 0 where that is not known."""

    positions: OffsetMap = EMPTY
    """What the store had accepted, where it now says less of the same claim."""


def seen_later(region: Region, now: datetime, memory: Memory) -> Region:
    """Return the region halted, if the store is older than what somebody has already acted on (scenario C33).

    The numbers are raised above everything that was seen, so that nothing is ever used twice once a person resumes.
    """
    row = region.members.get(memory.member)
    incarnation = Incarnation(0) if row is None else row.incarnation
    later = [
        f"{what} {seen}, the store has {held}"
        for what, seen, held in (
            ("epoch", memory.epoch, region.epoch),
            ("incarnation", memory.incarnation, incarnation),
            ("sequence", memory.sequence, region.next_sequence - 1),
            ("lineage", memory.lineage, region.lineage),
            ("event", memory.counter, region.counter),
        )
        if seen > held
    ]
    later += [f"{partition} at {offset}, which the store has not" for partition, offset in memory.positions.items()]
    if not later:
        return region
    text = f"the store was restored from an older state: {memory.member} has seen {'; '.join(later)}"
    region = resets.give_up(region, now, "the store was restored; a resume goes to the base")
    region = replace(
        region,
        epoch=Epoch(max(region.epoch, memory.epoch)),
        lineage=Lineage(max(region.lineage, memory.lineage)),
        next_sequence=Sequence(max(region.next_sequence, memory.sequence + 1)),
    )
    if memory.incarnation > incarnation:
        row = row or Member(member=memory.member, incarnation=incarnation, left=True)
        region = membership.with_predecessor_fenced(region, memory.member)
        raised = replace(row, incarnation=memory.incarnation)
        region = replace(region, members=put(region.members, {memory.member: raised}))
    region = record(region, now, events.StoreRestoredSeen(member=memory.member, detail="; ".join(later)))
    kept = None if region.halt is None else region.halt.noted
    reason = Halt(reason=HaltReason.RESTORED, text=text, choices=_RESTORED_CHOICES, noted=kept)
    return resets.halt(region, now, reason)


def noted_later(region: Region, now: datetime, place: GroupPartition, note: Noted) -> Region:
    """Return the region halted, if Kafka's commit metadata knows later numbers than the store; none is raised yet.

    A halted or stopped region stays as it is: when it starts, its members look again.

    Args:
        region: the region.
        now: the store's clock.
        place: beside whose committed offset the note stands.
        note: what it says.
    """
    if region.state in {RegionState.HALTED, RegionState.STOPPED}:
        return _also_noted(region, now, note)
    later = "; ".join(noted.later(region, note))
    if not later:
        return region
    where = f"Kafka's commit metadata of {place}, read by {note.member}, says {later}"
    region = resets.give_up(region, now, "Kafka knows later numbers than the store; a resume goes to the base")
    region = record(region, now, events.StoreRestoredSeen(member=note.member, detail=later))
    if noted.is_reachable(region, note):
        reason = Halt(
            reason=HaltReason.RESTORED,
            text=f"the store was restored from an older state, or somebody else has written this: {where}",
            choices=(*_RESTORED_CHOICES, _overwrite(region, place)),
            noted=note,
        )
    else:
        reason = Halt(
            reason=HaltReason.RESTORED,
            text=f"somebody else has written this, as no region gets there: {where}",
            choices=(f"find who else may commit to group {place.group}", _overwrite(region, place)),
        )
    return resets.halt(region, now, reason)


def _also_noted(region: Region, now: datetime, note: Noted) -> Region:
    """Keep the greatest numbers of several notes, where the region was halted for one of them."""
    halt = region.halt
    if halt is None or halt.noted is None or not noted.is_reachable(region, note):
        return region
    greatest = replace(
        halt.noted,
        epoch=max(halt.noted.epoch, note.epoch),
        sequence=max(halt.noted.sequence, note.sequence),
        lineage=max(halt.noted.lineage, note.lineage),
    )
    if greatest == halt.noted:
        return region
    detail = "; ".join(noted.later(region, note))
    return record(
        replace(region, halt=replace(halt, noted=greatest)),
        now,
        events.StoreRestoredSeen(member=note.member, detail=detail),
    )


def _overwrite(region: Region, place: GroupPartition) -> str:
    """Return how a note that somebody else has written is removed."""
    base = region.base if region.base_epoch is None else None
    if base is not None and place in region.offsets.get(base, EMPTY):
        how = f"kcr checkpoint repair {region.name} {base}"
    else:
        how = f"kafka-consumer-groups.sh --delete-offsets --group {place.group} --topic {place.topic}"
    return (
        f"if nobody restored the store: stop the region (kcr region stop {region.name}); once its members have left, "
        f"overwrite what was written ({how}), then start it (kcr region start {region.name})"
    )


def outsider(region: Region, now: datetime, text: str) -> Region:
    """Return the region halted because a foreign consumer is in one of its groups (policy `fail`).

    One that is halted keeps its reason, and what follows from it; one that is stopped has nothing to be halted.
    """
    if region.state in {RegionState.HALTED, RegionState.STOPPED}:
        return region
    choices = ("remove the foreign consumer, then resume", "set outsiders to hold or warn, then resume")
    return resets.halt(region, now, Halt(reason=HaltReason.OUTSIDER, text=text, choices=choices))


def is_stop_due(region: Region, now: datetime) -> bool:
    """Whether a region that is wanted stopped has nobody left to drain it."""
    return (
        region.wanted is Wanted.STOPPED
        and region.state in {RegionState.RUNNING, RegionState.DRAINING, *RESET_STATES}
        and not live_members(region, now)
    )


def finish_stop(region: Region, now: datetime) -> Region:
    """Return the region stopped, where its stop has nothing left to wait for."""
    if completion.is_stop_done(region):
        return stopped(region, now, drained=True)
    return stopped(region, now, drained=False) if is_stop_due(region, now) else region
