"""The members of one process, as one, and what their life hangs on besides their region: their Airflow task.

A kill from Airflow's page ends the task's process group within seconds, and there is no time in it for a drain. So the
application runs in a session of its own, and ends itself: when its task is gone, it begins no further batch, asks the
region for a checkpoint, waits for it within a bound, and ends as SIGTERM would have it. Its work is in a checkpoint
then, and its successor continues there, without a reset. A driver in a cluster has no task on its host; that one's last
checkpoint is asked for by its trigger, and the driver finds the request in the store. A lost host, or a cluster's own
kill, is for the lease; what this process itself is made of is watched elsewhere (`watch`).
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Members
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from types import FrameType
from typing import Final

from airflow_kcr.driver.task import Task
from airflow_kcr.errors import ConfigurationError, KcrError, OutcomeUnknown, StoreBusy
from airflow_kcr.ports import MemberStore
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.rows import CheckpointPurpose, Committed, Requester, RequestState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import CheckpointRules
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, MemberId, RegionName, RequestId
from airflow_kcr.runtime.host import End, Ended, MemberHost
from airflow_kcr.runtime.leases import boot_time
from airflow_kcr.runtime.metrics import Snapshot
from airflow_kcr.runtime.planner import Limits
from airflow_kcr.store.regions import RegionStore

# The pool

WAIT: Final = timedelta(seconds=5)
"""How long one wait for notifications lasts if nothing happens; then the store is asked for its counter again."""

_PAUSE: Final = 1.0
"""Seconds to wait where the store can't be asked."""

_LOG = logging.getLogger(__name__)


class MemberPool:
    """Hosts members of one region.

    Args:
        store: what they wait for.
        region: theirs.
        hosts: the members, none of them started.
    """

    def __init__(self, store: MemberStore, region: RegionName, hosts: Members[MemberHost]) -> None:
        self.hosts = tuple(hosts)
        self._notifications = Notifications(store, region, self.hosts)
        self.is_ending = False
        """Whether the members were asked to end."""

    @property
    def members(self) -> tuple[MemberId, ...]:
        """Who they are."""
        return tuple(host.who.member for host in self.hosts)

    @property
    def close_time(self) -> float:
        """Seconds within which all members end once they were asked to."""
        return max(host.who.timeouts.close.total_seconds() for host in self.hosts)

    def start(self) -> None:
        """Begin; returns at once."""
        for host in self.hosts:
            host.start()
        self._notifications.start()

    def hold(self) -> None:
        """Have no member plan a further batch.

        They end what runs, stay in their groups, and take part in checkpoints.
        """
        for host in self.hosts:
            host.hold()

    def terminate(self) -> None:
        """Ask every member to end within its close time, keeping a static member's slot."""
        self.is_ending = True
        for host in self.hosts:
            host.terminate()

    def fail(self, error: BaseException) -> None:
        """End every member because of an error that none can answer; returns at once."""
        for host in self.hosts:
            host.fail(error)

    def wait(self, timeout: float) -> bool:
        """Wait until all members have ended; return whether they have, within `timeout` seconds.

        A member that failed takes the others with it: they have its process, its JVM and its fate in common, and come
        back as one reset instead of one after the other. So does one whose spec is not in force any more: theirs is
        not either.
        """
        deadline = boot_time() + timeout
        while (left := deadline - boot_time()) > 0:
            running = [host for host in self.hosts if host.wait(0) is None]
            if not running:
                return True
            if any(ended.how is End.FAILED or ended.is_outdated for ended in self.ends().values()):
                self.terminate()
            running[0].wait(min(left, 0.25))
        return all(host.wait(0) is not None for host in self.hosts)

    def ends(self) -> dict[MemberId, Ended]:
        """Return how the members that have ended did so."""
        return {host.who.member: ended for host in self.hosts if (ended := host.wait(0)) is not None}

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Return every member as it was a moment ago."""
        return tuple(host.snapshot for host in self.hosts)

    def spec_revision(self) -> int:
        """Return the newest revision of the spec that a member has seen in force; 0 before any has."""
        return max((host.spec_revision for host in self.hosts), default=0)

    def adopt(self, checkpoint: CheckpointRules, limits: Limits, revision: int) -> None:
        """Have every member follow a changed spec, as far as it changes while members live (`MemberHost.adopt`)."""
        for host in self.hosts:
            host.adopt(checkpoint, limits, revision)

    def newest_checkpoint(self) -> CheckpointNumber:
        """Return the newest number that a checkpoint or a reset has used.

        A checkpoint may be over before it is read.
        """
        return max((host.newest_checkpoint for host in self.hosts), default=CheckpointNumber(0))

    def end(self) -> None:
        """Stop listening for notifications; returns at once."""
        self._notifications.end()


class Notifications:
    """Receives notifications of the region, so that all members of one process read at once, not at their next renewal.

    A notification may come late, twice or never; its receiver reads, and decides by what it reads.

    Args:
        store: what is waited for.
        region: its name.
        hosts: the members.
    """

    def __init__(self, store: MemberStore, region: RegionName, hosts: Members[MemberHost]) -> None:
        self._store, self._region, self._hosts = store, region, hosts
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{region} notifications", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def end(self) -> None:
        """End with the present wait; returns at once."""
        self._ending.set()

    def _run(self) -> None:
        known = EventNumber(0)
        while not self._ending.is_set():
            try:
                newest = self._store.wait(self._region, known, WAIT)
            except KcrError as error:
                _LOG.debug("no notifications of region %s for now: %s", self._region, error)
                self._ending.wait(_PAUSE)
                # A store that was restored counts from where it stood.
                known = EventNumber(0)
                continue
            if newest > known:
                known = newest
                for host in self._hosts:
                    host.post(messages.Changed(counter=newest))


# The parent watchdog

POLL_PERIOD: Final = 0.5
"""Seconds between two reads of the task's process."""

