"""`kind: postgres`: a table, declared by its database and name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_kcr.api.clusters import postgres_variable
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.sinks.contract import Choice, DatasetName, DeclaredSink, FoundOutput
from airflow_kcr.sinks.postgres import bookkeeping, earlier
from airflow_kcr.sinks.postgres.addresses import parameters
from airflow_kcr.sinks.postgres.frames import reached, require_driver
from airflow_kcr.sinks.postgres.sink import PostgresSink
from airflow_kcr.sinks.postgres.target import Target, TargetTable
from airflow_kcr.spark.session import POSTGRES_DRIVER
from airflow_kcr.spec import SinkSpec
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)


class DeclaredTable(DeclaredSink):
    """A sink that is a table."""

    @staticmethod
    def packages(spec: SinkSpec) -> tuple[str, ...]:
        """Return the driver that executors write with."""
        return (POSTGRES_DRIVER,)

    @cached_property
    def sink(self) -> PostgresSink:
        """The sink; nothing is connected to.

        Raises:
            ConfigurationError: a variable is not set, or the URL can't be read.
        """
        target = Target(
            owner=self.owner,
            beside=frozenset((GroupId(one.group_id), sink.name) for one in self.region.groups for sink in one.sinks),
            table=self.spec.table or "",
            delivery=self.region.group(self.group).delivery,
            mode=self.spec.mode,
            key=self.spec.key,
        )
        return PostgresSink(target, self.url(), self.region.timeouts, self.taken)

    def url(self) -> str:
        """Return the database's URL, its password in it: for the sink only, never to be stored or shown.

        Raises:
            ConfigurationError: a variable is not set, the one with an Airflow connection's URL among them.
        """
        if self.spec.url is not None:
            return self.resolved("url", self.spec.url)
        variable = postgres_variable(self.spec.conn_id or "")
        url = self.environ.get(variable)
        if url is None:
            raise ConfigurationError(
                f"sink {self.spec.name} is reached by the Airflow connection {self.spec.conn_id}, which can only be "
                f"read inside Airflow; elsewhere set {variable} to its URL, or write url: ${{NAME}} into the spec"
            )
        return url

    def dataset(self) -> DatasetName:
        """Return the table; a host and a port alone are read of the URL."""
        given = parameters(self.url())
        schema, _, table = (self.spec.table or "").rpartition(".")
        host, port = ((given.get(word) or "").split(",")[0] for word in ("host", "port"))
        database = given.get("dbname") or given.get("user", "")
        return DatasetName(f"postgres://{host}:{port or 5432}", f"{database}.{schema or 'public'}.{table}")

    def check(self) -> None:
        """Refuse a database that executors can't reach, and a table that can't be written as its spec wants."""
        reached(self.sink.database)
        self.sink.check()
        _LOG.info("%s writes to %s at %s", self.sink.target, self.spec.table, self.sink.database.address)

    def require_apart(self, live: Iterable[DeclaredSink]) -> None:
        """Refuse a table that another sink has written to: of this region or another one, of this store or another."""
        with self.sink.deciding() as table:
            other = table.run("other_writer", **self.sink.target.writer).fetchone()
        if other is not None:
            region, group, sink = other
            raise ConfigurationError(
                f"into.{self.group}.{self.spec.name}: sink {sink} of group {group} of region {region} writes to "
                f"{self._shown(table)}; name a table of its own"
            )

    def open(self, spark: SparkSession, store: RegionStore) -> PostgresSink:
        """Return the sink, if Spark has the driver."""
        require_driver(spark)
        return self.sink

    def output(self, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Return how many rows the table has of this sink, and whose others."""
        with self._located() as table:
            known = bookkeeping.source_of(table)
            others = earlier.earlier_outputs(table).values()
            return self.found(
                self._shown(table),
                rows=0 if known is None else earlier.rows_of(table, known),
                earlier=tuple(one.briefly for one in others),
                note="" if bookkeeping.is_same(table, known) else "another table than was written to",
            )

    def settle(self, choice: Choice, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Do with the rows of earlier sinks what a person chose.

        A table that took the place of another, or was emptied, is accepted with `TAKE_OVER`.
        """
        with self._located() as table:
            own = bookkeeping.source_of(table)
            done = self._settled(table, own, choice)
        if choice is Choice.TAKE_OVER and own is None and not done and self.sink.where in self.taken:
            # Only once that is committed: a place that is forgotten is taken as a new one.
            store.let_go(self.region_name, self.sink.where)
            done.append("the table is the sink's as it is")
        return self.found(self._shown(table), note="; ".join(done) or "nothing to do")

    def _settled(self, table: TargetTable, own: int | None, choice: Choice) -> list[str]:
        """Do with the rows in the table what a person chose; return what was done."""
        done: list[str] = []
        others = earlier.earlier_outputs(table)
        if choice is Choice.TAKE_OVER and len(others) > 1:
            raise ConfigurationError(
                f"{table.target}: {table.shown} has rows of {len(others)} earlier sinks, and one can be taken over; "
                "keep or delete them"
            )
        for source, one in others.items():
            match choice:
                case Choice.KEEP:
                    table.run("keep_beside", source=source)
                    done.append(f"rows of {one.group}/{one.sink} stay")
                case Choice.DELETE:
                    rows = earlier.delete_output(table, source)
                    done.append(f"{rows} rows of {one.group}/{one.sink} deleted")
                case Choice.TAKE_OVER:
                    earlier.take_over(table, source, one, own)
                    done.append(f"rows of {one.group}/{one.sink} taken over")
        if choice is Choice.TAKE_OVER and own is not None and not bookkeeping.is_same(table, own):
            bookkeeping.remember_target(table, own)
            done.append("this table is the sink's now")
        return done

    def delete(self, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Delete the sink's rows, its progress and its fence."""
        with self._located() as table:
            own = bookkeeping.source_of(table)
            rows = 0 if own is None else earlier.delete_output(table, own)
        # Only once it is deleted: a place that is forgotten is taken as a new one.
        store.let_go(self.region_name, self.sink.where)
        return self.found(self._shown(table), note=f"{rows} rows deleted")

    @contextmanager
    def _located(self) -> Iterator[TargetTable]:
        """Lend the target in a transaction, rows of sinks that no fence knows being an earlier one's."""
        with self.sink.deciding() as table:
            if bookkeeping.source_of(table) is None:
                earlier.note_unknown(table)
            yield table

    def _shown(self, table: TargetTable) -> str:
        return f"{table.schema}.{table.name} at {self.sink.database.address}"


KIND = DeclaredTable
