"""`Region`: one region of a store, and everything that can be asked of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Self

from airflow_kcr import goals, verbs
from airflow_kcr.api import adoption, ledger, recomputations, runs, specs, waiting
from airflow_kcr.api.checkpoints import CheckpointRequestView, RegionCheckpoints, shown_region
from airflow_kcr.api.clusters import Clusters, ask_each, real_reader
from airflow_kcr.api.lag import ALL, LagAt, RegionLag, measure
from airflow_kcr.api.partitions import Lag, preview
from airflow_kcr.api.regions import Handle, connect, look, require_groups, store_url
from airflow_kcr.api.resets import RegionResets
from airflow_kcr.api.specs import Applied
from airflow_kcr.api.verdict import Verdict
from airflow_kcr.api.views import RegionView
from airflow_kcr.api.waiting import DEFAULT_TIMEOUT, OnProgress, Progress, silent
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol import values
from airflow_kcr.protocol.region import commands, rows
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.rules import Assignor
from airflow_kcr.protocol.validation import check_topics
from airflow_kcr.spec import RegionSpec, stored_spec
from airflow_kcr.store.answers import BriefEvent
from airflow_kcr.store.regions import RegionStore

FOLLOW: Final = timedelta(seconds=1)
"""How long a follower waits for a notification before it polls."""


class Region(Handle):
    """One region, by name, in the store at a URL. It need not exist yet: `apply` creates it.

    Every method may raise the errors of the store (`StoreError`), and `UnknownRegion` if there is none of that name.

    Args:
        name: the region's.
        store: the store's URL (absent: `KCR_STORE_URL`), or a store that the caller has opened and closes.
        clusters: how Kafka is reached, by default over the settings of the spec; only `lag`, `require_topics` and
            `assignment` ask it anything, `resets`, `checkpoints.compare` and `checkpoints.repair`, and `apply` where
            two regions have a group of one name, or an address has changed.
        requester: who acts, as the history will say.

    Attributes:
        checkpoints: its checkpoints, to list, show, pin, retire, compare with Kafka and repair there.
        resets: its resets, to plan, apply and list.

    Raises:
        ConfigurationError: there is no store URL, or it can't be read; the name is none.
    """

    def __init__(
        self,
        name: str,
        store: str | RegionStore | None = None,
        *,
        clusters: Clusters | None = None,
        requester: rows.Requester | None = None,
    ) -> None:
        known = values.region_name(name)
        found = store if isinstance(store, RegionStore) else connect(store_url(store))
        self._owned = None if found is store else found
        parts = (found, known, clusters or real_reader, requester or rows.Requester())
        super().__init__(*parts)
        self.checkpoints, self.resets = RegionCheckpoints(*parts), RegionResets(*parts)

    def close(self) -> None:
        """Close the connections that this handle has opened."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what it is ----------------------------------------------------------------------------------------------

    def compare_spec(self, spec: RegionSpec) -> Applied:
        """Return what `apply` of a spec would do now; changes nothing.

        Raises:
            RegionExists: a difference is one that needs another region.
        """
        return specs.compared(self.store, self._own(spec), self.clusters)

    def apply(self, spec: RegionSpec) -> Applied:
        """Create the region, stopped, or change its spec; the same spec again changes nothing.

        Raises:
            RegionExists: a difference is one that needs another region (a group's id, a cluster).
            GroupInOtherRegion: one of its groups belongs to another region: of one cluster, by whatever address, or
                by a name that both have while a cluster does not answer which one it is.
        """
        return specs.apply(self.store, self._own(spec), self.clusters)

    def show(self) -> RegionView:
        """Return the region and its members as they are now."""
        return shown_region(*look(self.store, self.name))

    def spec(self) -> RegionSpec:
        """Return the spec in force."""
        return stored_spec(self.read().spec.text)

    # -- verbs ---------------------------------------------------------------------------------------------------

    def require_topics(self) -> Mapping[values.GroupId, str]:
        """Ask Kafka whether every listed topic exists; return the groups whose pattern matches nothing yet, with why.

        Raises:
            UnknownTopics: a listed topic does not exist.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        region = self.read()
        return check_topics(region.rules, ask_each(region, self.clusters, lambda cluster, _: cluster.logs.topics()))

    def ask(self, verb: verbs.Verb) -> None:
        """Ask a verb of the region; its `goal` is what to wait for then."""
        self.store.handle(self.name, verb.command(self.requester))

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
        purpose: rows.CheckpointPurpose = rows.CheckpointPurpose.DRAIN,
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
        purpose: rows.CheckpointPurpose = rows.CheckpointPurpose.REQUEST,
    ) -> rows.CheckpointRequest:
        """Request as `drain` does, but return only the request: for callers that wait for it anyway.

        Args:
            until: as for `drain`, and so the others.
            request_id: as for `drain`.
            allow_inexact: as for `drain`.
            purpose: as for `drain`.

        Raises:
            RegionInState, CheckpointRefused: as for `drain`.
        """
        return self.store.handle(
            self.name,
            commands.RequestCheckpoint(
                request_id=values.RequestId(request_id or f"drain:{uuid.uuid4()}"),
                boundary=None if until is None else values.instant_of("until", until),
                purpose=purpose,
                allow_inexact=allow_inexact,
                requester=self.requester,
            ),
        )

    def prepared_run(
        self,
        until: datetime | None = None,
        *,
        request_id: str | None = None,
        allow_inexact: bool = False,
        show: runs.Show | None = None,
    ) -> runs.RegionRun:
        """Return a run of which nothing was asked yet, for a process that starts the members itself.

        Args:
            until: as for `run`, and so the others.
            request_id: as for `run`.
            allow_inexact: as for `run`.
            show: shows a checkpoint in the sinks, where nothing was to be read; None: members do.
        """
        boundary = None if until is None else values.instant_of("until", until)
        name = values.RequestId(request_id or f"run:{uuid.uuid4()}")
        return runs.RegionRun(self, boundary, name, allow_inexact=allow_inexact, show=show)

    def run(
        self, until: datetime | None = None, *, request_id: str | None = None, allow_inexact: bool = False
    ) -> CheckpointRequestView:
        """Ask for a run: the region, stopped, is started for one checkpoint at a boundary, and stops with it.

        Where there is nothing to read, the checkpoint is made at once. Else all members have to be started, as
        `kcr run` does; they end with the checkpoint.

        Args:
            until: the checkpoint has exactly the records before this instant; absent: what the logs have now.
            request_id: names the run, so that asking again finds it; absent: a new one.
            allow_inexact: checkpoint even where a partition is past the boundary.

        Raises:
            RegionInState: the region is halted, runs by itself, or another run of it is under way.
            CheckpointRefused: the boundary is yet to come or before what was processed, or the request id names another
                request.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
            GroupNotEmpty: nothing was to be read, and a foreign consumer is in a group.
        """
        run = self.prepared_run(until, request_id=request_id, allow_inexact=allow_inexact)
        if not run.is_done_at_rest():
            run.start()
        return self.checkpoint_request(run.request_id)

    def recompute(
        self,
        sequence: int,
        *,
        groups: Sequence[str] = (),
        request_id: str | None = None,
        output: recomputations.RecomputedOutput = recomputations.REPLACE,
    ) -> recomputations.RegionRecomputation:
        """Return the recomputation of a checkpoint, of which nothing was asked yet: for a process that reads records.

        `kcr recompute` is that process; `driver.recompute` has it in Python.

        Args:
            sequence: of a published checkpoint.
            groups: whose records are processed; none: those of all groups, or of those that `output` names.
            request_id: names it, so that asking again finds it; absent: a new one.
            output: what becomes of what is made: it replaces the checkpoint's, goes into other sinks, or is compared.
        """
        name = values.RequestId(request_id or f"recompute:{uuid.uuid4()}")
        return recomputations.RegionRecomputation(self, values.CheckpointNumber(sequence), groups, name, output)

    def checkpoint_request(self, request_id: str) -> CheckpointRequestView:
        """Return where the request of a request id stands.

        Raises:
            ConfigurationError: there is no request with that id.
        """
        return CheckpointRequestView.of(self.read(), values.RequestId(request_id))

    def answered(self, request_id: str) -> tuple[rows.Checkpoint | None, rows.Checkpoint | None]:
        """Return the checkpoint that answers a request, and the newest current one before it, both of one moment.

        A retired one counts as well; None: there is none.
        """
        region = self.read()
        request = region.request_of(values.RequestId(request_id))
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
        self.store.handle(self.name, commands.DeleteRegion())

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait_for(
        self,
        goal: goals.Goal | waiting.Predicate,
        timeout: timedelta = DEFAULT_TIMEOUT,
        on_progress: OnProgress = silent,
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
        if not isinstance(goal, goals.Goal):
            goal = waiting.CallersGoal(goal)
        region, now = waiting.wait_for(self.store, self.name, goal, timeout=timeout, on_progress=on_progress)
        return RegionView.of(region, now, samples=self.store.recent_lag(self.name, now))

    def poll(self, goal: goals.Goal, patience: timedelta = timedelta(0)) -> tuple[Progress | None, datetime]:
        """Return how far the region is from a goal, and the store's clock; None: it is reached. What is due is done.

        Args:
            goal: what to wait for.
            patience: how long to wait for it before that is the answer.

        Raises:
            TimedOut: it was not in time, for any waiter; requesting it again may help.
            RefusedError: it can't be reached any more.
        """
        return waiting.poll(self.store, self.name, goal, patience)

    def wait_for_checkpoint(
        self, request_id: str, timeout: timedelta = DEFAULT_TIMEOUT, on_progress: OnProgress = silent
    ) -> CheckpointRequestView:
        """Wait until the request of a request id is answered by a published checkpoint, and return it.

        Raises:
            TimedOut: it was not in time, or its drain was not; the message names who is missing.
            CheckpointRefused: there will be none; the message says why.
        """
        self.checkpoint_request(request_id)
        self.wait_for(goals.RequestPublished(request_id=values.RequestId(request_id)), timeout, on_progress)
        return self.checkpoint_request(request_id)

    # -- beside Kafka --------------------------------------------------------------------------------------------

    def lag(self) -> tuple[Lag, ...]:
        """Return how far every partition is behind the end of its log, in offsets and in time, and what that means.

        Raises:
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        return self.measure_lag().partitions

    def measure_lag(self) -> RegionLag:
        """Return the same by group, too.

        Raises:
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        return measure(self.store, self.name, self.clusters)

    def lag_history(self) -> tuple[LagAt, ...]:
        """Return how far each group was behind, oldest first, as far as that is kept; Kafka is not asked."""
        return tuple(LagAt.history(self.store.lag_since(self.name, self.store.read(self.name)[1] - ALL)))

    def assignment(
        self, *, members: int | None = None, assignor: Assignor | None = None
    ) -> dict[values.MemberId, tuple[values.TopicPartition, ...]]:
        """Return who would own what, over all groups; changes nothing.

        Args:
            members: another number of members than the spec's, for every group.
            assignor: another one than the spec's; `sticky` leaves what members own where it is as far as it can.

        Raises:
            ConfigurationError: `members` is not positive.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        region = self.read()
        owned: dict[values.MemberId, list[values.TopicPartition]] = {}
        for place, claim in sorted(region.claims.items()):
            if claim.owner is not None:
                owned.setdefault(claim.owner, []).append(place.topic_partition)
        found: dict[values.MemberId, tuple[values.TopicPartition, ...]] = {}
        for group, topics in ask_each(region, self.clusters, lambda cluster, _: cluster.logs.topics()).items():
            found |= preview(region.rules.groups[group], topics, owned, members=members, assignor=assignor)
        return found

    def group_offsets(self, group: str) -> adoption.ConsumerOffsets:
        """Return up to where another consumer group has committed, in the cluster of the region's groups.

        Raises:
            GroupNotEmpty: it has members; the message names them.
            InvalidTarget: it has committed nothing.
            ConfigurationError: the region's groups are on several clusters, and it is none of them.
            BrokerUnavailable, CredentialsRefused: the cluster does not answer, or refuses.
        """
        return adoption.group_offsets(self, group)

    def adopt(self, standing: adoption.ConsumerOffsets, *, into: Sequence[str] = ()) -> adoption.Adoption:
        """Return the plan by which the region goes on where another consumer stands; changes nothing.

        `resets.apply` applies its plan. In a region that has never run, its offsets are the initial ones.

        Args:
            standing: of `group_offsets`, or of `spark.query_checkpoint.query_offsets`.
            into: which of the region's groups; none: all that read its topics.

        Raises:
            ConfigurationError: the region has no such group.
            InvalidTarget: the region reads none of the topics, or Kafka has no log of one of the partitions.
            CheckpointNotUsable: the consumer stands beyond the end of a log, which is another log then.
            BrokerUnavailable, CredentialsRefused: a cluster does not answer, or refuses.
        """
        return adoption.adopt(self, self.resets, standing, into)

    # -- history -------------------------------------------------------------------------------------------------

    def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """Return up to `limit` events after that number, in commit order."""
        return self.store.events(self.name, values.EventNumber(after), limit)

    def region_id(self) -> values.RegionId:
        """Return which region of its name it is: made when it was declared, never again."""
        return self.read().region_id

    def counter(self) -> int:
        """Return the number of the newest event."""
        return self.read().counter

    def newest_events(self, count: int) -> tuple[Event, ...]:
        """Return the last `count` events, in commit order."""
        return self.events(max(self.counter() - count, 0), count)

    def brief_events(self, *, before: int | None, last: int, longest: int) -> tuple[BriefEvent, ...]:
        """Return the newest events for people, in commit order; the rest of a region is not read.

        Args:
            before: only events with a lower number; None: all.
            last: how many at most.
            longest: how many characters a detail has at most; of a longer one, its beginning and an ellipsis are left.
        """
        number = None if before is None else values.EventNumber(before)
        return self.store.brief_events(self.name, number, last, longest)

    def follow(self, after: int = 0) -> Iterator[Event]:
        """Yield every event after that number, and continue yielding as more happen; the caller ends it."""
        seen = values.EventNumber(after)
        while True:
            for event in self.store.events(self.name, seen):
                yield event
                seen = event.number
            self.store.wait(self.name, seen, FOLLOW)

    def verify(self) -> Verdict:
        """Judge what is kept of the region's history by the invariants, up to this moment."""
        return Verdict.of(self.name, self.store.chronicle(self.name))

    def record(self, place: str, *, group: str | None = None) -> tuple[ledger.RecordView, ...]:
        """Return what became of a record, in each group that reads its topic; what it costs does not grow with time.

        Args:
            place: `TOPIC:PARTITION:OFFSET`.
            group: only in this one.

        Raises:
            ConfigurationError: `place` is not of that form, or the region has no such partition or group.
        """
        return ledger.record(self.store, self.name, place, group)

    def repeated(self, *, group: str | None = None) -> tuple[ledger.Repetition, ...]:
        """Return which offsets were started more than once, and for which reset; all kept history is read.

        Args:
            group: only of this one.

        Raises:
            ConfigurationError: the region has no such group.
        """
        region = self.read()
        if group is not None:
            require_groups(region, [group])
        return ledger.repeated(self.store.history(self.name), group)

    # ------------------------------------------------------------------------------------------------------------

    def _own(self, spec: RegionSpec) -> RegionSpec:
        if spec.region != self.name:
            raise ConfigurationError(f"the spec is of region {spec.region}, this is {self.name}")
        return spec
