"""Leases: who a member's process is for the store and for Kafka, the clocks that judge its leases, their renewal.

Every member asks for its own renewal, so a lease is only renewed while the loop that it belongs to turns. Members ask
when the clock that they share passes a multiple of the interval (`presence.lease`); what is asked within a moment goes
into one statement. Each is answered by itself. A store that is away keeps all of them waiting, and each gets that
answer.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from airflow_kcr.errors import RefusedError, SchemaMissing, SchemaTooNew, SchemaTooOld, StoreError
from airflow_kcr.ports import CommittedOffset, Heartbeats, MemberStore, Renewal
from airflow_kcr.protocol import documents, values
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.region.commands import Heartbeat, Register, Renew, ReportNoted
from airflow_kcr.protocol.region.rows import Noted
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.timeouts import Timeouts

# Clocks

Seconds: TypeAlias = float
Clock: TypeAlias = Callable[[], Seconds]

_BOOT: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> Seconds:
    """Return monotonic seconds that also count while the machine is suspended, where the system has such a clock.

    A lease ends while a laptop sleeps; a clock that stands still meanwhile would not notice.
    """
    return time.clock_gettime(_BOOT)


class StoreClock:
    """A lower bound of the store's clock, from its last answer.

    Boundaries are judged by the store's clock. It was read before its answer arrived, so what it said plus the time
    since the arrival is never ahead of it: a boundary is noticed late, never early.

    Args:
        clock: the member's own.
        now: what the store just said.
    """

    def __init__(self, clock: Clock, now: datetime) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reading = (now, clock())

    def note(self, now: datetime) -> None:
        """Note what the store just answered; an older answer than the one known changes nothing."""
        heard = self._clock()
        with self._lock:
            if now > self._at(self._reading, heard):
                self._reading = (now, heard)

    def now(self) -> datetime:
        """Return a moment that the store's clock has reached."""
        with self._lock:
            return self._at(self._reading, self._clock())

    @staticmethod
    def _at(reading: tuple[datetime, Seconds], moment: Seconds) -> datetime:
        return reading[0] + timedelta(seconds=moment - reading[1])


# Identity


def _token() -> str:
    return uuid.uuid4().hex


