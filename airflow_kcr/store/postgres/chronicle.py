"""What is recorded of a region, page by page: events and ledger as `kcr verify` reads them.

A page is one statement and one short transaction. A batch comes with its ranges as one JSON value: they are six columns
of a million rows otherwise, and what a row costs the driver is most of what reading them costs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Final, cast

from psycopg.sql import SQL
from sqlalchemy import TextClause, text

from airflow_kcr.ports import ArchiveContents, ArchiveFile, Certificate, Dropped, Horizon
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    EventNumber,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
)
from airflow_kcr.store.codec import event_from_json
from airflow_kcr.store.postgres.connections import read_again
from airflow_kcr.store.postgres.layouts import IN_ORDER, seen
from airflow_kcr.store.postgres.ledger import near
from airflow_kcr.store.postgres.row_layout import member_of, partition_columns, partition_of
from airflow_kcr.store.postgres.session import Found, Session, composed
from airflow_kcr.store.postgres.tables import WIDTH

EVENT_PAGE: Final = 1000
"""Events per page."""

LEDGER_PAGE: Final = 2000
"""Batches per page."""

# name: horizon — under the exclusive lock: no batch begins or ends at this moment, so what is there is all there is.
_HORIZON: Final = text("""
    SELECT r.counter, (SELECT coalesce(max(b.number), 0) FROM kcr.batch b WHERE b.region_id = r.id)
    FROM kcr.region r WHERE r.id = :region
""")

# name: events_between — a page of events.
EVENTS: Final = text("""
    SELECT number, at, epoch, timeline, kind, body FROM kcr.event
    WHERE region_id = :region AND number > :after AND number <= :upto ORDER BY number LIMIT :limit
""")

_BATCH: Final = SQL("""
    b.number, b.batch_id, b.group_id, b.member_index, b.incarnation, b.epoch, b.timeline, b.sequence, b.started_at,
    b.started_after, b.outcome, b.finished_at, b.finished_after, b.proven_in,
    (SELECT json_agg(json_build_array(r.group_id, r.topic, r.partition, r.from_offset, r.to_offset)
                     ORDER BY r.group_id, r.topic, r.partition)
     FROM kcr.batch_range r WHERE r.batch_number = b.number)
""")
_WIDTH: Final = 15

# name: batches_between — a page of the ledger.
BATCHES: Final = composed(
    SQL("""
    SELECT {batch} FROM kcr.batch b
    WHERE b.region_id = :region AND b.number > :after AND b.number <= :upto ORDER BY b.number LIMIT :limit
""").format(batch=_BATCH)
)

# name: some_batches — by their ids.
_SOME: Final = composed(
    SQL("""
    SELECT {batch} FROM kcr.batch b
    WHERE b.region_id = :region AND b.batch_id = ANY (CAST(:batches AS text[])) ORDER BY b.number
""").format(batch=_BATCH)
)


# name: certificates — from a number on; and the newest, and the newest archived one, with what continuing from
# them needs.
_CERTIFICATES: Final = text("""
    SELECT number, counter, ledger, body, digest, CAST(NULL AS bytea), archive FROM kcr.certificate
    WHERE region_id = :region AND number > :after ORDER BY number LIMIT :limit
""")
_NEWEST: Final = text("""
    SELECT number, counter, ledger, body, digest, resume, archive FROM kcr.certificate
    WHERE region_id = :region ORDER BY number DESC LIMIT 1
""")
_CLOSED: Final = text("""
    SELECT number, counter, ledger, body, digest, resume, archive FROM kcr.certificate
    WHERE region_id = :region AND archive IS NOT NULL ORDER BY number DESC LIMIT 1
""")

# name: may_certify — who has no right here may still read all the rest.
_MAY_CERTIFY: Final = text("""
    SELECT current_user, has_table_privilege('kcr.certificate', 'INSERT')
           AND has_table_privilege('kcr.certificate', 'UPDATE'), current_setting('transaction_read_only') = 'on'
