"""The target of a sink, the tables beside it, and what has to be in order before anything is consumed."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import psycopg
from psycopg import sql

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.protocol.values import Epoch, GroupId, GroupPartition, Offset, RegionName, Timeline, TopicName

# The target

PREFIX: Final = "kcr_"
"""Begins every name that is the sink's own."""

SOURCE: Final = "kcr_source"
COORDINATES: Final[Mapping[str, str]] = MappingProxyType(
    {"kcr_topic": "text", "kcr_partition": "integer", "kcr_offset": "bigint"}
)
"""The columns that name a record, with their types."""

OWN_COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {SOURCE: "integer", **COORDINATES, "kcr_timeline": "bigint", "kcr_sequence": "bigint"}
)
"""The columns that every target has beside the pipeline's.

Where a row comes from, and to which checkpoint it belongs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One sink of a group: which table, how it is written, and in whose name."""

    region: RegionName
    group: GroupId
    sink: str
    """Its name in the spec."""

    table: str
    """`table` or `schema.table`, to the letter."""

    delivery: Delivery
    mode: SinkMode = SinkMode.APPEND
    key: tuple[str, ...] = ()
    """The columns that name a row, for `upsert`."""

    def __str__(self) -> str:
        return f"sink {self.sink} of group {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """A column that the target has."""

    type: str
    """As SQL has it."""

    needed: bool
    """Whether a row without it is refused: it is NOT NULL and has no default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlace:
    """Where a target is, as the database knows it."""

    schema: str
    table: str
    source: int
    """The number of this sink in `kcr_fence`."""

    columns: Mapping[str, TargetColumn] = field(default_factory=lambda: MappingProxyType({}))
    """Of the target, in its order; empty where it does not exist yet."""

    @property
    def exists(self) -> bool:
        """Whether there is such a table."""
        return bool(self.columns)

    @property
    def target(self) -> sql.Identifier:
        """The target table."""
        return self.own(self.table)

    @property
    def fence(self) -> sql.Identifier:
        """The table of fences."""
        return self.own("kcr_fence")

    @property
    def progress(self) -> sql.Identifier:
        """The table of progress."""
        return self.own("kcr_progress")

    @property
    def crash_mark(self) -> sql.Identifier:
        """The table that a crash of the server empties, as it empties what is staged."""
        return self.own("kcr_crash_mark")

    def own(self, name: str) -> sql.Identifier:
        """Return a table of the target's schema."""
        return sql.Identifier(self.schema, name)


def names(columns: list[str] | tuple[str, ...]) -> sql.Composed:
    """Return quoted names with commas between them."""
    return sql.SQL(", ").join(map(sql.Identifier, columns))


# The tables beside it

DDL_LOCK: Final = 7_305_012
"""Of a transaction advisory lock: only one session creates tables at a time; IF NOT EXISTS is not enough for two."""

