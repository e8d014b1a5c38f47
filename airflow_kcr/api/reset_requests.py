"""What a person asks of a reset: the target, which partitions it moves, and what is allowed to get there.

A request is a value that goes through JSON unchanged: a plan carries it, so that whoever applies the plan needs nothing
else, and its target is resolved anew then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from pendulum.tz.exceptions import AmbiguousTime, NonExistingTime

from airflow_kcr.api.naming import record_named
from airflow_kcr.errors import ConfigurationError, InvalidTarget, NumberOutOfRange
from airflow_kcr.protocol.instants import checked_instant, parse_instant
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.offsets_csv import read_offsets
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import universe
from airflow_kcr.protocol.scopes import EVERYTHING, Scope, scope_from_json, scope_to_json
from airflow_kcr.protocol.target_json import target_from_json, target_to_json
from airflow_kcr.protocol.targets import FromFile, Target
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName
from airflow_kcr.schedules import zone_named


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequest:
    """Where to, and for which partitions."""

    target: Target
    scope: Scope = EVERYTHING
    skip: OffsetMap = EMPTY
    """Single records to step over, by the offset of each."""

    forward: bool = False
    """Whether a checkpoint of another branch may be jumped to."""

    allow_partial: bool = False
    """Whether a checkpoint that was never complete may be used, its gaps filled and marked."""

    def to_json(self) -> dict[str, object]:
        """Return the request as in a plan's `request`."""
        return {
            "target": target_to_json(self.target),
            "scope": scope_to_json(self.scope),
            "skip": [[p.group, p.topic, p.partition, int(o)] for p, o in self.skip.items()],
            "forward": self.forward,
            "allow_partial": self.allow_partial,
        }

    @classmethod
    def from_json(cls, document: object) -> ResetRequest:
        """Return the request that `to_json` has written; all but the target may be left out.

        Raises:
            InvalidTarget: the document is not of that form.
        """
        match document:
            case {"target": target, **rest} if rest.keys() <= {"scope", "skip", "forward", "allow_partial"}:
                forward, partial = rest.get("forward", False), rest.get("allow_partial", False)
                if isinstance(forward, bool) and isinstance(partial, bool):
                    return cls(
                        target=target_from_json(target),
                        scope=scope_from_json(rest["scope"]) if "scope" in rest else EVERYTHING,
                        skip=_skip_from_json(rest.get("skip", [])),
                        forward=forward,
                        allow_partial=partial,
                    )
        raise InvalidTarget(f"not the request of a reset: {document!r:.200}")


def _skip_from_json(rows: object) -> OffsetMap:
    if not isinstance(rows, list):
        raise InvalidTarget(f"not a list of records to skip: {rows!r:.200}")
    found: dict[GroupPartition, Offset] = {}
    for row in rows:
        match row:
            case [str(group), str(topic), int(partition), int(offset)]:
                found[GroupPartition(GroupId(group), TopicName(topic), partition)] = Offset(offset)
            case _:
                raise InvalidTarget(f"not a record to skip: {row!r:.200}")
    try:
        return OffsetMap(found)
    except NumberOutOfRange as error:
        raise InvalidTarget(error.message) from None


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
