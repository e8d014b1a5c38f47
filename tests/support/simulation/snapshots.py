"""What a store in memory holds, taken and put back: a backup that is restored, a state that is gone back to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import BatchId, RegionName
from tests.support.memory import MemoryTransactions
from tests.support.past import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One region as stored, with its history. All values are immutable, so taking one copies no row."""

    region: Region
    tables: Tables
    events: tuple[Event, ...]
    ledger: Mapping[BatchId, Batch]


def taken(store: MemoryTransactions, name: RegionName) -> Snapshot:
    """Return what the store holds of a region."""
    return Snapshot(
        region=store._regions[name],
        tables=store._tables[name],
        events=tuple(store._events[name]),
        ledger=dict(store._ledgers[name]),
    )


def put_back(store: MemoryTransactions, snapshot: Snapshot) -> None:
    """Let the store hold what it held when the snapshot was taken, and nothing that came later."""
    name = snapshot.region.name
    store._regions[name] = snapshot.region
    store._tables[name] = snapshot.tables
    store._events[name] = list(snapshot.events)
    store._ledgers[name] = dict(snapshot.ledger)