# name: tables — made by the first session.
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS {fence} (
    source integer GENERATED ALWAYS AS IDENTITY UNIQUE,
    region text NOT NULL,
    group_id text NOT NULL,
    sink text NOT NULL,
    epoch bigint NOT NULL,
    PRIMARY KEY (region, group_id, sink)
);
CREATE TABLE IF NOT EXISTS {progress} (
    source integer NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    timeline bigint NOT NULL,
    "offset" bigint NOT NULL,
    epoch bigint NOT NULL,
    batch text NOT NULL,
    stepped_over bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (source, topic, partition)
) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE IF NOT EXISTS {crash_mark} (
    single boolean PRIMARY KEY CHECK (single),
    mark text NOT NULL
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetProgress:
    """How far the target is on one partition."""

    timeline: Timeline
    offset: Offset
    """The next one that is not in it."""

    batch: str
    """The batch that brought it there; empty where a reset did."""


def ensure_tables(connection: psycopg.Connection, place: TargetPlace) -> None:
    """Make the three tables where they are missing."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
    connection.execute(sql.SQL(_TABLES).format(fence=place.fence, progress=place.progress, crash_mark=place.crash_mark))


def crash_mark(connection: psycopg.Connection, place: TargetPlace) -> str:
    """Return the present mark; empty where a crash of the server has taken it, or a standby took the server's place."""
    found = connection.execute(sql.SQL("SELECT mark FROM {}").format(place.crash_mark)).fetchone()
    return "" if found is None else str(found[0])


def ensure_crash_mark(connection: psycopg.Connection, place: TargetPlace) -> str:
    """Return the present mark; if there is none, a new one, the first writer's."""
    if not crash_mark(connection, place):
        connection.execute(
            sql.SQL("INSERT INTO {} (single, mark) VALUES (true, %s) ON CONFLICT DO NOTHING").format(place.crash_mark),
            [uuid.uuid4().hex],
        )
    return crash_mark(connection, place)


def ensure_source(connection: psycopg.Connection, fence: sql.Identifier, target: Target) -> int:
    """Return the number of a sink; a new one gets a number, and a fence that refuses no epoch."""
    who = [target.region, target.group, target.sink]
    connection.execute(
        sql.SQL(
            "INSERT INTO {} (region, group_id, sink, epoch) SELECT %s, %s, %s, 0 "
            "WHERE NOT EXISTS (SELECT FROM {} WHERE (region, group_id, sink) = (%s, %s, %s)) ON CONFLICT DO NOTHING"
        ).format(fence, fence),
        [*who, *who],
    )
    found = connection.execute(
        sql.SQL("SELECT source FROM {} WHERE (region, group_id, sink) = (%s, %s, %s)").format(fence), who
    ).fetchone()
    if found is None:
        raise LookupError(f"the fence of {target} is gone")  # deleted in between, by hand
    return int(found[0])


def raise_fence(connection: psycopg.Connection, place: TargetPlace, epoch: Epoch) -> Epoch:
    """Raise the fence to `epoch` where it is lower, and return where it stands.

    Waits for every transaction that has seen the lower one, until it is over or Postgres ends it.
    """
    statement = sql.SQL("UPDATE {} SET epoch = %s WHERE source = %s AND epoch < %s").format(place.fence)
    connection.execute(statement, [epoch, place.source, epoch])
    return _epoch(connection, sql.SQL("SELECT epoch FROM {} WHERE source = %s").format(place.fence), place)


def lock_fence(connection: psycopg.Connection, place: TargetPlace) -> Epoch:
    """Return where the fence stands; it can't be raised until this transaction is over."""
    return _epoch(connection, sql.SQL("SELECT epoch FROM {} WHERE source = %s FOR SHARE").format(place.fence), place)


def _epoch(connection: psycopg.Connection, statement: sql.Composed, place: TargetPlace) -> Epoch:
    found = connection.execute(statement, [place.source]).fetchone()
    return Epoch(0 if found is None else int(found[0]))


def highest_timeline(connection: psycopg.Connection, place: TargetPlace) -> Timeline:
    """Return the highest timeline of any partition; 0 if there is no progress."""
    statement = sql.SQL("SELECT coalesce(max(timeline), 0) FROM {} WHERE source = %s").format(place.progress)
    found = connection.execute(statement, [place.source]).fetchone()
    return Timeline(0 if found is None else int(found[0]))


def lock_progress(
    connection: psycopg.Connection, place: TargetPlace, group: GroupId, partitions: Iterable[GroupPartition]
) -> dict[GroupPartition, TargetProgress]:
    """Return the progress of these partitions, locked until this transaction is over; always in the same order."""
    wanted = sorted(partitions)
    rows = connection.execute(
        sql.SQL(
            'SELECT topic, partition, timeline, "offset", batch FROM {} '
            "WHERE source = %s AND (topic, partition) IN (SELECT * FROM unnest(%s::text[], %s::integer[])) "
            "ORDER BY topic, partition FOR UPDATE"
        ).format(place.progress),
        [place.source, [p.topic for p in wanted], [p.partition for p in wanted]],
    ).fetchall()
    return {
        GroupPartition(group, TopicName(topic), partition): TargetProgress(
            timeline=Timeline(timeline), offset=Offset(offset), batch=batch
        )
        for topic, partition, timeline, offset, batch in rows
    }


def begin_progress(
    connection: psycopg.Connection,
    place: TargetPlace,
    timeline: Timeline,
    epoch: Epoch,
    begins: Mapping[GroupPartition, Offset],
) -> None:
    """Note where partitions begin that have no progress; of two at once the second waits and does nothing."""
    wanted = sorted(begins)
    connection.execute(
        sql.SQL(
            'INSERT INTO {} (source, topic, partition, timeline, "offset", epoch, batch) '
            "SELECT %s, topic, partition, %s, begins, %s, '' "
            "FROM unnest(%s::text[], %s::integer[], %s::bigint[]) AS new (topic, partition, begins) "
            "ORDER BY topic, partition ON CONFLICT DO NOTHING"
        ).format(place.progress),
        [
            place.source,
            timeline,
            epoch,
            [p.topic for p in wanted],
            [p.partition for p in wanted],
            [begins[p] for p in wanted],
        ],
    )


def set_progress(
    connection: psycopg.Connection,
    place: TargetPlace,
    *,
    timeline: Timeline,
    epoch: Epoch,
    batch: str,
    offsets: Mapping[GroupPartition, Offset],
    stepped_over: Mapping[GroupPartition, int],
) -> None:
    """Write the progress of partitions that have a row, which this transaction has locked.

    Args:
        connection: in the transaction.
        place: of the target.
        timeline: of what was written.
        epoch: the writer's.
        batch: which one; empty for a reset.
        offsets: where each partition is now.
        stepped_over: how many offsets were left out on the way; added up within a timeline.
    """
    wanted = sorted(offsets)
    connection.execute(
        sql.SQL(
            "UPDATE {} AS old SET timeline = %(timeline)s, epoch = %(epoch)s, batch = %(batch)s, "
            '"offset" = new.reached, stepped_over = new.stepped_over + '
            "CASE WHEN old.timeline = %(timeline)s THEN old.stepped_over ELSE 0 END "
            "FROM unnest(%(topics)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[], %(over)s::bigint[]) "
            "AS new (topic, partition, reached, stepped_over) "
            "WHERE old.source = %(source)s AND (old.topic, old.partition) = (new.topic, new.partition)"
        ).format(place.progress),
        {
            "source": place.source,
            "timeline": timeline,
            "epoch": epoch,
            "batch": batch,
            "topics": [p.topic for p in wanted],
            "partitions": [p.partition for p in wanted],
            "offsets": [offsets[p] for p in wanted],
            "over": [stepped_over.get(p, 0) for p in wanted],
        },
    )


# Checks

_TABLE_KINDS = frozenset({"r", "p"})
"""Ordinary and partitioned tables."""


def checked(connection: psycopg.Connection, target: Target) -> TargetPlace:
    """Return where a target is, having found that it can be written as its spec wants; makes the sink's own tables.

    Raises:
        ConfigurationError: a schema, right, column or index is missing; the message has the SQL that helps.
    """
    schema, table = _schema(connection, target), target.table.rpartition(".")[2]
    _require_schema(connection, target, schema)
    columns = _columns(connection, target, schema, table)
    place = TargetPlace(schema=schema, table=table, source=0, columns=columns)
    wrong = list(_wrong(connection, target, place)) if columns else []
    if wrong:
        raise ConfigurationError(f"{target} can't write to {schema}.{table}: {'; '.join(wrong)}")
    _require_own(connection, target, place)
    ensure_tables(connection, place)
    source = ensure_source(connection, place.fence, target)
    return TargetPlace(schema=schema, table=table, source=source, columns=columns)


def columns_of(connection: psycopg.Connection, schema: str, table: str) -> dict[str, TargetColumn]:
    """Return the columns of a table that can be written, in its order; none if there is no such table."""
    rows = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), "
        "a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' "
        "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' "
        "AND a.attidentity <> 'a' ORDER BY a.attnum",
        [schema, table],
    ).fetchall()
    return {name: TargetColumn(type=kind, needed=needed) for name, kind, needed in rows}


