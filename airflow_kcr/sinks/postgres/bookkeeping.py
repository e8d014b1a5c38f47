"""The target of a sink, the tables beside it, and what has to be in order before anything is consumed."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

import psycopg
import psycopg.abc
from psycopg import sql

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.protocol.values import (
    UNDECLARED,
    Epoch,
    GroupId,
    GroupPartition,
    Offset,
    RegionId,
    RegionName,
    Timeline,
    TopicName,
)

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
    region_id: RegionId
    """Which region of that name."""

    group: GroupId
    sink: str
    """Its name in the spec."""

    beside: frozenset[tuple[GroupId, str]] = frozenset()
    """All sinks of the region's spec, by group and name: those that may write into the same table."""

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
    def shown(self) -> str:
        """The table as SQL for people has it."""
        return sql.Identifier(self.schema, self.table).as_string()

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

    def own(self, name: str) -> Quoted:
        """Return a table of the target's schema."""
        return Quoted(self.schema, name)


class Quoted(sql.Identifier):
    """A name as statements with parameters take it: psycopg looks for placeholders within names too."""

    def as_bytes(self, context: psycopg.abc.AdaptContext | None = None) -> bytes:
        """Return it, quoted."""
        return super().as_bytes(context).replace(b"%", b"%%")


class WithParameters(psycopg.Cursor[Any]):
    """Takes every statement as one with parameters, so that `Quoted` is right in all of them."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:  # noqa: ANN401 (as psycopg has it)
        """Run a statement."""
        return super().execute(query, () if params is None else params, **options)


def names(columns: list[str] | tuple[str, ...]) -> sql.Composed:
    """Return quoted names with commas between them."""
    return sql.SQL(", ").join(map(Quoted, columns))


# The tables beside it

DDL_LOCK: Final = 7_305_012
"""Of a transaction advisory lock: only one session creates tables at a time; IF NOT EXISTS is not enough for two."""

# name: tables — made by the first session.
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS {fence} (
    source integer GENERATED ALWAYS AS IDENTITY UNIQUE,
    region text NOT NULL,
    region_id text NOT NULL,
    group_id text NOT NULL,
    sink text NOT NULL,
    target text NOT NULL,
    target_id oid,
    epoch bigint NOT NULL,
    PRIMARY KEY (region_id, group_id, sink)
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


def ensure_source(connection: psycopg.Connection, place: TargetPlace, target: Target) -> int:
    """Return the number of a sink; a new one gets a number, and a fence that refuses no epoch."""
    who = [target.region_id, target.group, target.sink]
    connection.execute(
        sql.SQL(
            "INSERT INTO {} (region, region_id, group_id, sink, target, target_id, epoch) "
            "SELECT %s, %s, %s, %s, %s, to_regclass(%s)::oid, 0 "
            "WHERE NOT EXISTS (SELECT FROM {} WHERE (region_id, group_id, sink) = (%s, %s, %s)) ON CONFLICT DO NOTHING"
        ).format(place.fence, place.fence),
        [target.region, *who, place.table, place.shown, *who],
    )
    found = source_of(connection, place, target)
    if found is None:
        raise LookupError(f"the fence of {target} is gone")  # deleted in between, by hand
    return found


def source_of(connection: psycopg.Connection, place: TargetPlace, target: Target) -> int | None:
    """Return the number of a sink; None: it has none yet."""
    statement = sql.SQL("SELECT source FROM {} WHERE (region_id, group_id, sink) = (%s, %s, %s)").format(place.fence)
    found = connection.execute(statement, [target.region_id, target.group, target.sink]).fetchone()
    return None if found is None else int(found[0])


def remember_target(connection: psycopg.Connection, place: TargetPlace, source: int) -> None:
    """Note which table the target is, and that it is the right one."""
    statement = sql.SQL("UPDATE {} SET target = %s, target_id = to_regclass(%s)::oid WHERE source = %s")
    connection.execute(statement.format(place.fence), [place.table, place.shown, source])


def raise_fence(connection: psycopg.Connection, place: TargetPlace, epoch: Epoch) -> Epoch:
    """Raise the fence to `epoch` where it is lower, and return where it stands.

    Waits for every transaction that has seen the lower one, until it is over or Postgres ends it.
    """
    statement = sql.SQL("UPDATE {} SET epoch = %s WHERE source = %s AND epoch < %s").format(place.fence)
    connection.execute(statement, [epoch, place.source, epoch])
    return _standing(connection, sql.SQL("SELECT {} FROM {} WHERE source = %s").format(_STANDING, place.fence), place)


def lock_fence(connection: psycopg.Connection, place: TargetPlace) -> Epoch:
    """Return where the fence stands; it can't be raised until this transaction is over."""
    statement = sql.SQL("SELECT {} FROM {} WHERE source = %s FOR SHARE").format(_STANDING, place.fence)
    return _standing(connection, statement, place)


