"""What a person asks of a reset, and the plan as a document: what it would do, and all that is needed to apply it.

`plan` is its name; the reset is accepted under it, so that a plan that is applied twice is one reset. The document is
complete: it has the request and the epoch it was made under. The store keeps none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, Self

from pendulum.tz.exceptions import AmbiguousTime, NonExistingTime

from airflow_kcr.api.regions import record_named
from airflow_kcr.api.views import View, document_of, run_of
from airflow_kcr.errors import ConfigurationError, InvalidTarget, NumberOutOfRange
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.observations import LogBounds, LogView
from airflow_kcr.protocol.offsets import OffsetMap, read_offsets, write_offsets
from airflow_kcr.protocol.region.plans import Plan
from airflow_kcr.protocol.region.rows import Requester, ResetRequest
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import universe
from airflow_kcr.protocol.rules import UpsertSink
from airflow_kcr.protocol.scopes import EVERYTHING, Scope, parse_scope
from airflow_kcr.protocol.target_resolution import PlanEntry
from airflow_kcr.protocol.targets import FromFile, Needs, Target, ToDatetime, parse_target
from airflow_kcr.protocol.values import (
    Epoch,
    GroupId,
    GroupPartition,
    Offset,
    RequestId,
    TopicName,
    checked_instant,
    format_instant,
    parse_instant,
    region_name,
)
from airflow_kcr.schedules import zone_named

WORST: Final = 20
"""How many partitions a summary has: what fits on a screen with the buttons beneath it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine(View):
    """One partition of a plan. What is not known is None."""

    RECREATED: ClassVar = "the topic was made anew, where it is now is of the one before"

    partition: GroupPartition
    current: int | None
    target: int | None
    source: str
    in_scope: bool
    asked: int | None = None
    """What was asked for, where the log does not have it and the target was clamped."""

    is_unreachable: bool = False
    """The log does not have the target, and it is one that is not clamped: the reset would be refused."""

    log_start: int | None = None
    log_end: int | None = None
    is_recreated: bool = False
    """The topic was deleted and created again: `current` is of the one before, so nothing is counted from it."""

    @property
    def replay(self) -> int | None:
        """How many offsets are processed again."""
        return None if self._way is None else max(-self._way, 0)

    @property
    def skip(self) -> int | None:
        """How many offsets are passed over."""
        return None if self._way is None else max(self._way, 0)

    @property
    def _way(self) -> int | None:
        if self.current is None or self.target is None or self.is_recreated:
            return None
        return self.target - self.current

    @property
    def is_moved(self) -> bool:
        """Whether the partition does not stay where it is."""
        return self.current != self.target or self.is_recreated

    @property
    def badness(self) -> tuple[bool, bool, bool, int]:
        """What the worst partitions have most of: unreachable, of another topic, clamped, far away."""
        away = max(self.replay or 0, self.skip or 0)
        return self.is_unreachable, self.is_recreated, self.asked is not None, away

    def facts(self) -> Mapping[str, object]:
        """Return the line as in a plan's `entries`."""
        return {
            **self.partition._asdict(),
            "current": self.current,
            "target": self.target,
            "source": self.source,
            "clamped": self.asked is not None,
            "asked": self.asked,
            "replay": self.replay,
            "skip": self.skip,
            "in_scope": self.in_scope,
            "unreachable": self.is_unreachable,
            "recreated": self.is_recreated,
            "log_start": self.log_start,
            "log_end": self.log_end,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(View):
    """A plan in numbers."""

    partitions: int
    moved: int
    """Those that don't stay where they are."""

    replay: int
    skip: int
    clamped: int
    unreachable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView(View):
    """What a reset would do, made under one epoch."""

    plan: str
    region: str
    epoch: int
    made_at: datetime
    request: ResetRequest
    lines: tuple[PlanLine, ...]
    """One for each partition; fewer in a plan that was read from a summary."""

    totals: Totals
    undoes: tuple[int, ...] = ()
    """The checkpoints that it would take off the current timeline."""

    runs: tuple[Requester, ...] = ()
    """The DAG runs whose checkpoints those are: what they published is processed again."""

    ignored: tuple[GroupPartition, ...] = ()
    """Partitions of the target checkpoint that the region no longer has."""

    upserts: tuple[UpsertSink, ...] = ()
    """Sinks whose tables it could not restore: applied, it needs consent."""

    overtaken_at: datetime | None = None
    """When retention will have overtaken the target, at the speed of the logs' starts between the checkpoints."""

    def finds_nothing(self, line: PlanLine) -> bool:
        """Return whether a time was asked for and the partition has no record since, so that it goes to its end."""
        is_by_time = Needs.TIME_INDEX in self.request.target.needs
        return is_by_time and line.in_scope and line.target is not None and line.target == line.log_end

    def notes(self, line: PlanLine) -> list[str]:
        """Return what to know of a line beside its numbers."""
        notes = [] if line.in_scope else ["out of scope"]
        if self.finds_nothing(line):
            notes.append("no record since then, the log's end")
        if line.asked is not None:
            notes.append(f"clamped, asked for {line.asked}")
        if line.is_recreated:
            notes.append(line.RECREATED)
        if line.is_unreachable:
            notes.append(f"unreachable, the log has {line.log_start} to {line.log_end}")
        return notes

    @classmethod
    def of(cls, plan: Plan, request: ResetRequest, log: LogView) -> Self:
        """Return a plan as it was made."""
        unreachable = {u.partition for u in plan.unreachable}
        lines = tuple(
            _line(entry, log.bounds.get(entry.partition), entry.partition in unreachable) for entry in plan.entries
        )
        return cls(
            plan=plan.reset.request_id,
            region=plan.region,
            epoch=plan.epoch,
            made_at=log.read_at,
            request=request,
            lines=lines,
            totals=_totals(lines),
            undoes=plan.undoes,
            runs=plan.runs,
            ignored=plan.ignored,
            upserts=plan.upserts,
        )

    @property
    def moves(self) -> str:
        """How many partitions it moves, in words; where it moves none, that it changes nothing."""
        totals = self.totals
        if not totals.moved:
            return f"nothing: all {totals.partitions:,} partition(s) are at their targets already"
        return f"{totals.moved:,} of {totals.partitions:,} partition(s)"

    @property
    def target(self) -> str:
        """The target in words."""
        return str(self.request.target)

    @property
    def worst(self) -> tuple[PlanLine, ...]:
        """The partitions that move, the worst first."""
        moving = [line for line in self.lines if any(line.badness)]
        return tuple(sorted(moving, key=lambda line: line.badness, reverse=True))

    def heading(self, instant: Callable[[datetime], str] = format_instant) -> dict[str, str]:
        """Return what a person reads above the partitions, by name; empty where there is nothing to say.

        Args:
            instant: how an instant is written.
        """
        totals = self.totals
        return {
            "target": self.target,
            "scope": str(self.request.scope),
            "moves": self.moves,
            "records processed again": f"{totals.replay:,}",
            "records skipped": f"{totals.skip:,}" if totals.skip else "",
            "records skipped by name": ", ".join(f"{p} at {o}" for p, o in self.request.skip.items()),
            "clamped into the log": f"{totals.clamped:,} partition(s)" if totals.clamped else "",
            "not in the log any more": f"{totals.unreachable:,} partition(s)" if totals.unreachable else "",
            "out of reach": f"from {instant(self.overtaken_at)} on, by retention" if self.overtaken_at else "",
            "checkpoints undone": ", ".join(map(str, self.undoes)),
            "DAG runs undone": ", ".join(f"{run.dag_id} / {run.run_id}" for run in self.runs),
            "not restored, as mode upsert keeps no history": ", ".join(map(str, self.upserts)),
            "not in the region": ", ".join(map(str, self.ignored)),
        }

    @property
    def request_id(self) -> RequestId:
        """What the reset is accepted under."""
        return RequestId(self.plan)

    @property
    def made_under(self) -> Epoch:
        """The epoch; under another the plan is refused."""
        return Epoch(self.epoch)

    def facts(self) -> Mapping[str, object]:
        """Return the plan as in `reset plan`."""
        return self._facts(self.lines)

    def summary(self) -> dict[str, object]:
        """Return the plan with its worst partitions only; it can be applied like the whole."""
        return document_of(self._facts(self.worst[:WORST]))

    def _facts(self, lines: Iterable[PlanLine]) -> dict[str, object]:
        return {
            "plan": self.plan,
            "region": self.region,
            "epoch": self.epoch,
            "made_at": self.made_at,
            "target": self.target,
            "scope": self.request.scope,
            "request": documents.write(self.request, ResetRequest),
            "totals": self.totals,
            "undoes": self.undoes,
            "runs": [run_of(run) for run in self.runs],
            "overtaken_at": self.overtaken_at,
            "ignored": self.ignored,
            "upserts": [(sink.group, sink.name, sink.table) for sink in self.upserts],
            "entries": tuple(lines),
        }

    def to_csv(self) -> str:
        """Return the targets of the partitions in scope as Kafka's reset CSV; those not known yet are left out."""
        return write_offsets(
            {line.partition: Offset(line.target) for line in self.lines if line.in_scope and line.target is not None}
        )

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Return the plan that `to_json` or `summary` has written.

        Raises:
            ConfigurationError: it is not a plan.
        """
        match document:
            case {
                "plan": str(plan),
                "region": str(region),
                "epoch": int(epoch),
                "made_at": str(made_at),
                "request": request,
                "totals": dict(totals),
                "undoes": list(undoes),
                "runs": list(runs),
                "entries": list(entries),
                **more,
            } if plan:
                try:
                    return cls(
                        plan=plan,
                        region=region_name(region),
                        epoch=epoch,
                        made_at=parse_instant(made_at),
                        request=documents.read(request, ResetRequest),
                        lines=tuple(_read_line(entry) for entry in entries),
                        totals=Totals(**{name: int(totals[name]) for name in Totals.__slots__}),
                        undoes=tuple(int(sequence) for sequence in undoes),
                        runs=tuple(Requester(dag_id=str(r["dag_id"]), run_id=str(r["run_id"])) for r in runs),
                        ignored=tuple(
                            GroupPartition(GroupId(str(g)), TopicName(str(t)), int(str(n)))
                            for g, t, n in _rows(more.get("ignored"))
                        ),
                        overtaken_at=_instant(more.get("overtaken_at")),
                        upserts=tuple(
                            UpsertSink(GroupId(str(g)), str(s), str(t)) for g, s, t in _rows(more.get("upserts"))
                        ),
                    )
                except (KeyError, IndexError, TypeError, ValueError):
                    raise _no_plan(document) from None
        raise _no_plan(document)


def _rows(value: object) -> list[tuple[object, object, object]]:
    return [(row[0], row[1], row[2]) for row in value] if isinstance(value, list) else []


def _instant(value: object) -> datetime | None:
    return None if value is None else parse_instant(str(value))


def _no_plan(document: object) -> ConfigurationError:
    return ConfigurationError(f"not a plan of a reset; `kcr reset plan … -o json` writes one: {document!r:.120}")


def _line(entry: PlanEntry, bounds: LogBounds | None, is_unreachable: bool) -> PlanLine:
    return PlanLine(
        partition=entry.partition,
        current=entry.current,
        target=entry.entry.offset,
        source=str(entry.entry.source),
        in_scope=entry.in_scope,
        asked=entry.entry.clamped_from,
        is_unreachable=is_unreachable,
        log_start=None if bounds is None else bounds.start,
        log_end=None if bounds is None else bounds.end,
        is_recreated=entry.is_recreated,
    )


def _totals(lines: tuple[PlanLine, ...]) -> Totals:
    return Totals(
        partitions=len(lines),
        moved=sum(1 for line in lines if line.is_moved),
        replay=sum(line.replay or 0 for line in lines),
        skip=sum(line.skip or 0 for line in lines),
        clamped=sum(1 for line in lines if line.asked is not None),
        unreachable=sum(1 for line in lines if line.is_unreachable),
    )


def _read_line(row: object) -> PlanLine:
    match row:
        case {
            "group": str(group),
            "topic": str(topic),
            "partition": int(number),
            "current": int() | None as current,
            "target": int() | None as target,
            "source": str(source),
            "asked": int() | None as asked,
            "in_scope": bool(in_scope),
            "unreachable": bool(is_unreachable),
            **more,
        }:
            start, end = more.get("log_start"), more.get("log_end")
            return PlanLine(
                partition=GroupPartition(GroupId(group), TopicName(topic), number),
                current=current,
                target=target,
                source=source,
                in_scope=in_scope,
                asked=asked,
                is_unreachable=is_unreachable,
                log_start=start if isinstance(start, int) else None,
                log_end=end if isinstance(end, int) else None,
                is_recreated=more.get("recreated") is True,
            )
    raise InvalidTarget(f"not a line of a plan: {row!r:.200}")


def requested(
    region: StoredRegion,
    option: str,
    value: str | None,
    *,
    groups: Iterable[str] = (),
    topics: Iterable[str] = (),
    skip: Iterable[str] = (),
    timezone: str = "",
) -> ResetRequest:
    """Return what the options of `kcr reset plan` ask for.

    Args:
        region: as it was read.
        option: the target's, without its dashes.
        value: the value of that option, and of `from-file` the text of the file; None: it has none.
        groups: the values of `--group`.
        topics: the values of `--topic`.
        skip: the values of `--skip`.
        timezone: of a `to-datetime` without a zone.

    Raises:
        InvalidTarget, InvalidOffsetsFile, ConfigurationError: one of them can't be read.
    """
    scope = parse_scope(groups, topics)
    if option == FromFile.option and value is not None:
        target: Target = from_file(region, value, scope)
    else:
        target = read_target(option, value, timezone)
    return ResetRequest(target=target, scope=scope, skip=skipped(region, skip, scope))


def read_target(option: str, value: str | None, timezone: str = "") -> Target:
    """Return a target whose value may be a local time.

    Raises:
        InvalidTarget, ConfigurationError: it can't be read.
    """
    if option == ToDatetime.option and value is not None:
        return ToDatetime(instant=local_instant(value, timezone))
    return parse_target(option, value)


def from_file(region: StoredRegion, text: str, scope: Scope = EVERYTHING) -> FromFile:
    """Return the target that the text of a reset CSV is: Kafka's, or what `reset plan -o csv` wrote.

    Args:
        region: the file's partitions have to be its own.
        text: the whole file.
        scope: lines without a group mean its only group, where it has one.

    Raises:
        InvalidOffsetsFile: the file has findings; the message has them all, each with its line.
    """
    group = next(iter(scope.groups)) if len(scope.groups) == 1 else None
    return FromFile(entries=read_offsets(text, partitions=universe(region), group=group))


def skipped(region: StoredRegion, texts: Iterable[str], scope: Scope = EVERYTHING) -> OffsetMap:
    """Return the records that `TOPIC:PARTITION:OFFSET` names, in every group of the scope that reads the topic.

    Raises:
        InvalidTarget: a text is not of that form, names a partition that is not in scope, or the partition of another.
    """
    found: dict[GroupPartition, Offset] = {}
    partitions = [p for p in universe(region) if not scope.groups or p.group in scope.groups]
    for text in texts:
        record = record_named(text)
        if record is None:
            raise InvalidTarget(f"--skip {text!r} is not one record: write TOPIC:PARTITION:OFFSET")
        place, offset = record
        named = [p for p in partitions if (p.topic, p.partition) == place]
        if not named:
            raise InvalidTarget(f"--skip {text}: region {region.name} has no partition {place[0]}:{place[1]}")
        for partition in named:
            if partition in found:
                raise InvalidTarget(f"--skip {text}: one record of a partition is skipped by one reset, not two")
            found[partition] = offset
    try:
        return OffsetMap(found)
    except NumberOutOfRange as error:
        raise InvalidTarget(f"--skip: {error.message}") from None


def local_instant(text: str, timezone: str) -> datetime:
    """Return the instant that a local date and time means in a time zone, in UTC.

    Args:
        text: ISO 8601; with a zone of its own, that one counts.
        timezone: an IANA name, such as `Europe/Zurich`; empty: a local time is refused.

    Raises:
        ConfigurationError: it is no time, there is no such zone, or clocks were set then: the local time names no
            instant, or two; the message has both.
    """
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        return parse_instant(text)  # which says what is wrong
    if local.tzinfo is not None:
        return parse_instant(text)
    if not timezone:
        raise ConfigurationError(
            f"{text} has no zone; add one, such as Z or +01:00, or name a time zone beside it, such as Europe/Zurich"
        )
    zone = zone_named(timezone)
    try:
        return checked_instant(zone.convert(local, raise_on_unknown_times=True))
    except NonExistingTime:
        what = "is not on the clocks, which were set forward then,"
    except AmbiguousTime:
        what = "is twice on the clocks"
    options = " or ".join(zone.convert(local.replace(fold=fold)).isoformat() for fold in (0, 1))
    raise ConfigurationError(f"{text} {what} in {timezone}; write {options}")
