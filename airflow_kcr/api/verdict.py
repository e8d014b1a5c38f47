"""What the invariants say of a region's history, and how old history leaves the store.

Whatever leaves was judged before. How far, and what a proof has to know to go on from there, is one row of the store,
the start of the kept history: every later verdict continues from it.
"""

from __future__ import annotations

import json
import logging
import threading
import zlib
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import Final, Self

from airflow_kcr.api.views import AnswerColumns, View
from airflow_kcr.errors import KcrError
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.invariants.proof import Proof, beginning
from airflow_kcr.protocol.region.rows import CheckpointState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, RegionName
from airflow_kcr.spec import FOREVER, stored_spec
from airflow_kcr.store.answers import HistoryStart, Horizon
from airflow_kcr.store.codec import from_json
from airflow_kcr.store.postgres.history import Chronicle
from airflow_kcr.store.regions import RegionStore

PIECE: Final = 1_000
"""Events that are judged before the start of the kept history moves."""

PERIOD: Final = 3600.0
"""Seconds between two times that a process with members drops old history."""

FIRST: Final = 60.0
"""Seconds after its start that it does so for the first time."""

_LOG = logging.getLogger(__name__)

_BEGINNING: Final = Horizon(counter=EventNumber(0), ledger=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(View):
    """A history judged."""

    shown = AnswerColumns["Verdict"]("region", "after", "checked_events", "checked_batches", "violations")

    region: RegionName
    after: EventNumber
    """The event that the kept history begins after; 0: it is whole."""

    checked_events: int
    checked_batches: int
    violations: tuple[Violation, ...]
    """Whatever the history contradicts; none: it is consistent."""

    @classmethod
    def of(cls, region: RegionName, chronicle: Chronicle) -> Self:
        """Judge what is kept of a region's history up to this moment, reading it once and holding none of it."""
        judged = Judged.at_start(chronicle)
        after = judged.at.counter
        judged.take(chronicle.horizon())
        # Rows may have been changed since by what came after: a reset whose sinks' progress proved them done.
        judged.proof.later(chronicle.events(judged.at.counter, chronicle.horizon().counter))
        return cls(
            region=region,
            after=after,
            checked_events=judged.proof.events,
            checked_batches=judged.proof.batches,
            violations=judged.proof.finished(),
        )


@dataclass(slots=True, kw_only=True)
class Judged:
    """A proof on its way through a chronicle."""

    chronicle: Chronicle
    proof: Proof = field(default_factory=beginning)
    at: Horizon = _BEGINNING
    start: HistoryStart | None = None
    """Where the kept history starts, as the store has it."""

    @classmethod
    def at_start(cls, chronicle: Chronicle) -> Self:
        """Return the proof of what is not kept any more."""
        start = chronicle.start()
        if start is None:
            return cls(chronicle=chronicle)
        document = json.loads(zlib.decompress(start.proof))
        proof = beginning()
        proof.checks = tuple(from_json(document["checks"][c.invariant], type(c)) for c in proof.checks)
        proof.moment = from_json(document["moment"], Moment)
        proof.doubted = dict(document["doubted"])
        proof.open = {row.batch: row for row in chronicle.rows(start.open)}
        return cls(chronicle=chronicle, proof=proof, at=start.horizon, start=start)

    def take(self, horizon: Horizon) -> None:
        """Go on to a horizon."""
        self.proof.take(
            self.chronicle.events(self.at.counter, horizon.counter),
            chain(self.chronicle.rows(tuple(self.proof.open)), self.chronicle.batches(self.at.ledger, horizon.ledger)),
            horizon.counter,
        )
        self.at = horizon

    def starts_here(self) -> HistoryStart:
        """Return the start of the history that is kept if all that was judged is dropped."""
        document = {
            "moment": documents.write(self.proof.moment, Moment),
            "checks": {check.invariant: documents.write(check, type(check)) for check in self.proof.checks},
            "doubted": self.proof.doubted,
        }
        # The order of keys counts: of requests, the oldest are forgotten first.
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        return HistoryStart(horizon=self.at, open=tuple(sorted(self.proof.open)), proof=zlib.compress(text.encode()))


@dataclass(slots=True, kw_only=True)
class DroppedHistory:
    """What left the store by one call."""

    events: int = 0
    batches: int = 0
    violations: tuple[Violation, ...] = ()
    """What speaks against dropping more: the history contradicts an invariant."""


def drop_old(store: RegionStore, name: RegionName, keep: timedelta) -> DroppedHistory:
    """Drop what happened longer ago than `keep` and is needed no more, once it is judged; in pieces.

    A process that ends anywhere has lost nothing, and of two that do it at once one stops: the start of the kept
    history moves first, then the rows before it go.

    Args:
        store: where the region is.
        name: the region's.
        keep: how long history is kept; see `keep_of`.
    """
    told = DroppedHistory()
    if keep == FOREVER:
        return told
    region, now = store.read(name)
    chronicle = store.chronicle(name)
    judged = Judged.at_start(chronicle)
    while (horizon := chronicle.horizon_before(now - keep, judged.at, PIECE)) is not None:
        judged.take(horizon)
        told.violations = judged.proof.violations
        if told.violations:
            break
        start = judged.starts_here()
        if not chronicle.move_start(judged.start, start):
            return told
        judged.start = start
    if judged.start is not None:
        for events, batches in chronicle.drop(judged.start, floor(region)):
            told.events += events
            told.batches += batches
    return told


def keep_of(store: RegionStore, name: RegionName) -> timedelta:
    """Return how long a region's history is kept: the `history.keep` of the spec in force."""
    return stored_spec(store.read(name)[0].spec.text).history.keep


def floor(region: Region) -> CheckpointNumber:
    """Return the newest sequence whose batches are no longer read.

    Publishing a checkpoint reads the batches since the newest published one before it, resetting those since the
    restore point; a person may go back to any checkpoint that has its offsets.
    """
    waiting = [
        row.sequence for row in region.checkpoints.values() if row.is_open or row.state is CheckpointState.COMPLETE
    ]
    published = region.archive.newest_published(min(waiting, default=region.next_sequence))
    kept = region.archive.oldest_usable()
    nothing = CheckpointNumber(0)
    return min(
        nothing if published is None else published.sequence,
        region.restore_sequence or nothing,
        nothing if kept is None else kept.sequence,
    )


class HistoryKeeper:
    """Drops a region's old history now and then, in a thread of its own.

    Args:
        store: where the region is.
        region: its name.
    """

    def __init__(self, store: RegionStore, region: RegionName) -> None:
        self._store, self._region = store, region
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{region} history", daemon=True)

    def start(self) -> None:
        """Start; returns at once."""
        self._thread.start()

    def end(self) -> None:
        """End after the running piece; returns at once."""
        self._ending.set()

    def _run(self) -> None:
        pause = FIRST
        while not self._ending.wait(pause):
            pause = PERIOD
            try:
                dropped = drop_old(self._store, self._region, keep_of(self._store, self._region))
            except KcrError as error:
                _LOG.warning("region %s: old history is dropped later: %s", self._region, error)
                continue
            except Exception:  # noqa: BLE001 - the history grows, which is no reason to end what processes records
                _LOG.exception("region %s: old history is dropped later", self._region)
                continue
            if dropped.violations:
                _LOG.error(
                    "region %s: its old history stays, as it is not consistent; see kcr verify %s: %s",
                    self._region,
                    self._region,
                    dropped.violations[0].detail,
                )
            elif dropped.events or dropped.batches:
                _LOG.info(
                    "region %s: dropped %d events and %d batches that are older than history.keep",
                    self._region,
                    dropped.events,
                    dropped.batches,
                )