_STANDING: Final = sql.SQL("epoch, target_id IS NULL OR target_id IS NOT DISTINCT FROM to_regclass(%s)::oid")


def _standing(connection: psycopg.Connection, statement: sql.Composed, place: TargetPlace) -> Epoch:
    """Return the epoch of a fence.

    Raises:
        SinkError: the table of the target's name is not the one that its progress is of, or the fence is gone.
    """
    found = connection.execute(statement, [place.shown, place.source]).fetchone()
    if found is None:
        raise SinkError(lost_fence(place.shown))
    epoch, is_same = found
    if not is_same:
        raise SinkError(another_table(place.shown))
    return Epoch(int(epoch))


def another_table(shown: str) -> str:
    """Return what is said of a target that was dropped, made anew, renamed or restored."""
    return (
        f"table {shown} is not the one that this sink has written to: it was dropped, made anew, swapped or restored, "
        "and may lack rows that the sink's progress counts; stop the region, then put the table back, or accept this "
        "one with `kcr region output REGION --take-over`, and reset the region to before the rows that are missing"
    )


def lost_fence(shown: str) -> str:
    """Return what is said of a database that was made anew, or restored from before the sink wrote to it."""
    return (
        f"this sink has written to {shown} before, and its fence and progress are gone: the database, the schema or "
        "the sink's tables were dropped, made anew or restored from before; stop the region, then put them back, or "
        "accept what is there with `kcr region output REGION --take-over`, and reset the region to before the rows "
        "that are missing"
    )


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


def checked(connection: psycopg.Connection, target: Target, *, is_known: bool = False) -> TargetPlace:
    """Return where a target is, having found that it can be written as its spec wants; makes the sink's own tables.

    Of a region that is not declared yet, no sink is noted.

    Args:
        connection: in a transaction.
        target: the sink.
        is_known: whether the sink has written there before, as the region's store has it.

    Raises:
        ConfigurationError: a schema, right, column or index is missing, or the table has rows of an earlier region, or
            what the sink has written is gone; the message has the SQL or the command that helps.
    """
    place = located(connection, target)
    wrong = list(_wrong(connection, target, place)) if place.exists else []
    if wrong:
        raise ConfigurationError(f"{target} can't write to {place.schema}.{place.table}: {'; '.join(wrong)}")
    if target.region_id == UNDECLARED:
        return place  # whose rows are there can't be said
    _require_no_earlier(connection, target, place)
    if is_known and source_of(connection, place, target) is None:
        raise ConfigurationError(f"{target}: {lost_fence(place.shown)}")
    place = replace(place, source=ensure_source(connection, place, target))
    _require_same(connection, target, place)
    return place


