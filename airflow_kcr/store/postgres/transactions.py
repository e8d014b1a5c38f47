"""The region store on Postgres: each call one transaction, the region's lock first (docs/reference/store.md).

The lock is an advisory one, of the transaction, on a number made from the region's name: shared for batches, exclusive
for everything else. Rows are read after it, and so is the clock: a transaction's `now()` is from before the wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Sequence as Rows
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from sqlalchemy import Engine, text

from airflow_kcr.errors import (
    GroupInOtherRegion,
    KcrError,
    RefusedError,
    RegionBeingDeleted,
    RegionExists,
    StoreBusy,
    UnknownMember,
    UnknownRegion,
)
from airflow_kcr.ports import B, BatchRule, Heartbeats, Renewal, Replayed, Rule, Sign, SinkPlace, Span
from airflow_kcr.protocol.commands import Heartbeat
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region import lost_logs
from airflow_kcr.protocol.region.archive import ResetPage
from airflow_kcr.protocol.region.events import PARTS, Event
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.region.rows import Batch
from airflow_kcr.protocol.region.state import Region, stored
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    RegionName,
    TopicPartition,
)
from airflow_kcr.store.codec import event_from_json
from airflow_kcr.store.postgres import admission, archive, layouts, ledger, region_reads, region_writes
from airflow_kcr.store.postgres.chronicle import PostgresChronicle
from airflow_kcr.store.postgres.connections import (
    NO_LOCK,
    NOTIFY,
    Connections,
    Listeners,
    build_engine,
    payload,
    read_again,
)
from airflow_kcr.store.postgres.session import Found, Session, array, execute
from airflow_kcr.store.regions import RegionStore, uncollected

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from airflow_kcr import libpq


A = TypeVar("A")
V = TypeVar("V")

_ATTEMPTS: Final = 5
"""How often a decision is made again because a lease it replaces was renewed meanwhile; once is rare."""

# name: lock_exclusive — for every transition. Its queue is fair, so batches don't starve transitions.
_EXCLUSIVE: Final = text("SELECT pg_advisory_xact_lock(:region_key)")

# name: lock_shared — for an admission, and the member's own lock after it: its admissions are one at a time.
_SHARED: Final = text("SELECT pg_advisory_xact_lock_shared(:region_key), pg_advisory_xact_lock(:member_key)")

_NOW: Final = text("SELECT clock_timestamp()")
_NAMES: Final = text('SELECT name FROM kcr.region ORDER BY name COLLATE "C"')
_NAMES_WITH: Final = text("""
    SELECT name FROM kcr.region r
    WHERE EXISTS (SELECT FROM kcr.consumer_group g WHERE g.region_id = r.id AND g.group_id = ANY(:groups))
    ORDER BY name COLLATE "C"
""")
_FIND: Final = text("SELECT id FROM kcr.region WHERE name = :name")

_COUNTER: Final = text("SELECT counter FROM kcr.region WHERE name = :name")

# name: signs — of several regions at once.
_SIGNS: Final = text("""
    SELECT r.name, clock_timestamp(), r.counter, coalesce(r.reconcile_at <= clock_timestamp(), false),
           (SELECT count(*) FROM kcr.lease l WHERE l.region_id = r.id AND l.valid_until > clock_timestamp()),
           CASE WHEN r.state = 'running' AND r.desired_state = 'running' THEN 0 ELSE (
               SELECT count(*) FROM kcr.batch b WHERE b.region_id = r.id AND b.outcome IS NULL) END
    FROM kcr.region r WHERE r.name = ANY (CAST(:names AS text[]))
""")

# name: owners — which other region has one of these groups, each on its cluster.
_OWNERS: Final = text("""
    SELECT g.group_id, g.cluster_id, r.name FROM kcr.consumer_group g JOIN kcr.region r ON r.id = g.region_id
    JOIN unnest(CAST(:groups AS text[]), CAST(:clusters AS text[])) AS n (group_id, cluster_id)
      ON n.group_id = g.group_id AND n.cluster_id = g.cluster_id
    WHERE r.name <> :name ORDER BY g.group_id
""")

_EVENTS: Final = text("""
    SELECT number, at, epoch, timeline, kind, body FROM kcr.event
    WHERE region_id = :region AND number > :after ORDER BY number LIMIT :limit
""")

_TAKEN: Final = text("SELECT group_id, sink, place FROM kcr.sink_place WHERE region_id = :region")
_TAKE: Final = text("""
    INSERT INTO kcr.sink_place (region_id, group_id, sink, place) VALUES (:region, :group, :sink, :place)
    ON CONFLICT DO NOTHING
