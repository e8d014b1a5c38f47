"""What has to be in order in a target's database before anything is consumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
from psycopg import sql

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.rules import SinkMode
from airflow_kcr.protocol.values import UNDECLARED
from airflow_kcr.sinks.postgres import bookkeeping
from airflow_kcr.sinks.postgres.earlier import require_no_earlier, require_no_unknown
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
    if bookkeeping.source_of(connection, place, target) is None:
        if is_known:
            raise ConfigurationError(f"{target}: {bookkeeping.lost_fence(place.shown)}")
        require_no_unknown(connection, target, place)
    place = replace(place, source=bookkeeping.ensure_source(connection, place, target))
    bookkeeping.require_same(connection, target, place)
    return place


def located(connection: psycopg.Connection, target: Target) -> TargetPlace:
    """Return where a target is; makes the sink's own tables beside it.

    Raises:
        ConfigurationError: there is no such schema, or this user may not use it; the message has the SQL that helps.
    """
    given, _, table = target.table.rpartition(".")
    place = TargetPlace(schema=given, table=table, source=0)
    place = replace(place, schema=given or _default_schema(connection, target, place))
    too_long = [name for name in (place.schema, table) if is_too_long(name)]
    if too_long:
        raise ConfigurationError(
            f"{target}: {too_long[0]} is longer than the {LONGEST} bytes that Postgres keeps of a name"
        )
    _require_schema(connection, target, place)
    place = replace(place, columns=_columns(connection, target, place))
    _require_own(connection, target, place)
    bookkeeping.ensure_tables(connection, place)
    return place


def _default_schema(connection: psycopg.Connection, target: Target, place: TargetPlace) -> str:
    """Return the schema that is meant: where a table of that name is found, else the first one."""
    found = place.value(connection, "schema_of")
    if found is None:
        raise ConfigurationError(f"{target}: there is no schema in the search path; write table: schema.{place.table}")
    return str(found)


def _require_schema(connection: psycopg.Connection, target: Target, place: TargetPlace) -> None:
    found, name = place.run(connection, "rights_to_schema").fetchone(), _quoted(place.schema)
    if found is None:
        raise ConfigurationError(f"{target}: there is no schema {place.schema}; run: CREATE SCHEMA {name};")
    may, user = found
    if not may:
        raise ConfigurationError(
            f"{target}: this user may not make tables in schema {place.schema}, where the sink keeps its fence, its "
            f"progress and what is not published yet; run: GRANT USAGE, CREATE ON SCHEMA {name} TO {_quoted(user)};"
        )


def _quoted(name: str) -> str:
    """Return a name as SQL for people has it."""
    return sql.Identifier(name).as_string()


def _columns(connection: psycopg.Connection, target: Target, place: TargetPlace) -> dict[str, TargetColumn]:
    kind = place.value(connection, "kind")
    if kind is None:
        return {}
    if kind not in _TABLE_KINDS:
        raise ConfigurationError(
            f"{target}: {place.schema}.{place.table} is no table but a view or the like; name a table"
        )
    return columns_of(connection, place)


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
        key = sql.SQL(", ").join(map(sql.Identifier, target.key)).as_string()
        yield f"no unique index is on exactly its key; run: CREATE UNIQUE INDEX ON {table} ({key});"
    if target.mode is SinkMode.UPSERT and known:
        yield from _nullable_key(connection, target, place)


def _not_durable(connection: psycopg.Connection, place: TargetPlace) -> Iterator[str]:
    """Yield what a crash of the server, or the end of a session, would empty while progress stays."""
    for table, is_foreign in place.run(connection, "not_durable").fetchall():
        if is_foreign:
            yield (
                f"{table} is a foreign table, whose server may commit rows without the sink's progress; run: "
                f"ALTER TABLE {place.shown} DETACH PARTITION {table};"
            )
        else:
            yield f"{table} is unlogged, so that a crash of the server empties it; run: ALTER TABLE {table} SET LOGGED;"


def _not_plain(connection: psycopg.Connection, place: TargetPlace) -> Iterator[str]:
    """Yield what lets statements do less than they say: policies hide rows, rules replace statements."""
    ((active, user, rules),) = place.run(connection, "policies_and_rules").fetchall()
    if active:
        yield (
            "row-level security applies to this user, which hides rows from what takes them back in a reset; run: "
            f"ALTER ROLE {_quoted(user)} BYPASSRLS;"
        )
    for rule in rules:
        yield f"rule {rule} replaces statements; run: DROP RULE {_quoted(rule)} ON {place.shown};"


def _nullable_key(connection: psycopg.Connection, target: Target, place: TargetPlace) -> Iterator[str]:
    """Yield the key's columns that may be NULL, where each NULL is a new row."""
    if _has_unique_index(connection, target, place, with_nulls=True):
        return
    for (name,) in place.run(connection, "nullable", columns=list(target.key)).fetchall():
        yield (
            f"column {name} of the key may be NULL, and each row with NULL would be a new one; run: ALTER TABLE "
            f"{place.shown} ALTER COLUMN {_quoted(name)} SET NOT NULL; or make the index with NULLS NOT DISTINCT"
        )


def _rights(connection: psycopg.Connection, target: Target, place: TargetPlace) -> Iterator[str]:
    needed = ["SELECT", "INSERT", "DELETE" if target.mode is SinkMode.APPEND else "UPDATE"]
    if missing := _lacking_rights(connection, place, place.shown, needed):
        rights, grant = missing
        yield f"this user has no right to {rights}; run: {grant}"


def _require_own(connection: psycopg.Connection, target: Target, place: TargetPlace) -> None:
    """Refuse the sink's own tables if this user may not use them."""
    read_and_write = ["SELECT", "INSERT", "UPDATE"]
    tables = {"kcr_fence": read_and_write, "kcr_progress": read_and_write, "kcr_crash_mark": ["SELECT", "INSERT"]}
    for own, needed in tables.items():
        name = sql.Identifier(place.schema, own).as_string()
        if missing := _lacking_rights(connection, place, name, needed):
            rights, grant = missing
            raise ConfigurationError(f"{target}: this user has no right to {rights} on {name}; run: {grant}")


def _lacking_rights(
    connection: psycopg.Connection, place: TargetPlace, table: str, needed: list[str]
) -> tuple[str, str] | None:
    """Return which rights to a table this user lacks, and the statement that grants them; a table may not be there."""
    ((user, lacking),) = place.run(connection, "lacking_rights", table=table, rights=needed).fetchall()
    rights = ", ".join(lacking)
    return (rights, f"GRANT {rights} ON {table} TO {_quoted(user)};") if lacking else None


def _has_unique_index(
    connection: psycopg.Connection, target: Target, place: TargetPlace, *, with_nulls: bool = False
) -> bool:
    """Whether a unique index is on exactly the key; one for which NULL equals NULL (Postgres 15), if that is asked."""
    found = place.run(connection, "unique_indexes", with_nulls=with_nulls)
    return any(sorted(columns) == sorted(target.key) for (columns,) in found)
