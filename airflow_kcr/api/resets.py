"""Plan and apply: a person's reset, from what it would do to where it stands.

Planning reads the store, then the logs, and changes nothing. Applying checks again, because a target that the log no
longer has is better refused before the drain than after it; then the store decides, under the plan's name and epoch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Final

from airflow_kcr.api import reset_plans, reset_views, waiting
from airflow_kcr.api.checkpoints import reach_of
from airflow_kcr.api.clusters import Cluster, Clusters, ask_each
from airflow_kcr.api.partitions import begins, commit, grouped
from airflow_kcr.api.regions import Handle
from airflow_kcr.api.reset_views import ResetView
from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, GroupNotEmpty, InvalidTarget
from airflow_kcr.goals import ResetFinished
from airflow_kcr.protocol.observations import LogBounds, LogView, TimeAnswer
from airflow_kcr.protocol.region import first_starts, lookup, plans
from airflow_kcr.protocol.region.archive import ATTEMPTS
from airflow_kcr.protocol.region.commands import ApplyReset, RecordResetAnswer
from airflow_kcr.protocol.region.plans import Plan
from airflow_kcr.protocol.region.rows import (
    PersonReset,
    PersonResetState,
    RegionState,
    Requester,
    ResetAnswer,
    ResetAttempt,
    ResetRequest,
)
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.targets import ByDuration, FromFile, Target
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, RequestId, few
from airflow_kcr.runtime.positions import bounds_and_times
from airflow_kcr.spec import stored_spec
from airflow_kcr.store.garbage import uncollected

WITHOUT_WHAT_IS_LOST: Final = (
    "choose a later checkpoint, or go on without what the log has lost: plan the same with -o csv, and then that file "
    "with --from-file, which is clamped into the log and shows where"
)
"""What to do about a target that retention has overtaken."""

IN_THE_NEW_LOG: Final = (
    "choose a place in the new log, such as --to-earliest or --to-latest, or leave that topic out of the scope"
)
"""What to do about a target that is of a topic which was deleted and created again."""


def way_out(plan: Plan) -> str:
    """Return what to do about a plan whose target the logs do not have."""
    return IN_THE_NEW_LOG if any(line.recreated for line in plan.unreachable) else WITHOUT_WHAT_IS_LOST


class RegionResets(Handle):
    """The resets of a region: what each would do, applying it, and what became of it."""

    def request(
        self,
        option: str,
        value: str | None = None,
        *,
        groups: Iterable[str] = (),
        topics: Iterable[str] = (),
        skip: Iterable[str] = (),
        timezone: str = "",
    ) -> ResetRequest:
        """Return what the options of `kcr reset plan` ask for.

        Args:
            option: the target's, without its dashes.
            value: the value of that option, and of `from-file` the text of the file; None: it has none.
            groups: the values of `--group`.
            topics: the values of `--topic`.
            skip: the values of `--skip`.
            timezone: of a `to-datetime` without a zone.

        Raises:
            InvalidTarget, InvalidOffsetsFile, ConfigurationError: one of them can't be read.
        """
        region, scope = self.met(), parse_scope(groups, topics)
        if option == FromFile.option and value is not None:
            target: Target = reset_plans.from_file(region, value, scope)
        else:
            target = reset_plans.read_target(option, value, timezone)
        return ResetRequest(target=target, scope=scope, skip=reset_plans.skipped(region, skip, scope))

    def plan(self, request: ResetRequest, *, request_id: str = "", requester: Requester | None = None) -> Plan:
        """Return what a reset would do if it were applied now; changes nothing.

        Args:
            request: where to, for which partitions.
            request_id: the plan's name, under which it is applied once; absent: a new one, with the region before it.
            requester: who chose the target, and why, if not the requester that the region was opened with.

        Raises:
            InvalidTarget, UnknownCheckpoint, CheckpointNotUsable: it could not be applied.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        region, now = self.store.read(self.name)
        region, _ = _met(region, now, self.clusters)
        name = RequestId(request_id or f"{self.name}/{uuid.uuid4().hex[:12]}")
        found, _ = _planned(region, now, name, request, self.clusters)
        named = lookup.target_checkpoint(region, request)
        soon = None if named is None or found.unreachable else reach_of(region, named).overtaken_at
        return replace(found, requester=requester or self.requester, overtaken_at=soon)

    def require_fresh(self, plan: Plan) -> None:
        """Refuse a plan that `apply` would find stale.

        Raises:
            StalePlan: the region is another one, or has another epoch, or other partitions, than when it was made.
        """
        plans.require_fresh(self.met(), plan)

    def apply(
        self,
        plan: Plan,
        reason: str,
        *,
        forced: bool = False,
        consent_upsert: bool = False,
        requester: Requester | None = None,
        approved_digest: str = "",
    ) -> ResetView:
        """Apply a plan, once, and return where its reset stands: with members on its way, in a stopped region done.

        A plan that was applied already is found again, and not applied twice; if its region is still stopped, its
        offsets are committed to Kafka again.

        Args:
            plan: as it was made, or read from its JSON; its partitions are ignored, its request is resolved again.
            reason: why, for the history; not empty.
            forced: without a drain, from the last done positions: the only way from a halted or starting region.
            consent_upsert: tables of sinks of mode `upsert` keep no history; what was replaced in them stays so until
                the replay has passed the present position, and that is acceptable.
            requester: who asks, if not the requester that the region was opened with.
            approved_digest: of the plan that the store must have an approval of, whose approver and reason are then in
                the history; empty: none is needed.

        Raises:
            StalePlan: the plan was made under another epoch, or the region was declared again, or has other partitions.
            ResetNotApproved: the store has no approval of exactly this plan.
            ConfigurationError: there is no reason, it is of another region, or its name was used for another request.
            CheckpointNotUsable: the log no longer has an offset that the target remembers; nothing was changed.
            RegionInState: the region can't drain; the message says what can be done.
            UpsertNeedsConsent: it would go back behind a table that can't be restored; nothing was changed.
            GroupNotEmpty: the region is stopped, and one of its groups has a consumer; nothing was changed, unless the
                message says what was.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        if not reason.strip():
            raise ConfigurationError("a reset needs a reason: it is what others will find in the history")
        if plan.region != self.name:
            raise ConfigurationError(f"the plan is of region {plan.region}, this is {self.name}")
        request = replace(
            plan.request,
            forced=plan.request.forced or forced,
            consent_upsert=plan.request.consent_upsert or consent_upsert,
        )
        region, now = self.store.read(self.name)
        known = region.person_reset_of(plan.plan)
        if known is None:
            asked_by = replace(requester or self.requester, reason=reason.strip())
            command = _resolved(region, now, replace(plan, request=request), asked_by, self.clusters)
            self.store.handle(self.name, replace(command, approved_digest=approved_digest))
            region = self.read()
            known = region.person_reset_of(plan.plan)
        else:
            _require_same(known, plan)
        if known is not None and is_told_from_outside(region, known):
            tell_kafka(region, self.clusters)
        return reset_views.of_plan(region, plan.plan)

    def record_answer(self, answer: ResetAnswer) -> None:
        """Record what a person has answered about a reset; only for who knows it from where it was answered."""
        self.store.handle(self.name, RecordResetAnswer(answer=answer))

    def choosers(self, run: str) -> set[str]:
        """Return who has chosen a reset's checkpoint in a DAG run."""
        return {one.who for one in self.read().reset_answers if one.request_id == run and not one.digest}

    def applied(self, plan: str) -> ResetView | None:
        """Return where the reset of a plan stands; None: the plan was not applied."""
        region = self.read()
        known = region.person_reset_of(RequestId(plan))
        return None if known is None else reset_views.of_plan(region, known.request_id)

    def wait_for(
        self, plan: str, timeout: timedelta = waiting.DEFAULT_TIMEOUT, on_progress: waiting.OnProgress = waiting.silent
    ) -> ResetView:
        """Wait until the reset of a plan is done, and return it.

        Raises:
            ResetFailed: it could not be carried out; the message says why.
            TimedOut: it was not done in time; the message names who is missing.
        """
        goal = ResetFinished(request_id=RequestId(plan))
        region, _ = waiting.wait_for(self.store, self.name, goal, timeout=timeout, on_progress=on_progress)
        return reset_views.of_plan(region, RequestId(plan))

    def list(self, *, before: int | None = None, last: int | None = None) -> tuple[ResetView, ...]:
        """Return resets, automatic ones too, oldest first, with what each made to be processed again.

        What it costs depends on how many, not on how many there were, nor on how many batches.

        Args:
            before: only those that were asked for, or began by themselves, before the one of this number, as in its
                id; None: all.
            last: the newest N of these that began, and at most N that were requested between them and never began;
                None: all.
        """
        number = None if before is None else CheckpointNumber(before)
        rows = self.store.reset_page(self.name, before=number, last=last)
        return reset_views.counted(self.store, self.name, reset_views.of_page(self.name, rows, last), rows.following)

    def undone_runs(self, reset_id: str) -> tuple[Requester, ...]:
        """Return the DAG runs whose checkpoints a reset has taken off the current timeline, in the order of those.

        Raises:
            UnknownReset: there is none.
        """
        region = self.read()
        return plans.answered_runs(region, reset_views.found(region, reset_id).undone)

    def show(self, reset_id: str) -> ResetView:
        """Return one reset, by its id, its sequence or the name of its plan.

        Raises:
            UnknownReset: there is none.
        """
        region = self.read()
        view = reset_views.found(region, reset_id)
        following: tuple[ResetAttempt, ...] = ()
        if view.attempts and view.attempts[-1].epoch < region.epoch:
            following = region.archive.resets_from(CheckpointNumber(view.attempts[-1].sequence + 1), ATTEMPTS)
        return reset_views.counted(self.store, self.name, (view,), following)[0]

    def met(self) -> StoredRegion:
        """Return the region as a plan sees it: one that has never run, with the partitions that Kafka has.

        Raises:
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        return _met(*self.store.read(self.name), self.clusters)[0]


def _met(
    region: StoredRegion, now: datetime, clusters: Clusters
) -> tuple[StoredRegion, Mapping[GroupPartition, LogBounds]]:
    """Return a region that has never run with the partitions that Kafka has, and their logs; nothing is stored.

    Each begins where the spec's `start` says, until a reset says otherwise.

    Raises:
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    if not first_starts.is_open(region):
        return region, {}
    answers = ask_each(region, clusters, lambda cluster, rules: begins(cluster, rules, now))
    found = {p: initial for answer in answers.values() for p, initial in answer.items()}
    return first_starts.met(region, now, found), {p: initial.bounds for p, initial in found.items()}