""")
_LET_GO: Final = text("""
    DELETE FROM kcr.sink_place WHERE (region_id, group_id, sink, place) = (:region, :group, :sink, :place)
""")

EVENT_PAGE: Final = 1000
"""Events per page of a whole history: a statement of bounded length, whatever the region has been through."""


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

    # -- transitions ---------------------------------------------------------------------------------------------

    def create(self, name: RegionName, rule: Callable[[datetime], Region]) -> Region:
        """See `ports.Transactions.create`."""
        region: Region | None = None
        try:
            with self._connections.transaction(_EXCLUSIVE, region_key=_key(name)) as session:
                if region_writes.find_doomed(session, name):
                    raise _being_deleted(name)
                region = rule(session.rows(_NOW)[0][0])
                return stored(region_writes.write_new(session, region))
        except RegionExists:
            raise RegionExists(
                f"there is a region {name} already; change its spec instead of declaring it again"
            ) from None
        except GroupInOtherRegion:
            raise self._group_taken(name, region) from None

    def decide(self, name: RegionName, rule: Rule[A]) -> tuple[Region, A]:
        """See `ports.Transactions.decide`."""
        for _ in range(_ATTEMPTS):
            with suppress(region_writes.LeaseMovedError):
                return self._decide_once(name, rule)
        raise StoreBusy(f"leases of region {name} kept being renewed while it was decided on; nothing was changed")

    def _decide_once(self, name: RegionName, rule: Rule[A]) -> tuple[Region, A]:
        after: Region | None = None
        try:
            with self._connections.transaction(_EXCLUSIVE, region_key=_key(name)) as session, uncollected():
                before, now = self._found(session, name)
                after, answer = rule(before, now)
                hint = region_writes.Write(NOTIFY, {"payload": payload(name, after.counter)})
                told = (hint,) if any(not isinstance(event.body, PARTS) for event in after.events) else ()
                return stored(region_writes.write(session, before, after, *told)), answer
        except GroupInOtherRegion:
            raise self._group_taken(name, after) from None

    def admit(self, name: RegionName, command: B, rule: BatchRule[B, A]) -> A:
        """See `ports.Transactions.admit`."""
        keys = {"region_key": _key(name), "member_key": _key(name, command.member)}
        with self._connections.transaction(_SHARED, **keys) as session:
            found = admission.load(session, name, command)
            if found is None:
                raise _unknown_in(session.rows(_NAMES), name)
            before, now = found
            after, answer = rule(before, now, command)
            admission.write(session, before, after)
            return answer

    def delete(self, name: RegionName, check: Callable[[Region, datetime], None]) -> None:
        """See `ports.Transactions.delete`."""
        with self._connections.transaction(_EXCLUSIVE, region_key=_key(name)) as session:
            rows = session.rows(region_reads.REGION, name=name)
            if rows:
                check(region_reads.region_of(session, name, rows[0]), rows[0][0])
                region_writes.doom(session, name)
            elif not region_writes.find_doomed(session, name):
                raise _unknown_in(session.rows(_NAMES), name)
        rest, more = region_writes.Deletion(), True
        while more:
            with self._connections.transaction(NO_LOCK) as session:
                # Another one may have been faster.
                more = region_writes.find_doomed(session, name) and rest.forget_some(session)

    # -- leases --------------------------------------------------------------------------------------------------

    def renew(self, renewals: Collection[Renewal]) -> Heartbeats:
        """See `ports.Transactions.renew`."""
        return renew(self._connections, renewals, self.names)

    # -- reading -------------------------------------------------------------------------------------------------

    @read_again
    def read(self, name: RegionName) -> tuple[Region, datetime]:
        """See `ports.Transactions.read`."""
        with self._connections.snapshot(region_reads.REGION, name=name) as session, uncollected():
            row = _one_of(session, name, session.first)
            return region_reads.region_of(session, name, row), row[0]

    @read_again
    def look(self, name: RegionName) -> tuple[Region, datetime, Seen]:
        """See `RegionStore.look`; in one statement."""
        with self._connections.snapshot(region_reads.REGION, name=name) as session, uncollected():
            row = _one_of(session, name, session.first)
            seen = Seen(worked_at=region_reads.worked_at(row) or NEVER)
            return region_reads.region_of(session, name, row), row[0], seen

    @read_again
    def reset_page(self, name: RegionName, *, before: CheckpointNumber | None, last: int | None) -> ResetPage:
        """See `RegionStore.reset_page`; in one statement."""
        with self._connections.snapshot(archive.RESETS_OF, name=name, **archive.page_bounds(before, last)) as session:
            return archive.reset_page_from(_one_of(session, name, session.first))

    @read_again
    def read_as(self, name: RegionName, member: MemberId, see: Callable[[Region, datetime], V]) -> V:
        """See `ports.Transactions.read_as`."""
        with self._connections.snapshot(
            region_reads.MEMBERS_REGION, name=name, group=member.group, index=member.index
        ) as session:
            row = _one_of(session, name, session.first)
            return see(region_reads.region_of_member(session, name, member, row), row[0])

    def names(self) -> tuple[RegionName, ...]:
        """See `ports.Transactions.names`."""
        return tuple(name for (name,) in self._connections.answer(_NAMES) if not region_writes.is_doomed(name))

    @read_again
    def names_with(self, groups: Collection[GroupId]) -> tuple[RegionName, ...]:
        """See `ports.Transactions.names_with`."""
        found = self._connections.answer(_NAMES_WITH, groups=list(groups))
        return tuple(name for (name,) in found if not region_writes.is_doomed(name))

    @read_again
    def events(self, name: RegionName, after: EventNumber, limit: int = 1000) -> tuple[Event, ...]:
        """See `ports.Transactions.events`."""
        with self._about(name) as session:
            return _events(session, after, limit)

    @read_again
    def batch(self, name: RegionName, batch: BatchId) -> Batch | None:
        """See `ports.Transactions.batch`."""
        with self._about(name) as session:
            return ledger.one(session, batch)

    def batches(self, name: RegionName) -> Iterator[Batch]:
        """See `ports.Transactions.batches`; page by page, so that the caller may take its time."""
        after: int | None = 0
        while after is not None:
            found, after = self._page(name, after)
            yield from found

    @read_again
    def _page(self, name: RegionName, after: int) -> tuple[list[Batch], int | None]:
        with self._about(name) as session:
            return ledger.page(session, after)

    @read_again
    def batches_since(self, name: RegionName, after: CheckpointNumber) -> tuple[Batch, ...]:
        """See `ports.Transactions.batches_since`."""
        with self._about(name) as session:
            return tuple(ledger.since(session, after))

    @read_again
    def newest_work(self, name: RegionName) -> datetime | None:
        """See `ports.Transactions.newest_work`; in one statement."""
        with self._connections.snapshot(ledger.NEWEST_WORK, name=name) as session:
            worked_at: datetime | None = _one_of(session, name, session.first)[0]
            return worked_at

    @read_again
    def batches_with(self, name: RegionName, partition: GroupPartition, offset: Offset) -> tuple[Batch, ...]:
        """See `ports.Transactions.batches_with`."""
        with self._about(name) as session:
            return tuple(ledger.containing(session, partition, offset))

    @read_again
    def readers(self, name: RegionName, partition: TopicPartition) -> tuple[GroupPartition, ...]:
        """See `ports.Transactions.readers`."""
        with self._about(name) as session:
            return tuple(ledger.readers(session, partition))

    @read_again
    def taken(self, name: RegionName) -> frozenset[SinkPlace]:
        """See `ports.Transactions.taken`."""
        with self._about(name) as session:
            return frozenset(SinkPlace(GroupId(group), sink, place) for group, sink, place in session.rows(_TAKEN))

    def take(self, name: RegionName, place: SinkPlace) -> None:
        """See `ports.Transactions.take`."""
        with self._beside(name) as session:
            session.run(_TAKE, **place._asdict())

    def let_go(self, name: RegionName, place: SinkPlace) -> None:
        """See `ports.Transactions.let_go`."""
        with self._beside(name) as session:
            session.run(_LET_GO, **place._asdict())

    def signs(self, names: Collection[RegionName]) -> Mapping[RegionName, tuple[Sign, datetime]]:
        """See `ports.Transactions.signs`."""
        rows = self._connections.answer(_SIGNS, names=sorted(names))
        return {RegionName(name): (Sign(*columns), now) for name, now, *columns in rows}

    @read_again
    def replays(self, name: RegionName, spans: Collection[Span]) -> Mapping[Epoch, Replayed]:
        """See `ports.Transactions.replays`; in one statement."""
        with self._connections.snapshot(layouts.REPLAYS, name=name, **layouts.bound(spans)) as session:
            return layouts.replays(session.first, spans)

    @read_again
    def registered(self, name: RegionName, member: MemberId, incarnation: Incarnation) -> str:
        """See `ports.Transactions.registered`."""
        with self._about(name) as session:
            return ledger.registered(session, member, incarnation)

    @read_again
    def history(self, name: RegionName) -> History:
        """See `ports.Transactions.history`; page by page, so that no more rows than a page's are held beside it."""
        with self._about(name) as session:
            events: list[Event] = []
            while page := _events(session, events[-1].number if events else EventNumber(0), EVENT_PAGE):
                events.extend(page)
            batches: list[Batch] = []
            after: int | None = 0
            while after is not None:
                found, after = ledger.page(session, after)
                batches.extend(found)
            return History(events=events, batches=batches)

    def chronicle(self, name: RegionName) -> PostgresChronicle:
        """See `ports.Transactions.chronicle`."""
        return PostgresChronicle(lambda: self._about(name), lambda: self._alone(name), lambda: self._beside(name))

    def wait(self, name: RegionName, after: EventNumber, timeout: timedelta) -> EventNumber:
        """See `ports.Transactions.wait`."""
        self._connections.require_schema()

        def counter(connection: libpq.Connection) -> EventNumber:
            found = execute(connection, _COUNTER, {"name": name}).fetchone()
            if found is None:
                raise _unknown_in(execute(connection, _NAMES, {}).fetchall(), name)
            return EventNumber(found[0])

        return self._listeners.wait(name, after, timeout, counter)

    # -- answers -------------------------------------------------------------------------------------------------

    @contextmanager
    def _about(self, name: RegionName) -> Iterator[Session]:
        """Lend a session that reads about a region."""
        with self._connections.snapshot(_FIND, name=name) as session:
            session.region_id = _one_of(session, name, session.first)[0]
            yield session

    @contextmanager
    def _alone(self, name: RegionName) -> Iterator[Session]:
        """Lend a session about a region that holds its lock."""
        with self._connections.transaction(_EXCLUSIVE, region_key=_key(name)) as session:
            session.region_id = _one_of(session, name, session.rows(_FIND, name=name))[0]
            yield session

    @contextmanager
    def _beside(self, name: RegionName) -> Iterator[Session]:
        """Lend a session about a region that writes what no verb reads, and so needs no lock."""
        with self._connections.transaction(NO_LOCK) as session:
            session.region_id = _one_of(session, name, session.rows(_FIND, name=name))[0]
            yield session

    def _found(self, session: Session, name: RegionName) -> tuple[Region, datetime]:
        row = _one_of(session, name, session.rows(region_reads.REGION, name=name))
        return region_reads.region_of(session, name, row), row[0]

    def _group_taken(self, name: RegionName, region: Region | None) -> KcrError:
        """Return the refusal that names the group and its region; the transaction that found out is over."""
        groups = {} if region is None else region.own_groups
        found = self._connections.answer(_OWNERS, groups=[*groups], clusters=[*groups.values()], name=name)
        if not found:  # it was deleted meanwhile
            return GroupInOtherRegion()
        return lost_logs.group_taken(*found[0])


