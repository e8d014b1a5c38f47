"""What has to be in order before anything is consumed: the schema, the rights, the columns. Each refusal names one."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from psycopg import sql

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.rules import SinkMode
from airflow_kcr.sinks.postgres.bookkeeping import ensure_source, ensure_tables
from airflow_kcr.sinks.postgres.target import OWN_COLUMNS, Target, TargetColumn, TargetPlace

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
