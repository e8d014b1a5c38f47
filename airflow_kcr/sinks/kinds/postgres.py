"""`kind: postgres`: a table, declared by its database and name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from airflow_kcr.api.regions import postgres_variable
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.sinks.contract import Choice, DeclaredSink, FoundOutput, SparkNeeds
from airflow_kcr.sinks.postgres import bookkeeping, checks, earlier
from airflow_kcr.sinks.postgres.frames import reached, require_driver
from airflow_kcr.sinks.postgres.sink import PostgresSink
from airflow_kcr.sinks.postgres.target import Target, TargetPlace
from airflow_kcr.spark.session import POSTGRES_DRIVER
from airflow_kcr.spec import SinkSpec
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)


class DeclaredTable(DeclaredSink):
    """A sink that is a table."""

    shows_checkpoints: ClassVar[bool] = False

    @staticmethod
    def needs(spec: SinkSpec) -> SparkNeeds:
        """Return the driver that executors write with."""
        return SparkNeeds(packages=(POSTGRES_DRIVER,))

    @cached_property
    def sink(self) -> PostgresSink:
        """The sink; nothing is connected to.

        Raises:
            ConfigurationError: a variable is not set, or the URL can't be read.
        """
        target = Target(
            region=self.region_name,
            region_id=self.region_id,
            group=self.group,
            sink=self.spec.name,
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

    def check(self) -> None:
        """Refuse a database that executors can't reach, and a table that can't be written as its spec wants."""
        reached(self.sink.database)
        self.sink.check()
        _LOG.info("%s writes to %s at %s", self.sink.target, self.spec.table, self.sink.database.address)

    def open(self, spark: SparkSession, store: RegionStore) -> PostgresSink:
        """Return the sink, if Spark has the driver."""
        require_driver(spark)
        return self.sink

    def output(self, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Return how many rows the table has of this sink, and whose others."""
        with self._located() as (connection, place):
            known = bookkeeping.source_of(connection, place, self.sink.target)
            others = earlier.earlier_outputs(connection, self.sink.target, place)
            return self.found(
                self._shown(place),
                rows=0 if known is None else earlier.rows_of(connection, place, known),
                earlier=tuple(f"{one.group}/{one.sink} of region id {one.region_id}" for one in others),
                note="" if bookkeeping.is_same(connection, place, known) else "another table than was written to",
            )

    def settle(self, choice: Choice, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Do with the rows of earlier sinks what a person chose.

        A table that took the place of another, or was emptied, is accepted with `TAKE_OVER`.
        """
        with self._located() as (connection, place):
            own = bookkeeping.source_of(connection, place, self.sink.target)
            done = self._settled(connection, place, own, choice)
        if choice is Choice.TAKE_OVER and own is None and not done and self.sink.where in self.taken:
            # Only once that is committed: a place that is forgotten is taken as a new one.
            store.let_go(self.region_name, self.sink.where)
            done.append("the table is the sink's as it is")
        return self.found(self._shown(place), note="; ".join(done) or "nothing to do")

    def _settled(
        self, connection: psycopg.Connection, place: TargetPlace, own: int | None, choice: Choice
    ) -> list[str]:
        """Do with the rows in the table what a person chose; return what was done."""
        target, done = self.sink.target, []
        others = earlier.earlier_outputs(connection, target, place)
        if choice is Choice.TAKE_OVER and len(others) > 1:
            raise ConfigurationError(
                f"{target}: {place.shown} has rows of {len(others)} earlier sinks, and one can be taken over; keep or "
                "delete them"
            )
        for one in others:
            match choice:
                case Choice.KEEP:
                    earlier.keep_output(connection, place, one)
                    done.append(f"rows of {one.group}/{one.sink} stay")
                case Choice.DELETE:
                    rows = earlier.delete_output(connection, place, one.source)
                    done.append(f"{rows} rows of {one.group}/{one.sink} deleted")
                case Choice.TAKE_OVER:
                    earlier.take_over(connection, target, place, one, own)
                    done.append(f"rows of {one.group}/{one.sink} taken over")
        if choice is Choice.TAKE_OVER and own is not None and not bookkeeping.is_same(connection, place, own):
            bookkeeping.remember_target(connection, place, own)
            done.append("this table is the sink's now")
        return done

    def delete(self, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Delete the sink's rows, its progress and its fence."""
        with self._located() as (connection, place):
            own = bookkeeping.source_of(connection, place, self.sink.target)
            rows = 0 if own is None else earlier.delete_output(connection, place, own)
            found = self.found(self._shown(place), note=f"{rows} rows deleted")
        # Only once it is deleted: a place that is forgotten is taken as a new one.
        store.let_go(self.region_name, self.sink.where)
        return found

    @contextmanager
    def _located(self) -> Iterator[tuple[psycopg.Connection, TargetPlace]]:
        """Lend a transaction, and where the target is."""
        with self.sink.deciding() as connection:
            place = checks.located(connection, self.sink.target)
            if bookkeeping.source_of(connection, place, self.sink.target) is None:
                earlier.note_unknown(connection, self.sink.target, place)
            yield connection, place

    def _shown(self, place: TargetPlace) -> str:
        return f"{place.schema}.{place.table} at {self.sink.database.address}"


KIND = DeclaredTable
