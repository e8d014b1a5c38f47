"""The region store on Postgres: what members, people and DAG runs ask of it, each in one transaction.

Whatever is due in the region is done with it.

Whatever changes something may be repeated: after a lost answer (`OutcomeUnknown`) the same call finds out what became
of the first one instead of doing it twice. A request id, a batch id, a process token or an epoch is what it is
recognised by.

The region's lock comes first. It is an advisory one, of the transaction, on a number made from the region's name:
shared for batches, exclusive for everything else. Rows are read after it, and so is the clock: a transaction's `now()`
is from before the wait (tests/annex/tables-and-locks.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Rows
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeAlias, TypeVar, cast

from airflow_kcr import errors
from airflow_kcr.ports import Heartbeats, Renewal, SinkPlace
from airflow_kcr.protocol import values
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region import batches, claims, commands, decisions, lifecycle, lost_logs
from airflow_kcr.protocol.region.archive import ResetPage
from airflow_kcr.protocol.region.events import PARTS, Event
from airflow_kcr.protocol.region.incidents import WatcherMemory
from airflow_kcr.protocol.region.lag import RECENT, WINDOW, LagSample, stands_still
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.store.answers import BriefEvent, Replayed, Sign, Span
from airflow_kcr.store.garbage import uncollected
from airflow_kcr.store.postgres import (
    archive,
    deletion,
    history,
    lag,
    leases,
    ledger,
    region_reads,
    region_writes,
    watchers,
)
from airflow_kcr.store.postgres.connections import NO_LOCK, Connections, build_engine, read_again
from airflow_kcr.store.postgres.history import Chronicle
from airflow_kcr.store.postgres.listeners import NOTIFY, Listeners, payload
from airflow_kcr.store.postgres.session import Found, Session
from airflow_kcr.store.postgres.statements import Statement, by_name, load

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

B = TypeVar("B", commands.StartBatch, commands.FinishBatch)

Rule: TypeAlias = Callable[[Region, datetime], tuple[Region, A]]
"""A pure decision: the region and the store's clock in, the region and an answer out; or it raises, and nothing has
changed."""

BatchRule: TypeAlias = Callable[[Region, datetime, B], tuple[Region, A]]
"""A decision about a batch, which is started or finished."""


ONCE: Final = (commands.DeclareRegion, commands.DeleteRegion)
"""Commands that are not repeated: what is there after the first can't be told from what another caller did."""