""")

# name: certify — the first of two that prove the same at once wins. Of those before it only the last one still has what
# is needed to continue, as each takes it from the one before; so it is with those that are archived, in their order.
_CERTIFY: Final = text("""
    INSERT INTO kcr.certificate (region_id, number, counter, ledger, body, digest, resume)
    VALUES (:region, :number, :counter, :ledger, CAST(:body AS jsonb), :digest, :resume) ON CONFLICT DO NOTHING
""")
_FORGET: Final = text("""
    UPDATE kcr.certificate SET resume = NULL
    WHERE region_id = :region AND number = CAST(:number AS bigint) - 1 AND archive IS NULL
""")

# name: archived — the first of two that close the same at once wins; the file is the same.
_ARCHIVED: Final = text("""
    UPDATE kcr.certificate SET archive = CAST(:archive AS jsonb), resume = :resume
    WHERE region_id = :region AND number = :number AND archive IS NULL
""")
_FORGET_ARCHIVED: Final = text("""
    UPDATE kcr.certificate SET resume = NULL
    WHERE region_id = :region AND number = CAST(:number AS bigint) - 1 AND archive IS NOT NULL
""")
_ARCHIVED_RANGES: Final = text("""
    INSERT INTO kcr.archived_range (region_id, certificate, group_id, topic, partition, from_offset, to_offset)
    SELECT :region, :number, r.* FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]),
        CAST(:partitions AS bigint[]), CAST(:froms AS bigint[]), CAST(:tos AS bigint[])) r
""")
_ARCHIVED_PROCESSES: Final = text("""
    INSERT INTO kcr.archived_process (region_id, group_id, member_index, incarnation, label)
    SELECT :region, p.* FROM unnest(CAST(:groups AS text[]), CAST(:indexes AS bigint[]),
        CAST(:incarnations AS bigint[]), CAST(:labels AS text[])) p
    ON CONFLICT DO NOTHING
""")

# name: archived_with — for each width of a range the few that end near enough beyond the record: see `containing`.
_ARCHIVED_WITH: Final = composed(
    SQL("""
    SELECT number, counter, ledger, body, digest, CAST(NULL AS bytea), archive FROM kcr.certificate
    WHERE region_id = :region AND number = ANY (ARRAY(
        SELECT unnest(ARRAY(
            SELECT certificate FROM kcr.archived_range
            WHERE region_id = :region AND group_id = :group AND topic = :topic AND partition = :partition
              AND {width} = w.width AND to_offset > :offset AND to_offset <= w.furthest AND from_offset <= :offset
        )) FROM unnest(CAST(:widths AS integer[]), CAST(:furthest AS bigint[])) AS w (width, furthest)
    )) ORDER BY number
""").format(width=SQL(WIDTH))
)
_ARCHIVED_PROCESS: Final = text("""
    SELECT label FROM kcr.archived_process
    WHERE region_id = :region AND group_id = :group AND member_index = :index AND incarnation = :incarnation
""")

PIECE: Final = 10_000
"""Rows of a table that a transaction drops."""

# name: drop_events — a piece from the oldest one on; they have no gaps.
_DROP_EVENTS: Final = text("""
    DELETE FROM kcr.event e WHERE e.region_id = :region AND e.number < :upto AND e.number < :limit + (
        SELECT min(o.number) FROM kcr.event o WHERE o.region_id = :region
    )
""")

# name: droppable — the next batches; no foreign key leads from their ranges to them.
_DROPPABLE: Final = text("""
    SELECT b.number FROM kcr.batch b
    WHERE b.region_id = :region AND b.number > :after AND b.number < :ledger AND b.outcome IS NOT NULL
      AND b.sequence <= :floor AND NOT b.batch_id = ANY (CAST(:open AS text[])) ORDER BY b.number LIMIT :limit
