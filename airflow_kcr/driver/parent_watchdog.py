"""What the life of an application's members hangs on besides their region: their Airflow task.

A kill from Airflow's page ends the task's process group within seconds, and there is no time in it for a drain. So the
application runs in a session of its own, and ends itself: when its task is gone, it begins no further batch, asks the
region for a checkpoint, waits for it within a bound, and ends as SIGTERM would have it. Its work is in a checkpoint
then, and its successor continues there, without a reset. A driver in a cluster has no task on its host; that one's last
checkpoint is asked for by its trigger, and the driver finds the request in the store. A cluster that ends a driver in
good order, as Kubernetes does when it empties a node, sends SIGTERM and waits a while: the driver drains in that time,
and its members leave their groups, as they come back elsewhere and later. A lost host, or a cluster's SIGKILL, is for
the lease; what this process itself is made of is watched elsewhere (`watch`).
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from types import FrameType
from typing import Final

from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.driver.task import Task
from airflow_kcr.errors import ConfigurationError, KcrError, OutcomeUnknown, StoreBusy
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.region.rows import CheckpointPurpose, Committed, Requester, RequestState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import MemberId, RegionName, RequestId
from airflow_kcr.store.regions import RegionStore

POLL_PERIOD: Final = 0.5
"""Seconds between two reads of the task's process."""

REQUEST_PERIOD: Final = 2.0
"""Seconds between two looks in the store for the last checkpoint of a task that is not on this host."""

LAST_START: Final = 0.3
"""Seconds in which a batch that was planned already begins, after none may be planned any more."""

GRACE: Final = 30.0
"""Seconds after the close time within which the process is over, whatever hangs."""

EVICTED_WITHIN: Final = 25.0
"""Seconds within which a driver that its cluster ends is to be over: Kubernetes kills it after 30, unless its pod says
otherwise."""

_LOG = logging.getLogger(__name__)


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
        self._is_evicted = False
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

    def terminated(self, member_pool: MemberPool) -> None:
        """Have members end, as SIGTERM asks for; in a cluster they drain and leave their groups first. Returns at once.

        Args:
            member_pool: the members of this process.
        """
        if self._task is None or self._task.pid:
            member_pool.terminate()
            return
        self._is_evicted = True
        self._is_going.set()

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
        end = member_pool.terminate
        if self._is_evicted:
            end = member_pool.leave
            left = timedelta(seconds=max(EVICTED_WITHIN - member_pool.close_time, 0))
            task = replace(task, drain=min(task.drain, left))
            _LOG.warning("the cluster ends this driver (SIGTERM): drain within %s, then leave", task.drain)
        else:
            _LOG.warning("the Airflow task (%s) is gone or going: drain within %s, then end", task, task.drain)
        member_pool.hold()
        draining = threading.Thread(target=self._drained, args=(member_pool, task), name="last drain", daemon=True)
        draining.start()
        draining.join(task.drain.total_seconds())
        if draining.is_alive():
            _LOG.warning(
                "the drain is not over within %s; what no checkpoint holds will be processed again", task.drain
            )
        end()
        if not self._over.wait(member_pool.close_time + GRACE):
            self._end_process("its members did not end")

    def _drained(self, member_pool: MemberPool, task: Task) -> None:
        """Return when what the members have done is in a checkpoint that Kafka has, or when it won't be."""
        self._over.wait(LAST_START)
        try:
            reason = "the cluster ends the driver" if self._is_evicted else "the task is gone"
            drain(self._store, self._region, frozenset(member_pool.members), task, reason)
        except KcrError as error:
            _LOG.warning("no drain: %s", error)


def drain(
    store: RegionStore, name: RegionName, members: frozenset[MemberId], task: Task, reason: str = "the task is gone"
) -> None:
    """Wait until everything that these members have processed is in a checkpoint, asking for one where it is not.

    They must not begin anything meanwhile.

    Args:
        store: the region's.
        name: the region.
        members: all of this process.
        task: names the request, and says how long to wait.
        reason: of the request, as the history will say.

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
                ask(store, name, request_id, Requester(who="airflow", reason=reason))
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
