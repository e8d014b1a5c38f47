"""What people name in words: the groups of a region, and single records."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import GroupId, Offset, TopicName, TopicPartition

_RECORD: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249}):(?P<partition>[0-9]{1,10}):(?P<offset>[0-9]{1,19})")


def record_named(text: str) -> tuple[TopicPartition, Offset] | None:
    """Return topic and partition, and the offset, of a text `TOPIC:PARTITION:OFFSET`; None: it is not of that form."""
    match = _RECORD.fullmatch(text)
    if match is None:
        return None
    return TopicPartition(TopicName(match["topic"]), int(match["partition"])), Offset(int(match["offset"]))


def require_groups(region: Region, groups: Collection[str]) -> None:
    """Refuse names of groups that a region does not have.

    Raises:
        ConfigurationError: it has no group of one of these names.
    """
    known = region.rules.groups.keys()
    strange = sorted(set(map(GroupId, groups)) - known)
    if strange:
        raise ConfigurationError(f"region {region.name} has no group {strange[0]}; it has: {', '.join(sorted(known))}")