class RegionStore:
    """The region store on Postgres, as members, the command line and the hook use it.

    Each call is one transaction. Every call may raise StoreUnavailable or StoreBusy (nothing was changed),
    SchemaMissing, SchemaTooOld or SchemaTooNew, and OutcomeUnknown where the answer to COMMIT was lost.

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def handle(self, name: values.RegionName, command: commands.Command[A]) -> A:
        """Handle a command and return its answer; where the answer to its COMMIT was lost, it is given once more.

        Raises:
            RefusedError: its rule refuses it; nothing has changed.
            StoreError: the store did not answer; the same command may be given again.
        """
        try:
            return cast("A", self._handled(name, command))
        except errors.OutcomeUnknown:
            if isinstance(command, ONCE):
                raise
            return cast("A", self._handled(name, command))

    def _handled(self, name: values.RegionName, command: commands.Command[object]) -> object:
        match command:
            case commands.StartBatch():
                return self.admit(name, command, batches.start)
            case commands.FromProcess(member=member, token=token, command=commands.StartBatch() as start):
                return self.admit(name, start, lambda r, now, own: batches.start(r.of_process(member, token), now, own))
            case commands.FinishBatch():
                self._finish_batch(name, command)
                return None
            case commands.Renew():
                return self._renew(name, command)
            case commands.ReadRegion():
                return self.read_as(name, command.member, lambda region, now: claims.shown(region, now, command))
            case commands.RetireCheckpoints():
                return self._retire(name)
            case commands.DeclareRegion():
                return self.create(name, lambda now: lifecycle.declare(name, now, command))
            case commands.DeleteRegion():
                self.delete(name, lifecycle.require_deletable)
                return None
            case _:
                region, answer = self.decide(name, lambda region, now: decisions.decide(region, now, command))
                return region if answer is None else answer

    def _finish_batch(self, name: values.RegionName, command: commands.FinishBatch) -> None:
        try:
            self.admit(name, command, batches.finish)
        except errors.BatchRefused:
            row = self.batch(name, command.batch)
            if row is None or row.outcome is not Outcome.DONE or row.incarnation != command.incarnation:
                raise

    def _renew(self, name: values.RegionName, command: commands.Renew) -> commands.Heartbeat:
        renewal = Renewal(region=name, command=command)
        heartbeat = self.renew([renewal]).get(renewal)
        if heartbeat is None:
            raise errors.StoreBusy(
                f"the lease of {command.member} in region {name} is being written; it was not renewed, ask again"
            )
        if isinstance(heartbeat, errors.RefusedError):
            raise heartbeat
        return heartbeat

    def _retire(self, name: values.RegionName) -> Region:
        """Retire checkpoints, one transaction after the other, until there is none to retire."""
        while True:
            region, are_retired = self._retire_some(name)
            if not are_retired:
                return region

    def _retire_some(self, name: values.RegionName) -> tuple[Region, bool]:
        try:
            return self.decide(name, decisions.retire)
        except errors.OutcomeUnknown:
            return self.decide(name, decisions.retire)

    # What the store does in one transaction, the region's lock first

    def create(self, name: values.RegionName, rule: Callable[[datetime], Region]) -> Region:
        """Store a new region as `rule` makes it from the store's clock.

        Raises:
            RegionExists: there is one of that name.
            GroupInOtherRegion: one of its groups belongs to another region, which the message names.
        """
        region: Region | None = None
        try:
            with self._connections.transaction(SQL["lock_exclusive"], region_key=_key(name)) as session:
                if deletion.find_doomed(session, name):
                    raise _being_deleted(name)
                region = rule(session.rows(SQL["now"])[0][0])
                return region_writes.write_new(session, region).stored()
        except errors.RegionExists:
            raise errors.RegionExists(
                f"there is a region {name} already; change its spec instead of declaring it again"
            ) from None
        except errors.GroupInOtherRegion:
            raise self._group_taken(name, region) from None

    def decide(self, name: values.RegionName, rule: Rule[A]) -> tuple[Region, A]:
        """Run `rule` under the exclusive lock and store what it returns: rows, events and ledger changes.

        Waiters are notified after the commit. Returns the region as stored, with its events and ledger changes
        written, and the rule's answer.

        Raises:
            UnknownRegion: there is no such region.
            GroupInOtherRegion: the rule's spec claims a group of another region.
        """
        for _ in range(_ATTEMPTS):
            with suppress(region_writes.LeaseMovedError):
                return self._decide_once(name, rule)
        raise errors.StoreBusy(
            f"leases of region {name} kept being renewed while it was decided on; nothing was changed"
        )

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
        except errors.GroupInOtherRegion:
            raise self._group_taken(name, after) from None

    def admit(self, name: values.RegionName, command: B, rule: BatchRule[B, A]) -> A:
        """Run `rule` under the shared lock, on a region that holds no more than a batch's start or finish needs.

        That is: the region's own row, the open checkpoint, this member and its lease, the claims of the batch's ranges,
        their boundary offsets and skips, the running batch of this id; all claims and the restore point only where the
        region checkpoints by count. Returns the rule's answer.

        Raises:
            UnknownRegion: there is no such region.
        """
        keys = {"region_key": _key(name), "member_key": _key(name, command.member)}
        with self._connections.transaction(SQL["lock_shared"], **keys) as session, uncollected():
            found = region_reads.region_for_batch(session, name, command)
            if found is None:
                raise _unknown_in(session.rows(SQL["names"]), name)
            before, now = found
            after, answer = rule(before, now, command)
            region_writes.write_batch(session, before, after)
            return answer

    def delete(self, name: values.RegionName, check: Callable[[Region, datetime], None]) -> None:
        """Forget a region and its history, if `check` does not raise.

        A long history goes in pieces. If that is interrupted, every other call raises RegionBeingDeleted, and this one,
        asked again, continues without another check.

        Raises:
            UnknownRegion: there is no such region.
        """
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

    def renew(self, renewals: Collection[Renewal]) -> Heartbeats:
        """Extend leases, each if its incarnation holds it and it is not over; one statement for all of any regions.

        Each is answered by itself. The statement waits for no row: one that another transaction writes has no answer,
        so that it does not keep the others waiting.
        """
        return leases.renew(self._connections, renewals, self.names)

    # Reading a region

    def read(self, name: values.RegionName) -> tuple[Region, datetime]:
        """Return the region as committed at one moment, and the store's clock then; takes no region lock.

        Raises:
            UnknownRegion: there is no such region.
        """
        region, now, _ = self.look(name)
        return region, now

    @read_again
    def look(self, name: values.RegionName) -> tuple[Region, datetime, Seen]:
        """Return a region, the store's clock, and what the judgement of its liveness needs beside it.

        Raises:
            UnknownRegion: there is no such region.
        """
        with self._connections.snapshot(region_reads.SQL["region"], name=name) as session, uncollected():
            row = _one_of(session, name, session.first)
            seen = Seen(worked_at=region_reads.worked_at(row) or NEVER)
            return region_reads.region_of(session, name, row), row[0], seen

    @read_again
    def survey(self, see: Callable[[Region, datetime, Seen, tuple[LagSample, ...]], V]) -> tuple[V, ...]:
        """Return what `see` makes of each region, by name; all take as many statements as one.

        It is given the region, the store's clock, and what verdicts need beside it (`look`, `recent_lag`). Of the
        region it may not ask for records to skip, which no verdict is made of.
        """
        with self._connections.snapshot(region_reads.SQL["regions"]) as session, uncollected():
            rows = {name: tuple(row) for name, *row in session.first if not deletion.is_doomed(name)}
            if not rows:
                return ()
            now, *_ = next(iter(rows.values()))
            samples = lag.recent(session, [region_id for _, region_id, *_ in rows.values()], now)
            contributed = region_reads.contributed(session)
            found: list[V] = []
            for name, row in rows.items():
                region = region_reads.region_of(session, values.RegionName(name), region_reads.without_skips(row))
                parts = {**region.contributions, **contributed.get(session.region_id, {})}
                seen = Seen(worked_at=region_reads.worked_at(row) or NEVER)
                found.append(see(values.replace(region, contributions=parts), now, seen, samples[session.region_id]))
            return tuple(found)

    def seen(self, name: values.RegionName) -> Seen:
        """Return what the judgement of a region's liveness needs beside its rows, as far as the store has it."""
        return Seen(worked_at=self.newest_work(name) or NEVER)

    @read_again
    def read_as(self, name: values.RegionName, member: values.MemberId, see: Callable[[Region, datetime], V]) -> V:
        """Return what `see` makes of the region and the store's clock, all of one moment; takes no region lock.

        The region has only this member's claims, unless it checkpoints by count. What `see` does not ask for is not
        read, so its answer holds values, and none of the region's tables.

        Raises:
            UnknownRegion: there is no such region.
        """
        given = {"name": name, "group": member.group, "index": member.index}
        with self._connections.snapshot(region_reads.SQL["region_of_member"], **given) as session:
            row = _one_of(session, name, session.first)
            return see(region_reads.region_of_member(session, name, member, row), row[0])

    def names(self) -> tuple[values.RegionName, ...]:
        """Return the names of all regions, in order."""
        return tuple(name for (name,) in self._connections.answer(SQL["names"]) if not deletion.is_doomed(name))

    @read_again
    def names_with(self, groups: Collection[values.GroupId]) -> tuple[values.RegionName, ...]:
        """Return the names of the regions that have a group of one of these names, on whatever cluster, in order."""
        found = self._connections.answer(SQL["names_with"], groups=list(groups))
        return tuple(name for (name,) in found if not deletion.is_doomed(name))

    def signs(self, names: Collection[values.RegionName]) -> Mapping[values.RegionName, tuple[Sign, datetime]]:
        """Return the signs of those of these regions that there are, and the store's clock; one statement for all."""
        rows = self._connections.answer(SQL["signs"], names=sorted(names))
        return {values.RegionName(name): (Sign(*columns), now) for name, now, *columns in rows}

    def wait(self, name: values.RegionName, after: values.EventNumber, timeout: timedelta) -> values.EventNumber:
        """Return the region's counter once it has moved beyond `after`; else, after `timeout`, `after`.

        Of what each of several members does (`events.PARTS`) it may not hear: who has to know reads now and then.
        """
        self._connections.require_schema()

        def counter(connection: libpq.Connection) -> values.EventNumber:
            statement = SQL["counter"]
            found = connection.run(statement.numbered, statement.bound({"name": name})).fetchone()
            if found is None:
                raise _unknown_in(connection.run(SQL["names"].numbered, ()).fetchall(), name)
            return values.EventNumber(found[0])

        return self._listeners.wait(name, after, timeout, counter)

    # Reading its past

    @read_again
    def reset_page(
        self, name: values.RegionName, *, before: values.CheckpointNumber | None, last: int | None
    ) -> ResetPage:
        """Return what `Archive.reset_page` of a region does; nothing else of the region is read.

        Raises:
            UnknownRegion: there is no such region.
        """
        page = by_name(archive.SQL["reset_page"])
        with self._connections.snapshot(page, name=name, **archive.reset_bounds(before, last)) as session:
            return archive.reset_page_from(_one_of(session, name, session.first))

    def events(self, name: values.RegionName, after: values.EventNumber, limit: int = 1000) -> tuple[Event, ...]:
        """Return up to `limit` events after that number, in commit order."""
        return self._read(name, history.events, after, limit)

    def brief_events(
        self, name: values.RegionName, before: values.EventNumber | None, last: int, longest: int
    ) -> tuple[BriefEvent, ...]:
        """Return the newest events for people, in commit order.

        Args:
            name: the region's.
            before: only events with a lower number; None: all.
            last: how many at most.
            longest: how many characters a detail has at most; of a longer one, its beginning and an ellipsis are left.
        """
        return self._read(name, history.brief, before, last, longest)

    def batch(self, name: values.RegionName, batch: values.BatchId) -> Batch | None:
        """Return one row of the ledger, whatever its outcome."""
        return self._read(name, ledger.one, batch)

    def batches(self, name: values.RegionName) -> Iterator[Batch]:
        """Yield the ledger in the order in which batches began."""
        # Page by page, so that the caller may take its time.
        after: int | None = 0
        while after is not None:
            found, after = self._read(name, ledger.page, after)
            yield from found

    def batches_since(
        self, name: values.RegionName, after: values.CheckpointNumber, up_to: values.CheckpointNumber | None = None
    ) -> tuple[Batch, ...]:
        """Return the batches that are stamped with a later sequence than one, oldest first; reads no older ones.

        Args:
            name: the region's.
            after: the sequence.
            up_to: the last one wanted, later ones are not read either; None: all.
        """
        return tuple(self._read(name, ledger.since, after, up_to))

    @read_again
    def newest_work(self, name: values.RegionName) -> datetime | None:
        """Return when the batch that was started last began or ended; None: there was none. Reads that batch alone."""
        with self._connections.snapshot(by_name(ledger.SQL["newest_work"]), name=name) as session:
            worked_at: datetime | None = _one_of(session, name, session.first)[0]
            return worked_at

    def batches_with(
        self, name: values.RegionName, partition: values.GroupPartition, offset: values.Offset
    ) -> tuple[Batch, ...]:
        """Return every batch whose ranges contain this offset of this partition, oldest first.

        It reads what there is near the offset, not the ledger.
        """
        return tuple(self._read(name, ledger.containing, partition, offset))

    def readers(self, name: values.RegionName, partition: values.TopicPartition) -> tuple[values.GroupPartition, ...]:
        """Return the partitions of which batches of any group were started, of this topic and number, by group."""
        return tuple(self._read(name, ledger.readers, partition))

    @read_again
    def replays(self, name: values.RegionName, spans: Collection[Span]) -> Mapping[values.Epoch, Replayed]:
        """Count, by the first epoch of each reset, the offsets that it rewound and those processed again since.

        Args:
            name: the region's.
            spans: resets, the oldest first; the progress of the last of them follows from the current claims.
        """
        replays = by_name(ledger.SQL["replays"])
        with self._connections.snapshot(replays, name=name, **ledger.span_columns(spans)) as session:
            return ledger.replays_from(session.first, spans)

    def registered(self, name: values.RegionName, member: values.MemberId, incarnation: values.Incarnation) -> str:
        """Return how the process of an incarnation called itself when it registered; empty: no event tells."""
        return self._read(name, history.registered, member, incarnation)

    @read_again
    def history(self, name: values.RegionName) -> History:
        """Return all events and the whole ledger as committed at one moment; takes no region lock.

        Read one after the other, a batch that finished in between would look like unprocessed records.

        Raises:
            UnknownRegion: there is no such region.
        """
        with self._about(name) as session:
            return History(events=history.all_events(session), batches=[*ledger.whole(session)])

    def chronicle(self, name: values.RegionName) -> Chronicle:
        """Return what is recorded of a region; raises UnknownRegion, if there is none, when it is read."""
        lock = partial(self._beside, name, SQL["lock_exclusive"], region_key=_key(name))
        return Chronicle(partial(self._about, name), lock, partial(self._beside, name))

    # Where its sinks write to

    @read_again
    def taken(self, name: values.RegionName) -> frozenset[SinkPlace]:
        """Return the places that sinks of this region have taken, and that hold what its progress counts."""
        with self._about(name) as session:
            return frozenset(SinkPlace(values.GroupId(group), *place) for group, *place in session.rows(SQL["places"]))

    def take(self, name: values.RegionName, place: SinkPlace) -> None:
        """Note that a sink has taken a place; noted before, it changes nothing."""
        with self._beside(name) as session:
            session.run(SQL["take_place"], **place._asdict())

    def let_go(self, name: values.RegionName, place: SinkPlace) -> None:
        """Forget that a sink has taken a place, so that it may start there with nothing."""
        with self._beside(name) as session:
            session.run(SQL["let_place_go"], **place._asdict())

    # How far others have read its events: no part of what it decides

    def event_position(self, name: values.RegionName, reader: str) -> values.EventNumber | None:
        """Return the newest event of a region that a reader has dealt with; None: it has not read here before."""
        return self._read(name, history.position, reader)

    def keep_event_position(self, name: values.RegionName, reader: str, number: values.EventNumber) -> None:
        """Note the newest event that a reader has dealt with; an older one than is noted changes nothing."""
        with self._beside(name) as session:
            history.keep_position(session, reader, number)

    # How far its groups are behind

    def add_lag(self, name: values.RegionName, samples: Collection[LagSample]) -> None:
        """Keep samples of a region's groups, and thin out those that are there (`lag.surplus`).

        One that is there for the same group and moment changes nothing.
        """
        with self._beside(name) as session:
            lag.add(session, samples, session.rows(SQL["now"])[0][0])

    def lag_since(
        self, name: values.RegionName, instant: datetime, upto: datetime | None = None
    ) -> tuple[LagSample, ...]:
        """Return the kept samples of a region after an instant, the oldest first.

        Args:
            name: the region's.
            instant: later samples are wanted.
            upto: the last moment that is wanted; None: there is none.
        """
        return self._read(name, lag.since, instant, upto)

    def recent_lag(self, name: values.RegionName, now: datetime) -> tuple[LagSample, ...]:
        """Return the samples that verdicts are made of, the oldest first.

        Those of the last ten minutes are enough but where a position stands still: since when, the last hour says.

        Args:
            name: the region's.
            now: the store's clock.
        """
        with uncollected():
            found = self.lag_since(name, now - WINDOW)
            earlier = self.lag_since(name, now - RECENT, now - WINDOW) if stands_still(found) else ()
            return (*earlier, *found)

    # Of what people were notified: no part of what it decides either

    def remember(
        self, name: values.RegionName, watcher: str, rule: Callable[[WatcherMemory, datetime], tuple[WatcherMemory, A]]
    ) -> A:
        """Run a rule on what a watcher of a region remembers, and store what it returns; one caller after the other.

        Args:
            name: the region's.
            watcher: which one; one that never looked remembers nothing, since now.
            rule: given the memory and the store's clock, returns the new memory and the answer.

        Raises:
            UnknownRegion: there is no such region.
        """
        with self._beside(name) as session:
            return watchers.remember(session, watcher, session.rows(SQL["now"])[0][0], rule)

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

    def _group_taken(self, name: values.RegionName, region: Region | None) -> errors.KcrError:
        """Return the refusal that names the group and its region; the transaction that found out is over."""
        groups = {} if region is None else region.own_groups
        found = self._connections.answer(SQL["owners"], groups=[*groups], clusters=[*groups.values()], name=name)
        if not found:  # it was deleted meanwhile
            return errors.GroupInOtherRegion()
        return lost_logs.group_taken(*found[0])


