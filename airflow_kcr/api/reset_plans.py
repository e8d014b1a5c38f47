"""What texts ask of a reset: its target, its scope, the records to skip, and local times."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pendulum.tz.exceptions import AmbiguousTime, NonExistingTime

from airflow_kcr.api.regions import record_named
from airflow_kcr.errors import ConfigurationError, InvalidTarget, NumberOutOfRange
from airflow_kcr.protocol.offsets import OffsetMap, read_offsets
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.scopes import EVERYTHING, Scope
from airflow_kcr.protocol.targets import FromFile, Target, ToDatetime, parse_target
from airflow_kcr.protocol.values import GroupPartition, Offset, checked_instant, parse_instant
from airflow_kcr.schedules import zone_named


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
    return FromFile(entries=read_offsets(text, partitions=region.universe(), group=group))


def skipped(region: StoredRegion, texts: Iterable[str], scope: Scope = EVERYTHING) -> OffsetMap:
    """Return the records that `TOPIC:PARTITION:OFFSET` names, in every group of the scope that reads the topic.

    Raises:
        InvalidTarget: a text is not of that form, names a partition that is not in scope, or the partition of another.
    """
    found: dict[GroupPartition, Offset] = {}
    partitions = [p for p in region.universe() if not scope.groups or p.group in scope.groups]
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