""")
_DROP_RANGES: Final = text("DELETE FROM kcr.batch_range WHERE batch_number = ANY (CAST(:batches AS bigint[]))")
_DROP_BATCHES: Final = text("DELETE FROM kcr.batch WHERE number = ANY (CAST(:batches AS bigint[]))")


class PostgresChronicle:
    """Implements `ports.Chronicle`.

    Args:
        about: lends a session that reads about the region.
        alone: lends one that holds the region's lock, so that nothing happens meanwhile.
        beside: lends one that writes without that lock: no other transaction writes the same.
    """

    def __init__(
        self,
        about: Callable[[], AbstractContextManager[Session]],
        alone: Callable[[], AbstractContextManager[Session]],
        beside: Callable[[], AbstractContextManager[Session]],
    ) -> None:
        self._about = about
        self._alone = alone
        self._beside = beside

    def horizon(self) -> Horizon:
        """See `ports.Chronicle.horizon`."""
        with self._alone() as session:
            ((counter, ledger),) = session.rows(_HORIZON)
            return Horizon(counter=EventNumber(counter), ledger=ledger)

    def events(self, after: EventNumber, upto: EventNumber) -> Iterator[Event]:
        """See `ports.Chronicle.events`."""
        while after < upto:
            found = self._page(EVENTS, after=after, upto=upto, limit=EVENT_PAGE)
            for number, at, epoch, timeline, kind, body in found:
                yield Event(number=number, at=at, epoch=epoch, timeline=timeline, body=event_from_json(kind, body))
            if len(found) < EVENT_PAGE:
                return
            after = found[-1][0]

    def batches(self, after: int, upto: int) -> Iterator[Batch]:
        """See `ports.Chronicle.batches`."""
        while after < upto:
            found = self._page(BATCHES, after=after, upto=upto, limit=LEDGER_PAGE)
            for row in found:
                yield _batch(row)
            if len(found) < LEDGER_PAGE:
                return
            after = found[-1][0]

    @read_again
    def _page(self, statement: TextClause, **limits: int) -> Sequence[Found]:
        with self._about() as session:
            return session.rows(statement, **limits)

    @read_again
    def rows(self, batches: Collection[BatchId]) -> tuple[Batch, ...]:
        """See `ports.Chronicle.rows`."""
        if not batches:
            return ()
        with self._about() as session:
            return tuple(_batch(row) for row in session.rows(_SOME, batches=sorted(batches)))

    @read_again
    def seen(self, batches: Sequence[Batch]) -> tuple[Batch, ...]:
        """See `ports.Chronicle.seen`."""
        with self._about() as session:
            return tuple(seen(session, list(batches)))

    @read_again
    def certificates(self, after: int = 0, limit: int | None = None) -> tuple[Certificate, ...]:
        """See `ports.Chronicle.certificates`."""
        with self._about() as session:
            session.rows(IN_ORDER)
            return tuple(_certificate(row) for row in session.rows(_CERTIFICATES, after=after, limit=limit))

    @read_again
    def newest_certificate(self) -> Certificate | None:
        """See `ports.Chronicle.newest_certificate`."""
        with self._about() as session:
            return next((_certificate(row) for row in session.rows(_NEWEST)), None)

    def uncertifiable(self) -> str:
        """See `ports.Chronicle.uncertifiable`."""
        with self._alone() as session:
            ((user, may_write, only_reads),) = session.rows(_MAY_CERTIFY)
        if only_reads:
            return "the store's server, or this connection, is read-only"
        return "" if may_write else f"user {user} may not write to kcr.certificate"

    def certify(self, certificate: Certificate) -> bool:
        """See `ports.Chronicle.certify`."""
        with self._alone() as session:
            made = session.run(
                _CERTIFY,
                number=certificate.number,
                counter=certificate.horizon.counter,
                ledger=certificate.horizon.ledger,
                body=json.dumps(certificate.body),
                digest=certificate.digest,
                resume=certificate.resume,
            )
            if made:
                session.run(_FORGET, number=certificate.number)
            return bool(made)

    @read_again
    def closed(self) -> Certificate | None:
        """See `ports.Chronicle.closed`."""
        with self._about() as session:
            return next((_certificate(row) for row in session.rows(_CLOSED)), None)

    def archived(self, number: int, file: ArchiveFile, resume: bytes, contents: ArchiveContents) -> None:
        """See `ports.Chronicle.archived`."""
        with self._alone() as session:
            if not session.run(_ARCHIVED, number=number, archive=json.dumps(asdict(file)), resume=resume):
                return
            session.run(_FORGET_ARCHIVED, number=number)
            if contents.ranges:
                froms, tos = zip(*contents.ranges.values(), strict=True)
                columns = partition_columns(contents.ranges)
                session.run(_ARCHIVED_RANGES, number=number, froms=list(froms), tos=list(tos), **columns)
            if contents.processes:
                session.run(
                    _ARCHIVED_PROCESSES,
                    groups=[member.group for member, _ in contents.processes],
                    indexes=[member.index for member, _ in contents.processes],
                    incarnations=[incarnation for _, incarnation in contents.processes],
                    labels=[*contents.processes.values()],
                )

    def archived_with(self, partition: GroupPartition, offset: Offset) -> tuple[Certificate, ...]:
        """See `ports.Chronicle.archived_with`."""
        with self._about() as session:
            found = session.rows(_ARCHIVED_WITH, **near(partition, offset))
            return tuple(_certificate(row) for row in found)

    def archived_process(self, member: MemberId, incarnation: Incarnation) -> str:
        """See `ports.Chronicle.archived_process`."""
        with self._about() as session:
            about = {"group": member.group, "index": member.index, "incarnation": incarnation}
            return next((str(label) for (label,) in session.rows(_ARCHIVED_PROCESS, **about)), "")

    def drop(self, closed: Certificate, floor: CheckpointNumber) -> Iterator[Dropped]:
        """See `ports.Chronicle.drop`."""
        events = PIECE
        while events == PIECE:
            with self._beside() as session:
                events = session.run(_DROP_EVENTS, upto=closed.horizon.counter, limit=PIECE)
            yield Dropped(events=events, batches=0)
        still_open = sorted(cast("list[str]", closed.body.get("open", [])))
        after, limit = 0, max(PIECE // 100, 1)
        while True:
            with self._beside() as session:
                found = session.rows(
                    _DROPPABLE, after=after, ledger=closed.horizon.ledger, floor=floor, open=still_open, limit=limit
                )
                batches = [number for (number,) in found]
                if not batches:
                    return
                ranges = session.run(_DROP_RANGES, batches=batches)
                session.run(_DROP_BATCHES, batches=batches)
            after, limit = batches[-1], max(PIECE * len(batches) // max(ranges, len(batches)), 1)
            yield Dropped(events=0, batches=len(batches))


def _certificate(row: Found) -> Certificate:
    number, counter, ledger, body, digest, resume, archive = row
    return Certificate(
        number=number,
        horizon=Horizon(counter=counter, ledger=ledger),
        body=body,
        digest=digest,
        resume=None if resume is None else bytes(resume),
        archive=None if archive is None else ArchiveFile(**archive),
    )


def _batch(row: Found) -> Batch:
    _, batch, group, index, incarnation, epoch, timeline, sequence, started_at, started_after, *rest = row
    outcome, finished_at, finished_after, proven_in, ranges = rest
    return Batch(
        batch=batch,
        member=member_of(group, index),
        incarnation=incarnation,
        epoch=epoch,
        timeline=timeline,
        sequence=sequence,
        ranges=_ranges(ranges),
        started_at=started_at,
        started_after=started_after,
        outcome=None if outcome is None else _OUTCOMES[outcome],
        finished_at=finished_at,
        finished_after=finished_after,
        proven_in=proven_in,
    )


def _ranges(ranges: Any) -> dict[Any, Range]:  # noqa: ANN401 (JSON)
    return {partition_of(group, topic, number): Range(a, b) for group, topic, number, a, b in ranges or ()}


_OUTCOMES: Final = {str(o): o for o in Outcome}
