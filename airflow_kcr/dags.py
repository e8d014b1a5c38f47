"""The standard DAGs of a region, made from its spec: its consumers and checkpoints, or its intervals, and its resets.

::

    consumers   apply ─► consume, one mapped task for each application; they run until the region stops
    checkpoint         validate ─► drain ─► commit, once for each data interval, then whatever builds on the checkpoint
    interval    run, once for each data interval, instead of these two; nothing runs between the runs (with several
                applications: apply ─► run and the mapped task members, beside each other)
    reset       choose ─► plan ─► approve ─► apply, started by a person with Airflow's form; a plan that became stale
                is made and approved again: approve ─► plan_again ─► approve_again ─► apply
    watch       watch, always, if it is asked for (`watch_dag`)

The checkpoint DAG, or that of the intervals, has a run for every boundary of the region: its data intervals end where
the region's schedule says, also after an outage, and one at a time. What would let the two disagree is refused when the
file is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args, overload

from airflow.sdk import DAG, BaseNotifier, TriggerRule

from airflow_kcr.airflow_features import PARTITION_DATES
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks.compat import (
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    DeltaDataIntervalTimetable,
    cron_of,
    delta_of,
    require,
)
from airflow_kcr.operators.checkpoint import KcrCommitCheckpointOperator, KcrDrainOperator
from airflow_kcr.operators.consume import KcrConsumeOperator
from airflow_kcr.operators.interval import KcrIntervalOperator, OnClear
from airflow_kcr.operators.region import KcrApplyRegionOperator, KcrValidateGroupOperator
from airflow_kcr.operators.reset import (
    KcrApplyResetOperator,
    KcrApproveResetOperator,
    KcrChooseCheckpointOperator,
    KcrPlanResetOperator,
)
from airflow_kcr.operators.reset_form import VALUED, reset_params
from airflow_kcr.operators.run_members import KcrRunMembersOperator
from airflow_kcr.operators.watch import KcrWatchOperator
from airflow_kcr.protocol.rules import Schedule
from airflow_kcr.schedules import CronSchedule, Every
from airflow_kcr.spec import RegionSpec

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import MappedOperator

T = TypeVar("T")

_AT_ONCE: Final = 16
"""How many tasks of a DAG Airflow has run at once, by default."""

COMPARED: Final = 50
"""How many instants of two differently written schedules are compared."""

DagName: TypeAlias = Literal["consumers", "checkpoint", "interval", "reset"]
"""Which of the standard DAGs."""

Timetable: TypeAlias = CronDataIntervalTimetable | DeltaDataIntervalTimetable | CronPartitionTimetable


class Application(NamedTuple):
    """A Spark application, and the members of one group that it hosts."""

    group_id: str
    indexes: tuple[int, ...]


class RegionDags(NamedTuple):
    """The DAGs of a region; assign them to names of the DAG file, one by one."""

    consumers: DAG
    checkpoint: DAG
    reset: DAG

    @property
    def committed(self) -> KcrCommitCheckpointOperator:
        """The last task of the checkpoint.

        What builds on a checkpoint comes after it, and takes the checkpoint from it.
        """
        return _task(self.checkpoint, "commit", KcrCommitCheckpointOperator)


class IntervalDags(NamedTuple):
    """The DAGs of a region that rests between its runs; assign them to names of the DAG file, one by one."""

    interval: DAG
    reset: DAG

    @property
    def run(self) -> KcrIntervalOperator:
        """The task of an interval.

        What builds on its checkpoint comes after it, and takes the checkpoint from it.
        """
        return _task(self.interval, "run", KcrIntervalOperator)


def _task(dag: DAG, task_id: str, kind: type[T]) -> T:
    task = dag.get_task(task_id)
    if not isinstance(task, kind):
        raise TypeError(f"the task `{task_id}` of {dag.dag_id} was replaced by a {type(task).__name__}")
    return task


@overload
def region_dags(
    spec: RegionSpec,
    *,
    mode: Literal["resident"] = "resident",
    start_date: datetime,
    schedule: str | timedelta | Timetable | None = None,
    applications: Sequence[Application] | None = None,
    kcr_conn_id: str = "kcr_default",
    consume: Mapping[str, object] | None = None,
    default_args: Mapping[str, object] | None = None,
    consent_upsert: bool = False,
    second_person: bool = False,
    dag_args: Mapping[str, object] | None = None,
    dag_args_of: Mapping[DagName, Mapping[str, object]] | None = None,
) -> RegionDags: ...


@overload
def region_dags(
    spec: RegionSpec,
    *,
    mode: Literal["interval"],
    start_date: datetime,
    schedule: str | timedelta | Timetable | None = None,
    applications: Sequence[Application] | None = None,
    on_clear: OnClear = "recompute",
    kcr_conn_id: str = "kcr_default",
    consume: Mapping[str, object] | None = None,
    default_args: Mapping[str, object] | None = None,
    consent_upsert: bool = False,
    second_person: bool = False,
    dag_args: Mapping[str, object] | None = None,
    dag_args_of: Mapping[DagName, Mapping[str, object]] | None = None,
) -> IntervalDags: ...


def region_dags(  # noqa: PLR0913 - keywords, one for each decision that the DAGs' author may make
    spec: RegionSpec,
    *,
    mode: Literal["resident", "interval"] = "resident",
    start_date: datetime,
    schedule: str | timedelta | Timetable | None = None,
    applications: Sequence[Application] | None = None,
    on_clear: OnClear = "recompute",
    kcr_conn_id: str = "kcr_default",
    consume: Mapping[str, object] | None = None,
    default_args: Mapping[str, object] | None = None,
    consent_upsert: bool = False,
    second_person: bool = False,
    dag_args: Mapping[str, object] | None = None,
    dag_args_of: Mapping[DagName, Mapping[str, object]] | None = None,
) -> RegionDags | IntervalDags:
    """Return the standard DAGs of a region.

    They are `REGION_consumers`, `REGION_checkpoint` and `REGION_reset`, or for intervals `REGION_interval` and
    `REGION_reset`.

    Args:
        spec: of the region; the first task of the consumers, or of each interval, applies it.
        mode: `resident`: members run until the region stops, and records are processed as they come. `interval`: each
            run starts them for its data interval, and leaves nothing running.
        start_date: from when on there are checkpoints, with zone. The first data interval begins at the first scheduled
            instant at or after it.
        schedule: of the checkpoints, to show it in the DAG file: a cron expression (on the clock of
            `checkpoint.timezone`), a time between two checkpoints, one of the timetables that make data intervals, or
            `CronPartitionTimetable` with `run_offset=-1`, whose runs are of the partition that ends then. Absent: that
            of the spec. A region without a schedule of its own is checkpointed by the DAG alone.
        applications: which members share a Spark application; absent: each has its own, and a run of an interval has
            one for all.
        on_clear: what a run of an interval does that is cleared, as for `KcrIntervalOperator`: `recompute` its records
            and replace its output, or `find` its checkpoint and change nothing.
        kcr_conn_id: the connection to the region store.
        consume: further arguments of `KcrConsumeOperator`, or `KcrIntervalOperator` (and `KcrRunMembersOperator`), such
            as `conn_id`, `conf` and `jars`.
        default_args: of all DAGs; without `retries`, a task is tried again five times, half a minute later. The
            tasks that ask a person are tried again at once, whatever it says: the question was lost by Airflow.
        consent_upsert: what the form of the reset has for that consent: a reset may go back although tables of sinks
            of mode `upsert` can't be restored. The approval shows which. Also whether runs of intervals recompute them.
        second_person: whether who approves a reset must be another user than who asked for it.
        dag_args: further arguments of all DAGs, such as `access_control`, `tags`, `doc_md`, `params` and
            callbacks; tags and params come beside their own.
        dag_args_of: the same for single ones, by `consumers`, `checkpoint`, `interval` and `reset`; they win.

    Raises:
        ConfigurationError: the DAG's schedule contradicts the region's, `start_date` has no zone, a member is in no
            application or in two, or an argument of a DAG is unknown or one that it has already; the message names the
            field.
    """
    if start_date.utcoffset() is None:
        raise ConfigurationError(f"start_date is {start_date.isoformat()}, which has no time zone; give it one")
    instants = _instants(spec, schedule, start_date)
    scheduled = {
        "schedule": schedule if isinstance(schedule, CronPartitionTimetable) else _timetable(instants),
        "start_date": _first_run(schedule, instants, start_date),
        # One run for every boundary, also after an outage; never two at once, and never depends_on_past: clearing a
        # failed run would then wait for itself.
        "catchup": True,
        "max_active_runs": 1,
    }
    made = _Dags(
        region=spec.region,
        start_date=start_date,
        kcr_conn_id=kcr_conn_id,
        # A member that is being started again is missing for a while, and a store or broker may be away.
        args={"retries": 5, "retry_delay": timedelta(seconds=30), **(default_args or {})},
        of_all=dag_args or {},
        of_one=dag_args_of or {},
    )
    started = {"kcr_conn_id": kcr_conn_id, **(consume or {})}
    reset = partial(made.reset, spec, consent_upsert=consent_upsert, second_person=second_person)
    match mode:
        case "resident":
            hosted = _checked(spec, applications)
            return RegionDags(made.consumers(spec, hosted, started), made.checkpoint(scheduled), reset())
        case "interval":
            hosted = () if applications is None else _checked(spec, applications)
            cleared = {"on_clear": on_clear, "consent_upsert": consent_upsert}
            return IntervalDags(made.interval(spec, scheduled, hosted, cleared, started), reset())


def watch_dag(
    region: str,
    *,
    notifiers: Sequence[BaseNotifier] | BaseNotifier,
    start_date: datetime,
    kcr_conn_id: str = "kcr_default",
    watch: Mapping[str, Any] | None = None,
    dag_args: Mapping[str, object] | None = None,
) -> DAG:
    """Return the DAG that watches a region and notifies people of its incidents: `REGION_watch`.

    Its task holds no slot. A run ends after an hour, and the next one goes on at once.

    Args:
        region: the region's name; it may be declared later.
        notifiers: Airflow's notifiers, such as `SmtpNotifier`, at least one.
        start_date: from when on, with zone.
        kcr_conn_id: the connection to the region store.
        watch: further arguments of `KcrWatchOperator`, such as `late` and `retention`.
        dag_args: further arguments of the DAG, as for `region_dags`.

    Raises:
        ConfigurationError: a notifier is none, or an argument of the DAG is unknown or one that it has already.
    """
    # A run that finds no region would else fail and be followed by the next one at once.
    patient = {"retries": 5, "retry_delay": timedelta(minutes=1)}
    made = _Dags(region=region, start_date=start_date, kcr_conn_id=kcr_conn_id, args=patient, of_all=dag_args or {})
    with made.dag(
        "watch",
        description=f"Notifies people of what is wrong with the region {region}",
        schedule="@continuous",
        max_active_runs=1,
    ) as dag:
        KcrWatchOperator(task_id="watch", region=region, kcr_conn_id=kcr_conn_id, notifiers=notifiers, **(watch or {}))
    return dag


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dags:
    """Makes the DAGs of one region, each from what all of them share and from what their author adds."""

    region: str
    start_date: datetime
    kcr_conn_id: str
    args: Mapping[str, Any]
    of_all: Mapping[str, object]
    """What the author adds to all of them."""

    of_one: Mapping[DagName, Mapping[str, object]] = field(default_factory=dict)
    """What the author adds to single ones; it wins."""

    def __post_init__(self) -> None:
        strange = sorted(set(self.of_one) - set(get_args(DagName)))
        if strange:
            raise ConfigurationError(
                f"dag_args_of: there is no DAG {', '.join(strange)}; use {', '.join(get_args(DagName))}"
            )

    def consumers(self, spec: RegionSpec, hosted: Sequence[Application], started: Mapping[str, object]) -> DAG:
        """Return the DAG whose tasks are the applications."""
        with self.dag(
            "consumers",
            description=f"The consumers of the region {self.region}: they run until it stops",
            schedule="@once",
            max_active_runs=1,
            # Each application holds its task as long as it runs.
            max_active_tasks=max(_AT_ONCE, len(hosted) + 1),
        ) as dag:
            apply = KcrApplyRegionOperator(task_id="apply", spec=spec, kcr_conn_id=self.kcr_conn_id)
            apply >> _consume(self.region, hosted, started)
        return dag

    def checkpoint(self, scheduled: Mapping[str, Any]) -> DAG:
        """Return the DAG of the checkpoints, with what makes it one of the region's data intervals."""
        name, conn = self.region, self.kcr_conn_id
        with self.dag(
            "checkpoint", description=f"One checkpoint of the region {name} for each data interval", **scheduled
        ) as dag:
            (
                KcrValidateGroupOperator(task_id="validate", region=name, kcr_conn_id=conn)
                >> KcrDrainOperator(task_id="drain", region=name, kcr_conn_id=conn)
                >> KcrCommitCheckpointOperator(task_id="commit", region=name, kcr_conn_id=conn)
            )
        return dag

    def interval(
        self,
        spec: RegionSpec,
        scheduled: Mapping[str, Any],
        hosted: Sequence[Application],
        cleared: Mapping[str, Any],
        started: Mapping[str, Any],
    ) -> DAG:
        """Return the DAG whose runs process an interval each, with one application for all if none is named."""
        name = self.region
        with self.dag(
            "interval",
            description=f"The records of the region {name}, one data interval after the other",
            **scheduled,
            # All of them at once: none ends before the members of the others have come.
            **({"max_active_tasks": len(hosted)} if len(hosted) > _AT_ONCE else {}),
        ) as dag:
            if not hosted:
                KcrIntervalOperator(task_id="run", spec=spec, **cleared, **started)
                return dag
            # Once for all of them: none may start with the spec of before.
            apply = KcrApplyRegionOperator(task_id="apply", spec=spec, kcr_conn_id=self.kcr_conn_id)
            first, *others = hosted
            apply >> KcrIntervalOperator(task_id="run", region=name, **_members(first), **cleared, **started)
            if others:
                # A run has one event in each outlet, that of the task that carries it out.
                started = {name: value for name, value in started.items() if name != "outlets"}
                members = KcrRunMembersOperator.partial(
                    task_id="members", region=name, run_task_id="run", map_index_template=_LABEL, **started
                )
                apply >> members.expand_kwargs([_members(one) for one in others])
        return dag

    def reset(self, spec: RegionSpec, *, consent_upsert: bool, second_person: bool) -> DAG:
        """Return the DAG of a person's reset."""
        name, conn = self.region, self.kcr_conn_id
        with self.dag(
            "reset",
            description=f"Resets the region {name}, to where its form says, after a person has seen the plan",
            schedule=None,
            max_active_runs=1,
            params=reset_params([group.group_id for group in spec.groups], consent_upsert=consent_upsert),
        ) as dag:
            asked = dag.param
            choose = KcrChooseCheckpointOperator(
                task_id="choose",
                region=name,
                kcr_conn_id=conn,
                target=asked("target"),
                values={one.form_field: asked(one.form_field) for one in VALUED},
                reason=asked("reason"),
            )
            plan = KcrPlanResetOperator(
                task_id="plan",
                region=name,
                kcr_conn_id=conn,
                groups=asked("groups"),
                topics=asked("topics"),
                skip=asked("skip"),
                forward=asked("forward"),
                allow_partial=asked("allow_partial"),
                forced=asked("force"),
                consent_upsert=asked("consent_upsert"),
            )
            approval = partial(KcrApproveResetOperator, region=name, kcr_conn_id=conn, second_person=second_person)
            approve = approval(task_id="approve")
            plan_again = KcrPlanResetOperator(task_id="plan_again", region=name, kcr_conn_id=conn)
            approve_again = approval(task_id="approve_again")
            apply = KcrApplyResetOperator(
                task_id="apply", region=name, kcr_conn_id=conn, trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
            )
            choose >> plan >> approve >> apply
            approve >> plan_again >> approve_again >> apply
        return dag

    def dag(self, name: DagName | Literal["watch"], **own: Any) -> DAG:  # noqa: ANN401 (Airflow's own)
        """Return a DAG with what is its own, and what the author adds to all and to the one of that name.

        Raises:
            ConfigurationError: the author gives what is the DAG's own, or what no DAG has.
        """
        given: dict[str, Any] = {**self.of_all, **(self.of_one.get(name, {}) if name != "watch" else {})}
        shared = {"dag_id": f"{self.region}_{name}", "start_date": self.start_date, "default_args": self.args}
        own = {**shared, **own}
        tags, params = ["kcr", self.region, *_listed(given.pop("tags", ()), "tags")], dict(own.pop("params", {}))
        added = given.pop("params", {})
        if not isinstance(added, Mapping):
            raise ConfigurationError(f"dag_args: params is a mapping, not a {type(added).__name__}")
        taken = sorted({*own, "catchup"} & given.keys()) or sorted(f"params.{one}" for one in params.keys() & added)
        if taken:
            raise ConfigurationError(
                f"dag_args: {', '.join(taken)} of {own['dag_id']} is not the author's to give: region_dags does"
            )
        try:
            return DAG(**own, tags=tags, params={**params, **added}, **given)
        except TypeError as error:
            raise ConfigurationError(f"dag_args of {own['dag_id']}: {error}") from error