def _schema(connection: psycopg.Connection, target: Target) -> str:
    """Return the schema that is meant: as written, else where a table of that name is found, else the first one."""
    schema, dot, table = target.table.rpartition(".")
    if dot:
        return schema
    found = connection.execute(
        "SELECT coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = to_regclass(quote_ident(%s))), current_schema())",
        [table],
    ).fetchone()
    if found is None or found[0] is None:
        raise ConfigurationError(f"{target}: there is no schema in the search path; write table: schema.{table}")
    return str(found[0])


def _require_schema(connection: psycopg.Connection, target: Target, schema: str) -> None:
    found = connection.execute(
        "SELECT has_schema_privilege(oid, 'USAGE'), has_schema_privilege(oid, 'CREATE'), current_user "
        "FROM pg_namespace WHERE nspname = %s",
        [schema],
    ).fetchone()
    name = sql.Identifier(schema).as_string(connection)
    if found is None:
        raise ConfigurationError(f"{target}: there is no schema {schema}; run: CREATE SCHEMA {name};")
    usage, create, user = found
    if not (usage and create):
        user = sql.Identifier(user).as_string(connection)
        raise ConfigurationError(
            f"{target}: this user may not make tables in schema {schema}, where the sink keeps its fence, its progress "
            f"and what is not published yet; run: GRANT USAGE, CREATE ON SCHEMA {name} TO {user};"
        )


