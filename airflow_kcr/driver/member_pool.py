"""The members of one process, as one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence as Members
from datetime import timedelta
from typing import Final

from airflow_kcr.errors import KcrError
from airflow_kcr.ports import MemberStore
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.rules import CheckpointRules
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, MemberId, RegionName
from airflow_kcr.runtime.host import End, Ended, MemberHost
from airflow_kcr.runtime.leases import boot_time
from airflow_kcr.runtime.metrics import Snapshot
from airflow_kcr.runtime.planner import Limits

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

    def leave(self) -> None:
        """Ask every member to end within its close time, and to leave its group: this process does not come back."""
        self.is_ending = True
        for host in self.hosts:
            host.leave()

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

    def spec_digests(self) -> set[str]:
        """Return the digests of what members see as the spec in force: of several, while a change reaches them."""
        return set(filter(None, (host.spec_digest for host in self.hosts)))

    def adopt(self, checkpoint: CheckpointRules, limits: Limits, digest: str) -> None:
        """Have every member follow a changed spec, as far as it changes while members live (`MemberHost.adopt`)."""
        for host in self.hosts:
            host.adopt(checkpoint, limits, digest)

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
