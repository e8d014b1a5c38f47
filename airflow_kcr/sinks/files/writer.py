"""The writing side of file sinks: Spark writes the files, and makes few of many."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.values import Range, TopicPartition
from airflow_kcr.sinks.contract import not_written, require_coordinates, written_twice
from airflow_kcr.sinks.files import FileSink
from airflow_kcr.sinks.files.hadoop import HadoopFolder
from airflow_kcr.sinks.files.layout import TEMPORARY
from airflow_kcr.spark.context import COORDINATES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession

PREFIX: Final = "kcr_"
"""Before the names of the coordinates, as they are in the files."""

_PUTTING_TOGETHER: Final = {
    # Spark lists every file that is named to it, in as many tasks as there are files where it is not told otherwise.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
    # It counts each file as 4 MB, which makes a task of every 32 small ones; so a task is made for each core.
    "spark.sql.files.openCostInBytes": "65536",
    # The plan is as simple as it looks.
    "spark.sql.adaptive.enabled": "false",
}
"""Spark's settings for many small files that become a few."""

_NO_MARK: Final = "mapreduce.fileoutputcommitter.marksuccessfuljobs"


class FilesWriter:
    """One file sink, as a pipeline has it for one batch.

    Args:
        sink: where to.
        call: the batch.
    """

    def __init__(self, sink: FileSink, call: BatchCall) -> None:
        self._sink, self._call = sink, call
        self._schema: str | None = None

    def __repr__(self) -> str:
        return f"<{self._sink.target}, batch {self._call.batch}>"

    @property
    def schema(self) -> str:
        """The schema of what was written, as Spark writes it in JSON.

        Raises:
            SinkError: nothing was written.
        """
        if self._schema is None:
            raise not_written(self)
        return self._schema

    def write(self, rows: DataFrame) -> None:
        """Write rows, each made of one record of this batch; a pipeline does so once for each of its sinks.

        Args:
            rows: with the columns `topic`, `partition` and `offset` of the batch as they are; the files have them with
                `kcr_` before their names. One without any row is fine.

        Raises:
            SinkError: a coordinate is missing, a name is there twice, the columns don't fit the sink's table, or it
                was written to before.
        """
        if self._schema is not None:
            raise written_twice(self)
        named = with_coordinates(rows)
        schema = named.schema.json()
        self._sink.fit(schema)
        self._schema = schema
        _parquet(named, f"{self._sink.folder.uri}/{self._sink.attempt(self._call)}")

    def publish(self) -> None:
        """Write the list of what was written; it counts once the batch is accepted and its checkpoint published.

        Raises:
            SinkError: nothing was written, or the list can't be.
        """
        self._sink.list_files(self._call, self.schema)


def with_coordinates(rows: DataFrame) -> DataFrame:
    """Return rows as the files have them.

    Raises:
        SinkError: a coordinate is missing, or a name is there twice.
    """
    names = rows.columns
    require_coordinates(names, rows.schema.simpleString())
    renamed = [PREFIX + name if name in COORDINATES else name for name in names]
    low = [name.lower() for name in renamed]
    twice = sorted({name for name in renamed if low.count(name.lower()) > 1})
    if twice:
        raise SinkError(f"column {', '.join(twice)} is there twice (schema: {rows.schema.simpleString()})")
    return rows.toDF(*renamed)


class SparkRewriter:
    """Makes new files of others; see `sinks.files.folder.Rewriter`.

    Args:
        spark: the application's session.
        folder: where the files are.
    """

    def __init__(self, spark: SparkSession, folder: HadoopFolder) -> None:
        self._spark, self._folder = spark.newSession(), folder
        for name, value in _PUTTING_TOGETHER.items():
            self._spark.conf.set(name, value)

    def rewrite(
        self,
        sources: Iterable[str],
        schema: str,
        into: str,
        *,
        files: int,
        kept: Mapping[TopicPartition, tuple[Range, ...]] | None = None,
    ) -> Mapping[str, int]:
        """Write the rows of several files into a few."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        above = into.rpartition("/")[0]
        temporary = f"{above}/{TEMPORARY}{uuid.uuid4().hex}"
        try:
            rows = read_files(self._spark, [f"{self._folder.uri}/{path}" for path in sources], schema)
            if kept is not None:
                rows = rows.where(_of_records(kept))
            # What few tasks write, few tasks would read, and opening small files takes longer than what is in them.
            few = files < self._spark.sparkContext.defaultParallelism
            spread = rows.repartition(files) if few else rows.coalesce(files)
            _parquet(spread, f"{self._folder.uri}/{temporary}")
            return self._taken(temporary, into)
        except (PySparkException, Py4JError) as error:
            raise SinkError(
                f"files could not be made in {self._folder.uri}/{above}: {str(error).splitlines()[0]}"
            ) from error
        finally:
            self._folder.delete([temporary])

    def _taken(self, temporary: str, into: str) -> dict[str, int]:
        """Give new files their names, which no other attempt has: how rows are spread depends on who does it."""
        attempt = uuid.uuid4().hex[:12]
        found: dict[str, int] = {}
        for place, (part, size) in enumerate(self._folder.sizes(temporary).items()):
            path = f"{into}-{attempt}-{place:05d}.parquet"
            self._folder.move(f"{temporary}/{part}", path)
            found[path] = size
        return found


def read_files(spark: SparkSession, paths: list[str], schema: str) -> DataFrame:
    """Return the rows of files of one schema; a file that is missing or damaged is an error.

    Args:
        spark: the session.
        paths: of the files.
        schema: as Spark writes it in JSON.
    """
    import json

    from pyspark.sql.types import StructType

    known = StructType.fromJson(json.loads(schema))
    if not paths:
        return spark.createDataFrame([], known)
    strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
    return spark.read.schema(known).options(**strict).parquet(*paths)


def _parquet(rows: DataFrame, uri: str) -> None:
    writer: DataFrameWriter = rows.write.option(_NO_MARK, "false")
    writer.mode("errorifexists").parquet(uri)


def _of_records(kept: Mapping[TopicPartition, tuple[Range, ...]]) -> Column:
    from pyspark.sql import functions

    topic, partition, offset = (functions.col(PREFIX + name) for name in COORDINATES)
    found = functions.lit(False)
    for place, ranges in kept.items():
        inside = functions.lit(False)
        for range_ in ranges:
            inside = inside | ((offset >= range_.from_) & (offset < range_.to))
        found = found | ((topic == place.topic) & (partition == place.partition) & inside)
    return found