def _events(session: Session, after: EventNumber, limit: int) -> tuple[Event, ...]:
    rows = session.rows(_EVENTS, after=after, limit=limit)
    return tuple(
        Event(number=number, at=at, epoch=epoch, timeline=timeline, body=event_from_json(kind, body))
        for number, at, epoch, timeline, kind, body in rows
    )


def _one_of(session: Session, name: RegionName, rows: Rows[Found]) -> Found:
    """Return the one row that was found of a region."""
    if not rows:
        raise _unknown_in(session.rows(_NAMES), name)
    return rows[0]


def _unknown_in(names: Rows[Found], name: RegionName) -> KcrError:
    found = [known for (known,) in names]
    if region_writes.doomed(name) in found:
        return _being_deleted(name)
    known = [one for one in found if not region_writes.is_doomed(one)]
    return UnknownRegion(f"there is no region {name!r} in this store; it has: {', '.join(known) or 'none'}")


def _being_deleted(name: RegionName) -> RegionBeingDeleted:
    return RegionBeingDeleted(
        f"region {name} is being deleted, or that was interrupted; run `kcr region delete {name}` to go on"
    )


def _key(name: RegionName, member: MemberId | None = None) -> int:
    """Return the number of an advisory lock: 64 bits, the same in every process.

    Two names that share one only wait for each other without need.
    """
    text_ = f"kcr\0{name}" if member is None else f"kcr\0{name}\0{member.group}\0{member.index}"
    return int.from_bytes(hashlib.blake2b(text_.encode(), digest_size=8).digest(), "big", signed=True)


