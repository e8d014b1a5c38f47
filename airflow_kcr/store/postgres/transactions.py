"""The region store on Postgres: each call one transaction, the region's lock first (docs/reference/store.md).

The lock is an advisory one, of the transaction, on a number made from the region's name: shared for batches, exclusive
for everything else. Rows are read after it, and so is the clock: a transaction's `now()` is from before the wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Rows
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import lru_cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar

from typing_extensions import override

from airflow_kcr.errors import GroupInOtherRegion, KcrError, RegionBeingDeleted, RegionExists, StoreBusy, UnknownRegion
from airflow_kcr.ports import Heartbeats, Renewal, SinkPlace
from airflow_kcr.protocol import values
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region import lost_logs
from airflow_kcr.protocol.region.archive import ResetPage
from airflow_kcr.protocol.region.events import PARTS, Event
from airflow_kcr.protocol.region.lag import LagSample
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.store.chronicle import Chronicle
from airflow_kcr.store.postgres import archive, deletion, history, lag, leases, ledger, region_reads, region_writes
from airflow_kcr.store.postgres.connections import NO_LOCK, Connections, build_engine, read_again
from airflow_kcr.store.postgres.history import PostgresChronicle
from airflow_kcr.store.postgres.listeners import NOTIFY, Listeners, payload
from airflow_kcr.store.postgres.session import Found, Session
from airflow_kcr.store.postgres.statements import Statement, by_name, load
from airflow_kcr.store.regions import B, BatchRule, RegionStore, Replayed, Rule, Sign, Span, uncollected

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.engine import URL

    from airflow_kcr import libpq


A = TypeVar("A")
P = ParamSpec("P")
V = TypeVar("V")

_ATTEMPTS: Final = 5
"""How often a decision is made again because a lease it replaces was renewed meanwhile; once is rare."""

SQL: Final = load("regions")


class PostgresTransactions(RegionStore):
    """Regions in Postgres.

    Args:
        engine: as `build_engine` makes it; the caller closes it.
        read_rules: makes a region's rules from the text of its spec; asked once for each text.
    """

    def __init__(self, engine: Engine, read_rules: Callable[[str], RegionRules]) -> None:
        self._engine = engine
        self._connections = Connections(engine, lru_cache(maxsize=128)(read_rules))
        self._listeners = Listeners(engine)
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

    # Transitions

    @override
    def create(self, name: values.RegionName, rule: Callable[[datetime], Region]) -> Region:
        region: Region | None = None
        try:
            with self._connections.transaction(SQL["lock_exclusive"], region_key=_key(name)) as session:
                if deletion.find_doomed(session, name):
                    raise _being_deleted(name)
                region = rule(session.rows(SQL["now"])[0][0])
                return region_writes.write_new(session, region).stored()
        except RegionExists:
            raise RegionExists(
                f"there is a region {name} already; change its spec instead of declaring it again"
            ) from None
        except GroupInOtherRegion:
            raise self._group_taken(name, region) from None

    @override
    def decide(self, name: values.RegionName, rule: Rule[A]) -> tuple[Region, A]:
        for _ in range(_ATTEMPTS):
            with suppress(region_writes.LeaseMovedError):
                return self._decide_once(name, rule)
        raise StoreBusy(f"leases of region {name} kept being renewed while it was decided on; nothing was changed")

    def _decide_once(self, name: values.RegionName, rule: Rule[A]) -> tuple[Region, A]:
        after: Region | None = None
        try:
            with (
                self._connections.transaction(SQL["lock_exclusive"], region_key=_key(name)) as session,
                uncollected(),
            ):
                row = _one_of(session, name, session.rows(region_reads.SQL["region"], name=name))
                before = region_reads.region_of(session, name, row)
                after, answer = rule(before, row[0])
                hint = region_writes.Write(NOTIFY, {"payload": payload(name, after.counter)})
                hints = (hint,) if any(not isinstance(event.body, PARTS) for event in after.events) else ()
                return region_writes.write(session, before, after, *hints).stored(), answer
        except GroupInOtherRegion:
            raise self._group_taken(name, after) from None

    @override
    def admit(self, name: values.RegionName, command: B, rule: BatchRule[B, A]) -> A:
        keys = {"region_key": _key(name), "member_key": _key(name, command.member)}
        with self._connections.transaction(SQL["lock_shared"], **keys) as session:
            found = region_reads.region_for_batch(session, name, command)
            if found is None:
                raise _unknown_in(session.rows(SQL["names"]), name)
            before, now = found
            after, answer = rule(before, now, command)
            region_writes.write_batch(session, before, after)
            return answer

    @override
    def delete(self, name: values.RegionName, check: Callable[[Region, datetime], None]) -> None:
        with self._connections.transaction(SQL["lock_exclusive"], region_key=_key(name)) as session:
            rows = session.rows(region_reads.SQL["region"], name=name)
            if rows:
                check(region_reads.region_of(session, name, rows[0]), rows[0][0])
                deletion.doom(session, name)
            elif not deletion.find_doomed(session, name):
                raise _unknown_in(session.rows(SQL["names"]), name)
        rest, more = deletion.Deletion(), True
        while more:
            with self._connections.transaction(NO_LOCK) as session:
                # Another one may have been faster.
                more = deletion.find_doomed(session, name) and rest.forget_some(session)

    @override
    def renew(self, renewals: Collection[Renewal]) -> Heartbeats:
        return leases.renew(self._connections, renewals, self.names)

    # Reading a region

    @override
    def read(self, name: values.RegionName) -> tuple[Region, datetime]:
        region, now, _ = self.look(name)
        return region, now

    @override
    @read_again
    def look(self, name: values.RegionName) -> tuple[Region, datetime, Seen]:
        with self._connections.snapshot(region_reads.SQL["region"], name=name) as session, uncollected():
            row = _one_of(session, name, session.first)
            seen = Seen(worked_at=region_reads.worked_at(row) or NEVER)
            return region_reads.region_of(session, name, row), row[0], seen

    @override
    @read_again
    def read_as(self, name: values.RegionName, member: values.MemberId, see: Callable[[Region, datetime], V]) -> V:
        given = {"name": name, "group": member.group, "index": member.index}
        with self._connections.snapshot(region_reads.SQL["region_of_member"], **given) as session:
            row = _one_of(session, name, session.first)
            return see(region_reads.region_of_member(session, name, member, row), row[0])

    @override
    def names(self) -> tuple[values.RegionName, ...]:
        return tuple(name for (name,) in self._connections.answer(SQL["names"]) if not deletion.is_doomed(name))

    @override
    @read_again
    def names_with(self, groups: Collection[values.GroupId]) -> tuple[values.RegionName, ...]:
        found = self._connections.answer(SQL["names_with"], groups=list(groups))
        return tuple(name for (name,) in found if not deletion.is_doomed(name))

    @override
    def signs(self, names: Collection[values.RegionName]) -> Mapping[values.RegionName, tuple[Sign, datetime]]:
        rows = self._connections.answer(SQL["signs"], names=sorted(names))
        return {values.RegionName(name): (Sign(*columns), now) for name, now, *columns in rows}

    @override
    def wait(self, name: values.RegionName, after: values.EventNumber, timeout: timedelta) -> values.EventNumber:
        self._connections.require_schema()

        def counter(connection: libpq.Connection) -> values.EventNumber:
            statement = SQL["counter"]
            found = connection.run(statement.numbered, statement.bound({"name": name})).fetchone()
            if found is None:
                raise _unknown_in(connection.run(SQL["names"].numbered, ()).fetchall(), name)
            return values.EventNumber(found[0])

        return self._listeners.wait(name, after, timeout, counter)

    # Reading its past

    @override
    @read_again
    def reset_page(
        self, name: values.RegionName, *, before: values.CheckpointNumber | None, last: int | None
    ) -> ResetPage:
        page = by_name(archive.SQL["reset_page"])
        with self._connections.snapshot(page, name=name, **archive.reset_bounds(before, last)) as session:
            return archive.reset_page_from(_one_of(session, name, session.first))

    @override
    def events(self, name: values.RegionName, after: values.EventNumber, limit: int = 1000) -> tuple[Event, ...]:
        return self._read(name, history.events, after, limit)

    @override
    def batch(self, name: values.RegionName, batch: values.BatchId) -> Batch | None:
        return self._read(name, ledger.one, batch)

    @override
    def batches(self, name: values.RegionName) -> Iterator[Batch]:
        # Page by page, so that the caller may take its time.
        after: int | None = 0
        while after is not None:
            found, after = self._read(name, ledger.page, after)
            yield from found

    @override
    def batches_since(
        self, name: values.RegionName, after: values.CheckpointNumber, up_to: values.CheckpointNumber | None = None
    ) -> tuple[Batch, ...]:
        return tuple(self._read(name, ledger.since, after, up_to))

    @override
    @read_again
    def newest_work(self, name: values.RegionName) -> datetime | None:
        with self._connections.snapshot(by_name(ledger.SQL["newest_work"]), name=name) as session:
            worked_at: datetime | None = _one_of(session, name, session.first)[0]
            return worked_at

    @override
    def batches_with(
        self, name: values.RegionName, partition: values.GroupPartition, offset: values.Offset
    ) -> tuple[Batch, ...]:
        return tuple(self._read(name, ledger.containing, partition, offset))

    @override
    def readers(self, name: values.RegionName, partition: values.TopicPartition) -> tuple[values.GroupPartition, ...]:
        return tuple(self._read(name, ledger.readers, partition))

    @override
    @read_again
    def replays(self, name: values.RegionName, spans: Collection[Span]) -> Mapping[values.Epoch, Replayed]:
        replays = by_name(ledger.SQL["replays"])
        with self._connections.snapshot(replays, name=name, **ledger.span_columns(spans)) as session:
            return ledger.replays_from(session.first, spans)

    @override
    def registered(self, name: values.RegionName, member: values.MemberId, incarnation: values.Incarnation) -> str:
        return self._read(name, history.registered, member, incarnation)

    @override
    @read_again
    def history(self, name: values.RegionName) -> History:
        with self._about(name) as session:
            return History(events=history.all_events(session), batches=[*ledger.whole(session)])

    @override
    def chronicle(self, name: values.RegionName) -> Chronicle:
        lock = partial(self._beside, name, SQL["lock_exclusive"], region_key=_key(name))
        return PostgresChronicle(partial(self._about, name), lock, partial(self._beside, name))

    # Where its sinks write to

    @override
    @read_again
    def taken(self, name: values.RegionName) -> frozenset[SinkPlace]:
        with self._about(name) as session:
            return frozenset(SinkPlace(values.GroupId(group), *place) for group, *place in session.rows(SQL["places"]))

    @override
    def take(self, name: values.RegionName, place: SinkPlace) -> None:
        with self._beside(name) as session:
            session.run(SQL["take_place"], **place._asdict())

    @override
    def let_go(self, name: values.RegionName, place: SinkPlace) -> None:
        with self._beside(name) as session:
            session.run(SQL["let_place_go"], **place._asdict())

    # How far its groups are behind

    @override
    def add_lag(self, name: values.RegionName, samples: Collection[LagSample]) -> None:
        with self._beside(name) as session:
            lag.add(session, samples, session.rows(SQL["now"])[0][0])

    @override
    def lag_since(self, name: values.RegionName, instant: datetime) -> tuple[LagSample, ...]:
        return self._read(name, lag.since, instant)

    # Sessions about one region

    @read_again
    def _read(
        self, name: values.RegionName, question: Callable[Concatenate[Session, P], A], *args: P.args, **kwargs: P.kwargs
    ) -> A:
        """Return the answer to a question about a region, which only reads."""
        with self._about(name) as session:
            return question(session, *args, **kwargs)

    @contextmanager
    def _about(self, name: values.RegionName) -> Iterator[Session]:
        """Lend a session that reads about a region."""
        with self._connections.snapshot(SQL["find"], name=name) as session:
            session.region_id = _one_of(session, name, session.first)[0]
            yield session

    @contextmanager
    def _beside(self, name: values.RegionName, first: Statement = NO_LOCK, **keys: int) -> Iterator[Session]:
        """Lend a session about a region that writes what no verb reads, and so needs no lock but what `first` takes."""
        with self._connections.transaction(first, **keys) as session:
            session.region_id = _one_of(session, name, session.rows(SQL["find"], name=name))[0]
            yield session

    def _group_taken(self, name: values.RegionName, region: Region | None) -> KcrError:
        """Return the refusal that names the group and its region; the transaction that found out is over."""
        groups = {} if region is None else region.own_groups
        found = self._connections.answer(SQL["owners"], groups=[*groups], clusters=[*groups.values()], name=name)
        if not found:  # it was deleted meanwhile
            return GroupInOtherRegion()
        return lost_logs.group_taken(*found[0])


def _one_of(session: Session, name: values.RegionName, rows: Rows[Found]) -> Found:
    """Return the one row that was found of a region."""
    if not rows:
        raise _unknown_in(session.rows(SQL["names"]), name)
    return rows[0]


def _unknown_in(names: Rows[Found], name: values.RegionName) -> KcrError:
    found = [known for (known,) in names]
    if deletion.doomed(name) in found:
        return _being_deleted(name)
    known = [one for one in found if not deletion.is_doomed(one)]
    return UnknownRegion(f"there is no region {name!r} in this store; it has: {', '.join(known) or 'none'}")


def _being_deleted(name: values.RegionName) -> RegionBeingDeleted:
    return RegionBeingDeleted(
        f"region {name} is being deleted, or that was interrupted; run `kcr region delete {name}` to go on"
    )


def _key(name: values.RegionName, member: values.MemberId | None = None) -> int:
    """Return the number of an advisory lock: 64 bits, the same in every process.

    It is made of the name, not of the region's id: who declares a name again waits for who deletes it. Two names that
    share one only wait for each other without need.
    """
    text_ = f"kcr\0{name}" if member is None else f"kcr\0{name}\0{member.group}\0{member.index}"
    return int.from_bytes(hashlib.blake2b(text_.encode(), digest_size=8).digest(), "big", signed=True)
