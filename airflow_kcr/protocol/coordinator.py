"""Which partition of Kafka's offsets topic, and so which broker, coordinates a group.

Kafka takes Java's hash of the group id, its absolute value (0 for the one integer that has none) and the remainder by
the number of partitions of `__consumer_offsets`. Java's hash runs over UTF-16 code units, so a character outside of
the basic plane counts as its two surrogates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_kcr.protocol.values import GroupId

DEFAULT_OFFSETS_PARTITIONS: Final = 50
"""`offsets.topic.num.partitions` of a broker that was not told otherwise."""


def java_hash(text: str) -> int:
    """Return what Java's `String.hashCode` returns: a signed 32-bit integer."""
    code_units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(code_units[::2], code_units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def coordinator_partition(group: GroupId, partitions: int = DEFAULT_OFFSETS_PARTITIONS) -> int:
    """Return the partition of `__consumer_offsets` whose leader coordinates `group`.

    Source: GroupCoordinatorService.partitionFor and Utils.abs of Apache Kafka.

    Args:
        group: any group id.
        partitions: how many partitions the offsets topic has, >= 1.

    Raises:
        ConfigurationError: `partitions` is not positive.
    """
    if partitions < 1:
        raise ConfigurationError(f"the offsets topic can't have {partitions} partitions")
    value = java_hash(group)
    return (0 if value == -(2**31) else abs(value)) % partitions
