"""A run of a region, as a task carries it out that starts the application of some or all of its members."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_kcr.driver.task import Task
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.goals import RunEnded
from airflow_kcr.hooks.kcr import translated
from airflow_kcr.operators.application import ApplicationOperator
from airflow_kcr.operators.consume import members_in
from airflow_kcr.operators.intervals import boundary_of
from airflow_kcr.protocol.values import GroupId, MemberId, RequestId, format_instant

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.spec import RegionSpec


class RunningOperator(ApplicationOperator):
    """An operator that carries a run out, or has its part in one.

    Args:
        until: the end of what is processed instead of the interval's (templated).
        allow_inexact: checkpoint even where a partition is past that instant.
        group_id: the group whose members are hosted (templated); empty: all members of all groups.
        indexes: which of its members, as for `KcrConsumeOperator` (templated).
        kwargs: as for `ApplicationOperator`.
    """

    template_fields: Sequence[str] = (*ApplicationOperator.template_fields, "until", "group_id", "indexes")

    def __init__(
        self,
        *,
        until: datetime | str | None = None,
        allow_inexact: bool = False,
        group_id: str = "",
        indexes: int | str | Sequence[int] | None = None,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        if (indexes is not None) != bool(group_id):
            raise ConfigurationError("group_id and indexes name the members of an application together; give both")
        super().__init__(**kwargs)
        self.until = until
        self.allow_inexact = allow_inexact
        self.group_id = group_id
        self.indexes = indexes

    def carry_out(self, context: Context, request_id: str) -> None:
        """Carry the run out; where it has nothing to read, or is done, no application is started.

        In a cluster's deploy mode this does not return: `resume` goes on.

        Args:
            context: the task's.
            request_id: names the run.

        Raises:
            AirflowFailException: a retry can't help: something is configured wrongly, or the region refuses.
            AirflowException: it may: the application was ended, or it failed.
        """
        from airflow_kcr.sinks.group import show_at_rest

        with self.lent(context) as region:
            spec = region.spec()
            hosted, until = self._hosted(spec), boundary_of(context, spec, self.until)
            run = region.prepared_run(until, request_id=request_id, allow_inexact=self.allow_inexact, show=show_at_rest)
            if run.is_done_at_rest():
                return
            known = region.show().incarnations
        with translated():
            # When the task is gone, the application leaves: the next try goes on from what was processed.
            task = Task.of_this_process("", timedelta(0))
            name, arguments = f"kcr run {self.region}", self._run_arguments(context, until, request_id)
            if self.group_id:
                indexes = ",".join(str(member.index) for member in hosted)
                name += f" {self.group_id} {indexes}"
                arguments += ["--group", self.group_id, "--index", indexes]
            submission = self.submission(spec, dict.fromkeys(one.group for one in hosted), name, *arguments)
            submit = self.started(context, spec, submission, task)
        if submit.is_cluster:
            before = {str(member): known.get(str(member), 0) for member in hosted}
            goal = RunEnded(request_id=RequestId(request_id), before=before, come_by=self.come_by())
            self.wait_for_cluster(context, submit, goal)

    def _hosted(self, spec: RegionSpec) -> tuple[MemberId, ...]:
        if self.indexes is not None:
            group = GroupId(self.group_id)
            return tuple(MemberId(group, index) for index in members_in(spec, group, self.indexes))
        return tuple(
            MemberId(GroupId(group.group_id), index) for group in spec.groups for index in range(group.members)
        )

    def _run_arguments(self, context: Context, until: datetime | None, request_id: str) -> list[str]:
        run = context["dag_run"]
        options = {
            "--until": "now" if until is None else format_instant(until),
            "--request-id": request_id,
            "--dag-run": f"{run.dag_id}/{run.run_id}",
        }
        flags = {"--allow-inexact": self.allow_inexact, "--takeover": context["ti"].try_number > 1}
        named = [part for option in options.items() for part in option]
        return ["run", self.region, *named, *(flag for flag, is_set in flags.items() if is_set)]
