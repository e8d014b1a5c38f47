"""What is asked of a region as a whole: each verb's command, and the state that is waited for then.

The command line, the API and the operators take them from here. It imports nothing heavy, as each call of `kcr` and
each file of DAGs that is parsed reads it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from airflow_kcr.goals import PAUSED, RUNNING, STOPPED, Goal

if TYPE_CHECKING:
    from airflow_kcr.protocol.region.commands import Command
    from airflow_kcr.protocol.region.rows import Requester
    from airflow_kcr.protocol.region.state import Region


class Verb:
    """Something that is asked of a region; the docstring of each is the help of its command."""

    name: ClassVar[str]
    """The command's, after `kcr region`."""

    goal: ClassVar[Goal]
    """What `--wait` and the operator wait for."""

    @abstractmethod
    def command(self, requester: Requester) -> Command[Region]:
        """Return what the region's rules are asked."""


class StartVerb(Verb):
    """Start a stopped or halted region; resume a paused one.

    The region runs once all its members do; start them with `kcr member run`. --wait shows which are missing.

    Example: kcr region start flights --wait --timeout 5m
    """

    name = "start"
    goal = RUNNING

    def command(self, requester: Requester) -> Command[Region]:
        """Return the start, which a paused region takes as well."""
        from airflow_kcr.protocol.region.commands import StartRegion

        return StartRegion(requester=requester)


class ResumeVerb(StartVerb):
    """Resume a paused region; start a stopped or halted one.

    Example: kcr region resume flights
    """

    name = "resume"


class PauseVerb(Verb):
    """Pause: finish running batches and start no new ones; the members stay in their groups.

    --wait returns when no batch is running. Pausing aborts a checkpoint that hasn't reached its boundary.

    Example: kcr region pause flights --wait
    """

    name = "pause"
    goal = PAUSED

    def command(self, requester: Requester) -> Command[Region]:
        """Return the pause."""
        from airflow_kcr.protocol.region.commands import PauseRegion

        return PauseRegion(requester=requester)


class StopVerb(Verb):
    """Stop: take a checkpoint, publish it and commit it to Kafka; then all members leave.

    A later start resumes at that checkpoint and processes nothing twice. A region that is halted or has no live member
    stops at once, without a checkpoint.

    Example: kcr region stop flights --wait
    """

    name = "stop"
    goal = STOPPED

    def command(self, requester: Requester) -> Command[Region]:
        """Return the stop."""
        from airflow_kcr.protocol.region.commands import StopRegion

        return StopRegion(requester=requester)


class KillVerb(Verb):
    """Stop without a checkpoint: discard running batches at once; the members leave.

    The next start resumes at the restore point and reprocesses the records since, as each group's delivery allows. Use
    kill only if a stop can't drain.

    Example: kcr region kill flights --wait
    """

    name = "kill"
    goal = STOPPED

    def command(self, requester: Requester) -> Command[Region]:
        """Return the kill."""
        from airflow_kcr.protocol.region.commands import KillRegion

        return KillRegion(requester=requester)


START: Final = StartVerb()
RESUME: Final = ResumeVerb()
PAUSE: Final = PauseVerb()
STOP: Final = StopVerb()
KILL: Final = KillVerb()

STEERING: Final = (RESUME, PAUSE, STOP)
"""Those whose command needs no more than the region's name."""
