"""What the API answers about a region and its members, as values that render to JSON.

A view is made from one reading of the store, so all of it is of one moment. What has a name in the JSON has it here;
the rest is for people and stays out of the JSON.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from operator import attrgetter
from pathlib import PurePath
from types import NoneType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from airflow_kcr.protocol import values
from airflow_kcr.protocol.member.state import State
from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.region import boundaries, coverage, lag, liveness, lost_logs, retention, specs
from airflow_kcr.protocol.region.archive import WAITING
from airflow_kcr.protocol.region.lag import NO_SAMPLE, LagFinding, LagSample
from airflow_kcr.protocol.region.liveness import NOTHING_SEEN, Liveness, Seen
from airflow_kcr.protocol.region.rows import CheckpointState, RegionState, Unserved
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.rules import Assignor, GroupProtocol
from airflow_kcr.protocol.scopes import Scope
from airflow_kcr.protocol.values import DesiredState, GroupPartition, few, format_instant

V = TypeVar("V")


class AnswerColumns(Generic[V]):
    """The names under which an answer is shown, in their order, and what stands there.

    Args:
        data: those of its JSON and its CSV: names of the answer's own, paths to those of its parts
            (`checkpoint.sequence` is shown as `sequence`), or names with what makes the value.
        table: those that people see in a table; absent: the same.
    """

    def __init__(self, *data: str | tuple[str, Callable[[V], object]], table: tuple[str, ...] = ()) -> None:
        own: dict[str, Callable[[V], object]] = dict(
            (one.rpartition(".")[2], attrgetter(one)) if isinstance(one, str) else one for one in data
        )
        self._made = {name: attrgetter(name) for name in table} | own
        self.data = tuple(own)
        self.table = table or self.data

    def document(self, answer: V, names: Iterable[str] = ()) -> dict[str, object]:
        """Return what stands under some of the names, absent: those of the JSON, as `json` writes it."""
        return document_of({name: self._made[name](answer) for name in names or self.data})


class View:
    """An answer: what has a name in `shown` is in its JSON; the rest is for people and stays out."""

    __slots__ = ()

    shown: ClassVar[AnswerColumns[Any]]

    def to_json(self) -> dict[str, object]:
        """Return it as the commands write it with `-o json` (docs/reference/cli.md)."""
        return self.shown.document(self)


def document_of(facts: Mapping[str, object]) -> dict[str, object]:
    """Return facts as `json` writes them.

    Raises:
        TypeError: no rule says how a value is written; a mistake in the code, found by the first test that meets it.
    """
    return {name: value if type(value) in _PLAIN else _written(value) for name, value in facts.items()}


def of(part: str, *names: str) -> tuple[str, ...]:
    """Return the paths to some fields of an answer's part."""
    return tuple(f"{part}.{name}" for name in names)


WHY: Final = "why", lambda one: one.finding.text() if one.finding.what else ""
"""Why a verdict on lag is what it is, of what has its `finding`."""

OF_PARTITION: Final = of("partition", "group", "topic", "partition")
"""The names of the partition that an answer is about."""


_PLAIN: Final = frozenset({NoneType, bool, int, float, str})
"""Written as they are; nearly all that an answer for ten thousand partitions has."""


def _written(value: object) -> object:
    match value:
        case Enum():
            return value.value
        case None | str() | int() | float():
            return value
        case datetime():
            return format_instant(value)
        case timedelta():
            return int(value.total_seconds())
        case values.MemberId() | Scope() | PurePath():
            return str(value)
        case View():
            return value.to_json()
        case Mapping():
            return document_of(value)
        case tuple() | list():
            return [_written(one) for one in value]
    return document_of(_fields(value))


def _fields(value: object) -> Mapping[str, object]:
    if not is_dataclass(value):
        raise TypeError(f"no rule says how {value!r:.200} is written in JSON")
    return {field.name: getattr(value, field.name) for field in fields(value)}


_NAMED: Final = 3
"""How many of the things that a reset waits for are named."""


