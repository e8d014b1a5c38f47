"""What the store answers that is no row of a region."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from airflow_kcr.protocol.values import BatchId, Epoch, EventNumber, Timeline


class Sign(NamedTuple):
    """A sign that a region is worth reading again: while it stays the same, no wait can be over."""

    counter: EventNumber
    is_due: bool
    """Whether something is to be done in it."""

    leases: int
    """How many of its leases are not over: time alone ends one."""

    running: int
    """How many batches run in a region that begins none, also as it is paused; their ends move no counter. Else 0."""


class Span(NamedTuple):
    """The epochs of one reset: of its first attempt and its last, and the epoch of the attempt before it."""

    since: Epoch
    first: Epoch
    last: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Offsets that a reset had processed again: from where the region was to where it went, and how far it came since.

    What lies between counts as a whole, also offsets that an earlier reset had stepped over.
    """

    rewound: int = 0
    """From where it went back to up to where the region had come, batches that were not accepted among it."""

    replayed: int = 0
    """How much of that was started again since."""


class BriefEvent(NamedTuple):
    """An event for people: of each detail that is long, its beginning."""

    number: EventNumber
    at: datetime
    epoch: Epoch
    timeline: Timeline
    kind: str
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """The point that a region has got to: whatever lies within is committed, and nothing is added to it any more."""

    counter: EventNumber
    """The newest event."""

    ledger: int
    """The place of the batch that was started last; 0: there is none. Places only grow, and those of batches that lie
    between the same two events say which was started first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStart:
    """Where the history that a store keeps of a region starts: what happened before was judged, and may be dropped."""

    horizon: Horizon
    """The last that may be dropped."""

    open: tuple[BatchId, ...]
    """Batches within that have no final outcome there, and so are kept."""

    proof: bytes
    """What the proof of what follows has to know: see `api.verdict`."""