def _columns(connection: psycopg.Connection, target: Target, schema: str, table: str) -> dict[str, TargetColumn]:
    found = connection.execute(
        "SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s",
        [schema, table],
    ).fetchone()
    if found is None:
        return {}
    if found[0] not in _TABLE_KINDS:
        raise ConfigurationError(f"{target}: {schema}.{table} is no table but a view or the like; name a table")
    return columns_of(connection, schema, table)


def _wrong(connection: psycopg.Connection, target: Target, place: TargetPlace) -> Iterator[str]:
    table = place.target.as_string(connection)
    missing = [name for name in OWN_COLUMNS if name not in place.columns]
    if missing:
        added = ", ".join(f"ADD COLUMN {name} {OWN_COLUMNS[name]}" for name in missing)
        yield f"column {', '.join(missing)} is missing; run: ALTER TABLE {table} {added};"
    for name, kind in OWN_COLUMNS.items():
        if name in place.columns and place.columns[name].type != kind:
            yield f"column {name} is {place.columns[name].type} and must be {kind}"
    lacking = [name for name in target.key if name not in place.columns]
    for name in lacking:
        yield f"column {name} of the key is missing"
    yield from _rights(connection, target, place)
    known = not missing and not lacking
    if target.mode is SinkMode.UPSERT and known and not _has_unique_index(connection, target, place):
        key = sql.SQL(", ").join(map(sql.Identifier, target.key)).as_string(connection)
        yield f"no unique index is on exactly its key; run: CREATE UNIQUE INDEX ON {table} ({key});"


def _rights(connection: psycopg.Connection, target: Target, place: TargetPlace) -> Iterator[str]:
    needed = ["SELECT", "INSERT", "DELETE" if target.mode is SinkMode.APPEND else "UPDATE"]
    table = place.target.as_string(connection)
    row = connection.execute(
        "SELECT current_user, ARRAY(SELECT r FROM unnest(%s::text[]) AS r WHERE NOT has_table_privilege(%s, r))",
        [needed, table],
    ).fetchone()
    user, lacking = row if row is not None else ("", [])
    if lacking:
        rights = ", ".join(lacking)
        user = sql.Identifier(user).as_string(connection)
        yield f"this user has no right to {rights}; run: GRANT {rights} ON {table} TO {user};"


def _require_own(connection: psycopg.Connection, target: Target, place: TargetPlace) -> None:
    """Refuse the sink's own tables if this user may not use them."""
    read_and_write = ["SELECT", "INSERT", "UPDATE"]
    tables = ((place.fence, read_and_write), (place.progress, read_and_write), (place.crash_mark, ["SELECT", "INSERT"]))
    for table, needed in tables:
        name = table.as_string(connection)
        row = connection.execute(
            "SELECT current_user, ARRAY(SELECT r FROM unnest(%s::text[]) AS r "
            "WHERE NOT has_table_privilege(to_regclass(%s), r))",
            [needed, name],
        ).fetchone()
        user, lacking = row if row is not None else ("", [])
        if lacking:
            rights, user = ", ".join(lacking), sql.Identifier(user).as_string(connection)
            raise ConfigurationError(
                f"{target}: this user has no right to {rights} on {name}; run: GRANT {rights} ON {name} TO {user};"
            )


def _has_unique_index(connection: psycopg.Connection, target: Target, place: TargetPlace) -> bool:
    found = connection.execute(
        "SELECT ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid "
        "AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])) FROM pg_index i "
        "WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indisvalid "
        "AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL",
        [place.target.as_string(connection)],
    ).fetchall()
    return any(sorted(columns) == sorted(target.key) for (columns,) in found)
