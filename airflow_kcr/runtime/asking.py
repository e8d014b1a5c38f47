"""The effects that ask or tell the store, and the answers as events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from airflow_kcr.errors import KcrError, MemberInUse, RefusedError
from airflow_kcr.ports import CommittedOffset, Heartbeat, MemberStore, Renewal
from airflow_kcr.protocol.commands import (
    Acknowledge,
    AnswerEntries,
    Assigned,
    ClaimPartitions,
    DiscardBatch,
    FinishBatch,
    KeepSlot,
    Leave,
    ReadRegion,
    Reconcile,
    Register,
    ReportNoted,
    ReportOutOfRange,
    ReportPublished,
    ReportReadBack,
    ReportSeekCommit,
    RequestReset,
    Standing,
    StoreBounds,
)
from airflow_kcr.protocol.member import effects, events
from airflow_kcr.protocol.region.rows import Batch, Noted
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Incarnation
from airflow_kcr.runtime.clocks import Clock, Seconds, StoreClock
from airflow_kcr.runtime.identity import Identity, read_note
from airflow_kcr.runtime.renewals import LeaseCalls
from airflow_kcr.runtime.store_calls import StoreCalls

TRY_AGAIN: Final = 0.5
"""Seconds between two attempts to register while another process holds the index."""


class Asking:
    """Asks the store in one member's name.

    Args:
        store: the verbs.
        who: the member.
        requests: everything but renewals, one after the other.
        leases: the renewals, with those of the other members of the process: they take no region lock, so they must not
            wait behind what does.
        clock: the member's.
        store_clock: told what the store's clock says.
        later: does something in the loop after some seconds.
        sinks_fenced: whether every sink of the pipeline refuses an older epoch by itself.
    """

    def __init__(
        self,
        store: MemberStore,
        who: Identity,
        requests: StoreCalls,
        leases: LeaseCalls,
        *,
        clock: Clock,
        store_clock: StoreClock,
        later: Callable[[Seconds, Callable[[], None]], None],
        sinks_fenced: bool,
    ) -> None:
        self._store, self._who, self._requests, self._leases = store, who, requests, leases
        self._clock, self._store_clock, self._later, self._sinks_fenced = clock, store_clock, later, sinks_fenced
        self._in_use_since: Seconds | None = None
        self.spec_revision = who.spec_revision
        """Of the spec that the member follows; a change that counts at once raises it while the member lives."""

        self.refusal: KcrError | None = None
        """Why the store has no place for the member."""

        self.row: Batch | None = None
        """The newest batch that the store let begin; written before `Begun` is delivered, read after."""

    # -- presence ------------------------------------------------------------------------------------------------

    def register(self, effect: effects.Register) -> None:
        """Ask for a new incarnation; while another process holds the index, ask again for some time."""
        who = self._who
        arrival = Register(
            member=who.member,
            token=f"{who.token}/{effect.previous}",
            label=who.label,
            version=who.version,
            takeover=who.takeover,
            previous=effect.previous,
            sinks_fenced=self._sinks_fenced,
            ends_within=who.timeouts.process_end_boundary,
            spec_revision=self.spec_revision,
        )

        def ask() -> events.Event:
            sent_at = self._clock()
            try:
                incarnation = self._store.handle(who.region, arrival)
            except MemberInUse as error:
                return self._in_use(effect, error)
            self._in_use_since = None
            return events.Registered(incarnation=incarnation, sent_at=sent_at)

        self._requests.call(ask, self._refused)

    def _refused(self, error: KcrError) -> events.Event:
        self.refusal = error
        return events.RegistrationRefused(why=error.message)

    def _in_use(self, effect: effects.Register, error: MemberInUse) -> events.Event:
        """Wait two leases for a holder that may be dead; a takeover waits as long as a drain may take, and fences."""
        now, times = self._clock(), self._who.timeouts
        since = self._in_use_since = now if self._in_use_since is None else self._in_use_since
        patience = 2 * times.lease + (times.drain if self._who.takeover else times.renew / 2)
        if now - since > patience.total_seconds():
            return self._refused(error)
        self._later(TRY_AGAIN, lambda: self.register(effect))
        return events.Tick()

    def renew(self, effect: effects.Renew) -> None:
        """Renew the lease; its age counts from before the request was sent."""
        who = self._who

        def answered(heartbeat: Heartbeat | RefusedError, sent_at: Seconds) -> events.Event:
            if isinstance(heartbeat, RefusedError):
                return events.RenewalRefused(incarnation=Incarnation(0))
            self._store_clock.tell(heartbeat.now)
            if not heartbeat.renewed:
                return events.RenewalRefused(
                    incarnation=heartbeat.incarnation, epoch=heartbeat.epoch, counter=heartbeat.counter
                )
            due = heartbeat.reconcile_at is not None and heartbeat.reconcile_at <= heartbeat.now
            return events.Renewed(
                sent_at=sent_at, counter=heartbeat.counter, needs_reconciling=due, epoch=heartbeat.epoch
            )

        renewal = Renewal(
            region=who.region, member=who.member, incarnation=effect.incarnation, lease=who.timeouts.lease
        )
        self._leases.call(renewal, answered)

    def read(self) -> None:
        """Read the region."""
        who = self._who
        self._requests.call(
            lambda: events.ViewRead(view=self._store.handle(who.region, ReadRegion(member=who.member))),
            lambda error: events.ReadRefused(why=error.message),
        )

    def reconcile(self) -> None:
        """Have done what is due."""
        self._requests.tell(lambda: self._store.handle(self._who.region, Reconcile()))

    def leave(self, effect: effects.LeaveStore) -> None:
        """Give up lease and claims."""
        self._requests.tell(
            lambda: self._store.handle(self._who.region, Leave(member=self._who.member, incarnation=effect.incarnation))
        )

    def keep_slot(self, effect: effects.KeepSlot) -> None:
        """Give up the lease, not the claims."""
        self._requests.tell(
            lambda: self._store.handle(
                self._who.region, KeepSlot(member=self._who.member, incarnation=effect.incarnation)
            )
        )

    def report_later(self, effect: effects.ReportLater) -> None:
        """Tell the store that it is older than what the member remembers."""
        self._requests.tell(lambda: self._store.handle(self._who.region, effect.memory))

    # -- claims and resets ---------------------------------------------------------------------------------------

    def claim(self, effect: effects.Claim, assigned: Mapping[GroupPartition, Assigned]) -> None:
        """Claim an assignment, its logs read."""
        proposal = ClaimPartitions(
            member=self._who.member,
            incarnation=effect.incarnation,
            assignment=effect.assignment,
            partitions=assigned,
        )
        self._requests.call(
            lambda: events.ClaimGranted(
                assignment=effect.assignment, view=self._store.handle(self._who.region, proposal)
            ),
            lambda error: events.ClaimRefused(assignment=effect.assignment, why=error.message),
        )

    def acknowledge(self, effect: effects.Acknowledge) -> None:
        """Write the answers to the open entries, then acknowledge."""

        def ask() -> events.Event:
            if effect.found:
                self._store.handle(self._who.region, AnswerEntries(caller=effect.caller, found=effect.found))
            view = self._store.handle(self._who.region, Acknowledge(caller=effect.caller))
            return events.Acknowledged(epoch=effect.caller.epoch, view=view)

        self._requests.call(
            ask, lambda error: events.AcknowledgementRefused(epoch=effect.caller.epoch, why=error.message)
        )

    def request_reset(self, effect: effects.RequestReset) -> None:
        """Ask for a reset."""
        region = self._who.region
        self._requests.tell(
            lambda: self._store.handle(
                region, RequestReset(caller=effect.caller, cause=effect.cause, detail=effect.detail)
            )
        )

    def report_out_of_range(self, effect: effects.ReportOutOfRange) -> None:
        """Tell what the logs look like."""
        self._requests.tell(
            lambda: self._store.handle(
                self._who.region, ReportOutOfRange(caller=effect.caller, observed=effect.observed)
            )
        )

    def report_partitions(self, effect: effects.ReportPartitions) -> None:
        """Tell which partitions the brokers have."""
        region, inventory = self._who.region, effect.inventory
        self._requests.call(
            lambda: events.PartitionsReported(standing=self._store.handle(region, inventory)),
            lambda _: events.PartitionsReported(standing=Standing(again=True)),
        )

    def compare(self, held: Mapping[GroupPartition, CommittedOffset], newest: CheckpointNumber) -> None:
        """Compare what Kafka holds with what the store knows: a store that was restored knows less.

        Args:
            held: the committed offsets of the member's partitions.
            newest: the newest sequence that the store has used.
        """
        notes = [(place, note) for place, row in held.items() if (note := read_note(row.metadata)) is not None]
        later = [(p, note) for p, note in notes if note.region == self._who.region and note.sequence > newest]
        if not later:
            return
        place, last = max(later, key=lambda one: (max(one[1].epoch, one[1].sequence, one[1].timeline), one[0]))
        noted = Noted(member=self._who.member, epoch=last.epoch, sequence=last.sequence, timeline=last.timeline)
        self._requests.tell(lambda: self._store.handle(self._who.region, ReportNoted(partition=place, noted=noted)))

    # -- batches -------------------------------------------------------------------------------------------------

    def store_bounds(self, effect: effects.StoreBounds) -> None:
        """Store where a boundary falls."""
        self._requests.tell(
            lambda: self._store.handle(
                self._who.region, StoreBounds(caller=effect.caller, boundary=effect.boundary, found=effect.found)
            )
        )

    def begin(self, effect: effects.Begin) -> None:
        """Begin a batch."""
        request = effect.request

        def ask() -> events.Event:
            self.row = self._store.handle(self._who.region, request)
            return events.Begun(batch=request.batch)

        self._requests.call(ask, lambda error: events.BeginRefused(batch=request.batch, why=error.message))

    def end(self, effect: effects.End) -> None:
        """End a batch."""
        who = self._who

        def ask() -> events.Event:
            self._store.handle(
                who.region, FinishBatch(batch=effect.batch, member=who.member, incarnation=effect.incarnation)
            )
            return events.Ended(batch=effect.batch)

        self._requests.call(ask, lambda error: events.EndRefused(batch=effect.batch, why=error.message))

    def discard(self, effect: effects.Discard) -> None:
        """Say that nothing of a batch runs any more; whatever the store says of it, nothing does."""
        who = self._who

        def ask() -> events.Event:
            self._store.handle(
                who.region, DiscardBatch(batch=effect.batch, member=who.member, incarnation=effect.incarnation)
            )
            return events.Discarded(batch=effect.batch)

        self._requests.call(ask, lambda _: events.Discarded(batch=effect.batch))

    # -- checkpoints
    # ----------------------------------------------------------------------------------------------------

    def contribute(self, effect: effects.Contribute) -> None:
        """Store the member's part of a checkpoint."""
        part = effect.part

        def ask() -> events.Event:
            return events.Contributed(sequence=part.sequence, view=self._store.handle(self._who.region, part))

        self._requests.call(ask, lambda error: events.ContributionRefused(sequence=part.sequence, why=error.message))

    def published(self, sequence: CheckpointNumber) -> None:
        """Say that the sinks show a checkpoint."""

        def ask() -> events.Event:
            view = self._store.handle(self._who.region, ReportPublished(sequence=sequence, member=self._who.member))
            return events.Published(sequence=sequence, view=view)

        self._requests.call(ask, lambda _: events.Published(sequence=sequence))

    def read_back(self, effect: effects.ReportReadBack) -> None:
        """Store what Kafka answered."""
        who = self._who
        self._requests.tell(
            lambda: self._store.handle(
                who.region,
                ReportReadBack(
                    sequence=effect.sequence, member=who.member, incarnation=effect.incarnation, offsets=effect.offsets
                ),
            )
        )

    def note_seek_commit(self, effect: effects.CommitSeek, failure: str) -> None:
        """Note whether Kafka was told where the member resumed."""
        self._requests.tell(
            lambda: self._store.handle(self._who.region, ReportSeekCommit(caller=effect.caller, failure=failure))
        )