# -- renewals ------------------------------------------------------------------------------------------------------
#
# One statement for all members of a process, whichever regions they are in, and no region lock.
#
# An expired lease is not revived, nor one of another incarnation. The statement waits for no row: a lease that
# another transaction writes at that moment, a takeover for instance, is skipped and has no answer. So one member
# never keeps the others of its process from being renewed, and two processes that renew the same rows never wait for
# each other.

# name: renew_leases — answered, renewed or not, with what tells a member whether anything is worth reading. A lease
# that is `held` and not renewed was being written. What is `free` was judged as it was locked, and stays so. A region
# that is not there has no row, a member that is not there has no incarnation. An event that a member knows of and
# that the store has dropped says nothing.
_RENEW: Final = text("""
    WITH asked AS (
        SELECT u.place, u.incarnation, u.lease, u.lacks, r.id AS region_id, u.group_id, u.member_index,
               u.newest, u.newest_at, r.counter, r.epoch, r.reconcile_at
        FROM unnest(CAST(:regions AS text[]), CAST(:groups AS text[]), CAST(:indexes AS bigint[]),
                    CAST(:incarnations AS bigint[]), CAST(:leases AS interval[]),
                    CAST(:newest AS bigint[]), CAST(:newest_at AS timestamptz[]), CAST(:lacks AS text[]))
            WITH ORDINALITY AS u (region, group_id, member_index, incarnation, lease, newest, newest_at, lacks, place)
        JOIN kcr.region r ON r.name = u.region
    ), held AS (
        SELECT a.place FROM asked a JOIN kcr.lease l USING (region_id, group_id, member_index, incarnation)
        WHERE l.valid_until > clock_timestamp()
    ), free AS (
        SELECT a.place, a.region_id, a.group_id, a.member_index, a.incarnation, a.lease, a.lacks
        FROM asked a JOIN kcr.lease l USING (region_id, group_id, member_index, incarnation)
        WHERE l.valid_until > clock_timestamp()
        FOR NO KEY UPDATE OF l SKIP LOCKED
    ), renewed AS (
        UPDATE kcr.lease l SET valid_until = clock_timestamp() + f.lease, lacks = f.lacks
        FROM free f
        WHERE l.region_id = f.region_id AND l.group_id = f.group_id AND l.member_index = f.member_index
        RETURNING f.place
    )
    SELECT a.place, clock_timestamp(), a.counter, a.epoch, m.incarnation, a.reconcile_at,
           a.place IN (SELECT place FROM renewed), a.place IN (SELECT place FROM held),
           EXISTS (SELECT FROM kcr.event e
                   WHERE e.region_id = a.region_id AND e.number = a.newest AND e.at <> a.newest_at)
    FROM asked a
    LEFT JOIN kcr.member m USING (region_id, group_id, member_index)
""")


