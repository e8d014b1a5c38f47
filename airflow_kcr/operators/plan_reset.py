"""Plans a reset: what it would do, before anybody applies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError
from airflow_kcr.hooks import contexts
from airflow_kcr.operators.base import RegionOperator
from airflow_kcr.operators.reset_documents import given

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.api import Region
    from airflow_kcr.protocol.scopes import Scope
    from airflow_kcr.protocol.targets import Target


class KcrPlanResetOperator(RegionOperator):
    """Returns what a reset of a region would do, as `kcr reset plan` shows it; changes nothing.

    The result is a summary: the request, the epoch, the sums and the worst partitions. It is what approval and apply
    take. The plan has the name of run, task and try, so a plan that is made anew is another one::

        KcrPlanResetOperator(task_id="plan", region="flights", target={"by-duration": "{{ params.back }}"})

    Args:
        target: where to, as an option of `kcr reset plan` without its dashes: `"to-earliest"`, or with its value
            `{"to-checkpoint": 12}` (templated). `from-file` takes the text of a CSV. Absent: the checkpoint that was
            chosen by the task right before, a `KcrChooseCheckpointOperator`.
        groups: only these groups (templated).
        topics: only these topics, or partitions of them, as `flights:0,1` (templated).
        skip: records to step over, as `TOPIC:PARTITION:OFFSET` (templated).
        forward: whether a checkpoint of another branch may be jumped to.
        allow_partial: whether a checkpoint that was never complete may be used.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.
    """

    template_fields = (*RegionOperator.template_fields, "target", "groups", "topics", "skip")

    def __init__(
        self,
        *,
        target: str | Mapping[str, object] | None = None,
        groups: Sequence[str] = (),
        topics: Sequence[str] = (),
        skip: Sequence[str] = (),
        forward: bool = False,
        allow_partial: bool = False,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.groups = groups
        self.topics = topics
        self.skip = skip
        self.forward = forward
        self.allow_partial = allow_partial

    def execute(self, context: Context) -> dict[str, object]:
        """Plan, and return the summary of the plan.

        Raises:
            AirflowFailException: the target can't be used; or the log does not have it any more, so that a reset would
                be refused.
            AirflowException: the store or a broker was away.
        """
        from airflow_kcr.api import ResetRequest
        from airflow_kcr.protocol.scopes import parse_scope

        with self.lent(context) as region:
            scope = parse_scope(self.groups, self.topics)
            choice = given(self, context, None, "target") if self.target is None else {}
            request = ResetRequest(
                target=self._target(region, scope, choice),
                scope=scope,
                skip=region.records_to_skip(self.skip, scope),
                forward=self.forward,
                allow_partial=self.allow_partial,
            )
            plan = region.plan_reset(
                request, request_id=f"{contexts.request_id(context)}/try {context['ti'].try_number}"
            )
            if plan.totals.unreachable:
                from airflow_kcr.api.resets import way_out

                lost = next(line for line in plan.lines if line.is_unreachable)
                raise CheckpointNotUsable(
                    f"{plan.target}: {plan.totals.unreachable} partition(s) can't go there any more, such as "
                    f"{lost.partition} to {lost.target}, whose log has {lost.log_start} to {lost.log_end}"
                    f"{f' ({lost.RECREATED})' if lost.is_recreated else ''}; {way_out(plan)}"
                )
        totals = plan.totals
        self.log.info("Plan %s of region %s, epoch %d: %s", plan.plan, plan.region, plan.epoch, plan.target)
        self.log.info("It moves %s; %d record(s) again", plan.moves, totals.replay)
        if plan.upserts:
            sinks = ", ".join(map(str, plan.upserts))
            self.log.warning("Not restored, as mode upsert keeps no history: %s; apply it with consent_upsert", sinks)
        said = {name: choice[name] for name in ("by", "reason") if choice.get(name)}
        return {**plan.summary(), **({"choice": said} if said else {})}

    def _target(self, region: Region, scope: Scope, choice: Mapping[str, object]) -> Target:
        from airflow_kcr.protocol.targets import TargetKind, parse_target

        kind, value = _option(self.target, choice)
        if kind == TargetKind.FROM_FILE:
            return region.offsets_file(value or "", scope)
        return parse_target(kind, value)


def _option(target: str | Mapping[str, object] | None, choice: Mapping[str, object]) -> tuple[str, str | None]:
    """Return the name of a target's option and the text of its value."""
    match target:
        case None:
            if "checkpoint" not in choice:
                raise ConfigurationError("the task before has chosen no checkpoint; say the target, or add such a task")
            return "to-checkpoint", str(choice["checkpoint"])
        case str():
            return target.replace("_", "-"), None
        case Mapping():
            if len(target) != 1:
                raise ConfigurationError(f"a target is one option with its value, not {len(target)}: {sorted(target)}")
            [(kind, value)] = target.items()
            return kind.replace("_", "-"), None if value in (None, True) else str(value)
        case _:
            raise ConfigurationError(f"a target is text or a mapping, not {type(target).__name__}")
