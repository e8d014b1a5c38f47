"""An application that hosts members of a region: the composition root (docs/explanation/consistent-regions.md).

It puts store, Kafka, Spark and the members' loops together, in an order in which everything that a person may have got
wrong is said before anything is consumed: the store, the index, the pipeline, Kafka and the group, and only then Spark.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_kcr import __version__
from airflow_kcr.api.clusters import Cluster, reader_with
from airflow_kcr.api.group_watch import GroupWatch
from airflow_kcr.api.preflight import preflight
from airflow_kcr.api.runs import RegionRun
from airflow_kcr.api.verdict import HistoryKeeper
from airflow_kcr.driver.logins import session_for
from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.driver.parts import Parts, StartFailures, load
from airflow_kcr.driver.task import RunningApplication, process_state
from airflow_kcr.errors import ConfigurationError, MemberInUse, StoreError
from airflow_kcr.kafka.admin_process import AdminProcess
from airflow_kcr.kafka.control import ControlConsumer
from airflow_kcr.kafka.logins import advice
from airflow_kcr.kafka.logs import BrokerLogs
from airflow_kcr.kafka.settings import PREFIX, admin_settings, client_id, member_settings, spark_options, subscription
from airflow_kcr.ports import Membership, MembershipListener
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.region.commands import ChangeDesiredState, Reconcile, ReportClusters
from airflow_kcr.protocol.region.membership import require_place
from airflow_kcr.protocol.region.rows import RegionState, Requester
from airflow_kcr.protocol.values import DesiredState, GroupId, MemberId, RegionId, RegionName
from airflow_kcr.runtime.host import MemberHost, World
from airflow_kcr.runtime.leases import Identity, Renewals, StoreClock, boot_time
from airflow_kcr.runtime.planner import Limits
from airflow_kcr.sinks.group import GroupSinks, opened_sinks, spark_packages
from airflow_kcr.spark import jvm
from airflow_kcr.spark.engine import SparkEngine
from airflow_kcr.spark.executors import Executors
from airflow_kcr.spark.pipelines import imports_of, warm_up
from airflow_kcr.spark.pods import executors_waiting
from airflow_kcr.spark.pulse import Pulse
from airflow_kcr.spark.reads import LARGEST_FETCH, Source, fetch_within, held
from airflow_kcr.spark.session import SparkSettings, executor_memory, stop_session
from airflow_kcr.spec import RegionSpec, TakesEffect, differences, stored_spec
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RENEWALS: Final = 1.5
"""Renewals of a lease to wait for before its holder counts as dead."""

POLL_PERIOD: Final = 0.25
"""Seconds between two reads of a lease."""

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRun:
    """What an application hosts."""

    region: RegionName
    members: tuple[MemberId, ...]
    """Of any groups; each once, at least one."""

    takeover: bool = False
    """Whether a live lease of another process is superseded, once a running drain is over."""

    region_run: RegionRun | None = None
    """What they are started for; None: they stay until the region is stopped, and start one that is."""

    spark: SparkSettings
    reading: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's Kafka connector, over those of the project (`spark.reads.DEFAULTS`)."""

    metrics_port: int | None = None
    """Where Prometheus asks for the members' metrics, 0: at any free port; None: nowhere."""

    def __post_init__(self) -> None:
        if not self.members or len(set(self.members)) < len(self.members):
            raise ConfigurationError(f"name each member once, at least one: {', '.join(map(str, self.members)) or '-'}")

    @property
    def groups(self) -> tuple[GroupId, ...]:
        """The groups of the members, each once."""
        return tuple(dict.fromkeys(member.group for member in self.members))

    def limits(self, spec: RegionSpec) -> Limits:
        """Return what a batch may be, as a spec has it."""
        return limits_of(spec) if self.region_run is None else bounded_limits_of(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run of which everything but Spark was found in order."""

    run: MemberRun
    spec: RegionSpec
    region_id: RegionId
    revision: int
    """Of the spec."""

    digest: str
    """Of the spec's text, as the store has it."""

    parts: Mapping[GroupId, Parts]
    """What the members of each group are built from."""

    clusters: Mapping[GroupId, Cluster]
    """Each group's, open for as long as the run is lent."""

    store_clock: StoreClock
    fetch: int = LARGEST_FETCH
    """How many bytes of a partition to fetch at a time, known once Spark runs; options may say otherwise."""

    @property
    def label(self) -> str:
        """The groups, for people."""
        return f"group{'s' if len(self.run.groups) > 1 else ''} {', '.join(self.run.groups)}"


@contextmanager
def preparing(
    store: RegionStore, run: MemberRun, failures: StartFailures, environ: Mapping[str, str] = os.environ
) -> Iterator[Prepared]:
    """Check everything that a run needs, and lend it; nothing is consumed, and no JVM is started.

    Args:
        store: where the region is.
        run: what to host.
        failures: tells the store why its members can't start.
        environ: where references of the spec are looked up.

    Raises:
        StoreError: the store can't be reached.
        UnknownRegion, UnknownMember: there is no such region, or no such member in its spec.
        ConfigurationError: a setting is refused, the pipeline is unusable, a topic missing, a credential wrong,
            a sink's table can't be written as the spec wants.
        SinkUnavailable: a sink's database can't be reached.
        BrokerUnavailable: Kafka can't be reached.
        OtherCluster: the group's address leads to another cluster than the region has consumed from.
        GroupInOtherRegion: the group of that cluster is another region's, by whatever address.
        ForeignConsumerInGroup: a foreign consumer is in the group, and the policy is `fail`.
        MemberInUse: another process holds an index, and lives.
    """
    store.handle(run.region, Reconcile())  # a changed spec may have waited for members who live no more
    region, now = store.read(run.region)
    store_clock = StoreClock(boot_time, now)
    for member in run.members:
        require_place(region, member)
    if not run.takeover:
        refuse_held(store, run)
    spec, revision, digest = stored_spec(region.spec.text), region.spec.revision, region.spec.digest
    with ExitStack() as stack:
        with failures.reported(revision, digest):
            taken = store.taken(run.region)
            parts = {group: load(spec, group, environ, region_id=region.region_id, taken=taken) for group in run.groups}
            clusters = of_each_cluster(parts, lambda kafka: stack.enter_context(reader_with(kafka)))
            # Before anything joins: in a group that is another region's, these members would be the foreign consumers.
            ids = {group: cluster.logs.cluster_id() for group, cluster in clusters.items()}
            store.handle(run.region, ReportClusters(found=ids))
            found = preflight(store, run.region, run.members, lambda _, group: nullcontext(clusters[group]))
        for check in found.checks:
            if check.verdict is not CheckVerdict.OK:
                _LOG.warning("group %s: %s", check.group, check.detail)
        yield Prepared(
            run=run,
            spec=spec,
            region_id=region.region_id,
            revision=revision,
            digest=digest,
            parts=parts,
            clusters=clusters,
            store_clock=store_clock,
        )


def of_each_cluster(parts: Mapping[GroupId, Parts], open_: Callable[[Mapping[str, str]], T]) -> dict[GroupId, T]:
    """Return what is opened for each group's cluster, once for groups with the same settings: it is a process."""
    opened: dict[tuple[tuple[str, str], ...], T] = {}
    found: dict[GroupId, T] = {}
    for group, its in parts.items():
        settings = tuple(sorted(its.kafka.items()))
        if settings not in opened:
            opened[settings] = open_(its.kafka)
        found[group] = opened[settings]
    return found


def refuse_held(store: RegionStore, run: MemberRun) -> None:
    """Refuse indexes that a live process holds, before Spark is started for them.

    A lease that is not over may be that of a process that is dead; one that is renewed is not. So it takes as long as
    a renewal does to find out. If there is none, the members wait for the lease's end when they join.

    Args:
        store: where the region is.
        run: the indexes; a takeover does not ask.

    Raises:
        MemberInUse: one of them is held, and its holder lives.
    """
    region, now = store.read(run.region)
    held = {member: region.leases[member] for member in run.members if region.is_live(member, now)}
    times, never = region.rules.timeouts, threading.Event()
    deadline = time.monotonic() + RENEWALS * times.renew.total_seconds()
    while held and time.monotonic() < deadline:
        never.wait(POLL_PERIOD)
        region, now = store.read(run.region)
        held = {m: lease for m, lease in held.items() if region.is_live(m, now)}
        renewed = [m for m, lease in held.items() if region.leases[m].until > lease.until]
        if renewed:
            holder = region.members[renewed[0]].label
            raise MemberInUse(f"{renewed[0]} is held by {holder}, which lives; stop that process or ask for a takeover")


def still_wanted(store: RegionStore, run: MemberRun) -> MemberRun | None:
    """Return the run with those of its members that the spec in force has a place for; None: it has for none.

    Raises:
        UnknownRegion: the region was deleted.
    """
    groups = store.read(run.region)[0].rules.groups
    members = tuple(one for one in run.members if one.group in groups and one.index < groups[one.group].members)
    return replace(run, members=members) if members else None


def follow(store: RegionStore, prepared: Prepared, member_pool: MemberPool) -> Prepared:
    """Have the members follow the spec in force, as far as it changes while members live; return what they follow.

    A spec that they have to be rebuilt for is none of it: it came in force with the end of their leases, and as long
    as they stay with the one that they were built from, the store refuses to have them back.

    Args:
        store: where the region is.
        prepared: what they have followed so far.
        member_pool: the members.
    """
    if member_pool.spec_digests() <= {prepared.digest}:
        return prepared
    try:
        region, _ = store.read(prepared.run.region)
    except StoreError as error:
        _LOG.debug("the changed spec could not be read, it is tried again: %s", error)
        return prepared
    if region.spec.digest == prepared.digest:
        return prepared
    spec = stored_spec(region.spec.text)
    if any(one.takes_effect is not TakesEffect.AT_ONCE for one in differences(prepared.spec, spec)):
        return prepared
    member_pool.adopt(spec.rules().checkpoint, prepared.run.limits(spec), region.spec.digest)
    _LOG.info("region %s: its spec has changed, the members follow", prepared.run.region)
    return replace(prepared, spec=spec, revision=region.spec.revision, digest=region.spec.digest)


@contextmanager
def hosting(
    store: RegionStore, prepared: Prepared, failures: StartFailures, pulse: Pulse, end_process: Callable[[str], None]
) -> Iterator[tuple[RunningApplication, MemberPool]]:
    """Start Spark and the members, and lend the application with them; a stopped region is started for them.

    Args:
        store: where the region is.
        prepared: what was checked.
        failures: tells the store why its members can't start.
        pulse: Spark's.
        end_process: ends this process at once, with a reason.
    """
    run = prepared.run
    with ExitStack() as stack:
        # Not the readers': a call about a group may take all of its time, and no checkpoint waits for that.
        logs = of_each_cluster(
            prepared.parts, lambda kafka: BrokerLogs(stack.enter_context(AdminProcess(admin_settings(kafka))))
        )
        with failures.reported(prepared.revision, prepared.digest):
            partitions = {group: _partitions(prepared, group, its) for group, its in logs.items()}
            spark = _session(prepared, partitions)
            fetch = fetch_for(prepared.label, sum(partitions.values()), executor_memory(spark))
            prepared = replace(prepared, fetch=fetch)
            stack.callback(stop_session, spark)
            sinks = {g: opened_sinks(parts.sinks, g, spark, store) for g, parts in prepared.parts.items()}
        for opened in sinks.values():
            stack.callback(opened.end)
        renewals = Renewals(store, boot_time)
        stack.callback(renewals.end)
        application = application_of(spark)
        waits_for = partial(executors_waiting, application.application)
        _start(store, run)
        hosts: list[MemberHost] = []
        for group, its in logs.items():
            warm_up = partial(_warm_up, prepared, group, spark, its) if run.region_run is None else partial(_ask, spark)
            executors = Executors(pulse, warm_up, waits_for)
            shared = _Shared(spark, its, end_process, application.label(), sinks[group], executors, renewals)
            hosts += (_host(store, prepared, shared, member) for member in run.members if member.group == group)
        member_pool = MemberPool(store, run.region, hosts)
        stack.callback(member_pool.end)
        watch = GroupWatch(
            store,
            run.region,
            run.groups,
            lambda _, group: nullcontext(prepared.clusters[group]),
            member_pool.newest_checkpoint,
        )
        stack.callback(watch.end)
        history = HistoryKeeper(store, run.region)
        stack.callback(history.end)
        _LOG.info("region %s: hosting %s", run.region, ", ".join(map(str, run.members)))
        member_pool.start()
        watch.start()
        history.start()
        yield application, member_pool


def _start(store: RegionStore, run: MemberRun) -> None:
    """Start a stopped region for its members, or for the run that they are there for."""
    if run.region_run is not None:
        run.region_run.start()
        return
    region, _ = store.read(run.region)
    if region.state is RegionState.STOPPED:
        who = f"members of {', '.join(run.groups)}"
        requester = Requester(who=who, reason="a member was started")
        store.handle(run.region, ChangeDesiredState(desired_state=DesiredState.RUNNING, requester=requester))


def _session(prepared: Prepared, partitions: Mapping[GroupId, int]) -> SparkSession:
    run, settings = prepared.run, prepared.run.spark
    consumers = settings.consumers or sum(partitions[member.group] for member in run.members)
    packages = (*settings.packages, *spark_packages(prepared.spec, run.groups))
    clusters = (parts.kafka for parts in prepared.parts.values())
    return session_for(replace(settings, consumers=consumers, packages=packages), clusters)


def fetch_for(groups: str, partitions: int, memory: int) -> int:
    """Return how many bytes of a partition to fetch at a time; warn where an executor has hardly room for any.

    Args:
        groups: whose partitions, for people.
        partitions: how many there are.
        memory: of one executor, in bytes.
    """
    fetch = fetch_within(memory, partitions)
    if held(partitions, fetch) > memory // 2:
        _LOG.warning(
            "%s: an executor may read %d partitions, whose Kafka consumers hold up to %d MiB of its %d MiB; give "
            "it more (spark.executor.memory; with a local master, spark.driver.memory)",
            groups,
            partitions,
            held(partitions, fetch) >> 20,
            memory >> 20,
        )
    return fetch


def application_of(spark: SparkSession) -> RunningApplication:
    """Return this process's application: its id, page, host and process."""
    state = process_state(os.getpid())
    return RunningApplication(
        application=spark.sparkContext.applicationId or "",
        ui=spark.sparkContext.uiWebUrl or "",
        # A pod's host name is cut off after 63 letters.
        host=spark.conf.get("spark.kubernetes.driver.pod.name", None) or socket.gethostname(),
        pid=os.getpid(),
        started=0 if state is None else state.started,
    )


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the members of one group share in an application."""

    spark: SparkSession
    logs: BrokerLogs
    end_process: Callable[[str], None]
    label: str
    sinks: GroupSinks
    executors: Executors
    renewals: Renewals


def _host(store: RegionStore, prepared: Prepared, shared: _Shared, member: MemberId) -> MemberHost:
    run, spec = prepared.run, prepared.spec
    rules = spec.rules()
    group, parts = rules.groups[member.group], prepared.parts[member.group]
    settings = member_settings(parts.kafka, region=run.region, member=member, rules=group, timeouts=rules.timeouts)

    def membership(listener: MembershipListener) -> Membership:
        return ControlConsumer(settings, group=member.group, topics=subscription(group), listener=listener)

    source = replace(source_of(prepared, member), record=lambda: shared.executors.record)
    engine = SparkEngine(shared.spark, parts.pipeline, source, shared.sinks.writers)
    world = World(
        store=store,
        logs=shared.logs,
        engine=engine,
        sinks=shared.sinks,
        membership=membership,
        end_process=shared.end_process,
        clock=boot_time,
        store_clock=prepared.store_clock,
        renewals=shared.renewals,
        is_ready=shared.executors.are_ready,
        lacks=shared.executors.lack,
        slowed=engine.slowed,
    )
    who = Identity(
        region=run.region,
        region_id=prepared.region_id,
        member=member,
        group=group,
        timeouts=rules.timeouts,
        takeover=run.takeover,
        label=shared.label,
        version=__version__,
        spec_digest=prepared.digest,
    )
    return MemberHost(who, rules.checkpoint, run.limits(spec), world)


def source_of(prepared: Prepared, member: MemberId) -> Source:
    """Return where and how a member of a run reads its batches."""
    return Source(
        region=prepared.run.region,
        region_id=prepared.region_id,
        member=member,
        kafka=connector_settings(prepared.run.region, member, prepared.parts[member.group].kafka),
        options=prepared.run.reading,
        fetch=prepared.fetch,
        ends_within=prepared.spec.rules().timeouts.process_end_limit,
        login=advice(prepared.parts[member.group].kafka, in_spark=True),
    )


def connector_settings(region: RegionName, member: MemberId, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the connector that reads for a member.

    Args:
        region: its region.
        member: who reads; as its consumer in the group, so that a quota of the one is a quota of the other.
        given: the client settings of the group's cluster.
    """
    kafka = {name.removeprefix("kafka."): value for name, value in spark_options(given).items()}
    kafka["client.id"] = client_id(region, member, given.get("client.id", PREFIX))
    return kafka


def _ask(spark: SparkSession) -> int:
    """Run one small task, which asks for an executor; a run has few batches, and its first one waits for no other.

    Not by a query: Spark would plan it and generate code for it, and the first batch would use none of that.
    """
    jvm.run_task(spark.sparkContext)
    return 0


def _warm_up(prepared: Prepared, group: GroupId, spark: SparkSession, logs: BrokerLogs) -> int:
    rules = prepared.spec.rules().groups[group]
    member = next(one for one in prepared.run.members if one.group == group)
    source, imports = source_of(prepared, member), imports_of(prepared.parts[group].pipeline)
    return warm_up(spark, source, logs.bounds(rules.partitions(logs.topics())), imports)


def limits_of(spec: RegionSpec) -> Limits:
    """Return what a batch may be, as a spec has it."""
    return Limits(
        target=spec.batch.target,
        least=spec.batch.min_records,
        most=spec.batch.max_records,
        linger=spec.batch.linger,
        longest=spec.batch.timeout / 4,
    )


def bounded_limits_of(spec: RegionSpec) -> Limits:
    """Return what a batch may be where all that is to be read is one checkpoint's, which waits for every batch.

    The target keeps batches short, so that a checkpoint waits for few records. Here it would only make more batches,
    each of which costs something.
    """
    limits = limits_of(spec)
    return replace(limits, target=limits.longest)


def _partitions(prepared: Prepared, group: GroupId, logs: BrokerLogs) -> int:
    """Return how many partitions a group has."""
    return len(prepared.spec.rules().groups[group].partitions(logs.topics()))