def _listed(given: object, name: str) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"dag_args: {name} is a list of texts, not {given!r:.60}")
    return [str(one) for one in given]


def one_each(spec: RegionSpec) -> tuple[Application, ...]:
    """Return an application for each member of a region."""
    return tuple(Application(group.group_id, (index,)) for group in spec.groups for index in range(group.members))


def all_together(spec: RegionSpec) -> tuple[Application, ...]:
    """Return an application for each group of a region, with all of its members: fewer processes, less memory."""
    return tuple(Application(group.group_id, tuple(range(group.members))) for group in spec.groups)


def _consume(region: str, hosted: Sequence[Application], arguments: Mapping[str, object]) -> MappedOperator:
    """One task for each application."""
    return KcrConsumeOperator.partial(
        task_id="consume",
        region=region,
        map_index_template=_LABEL,
        **arguments,
    ).expand_kwargs([_members(one) for one in hosted])


_LABEL: Final = "{{ task.group_id }} {{ task.indexes | join(',') }}"
"""Of a mapped task, by what it hosts."""


def _members(of: Application) -> dict[str, Any]:
    return {"group_id": of.group_id, "indexes": list(of.indexes)}


def _checked(spec: RegionSpec, applications: Sequence[Application] | None) -> tuple[Application, ...]:
    if applications is None:
        return one_each(spec)
    wanted = {(group.group_id, index) for group in spec.groups for index in range(group.members)}
    given = [(one.group_id, index) for one in applications for index in one.indexes]
    for member in given:
        if member not in wanted:
            raise ConfigurationError(f"applications: region {spec.region} has no member {_name(*member)}")
        if given.count(member) > 1:
            raise ConfigurationError(f"applications: {_name(*member)} is in two applications; a member runs once")
    missing = sorted(wanted - set(given))
    if missing:
        names = ", ".join(_name(*member) for member in missing)
        raise ConfigurationError(
            f"applications: no application has {names}; without all members no checkpoint completes"
        )
    return tuple(applications)