def span(time: timedelta) -> str:
    """Return how long something took as people say it: its two largest units, as `2 h 5 min`."""
    minutes, seconds = divmod(int(time.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((place for place, (count, _) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count} {unit}" for count, unit in units[first : first + 2] if count) or "0 s"


def last_complete(region: StoredRegion) -> values.CheckpointNumber | None:
    """Return the newest complete current checkpoint; None: there is none."""
    newest = retention.newest_usable(region)
    return None if newest is None else newest.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView(View):
    """One member, as the store knows it: what it claims, and whether it lives."""

    shown = AnswerColumns["MemberView"](
        ("member_id", lambda m: m.member),
        *("member.index", "incarnation", "version", "label", "state", "alive", "lease_until"),
        *("batch_since", "partitions"),
    )

    member: values.MemberId
    incarnation: int
    """0: it was never there."""

    state: State
    alive: bool
    """Whether it holds a lease."""

    partitions: tuple[values.TopicPartition, ...]
    lease_until: datetime | None = None
    """When its lease ends, unless it is renewed, or has ended; None: there is none."""

    label: str = ""
    """Host, process and application."""

    version: str = ""
    """Of the package that it runs, or ran last; empty: it did not say."""

    batch_since: datetime | None = None
    """Since when its oldest batch in flight runs; None: it runs none."""

    start_failure: str = ""
    """Why it could not start with the spec in force, since it last lived."""

    @classmethod
    def of_all(cls, region: StoredRegion, now: datetime, members: Iterable[values.MemberId]) -> Iterator[Self]:
        """Yield members of a region, there or not; claims are looked through once, however many members there are."""
        owned: defaultdict[values.MemberId, list[values.TopicPartition]] = defaultdict(list)
        for partition, claim in sorted(region.claims.items()):
            if claim.owner is not None:
                owned[claim.owner].append(partition.topic_partition)
        failures = {c.member: c.refusal for c in specs.start_failures(region, now)}
        since: dict[values.MemberId, datetime] = {}
        for batch in region.running.values():
            since[batch.member] = min(batch.started_at, since.get(batch.member, batch.started_at))
        for member in members:
            row = region.members.get(member)
            yield cls(
                member=member,
                incarnation=0 if row is None else row.incarnation,
                state=_member_state(region, now, member),
                alive=region.is_live(member, now),
                lease_until=region.leases[member].until if member in region.leases else None,
                partitions=tuple(owned.get(member, ())),
                label="" if row is None else row.label,
                version="" if row is None else row.version,
                batch_since=since.get(member),
                start_failure=failures.get(member, ""),
            )


def _unattended_runs(region: StoredRegion, now: datetime) -> Iterator[str]:
    """Yield the runs that no process works for: theirs are about to come, or their last try has failed."""
    if region.live_members(now):
        return
    for one in region.requests.values():
        if one.is_of_run and one.state in WAITING:
            until = "" if one.boundary is None else f" up to {format_instant(one.boundary)}"
            yield (
                f"no process works for the run {one.request_id}{until}: if none is about to start, try it again (clear "
                "its task, or call kcr run with its --until and --request-id), or run the next interval, which makes "
                f"both checkpoints; to give it up, kcr region stop {region.name}"
            )


def _notes(region: StoredRegion, now: datetime) -> Iterator[str]:
    """Yield what a person should know beside what the region waits for."""
    yield from specs.notes(region, now)
    yield from _unattended_runs(region, now)
    yield from _mixed_versions(region, now)
    if region.foreign_consumers and region.state is not RegionState.STOPPED:
        yield _foreign_consumers(region, coverage.taken(region, now))
    yield from _absent(region)
    if region.failures and region.halt is None:
        count = "1 failure" if region.failures == 1 else f"{region.failures} failures"
        wait = region.rules.timeouts.retry_after(region.failures).total_seconds()
        yield (
            f"{count} in succession, the last answered by a reset and a wait of {wait:g} s; "
            f"more than {region.rules.max_failures} halt the region"
        )


def _absent(region: StoredRegion) -> Iterator[str]:
    """Yield what the brokers do not have, one sentence for each of what has been said of several partitions."""
    by_text: defaultdict[str, list[str]] = defaultdict(list)
    for partition, absence in region.absent().items():
        if region.rules.subscribes(partition.group, partition.topic):
            by_text[lost_logs.absence_text(region, absence)].append(str(partition))
    for text, partitions in by_text.items():
        yield f"{few(partitions, _NAMED)}: {text}"


def _mixed_versions(region: StoredRegion, now: datetime) -> Iterator[str]:
    by_version: defaultdict[str, list[str]] = defaultdict(list)
    for member, row in sorted(region.members.items()):
        if row.version and region.is_live(member, now):
            by_version[row.version].append(str(member))
    if len(by_version) > 1:
        told = "; ".join(f"{version}: {few(members, _NAMED)}" for version, members in sorted(by_version.items()))
        yield f"its members run different versions of airflow-kcr: {told}"


def _foreign_consumers(region: StoredRegion, taken: frozenset[GroupPartition]) -> str:
    held = sorted(taken)
    has = f", and no member has {few(held, _NAMED)}" if held else ""
    return (
        f"not of this region: {'; '.join(map(str, region.foreign_consumers))}{has} (policy "
        f"{region.rules.foreign_consumers}); "
        "end it, then its partitions come back by themselves"
    )


def _member_state(region: StoredRegion, now: datetime, member: values.MemberId) -> State:
    """Return where a member stands, as far as the store can tell: what it holds for is known to itself alone."""
    row = region.members.get(member)
    if row is None or not region.is_live(member, now):
        return State.CLOSED
    if row.claimed != region.epoch:
        return State.JOINING
    if row.acknowledged != region.epoch:
        return State.READY
    approaching = region.checkpoint is not None and region.checkpoint.state is CheckpointState.APPROACHING
    may_begin = region.state is RegionState.RUNNING and (region.desired_state is DesiredState.RUNNING or approaching)
    return State.PROCESSING if may_begin else State.HOLDING


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSummary(View):
    """One region in a line."""

    shown: ClassVar[AnswerColumns[Any]] = AnswerColumns["RegionSummary"](
        *("region", "state", "desired_state", "epoch", "timeline", "last_complete", "last_complete_at"),
        "next_boundary",
        ("overdue_seconds", lambda r: r.overdue),
        ("progress", lambda r: r.liveness.verdict),
        *("members", "alive", "lag", "recent_lag"),
        "finding.verdict",
        WHY,
        "trouble",
    )

    region: str
    state: str
    desired_state: str
    epoch: int
    timeline: int
    last_complete: int | None
    last_complete_at: datetime | None
    """When that was complete."""

    next_boundary: datetime | None
    members: int
    """How many the spec asks for."""

    alive: int
    """How many hold leases."""

    liveness: Liveness
    """Whether it makes progress, and what it waits for."""

    overdue: timedelta | None = None
    """How long the next boundary has passed with no checkpoint made for it; None: it has not."""

    recent_lag: tuple[int | None, ...] = ()
    """How many offsets were left to read at each sample that verdicts are made of, oldest first; None: not known."""

    finding: LagFinding = NO_SAMPLE
    """What the lag means."""

    halt: str = ""
    """Why it is halted."""

    @property
    def lag(self) -> int | None:
        """How many offsets are left to read, by the newest samples; None: that is not known."""
        return self.recent_lag[-1] if self.recent_lag else None

    @property
    def trouble(self) -> str:
        """What a person has to see to: why it is halted, or what it waits for too long; empty: nothing."""
        return self.halt or "; ".join(wait.what for wait in self.liveness.stalled)

    @classmethod
    def of(
        cls, region: StoredRegion, now: datetime, seen: Seen = NOTHING_SEEN, samples: Sequence[LagSample] = ()
    ) -> Self:
        """Return a region as it was read.

        Args:
            region: as stored.
            now: the store's clock.
            seen: what the store knows beside it; without, a wait for batches never counts as too long.
            samples: of its lag, oldest first; without, nothing is known of it.
        """
        waited = liveness.judge(region, now, seen)
        lags = lag.judge(region, now, waited, samples)
        newest = retention.newest_usable(region)
        return cls(
            region=region.name,
            state=str(region.state),
            desired_state=str(region.desired_state),
            epoch=region.epoch,
            timeline=region.timeline,
            last_complete=None if newest is None else newest.sequence,
            last_complete_at=None if newest is None else newest.finished_at,
            next_boundary=region.next_boundary,
            members=sum(group.members for group in region.rules.groups.values()),
            alive=len(region.live_members(now)),
            liveness=waited,
            overdue=boundaries.overdue(region, now),
            recent_lag=lag.course(region.rules.groups, samples) if lags else (),
            finding=lag.worst(lags.values()),
            halt="" if region.halt is None else region.halt.text,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView(View):
    """One group of a region as its spec in force has it, with its members."""

    shown = AnswerColumns["GroupView"]("group_id", "protocol", "assignor", "members")

    group_id: values.GroupId
    protocol: GroupProtocol | None = None
    """Who decides which member owns which partition; None: the spec has no such group any more, but members live."""

    assignor: Assignor | None = None
    members: tuple[MemberView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionView(RegionSummary):
    """One region with its members."""

    shown = AnswerColumns["RegionView"](
        *("region", "region_id", "state", "desired_state", "epoch", "timeline", "next_sequence", "restore_point"),
        *("last_complete", "last_complete_at", "next_boundary"),
        ("overdue_seconds", lambda r: r.overdue),
        ("progress", lambda r: r.liveness.verdict),
        "lag",
        "finding.verdict",
        WHY,
        ("restore_point_overtaken_at", lambda r: r.overtaken_at),
        *("halted", "note"),
        (
            "waits",
            lambda r: [
                {"rule": w.rule, "since": w.since, "stalled_from": w.until, "what": w.what} for w in r.liveness.waits
            ],
        ),
        *("groups", "foreign_consumers"),
        ("unowned", lambda r: [{**p._asdict(), "since": since} for p, since in r.unowned]),
        ("absent", lambda r: [{**p._asdict(), "since": row.since, "gone": row.is_gone} for p, row in r.absent]),
    )

    overtaken_at: datetime | None = None
    """When retention will have passed the restore point, as fast as the logs lost their beginnings between checkpoints;
    None: that is not known."""

    region_id: str = ""
    """Which region of its name: made when it was declared, never again."""

    next_sequence: int = 1
    restore_point: int | None = None
    groups: tuple[GroupView, ...] = ()
    """Each with its members; those that the spec has no place for only while they live."""

    unowned: tuple[tuple[GroupPartition, datetime], ...] = ()
    """Partitions that the brokers have and no member owns, each with since when."""

    absent: tuple[tuple[GroupPartition, Unserved], ...] = ()
    """Partitions that the brokers do not have any more."""

    foreign_consumers: tuple[ForeignConsumer, ...] = ()
    """The foreign consumers in its groups at the last check."""

    halted: str = ""
    """Why it is halted, and what a person can do."""

    note: str = ""
    """What else a person should know."""

    @property
    def incarnations(self) -> Mapping[str, int]:
        """The incarnation of each member, by its name."""
        return {str(one.member): one.incarnation for group in self.groups for one in group.members}

    @classmethod
    def of(
        cls, region: StoredRegion, now: datetime, seen: Seen = NOTHING_SEEN, samples: Sequence[LagSample] = ()
    ) -> Self:
        """Return a region as it was read; the arguments are those of `RegionSummary.of`."""
        halt = region.halt
        return replace(
            super(RegionView, cls).of(region, now, seen, samples),
            region_id=region.region_id,
            next_sequence=region.next_sequence,
            restore_point=region.restore_sequence,
            groups=_by_group(region, now),
            unowned=tuple(coverage.unowned(region).items()),
            absent=tuple(region.absent().items()),
            foreign_consumers=region.foreign_consumers,
            halted="" if halt is None else f"{halt.text}; choices: {'; '.join(halt.choices)}",
            note="; ".join(_notes(region, now)),
        )


def _by_group(region: StoredRegion, now: datetime) -> tuple[GroupView, ...]:
    """Return every group with its members: those of the spec, and those that live without a place in it."""
    rules = region.rules.groups
    found: dict[values.GroupId, list[MemberView]] = {group: [] for group in rules}
    shown = sorted({*coverage.expected_members(region), *region.live_members(now)})
    for view in MemberView.of_all(region, now, shown):
        found.setdefault(view.member.group, []).append(view)
    return tuple(
        GroupView(
            group_id=group,
            protocol=rules[group].protocol if group in rules else None,
            assignor=rules[group].assignor if group in rules else None,
            members=tuple(views),
        )
        for group, views in sorted(found.items())
    )