def located(connection: psycopg.Connection, target: Target) -> TargetPlace:
    """Return where a target is; makes the sink's own tables beside it.

    Raises:
        ConfigurationError: there is no such schema, or this user may not use it; the message has the SQL that helps.
    """
    schema, table = _schema(connection, target), target.table.rpartition(".")[2]
    too_long = [name for name in (schema, table) if is_too_long(name)]
    if too_long:
        raise ConfigurationError(
            f"{target}: {too_long[0]} is longer than the {LONGEST} bytes that Postgres keeps of a name"
        )
    _require_schema(connection, target, schema)
    place = TargetPlace(schema=schema, table=table, source=0, columns=_columns(connection, target, schema, table))
    _require_own(connection, target, place)
    ensure_tables(connection, place)
    return place


LONGEST: Final = 63
"""Bytes that Postgres keeps of a name (NAMEDATALEN)."""


def is_too_long(name: str) -> bool:
    """Whether Postgres would cut a name."""
    return len(name.encode()) > LONGEST


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


def computed_columns(connection: psycopg.Connection, place: TargetPlace) -> frozenset[str]:
    """Return the columns of the target that only Postgres may write."""
    rows = connection.execute(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
        "AND (attgenerated <> '' OR attidentity = 'a')",
        [place.shown],
    ).fetchall()
    return frozenset(name for (name,) in rows)


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
    table = place.shown
    missing = [name for name in OWN_COLUMNS if name not in place.columns]
    yield from _not_durable(connection, place)
    yield from _not_plain(connection, place)
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
    if target.mode is SinkMode.UPSERT and known:
        yield from _nullable_key(connection, target, place)


def _not_durable(connection: psycopg.Connection, place: TargetPlace) -> Iterator[str]:
    """Yield what a crash of the server, or the end of a session, would empty while progress stays."""
    found = connection.execute(
        "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relpersistence <> 'p' AND c.oid = ANY (ARRAY("
        "SELECT relid FROM pg_partition_tree(%s::regclass) UNION SELECT %s::regclass))",
        [place.shown, place.shown],
    ).fetchall()
    for (table,) in found:
        yield f"{table} is unlogged, so that a crash of the server empties it; run: ALTER TABLE {table} SET LOGGED;"


def _not_plain(connection: psycopg.Connection, place: TargetPlace) -> Iterator[str]:
    """Yield what lets statements do less than they say: policies hide rows, rules replace statements."""
    row = connection.execute(
        "SELECT row_security_active(%s::regclass), current_user, "
        "ARRAY(SELECT rulename::text FROM pg_rewrite WHERE ev_class = %s::regclass AND is_instead AND ev_type <> '1')",
        [place.shown, place.shown],
    ).fetchone()
    active, user, rules = row if row is not None else (False, "", [])
    if active:
        user = sql.Identifier(user).as_string(connection)
        yield (
            "row-level security applies to this user, which hides rows from what takes them back in a reset; run: "
            f"ALTER ROLE {user} BYPASSRLS;"
        )
    for rule in rules:
        name = sql.Identifier(rule).as_string(connection)
        yield f"rule {rule} replaces statements; run: DROP RULE {name} ON {place.shown};"


def _nullable_key(connection: psycopg.Connection, target: Target, place: TargetPlace) -> Iterator[str]:
    """Yield the key's columns that may be NULL, where each NULL is a new row."""
    if _has_unique_index(connection, target, place, with_nulls=True):
        return
    found = connection.execute(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attname = ANY (%s::text[]) "
        "AND NOT attnotnull ORDER BY attnum",
        [place.shown, list(target.key)],
    ).fetchall()
    for (name,) in found:
        column = sql.Identifier(name).as_string(connection)
        yield (
            f"column {name} of the key may be NULL, and each row with NULL would be a new one; run: ALTER TABLE "
            f"{place.shown} ALTER COLUMN {column} SET NOT NULL; or make the index with NULLS NOT DISTINCT"
        )


def _rights(connection: psycopg.Connection, target: Target, place: TargetPlace) -> Iterator[str]:
    needed = ["SELECT", "INSERT", "DELETE" if target.mode is SinkMode.APPEND else "UPDATE"]
    table = place.shown
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
    tables = (
        ("kcr_fence", read_and_write),
        ("kcr_progress", read_and_write),
        ("kcr_crash_mark", ["SELECT", "INSERT"]),
    )
    for own, needed in tables:
        name = sql.Identifier(place.schema, own).as_string(connection)
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


