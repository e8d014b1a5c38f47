"""A Postgres sink: its transactions, as members and batches need them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_kcr import libpq
from airflow_kcr.errors import SinkError
from airflow_kcr.ports import BatchCall, SinkPlace
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import EventNumber, GroupPartition, Offset
from airflow_kcr.sinks.checkpoints import CompleteCheckpoint, ranges_in_order
from airflow_kcr.sinks.contract import Revision, Sink
from airflow_kcr.sinks.postgres import bookkeeping, checks, frames, insertion, resets, staging
from airflow_kcr.sinks.postgres.database import Database, SinkBusy
from airflow_kcr.sinks.postgres.earlier import rows_kept
from airflow_kcr.sinks.postgres.staging import Staging
from airflow_kcr.sinks.postgres.target import SOURCE, Target, TargetTable
from airflow_kcr.spark.causes import WORDS, of_postgres
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_kcr.spark.jvm import JavaObject

ATTEMPTS: Final = 3
"""How often a publication is tried that the database gave up: a lock that a frozen transaction held, a deadlock."""

_SHORT: Final = timedelta(0)
"""For statements that take no time: their timeout is the shortest that the region has."""

_PARAMETER: Final = re.compile(r"parameter \$(\d+)")
"""Of a statement with one or more rows, whose values are numbered through (Postgres 16)."""

_HALF: Final = 2**31
"""Of the two numbers that an advisory lock is named by, each is an integer of 32 bits."""

_LOG = logging.getLogger(__name__)


class PostgresSink(Sink):
    """Writes the output of one group's pipeline into one table; nothing is opened before `check`.

    Args:
        target: which table, how, and in whose name.
        url: of the database, with its password.
        timeouts: of the region.
        taken: where the region's sinks have written to before.

    Raises:
        ConfigurationError: the URL can't be read.
    """

    def __init__(
        self, target: Target, url: str, timeouts: Timeouts, taken: Collection[SinkPlace] = frozenset()
    ) -> None:
        self.target, self.owner = target, target.owner
        self._taken = taken
        self.database = Database(url, timeouts=timeouts, who=str(target))
        self._timeouts = timeouts
        self._table: TargetTable | None = None

    def check(self) -> None:
        """Check that the target can be written, and make the sink's own tables; may be repeated.

        Raises:
            ConfigurationError: a schema, right, column or index is missing; the message has the SQL that helps.
            SinkError: the database can't be reached, or refuses.
        """
        with self._transaction("check the target") as connection:
            self._table = checks.checked(connection, self.target, is_known=self.where in self._taken)

    def take(self, store: RegionStore) -> None:
        """Note where it writes to."""
        store.take(self.owner.region, self.where)

    @property
    def where(self) -> SinkPlace:
        """Where it writes to, as the store notes it."""
        return SinkPlace(self.owner.group, self.owner.sink, f"{self.target.table} at {self.database.address}")

    def revised(self, checkpoint: CompleteCheckpoint, number: EventNumber) -> Revision:
        """Return what holds back the rows that shall take the place of a checkpoint's."""
        return PostgresRevision(self, checkpoint, number)

    def shown(self, checkpoint: CompleteCheckpoint, spark: SparkSession) -> DataFrame:
        """Return the rows of the table that were made of a checkpoint's records."""
        with self.replacing() as table:
            query = frames.made_of(table, ranges_in_order(checkpoint))
        # Spark takes seconds to connect for the first time, in which no transaction may stand idle.
        return frames.read(spark, self.database, query)

    @contextmanager
    def replacing(self) -> Iterator[TargetTable]:
        """Lend the target, found in order, in a transaction that may take as long as a reset's.

        Raises:
            SinkError: the database can't be reached, or refuses.
        """
        with self._opened("replace a checkpoint's rows", self._timeouts.reset) as table:
            yield table

    @contextmanager
    def deciding(self) -> Iterator[TargetTable]:
        """Lend the target in a transaction in which a person's decision about it is carried out.

        Raises:
            SinkError: the database can't be reached, or refuses.
        """
        with self._transaction("what was decided", self._timeouts.reset) as connection:
            yield checks.located(connection, self.target)

    @contextmanager
    def _transaction(self, what: str, limit: timedelta = _SHORT) -> Iterator[libpq.Connection]:
        try:
            with self.database.transaction(limit) as connection:
                yield connection
        except libpq.CommitLost:
            raise self._lost(what) from None

    @contextmanager
    def _opened(self, what: str, limit: timedelta = _SHORT) -> Iterator[TargetTable]:
        """Lend the target in a transaction, having found it in order once.

        Raises:
            SinkError: the database can't be reached, or refuses.
        """
        table = self._found()
        with self._transaction(what, limit) as connection:
            yield replace(table, connection=connection)

    def _found(self) -> TargetTable:
        if self._table is None:
            self.check()
        if self._table is None:
            raise self._lost("find the target")
        return self._table

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Raise the fence, then roll back or skip; see `ports.Sinks`.

        Raises:
            SinkError: it could not; it may be tried again.
            SinkAhead: the target has seen a later epoch or timeline.
        """
        what = f"reset to epoch {order.epoch}"
        with self._opened(what) as table:
            resets.fence(table, order.epoch, order.timeline)
        # A large table takes as long to roll back as a reset may take.
        with self._opened(what, self._timeouts.reset) as table:
            answer = resets.reset(table, order)
        self._tidy(order)
        return answer

    def write(self, rows: DataFrame, call: BatchCall) -> Callable[[], int]:
        """Have executors fill the staging table of the batch in parallel, and return its insertion.

        Spark's own JDBC writer was measured faster than COPY from Python. The rows are inserted after the pipeline has
        returned and none of its tasks runs any more, so one that fails after it has written leaves nothing behind.
        """
        columns = frames.columns_of(rows)
        staged = self.stage(call, columns)
        self.fill(staged, rows, columns, call)
        return partial(self.insert, call, staged)

    def fill(self, staged: Staging, rows: DataFrame, columns: Mapping[str, str], call: BatchCall) -> None:
        """Have executors write the rows of a batch into its staging table.

        Raises:
            SinkError: the database refused.
        """
        named = frames.staged_columns(rows, columns)
        options = frames.jdbc_options(self.database, staged)
        try:
            named.write.format("jdbc").options(**options).mode("append").save()
        except Exception as error:
            thrown = of_postgres(error)
            if thrown is None:
                raise
            WORDS.error("%s: batch %s was refused", self, call.batch, exc_info=error)
            raise self._refusal(thrown, named.columns) from None

    def _refusal(self, thrown: JavaObject, columns: Sequence[str]) -> SinkError:
        said = thrown.getServerErrorMessage()
        column = None if said is None else said.getColumn()
        if said is not None and column is None and (number := _PARAMETER.search(str(said.getWhere() or ""))):
            column = columns[(int(number[1]) - 1) % len(columns)]
        constraint = None if said is None else said.getConstraint()
        return self.database.refusal(str(thrown.getSQLState()), column=column, constraint=constraint)

    def stage(self, call: BatchCall, columns: Mapping[str, str]) -> Staging:
        """Make the table that executors write a batch's rows into, and the target if there is none yet.

        Args:
            call: the batch.
            columns: what the pipeline writes, without the coordinates: their types, as SQL has them, by their names.

        Raises:
            SinkError: the columns don't fit the target, or the database refuses.
        """
        with self._opened(f"stage batch {call.batch}") as table:
            return staging.make(table, staging.of_batch(table, call.batch, call.epoch), columns)

    def insert(self, call: BatchCall, staged: Staging) -> int:
        """Insert what executors have staged, and drop the staging table; return how many rows went into the target.

        Raises:
            SinkAhead: this process is out of date.
            SinkError: the delivery forbids it, the database refuses, or it is unknown whether it is published.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._insert(call, staged)
            except SinkBusy as error:
                if attempt == ATTEMPTS:
                    raise
                _LOG.warning("%s: batch %s is published again: %s", self.target, call.batch, error)
        raise self._lost(f"publish batch {call.batch}")  # never reached: the last attempt raises

    def _insert(self, call: BatchCall, staged: Staging) -> int:
        found = self._found()
        try:
            with self.database.transaction(self._timeouts.batch) as connection:
                table = replace(found, connection=connection)
                inserted = insertion.insert(table, call, staged)
                staging.drop(table, staged)
                return inserted
        except libpq.CommitLost:
            _LOG.warning("%s: the answer to the publication of batch %s was lost", self.target, call.batch)
        with self._opened(f"publish batch {call.batch}") as table:
            known = insertion.is_inserted(table, call)
        if not known:
            raise SinkBusy(f"{self.target}: batch {call.batch} is not published: the connection was lost before")
        return 0

    def _tidy(self, order: ResetSinks) -> None:
        """Drop what older epochs have staged; where that fails, the next reset does it."""
        try:
            with self._opened("drop what is staged") as table:
                left = staging.leftovers(table, order.epoch)
            for one in left:
                with self._opened("drop what is staged") as table:
                    staging.drop(table, one)
        except SinkError as error:
            _LOG.info("%s: what older epochs have staged is left for the next reset: %s", self.target, error)

    def _lost(self, what: str) -> SinkError:
        return SinkError(f"{self.target}: can't tell whether the database {self.database.address} did {what}")