def _name(group: str, index: int) -> str:
    return f"{group}[{index}]"


def _instants(
    spec: RegionSpec, schedule: str | timedelta | Timetable | None, start_date: datetime
) -> Every | CronSchedule | None:
    """The boundaries of the checkpoint DAG.

    Those of the region, which the DAG's own schedule may repeat but not contradict.
    """
    checkpoint = spec.checkpoint
    own = checkpoint.schedule
    if schedule is None:
        return own
    given = _read(schedule, checkpoint.timezone, start_date)
    if own is None or given == own:
        return given
    field = "checkpoint.every" if checkpoint.every is not None else "checkpoint.cron"
    for dags, regions in zip(_first(given, start_date), _first(own, start_date), strict=True):
        if dags != regions:
            raise ConfigurationError(
                f"schedule: {_told(given)} contradicts {field} of region {spec.region}, {_told(own)}: from "
                f"{start_date.isoformat()} on the DAG's data intervals end at {dags.isoformat()} where the region is "
                f"checkpointed at {regions.isoformat()}; leave the schedule out, or make them the same (a time "
                "between two checkpoints "
                "counts from start_date)"
            )
    return given


def _read(schedule: str | timedelta | Timetable, timezone: str, start_date: datetime) -> Every | CronSchedule:
    match schedule:
        case str():
            return CronSchedule(schedule, timezone)
        case timedelta():
            return Every(schedule, start_date)
        case CronDataIntervalTimetable():
            return CronSchedule(*cron_of(schedule))
        case DeltaDataIntervalTimetable() if isinstance(delta := delta_of(schedule), timedelta):
            return Every(delta, start_date)
        case CronPartitionTimetable():
            require(PARTITION_DATES, "schedule")
            if schedule.run_offset != -1:
                raise ConfigurationError(
                    "schedule: a run of CronPartitionTimetable comes when its partition begins, before there is a "
                    "record of it; give it run_offset=-1, so that it comes when the partition ends"
                )
            return CronSchedule(*cron_of(schedule))
        case _:
            raise ConfigurationError(
                f"schedule: a {type(schedule).__name__} makes no data intervals that can be compared with the "
                "boundaries of a region; use CronDataIntervalTimetable, CronPartitionTimetable (with run_offset=-1) or "
                "DeltaDataIntervalTimetable (with a timedelta)"
            )