def _has_unique_index(
    connection: psycopg.Connection, target: Target, place: TargetPlace, *, with_nulls: bool = False
) -> bool:
    """Whether a unique index is on exactly the key; one for which NULL equals NULL (Postgres 15), if that is asked."""
    found = connection.execute(
        "SELECT ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid "
        "AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])) FROM pg_index i "
        "WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indisvalid "
        "AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL "
        "AND (NOT %s OR (to_jsonb(i) ->> 'indnullsnotdistinct')::boolean)",
        [place.shown, with_nulls],
    ).fetchall()
    return any(sorted(columns) == sorted(target.key) for (columns,) in found)


def is_same(connection: psycopg.Connection, place: TargetPlace, source: int | None) -> bool:
    """Whether the table is the one that a sink has written to, as far as anything of it counts.

    A table's oid is what tells. TRUNCATE keeps it, and so does a restore of rows alone: they can't be told from here.

    Args:
        connection: in a transaction.
        place: of the target.
        source: the sink's number; None: it has written nothing.
    """
    found = connection.execute(
        sql.SQL(
            "SELECT f.target = %s AND f.target_id IS NOT NULL AND f.target_id IS DISTINCT FROM to_regclass(%s)::oid "
            "AND EXISTS (SELECT FROM {} p WHERE p.source = f.source) FROM {} f WHERE f.source = %s"
        ).format(place.progress, place.fence),
        [place.table, place.shown, source],
    ).fetchone()
    return found is None or not found[0]


def _require_same(connection: psycopg.Connection, target: Target, place: TargetPlace) -> None:
    """Refuse a table that took the place of the one that the sink has written to; another name is another table."""
    if not is_same(connection, place, place.source):
        raise ConfigurationError(f"{target}: {another_table(place.shown)}")
    remember_target(connection, place, place.source)


# What earlier regions, or sinks of other names, have left in a target


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierOutput:
    """A sink that has written into a target, and that no one here is."""

    source: int
    region_id: RegionId
    group: GroupId
    sink: str


def earlier_outputs(connection: psycopg.Connection, target: Target, place: TargetPlace) -> tuple[EarlierOutput, ...]:
    """Return whose rows are in a target: an earlier region's of the name, or a sink's that the region has no more.

    Another region of the name may also be one of another store. Regions of other names write beside each other.
    """
    if SOURCE not in place.columns:
        return ()
    found = connection.execute(
        sql.SQL(
            "SELECT source, region_id, group_id, sink FROM {} WHERE target = %s AND region = %s ORDER BY source"
        ).format(place.fence),
        [place.table, target.region],
    ).fetchall()
    others = [
        EarlierOutput(source=source, region_id=RegionId(uid), group=GroupId(group), sink=sink)
        for source, uid, group, sink in found
        if uid != target.region_id
        or ((group, sink) not in target.beside and (group, sink) != (target.group, target.sink))
    ]
    return tuple(one for one in others if rows_of(connection, place, one.source, most=1))


def rows_of(connection: psycopg.Connection, place: TargetPlace, source: int, most: int = 2**62) -> int:
    """Return how many rows a sink has in the target; counted up to `most`."""
    if SOURCE not in place.columns:
        return 0
    statement = sql.SQL("SELECT count(*) FROM (SELECT FROM {} WHERE kcr_source = %s LIMIT %s) AS its")
    found = connection.execute(statement.format(place.target), [source, most]).fetchone()
    return 0 if found is None else int(found[0])


