"""What the world answered, as values: log bounds and time look-ups, which adapters read and hand to the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from airflow_kcr.protocol.values import GroupPartition, Offset, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """One log as it was read: [start, end), where `end` is the last stable offset, never the high watermark."""

    start: Offset
    end: Offset
    topic_id: TopicId = TopicId("")
    leader_epoch: int = -1
    """-1: the broker did not say."""

    def __contains__(self, offset: int) -> bool:
        """Whether a batch could begin at `offset`: the end is inside, it is the next offset to be written."""
        return self.start <= offset <= self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAnswer:
    """What a broker answers to "first offset at or after this time" (`list_offsets`, read_committed)."""

    offset: Offset | None
    """The first offset, in log order, whose record's timestamp is at or after the time; None: there is none (yet)."""

    found: datetime | None = None
    """That record's own timestamp; later records may be older. None if no record was found."""


class TimeIndex(Protocol):
    """Answers of the brokers to time look-ups that were made before the rules ran."""

    def first_at_or_after(self, partition: GroupPartition, instant: datetime) -> TimeAnswer:
        """Return the answer for one partition; raises KeyError where that look-up was never made."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """What reset targets and start positions are resolved against, all read at one moment."""

    bounds: Mapping[GroupPartition, LogBounds]
    committed: Mapping[GroupPartition, Offset]
    """Kafka's committed offsets; a partition without one is absent."""

    times: TimeIndex
    read_at: datetime
    """The store's clock when the log was read; durations count back from here."""
