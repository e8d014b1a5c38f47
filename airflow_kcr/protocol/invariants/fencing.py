"""R6, R9: who acted, and whether they were allowed to at that moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from airflow_kcr.protocol.invariants.acceptance import begin_flaw
from airflow_kcr.protocol.invariants.check import Check, Findings
from airflow_kcr.protocol.invariants.history import Holder
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region.events import (
    Acknowledged,
    CheckpointCompleted,
    CommitReadBack,
    Contributed,
    DrainBegun,
    Event,
    StateChanged,
)
from airflow_kcr.protocol.region.rows import Batch, RegionState
from airflow_kcr.protocol.values import EventNumber


@dataclass(slots=True, kw_only=True)
class Fenced(Check):
    """R6 (V) no accepted batch, contribution or commit read-back carries an old epoch, incarnation or claim.

    A batch: at its begin, whatever became of it, its epoch and incarnation are the newest, its member has not left and
    holds every range by a claim of both; if it was done, these claims were held without a break until its end, in the
    same epoch and before any newer incarnation, while the region ran or drained; or the sink's progress proved it done
    in the reset that followed. A contribution and a commit read-back: the same at their moment, for every partition
    they name; an acknowledgement: epoch and incarnation.

    It can't see leases, which are renewed without an event, nor whether a member that left gave up its claims or keeps
    its slot; nor what a zombie did in a sink (R1b).
    """

    invariant: ClassVar[str] = "R6"
    sees_batches: ClassVar[bool] = True

    def begin(self, moment: Moment, batch: Batch, findings: Findings) -> None:
        """See `Check`."""
        flaw = begin_flaw(moment, batch)
        if flaw:
            findings.add(f"batch {batch.batch} {flaw}", batch.begun_after)

    def unproven(self, moment: Moment, batch: Batch, flaw: str, findings: Findings) -> None:
        """See `Check`."""
        numbers = (batch.begun_after, batch.ended_after)
        findings.add(f"batch {batch.batch} {flaw}", *(n for n in numbers if n is not None))

    def event(self, moment: Moment, event: Event, findings: Findings) -> None:
        """See `Check`."""
        match event.body:
            case Contributed() as body:
                _act(moment, body, body.offsets, f"a contribution to checkpoint {body.sequence}", findings)
            case CommitReadBack(member=member) as body if member is not None:
                _act(moment, body, body.offsets, f"a commit read-back of checkpoint {body.sequence}", findings)
            case Acknowledged() as body:
                _act(moment, body, EMPTY, "an acknowledgement", findings)
            case _:
                pass


def _act(
    moment: Moment, body: Contributed | CommitReadBack | Acknowledged, offsets: OffsetMap, what: str, findings: Findings
) -> None:
    if body.member is None:
        return
    if body.epoch != moment.epoch:
        detail = f"{what} by {body.member} carries epoch {body.epoch}, the region is in {moment.epoch}"
        findings.add(detail, moment.number)
        return
    incarnation = moment.present.get(body.member)
    if incarnation != body.incarnation:
        was = incarnation or "none"
        detail = f"{what} carries incarnation {body.incarnation} of {body.member}, present is {was}"
        findings.add(detail, moment.number)
        return
    holder = Holder(body.member, body.incarnation, body.epoch)
    strange = [p for p in offsets if moment.holder(p) != holder]
    if strange:
        findings.add(f"{what} names {strange[0]}, which {body.member} does not hold", moment.number)


@dataclass(slots=True, kw_only=True)
class Still(Check):
    """R9 (V) nothing is begun between a drain's completion and the resume.

    No batch begins from a checkpoint's `DrainBegun` until the region runs again, nor between the completion of the
    checkpoint of a person's reset and that reset; more generally, none begins while the region's state is not RUNNING.

    It can't see what a pipeline does beside its batch.
    """

    invariant: ClassVar[str] = "R9"
    sees_batches: ClassVar[bool] = True
    why: str = ""
    """Why nothing may begin; empty: it may."""

    since: EventNumber = EventNumber(0)

    def event(self, moment: Moment, event: Event, findings: Findings) -> None:
        """See `Check`."""
        match event.body:
            case DrainBegun(sequence=sequence):
                self._hold(event.number, f"checkpoint {sequence} drains")
            case CheckpointCompleted(sequence=sequence):
                self._hold(
                    event.number, f"checkpoint {sequence} is complete and what asked for it has not taken effect"
                )
            case StateChanged(before=RegionState.DRAINING):
                self._hold(event.number, "")
            case _:
                pass

    def _hold(self, number: EventNumber, why: str) -> None:
        if why != self.why:
            self.why, self.since = why, number

    def begin(self, moment: Moment, batch: Batch, findings: Findings) -> None:
        """See `Check`."""
        if self.why or moment.state is not RegionState.RUNNING:
            detail = f"batch {batch.batch} begins while {self.why or f'the region is {moment.state}'}"
            findings.add(detail, self.since if self.why else moment.state_since, batch.begun_after)