def _one_of(session: Session, name: values.RegionName, rows: Rows[Found]) -> Found:
    """Return the one row that was found of a region."""
    if not rows:
        raise _unknown_in(session.rows(SQL["names"]), name)
    return rows[0]


def _unknown_in(names: Rows[Found], name: values.RegionName) -> errors.KcrError:
    found = [known for (known,) in names]
    if deletion.doomed(name) in found:
        return _being_deleted(name)
    known = [one for one in found if not deletion.is_doomed(one)]
    return errors.UnknownRegion(f"there is no region {name!r} in this store; it has: {', '.join(known) or 'none'}")


def _being_deleted(name: values.RegionName) -> errors.RegionBeingDeleted:
    return errors.RegionBeingDeleted(
        f"region {name} is being deleted, or that was interrupted; run `kcr region delete {name}` to go on"
    )


def _key(name: values.RegionName, member: values.MemberId | None = None) -> int:
    """Return the number of an advisory lock: 64 bits, the same in every process.

    It is made of the name, not of the region's id: who declares a name again waits for who deletes it. Two names that
    share one only wait for each other without need.
    """
    text_ = f"kcr\0{name}" if member is None else f"kcr\0{name}\0{member.group}\0{member.index}"
    return int.from_bytes(hashlib.blake2b(text_.encode(), digest_size=8).digest(), "big", signed=True)