def _first(schedule: Schedule, start: datetime) -> list[datetime]:
    found = [schedule.after(start)]
    while len(found) < COMPARED:
        found.append(schedule.after(found[-1]))
    return found


def _told(schedule: Every | CronSchedule) -> str:
    match schedule:
        case Every(interval):
            return f"every {interval}"
        case CronSchedule(expression, timezone):
            return f"{expression!r} in {timezone}"


def _timetable(instants: Every | CronSchedule | None) -> Timetable | None:
    match instants:
        case None:
            return None
        case Every(interval):
            return DeltaDataIntervalTimetable(interval)
        case CronSchedule(expression, timezone):
            return CronDataIntervalTimetable(expression, timezone=timezone)


def _first_run(
    schedule: str | timedelta | Timetable | None, instants: Every | CronSchedule | None, start_date: datetime
) -> datetime:
    """The start date of the DAG, so that the first interval, or partition, begins at the first scheduled instant."""
    begin = _aligned(instants, start_date)
    # A run of a partition is scheduled by the instant at which it comes, not by that at which its partition begins.
    return instants.after(begin) if isinstance(schedule, CronPartitionTimetable) and instants is not None else begin


def _aligned(instants: Every | CronSchedule | None, start_date: datetime) -> datetime:
    """The first scheduled instant at or after the start date; with catch-up, Airflow counts a delta from there."""
    if instants is None or instants.at_or_before(start_date) == start_date:
        return start_date
    return instants.after(start_date)