def _label() -> str:
    return f"{socket.gethostname()}, process {os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One start of one member."""

    region: values.RegionName
    region_id: values.RegionId
    member: values.MemberId
    group: GroupRules
    timeouts: Timeouts
    takeover: bool = False
    """Whether a live lease of another process is superseded (Airflow's retry of the same task)."""

    spec_digest: str | None = None
    """Of the spec that the member is built from; None: that is not checked."""

    label: str = field(default_factory=_label)
    """Host and process, for people."""

    version: str = ""
    """Of the package that the process runs; empty: it does not say."""

    token: str = field(default_factory=_token)
    """Unique for each start: a repeated registration is recognised by it, and batches are named after it."""

    def registration(self, *, sinks_fenced: bool) -> Register:
        """Return how this process registers the member.

        Args:
            sinks_fenced: whether every sink of the pipeline refuses an older epoch by itself.
        """
        return Register(
            member=self.member,
            token=self.token,
            label=self.label,
            version=self.version,
            takeover=self.takeover,
            sinks_fenced=sinks_fenced,
            ends_within=self.timeouts.process_end_limit,
            spec_digest=self.spec_digest,
        )

    def batch_id(self, number: int) -> values.BatchId:
        """Return the id of this start's batch of that number; no other batch ever has it."""
        return values.BatchId(f"{self.token}-{number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitNote:
    """What a region writes beside the offsets that it commits, as Kafka's metadata."""

    region: values.RegionName
    region_id: values.RegionId
    timeline: values.Timeline
    sequence: values.CheckpointNumber
    epoch: values.Epoch

    def text(self) -> str:
        """Return the metadata: JSON, far below Kafka's limit of 4096 bytes."""
        return json.dumps(documents.write(self, CommitNote), separators=(",", ":"))


def later_note(
    region_id: values.RegionId,
    member: values.MemberId,
    held: Mapping[values.GroupPartition, CommittedOffset],
    newest: values.CheckpointNumber,
) -> ReportNoted | None:
    """Return what to tell a store that knows less than Kafka's commit metadata: it was restored. None: it does not.

    Args:
        region_id: the region's; what others wrote does not count, an earlier region of its name among them.
        member: who tells it.
        held: the committed offsets of the member's partitions.
        newest: the newest checkpoint number that the store has used.
    """
    notes = [(place, note) for place, row in held.items() if (note := read_note(row.metadata)) is not None]
    later = [(p, note) for p, note in notes if note.region_id == region_id and note.sequence > newest]
    if not later:
        return None
    place, last = max(later, key=lambda one: (max(one[1].epoch, one[1].sequence, one[1].timeline), one[0]))
    noted = Noted(member=member, epoch=last.epoch, sequence=last.sequence, timeline=last.timeline)
    return ReportNoted(partition=place, noted=noted)


def read_note(metadata: str) -> CommitNote | None:
    """Return what was written by `CommitNote.text`; None if another program wrote it, or there is none."""
    try:
        return documents.read(json.loads(metadata), CommitNote)
    except (ValueError, RecursionError):  # the latter: brackets without end
        return None


# Renewals

GATHER: Final = 0.05
"""Seconds in which further members may ask after the first one: loops wake up for it at the same moment."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0

FINAL: Final = (SchemaMissing, SchemaTooOld, SchemaTooNew)
"""Asking again is of no use; a person has to do something."""

_LOG = logging.getLogger(__name__)


class LeaseCalls:
    """The renewals of one member; made by `Renewals.member`.

    Args:
        post: hands a renewal to the thread that asks the store.
        deliver: takes the answers; from any thread.
        failed: told what can't be answered; from any thread.
        store_clock: told what the store's clock says.
        clock: the member's.
        silence: how long a renewal may go without an answer before the store counts as lost.
    """

    def __init__(
        self,
        post: Callable[[LeaseCalls], None],
        deliver: Callable[[messages.Event], None],
        failed: Callable[[BaseException], None],
        store_clock: StoreClock,
        clock: Clock,
        silence: timedelta,
    ) -> None:
        self._post, self._deliver, self.failed = post, deliver, failed
        self._store_clock, self._clock, self._silence = store_clock, clock, silence.total_seconds()
        self._asked: Renewal | None = None
        self._waiting_since: Seconds | None = None
        self._lost = False

    def ask(self, region: values.RegionName, command: Renew) -> None:
        """Ask for a renewal, and deliver its answer; not again before that has come."""
        self._asked, self._waiting_since = Renewal(region=region, command=command), self._clock()
        self._post(self)

    def is_silent(self) -> bool:
        """Whether the renewal that was asked for has had no answer for too long, and it is not known yet why."""
        since = self._waiting_since
        return since is not None and self._clock() - since >= self._silence

    def end(self) -> None:
        """Ask for nothing any more; an answer that is on its way is not delivered."""
        self._asked = self._waiting_since = None

    # -- for `Renewals`, in its thread ---------------------------------------------------------------------------

    @property
    def renewal(self) -> Renewal | None:
        """What is asked for; None: nothing any more."""
        return self._asked

    def sent(self, at: Seconds) -> None:
        """Note that it is asked for again, after an attempt that failed."""
        if self._waiting_since is None and self._asked is not None:
            self._waiting_since = at

    def store_away(self, why: str) -> None:
        """Tell that the store did not answer, and why; it is asked again."""
        self._waiting_since, self._lost = None, True
        if self._asked is not None:
            self._deliver(messages.StoreLost(why=why))

    def take(self, answer: Heartbeat | RefusedError, sent_at: Seconds) -> None:
        """Deliver an answer."""
        asked, self._asked, self._waiting_since = self._asked, None, None
        if asked is None:
            return
        if self._lost:
            self._lost = False
            self._deliver(messages.Notice.STORE_BACK)
        if isinstance(answer, RefusedError):
            self._deliver(messages.Refused(command=asked.command, error=answer))
            return
        self._store_clock.note(answer.now)
        self._deliver(messages.Answered(command=asked.command, result=answer, sent_at=sent_at))


class Renewals:
    """Asks the store for what members ask for, in a thread of its own.

    Args:
        store: of all the regions.
        clock: the members'.
    """

    def __init__(self, store: MemberStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._asked: queue.SimpleQueue[LeaseCalls | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kcr leases", daemon=True)
        self._thread.start()

    def member(
        self,
        deliver: Callable[[messages.Event], None],
        failed: Callable[[BaseException], None],
        store_clock: StoreClock,
        silence: timedelta,
    ) -> LeaseCalls:
        """Return what one member asks with; see `LeaseCalls`."""
        return LeaseCalls(self._asked.put, deliver, failed, store_clock, self._clock, silence)

    def end(self) -> None:
        """End with the present request; what is not answered stays so. Returns at once."""
        self._ending.set()
        self._asked.put(None)

    def _run(self) -> None:
        open_: dict[LeaseCalls, None] = {}
        pause = FIRST_PAUSE
        while not self._ending.is_set():
            try:
                self._gather(open_, pause)
                if self._ending.is_set():
                    return
                is_answered = self._ask(open_)
            except BaseException as error:  # noqa: BLE001 - told, not swallowed: every member ends
                for one in open_:
                    one.failed(error)
                open_.clear()
                continue
            # Processes that lost the same store shall not all come back in the same moment.
            again = min(pause * 2, LONGEST_PAUSE) * random.uniform(0.5, 1.0)  # noqa: S311 - nothing depends on it
            pause = FIRST_PAUSE if is_answered else again

    def _gather(self, open_: dict[LeaseCalls, None], pause: Seconds) -> None:
        """Wait for a request, and a moment for others; if some still wait for an answer, for that long."""
        if not open_:
            self._note(open_, self._asked.get())
            pause = GATHER
        until = self._clock() + pause
        while not self._ending.is_set() and (left := until - self._clock()) > 0:
            try:
                self._note(open_, self._asked.get(timeout=left))
            except queue.Empty:
                return

    @staticmethod
    def _note(open_: dict[LeaseCalls, None], one: LeaseCalls | None) -> None:
        if one is not None:
            open_[one] = None

    def _ask(self, open_: dict[LeaseCalls, None]) -> bool:
        """Ask once for all that is open; return whether the store answered, whatever it said."""
        asked = {one: renewal for one in [*open_] if (renewal := one.renewal) is not None}
        open_.clear()
        open_.update(dict.fromkeys(asked))
        if not asked:
            return True
        sent_at = self._clock()
        for one in asked:
            one.sent(sent_at)
        try:
            answers: Heartbeats = self._store.renew([*asked.values()])
        except FINAL:
            raise
        except StoreError as error:
            _LOG.debug("%s lease(s) were not renewed, they are asked for again: %s", len(asked), error)
            for one in asked:
                one.store_away(error.message)
            return False
        for one, renewal in asked.items():
            answer = answers.get(renewal)
            if answer is not None:
                del open_[one]
                one.take(answer, sent_at)
        return True
