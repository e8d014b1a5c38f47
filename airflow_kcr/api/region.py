"""`Region`: one region of a store, and everything that can be asked of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Self

from airflow_kcr import verbs
from airflow_kcr.api import goals, ledger, partitions, reset_plans, reset_views, resets, specs
from airflow_kcr.api.checkpoints import (
    CheckpointRequestView,
    CheckpointSummary,
    CheckpointView,
    WayBack,
    require_checkpoint,
    ways_back,
)
from airflow_kcr.api.goals import DEFAULT_TIMEOUT, Goal, OnProgress, Progress, silent
from airflow_kcr.api.group_readers import real_reader
from airflow_kcr.api.partitions import preview
from airflow_kcr.api.regions import Clusters, connect, require_groups, store_url
from airflow_kcr.api.reset_views import ResetView
from airflow_kcr.api.specs import Applied
from airflow_kcr.api.verdict import DroppedHistory, Verdict, drop_old, keep_of
from airflow_kcr.api.views import RegionView
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.region import plans
from airflow_kcr.protocol.region.commands import (
    DeleteRegion,
    PinCheckpoint,
    RecordResetAnswer,
    RequestCheckpoint,
    RetireCheckpoints,
)
from airflow_kcr.protocol.region.events import CheckpointsRetired, Event
from airflow_kcr.protocol.region.plans import Plan, checkpoint_number_of_run, of_run
from airflow_kcr.protocol.region.rows import (
    Checkpoint,
    CheckpointPurpose,
    CheckpointRequest,
    Requester,
    ResetAnswer,
    ResetRequest,
)
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.rules import Assignor
from airflow_kcr.protocol.validation import check_topics
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    EventNumber,
    GroupId,
    MemberId,
    RegionId,
    RequestId,
    TopicPartition,
    checked_instant,
    region_name,
)
from airflow_kcr.spec import RegionSpec, stored_spec
from airflow_kcr.store.postgres import PostgresTransactions
from airflow_kcr.store.regions import RegionStore

FOLLOW: Final = timedelta(seconds=1)
"""How long a follower waits for a notification before it polls."""


class Region:
    """One region, by name, in the store at a URL. It need not exist yet: `apply` creates it.

    Every method may raise the errors of the store (`StoreError`), and `UnknownRegion` if there is none of that name.

    Args:
        name: the region's.
        store: the store's URL (absent: `KCR_STORE_URL`), or a store that the caller has opened and closes.
        clusters: how Kafka is reached, by default over the settings of the spec; only `lag`, `compare`,
            `require_topics` and `assignment` ask it anything, and `apply` where two regions have a group of one name,
            or an address has changed.
        requester: who acts, as the history will say.

    Raises:
        ConfigurationError: there is no store URL, or it can't be read; the name is none.
    """

    def __init__(
        self,
        name: str,
        store: str | RegionStore | None = None,
        *,
        clusters: Clusters | None = None,
        requester: Requester | None = None,
    ) -> None:
        self.name = region_name(name)
        self._owned: PostgresTransactions | None = None
        if isinstance(store, RegionStore):
            self._store = store
        else:
            self._store = self._owned = connect(store_url(store))
        self._clusters = clusters or real_reader
        self._requester = requester or Requester()

    def close(self) -> None:
        """Close the connections that this handle has opened."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- what it is ----------------------------------------------------------------------------------------------

    def compare_spec(self, spec: RegionSpec) -> Applied:
        """Return what `apply` of a spec would do now; changes nothing.

        Raises:
            RegionExists: a difference is one that needs another region.
        """
        return specs.compared(self._store, self._own(spec), self._clusters)

    def apply(self, spec: RegionSpec) -> Applied:
        """Create the region, stopped, or change its spec; the same spec again changes nothing.

        Raises:
            RegionExists: a difference is one that needs another region (a group's id, a cluster).
            GroupInOtherRegion: one of its groups belongs to another region: of one cluster, by whatever address, or
                by a name that both have while a cluster does not answer which one it is.
        """
        return specs.apply(self._store, self._own(spec), self._clusters)

    def show(self) -> RegionView:
        """Return the region and its members as they are now."""
        return RegionView.of(*self._store.look(self.name))

    def spec(self) -> RegionSpec:
        """Return the spec in force."""
        return stored_spec(self._read().spec.text)

    # -- verbs ---------------------------------------------------------------------------------------------------

    def require_topics(self) -> Mapping[GroupId, str]:
        """Ask Kafka whether every listed topic exists; return the groups whose pattern matches nothing yet, with why.

        Raises:
            UnknownTopics: a listed topic does not exist.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        region = self._read()
        spec = stored_spec(region.spec.text)
        there = {}
        for group in region.rules.groups:
            with self._clusters(spec, group) as cluster:
                there[group] = cluster.logs.topics()
        return check_topics(region.rules, there)

    def ask(self, verb: verbs.Verb) -> None:
        """Ask a verb of the region; `goals.STATES` has what to wait for then."""
        self._store.handle(self.name, verb.command(self._requester))

    def start(self) -> RegionView:
        """Start a stopped or halted region, or resume a paused one; members then bring it to run."""
        self.ask(verbs.START)
        return self.show()

    def resume(self) -> RegionView:
        """Let a paused region continue; a stopped or halted one is started: the two are one verb."""
        return self.start()

    def pause(self) -> RegionView:
        """Pause: batches in flight end, none begins, members stay in their groups."""
        self.ask(verbs.PAUSE)
        return self.show()

    def drain(
        self,
        until: datetime | None = None,
        *,
        request_id: str | None = None,
        allow_inexact: bool = False,
        purpose: CheckpointPurpose = CheckpointPurpose.DRAIN,
    ) -> CheckpointRequestView:
        """Ask for a checkpoint, or find out where the request of a request id stands; the region continues afterwards.

        Args:
            until: the boundary; absent: wherever the members are after their batch in flight.
            request_id: names the request, so that asking again finds it; absent: a new one.
            allow_inexact: checkpoint even where a partition is past the boundary.
            purpose: `DRAIN` for a person, who goes first and needs a live member; `REQUEST` for a DAG run or a script,
                which waits for its turn and for members.

        Raises:
            RegionInState: the region is halted or stopped.
            CheckpointRefused: no member is there to drain, or the request id names another request.
        """
        request = self.request_checkpoint(until, request_id=request_id, allow_inexact=allow_inexact, purpose=purpose)
        return self.checkpoint_request(request.request_id)

    def request_checkpoint(
        self,
        until: datetime | None = None,
        *,
        request_id: str | None = None,
        allow_inexact: bool = False,
        purpose: CheckpointPurpose = CheckpointPurpose.REQUEST,
    ) -> CheckpointRequest:
        """Request as `drain` does, but return only the request: for callers that wait for it anyway.

        Args:
            until: as for `drain`, and so the others.
            request_id: as for `drain`.
            allow_inexact: as for `drain`.
            purpose: as for `drain`.

        Raises:
            RegionInState, CheckpointRefused: as for `drain`.
        """
        return self._store.handle(
            self.name,
            RequestCheckpoint(
                request_id=RequestId(request_id or f"drain:{uuid.uuid4()}"),
                boundary=None if until is None else checked_instant(until),
                purpose=purpose,
                allow_inexact=allow_inexact,
                requester=self._requester,
            ),
        )

    def checkpoint_request(self, request_id: str) -> CheckpointRequestView:
        """Return where the request of a request id stands.

        Raises:
            ConfigurationError: there is no request with that id.
        """
        return CheckpointRequestView.of(self._read(), RequestId(request_id))

    def answered(self, request_id: str) -> tuple[Checkpoint | None, Checkpoint | None]:
        """Return the checkpoint that answers a request, and the newest current one before it, both of one moment.

        A retired one counts as well; None: there is none.
        """
        region = self._read()
        request = region.request_of(RequestId(request_id))
        row = None if request is None or request.sequence is None else region.checkpoint_of(request.sequence)
        return row, None if row is None else region.archive.newest_current(row.sequence)

    def stop(self) -> RegionView:
        """Stop: a checkpoint, published and committed, then all members leave."""
        self.ask(verbs.STOP)
        return self.show()

    def kill(self) -> RegionView:
        """Kill: whatever runs is void, all members leave now; the next start resumes at the restore point."""
        self.ask(verbs.KILL)
        return self.show()

    def delete(self) -> None:
        """Forget a stopped region, its checkpoints and its history, for ever.

        Raises:
            RegionInState: it is not stopped, or a member still holds a lease.
        """
        self._store.handle(self.name, DeleteRegion())

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait_for(
        self, goal: Goal | goals.Predicate, timeout: timedelta = DEFAULT_TIMEOUT, on_progress: OnProgress = silent
    ) -> RegionView:
        """Wait until a goal is reached, such as `goals.RUNNING`, and return the region as it was then.

        Args:
            goal: a goal, or a predicate over the region as stored and the store's clock.
            timeout: how long at most.
            on_progress: hears of every poll, with who is missing; what it raises ends the wait, not the region.

        Raises:
            TimedOut: it was not reached in time; the message names who is missing.
            RefusedError: it can't be reached any more.
        """
        if not isinstance(goal, Goal):
            goal = Goal(what="to reach the caller's goal", is_reached=goal)
        return RegionView.of(*goals.wait_for(self._store, self.name, goal, timeout=timeout, on_progress=on_progress))

    def poll(self, goal: Goal, patience: timedelta = timedelta(0)) -> tuple[Progress | None, datetime]:
        """Return how far the region is from a goal, and the store's clock; None: it is reached. What is due is done.

        Args:
            goal: what to wait for.
            patience: how long to wait for it before that is the answer.

        Raises:
            TimedOut: it was not in time, for any waiter; requesting it again may help.
            RefusedError: it can't be reached any more.
        """
        return goals.poll(self._store, self.name, goal, patience)

    def wait_for_checkpoint(
        self, request_id: str, timeout: timedelta = DEFAULT_TIMEOUT, on_progress: OnProgress = silent
    ) -> CheckpointRequestView:
        """Wait until the request of a request id is answered by a published checkpoint, and return it.

        Raises:
            TimedOut: it was not in time, or its drain was not; the message names who is missing.
            CheckpointRefused: there will be none; the message says why.
        """
        self.checkpoint_request(request_id)
        self.wait_for(goals.published(RequestId(request_id)), timeout, on_progress)
        return self.checkpoint_request(request_id)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def checkpoints(self, *, before: int | None = None, last: int | None = None) -> tuple[CheckpointSummary, ...]:
        """Return checkpoints, the oldest first; what it costs depends on how many, not on how many there were.

        Args:
            before: only those of lower numbers; None: all.
            last: only the newest N of these; None: all.
        """
        page = None if before is None else CheckpointNumber(before)
        return CheckpointSummary.newest_of(self._read(), before=page, last=last)

    def checkpoint_count(self) -> int:
        """Return how many checkpoints the region has had, retired ones too."""
        return self._read().archive.count()

    def checkpoint(self, sequence: int) -> CheckpointView:
        """Return one checkpoint with its offsets.

        Raises:
            UnknownCheckpoint: there is none of that sequence.
        """
        return CheckpointView.of(self._read(), CheckpointNumber(sequence))

    def ways_back(self, newest: int) -> tuple[WayBack, ...]:
        """Return the newest checkpoints that the region can go back to, and what each would mean, the newest first.

        Args:
            newest: how many, at most.

        Raises:
            CheckpointNotUsable: there is none.
        """
        return ways_back(self._read(), newest)

    def checkpoint_of_run(self, dag_id: str, run_id: str) -> CheckpointView:
        """Return the newest complete current checkpoint that answered a request of a DAG run.

        Raises:
            UnknownCheckpoint: there is none.
            CheckpointNotUsable: there are several, of different boundaries.
        """
        region = self._read()
        return CheckpointView.of(region, of_run(region, dag_id, run_id))

    def checkpoint_number_of_run(self, dag_id: str, run_id: str) -> int:
        """Return the number of the newest current checkpoint that a DAG run has, also where it is retired.

        Raises:
            UnknownCheckpoint: there is none.
            CheckpointNotUsable: there are several, of different boundaries.
        """
        return checkpoint_number_of_run(self._read(), dag_id, run_id)

    def repair_commit(self, sequence: int) -> CheckpointView:
        """Tell Kafka the restore point's offsets while its groups are empty, read back; see `partitions.repair`.

        Raises:
            CheckpointRefused: the checkpoint is not the restore point.
            GroupNotEmpty: a group has a consumer; its members commit by themselves, at the latest with the next
                checkpoint.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        return CheckpointView.of(
            partitions.repair(self._store, self.name, CheckpointNumber(sequence), self._clusters),
            CheckpointNumber(sequence),
        )

    def pin(self, sequence: int, label: str = "pinned", reason: str = "") -> CheckpointView:
        """Keep a checkpoint from retirement, under a label.

        Raises:
            UnknownCheckpoint: there is none of that sequence.
            CheckpointNotUsable: it has no offsets to keep.
            ConfigurationError: the label is empty, which would release it.
        """
        if not label:
            raise ConfigurationError("a pin needs a label; `unpin` releases a checkpoint")
        return self._pinned(sequence, label, reason)

    def unpin(self, sequence: int) -> CheckpointView:
        """Unpin a checkpoint; retention applies to it again.

        Raises:
            UnknownCheckpoint, CheckpointNotUsable: as for `pin`.
        """
        return self._pinned(sequence, "", "")

    def retire(self) -> tuple[int, ...]:
        """Forget the checkpoints that age and count retire, and return their sequences."""
        counter = self._read().counter
        self._store.handle(self.name, RetireCheckpoints())
        gone: list[int] = []
        while page := self._store.events(self.name, counter):
            gone += [s for event in page if isinstance(event.body, CheckpointsRetired) for s in event.body.sequences]
            counter = page[-1].number
        return tuple(gone)

    # -- resets --------------------------------------------------------------------------------------------------

    def plan_reset(self, request: ResetRequest, *, request_id: str = "", requester: Requester | None = None) -> Plan:
        """Return what a reset would do if it were applied now; changes nothing.

        Args:
            request: where to, for which partitions.
            request_id: the plan's name, under which it is applied once; absent: a new one.
            requester: who chose the target, and why, if not the requester that the region was opened with.

        Raises:
            InvalidTarget, UnknownCheckpoint, CheckpointNotUsable: it could not be applied.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        who = requester or self._requester
        return resets.plan(self._store, self.name, request, self._clusters, request_id=request_id, requester=who)

    def require_fresh(self, plan: Plan) -> None:
        """Refuse a plan that `apply_reset` would find stale.

        Args:
            plan: as it was made, or read from its JSON.

        Raises:
            StalePlan: the region is another one, or has another epoch, or other partitions, than when it was made.
        """
        plans.require_fresh(self._read(), plan)

    def apply_reset(
        self,
        plan: Plan,
        reason: str,
        *,
        forced: bool = False,
        consent_upsert: bool = False,
        requester: Requester | None = None,
        approved_digest: str = "",
    ) -> ResetView:
        """Apply a plan, once; with members its reset is then on its way, `wait_for_reset` waits for it.

        Args:
            plan: as it was made, or read from its JSON.
            reason: why, for the history; not empty.
            forced: without a drain, from the last done positions: the only way from a halted or starting region.
            consent_upsert: tables of sinks of mode `upsert` keep no history; what was replaced in them stays so until
                the replay has passed the present position, and that is acceptable.
            requester: who asks, if not the requester that the region was opened with.
            approved_digest: of the plan that the store must have an approval of, whose approver and reason are then in
                the history; empty: none is needed.

        Raises:
            StalePlan: it was made under another epoch.
            ResetNotApproved: the store has no approval of exactly this plan.
            UpsertNeedsConsent: it goes back behind such a table, and `consent_upsert` was not given.
            RegionInState, CheckpointNotUsable, GroupNotEmpty: see `resets.apply`.
            ConfigurationError: there is no reason, or the plan is another region's.
        """
        if not reason.strip():
            raise ConfigurationError("a reset needs a reason: it is what others will find in the history")
        asked_by = replace(requester or self._requester, reason=reason.strip())
        request = replace(
            plan.request,
            forced=plan.request.forced or forced,
            consent_upsert=plan.request.consent_upsert or consent_upsert,
        )
        return resets.apply(
            self._store,
            self.name,
            replace(plan, request=request),
            asked_by,
            self._clusters,
            approved_digest=approved_digest,
        )

    def record_reset_answer(self, answer: ResetAnswer) -> None:
        """Record what a person has answered about a reset; only for who knows it from where it was answered."""
        self._store.handle(self.name, RecordResetAnswer(answer=answer))

    def reset_choosers(self, run: str) -> set[str]:
        """Return who has chosen a reset's checkpoint in a DAG run."""
        return {one.who for one in self._read().reset_answers if one.request_id == run and not one.digest}

    def applied_reset(self, plan: str) -> ResetView | None:
        """Return where the reset of a plan stands; None: the plan was not applied."""
        region = self._read()
        known = region.person_reset_of(RequestId(plan))
        return None if known is None else reset_views.of_plan(region, known.request_id)

    def wait_for_reset(
        self, plan: str, timeout: timedelta = DEFAULT_TIMEOUT, on_progress: OnProgress = silent
    ) -> ResetView:
        """Wait until the reset of a plan is done, and return it.

        Raises:
            ResetFailed: it could not be carried out; the message says why.
            TimedOut: it was not done in time; the message names who is missing.
        """
        self.wait_for(goals.reset_done(RequestId(plan)), timeout, on_progress)
        return reset_views.of_plan(self._read(), RequestId(plan))

    def resets(self, *, before: int | None = None, last: int | None = None) -> tuple[ResetView, ...]:
        """Return resets, automatic ones too, oldest first, with what each made to be processed again.

        What it costs depends on how many, not on how many there were, nor on how many batches.

        Args:
            before: only those before the one of this number, as in its id; None: all.
            last: the newest N of these that began, and at most N that were requested between them and never began;
                None: all.
        """
        return reset_views.counted_page(self._store, self.name, before=before, last=last)

    def reset(self, reset_id: str) -> ResetView:
        """Return one reset, by its id, its sequence or the name of its plan.

        Raises:
            UnknownReset: there is none.
        """
        region = self._read()
        return reset_views.counted(self._store, region, reset_views.found(region, reset_id))

    def reset_request(
        self,
        option: str,
        value: str | None = None,
        *,
        groups: Iterable[str] = (),
        topics: Iterable[str] = (),
        skip: Iterable[str] = (),
        timezone: str = "",
    ) -> ResetRequest:
        """Return what the options of `kcr reset plan` ask for; see `reset_plans.requested`."""
        return reset_plans.requested(
            self._read(), option, value, groups=groups, topics=topics, skip=skip, timezone=timezone
        )

    # -- beside Kafka --------------------------------------------------------------------------------------------

    def compare(self, sequence: int) -> tuple[partitions.Comparison, ...]:
        """Return a checkpoint beside what Kafka has, partition by partition.

        Raises:
            UnknownCheckpoint, CheckpointNotUsable: there is none of that sequence, or it has no offsets.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        return partitions.compare(self._read(), CheckpointNumber(sequence), self._clusters)

    def lag(self) -> tuple[partitions.Lag, ...]:
        """Return how far every partition is behind the end of its log, in offsets: at most as many records.

        Raises:
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        return partitions.lag(self._read(), self._clusters, self._read)

    def assignment(
        self, *, members: int | None = None, assignor: Assignor | None = None
    ) -> dict[MemberId, tuple[TopicPartition, ...]]:
        """Return who would own what, over all groups; changes nothing.

        Args:
            members: another number of members than the spec's, for every group.
            assignor: another one than the spec's; `sticky` leaves what members own where it is as far as it can.

        Raises:
            ConfigurationError: `members` is not positive.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        region = self._read()
        spec = stored_spec(region.spec.text)
        owned: dict[MemberId, list[TopicPartition]] = {}
        for place, claim in sorted(region.claims.items()):
            if claim.owner is not None:
                owned.setdefault(claim.owner, []).append(place.topic_partition)
        found: dict[MemberId, tuple[TopicPartition, ...]] = {}
        for group, rules in sorted(region.rules.groups.items()):
            with self._clusters(spec, group) as cluster:
                found |= preview(rules, cluster.logs.topics(), owned, members=members, assignor=assignor)
        return found

    # -- history -------------------------------------------------------------------------------------------------

    def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """Return up to `limit` events after that number, in commit order."""
        return self._store.events(self.name, EventNumber(after), limit)

    def region_id(self) -> RegionId:
        """Return which region of its name it is: made when it was declared, never again."""
        return self._read().region_id

    def counter(self) -> int:
        """Return the number of the newest event."""
        return self._read().counter

    def newest_events(self, count: int) -> tuple[Event, ...]:
        """Return the last `count` events, in commit order."""
        return self.events(max(self.counter() - count, 0), count)

    def follow(self, after: int = 0) -> Iterator[Event]:
        """Yield every event after that number, and continue yielding as more happen; the caller ends it."""
        seen = EventNumber(after)
        while True:
            for event in self._store.events(self.name, seen):
                yield event
                seen = event.number
            self._store.wait(self.name, seen, FOLLOW)

    def verify(self) -> Verdict:
        """Judge what is kept of the region's history by the invariants, up to this moment."""
        return Verdict.of(self.name, self._store.chronicle(self.name))

    def drop_old_history(self) -> DroppedHistory:
        """Drop what happened longer ago than the spec's `history.keep` and is needed no more, once it is judged.

        Running members do it each hour.
        """
        return drop_old(self._store, self.name, keep_of(self._store, self.name))

    def record(self, place: str, *, group: str | None = None) -> tuple[ledger.RecordView, ...]:
        """Return what became of a record, in each group that reads its topic; what it costs does not grow with time.

        Args:
            place: `TOPIC:PARTITION:OFFSET`.
            group: only in this one.

        Raises:
            ConfigurationError: `place` is not of that form, or the region has no such partition or group.
        """
        return ledger.record(self._store, self.name, place, group)

    def repeated(self, *, group: str | None = None) -> tuple[ledger.Repetition, ...]:
        """Return which offsets were started more than once, and for which reset; all kept history is read.

        Args:
            group: only of this one.

        Raises:
            ConfigurationError: the region has no such group.
        """
        region = self._read()
        if group is not None:
            require_groups(region, [group])
        return ledger.repeated(self._store.history(self.name), group)

    # ------------------------------------------------------------------------------------------------------------

    def _read(self) -> StoredRegion:
        return self._store.read(self.name)[0]

    def _pinned(self, sequence: int, label: str, reason: str) -> CheckpointView:
        known = require_checkpoint(self._read(), CheckpointNumber(sequence)).sequence
        return CheckpointView.of(
            self._store.handle(self.name, PinCheckpoint(sequence=known, label=label, reason=reason)), known
        )

    def _own(self, spec: RegionSpec) -> RegionSpec:
        if spec.region != self.name:
            raise ConfigurationError(f"the spec is of region {spec.region}, this is {self.name}")
        return spec