def renew(
    connections: Connections, renewals: Collection[Renewal], known: Callable[[], Iterable[RegionName]]
) -> Heartbeats:
    """Renew leases; see `ports.Transactions.renew`.

    Args:
        connections: of the store.
        renewals: each once.
        known: asked for the names of all regions, where one is not there.
    """
    asked = [*dict.fromkeys(renewals)]
    if not asked:
        return {}
    commands = [one.command for one in asked]
    marks = [command.newest for command in commands]
    rows = connections.answer(
        _RENEW,
        regions=array([one.region for one in asked]),
        groups=array([command.member.group for command in commands]),
        indexes=array([command.member.index for command in commands]),
        incarnations=array([command.incarnation for command in commands]),
        leases=[command.lease for command in commands],
        newest=[mark and mark.number for mark in marks],
        newest_at=[mark and mark.at for mark in marks],
        lacks=[command.lacks for command in commands],
    )
    found: dict[Renewal, Heartbeat | RefusedError] = {}
    for place, now, counter, epoch, incarnation, reconcile_at, renewed, held, is_other in rows:
        one = asked[place - 1]
        if incarnation is None:
            found[one] = UnknownMember(
                f"{one.command.member} is not registered in region {one.region}; register it first"
            )
        elif renewed or not held:
            found[one] = Heartbeat(
                now=now,
                counter=counter,
                epoch=epoch,
                incarnation=incarnation,
                renewed=renewed,
                reconcile_at=reconcile_at,
                is_other_history=is_other,
            )
    there = {asked[row[0] - 1] for row in rows}
    return {**found, **{one: _unknown(one, known) for one in asked if one not in there}}


def _unknown(renewal: Renewal, known: Callable[[], Iterable[RegionName]]) -> UnknownRegion:
    return UnknownRegion(f"there is no region {renewal.region!r} in this store; it has: {', '.join(known()) or 'none'}")
