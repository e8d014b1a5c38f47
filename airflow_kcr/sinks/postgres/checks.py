"""What has to be in order in a target's database before anything is consumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import psycopg.abc
from psycopg import sql

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.rules import SinkMode
from airflow_kcr.protocol.values import UNDECLARED
from airflow_kcr.sinks.postgres.bookkeeping import (
    ensure_source,
    ensure_tables,
    lost_fence,
    require_same,
    source_of,
)
from airflow_kcr.sinks.postgres.earlier import require_no_earlier
from airflow_kcr.sinks.postgres.target import (
    LONGEST,
    OWN_COLUMNS,
    Target,
    TargetColumn,
    TargetPlace,
    columns_of,
    is_too_long,
)

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
    require_no_earlier(connection, target, place)
    if is_known and source_of(connection, place, target) is None:
        raise ConfigurationError(f"{target}: {lost_fence(place.shown)}")
    place = replace(place, source=ensure_source(connection, place, target))
    require_same(connection, target, place)
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