REQUEST_PERIOD: Final = 2.0
"""Seconds between two looks in the store for the last checkpoint of a task that is not on this host."""

LAST_START: Final = 0.3
"""Seconds in which a batch that was planned already begins, after none may be planned any more."""

GRACE: Final = 30.0
"""Seconds after the close time within which the process is over, whatever hangs."""


class ParentWatchdog:
    """Watches the task of this process, and ends its members when it is gone.

    Args:
        store: the region's.
        region: the members'.
        task: None: no task, and nothing to watch.
        end_process: ends this process at once, with a reason.
    """

    def __init__(
        self,
        store: RegionStore,
        region: RegionName,
        *,
        task: Task | None,
        end_process: Callable[[str], None],
    ) -> None:
        self._store, self._region, self._task, self._end_process = store, region, task, end_process
        self._is_going = threading.Event()
        self._over = threading.Event()
        self._member_pool: MemberPool | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch for as long as the block lasts; if there is nothing to watch, do nothing."""
        with self._listening():
            if self._task is not None:
                threading.Thread(target=self._watch_task, args=(self._task,), name="watch task", daemon=True).start()
            try:
                yield
            finally:
                self._over.set()

    def hold(self, member_pool: MemberPool) -> None:
        """Set which members to end; before this call there is nothing to drain, and the process ends at once."""
        self._member_pool = member_pool

    # -- watching ------------------------------------------------------------------------------------------------

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Have SIGUSR1 say that the task is about to go: its `on_kill` knows seconds before its process is over."""
        if self._task is None:
            yield
            return

        def going(number: int, frame: FrameType | None) -> None:
            self._is_going.set()

        before = signal.signal(signal.SIGUSR1, going)
        try:
            yield
        finally:
            # Not back to the default, by which a late signal would end the process at once.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN if before is signal.SIG_DFL else before)

    def _watch_task(self, task: Task) -> None:
        while not self._over.is_set():
            period = POLL_PERIOD if task.pid else REQUEST_PERIOD
            if self._is_going.wait(period) or task.is_gone() or self._is_asked(task):
                self._task_gone(task)
                return

    def _is_asked(self, task: Task) -> bool:
        """Whether the last checkpoint of a task that is not on this host is asked for; its trigger asks by its name.

        Before there are members, nothing is asked here: they would not begin any work in the meantime.
        """
        member_pool = self._member_pool
        if task.pid or member_pool is None:
            return False
        request_id = RequestId(task.request_id)
        try:
            return self._store.read_as(
                self._region, member_pool.members[0], lambda region, now: region.request_of(request_id) is not None
            )
        except KcrError as error:
            _LOG.debug("whether the task is gone could not be read, it is tried again: %s", error)
            return False

    # -- the end -------------------------------------------------------------------------------------------------

    def _task_gone(self, task: Task) -> None:
        member_pool = self._member_pool
        if member_pool is None:
            self._end_process("the Airflow task is gone, and nothing was consumed yet")
            return
        if member_pool.is_ending:
            return
        _LOG.warning("the Airflow task (%s) is gone or going: drain within %s, then end", task, task.drain)
        member_pool.hold()
        draining = threading.Thread(target=self._drained, args=(member_pool, task), name="last drain", daemon=True)
        draining.start()
        draining.join(task.drain.total_seconds())
        if draining.is_alive():
            _LOG.warning(
                "the drain is not over within %s; what no checkpoint holds will be processed again", task.drain
            )
        member_pool.terminate()
        if not self._over.wait(member_pool.close_time + GRACE):
            self._end_process("its members did not end")

    def _drained(self, member_pool: MemberPool, task: Task) -> None:
        """Return when what the members have done is in a checkpoint that Kafka has, or when it won't be."""
        self._over.wait(LAST_START)
        try:
            drain(self._store, self._region, frozenset(member_pool.members), task)
        except KcrError as error:
            _LOG.warning("no drain, as the task is gone: %s", error)


