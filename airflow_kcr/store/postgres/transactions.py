"""The region store on Postgres: each call one transaction, the region's lock first (design section 4).

The lock is an advisory one, of the transaction, on a number made from the region's name: shared for batches, exclusive
for everything else. Rows are read after it, and so is the clock: a transaction's `now()` is from before the wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from time import monotonic
from types import TracebackType
from typing import Final, Self

from sqlalchemy import Connection, Engine, TextClause, text
from sqlalchemy.engine import URL

from airflow_kcr.errors import GroupInOtherRegion, KcrError, RegionExists, StoreBusy, UnknownMember, UnknownRegion
from airflow_kcr.ports import Beat, Rule
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.region.state import Region, settled
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    BatchId,
    EventNumber,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    RegionName,
)
from airflow_kcr.store.codec import event_from_json
from airflow_kcr.store.postgres import failures, ledger, permits, reading, writing
from airflow_kcr.store.postgres.engine import build_engine
from airflow_kcr.store.postgres.listening import NOTIFY, Listeners, payload
from airflow_kcr.store.postgres.session import Session
from airflow_kcr.store.schema_upgrade import require_current

_ATTEMPTS: Final = 5
"""How often a decision is made again because a lease it replaces was renewed meanwhile; once is rare."""

# name: lock_exclusive — for every transition. Its queue is fair, so batches don't starve transitions.
_EXCLUSIVE: Final = text("SELECT pg_advisory_xact_lock(:region_key)")

# name: lock_shared — for a permit, and the member's own lock after it: its permits are one at a time.
_SHARED: Final = text("SELECT pg_advisory_xact_lock_shared(:region_key), pg_advisory_xact_lock(:member_key)")

# name: no_lock — the first statement of a transaction that only reads.
_NO_LOCK: Final = text("SELECT 1")

# name: renew — one statement, no region lock: an expired lease is not revived, nor one of another incarnation. It
# answers, renewed or not, with what tells the member whether anything is worth reading.
_RENEW: Final = text("""
    WITH renewed AS (
        UPDATE kcr.lease l SET valid_until = clock_timestamp() + CAST(:lease AS interval)
        FROM kcr.region r
        WHERE r.name = :name AND l.region_id = r.id AND l.group_id = :group AND l.member_index = :index
          AND l.incarnation = :incarnation AND l.valid_until > clock_timestamp()
        RETURNING l.incarnation
    )
    SELECT clock_timestamp(), r.counter, r.epoch, m.incarnation, EXISTS (SELECT FROM renewed), r.due_at
    FROM kcr.region r
    LEFT JOIN kcr.member m ON m.region_id = r.id AND m.group_id = :group AND m.member_index = :index
    WHERE r.name = :name
""")

_NAMES: Final = text('SELECT name FROM kcr.region ORDER BY name COLLATE "C"')
_FIND: Final = text("SELECT id FROM kcr.region WHERE name = :name")
_COUNTER: Final = text("SELECT counter FROM kcr.region WHERE name = :name")

# name: owners — which other region has one of these groups.
_OWNERS: Final = text("""
    SELECT g.group_id, r.name FROM kcr.consumer_group g JOIN kcr.region r ON r.id = g.region_id
    WHERE g.group_id = ANY (CAST(:groups AS text[])) AND r.name <> :name ORDER BY g.group_id
""")

_EVENTS: Final = text("""
    SELECT number, at, epoch, lineage, kind, body FROM kcr.event
    WHERE region_id = :region AND number > :after ORDER BY number LIMIT :limit
