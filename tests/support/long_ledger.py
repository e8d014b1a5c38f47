"""A ledger of many batches, made in the database: what a region has behind it after a day."""

from __future__ import annotations

from enum import StrEnum

import psycopg
import pytest

from tests.support.driver import Driver

_TABLES = "kcr.batch, kcr.batch_range"

_BATCHES = """
    INSERT INTO kcr.batch (region_id, batch_id, group_id, member_index, incarnation, epoch, timeline, sequence,
                           started_at, started_after, outcome, finished_at, finished_after)
    SELECT r.id, 'long-' || n, 'g', 0, 1, r.epoch, r.timeline, r.next_sequence, now(), r.counter, 'done',
           now(), r.counter
    FROM kcr.region r, generate_series(1, %s) n
"""

_RANGES = """
    INSERT INTO kcr.batch_range (batch_number, region_id, group_id, topic, partition, from_offset, to_offset)
    SELECT b.number, b.region_id, c.group_id, c.topic, c.partition, b.place * 10, b.place * 10 + 10
    FROM (SELECT number, region_id, row_number() OVER (ORDER BY number) - 1 AS place FROM kcr.batch) b
    JOIN kcr.claim c USING (region_id)
"""


class Statistics(StrEnum):
    """What the planner knows of the ledger."""

    NONE = "none"
    """It was never analysed."""

    FEW = "few"
    """It was analysed when it held five batches."""

    FRESH = "fresh"
    """It was analysed as it is."""


with_all_statistics = pytest.mark.parametrize(
    "statistics",
    [Statistics.FEW, *(pytest.param(told, marks=pytest.mark.long) for told in (Statistics.NONE, Statistics.FRESH))],
)
"""Runs a test with each; the planner is most wrong with few, and the others take turns."""


def fill(url: str, driver: Driver, batches: int, statistics: Statistics) -> None:
    """Give a region without a batch a ledger: each batch done, with ten offsets of every partition.

    Args:
        url: the database.
        driver: of its one region, which is up.
        batches: how many.
        statistics: what the planner knows of them.
    """
    if driver.batches:
        raise AssertionError("the ledger is not empty")
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        for table in _TABLES.split(", "):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
        connection.execute(f"TRUNCATE {_TABLES}".encode())  # of what a deleted region has left in the files
        if statistics is Statistics.FEW:
            connection.execute(_BATCHES, [5])
            connection.execute(_RANGES)
            connection.execute(f"ANALYZE {_TABLES}".encode())
            connection.execute("DELETE FROM kcr.batch_range")
            connection.execute("DELETE FROM kcr.batch")
        connection.execute(_BATCHES, [batches])
        connection.execute(_RANGES)
        if statistics is Statistics.FRESH:
            connection.execute(f"ANALYZE {_TABLES}".encode())