def drain(store: RegionStore, name: RegionName, members: frozenset[MemberId], task: Task) -> None:
    """Wait until everything that these members have processed is in a checkpoint, asking for one where it is not.

    They must not begin anything meanwhile.

    Args:
        store: the region's.
        name: the region.
        members: all of this process.
        task: names the request, and says how long to wait.

    Raises:
        KcrError: there will be no checkpoint, or the store is away.
    """
    deadline = monotonic() + task.drain.total_seconds()
    request_id = RequestId(task.request_id or f"task-gone:{task.pid}/{task.started}")
    while (left := deadline - monotonic()) > 0:
        try:
            region, _ = store.read(name)
            if may_go(region, members):
                _LOG.info("everything that was processed is in checkpoint %s", region.restore_sequence)
                return
            known = region.request_of(request_id)
            if known is not None and known.state is RequestState.ANSWERED and _is_beyond(region, members):
                # The trigger's request was answered before the members were held: what they did since needs another.
                request_id = RequestId(f"{request_id}/held")
                known = region.request_of(request_id)
            if known is None or known.state is RequestState.ABORTED:
                ask(store, name, request_id, Requester(who="airflow", reason="the task is gone"))
            store.wait(name, region.counter, timedelta(seconds=min(left, POLL_PERIOD)))
        except (StoreBusy, OutcomeUnknown):
            continue


def ask(store: RegionStore, name: RegionName, request_id: RequestId, requester: Requester) -> None:
    """Ask for the last checkpoint of a task, or find it asked for.

    It does not wait for a boundary: the successor answers the request for that one.

    Raises:
        RefusedError: the region is halted or stopped, or has no live member.
    """
    if not request_id:
        raise ConfigurationError("a request for a checkpoint needs a request id")
    store.handle(name, RequestCheckpoint(request_id=request_id, purpose=CheckpointPurpose.DRAIN, requester=requester))


def may_go(region: Region, members: frozenset[MemberId]) -> bool:
    """Whether these members may go without anything being processed again: nothing lies beyond the newest checkpoint.

    While a checkpoint is open they stay: to leave would abort it.
    """
    if region.checkpoint is not None or any(batch.member in members for batch in region.running.values()):
        return False
    if _is_beyond(region, members):
        return False
    own = {p: claim for p, claim in region.claims.items() if claim.owner in members}
    restore_point = region.restore_checkpoint
    if restore_point is None or restore_point.committed is not Committed.PENDING:
        return True
    return own.keys() <= region.read_backs.get(restore_point.sequence, EMPTY).keys()


def _is_beyond(region: Region, members: frozenset[MemberId]) -> bool:
    """Whether these members have processed anything since the newest checkpoint."""
    return any(claim.owner in members and claim.position != claim.resume for claim in region.claims.values())
