"""What has to be in order in a target's database before anything is consumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from airflow_kcr import libpq
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
    TargetTable,
    is_too_long,
    names,
    quoted,
)

_TABLE_KINDS = frozenset({"r", "p"})
"""Ordinary and partitioned tables."""


def checked(connection: libpq.Connection, target: Target, *, is_known: bool = False) -> TargetTable:
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
    table = located(connection, target)
    wrong = list(_wrong(table)) if table.columns else []
    if wrong:
        raise ConfigurationError(f"{target} can't write to {table.schema}.{table.name}: {'; '.join(wrong)}")
    if target.owner.region_id == UNDECLARED:
        return table  # whose rows are there can't be said
    require_no_earlier(table)
    if bookkeeping.source_of(table) is None:
        if is_known:
            raise ConfigurationError(f"{target}: {bookkeeping.lost_fence(table.shown)}")
        require_no_unknown(table)
    table = replace(table, source=bookkeeping.ensure_source(table))
    bookkeeping.require_same(table)
    return table


def located(connection: libpq.Connection, target: Target) -> TargetTable:
    """Return where a target is; makes the sink's own tables beside it.

    Raises:
        ConfigurationError: there is no such schema, or this user may not use it; the message has the SQL that helps.
    """
    schema, _, name = target.table.rpartition(".")
    table = TargetTable(connection=connection, target=target, schema=schema, name=name)
    # The one that is meant: where a table of that name is found, else the first one.
    table = replace(table, schema=schema or table.value("schema_of") or "")
    if not table.schema:
        raise ConfigurationError(f"{target}: there is no schema in the search path; write table: schema.{name}")
    too_long = [part for part in (table.schema, name) if is_too_long(part)]
    if too_long:
        raise ConfigurationError(
            f"{target}: {too_long[0]} is longer than the {LONGEST} bytes that Postgres keeps of a name"
        )
    _require_schema(table)
    table = replace(table, columns=_columns(table))
    _require_own(table)
    bookkeeping.ensure_tables(table)
    return table


def _require_schema(table: TargetTable) -> None:
    found, name = table.run("rights_to_schema").fetchone(), quoted(table.schema)
    if found is None:
        raise ConfigurationError(f"{table.target}: there is no schema {table.schema}; run: CREATE SCHEMA {name};")
    may, user = found
    if not may:
        raise ConfigurationError(
            f"{table.target}: this user may not make tables in schema {table.schema}, where the sink keeps its fence, "
            "its progress and what is not published yet; run: GRANT USAGE, CREATE ON SCHEMA "
            f"{name} TO {quoted(user)};"
        )


def _columns(table: TargetTable) -> dict[str, TargetColumn]:
    kind = table.value("kind")
    if kind is None:
        return {}
    if kind not in _TABLE_KINDS:
        raise ConfigurationError(
            f"{table.target}: {table.schema}.{table.name} is no table but a view or the like; name a table"
        )
    return table.read_columns()


def _wrong(table: TargetTable) -> Iterator[str]:
    missing = [name for name in OWN_COLUMNS if name not in table.columns]
    yield from _not_durable(table)
    yield from _not_plain(table)
    if missing:
        added = ", ".join(f"ADD COLUMN {name} {OWN_COLUMNS[name]}" for name in missing)
        yield f"column {', '.join(missing)} is missing; run: ALTER TABLE {table.shown} {added};"
    for name, kind in OWN_COLUMNS.items():
        if name in table.columns and table.columns[name].type != kind:
            yield f"column {name} is {table.columns[name].type} and must be {kind}"
    lacking = [name for name in table.target.key if name not in table.columns]
    for name in lacking:
        yield f"column {name} of the key is missing"
    yield from _rights(table)
    known = not missing and not lacking
    if table.target.mode is SinkMode.UPSERT and known and not _has_unique_index(table):
        yield (
            f"no unique index is on exactly its key; run: CREATE UNIQUE INDEX ON {table.shown} "
            f"({names(table.target.key)});"
        )
    if table.target.mode is SinkMode.UPSERT and known:
        yield from _nullable_key(table)


def _not_durable(table: TargetTable) -> Iterator[str]:
    """Yield what a crash of the server, or the end of a session, would empty while progress stays."""
    for name, is_foreign in table.run("not_durable"):
        if is_foreign:
            yield (
                f"{name} is a foreign table, whose server may commit rows without the sink's progress; run: "
                f"ALTER TABLE {table.shown} DETACH PARTITION {name};"
            )
        else:
            yield f"{name} is unlogged, so that a crash of the server empties it; run: ALTER TABLE {name} SET LOGGED;"


def _not_plain(table: TargetTable) -> Iterator[str]:
    """Yield what lets statements do less than they say: policies hide rows, rules replace statements."""
    ((active, user, rules),) = table.run("policies_and_rules").fetchall()
    if active:
        yield (
            "row-level security applies to this user, which hides rows from what takes them back in a reset; run: "
            f"ALTER ROLE {quoted(user)} BYPASSRLS;"
        )
    for rule in rules:
        yield f"rule {rule} replaces statements; run: DROP RULE {quoted(rule)} ON {table.shown};"


def _nullable_key(table: TargetTable) -> Iterator[str]:
    """Yield the key's columns that may be NULL, where each NULL is a new row."""
    if _has_unique_index(table, with_nulls=True):
        return
    for (name,) in table.run("nullable", columns=list(table.target.key)).fetchall():
        yield (
            f"column {name} of the key may be NULL, and each row with NULL would be a new one; run: ALTER TABLE "
            f"{table.shown} ALTER COLUMN {quoted(name)} SET NOT NULL; or make the index with NULLS NOT DISTINCT"
        )


def _rights(table: TargetTable) -> Iterator[str]:
    needed = ["SELECT", "INSERT", "DELETE" if table.target.mode is SinkMode.APPEND else "UPDATE"]
    if missing := _lacking_rights(table, table.shown, needed):
        rights, grant = missing
        yield f"this user has no right to {rights}; run: {grant}"


def _require_own(table: TargetTable) -> None:
    """Refuse the sink's own tables if this user may not use them."""
    read_and_write = ["SELECT", "INSERT", "UPDATE"]
    tables = {"kcr_fence": read_and_write, "kcr_progress": read_and_write, "kcr_crash_mark": ["SELECT", "INSERT"]}
    for own, needed in tables.items():
        name = quoted(table.schema, own)
        if missing := _lacking_rights(table, name, needed):
            rights, grant = missing
            raise ConfigurationError(f"{table.target}: this user has no right to {rights} on {name}; run: {grant}")


def _lacking_rights(table: TargetTable, shown: str, needed: list[str]) -> tuple[str, str] | None:
    """Return which rights to a table this user lacks, and the statement that grants them; a table may not be there."""
    ((user, lacking),) = table.run("lacking_rights", table=shown, rights=needed).fetchall()
    rights = ", ".join(lacking)
    return (rights, f"GRANT {rights} ON {shown} TO {quoted(user)};") if lacking else None


def _has_unique_index(table: TargetTable, *, with_nulls: bool = False) -> bool:
    """Whether a unique index is on exactly the key; one for which NULL equals NULL (Postgres 15), if that is asked."""
    found = table.run("unique_indexes", with_nulls=with_nulls)
    return any(sorted(columns) == sorted(table.target.key) for (columns,) in found)
