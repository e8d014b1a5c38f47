"""Liveness in a simulated run, judged every virtual second (R14): work that is not done has a stated reason.

What counts as work and as movement is written here from the words of the invariant, not with the rules of `liveness`:
records below the end of a log, a boundary that has passed, a queued request; positions, the restore point, the state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.liveness import NEVER, Liveness, LogEnd, Seen
from airflow_kcr.protocol.region.rows import RegionState, RequestState
from airflow_kcr.protocol.region.waits import Rule
from airflow_kcr.protocol.rules import CheckpointMode
from airflow_kcr.protocol.values import DesiredState, GroupPartition, Offset

if TYPE_CHECKING:
    from airflow_kcr.protocol.region.state import Region
    from tests.support.simulation.run import Simulation

SILENT: Final = 12.0
"""Seconds for which a region with something to do may stand still without a wait that says why: a batch with its time,
or the wait after failed ones."""

SLACK: Final = 3.0
"""Seconds beyond the wait after failed batches, which grows with their number, until one has started and ended."""

UNEXPLAINED: Final = frozenset({Rule.BOUNDARY, Rule.REQUEST, Rule.RECONCILE, Rule.RECORDS})
"""Rules that only ever wait because of a mistake in others: nothing outside keeps the region from going on."""


class Watch:
    """Looks at one run.

    Args:
        simulation: the run.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._mark: object = None
        self._moved_at = 0.0
        self._skew, self._jumped_at = 0.0, float("-inf")
        self._ends: deque[dict[GroupPartition, LogEnd]] = deque(maxlen=int(SILENT))
        self.wrong: list[str] = []
        """What was found, each once."""

        self.rules: set[Rule] = set()
        """The rules that waited at some time."""

    def look(self) -> Liveness:
        """Look once, and note what is wrong; return what the region waits for."""
        simulation = self._simulation
        region, now = simulation.region, simulation.world.now
        mark = (
            region.state,
            region.restore_sequence,
            region.epoch,
            tuple((p, c.position) for p, c in sorted(region.claims.items())),
        )
        if mark != self._mark:
            self._mark, self._moved_at = mark, now
        found = self._judged(region)
        self.rules.update(w.rule for w in found.waits)
        still = now - self._moved_at
        retry = region.rules.timeouts.retry_after(region.failures).total_seconds()
        if still > max(SILENT, retry + SLACK) and not found.waits and self._has_work(region):
            self._note(f"at {now:.0f} s nothing has moved for {still:.0f} s and nobody says why")
        if simulation.world.skew != self._skew:
            self._skew, self._jumped_at = simulation.world.skew, now
        # By a clock that has just jumped, whatever waits has waited for long; no process could do anything meanwhile.
        for wait in found.stalled if now - self._jumped_at > SILENT else ():
            if wait.rule in UNEXPLAINED:
                self._note(f"at {now:.0f} s stalled: {wait.text()}")
        return found

    def _judged(self, region: Region) -> Liveness:
        simulation = self._simulation
        seen = Seen(worked_at=simulation.store.newest_work(region.name) or NEVER)
        now = simulation.world.clock()
        ends = {p: LogEnd(Offset(log.stable_end), now) for p, log in simulation.logs.items()}
        self._ends.append(ends)
        # Those of a while ago: what has only just come is not missed yet.
        return liveness.judge(region, now, replace(seen, ends=self._ends[0]))

    def _has_work(self, region: Region) -> bool:
        simulation = self._simulation
        if region.state is not RegionState.RUNNING or region.desired_state is not DesiredState.RUNNING:
            return False
        logs = simulation.logs
        boundary = region.next_boundary
        return (
            any(
                c.position is not None and p in logs and c.position < logs[p].stable_end
                for p, c in region.claims.items()
            )
            or any(r.state is RequestState.QUEUED for r in region.requests.values())
            or (
                boundary is not None
                and region.rules.checkpoint.mode is CheckpointMode.AUTO
                and boundary <= simulation.world.clock()
            )
        )

    def _note(self, text: str) -> None:
        if len(self.wrong) < 5:
            self.wrong.append(f"R14: {text}")