""")

_UNLIMITED: Final = text("SET LOCAL statement_timeout = 0")
_DELETE: Final = text("DELETE FROM kcr.region WHERE id = :region")


class PostgresTransactions:
    """Regions in Postgres; implements `ports.Transactions`.

    Args:
        engine: as `build_engine` makes it; whoever passes it in closes it.
        read_rules: makes a region's rules from the text of its spec; asked once for each text.
    """

    def __init__(self, engine: Engine, read_rules: Callable[[str], RegionRules]) -> None:
        self._engine = engine
        self._snapshots = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._read_rules = lru_cache(maxsize=128)(read_rules)
        self._address = failures.Address(engine.url)
        self._listeners = Listeners(engine)
        self._schema_is_current = False
        self._is_owned = False

    @classmethod
    def connect(
        cls, url: str | URL, read_rules: Callable[[str], RegionRules], *, timeouts: Timeouts | None = None
    ) -> Self:
        """Return the store at a URL, over an engine of its own that `close` closes. Nothing is connected yet."""
        store = cls(build_engine(url, timeouts=timeouts), read_rules)
        store._is_owned = True
        return store

    def close(self) -> None:
        """Close what this store has opened: its listening connections, and its engine where it is its own."""
        self._listeners.close()
        if self._is_owned:
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- transitions ---------------------------------------------------------------------------------------------

    def create(self, name: RegionName, rule: Callable[[datetime], Region]) -> Region:
        """See `ports.Transactions.create`."""
        region: Region | None = None
        try:
            with self._transaction(_EXCLUSIVE, region_key=_key(name)) as session:
                region = rule(session.rows(_CLOCK)[0][0])
                bare = Region(name=name, spec=region.spec)
                session.region_id = session.rows(writing.INSERT_HEAD, name=name, **writing.head_values(region))[0][0]
                writing.take_groups(session, region)
                # The row is there as it shall be; what is left are its tables and events.
                bare = replace(region, **{f: getattr(bare, f) for f in ("members", "leases", "claims")})
                return settled(writing.write(session, bare, region))
        except RegionExists:
            raise RegionExists(
                f"there is a region {name} already; change its spec instead of declaring it again"
            ) from None
        except GroupInOtherRegion:
            raise self._group_taken(name, region) from None

    def decide(self, name: RegionName, rule: Rule) -> Region:
        """See `ports.Transactions.decide`."""
        for _ in range(_ATTEMPTS):
            with suppress(writing.LeaseMovedError):
                return self._decide_once(name, rule)
        raise StoreBusy(f"leases of region {name} kept being renewed while it was decided on; nothing was changed")

    def _decide_once(self, name: RegionName, rule: Rule) -> Region:
        after: Region | None = None
        try:
            with self._transaction(_EXCLUSIVE, region_key=_key(name)) as session:
                before, now = self._found(session, name)
                after = rule(before, now)
                stored = settled(writing.write(session, before, after))
                if after.counter != before.counter:
                    session.rows(NOTIFY, payload=payload(name, after.counter))
                return stored
        except GroupInOtherRegion:
            raise self._group_taken(name, after) from None

    def permit(
        self,
        name: RegionName,
        member: MemberId,
        batch: BatchId,
        partitions: frozenset[GroupPartition] | None,
        rule: Rule,
    ) -> Region:
        """See `ports.Transactions.permit`."""
        with self._transaction(_SHARED, region_key=_key(name), member_key=_key(name, member)) as session:
            found = permits.load(session, name, member, batch, partitions)
            if found is None:
                raise self._unknown(session, name)
            before, now = found
            after = rule(before, now)
            permits.write(session, before, after)
            return settled(after)

    def delete(self, name: RegionName, check: Callable[[Region, datetime], None]) -> None:
        """See `ports.Transactions.delete`."""
        with self._transaction(_EXCLUSIVE, region_key=_key(name)) as session:
            check(*self._found(session, name))
            # A long history takes its time; nobody waits for a region that is stopped.
            session.run(_UNLIMITED)
            session.run(ledger.statement_for_all())
            session.run(_DELETE)

    # -- leases --------------------------------------------------------------------------------------------------

    def renew(self, name: RegionName, member: MemberId, incarnation: Incarnation, lease: timedelta) -> Beat:
        """See `ports.Transactions.renew`."""
        parameters = {
            "name": name,
            "group": member.group,
            "index": member.index,
            "incarnation": incarnation,
            "lease": lease,
        }
        with self._statement() as connection:
            row = connection.execute(_RENEW, parameters).one_or_none()
        if row is None:
            raise self._unknown_by_name(name)
        now, counter, epoch, newest, renewed, due_at = row
        if newest is None:
            raise UnknownMember(f"{member} is not registered in region {name}; register it first")
        return Beat(now=now, counter=counter, epoch=epoch, incarnation=newest, renewed=renewed, due_at=due_at)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, name: RegionName) -> tuple[Region, datetime]:
        """See `ports.Transactions.read`; offsets and seek maps are read when they are asked for."""
        with self._transaction(_NO_LOCK, engine=self._snapshots) as session:
            region, now = self._found(session, name)
            reading.preload(reading.tables_of(region))
            return region, now
