"""Transactions on a target database: a batch is staged, then published under the fence (docs/explanation/delivery.md).

Each has a connection of its own, opened for it and closed after it: a zombie keeps none, and nothing has to be found to
have died. No text of the driver is passed on, since it may quote rows.

The staging table is unlogged, filled by executors in parallel, read only by the publication, then dropped. It belongs
to one attempt: a batch's id is never used twice, so what a zombie writes late is in a table that is no
longer published.

A server that crashes empties it, and a connection opened later would not know: a batch without any row is nothing
unusual. So its creator notes the server's crash mark, and its publisher compares.

Every publisher locks in the same order: the batch's own staging table, which waits for a task that still writes; the
fence, shared, so that no reset raises it meanwhile; the progress of the batch's partitions. The second publisher of the
same partitions waits, and then finds progress where its batch does not start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Final

import psycopg
from psycopg import pq, sql

from airflow_kcr import libpq
from airflow_kcr.errors import ConfigurationError, SinkAhead, SinkError, SinkRefused, SinkUnavailable
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import BatchId, Epoch, GroupPartition, Offset, TopicName
from airflow_kcr.sinks.postgres.addresses import parameters
from airflow_kcr.sinks.postgres.bookkeeping import (
    COORDINATES,
    DDL_LOCK,
    LONGEST,
    OWN_COLUMNS,
    PREFIX,
    Quoted,
    Target,
    TargetColumn,
    TargetPlace,
    TargetProgress,
    WithParameters,
    another_table,
    begin_progress,
    columns_of,
    computed_columns,
    crash_mark,
    ensure_crash_mark,
    highest_timeline,
    is_same,
    is_too_long,
    lock_fence,
    lock_progress,
    names,
    remember_target,
    set_progress,
)

# Connections

CONNECT_TIMEOUT: Final = "10"
"""Seconds in which a server has to answer, where the URL has no `connect_timeout`."""

_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "55P03": "it waited too long for a lock",
        "57014": "a statement took too long",
        "40P01": "it was chosen to end a deadlock",
        "40001": "it could not be serialised",
        "25P03": "it was idle for too long, so the server ended it",
        "57P01": "the server ended the connection",
        "57P02": "the server crashed",
        "57P03": libpq.NOT_NOW,
        "53100": "the server's disk is full",
        "53200": "the server is out of memory",
        "53300": libpq.FULL,
        "25006": libpq.READ_ONLY,
        **libpq.REFUSALS,
        "42501": "this user has no right to it",
        "42P01": "a table is gone; it was there before",
        "42703": "a column is gone; it was there before",
        "23502": "a value is missing where NULL is not allowed",
        "23505": "a row with these unique values exists already",
        "22001": "a text is too long for its column",
        "22003": "a number is too large for its column",
        "22P02": "a text is no value of its column's type",
        "22007": "a text is no day or time",
        "22008": "a day or time is none that Postgres has",
        "23514": "a row does not pass a check",
        "42804": "a column is of another type than what is written to it",
        "22021": "a text holds what this database's encoding can't, or a NUL, which no text of Postgres can",
    }
)

_PASSING: Final = frozenset({"55P03", "40P01", "40001"})
"""Nothing was changed, and the same again may well work."""


class OutcomeLost(Exception):
    """The connection was lost while COMMIT was on its way; the caller looks up the outcome."""


class SinkBusy(SinkError):
    """The database gave a transaction up; nothing was changed, and it may be tried again."""


class Database:
    """One target database.

    Args:
        url: of libpq, or of SQLAlchemy with the driver psycopg; with its password.
        timeouts: of the region; those of the connections follow from its lease.
        who: the sink, for messages and for `pg_stat_activity`.

    Raises:
        ConfigurationError: the URL can't be read, or its service is not there.
    """

    def __init__(self, url: str, *, timeouts: Timeouts, who: str) -> None:
        try:
            self._given = parameters(url)
        except ConfigurationError as wrong:
            raise ConfigurationError(f"{who}: {wrong}") from None
        self.who = who
        self._timeouts = timeouts
        self._given.setdefault("connect_timeout", CONNECT_TIMEOUT)
        self._given["application_name"] = f"kcr {who}"
        self.is_pooled = False
        """Whether a pooler was in between when it was last connected to: executors then prepare nothing either."""

    @property
    def address(self) -> str:
        """Where it is, for messages: never its password."""
        given = self._given
        user, port = given.get("user", ""), given.get("port", "")
        host = f"{given.get('host') or given.get('hostaddr')}{':' if port else ''}{port}"
        return f"{user}{'@' if user else ''}{host}/{given.get('dbname', '')}"

    @property
    def parameters(self) -> Mapping[str, str]:
        """How it is reached, by libpq's names, the password among them: for a driver, never to be shown."""
        return MappingProxyType(self._given)

    @contextmanager
    def transaction(self, statement_timeout: timedelta) -> Iterator[psycopg.Connection]:
        """Run the body in one transaction, READ COMMITTED, and commit it.

        Args:
            statement_timeout: how long a statement may take; while one runs the server does not see an idle
                transaction, so this limits what it may hold up.

        Raises:
            SinkError: it failed, and nothing was changed.
            OutcomeLost: the outcome is unknown.
        """
        with self._connected(statement_timeout) as connection:
            with self._translated():
                yield connection
            try:
                connection.commit()
            except psycopg.Error as error:
                # A pooler that loses the server tells so itself, by a state of class 08.
                if error.sqlstate is None or error.sqlstate.startswith("08") or _is_broken(connection):
                    raise OutcomeLost from None
                raise self._translation(error) from None

    @contextmanager
    def _connected(self, statement_timeout: timedelta) -> Iterator[psycopg.Connection]:
        times = self._timeouts
        spans = {
            "idle_in_transaction_session_timeout": times.idle_in_transaction_session_timeout,
            "lock_timeout": times.lock_timeout,
            "statement_timeout": max(statement_timeout, times.statement_timeout),
        }
        settings = {name: str(max(span // timedelta(milliseconds=1), 1)) for name, span in spans.items()}
        settings |= {"default_transaction_isolation": "read committed", "timezone": "UTC"}
        # Policies that come to apply later are an error then, and hide no rows.
        settings["row_security"] = "off"
        try:
            connection = libpq.connect(self._given, settings)
        except libpq.Unsuitable as wrong:
            raise self._refused(str(wrong)) from None
        except psycopg.Error as error:
            raise self._translation(error, libpq.not_made(str(error))) from None
        try:
            self.is_pooled = connection.is_pooled
            if self.is_pooled and "options" in self._given:
                raise self._refused(
                    "a pooler in between drops the options of its URL for executors; set them for the user "
                    f"(ALTER ROLE … SET …) and leave them out, or {libpq.DIRECTLY}"
                )
            with self._translated():
                connection.begin()
            connection.cursor_factory = WithParameters
            yield connection
        finally:
            connection.close()

    def _refused(self, why: str) -> SinkRefused:
        return SinkRefused(f"{self.who}: the database {self.address} can't be used: {why}; nothing was changed")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._translation(error) from None

    def _translation(self, error: psycopg.Error, not_made: libpq.NotMade | None = None) -> SinkError:
        state, diag = error.sqlstate or "", error.diag
        if isinstance(error, psycopg.OperationalError) and not state:
            return self._not_reached(not_made or libpq.known_reason(str(error)))
        if not state:
            # The driver's own: its text is about the statement, or quotes a value.
            return SinkError(
                f"{self.who}: a statement for the database {self.address} can't be run ({type(error).__name__}); "
                "nothing was changed"
            )
        return self.refusal(state, table=diag.table_name, column=diag.column_name, constraint=diag.constraint_name)

    def refusal(self, state: str, **named: str | None) -> SinkError:
        """Return the error for what the server refused, whose own words may quote a row.

        Args:
            state: its SQLSTATE.
            named: what it names: table, column and constraint.
        """
        kind = SinkBusy if state in _PASSING else SinkRefused if state in libpq.REFUSALS else SinkError
        what = _REASONS.get(state) or f"SQLSTATE {state}"
        told = ", ".join(f"{word} {name}" for word, name in named.items() if name)
        where = f" ({told})" if told else ""
        return kind(f"{self.who}: the database {self.address} refused: {what}{where}; nothing was changed")

    def _not_reached(self, known: libpq.NotMade | None) -> SinkError:
        """The error for a connection that is lost, or was never made."""
        if known is not None and known.is_refusal:
            return SinkRefused(f"{self.who}: the database {self.address} refused: {known.why}; nothing was changed")
        reason = "" if known is None else f" ({known.why})"
        return SinkUnavailable(f"{self.who}: the database {self.address} can't be reached{reason}; nothing was changed")


def _is_broken(connection: psycopg.Connection) -> bool:
    return connection.closed or connection.pgconn.status != pq.ConnStatus.OK


# Staging

ROW: Final = "kcr_row"
"""A column of staging tables: the row's number in the DataFrame. A task that was run twice wrote a row twice, with one
number; two rows of one record have two."""

_PREFIX: Final = "kcr_staging_"
_WITHOUT_ZONE: Final = frozenset(
    {"text", "date", "date[]", "timestamp without time zone", "timestamp without time zone[]"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column that a pipeline writes."""

    name: str
    type: str
    """As SQL has it; used where the target does not have the column yet, because there is no target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Where the rows of one batch wait."""

    schema: str
    table: str
    columns: tuple[str, ...]
    """The pipeline's own columns; `COORDINATES` and `ROW` come with them."""

    cast: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Those of them that wait as texts, with the types that they get as they are published."""

    crash_mark: str = ""
    """Of the server when the table was made: what was written since is there as long as the server has this one."""

    @property
    def identifier(self) -> Quoted:
        """The table."""
        return Quoted(self.schema, self.table)


def make(
    connection: psycopg.Connection,
    target: Target,
    place: TargetPlace,
    batch: BatchId,
    epoch: Epoch,
    columns: Sequence[Column],
) -> Staging:
    """Make the staging table of a batch, and the target if there is none yet.

    Raises:
        SinkError: the columns don't fit the target; the message names them.
    """
    ours = [column.name for column in columns if column.name.startswith(PREFIX)]
    if ours:
        raise SinkError(
            f"{target}: column {', '.join(ours)} begins with {PREFIX}, as only the sink's own do; rename it"
        )
    too_long = [column.name for column in columns if is_too_long(column.name)]
    if too_long:
        raise SinkError(
            f"{target}: column {', '.join(too_long)} is longer than the {LONGEST} bytes that Postgres keeps of a name; "
            "give it a shorter one in the pipeline"
        )
    existing = columns_of(connection, place.schema, place.table)
    if not existing:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        if not columns_of(connection, place.schema, place.table):
            if not is_same(connection, place, place.source):
                raise SinkError(f"{target}: {another_table(place.shown)}")
            _make_target(connection, target, place, columns)
            remember_target(connection, place, place.source)
        existing = columns_of(connection, place.schema, place.table)
    _require_fit(target, place, existing, columns, computed_columns(connection, place))
    digest = hashlib.blake2s(batch.encode(), digest_size=8).hexdigest()
    table = f"{_PREFIX}{place.source}_{epoch}_{digest}"
    own = [*((name, f"{kind} NOT NULL") for name, kind in COORDINATES.items()), (ROW, "bigint NOT NULL")]
    types = {column.name: existing[column.name].type for column in columns}
    cast = {column.name: types[column.name] for column in columns if _needs_zone(column.type, types[column.name])}
    definitions = [*({**types, **dict.fromkeys(cast, "text")}).items(), *own]
    connection.execute(
        sql.SQL("CREATE UNLOGGED TABLE {} ({}) WITH (autovacuum_enabled = off)").format(
            place.own(table),
            sql.SQL(", ").join(sql.SQL("{} {}").format(Quoted(n), sql.SQL(kind)) for n, kind in definitions),
        )
    )
    return Staging(
        schema=place.schema,
        table=table,
        columns=tuple(column.name for column in columns),
        cast=cast,
        crash_mark=ensure_crash_mark(connection, place),
    )


def _needs_zone(given: str, there: str) -> bool:
    """Whether a value is read in a session's zone: executors' sessions have that of their JVM, ours has UTC."""
    return given in _WITHOUT_ZONE and ("with time zone" in there or there.startswith("tstz"))


def _make_target(connection: psycopg.Connection, target: Target, place: TargetPlace, columns: Sequence[Column]) -> None:
    """Make the target with the pipeline's columns and ours; the index is small, and only a reset reads it."""
    missing = [name for name in target.key if name not in {column.name for column in columns}]
    if missing:
        raise SinkError(f"{target}: column {', '.join(missing)} of the key is not in what the pipeline writes")
    definitions = [(c.name, c.type) for c in columns] + list(OWN_COLUMNS.items())
    parts = [sql.SQL("{} {}").format(Quoted(name), sql.SQL(kind)) for name, kind in definitions]
    if target.mode is SinkMode.UPSERT:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(names(target.key)))
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(place.target, sql.SQL(", ").join(parts)))
    connection.execute(sql.SQL("CREATE INDEX ON {} USING brin (kcr_partition, kcr_offset)").format(place.target))


def _require_fit(
    target: Target,
    place: TargetPlace,
    existing: Mapping[str, TargetColumn],
    columns: Sequence[Column],
    computed: frozenset[str],
) -> None:
    written = {column.name for column in columns}
    if written & computed:
        raise SinkError(
            f"{target}: Postgres computes column {', '.join(sorted(written & computed))} of table {place.schema}."
            f"{place.table} by itself (GENERATED ALWAYS); leave it out in the pipeline"
        )
    unknown = [column.name for column in columns if column.name not in existing]
    if unknown:
        raise SinkError(
            f"{target}: table {place.schema}.{place.table} has no column {', '.join(unknown)}; add it to the table, or "
            "leave it out in the pipeline"
        )
    needed = {name for name, column in existing.items() if column.needed}
    absent = sorted((needed - written - OWN_COLUMNS.keys()) | (set(target.key) - written))
    if absent:
        raise SinkError(
            f"{target}: table {place.schema}.{place.table} needs column {', '.join(absent)}, which the pipeline does "
            "not write; write it, or give it a default"
        )


def drop(connection: psycopg.Connection, staging: Staging) -> None:
    """Drop a staging table, if it is still there."""
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(staging.identifier))


def leftovers(connection: psycopg.Connection, place: TargetPlace, epoch: Epoch) -> list[Staging]:
    """Return the staging tables that batches of older epochs of this sink have left."""
    found = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        r"WHERE n.nspname = %s AND c.relname ~ %s",
        [place.schema, rf"^{_PREFIX}{place.source}_[0-9]+_[0-9a-f]+$"],
    ).fetchall()
    return [
        Staging(schema=place.schema, table=name, columns=()) for (name,) in found if int(name.split("_")[3]) < epoch
    ]


# Publication

_COORDINATES = tuple(COORDINATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What became of a batch's rows."""

    staged: int
    """How many rows waited, those of tasks that ran twice among them."""

    written: int
    """How many came into the target, or replaced a row there."""


def publish(
    connection: psycopg.Connection, target: Target, place: TargetPlace, call: BatchCall, staging: Staging
) -> Published:
    """Bring the staged rows of a batch into the target, and move its progress; in the caller's transaction.

    Said again for a batch that is in the target, it changes nothing.

    Raises:
        SinkAhead: a later epoch or timeline has been here: this process is out of date.
        SinkError: the delivery forbids it, or rows are not what this batch has read.
    """
    connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(staging.identifier))
    staged, repeated = _checked(connection, target, call, staging)
    _require_fence(connection, target, place, call)
    begins = {partition: range_.from_ for partition, range_ in call.ranges.items()}
    begin_progress(connection, place, call.timeline, call.epoch, begins)
    before = lock_progress(connection, place, target.group, call.ranges)
    if all(row.batch == call.batch for row in before.values()):
        return Published(staged=staged, written=0)
    _require_progress(target, call, before)
    _require_staged(connection, target, place, call, staging)
    # Where nothing is there twice, or in the target already, every staged row goes in.
    is_new = not repeated and all(before[p].offset <= r.from_ for p, r in call.ranges.items())
    most = staged if is_new and target.mode is SinkMode.APPEND else None
    written = _insert(connection, target, place, call, staging, most, repeated=repeated) if staged else 0
    set_progress(
        connection,
        place,
        timeline=call.timeline,
        epoch=call.epoch,
        batch=call.batch,
        offsets={p: Offset(max(before[p].offset, call.progress.get(p, r.to), r.to)) for p, r in call.ranges.items()},
        stepped_over={p: max(r.from_ - before[p].offset, 0) for p, r in call.ranges.items()},
    )
    return Published(staged=staged, written=written)


def is_published(connection: psycopg.Connection, target: Target, place: TargetPlace, call: BatchCall) -> bool:
    """Whether a batch is in the target: for who lost the connection while it was committed."""
    found = lock_progress(connection, place, target.group, call.ranges)
    return len(found) == len(call.ranges) and all(row.batch == call.batch for row in found.values())


def _checked(connection: psycopg.Connection, target: Target, call: BatchCall, staging: Staging) -> tuple[int, bool]:
    """Return how many rows are staged, and whether any record is there more than once."""
    staged = 0
    by_partition = "SELECT kcr_topic, kcr_partition, min(kcr_offset), max(kcr_offset), count(*) FROM {} GROUP BY 1, 2"
    for topic, partition, first, last, rows in connection.execute(sql.SQL(by_partition).format(staging.identifier)):
        read = call.ranges.get(GroupPartition(target.group, TopicName(topic), partition))
        if read is None or first < read.from_ or last >= read.to:
            raise SinkError(
                f"{target}: rows name records that batch {call.batch} has not read, among offsets {first} to {last} of "
                f"{topic}:{partition}; keep the columns topic, partition and offset of the batch as they are"
            )
        staged += rows
    # Grouped on its own: beside the boundaries, Postgres would sort.
    composed = sql.SQL("SELECT count(*) FROM (SELECT DISTINCT {} FROM {}) AS one").format(
        names(_COORDINATES), staging.identifier
    )
    found = connection.execute(composed).fetchone()
    distinct = 0 if found is None else int(found[0])
    if distinct == staged:
        return staged, False
    if target.mode is SinkMode.APPEND and _has_several_rows_for_one_record(connection, staging):
        raise SinkError(
            f"{target}: batch {call.batch} has several rows for one record, and a task that runs twice could not "
            "be told from them; write one row for each record (an array, say), or use mode: upsert"
        )
    return staged, True


def _has_several_rows_for_one_record(connection: psycopg.Connection, staging: Staging) -> bool:
    """The same row twice is a task that ran twice; rows of different numbers are different rows."""
    statement = sql.SQL("SELECT FROM {1} GROUP BY {0} HAVING min({2}) <> max({2}) LIMIT 1").format(
        names(_COORDINATES), staging.identifier, Quoted(ROW)
    )
    return connection.execute(statement).fetchone() is not None


def _require_fence(connection: psycopg.Connection, target: Target, place: TargetPlace, call: BatchCall) -> None:
    fence = lock_fence(connection, place)
    if fence > call.epoch:
        raise SinkAhead(
            f"{target}: batch {call.batch} is of epoch {call.epoch} and the fence stands at {fence}: another process "
            "has taken over, nothing was written",
            fence=fence,
            timeline=max(call.timeline, highest_timeline(connection, place)),
        )
    if fence < call.epoch:
        raise SinkError(
            f"{target}: the fence stands at {fence} and batch {call.batch} is of epoch {call.epoch}: the database was "
            "restored, or its kcr_fence changed by hand; the reset that follows raises it"
        )


def _require_progress(target: Target, call: BatchCall, before: Mapping[GroupPartition, TargetProgress]) -> None:
    for partition, range_ in sorted(call.ranges.items()):
        row = before[partition]
        if row.timeline > call.timeline:
            raise SinkAhead(
                (
                    f"{target}: progress of {partition} is of timeline {row.timeline}, batch {call.batch} of "
                    f"{call.timeline}"
                ),
                fence=call.epoch,
                timeline=row.timeline,
            )
        if row.timeline < call.timeline:
            raise SinkError(
                f"{target}: progress of {partition} is still of timeline {row.timeline}; the reset to {call.timeline} "
                "has "
                "not reached it, the one that follows does"
            )
        exact = target.delivery is Delivery.EXACTLY_ONCE
        skips_forward = range_.from_ > row.offset and target.delivery is not Delivery.AT_MOST_ONCE
        if (exact and range_.from_ != row.offset) or skips_forward:
            raise SinkError(
                f"{target}: batch {call.batch} begins {partition} at {range_.from_}, the table is at {row.offset}; "
                f"{target.delivery} forbids the step, the reset that follows goes to where the table is"
                if exact
                else f"{target}: batch {call.batch} begins {partition} at {range_.from_}, the table ends at "
                f"{row.offset}: records would be missing; the table was restored, or kcr_progress changed by hand"
            )


def _require_staged(
    connection: psycopg.Connection, target: Target, place: TargetPlace, call: BatchCall, staging: Staging
) -> None:
    if crash_mark(connection, place) != staging.crash_mark:
        raise SinkError(
            f"{target}: the database has crashed, or another server has taken its place, and has lost what batch "
            f"{call.batch} had staged; nothing was written, the reset that follows has it processed again"
        )


def _insert(
    connection: psycopg.Connection,
    target: Target,
    place: TargetPlace,
    call: BatchCall,
    staging: Staging,
    expected: int | None,
    *,
    repeated: bool,
) -> int:
    """Insert the staged rows that are not in the target yet, and return how many went in or replaced one.

    Args:
        connection: in the transaction.
        target: the sink.
        place: of the target.
        call: the batch.
        staging: its rows.
        expected: how many there are; None: they are counted.
        repeated: whether a record is staged more than once.

    Raises:
        SinkError: the target took fewer: it would lack rows that its progress counts.
    """
    chosen = sql.SQL("SELECT {}{}, {} FROM {} AS s JOIN {} AS p ON {} {}").format(
        _distinct(target, staging, repeated=repeated),
        _staged(staging, staging.columns),
        sql.SQL("%(source)s, s.kcr_topic, s.kcr_partition, s.kcr_offset, %(timeline)s, %(sequence)s"),
        staging.identifier,
        place.progress,
        # What is below progress is in the target: a batch that comes again writes the rest.
        sql.SQL(
            "p.source = %(source)s AND p.topic = s.kcr_topic AND p.partition = s.kcr_partition "
            'AND s.kcr_offset >= p."offset"'
        ),
        _order(target, staging, repeated=repeated),
    )
    statement = sql.SQL("INSERT INTO {} ({}) {} {}").format(
        place.target, names((*staging.columns, *OWN_COLUMNS)), chosen, _conflict(target, staging)
    )
    given = {"source": place.source, "timeline": call.timeline, "sequence": call.sequence}
    written = connection.execute(statement, given).rowcount
    if expected is None:
        counted = connection.execute(sql.SQL("SELECT count(*) FROM ({}) AS chosen").format(chosen), given).fetchone()
        expected = 0 if counted is None else int(counted[0])
    if expected != written:
        raise SinkError(
            f"{target}: table {place.shown} took {written} of the {expected} rows of batch {call.batch}: a trigger "
            "BEFORE INSERT or UPDATE that returns NULL leaves rows out, most likely; drop it, or leave such rows out "
            "in the pipeline; nothing was changed"
        )
    return written


def _distinct(target: Target, staging: Staging, *, repeated: bool) -> sql.Composable:
    columns = target.key if target.mode is SinkMode.UPSERT else _COORDINATES if repeated else ()
    return sql.SQL("DISTINCT ON ({}) ").format(_staged(staging, columns)) if columns else sql.SQL("")


def _order(target: Target, staging: Staging, *, repeated: bool) -> sql.Composable:
    """Of rows with one key the last one stays; written in one order, so that two publishers don't wait in a circle."""
    if target.mode is SinkMode.UPSERT:
        last = sql.SQL("s.kcr_offset DESC, s.kcr_topic, s.kcr_partition, s.{} DESC").format(Quoted(ROW))
        return sql.SQL("ORDER BY {}, {}").format(_staged(staging, target.key), last)
    return sql.SQL("ORDER BY {}").format(_staged(staging, _COORDINATES)) if repeated else sql.SQL("")


def _staged(staging: Staging, columns: tuple[str, ...]) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("CAST(s.{} AS {})" if name in staging.cast else "s.{}").format(
            Quoted(name), sql.SQL(staging.cast.get(name, ""))
        )
        for name in columns
    )


def _conflict(target: Target, staging: Staging) -> sql.Composable:
    if target.mode is not SinkMode.UPSERT:
        return sql.SQL("")
    replaced = [name for name in (*staging.columns, *OWN_COLUMNS) if name not in target.key]
    changes = sql.SQL(", ").join(sql.SQL("{} = EXCLUDED.{}").format(Quoted(name), Quoted(name)) for name in replaced)
    return sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(names(target.key), changes)
