"""Renews the leases of all members of one process together: one statement of the store an interval, not one a member.

Every member asks for its own renewal, so a lease is only renewed while the loop that it belongs to turns. Members ask
when the clock that they share passes a multiple of the interval (`presence.lease`); what is asked within a moment goes
into one statement. Each is answered by itself. A store that is away keeps all of them waiting, and each gets that
answer.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from airflow_kcr.errors import RefusedError, SchemaMissing, SchemaTooNew, SchemaTooOld, StoreError
from airflow_kcr.ports import Heartbeats, MemberStore, Renewal
from airflow_kcr.protocol.commands import Heartbeat, Renew
from airflow_kcr.protocol.member import events
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.runtime.clocks import Clock, Seconds, StoreClock

GATHER: Final = 0.05
"""Seconds in which further members may ask after the first one: loops wake up for it at the same moment."""

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0

_FINAL: Final = (SchemaMissing, SchemaTooOld, SchemaTooNew)
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
        deliver: Callable[[events.Event], None],
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

    def ask(self, region: RegionName, command: Renew) -> None:
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
            self._deliver(events.StoreLost(why=why))

    def take(self, answer: Heartbeat | RefusedError, sent_at: Seconds) -> None:
        """Deliver an answer."""
        asked, self._asked, self._waiting_since = self._asked, None, None
        if asked is None:
            return
        if self._lost:
            self._lost = False
            self._deliver(events.StoreBack())
        if isinstance(answer, RefusedError):
            self._deliver(events.Refused(command=asked.command, error=answer))
            return
        self._store_clock.tell(answer.now)
        self._deliver(events.Answered(command=asked.command, result=answer, sent_at=sent_at))


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
        deliver: Callable[[events.Event], None],
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
        pause = _FIRST_PAUSE
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
            again = min(pause * 2, _LONGEST_PAUSE) * random.uniform(0.5, 1.0)  # noqa: S311 - nothing depends on it
            pause = _FIRST_PAUSE if is_answered else again

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
        except _FINAL:
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
