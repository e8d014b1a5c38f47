"""What the operators of a region have in common: which region, in which store, and waiting without holding a slot."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.goals import Goal
from airflow_kcr.hooks import kcr
from airflow_kcr.hooks.kcr import RegionTask, translated
from airflow_kcr.protocol.values import format_instant, parse_instant
from airflow_kcr.triggers.payloads import waiting_for_from_json
from airflow_kcr.triggers.waits import RETRIES, RETRY_DELAY, WaitingTask
from airflow_kcr.verbs import Verb

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_kcr.api import Region


ONE_HOUR: Final = timedelta(hours=1)

PATIENCE: Final = timedelta(seconds=1.5)
"""How long a task polls before it gives its slot up.

To be deferred and resumed takes longer than an idle checkpoint.
"""


class WaitingOperator(WaitingTask):
    """An operator that asks something of a region, and waits until it is done.

    It polls first, so that what is done already costs no deferral. Airflow resumes a deferred task a second or two
    after the region has reached the goal; the region itself doesn't wait.

    Args:
        timeout: how long to wait at most, from the request on; a shorter `execution_timeout` counts instead, which
            Airflow does not apply to a deferred task.
        deferrable: whether to give up the worker's slot while waiting.
        retries: how often to try again; a retry finds the request. Errors that a retry can't fix aren't retried.
        retry_delay: how long to wait before that.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.
    """

    def __init__(
        self,
        *,
        timeout: timedelta = ONE_HOUR,
        deferrable: bool = True,
        retries: int | None = RETRIES,
        retry_delay: timedelta | float = RETRY_DELAY,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.timeout = timeout
        self.deferrable = deferrable

    @abstractmethod
    def ask(self, context: Context, region: Region) -> Goal:
        """Ask it of the region, and return what to wait for; asked twice, it is done once."""

    @abstractmethod
    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Return what the task returns, now that it is done."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Request, poll, and wait if need be.

        Raises:
            AirflowFailException: it is refused; a retry can't help.
            AirflowException: it was not done in time, or the store was away.
        """
        with self.lent(context) as region:
            return self.awaited(context, region, self.ask(context, region))

    def resume(
        self,
        context: Context,
        event: Mapping[str, object],
        waiting_for: Mapping[str, Any] | None = None,
        asked_at: str = "",
    ) -> dict[str, Any]:
        """Go on after the trigger: what it says is looked up in the store again.

        Args:
            context: the task's.
            event: `payloads.TriggerAnswer` as JSON.
            waiting_for: the payload as JSON; None, as `dag.test()` forgets what a deferred task has kept: it is asked
                for once more, which does nothing.
            asked_at: the store's clock when the task began to wait; empty together with `waiting_for`.

        Raises:
            AirflowFailException, AirflowException: as for `execute`.
        """
        self.require_reached(event)
        with translated():
            again = None if waiting_for is None else waiting_for_from_json(waiting_for)
        if not isinstance(again, Goal):
            return self.execute(context)
        with self.lent(context) as region:
            return self.awaited(context, region, again, parse_instant(asked_at))

    def awaited(self, context: Context, region: Region, goal: Goal, asked_at: datetime | None = None) -> dict[str, Any]:
        """Return `answer` once it is done; until then the task is deferred, or waits here.

        Args:
            context: the task's.
            region: the region.
            goal: what for.
            asked_at: the store's clock when the task began to wait; None: now.
        """
        missing, now = region.poll(goal, PATIENCE)
        if missing is not None and not self.deferrable:
            self._wait_here(region, goal)
            missing = None
        if missing is None:
            return self.answer(context, region)
        self.log.info("%s", missing)
        began = asked_at or now
        kept = {"waiting_for": goal.to_json(), "asked_at": format_instant(began)}
        self.give_up_slot(goal, self.timeout, since=began, kept=kept)

    def _wait_here(self, region: Region, goal: Goal) -> None:
        said = ""

        def tell(progress: object) -> None:
            nonlocal said
            if str(progress) != said:
                said = str(progress)
                self.log.info("%s", said)

        region.wait_for(goal, self.at_most(self.timeout), tell)


class StateOperator(WaitingOperator):
    """An operator that asks a region for a state.

    Args:
        wait_for_completion: whether to wait until the region has that state; else the task ends once it was asked.
        kwargs: as for every operator that waits.
    """

    verb: ClassVar[Verb]

    def __init__(self, *, wait_for_completion: bool = True, **kwargs: Any) -> None:  # noqa: ANN401 (Airflow's own)
        super().__init__(**kwargs)
        self.wait_for_completion = wait_for_completion

    def ask(self, context: Context, region: Region) -> Goal:
        """Ask for the state."""
        region.ask(self.verb)
        return self.verb.goal

    def execute(self, context: Context) -> dict[str, Any]:
        """Ask, and wait if that is wanted.

        Raises:
            AirflowFailException: it is refused; a retry can't help.
            AirflowException: it was not done in time, or the store was away.
        """
        if self.wait_for_completion:
            return super().execute(context)
        with self.lent(context) as region:
            self.ask(context, region)
            return self.answer(context, region)

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Return the region's state and its newest checkpoint."""
        view = region.show()
        shown = view.shown.document(view, ("region", "state", "desired_state", "epoch", "timeline"))
        return {**shown, "sequence": view.last_complete}


def sequence_of(given: Mapping[str, Any] | int | str | None, context: Context, region: Region) -> int:
    """Return the sequence of the checkpoint that an operator was given.

    Args:
        given: its sequence, or what `KcrDrainOperator` has returned; None: the one that answered this run's requests.
        context: the task's.
        region: the region.

    Raises:
        ConfigurationError: it is none of these, or another region's.
        UnknownCheckpoint, CheckpointNotUsable: this run has none, or several.
    """
    if given is None:
        asked = kcr.requester(context)
        return region.checkpoints.of_run(asked.dag_id, asked.run_id).checkpoint.sequence
    if isinstance(given, Mapping):
        if given.get("region") != region.name:
            raise ConfigurationError(f"checkpoint is one of region {given.get('region')!r}, not of {region.name}")
        given = given.get("sequence")
    if isinstance(given, bool) or not str(given).isdecimal():
        raise ConfigurationError(
            f"checkpoint is {given!r}; give a sequence, or what KcrDrainOperator has returned (drain.output)"
        )
    return int(str(given))


class CheckpointOperator(RegionTask):
    """An operator of one checkpoint.

    Args:
        checkpoint: which one (templated): its sequence, or the result of a `KcrDrainOperator`; None: the one that
            answered this run's requests.
        kwargs: as for every operator.
    """

    template_fields = (*RegionTask.template_fields, "checkpoint")

    def __init__(self, *, checkpoint: Mapping[str, Any] | int | str | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.checkpoint = checkpoint

    @abstractmethod
    def work(self, region: Region, sequence: int) -> dict[str, object]:
        """Do it, and return what the task returns."""

    def execute(self, context: Context) -> dict[str, object]:
        """Do it in the name of the run.

        Raises:
            AirflowFailException: it is refused; a retry can't help.
            AirflowException: it may.
        """
        with self.lent(context) as region:
            return self.work(region, sequence_of(self.checkpoint, context, region))