def _resolved(
    stored: StoredRegion, now: datetime, approved: Plan, requester: Requester, clusters: Clusters
) -> ApplyReset:
    """Return what asks the store for a plan's reset, resolved as the region and the logs are now."""
    region, met = _met(stored, now, clusters)
    plans.require_fresh(region, approved)
    request = approved.request
    found, log = _planned(region, now, approved.plan, request, clusters)
    if found.unreachable:
        named = few((line.loss for line in found.unreachable), separator="; ")
        raise CheckpointNotUsable(
            f"{len(found.unreachable)} partition(s) can't go there, the log does not have it: {named}. Nothing "
            f"was changed; {way_out(found)}"
        )
    if region.state is RegionState.STOPPED and not request.forced:
        require_empty(region, clusters)
    reset = PersonReset(
        **{field.name: getattr(request, field.name) for field in fields(ResetRequest)},
        request_id=approved.plan,
        state=PersonResetState.WAITING,
        requester=requester,
        requested_at=now,
        order=0,
    )
    return ApplyReset(reset=reset, epoch=approved.epoch, resolved=found.seek, logs={**met, **log.bounds})


def _planned(
    region: StoredRegion, now: datetime, request_id: RequestId, request: ResetRequest, clusters: Clusters
) -> tuple[Plan, LogView]:
    lookup.require_usable(region, now, request)
    strange = sorted(str(p) for p in request.skip if p not in region.universe())
    if strange:
        raise InvalidTarget(f"records of {', '.join(strange)} can't be skipped: the region has no such partition")
    log = read_logs(region, now, request, clusters)
    outside = [f"{p} at {o}" for p, o in request.skip.items() if not log.bounds[p].start <= o < log.bounds[p].end]
    if outside:
        raise InvalidTarget(f"there is no record to skip in the log: {', '.join(outside)}")
    with uncollected():
        return plans.plan(region, now, request_id, request, log), log


