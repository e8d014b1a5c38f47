"""A region's history, and a contradiction found in it.

A **history** is the events of a region, in commit order, and the batch rows of its ledger; nothing else is ever read. A
batch row is no event: `started_after` and `finished_after` are event numbers, so a batch lies between two transitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.values import EventNumber


@dataclass(frozen=True, slots=True)
class History:
    """What happened to one region.

    Both have to be read in one snapshot of the store: a batch that finished after the events were read would look like
    unprocessed records.
    """

    events: Sequence[Event]
    """From the first one on, in the order of their numbers."""

    batches: Sequence[Batch]


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """An invariant does not hold."""

    invariant: str
    """Its number in tests/annex/invariants.md, such as R5."""

    detail: str
    """What is wrong, in a sentence."""

    events: tuple[EventNumber, ...]
    """The transitions that contradict each other, or between which a batch contradicts them."""
