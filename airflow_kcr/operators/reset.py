"""Operators of a reset DAG: choose a checkpoint, plan, have a person approve, apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk import Param
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.param import ParamsDict

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, RegionInState, ResetNotApproved, StalePlan
from airflow_kcr.goals import ResetFinished
from airflow_kcr.hooks import kcr, stats
from airflow_kcr.hooks.compat import storable
from airflow_kcr.hooks.kcr import RegionTask, translated
from airflow_kcr.hooks.lineage import send_reset
from airflow_kcr.operators import reset_form, reset_texts
from airflow_kcr.operators.base import WaitingOperator
from airflow_kcr.protocol.targets import ToCheckpoint

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.param import DagParam

    from airflow_kcr.api import Plan, Region, ResetRequest
    from airflow_kcr.protocol.region.rows import Requester, ResetAnswer
    from airflow_kcr.protocol.targets import Target

CHOOSE: Final = "Choose"
CANCEL: Final = "Cancel"


class KcrChooseCheckpointOperator(RegionTask, HITLOperator):
    """Asks a person to choose one of the checkpoints that a region can go back to, and returns it.

    The form lists each checkpoint with its boundary, its DAG runs, and how many records a reset to it would replay now.
    The newest one that would move a partition is preselected.

    The answer is checked against the store. If a reset has undone the checkpoint meanwhile, or retention has retired
    it, trigger the DAG again: Airflow 3.3 shows a cleared task the old list. If the person cancels, this task and those
    after it are skipped. Without an answer within `response_timeout`, it fails.

    If the run names its target with a value, as the form of `reset_params` allows, the task returns that without a
    question; a value that doesn't fit fails it for good. For a target without its value it asks for the value alone.

    Args:
        newest: how many checkpoints are shown, the newest first.
        target: the target that the run names, an option of `kcr reset plan` without its dashes (templated):
            `target=dag.param("target")`. Absent: a checkpoint.
        values: the values of targets by the fields of the form (templated): `values={"offset": dag.param("offset")}`.
            Only that of the target may have one. A time without a zone is in Airflow's `default_timezone`.
        reason: why, where the run says so (templated).
        kwargs: as for `HITLOperator`, but for what this operator says itself; `region` and `kcr_conn_id` among them.
    """

    template_fields = (*RegionTask.template_fields, "target", "values", "reason")

    def __init__(
        self,
        *,
        newest: int = 20,
        target: str | DagParam | None = None,
        values: Mapping[str, object] | None = None,
        reason: str | DagParam | None = None,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        kwargs = reset_form.asking(type(self).__name__, kwargs)
        kwargs.setdefault("subject", "Reset: choose a checkpoint")
        super().__init__(options=[CHOOSE, CANCEL], **kwargs)
        if newest < 1:
            raise ConfigurationError(f"newest is how many checkpoints are shown, at least one, not {newest}")
        self.newest = newest
        self.target = storable(target)
        self.values = {name: storable(value) for name, value in (values or {}).items()}
        self.reason = storable(reason)

    def execute(self, context: Context) -> dict[str, object] | None:
        """Return the target that the run names; else show the checkpoints, and wait for the person without a slot.

        Raises:
            AirflowFailException: the target or its value can't be used, or the region has no checkpoint to go back to.
            TaskAwaitingInput: a person is asked; the task continues in `execute_complete`.
        """
        self.show_link(context)
        kind, value = self._named()
        if value is not None or not kind.metavar:
            by, reason = kcr.requester(context).who, str(self.reason or "")
            return {"region": self.region, "target": kind.option, "value": value, "by": by, "reason": reason}
        if kind is ToCheckpoint:
            with self.lent(context) as region:
                found = region.checkpoints.ways_back(self.newest)
            self.subject = f"Reset region {self.region}: to which checkpoint?"
            self.body = reset_texts.choice(found)
            asked = reset_texts.choices(found)
        else:
            self.subject = f"Reset region {self.region}: {kind.option} needs a value"
            self.body = f"{kind.help} Its value was left empty."
            asked = reset_form.value_param(kind)
        self.params = ParamsDict({kind.form_field: asked, "reason": reset_form.reason_param(self.reason)})
        super().execute(context)
        return None  # never: it waits

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, object]:
        """Return what was chosen, looked up in the store again.

        Raises:
            AirflowSkipException: it was cancelled.
            AirflowFailException: it is no checkpoint that the region can go back to.
            AirflowFailException: there was no answer in time.
        """
        with reset_form.answered(self):
            super().execute_complete(context, event)
        if event["chosen_options"] != [CHOOSE]:
            raise AirflowSkipException(f"{reset_form.responder(event) or 'a user'} cancelled; nothing is reset")
        answer = event["params_input"] or {}
        by, reason = reset_form.responder(event), str(answer.get("reason") or "")
        kind, _ = self._named()
        with self.lent(context) as region:
            value = reset_form.value_of(kind, answer.get(kind.form_field))
            if kind is ToCheckpoint:
                row = region.checkpoints.show(int(value)).checkpoint
                if not row.is_complete or not row.is_current:
                    what = row.state if not row.is_complete else "not on the current timeline any more"
                    raise CheckpointNotUsable(f"checkpoint {value} is {what}. {reset_form.AGAIN}")
            region.resets.record_answer(_answer(event, kcr.run_name(context), reason))
        return {"region": self.region, "target": kind.option, "value": value, "by": by, "reason": reason}

    def _named(self) -> tuple[type[Target], str | None]:
        with translated():
            return reset_form.target_of(self.target, self.values or {})


def _answer(event: Mapping[str, Any], request_id: str, reason: str, digest: str = "") -> ResetAnswer:
    """Return a person's answer for the store.

    It is taken from the event with which Airflow resumes the task: Airflow makes it of its own record of the answer,
    which users can't write, as they can an XCom or the state of a task.
    """
    from airflow_kcr.protocol.region.rows import ResetAnswer
    from airflow_kcr.protocol.values import RequestId

    return ResetAnswer(
        request_id=RequestId(request_id),
        who=reset_form.responder(event) or UNNAMED,
        answered_at=event["responded_at"],
        reason=reason,
        digest=digest,
    )


class KcrPlanResetOperator(RegionTask):
    """Returns what a reset of a region would do, like `kcr reset plan`; changes nothing.

    The result is a summary for approval and apply: the request, the epoch, the totals and the partitions that move
    most. Each try makes a new plan::

        KcrPlanResetOperator(task_id="plan", region="flights", target={"by-duration": "{{ params.back }}"})

    Args:
        target: where to, as an option of `kcr reset plan` without its dashes: `"to-earliest"`, or with its value
            `{"to-checkpoint": 12}` (templated). `from-file` takes the text of a CSV. Absent: the result of the task
            right before: the target of a `KcrChooseCheckpointOperator`, or the stale plan of a
            `KcrApproveResetOperator`, which is planned anew; if that wasn't stale, this task is skipped.
        groups: only these groups (templated).
        topics: only these topics, or partitions of them, as `flights:0,1` (templated).
        skip: records to skip, as `TOPIC:PARTITION:OFFSET` (templated).
        forward: allow a checkpoint of another branch (templated).
        allow_partial: allow a checkpoint that was never complete (templated).
        forced: apply the plan without a drain (templated), as for `KcrApplyResetOperator`.
        consent_upsert: apply it although tables can't be restored (templated), as there.
        kwargs: as for every operator; `region` and `kcr_conn_id` among them.
    """

    template_fields = (
        *RegionTask.template_fields,
        *("target", "groups", "topics", "skip", "forward", "allow_partial", "forced", "consent_upsert"),
    )

    def __init__(
        self,
        *,
        target: str | Mapping[str, object] | None = None,
        groups: Sequence[str] | DagParam | None = (),
        topics: Sequence[str] | DagParam | None = (),
        skip: Sequence[str] | DagParam | None = (),
        forward: bool | str | DagParam = False,
        allow_partial: bool | str | DagParam = False,
        forced: bool | str | DagParam = False,
        consent_upsert: bool | str | DagParam = False,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        super().__init__(**kwargs)
        self.target = storable(target)
        self.groups = storable(groups)
        self.topics = storable(topics)
        self.skip = storable(skip)
        self.forward = storable(forward)
        self.allow_partial = storable(allow_partial)
        self.forced = storable(forced)
        self.consent_upsert = storable(consent_upsert)

    def execute(self, context: Context) -> dict[str, object]:
        """Plan, and return the summary of the plan.

        Raises:
            AirflowFailException: the target can't be used; or the log does not have it any more, so that a reset would
                be refused.
            AirflowException: the store or a broker was away.
        """
        from airflow_kcr.protocol.region.rows import Requester

        with self.lent(context) as region:
            choice = reset_form.given(self, context, None, "target") if self.target is None else {}
            if "plan" in choice:
                request, who = self._of_stale(choice)
            else:
                request = self._request(region, choice)
                who = Requester(who=str(choice.get("by") or ""), reason=str(choice.get("reason") or ""))
            plan = _plan(region, request, who, context)
        totals = plan.totals
        self.log.info("Plan %s of region %s, epoch %d: %s", plan.plan, plan.region, plan.epoch, plan.target)
        self.log.info("It moves %s; %d record(s) again", plan.moves, totals.replay)
        if plan.upserts:
            sinks = ", ".join(map(str, plan.upserts))
            self.log.warning("Not restored, as mode upsert keeps no history: %s; apply it with consent_upsert", sinks)
        return plan.summary()

    def _request(self, region: Region, choice: Mapping[str, object]) -> ResetRequest:
        option, value = reset_form.option_of(self.target, choice)
        request = region.resets.request(
            option,
            value,
            groups=reset_form.texts(self.groups, "groups"),
            topics=reset_form.texts(self.topics, "topics"),
            skip=reset_form.texts(self.skip, "skip"),
        )
        return replace(
            request,
            forward=reset_form.truth(self.forward, "forward"),
            allow_partial=reset_form.truth(self.allow_partial, "allow_partial"),
            forced=reset_form.truth(self.forced, "forced"),
            consent_upsert=reset_form.truth(self.consent_upsert, "consent_upsert"),
        )

    def _of_stale(self, answer: Mapping[str, object]) -> tuple[ResetRequest, Requester]:
        """Return what a stale plan was made for, and who chose it.

        Raises:
            AirflowSkipException: it was not stale.
        """
        if not answer.get(reset_form.STALE):
            raise AirflowSkipException("the plan was approved, and was not stale")
        self.log.info("Planned again: %s", answer[reset_form.STALE])
        plan = reset_form.planned(answer)
        return plan.request, plan.requester


def _plan(region: Region, request: ResetRequest, who: Requester, context: Context) -> Plan:
    """Return a plan that could be applied, with the name of run, task and try.

    Raises:
        CheckpointNotUsable: the logs do not have the target any more.
    """
    name = f"{kcr.request_id(context)}/try {context['ti'].try_number}"
    plan = region.resets.plan(request, request_id=name, requester=who)
    if plan.totals.unreachable:
        from airflow_kcr.api.resets import way_out

        raise CheckpointNotUsable(
            f"{plan.target}: {plan.totals.unreachable} partition(s) can't go there any more, such as "
            f"{plan.unreachable[0].loss}; {way_out(plan)}"
        )
    return plan


SHOWN: Final = "kcr_plan_shown"
"""The XCom that holds the plan that the person was shown."""

PLAN: Final = "plan"
"""The field of the form that names the plan with a digest, so that an answer says what was shown."""

UNNAMED: Final = "a user that Airflow does not name"

ASKED_AGAIN: Final = 5
"""How often a person is asked again, where who asked for the reset has approved it."""


class KcrApproveResetOperator(RegionTask, ApprovalOperator):
    """Asks a person to approve a plan, and returns the plan with the name and the reason of the approver.

    The form shows the totals first, then the partitions that move most. If the plan is rejected, the tasks after it are
    skipped. Without an answer within `response_timeout`, it fails. Viewers see the plan, but can't answer.

    If the plan becomes stale before it is approved (another epoch, other partitions), nothing is approved. A
    `KcrPlanResetOperator` right behind then plans again for another approval; without one, the task fails: trigger the
    DAG again. Only the plan that was shown is approved::

        plan >> approve >> plan_again >> approve_again >> apply
        approve >> apply

    Args:
        plan: the result of the plan's task (templated): `plan=plan.output`. Absent: that of the only task right before.
        second_person: whether the approver must be another user than the requester, who triggered the run or chose its
            checkpoint. Approved by the same user, the question is asked again.
        kwargs: as for `ApprovalOperator`; `region` and `kcr_conn_id` among them.
    """

    template_fields = (*RegionTask.template_fields, "plan")

    def __init__(
        self,
        *,
        plan: Mapping[str, object] | str | None = None,
        second_person: bool = False,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        kwargs = reset_form.asking(type(self).__name__, {"retries": ASKED_AGAIN, **kwargs})
        kwargs.setdefault("subject", "Reset: approve the plan")
        super().__init__(**kwargs)
        self.plan = plan
        self.second_person = second_person

    def execute(self, context: Context) -> dict[str, object] | None:
        """Show the plan, and wait for the person without a slot; a stale one is returned, to be planned again.

        Raises:
            AirflowFailException: there is no plan, or it is stale, and no task right behind plans again.
            TaskAwaitingInput: a person is asked; the task continues in `execute_complete`.
        """
        self.show_link(context)
        with translated():
            plan = reset_form.planned(reset_form.given(self, context, self.plan, "plan"))
            stale = self._staleness(context, plan)
        if stale:
            return {"plan": plan.summary(), reset_form.STALE: stale}
        self.subject = f"Reset region {plan.region}: {plan.target}?"
        if not plan.totals.moved:
            self.subject += " It moves nothing"
        self.body = reset_texts.markdown(plan)
        if self.second_person:
            askers = " and ".join(self._askers(context, plan))
            self.body = f"Has to be approved by another user than {askers}.\n\n{self.body}"
        self.params = ParamsDict(
            {
                PLAN: Param(
                    shown_name(plan),
                    type="string",
                    enum=[shown_name(plan)],
                    title="Plan",
                    description="The plan above; leave it as it is.",
                ),
                "reason": reset_form.reason_param(plan.requester.reason),
            }
        )
        context["ti"].xcom_push(key=SHOWN, value=plan.summary())
        super().execute(context)
        return None  # never: it waits

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, object]:
        """Return the plan with who approved it, when and why; rejected, skip what comes after.

        A plan that is stale, or that is another one than was shown, is returned to be planned again.

        Raises:
            AirflowException: the user who asked for the reset approved it: the task is retried, and asks again.
            AirflowFailException: it is stale, and no task right behind plans again; or there was no answer in time.
        """
        with reset_form.answered(self):
            super().execute_complete(context, event)
        pull: Any = context["ti"].xcom_pull
        with translated():
            plan = reset_form.planned(pull(task_ids=self.task_id, key=SHOWN))
        reason = str((event["params_input"] or {}).get("reason") or plan.requester.reason)
        is_approved = event["chosen_options"] == [self.APPROVE]
        if is_approved:
            with translated():
                stale = self._staleness(context, plan, _named(event))
            if stale:
                return {"plan": plan.summary(), reset_form.STALE: stale}
            self._require_second_person(context, plan, event)
            with self.lent(context) as region:
                region.resets.record_answer(_answer(event, plan.plan, reason, plan.digest))
        result = {
            "plan": plan.summary(),
            "approved": is_approved,
            "by": reset_form.responder(event),
            "at": str(event["responded_at"].isoformat()),
            "reason": reason,
        }
        again = self._planners_again()
        if is_approved and again:
            context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=result)  # to skip others ends this task
            self.skip(context["ti"], again)
        return result

    def _planners_again(self) -> list[KcrPlanResetOperator]:
        behind = self.get_direct_relatives(upstream=False) if self.downstream_task_ids else ()
        return [task for task in behind if isinstance(task, KcrPlanResetOperator)]

    def _require_second_person(self, context: Context, plan: Plan, event: Mapping[str, Any]) -> None:
        if self.second_person:
            askers, approver = self._askers(context, plan), reset_form.responder(event)
            if not approver or approver in askers:
                raise AirflowException(
                    f"{approver or UNNAMED} approved the plan, which has to be approved by "
                    f"another user than {' and '.join(askers)}; nothing was reset, the question is asked again"
                )

    def _staleness(self, context: Context, plan: Plan, seen: str = "") -> str:
        """Return why a plan has to be made again; empty: it need not.

        Args:
            context: of the task.
            plan: the plan.
            seen: the name of the plan that was shown; empty: it was not shown yet.

        Raises:
            StalePlan: it has to, and no task right behind does.
        """
        name = shown_name(plan)
        with self.lent(context) as region:
            try:
                if seen and seen != name:
                    raise StalePlan(f"Airflow showed plan {seen}, and not {name}, which there is now")
                region.resets.require_fresh(plan)
            except StalePlan as error:
                if not self._planners_again():
                    raise StalePlan(f"{error.message}. {reset_form.AGAIN}") from error
                self.log.warning("Nothing was reset, the next task plans again: %s", error.message)
                return error.message
        return ""

    def _askers(self, context: Context, plan: Plan) -> list[str]:
        with self.lent(context) as region:
            choosers = region.resets.choosers(kcr.run_name(context))
        return sorted({kcr.requester(context).who, plan.requester.who, *choosers} - {""})


def _named(event: Mapping[str, Any]) -> str:
    """Return the name of the plan that an answer says was shown.

    Raises:
        StalePlan: it says none.
    """
    seen = (event["params_input"] or {}).get(PLAN)
    if seen is None:
        raise StalePlan(
            f"the answer does not say which plan was shown: its field {PLAN} is missing. {reset_form.AGAIN}, and "
            "answer with the form, or send all of its fields"
        )
    return str(seen)


def shown_name(plan: Plan) -> str:
    """Return the name of a plan with what tells it from another one under its name."""
    return f"{plan.plan} {plan.digest[:16]}"


class KcrApplyResetOperator(WaitingOperator):
    """Applies a plan, like `kcr reset apply`, and waits until every partition is at its target.

    If something has changed since the plan or its approval (the epoch, the partitions, a foreign consumer in a group, a
    log that moved on), the task fails with the change and nothing is reset: trigger the DAG again. A retry finds the
    reset.

    Behind a `KcrApproveResetOperator`, the region store must have the approval of this plan; the result of that task,
    which users of Airflow may write, doesn't count. The history has the approver and the reason, else the user who
    triggered the run.

    Args:
        plan: the result of the approval's task, or of the plan's if no approval is needed (templated):
            `plan=approve.output`. Absent: that of the task right before; of two approvals, the one whose plan was not
            stale.
        reason: why, if no earlier task of the plan has a reason (templated).
        forced: don't drain first; reset from the last done positions: the only way from a halted or starting region.
            The groups' consumers are then not checked. Also if the plan was made with it.
        consent_upsert: go back although tables of sinks of mode `upsert`, which the plan names, can't be restored. Also
            if the plan was made with it.
        kwargs: as for every operator that waits; `region`, `kcr_conn_id`, `timeout` and `deferrable` among them.
    """

    template_fields = (*WaitingOperator.template_fields, "plan", "reason")

    def __init__(
        self,
        *,
        plan: Mapping[str, object] | str | None = None,
        reason: str = "",
        forced: bool = False,
        consent_upsert: bool = False,
        **kwargs: Any,  # noqa: ANN401 (Airflow's own)
    ) -> None:
        super().__init__(**kwargs)
        self.plan = plan
        self.reason = reason
        self.forced = forced
        self.consent_upsert = consent_upsert

    def ask(self, context: Context, region: Region) -> ResetFinished:
        """Apply the plan; one that is applied already is found.

        Raises:
            StalePlan: what it was made for has changed.
            ResetNotApproved: a task before this one asks a person, and the store has no approval of exactly this plan.
            UpsertNeedsConsent: it goes back behind a table that can't be restored.
            RegionInState: a check of the groups failed, or the region can't drain.
            ConfigurationError: it was not approved, or is of another region.
        """
        document = self._document(context)
        plan = reset_form.planned(document)
        if region.resets.applied(plan.plan) is None and not (self.forced or plan.request.forced):
            self._require_membership(region)
        requester = kcr.requester(context)
        reason = str(document.get("reason") or plan.requester.reason or self.reason)
        try:
            view = region.resets.apply(
                plan,
                reason or f"run {requester.run_id} of DAG {requester.dag_id}",
                forced=self.forced,
                consent_upsert=self.consent_upsert,
                requester=requester,
                approved_digest=plan.digest if self._is_approved_by_a_task() else "",
            )
        except (StalePlan, ResetNotApproved) as error:
            raise type(error)(f"{error.message}. {reset_form.AGAIN}") from error
        self.log.info("Reset %s of region %s is %s", view.reset_id, self.region, view.state)
        return ResetFinished(request_id=plan.plan)

    def answer(self, context: Context, region: Region) -> dict[str, Any]:
        """Return what was reset: id, plan, epoch, timeline, what it undid, and who asked."""
        plan = reset_form.planned(self._document(context)).plan
        view = region.resets.applied(plan)
        if view is None:
            raise ConfigurationError(f"the reset of plan {plan} is gone; was the region deleted?")
        send_reset(self.hook, context, region, view)
        counted = region.resets.show(view.reset_id).counted
        stats.send(region.name, rewound=0 if counted is None else counted.rewound)
        document = view.to_json()
        names = ("region", "id", "plan", "state", "target", "epoch", "timeline", "undone", "who", "reason")
        return {name: document[name] for name in names}

    def _document(self, context: Context) -> Mapping[str, object]:
        document = reset_form.given(self, context, self.plan, "plan")
        if document.get("approved") is False:
            raise ConfigurationError(f"the plan was rejected by {document.get('by') or 'a user'}; it is not applied")
        return document

    def _is_approved_by_a_task(self) -> bool:
        """Whether a person is asked before this task; the DAG's code decides, which no user of Airflow can write."""
        before = self.get_flat_relatives(upstream=True)
        kinds = (task.operator_class if isinstance(task, MappedOperator) else type(task) for task in before)
        return any(issubclass(kind, KcrApproveResetOperator) for kind in kinds)

    def _require_membership(self, region: Region) -> None:
        """Refuse while a group is not what the region takes it for.

        Raises:
            RegionInState: a check failed; the message has all that did.
        """
        from airflow_kcr.protocol.evidence import CheckVerdict
        from airflow_kcr.protocol.region.rows import RegionState

        if region.show().state == RegionState.STOPPED:
            return  # its groups have to be empty, which is checked when it is applied
        checks = self.hook.validate(self.region).checks
        failed = [f"{c.group}, {c.question}: {c.detail}" for c in checks if c.verdict is CheckVerdict.FAILED]
        if failed:
            raise RegionInState(
                f"{len(failed)} check(s) of the groups of region {self.region} failed: {'; '.join(failed)}. Nothing "
                "was reset; `kcr group validate` shows when they are all right, then clear this task"
            )