def _require_same(known: PersonReset, plan: Plan) -> None:
    """Refuse another plan under a name that is taken: it would seem to have been applied."""
    request = plan.request
    # A DAG run that was deleted may be made anew under its id, with the names that its plans had.
    if known.epoch is not None and plan.epoch >= known.epoch:
        raise ConfigurationError(
            f"the plan {known.request_id} was applied already, in epoch {known.epoch}, and another one has been made "
            "under its name since; make a new plan"
        )
    # A duration is stored as the instant that it meant when the reset began.
    is_same_target = isinstance(request.target, ByDuration) or known.target == request.target
    if not is_same_target or (known.scope.as_asked, known.skip) != (request.scope.as_asked, request.skip):
        raise ConfigurationError(
            f"the plan {known.request_id} was applied already, with another target; make a new plan"
        )


# What a target needs of the logs, read from Kafka: bounds, and where an instant falls. One request to each broker.
#
# Positions are read from the store before this, so that a log's end is never below a position that was true with it.


def read_logs(region: StoredRegion, now: datetime, request: ResetRequest, clusters: Clusters) -> LogView:
    """Read what a request's target needs, and nothing where it needs nothing.

    Args:
        region: as it was read from the store.
        now: the store's clock then; durations count back from it.
        request: what is asked for.
        clusters: how Kafka is reached.

    Raises:
        InvalidTarget: nothing is in scope, the instant is in the future, or Kafka has no such log.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """
    instant = request.target.time_needed(now)
    spec = stored_spec(region.spec.text)
    bounds: dict[GroupPartition, LogBounds] = {}
    times: dict[GroupPartition, TimeAnswer] = {}
    for group, partitions in _wanted(region, request).items():
        with clusters(spec, group) as cluster:
            found, answers = bounds_and_times(cluster.logs, partitions, instant)
            _require(partitions, found)
            if instant is not None:
                _require(partitions, answers)
            bounds |= found
            times |= answers
    return LogView(bounds=bounds, answers=times, read_at=now)