class PostgresRevision(Revision):
    """Rows that recompute a checkpoint: in staging tables until all of them are there, then exchanged in a transaction.

    Args:
        sink: whose rows they take the place of.
        checkpoint: the one that is recomputed.
        number: of the recomputation.
    """

    def __init__(self, sink: PostgresSink, checkpoint: CompleteCheckpoint, number: EventNumber) -> None:
        self._sink, self._id, self._number = sink, checkpoint.id, number
        self._replaced = ranges_in_order(checkpoint)
        self._staged: list[Staging] = []
        """What was made, also of batches that failed or were cancelled."""

        self._held: list[tuple[BatchCall, Staging]] = []
        with sink.replacing() as table:
            for left in staging.superseded(table, self._id.sequence, number):
                staging.drop(table, left)

    def __str__(self) -> str:
        return f"{self._sink}, checkpoint {self._id.sequence} once more"

    def write(self, rows: DataFrame, call: BatchCall) -> Callable[[], object]:
        """Have executors fill a staging table that belongs to the recomputation."""
        columns = frames.columns_of(rows)
        staged = self.stage(call, columns)
        self._sink.fill(staged, rows, columns, call)
        return partial(self.hold, call, staged)

    def stage(self, call: BatchCall, columns: Mapping[str, str]) -> Staging:
        """Make the table that executors write a batch's rows into; as `PostgresSink.stage`."""
        with self._sink.replacing() as table:
            name = staging.of_revision(table, self._id.sequence, self._number, call.batch)
            staged = staging.make(table, name, columns)
        self._staged.append(staged)
        return staged

    def hold(self, call: BatchCall, staged: Staging) -> None:
        """Hold back what executors have staged."""
        self._held.append((call, staged))

    def held(self, spark: SparkSession) -> DataFrame:
        """Return the rows of the staging tables, each once, as the table would have them."""
        with self._sink.replacing() as table:
            query = frames.staged_rows(table, self._held)
        return frames.read(spark, self._sink.database, query)

    def replace(self, require_wanted: Callable[[], None]) -> tuple[TableVersion, ...]:
        """Exchange the rows in one transaction, in which no reset can raise the fence.

        A reset that begins after the question rolls back only once the rows are there, and finds them.
        """
        with self._sink.replacing() as table:
            table.run("lock_revision", sequence=self._id.sequence % _HALF)
            bookkeeping.lock_fence(table)
            require_wanted()
            self._delete(table)
            for call, staged in self._held:
                insertion.insert_recomputed(table, call, staged)
                staging.drop(table, staged)
        self._staged.clear()
        return ()

    def _delete(self, table: TargetTable) -> None:
        if SOURCE not in table.read_columns():
            return
        ranges = {
            "topics": [place.topic for place, _ in self._replaced],
            "partitions": [place.partition for place, _ in self._replaced],
            "froms": [range_.from_ for _, range_ in self._replaced],
            "tos": [range_.to for _, range_ in self._replaced],
        }
        table.run("delete_ranges", **ranges)
        if table.value("has_ranges", **ranges):
            raise rows_kept(table, "rows that were deleted", "DELETE")

    def drop(self) -> None:
        """Drop the staging tables that were filled and not exchanged; where that fails, the next attempt does it."""
        if not self._staged:
            return
        try:
            with self._sink.replacing() as table:
                for staged in self._staged:
                    staging.drop(table, staged)
        except SinkError as error:
            _LOG.info("%s: what is staged is left for the next recomputation: %s", self, error)
