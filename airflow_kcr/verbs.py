"""What is asked of a region as a whole: each verb's command, and the state that is waited for then.

The command line, the API and the operators take them from here. It imports nothing heavy, as each call of `kcr` and
each file of DAGs that is parsed reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_kcr.goals import PAUSED, RUNNING, STOPPED, RegionReaches

if TYPE_CHECKING:
    from airflow_kcr.protocol.region.commands import Command
    from airflow_kcr.protocol.region.rows import Requester
    from airflow_kcr.protocol.region.state import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """Something that is asked of a region; one that more is asked by than its goal has a command of its own."""

    name: str
    """The command's, after `kcr region`."""

    goal: RegionReaches
    """What `--wait` and the operator wait for."""

    help: str
    """The command's."""

    def command(self, requester: Requester) -> Command[Region]:
        """Return what the region's rules are asked: to bring it to the goal."""
        from airflow_kcr.protocol.region.commands import ChangeDesiredState

        return ChangeDesiredState(desired_state=self.goal.state, requester=requester)


class _Kill(Verb):
    def command(self, requester: Requester) -> Command[Region]:
        from airflow_kcr.protocol.region.commands import KillRegion

        return KillRegion(requester=requester)


START: Final = Verb(
    name="start",
    goal=RUNNING,
    help="""Start a stopped or halted region; resume a paused one.

The region runs once all its members do; start them with `kcr member run`. --wait shows which are missing.

Example: kcr region start flights --wait --timeout 5m
""",
)

RESUME: Final = Verb(
    name="resume",
    goal=RUNNING,
    help="""Resume a paused region; start a stopped or halted one.

Example: kcr region resume flights
""",
)

PAUSE: Final = Verb(
    name="pause",
    goal=PAUSED,
    help="""Pause: finish running batches and start no new ones; the members stay in their groups.

--wait returns when no batch is running. Pausing aborts a checkpoint that hasn't reached its boundary.

Example: kcr region pause flights --wait
""",
)

STOP: Final = Verb(
    name="stop",
    goal=STOPPED,
    help="""Stop: take a checkpoint, publish it and commit it to Kafka; then all members leave.

A later start resumes at that checkpoint and processes nothing twice. A region that is halted or has no live member
stops at once, without a checkpoint.

Example: kcr region stop flights --wait
""",
)

KILL: Final = _Kill(
    name="kill",
    goal=STOPPED,
    help="""Stop without a checkpoint: discard running batches at once; the members leave.

The next start resumes at the restore point and reprocesses the records since, as each group's delivery allows. Use
kill only if a stop can't drain.

Example: kcr region kill flights --wait
""",
)

STEERING: Final = (RESUME, PAUSE, STOP, KILL)
"""Those whose command needs no more than the region's name."""
