"""The few kinds of columns and constraints that the store's tables are made of; `tables` puts them together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Interval,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from sqlalchemy.schema import SchemaItem

SCHEMA: Final = "kcr"

metadata: Final = MetaData(schema=SCHEMA)

PARTITION: Final = ("group_id", "topic", "partition")
"""The three columns that name a partition of a group."""


def number(name: str) -> Column[int]:
    """Return a column of numbers."""
    return Column(name, BigInteger, nullable=False)


def number_or_null(name: str) -> Column[int]:
    """Return a column of numbers that may be missing."""
    return Column(name, BigInteger)


def text_(name: str) -> Column[str]:
    """Return a column of texts."""
    return Column(name, Text, nullable=False)


def truth(name: str) -> Column[bool]:
    """Return a column of truth values."""
    return Column(name, Boolean, nullable=False)


def instant(name: str) -> Column[datetime]:
    """Return a column of instants."""
    return Column(name, DateTime(timezone=True), nullable=False)


def instant_or_null(name: str) -> Column[datetime]:
    """Return a column of instants that may be missing."""
    return Column(name, DateTime(timezone=True))


def span(name: str) -> Column[timedelta]:
    """Return a column of durations."""
    return Column(name, Interval, nullable=False)


def document(name: str) -> Column[object]:
    """Return a column of small documents."""
    return Column(name, JSONB, nullable=False)


def partition() -> tuple[Column[str], Column[str], Column[int]]:
    """Return the columns of `PARTITION`."""
    return text_("group_id"), text_("topic"), number("partition")


def key(table: str, *columns: str) -> PrimaryKeyConstraint:
    """Return the primary key of a table."""
    return PrimaryKeyConstraint(*columns, name=f"{table}_pkey")


def part_of(table: str, parent: str, columns: tuple[str, ...], keys: tuple[str, ...]) -> ForeignKeyConstraint:
    """Return the foreign key to the rows that a table's rows go with."""
    targets = [f"{SCHEMA}.{parent}.{key}" for key in keys]
    return ForeignKeyConstraint(columns, targets, name=f"{table}_{parent}_fkey", ondelete="CASCADE")


def of_region(table: str) -> ForeignKeyConstraint:
    """Return the foreign key to the region."""
    return part_of(table, "region", ("region_id",), ("id",))


def not_negative(table: str, *columns: str) -> tuple[CheckConstraint, ...]:
    """Return a check for each of these columns."""
    return tuple(CheckConstraint(f"{c} >= 0", name=f"{table}_{c}_not_negative") for c in columns)


def table(name: str, *parts: SchemaItem) -> Table:
    """Return a table of the schema."""
    return Table(name, metadata, *parts)