def _require_no_earlier(connection: psycopg.Connection, target: Target, place: TargetPlace) -> None:
    found = earlier_outputs(connection, target, place)
    if not found:
        return
    told = "; ".join(
        f"sink {one.sink} of group {one.group}"
        + (f", region id {one.region_id}" if one.region_id != target.region_id else ", which the spec has no more")
        for one in found
    )
    raise ConfigurationError(
        f"{target}: table {place.shown} has rows of an earlier region {target.region}, of another store's, or of a "
        f"sink that was renamed ({told}); say what becomes of them: `kcr region output {target.region} --keep` leaves "
        "them where they are, --delete deletes them, --take-over makes them this sink's; or name another table"
    )


def keep_output(connection: psycopg.Connection, place: TargetPlace, earlier: EarlierOutput) -> None:
    """Leave the rows of another sink beside those of the target's own, for good."""
    statement = sql.SQL("UPDATE {} SET region = '', region_id = 'kept ' || source WHERE source = %s")
    connection.execute(statement.format(place.fence), [earlier.source])


def delete_output(connection: psycopg.Connection, place: TargetPlace, source: int) -> int:
    """Delete the rows of a sink, its progress and its fence; return how many rows went.

    Raises:
        SinkError: rows are still there: a trigger of the table keeps them.
    """
    rows = 0
    if SOURCE in place.columns:
        where = sql.SQL("FROM {} WHERE kcr_source = %s").format(place.target)
        rows = connection.execute(sql.SQL("DELETE {}").format(where), [source]).rowcount
        require_gone(connection, place, where, [source])
    for own in (place.progress, place.fence):
        connection.execute(sql.SQL("DELETE FROM {} WHERE source = %s").format(own), [source])
    return rows


def require_gone(
    connection: psycopg.Connection, place: TargetPlace, where: sql.Composable, parameters: Sequence[object]
) -> None:
    """Refuse a target that keeps rows that were deleted.

    Args:
        connection: in the transaction.
        place: of the target.
        where: what follows SELECT to find one of them.
        parameters: of it.

    Raises:
        SinkError: there is one.
    """
    found = connection.execute(sql.SQL("SELECT EXISTS (SELECT {})").format(where), parameters).fetchone()
    if found is not None and found[0]:
        raise SinkError(
            f"table {place.shown} keeps rows that were deleted, so that a reset would double them: a trigger BEFORE "
            "DELETE returns NULL, most likely; drop it, or write to another table; nothing was changed"
        )


def take_over(
    connection: psycopg.Connection, target: Target, place: TargetPlace, earlier: EarlierOutput, own: int | None
) -> None:
    """Make what another sink has written this sink's: its rows, and up to where they go.

    The first reset of a new region deletes those of them that it processes again.

    Raises:
        SinkError: this sink has written already.
    """
    written = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE source = %s)").format(place.progress)
    found = connection.execute(written, [own]).fetchone()
    if found is not None and found[0]:
        raise SinkError(
            f"{target} has written to {place.shown} already, and can't take over what {earlier.sink} of group "
            f"{earlier.group} has written; keep or delete that"
        )
    connection.execute(sql.SQL("DELETE FROM {} WHERE source = %s").format(place.fence), [own])
    connection.execute(
        sql.SQL(
            "UPDATE {} SET region_id = %s, group_id = %s, sink = %s, target_id = to_regclass(%s)::oid WHERE source = %s"
        ).format(place.fence),
        [target.region_id, target.group, target.sink, place.shown, earlier.source],
    )
    if earlier.region_id == target.region_id:
        return
    # A new region counts its epochs and timelines anew.
    connection.execute(sql.SQL("UPDATE {} SET epoch = 0 WHERE source = %s").format(place.fence), [earlier.source])
    connection.execute(
        sql.SQL("UPDATE {} SET timeline = 0, epoch = 0, batch = '' WHERE source = %s").format(place.progress),
        [earlier.source],
    )
    if SOURCE in place.columns:
        statement = sql.SQL("UPDATE {} SET kcr_timeline = 0 WHERE kcr_source = %s AND kcr_timeline <> 0")
        connection.execute(statement.format(place.target), [earlier.source])
