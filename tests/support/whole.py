"""A region with every row that it ever had, for tests that look at what became of something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from airflow_kcr.protocol.offsets import SeekMap
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import GroupPartition
from airflow_kcr.store.postgres.archive import PostgresArchive
from airflow_kcr.store.postgres.layouts import (
    BOUNDARY_OFFSETS,
    CHECKPOINTS,
    PERSON_RESETS,
    REQUESTS,
    RESETS,
    SEEKS,
    offset_map,
    seek_maps,
)
from airflow_kcr.store.postgres.row_layout import JsonLayout, Layout
from airflow_kcr.store.postgres.statements import Statement
from tests.support.past import Tables, Whole, working

K = TypeVar("K")
V = TypeVar("V")


def everything(region: Region) -> Region:
    """Return a region, as a store has read it, with the rows that it left in the archive."""
    match region.archive:
        case Whole() as archive:
            tables = archive._tables
        case PostgresArchive() as archive:
            tables = _tables(archive)
        case other:
            raise TypeError(other)
    rows: dict[str, Any] = {f.name: {**getattr(tables, f.name), **getattr(region, f.name)} for f in fields(Tables)}
    return replace(region, **rows)


def as_stored(region: Region) -> Region:
    """Return a region that a test has made, with all that it has, as a store would give it to a rule."""
    tables = Tables(**{f.name: getattr(region, f.name) for f in fields(Tables)})
    return working(region, tables)


def _tables(archive: PostgresArchive) -> Tables:
    checkpoints = _rows(archive, CHECKPOINTS)
    resets = _rows(archive, RESETS)
    complete = [s for s, row in checkpoints.items() if row.is_complete]
    frozen = _grouped(archive, "sequence", "checkpoint_partition", "group_id, topic, partition")
    read_backs = _grouped(archive, "sequence", "read_back", "group_id, topic, partition, next_offset")
    found = _read(archive, f"SELECT {SEEKS.selected('t')} FROM kcr.seek_offset t WHERE t.region_id = :region")
    seeks = seek_maps(list(zip(*found, strict=True)))
    contributed = _read(archive, "SELECT DISTINCT sequence FROM kcr.contribution WHERE region_id = :region")
    return Tables(
        boundary_offsets=_rows(archive, BOUNDARY_OFFSETS),
        requests=_rows(archive, REQUESTS),
        checkpoints=checkpoints,
        offsets=dict(archive.offsets(complete)),
        frozen={s: frozenset(GroupPartition(*row) for row in rows) for s, rows in frozen.items()},
        contributions={(s, m): part for (s,) in contributed for m, part in archive.contributions(s).items()},
        read_backs={s: offset_map(rows) for s, rows in read_backs.items()},
        resets=resets,
        seek_maps={epoch: seeks.get(epoch, SeekMap({})) for epoch in resets},
        person_resets=_rows(archive, PERSON_RESETS),
    )


def _read(archive: PostgresArchive, sql: str) -> Sequence[tuple[Any, ...]]:
    return archive._session.rows(Statement(sql))


def _rows(archive: PostgresArchive, layout: Layout[K, V]) -> dict[K, V]:
    found = _read(archive, f"SELECT {layout.selected('t')} FROM kcr.{layout.name} t WHERE t.region_id = :region")
    return layout.read([row for (row,) in found] if isinstance(layout, JsonLayout) else list(zip(*found, strict=True)))


def _grouped(archive: PostgresArchive, number: str, table: str, columns: str) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for key, *row in _read(archive, f"SELECT {number}, {columns} FROM kcr.{table} WHERE region_id = :region"):
        found.setdefault(key, []).append(row)
    return found