def _wanted(region: StoredRegion, request: ResetRequest) -> Mapping[GroupId, list[GroupPartition]]:
    partitions = set(request.skip)
    if request.target.needs_logs:
        partitions |= {p for p in request.scope.select(region.universe()) if request.target.names(p)}
    return grouped(sorted(partitions))


def _require(partitions: list[GroupPartition], answers: Mapping[GroupPartition, object]) -> None:
    gone = [str(p) for p in partitions if p not in answers]
    if gone:
        raise InvalidTarget(
            f"Kafka has no log of {few(gone)}: the topic was deleted or has fewer partitions now; "
            "leave it out of the scope"
        )


# A reset while the groups are empty: the same map, told to Kafka from outside.
#
# The store comes first: its new epoch makes whatever a zombie still does void, and its restore point is where the
# next start goes, whatever Kafka holds. Then Kafka's committed offsets are altered with three guards (only an empty
# group's, every partition's result checked, read back), so that lag tools tell the truth. What fails there can be
# repeated with the same plan: it is one reset, and only Kafka's part is repeated.


def is_told_from_outside(region: StoredRegion, reset: PersonReset) -> bool:
    """Whether a reset was applied to the still stopped region: then only the caller commits its offsets to Kafka."""
    return (
        region.state is RegionState.STOPPED
        and reset.state is PersonResetState.DONE
        and reset.epoch is not None
        and region.restore_epoch == region.epoch == reset.epoch
    )


def require_empty(region: StoredRegion, clusters: Clusters) -> None:
    """Refuse while one of the region's groups has a consumer; changes nothing.

    Raises:
        GroupNotEmpty: names the members of every such group.
        BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
    """

    def trouble(cluster: Cluster, rules: GroupRules) -> str:
        try:
            cluster.require_empty(rules.group_id)
        except GroupNotEmpty as error:
            return error.message
        return ""

    found = "; ".join(filter(None, ask_each(region, clusters, trouble).values()))
    if found:
        raise GroupNotEmpty(f"{found}. Nothing was changed")


def tell_kafka(region: StoredRegion, clusters: Clusters) -> None:
    """Alter the committed offsets of the region's groups to its restore point, read back.

    Raises:
        GroupNotEmpty, KcrError, BrokerUnavailable, CredentialsRefused: of the first group that could not be altered;
            the message says what stands, and how to repeat the rest.
    """
    sequence = region.resets[region.epoch].sequence
    failed = commit(region, region.seek.offsets, region.timeline, sequence, clusters)
    if failed:
        first = next(iter(failed.values()))
        what = "; ".join(f"group {group}: {error.message}" for group, error in failed.items())
        raise type(first)(
            f"the reset is stored (epoch {region.epoch}): the next start of region {region.name} resumes there, "
            f"whatever Kafka says. But Kafka's committed offsets do not all say so: {what}. Apply the same plan again "
            "to tell Kafka alone"
        ) from first
