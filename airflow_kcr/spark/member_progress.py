"""Members as their application shows them: snapshots of the runtime, made pictures of the progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from airflow_kcr.protocol.values import MemberId
from airflow_kcr.runtime.clocks import Clock, Seconds, boot_time
from airflow_kcr.runtime.metrics import UNKNOWN, Snapshot
from airflow_kcr.spark.progress import MemberProgress

WINDOW: Final = 10.0
"""Seconds over which a rate is taken: some batches long, and short enough to show that nothing moves any more."""


@dataclass(slots=True)
class Watched:
    """Turns snapshots into progress; asked by one thread.

    Args:
        snapshots: of all members, as they were a moment ago.
        clock: for rates.
    """

    snapshots: Callable[[], tuple[Snapshot, ...]]
    clock: Clock = boot_time
    _seen: dict[MemberId, deque[tuple[Seconds, int]]] = field(default_factory=dict)

    def __call__(self) -> list[MemberProgress]:
        """Return what is to be shown now."""
        return [self._progress(one) for one in self.snapshots()]

    def _progress(self, one: Snapshot) -> MemberProgress:
        millis, records = one.counters["batchTimeMillis"], int(one.counters["nRecords"])
        known = UNKNOWN not in one.lag.values()
        return MemberProgress(
            member=str(one.member),
            state=str(one.state) if one.why is None else f"{one.state} ({one.why})",
            partitions=len(one.positions),
            records_done=records,
            records_per_second=self._rate(one.member, records),
            lag=sum(one.lag.values()) if known else None,
            checkpoint="" if one.checkpoint is None else f"{one.checkpoint} {one.checkpoint_phase}",
            last_batch=timedelta(milliseconds=millis) if one.counters["nBatches"] else None,
        )

    def _rate(self, member: MemberId, records: int) -> float:
        now = self.clock()
        seen = self._seen.setdefault(member, deque())
        seen.append((now, records))
        while len(seen) > 2 and seen[0][0] < now - WINDOW:
            seen.popleft()
        since, before = seen[0]
        return (records - before) / (now - since) if now > since else 0.0
