"""The region spec as values, the one declaration of its fields, and what a change of each does to a running region.

The file is read and the stored form written by these declarations (`fields`, `reading`), the reference is made from
them, and `differences` compares by them. A `RegionSpec` that exists has no findings, whether a file was read or a
program built it: its construction checks it as a whole.

A change takes effect:

- *At once*: when checkpoints are made, batches, timeouts, retention, history and policies.
- *At the next checkpoint, with a restart of the members*: whatever a member is built from, so topics, members,
  pipeline, delivery, and also what its Kafka client was given: assignor, membership, its settings. Three times are
  among those settings, also where they follow from others: the change of `timeouts.reset` counts at once, but the
  `max_poll_interval` that follows from it needs new clients, and is listed as well.
- *Refused*: the region's name, a group's id and its cluster; that would be another region. Groups may come and go, but
  if some go while others come, that can't be told from a new id for the same group.

Two lists of bootstrap servers that share an address are the same cluster; others are another one as far as a file can
tell. The cluster's id has the last word: an address that Kafka says is the same cluster's may change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Self

from pydantic import ConfigDict

from airflow_kcr.errors import SpecError
from airflow_kcr.protocol.rules import (
    CheckpointMode,
    CheckpointRules,
    ForeignConsumerPolicy,
    GroupProtocol,
    OutOfRangePolicy,
    RegionRules,
    RetentionRules,
)
from airflow_kcr.protocol.timeouts import Timeouts, check
from airflow_kcr.protocol.values import GroupId, region_name
from airflow_kcr.schedules import CronSchedule, Every
from airflow_kcr.settings import BROKERS_OWN
from airflow_kcr.spec.codec import from_plain, from_text, to_plain, two_batch_timeouts
from airflow_kcr.spec.fields import (
    MOST_RECORDS,
    CheckpointModeWord,
    Declared,
    Duration,
    Finding,
    ForeignConsumerWord,
    Keep,
    Number,
    OutOfRangeWord,
    Path,
    Section,
    Settings,
    TakesEffect,
    Truth,
    declared,
    path_text,
    refused,
    within,
)
from airflow_kcr.spec.groups import MOST_MEMBERS, GroupSpec, cluster_findings, group_findings, settings_of
from airflow_kcr.spec.sinks import FIELDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping


_ZERO: Final = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """When checkpoints are made: by one of `every`, `cron` and `records`, or only on request."""

    every: Duration | None = None
    """A boundary at this interval, aligned to 1970-01-01T00:00Z."""

    cron: str | None = None
    """Boundaries by a cron expression."""

    records: Number | None = None
    """A checkpoint after this many offsets since the restore point, those of all members together."""

    timezone: str = "UTC"
    """The time zone of `cron`."""

    request: CheckpointModeWord = CheckpointMode.AUTO
    """Who requests a boundary's checkpoint: the region itself, or a DAG run."""

    grace: Duration = timedelta(seconds=2)
    """How long after a boundary its records may arrive, and how far the brokers' clocks may be off."""

    catchup: Truth = False
    """Whether every boundary that was missed, in an outage or between runs, gets its own checkpoint."""

    @property
    def schedule(self) -> Every | CronSchedule | None:
        """The instants of the boundaries; None: there are none."""
        if self.every is not None:
            return Every(self.every)
        return None if self.cron is None else CronSchedule(self.cron, self.timezone)

    def rules(self) -> CheckpointRules:
        """Return what the protocol decides by."""
        return CheckpointRules(
            schedule=self.schedule,
            records=self.records,
            mode=self.request,
            grace=self.grace,
            catchup=self.catchup,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """How large batches are, and how long one may take."""

    target: Duration = timedelta(seconds=2)
    """How long a batch should take; its size adapts to it. Runs of intervals and recomputations ignore it."""

    linger: Duration = timedelta(0)
    """How long a batch waits for `min_records`; what a boundary or a checkpoint needs is read at once."""

    min_records: Number = 1_000
    """The smallest size of a batch; smaller if there is less to read (see `linger`), after a failure, or by a quota."""

    max_records: Number = 2_000_000
    """The largest batch that is planned."""

    timeout: Duration = timedelta(minutes=2)
    """How long one batch may take before it counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySpec:
    """When old history leaves the store. No decision depends on it."""

    keep: Keep = timedelta(days=90)
    """How long events and batches stay in the store; `forever` keeps them. No checkpoint that is kept loses any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """A region as its owner wants it.

    Raises:
        SpecError: with everything that is wrong, each with its path.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", hide_input_in_errors=True)

    region: Annotated[str, TakesEffect.REFUSED]
    """The region's name: 1 to 100 of `a-z 0-9 _ -`."""

    groups: Annotated[tuple[GroupSpec, ...], TakesEffect.NEXT_CHECKPOINT]

    kafka: Annotated[Settings | None, TakesEffect.NEXT_CHECKPOINT] = None
    """librdkafka client settings by name, or a named login, `auth`; a value may hold `${NAME}`; or `kafka_conn_id`."""

    kafka_conn_id: Annotated[str | None, TakesEffect.REFUSED] = None
    """An Airflow connection instead of `kafka`."""

    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    batch: BatchSpec = field(default_factory=BatchSpec)
    timeouts: Annotated[Timeouts, Section(elsewhere=frozenset({"batch"}))] = field(default_factory=Timeouts)
    """All times but `batch.timeout`, which its `batch` repeats: leave that out, or give both the same value."""

    max_failures: Number = 5
    """How many consecutive failures cause a reset, each after a wait (`timeouts.retry`); one more halts the region."""

    foreign_consumers: ForeignConsumerWord = ForeignConsumerPolicy.FAIL
    """If a foreign consumer is in a group: halt, or continue without its partitions."""

    out_of_range: OutOfRangeWord = OutOfRangePolicy.FAIL
    """What happens when retention has overtaken a position."""

    beyond_end: OutOfRangeWord = OutOfRangePolicy.FAIL
    """What happens when a log's end moved back behind a position (truncation, recreation)."""

    retention: Annotated[RetentionRules, Section()] = field(default_factory=RetentionRules)
    history: HistorySpec = field(default_factory=HistorySpec)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        object.__setattr__(self, "kafka", settings_of(self.kafka))
        repeated = self.timeouts.batch
        object.__setattr__(self, "timeouts", replace(self.timeouts, batch=self.batch.timeout))
        findings = [(path_text(path), text) for path, text in _findings(self)]
        if repeated not in {Timeouts().batch, self.batch.timeout}:
            findings.append(two_batch_timeouts(repeated, self.batch.timeout))
        if findings:
            raise SpecError(tuple(findings))

    def group(self, group_id: str) -> GroupSpec:
        """Return the group of that id.

        Raises:
            KeyError: the region has none.
        """
        for group in self.groups:
            if group.group_id == group_id:
                return group
        raise KeyError(group_id)

    def cluster_of(self, group_id: str) -> tuple[Mapping[str, str] | None, str | None]:
        """Return how a group's cluster is reached: its client settings or its connection id, the other being None.

        Raises:
            KeyError: the region has no such group.
        """
        group = self.group(group_id)
        if group.kafka is not None or group.kafka_conn_id is not None:
            return group.kafka, group.kafka_conn_id
        return self.kafka, self.kafka_conn_id

    def rules(self) -> RegionRules:
        """Return what the protocol decides by."""
        return RegionRules(
            groups={GroupId(group.group_id): group.rules() for group in self.groups},
            checkpoint=self.checkpoint.rules(),
            timeouts=self.timeouts,
            max_failures=self.max_failures,
            foreign_consumers=self.foreign_consumers,
            out_of_range=self.out_of_range,
            beyond_end=self.beyond_end,
            retention=self.retention,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values, defaults written out, so that a later default doesn't change it.

        What is None is left out; Kafka settings keep their references. `from_json` of it is equal to this.
        """
        return to_plain(self)

    def to_json_text(self) -> str:
        """Return the one text of `to_json`: sorted keys, no spaces. Equal specs have equal texts."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str) -> Self:
        """Return the spec that JSON values, or a JSON text, say; what is left out has its default.

        Raises:
            SpecError: with everything that is wrong, each with its path.
        """
        return from_text(value, cls) if isinstance(value, str) else from_plain(value, cls)


# What must hold


def _findings(spec: RegionSpec) -> Iterator[Finding]:
    """Yield everything that is wrong with `spec`, in the order of its fields."""
    yield from refused(region_name, spec.region, ("region",))
    yield from cluster_findings(spec.kafka, spec.kafka_conn_id, ())
    yield from _groups_findings(spec)
    yield from _checkpoint(spec.checkpoint)
    yield from _batch(spec.batch)
    yield from _timeouts(spec)
    yield from within(spec.max_failures, 0, MOST_RECORDS, ("max_failures",))
    yield from within(spec.retention.keep, 1, MOST_RECORDS, ("retention", "keep"), ": the restore point is always kept")
    if spec.retention.max_age is not None and spec.retention.max_age <= _ZERO:
        yield Finding(("retention", "for"), "must be longer than 0; leave it out to retire nothing by age")
    yield from _history(spec.history)


def _history(history: HistorySpec) -> Iterator[Finding]:
    if history.keep <= _ZERO:
        yield Finding(("history", "keep"), "must be longer than 0, or forever")


def _groups_findings(spec: RegionSpec) -> Iterator[Finding]:
    if not spec.groups:
        yield Finding(("groups",), "is empty; a region has at least one group")
    members = sum(group.members for group in spec.groups if 1 <= group.members <= MOST_MEMBERS)
    if members > MOST_MEMBERS:
        yield Finding(("groups",), f"have {members} members together; a region has at most {MOST_MEMBERS}")
    first: dict[str, int] = {}
    places: dict[object, str] = {}
    for index, group in enumerate(spec.groups):
        path: Path = ("groups", index)
        if group.group_id in first:
            yield Finding(
                (*path, "group_id"),
                f"{group.group_id!r} is that of groups[{first[group.group_id]}] too; each group of a region has its "
                "own id, also on another cluster",
            )
        first.setdefault(group.group_id, index)
        yield from group_findings(group, path)
        yield from _brokers_settings(spec, group, path)
        for sink in group.sinks:
            own, here = sink.own_place, (*path, "sinks", sink.name, FIELDS[sink.kind][0])
            if own in places:
                yield Finding(here, f"is that of {places[own]} too; each sink has its own")
            elif own is not None:
                places[own] = path_text(here)
        if (spec.kafka, spec.kafka_conn_id, group.kafka, group.kafka_conn_id) == (None, None, None, None):
            yield Finding(path, "has no cluster: write kafka or kafka_conn_id, for the region or for this group")


def _brokers_settings(spec: RegionSpec, group: GroupSpec, path: Path) -> Iterator[Finding]:
    """Find client settings that the client refuses where the broker decides."""
    if group.protocol is GroupProtocol.CLASSIC:
        return
    where: Path = ("kafka",) if group.kafka is None else (*path, "kafka")
    given = (spec.kafka if group.kafka_conn_id is None else {}) if group.kafka is None else group.kafka
    for name, there in BROKERS_OWN.items():
        if name in (given or {}):
            yield Finding(
                (*where, name),
                f"is the broker's with protocol: consumer ({group.group_id}); set {there} of the group or of the "
                "broker instead",
            )


def _checkpoint(checkpoint: CheckpointSpec) -> Iterator[Finding]:
    given = [name for name in ("every", "cron", "records") if getattr(checkpoint, name) is not None]
    if len(given) > 1:
        yield Finding(("checkpoint",), f"has {' and '.join(given)}; at most one of every, cron and records")
    if checkpoint.request is CheckpointMode.DAG_RUN and checkpoint.every is None and checkpoint.cron is None:
        yield Finding(
            ("checkpoint", "request"),
            "dag_run waits at scheduled boundaries, and there are none; write every or cron, or auto",
        )
    yield from _schedule(checkpoint)
    if checkpoint.records is not None:
        yield from within(checkpoint.records, 1, MOST_RECORDS, ("checkpoint", "records"))
    if checkpoint.grace < _ZERO:
        yield Finding(("checkpoint", "grace"), "must not be negative")


def _schedule(checkpoint: CheckpointSpec) -> Iterator[Finding]:
    if checkpoint.every is not None:
        yield from refused(Every, checkpoint.every, ("checkpoint", "every"))
    yield from refused(lambda zone: CronSchedule("@daily", zone), checkpoint.timezone, ("checkpoint", "timezone"))
    if checkpoint.cron is not None:
        yield from refused(CronSchedule, checkpoint.cron, ("checkpoint", "cron"))
    elif checkpoint.timezone != "UTC":
        yield Finding(
            ("checkpoint", "timezone"),
            f"{checkpoint.timezone!r} has no effect without cron; `every` is aligned in UTC. Leave it out",
        )


def _batch(batch: BatchSpec) -> Iterator[Finding]:
    if batch.target <= _ZERO:
        yield Finding(("batch", "target"), "must be longer than 0")
    if batch.target >= batch.timeout:
        yield Finding(
            ("batch", "target"),
            f"is {batch.target.total_seconds():g} s and batch.timeout is {batch.timeout.total_seconds():g} s; a batch "
            "that takes as long as it should would already count as hung",
        )
    if batch.linger < _ZERO:
        yield Finding(("batch", "linger"), "must not be negative; 0s takes at once whatever there is")
    yield from within(batch.min_records, 1, MOST_RECORDS, ("batch", "min_records"))
    yield from within(batch.max_records, 1, MOST_RECORDS, ("batch", "max_records"))
    if 1 <= batch.max_records < batch.min_records <= MOST_RECORDS:
        yield Finding(
            ("batch", "min_records"), f"is {batch.min_records}, above max_records, which is {batch.max_records}"
        )


def _timeouts(spec: RegionSpec) -> Iterator[Finding]:
    # Both kinds of membership may be in one region, and most clashes are the same for both.
    kinds = sorted({group.static_membership for group in spec.groups}, reverse=True) or [True]
    clashes = dict.fromkeys(clash for static in kinds for clash in check(spec.timeouts, static=static))
    for clash in clashes:
        section, dot, name = clash.setting.partition(".")
        path: Path = (section, name) if dot and section in {"timeouts", "batch"} else ("timeouts",)
        yield Finding(path, str(clash))


# Changes


class Difference(NamedTuple):
    """One field that two specs have differently; Kafka settings are named without their values."""

    path: str
    """As in the file, but groups by their ids: `groups[flights-etl].members`."""

    takes_effect: TakesEffect


def differences(old: RegionSpec, new: RegionSpec, same: Collection[str] = ()) -> list[Difference]:
    """Return every field in which `new` is not `old`, with when the change takes effect; empty for equal specs.

    The order of groups, and a cluster that no group uses, make no difference.

    Args:
        old: the spec of the running region.
        new: the one that is to replace it.
        same: groups whose addresses, old and new, were found to lead to one cluster.
    """
    if old == new:
        return []
    before, after = old.to_json(), new.to_json()
    found = [*_fields(before, after, {"region"}), *_groups(old, new, same)]
    others = declared(RegionSpec).keys() - {"region", "groups", "kafka", "kafka_conn_id"}
    found += [each for each in _fields(before, after, others) if each.path not in _CLIENT_TIMES]
    found += [Difference(path, TakesEffect.NEXT_CHECKPOINT) for path in _client_times(old, new)]
    return found


class Split(NamedTuple):
    """A changed spec, by when it takes effect."""

    at_once: RegionSpec
    """What is in force from now on."""

    later: RegionSpec | None
    """The whole new spec, where some of it waits for the next checkpoint; else None."""


def split(old: RegionSpec, new: RegionSpec, same: Collection[str] = ()) -> Split:
    """Return what of `new` counts at once, and `new` itself where the rest waits.

    What can't be combined with the groups as they still are waits with them: a session shorter than a relaunch, say,
    comes in with the dynamic members that it needs.

    Args:
        old: the spec of the running region.
        new: the one that is to replace it.
        same: as in `differences`.

    Raises:
        SpecError: with every difference that is refused.
    """
    found = differences(old, new, same)
    refused = [path for path, takes_effect in found if takes_effect is TakesEffect.REFUSED]
    if refused:
        raise SpecError(tuple((path, "can't change in a region that exists; make another region") for path in refused))
    later = new if any(takes_effect is TakesEffect.NEXT_CHECKPOINT for _, takes_effect in found) else None
    if later is None:
        return Split(new, None)
    try:
        at_once = replace(new, groups=old.groups, kafka=old.kafka, kafka_conn_id=old.kafka_conn_id)
    except SpecError:
        at_once = old
    return Split(at_once, later)


_CLIENT_TIMES = ("timeouts.session", "timeouts.max_poll_interval", "timeouts.metadata_refresh")
"""Times that the Kafka client is given when it is built, and keeps."""


def _client_times(old: RegionSpec, new: RegionSpec) -> Iterator[str]:
    sessions = [
        [spec.timeouts.session_timeout(static=group.static_membership) for spec in (old, new)] for group in new.groups
    ]
    pairs = (
        any(before != after for before, after in sessions) or old.timeouts.session != new.timeouts.session,
        old.timeouts.max_poll_interval != new.timeouts.max_poll_interval
        or old.timeouts.max_poll != new.timeouts.max_poll,
        old.timeouts.metadata_refresh != new.timeouts.metadata_refresh,
    )
    return (path for path, differs in zip(_CLIENT_TIMES, pairs, strict=True) if differs)


def _groups(old: RegionSpec, new: RegionSpec, same: Collection[str]) -> list[Difference]:
    before = {group["group_id"]: group for group in old.to_json()["groups"]}
    after = {group["group_id"]: group for group in new.to_json()["groups"]}
    gone, come = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    renamed = bool(gone and come)
    declaration = declared(GroupSpec)["group_id"] if renamed else declared(RegionSpec)["groups"]
    effect = _effect(declaration)
    found = [Difference(f"groups[{name}]{'.group_id' if renamed else ''}", effect) for name in gone + come]
    clusters: dict[str, TakesEffect] = {}
    for name in sorted(before.keys() & after.keys()):
        found += _leaves(_own(before[name]), _own(after[name]), f"groups[{name}]", declared(RegionSpec)["groups"])
        for path, takes_effect in _cluster(old, new, name, is_same=name in same):
            clusters.setdefault(path, takes_effect)
    return found + [Difference(path, takes_effect) for path, takes_effect in clusters.items()]


def _own(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in {"kafka", "kafka_conn_id"}}


def _cluster(old: RegionSpec, new: RegionSpec, group_id: str, *, is_same: bool) -> Iterator[tuple[str, TakesEffect]]:
    """How a group's cluster is reached, wherever the file says so."""
    (before, old_conn), (after, new_conn) = old.cluster_of(group_id), new.cluster_of(group_id)
    own = [spec.group(group_id) for spec in (old, new)]
    place = f"groups[{group_id}]." if any(group.kafka or group.kafka_conn_id for group in own) else ""
    if old_conn != new_conn:
        refused = _effect(declared(RegionSpec)["kafka_conn_id"])
        yield f"{place}kafka_conn_id", TakesEffect.NEXT_CHECKPOINT if is_same else refused
        return
    old_settings, new_settings = dict(before or {}), dict(after or {})
    for name in sorted(old_settings.keys() | new_settings.keys()):
        if old_settings.get(name) == new_settings.get(name):
            continue
        other = name == "bootstrap.servers" and not is_same and is_other_address(old_settings, new_settings)
        yield f"{place}kafka.{name}", TakesEffect.REFUSED if other else _effect(declared(RegionSpec)["kafka"])


def is_other_address(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Whether two groups of client settings have no address in common."""
    one, other = ({s.strip() for s in settings.get("bootstrap.servers", "").split(",")} for settings in (old, new))
    return not one & other


def _fields(old: Mapping[str, Any], new: Mapping[str, Any], names: Iterable[str]) -> Iterator[Difference]:
    """Yield where these fields of two specs differ."""
    for name in sorted(names):
        yield from _leaves(old.get(name), new.get(name), name, declared(RegionSpec)[name])


def _leaves(
    old: Any,  # noqa: ANN401 (any plain value)
    new: Any,  # noqa: ANN401 (any plain value)
    path: str,
    declaration: Declared,
    around: TakesEffect = TakesEffect.AT_ONCE,
) -> Iterator[Difference]:
    """Yield where two plain values of one field differ; lists are one value."""
    effect = _effect(declaration, around)
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield Difference(path, effect)
        return
    within = {} if declaration.section is None else declared(declaration.section)
    for name in [*old, *(name for name in new if name not in old)]:
        yield from _leaves(old.get(name), new.get(name), f"{path}.{name}", within.get(name, declaration), effect)


def _effect(declaration: Declared, around: TakesEffect = TakesEffect.AT_ONCE) -> TakesEffect:
    """Return when a change of a field counts: as declared, else as a change of what is around it."""
    return around if declaration.takes_effect is None else declaration.takes_effect
