"""Spark's side of file sinks: it writes their files, makes few of many, and reads their checkpoints.

`read_checkpoint` gives exactly what one checkpoint has, now and whenever it is asked again, until a recomputation
replaces it.

    from airflow_kcr.sinks import read_checkpoint

    rows = read_checkpoint(spark, "s3a://lake/delays", sequence=42)

It asks the folder alone; the region's store only where a checkpoint is named by its DAG run. A checkpoint whose output
`cleanup` has deleted is refused by name.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, SinkError, UnknownCheckpoint
from airflow_kcr.protocol.targets import ToRun
from airflow_kcr.protocol.values import Range, TopicPartition
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.contract import SinkOwner, require_coordinates
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.columns import require_one_type
from airflow_kcr.sinks.files.contents import checkpoints_on, manifest_in_force, newest_first, timelines_in
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import TEMPORARY, Manifest, Marker
from airflow_kcr.spark.causes import essential_line
from airflow_kcr.spark.context import COORDINATES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# Writing

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


class Rewriter:
    """Makes new files of others.

    Args:
        spark: the application's session.
        folder: where the files are.
        write: writes rows into a new folder.
    """

    def __init__(self, spark: SparkSession, folder: Folder, write: Callable[[DataFrame, str], None]) -> None:
        self._spark, self._folder, self._write = spark.newSession(), folder, write
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
        """Write the rows of several files into a few.

        Args:
            sources: paths of the files, which have one schema.
            schema: of them, as Spark writes it in JSON.
            into: the path of the new files, to which something is added that no other attempt adds.
            files: how many are made at most.
            kept: only rows made of these records; None: all.

        Returns:
            The new files' paths with their bytes.

        Raises:
            SinkError: it failed; nothing that readers see has changed.
        """
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
            self._write(spread, f"{self._folder.uri}/{temporary}")
            return self._taken(temporary, into)
        except (PySparkException, Py4JError) as error:
            raise SinkError(f"files could not be made in {self._folder.uri}/{above}: {essential_line(error)}") from None
        finally:
            self._folder.delete([temporary])

    def _taken(self, temporary: str, into: str) -> dict[str, int]:
        """Give new files their names, which no other attempt has: how rows are spread depends on who does it."""
        attempt = uuid.uuid4().hex[:12]
        found: dict[str, int] = {}
        for place, (part, size) in enumerate(self._folder.written(temporary).items()):
            path = f"{into}-{attempt}-{place:05d}.parquet"
            self._folder.move(part, path)
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


# Reading

COORDINATE_COLUMNS: Final = "kcr_topic STRING, kcr_partition INT, kcr_offset BIGINT"
"""Of the record that a row was made of, in every checkpoint."""

SHOWN = 5
"""How many checkpoints a message names."""


def rows_of(spark: SparkSession, path: str, manifest: Manifest) -> DataFrame:
    """Return the rows of a manifest's files.

    Args:
        spark: the session.
        path: of the file sink.
        manifest: of one of its checkpoints.

    Raises:
        SinkError: a column has two types; Spark would change values of one of them.
    """
    require_one_type(f"checkpoint {manifest.checkpoint}", manifest.schemas)
    root = path.rstrip("/")
    parts = [
        read_files(spark, [f"{root}/{file.path}" for file in manifest.files if file.schema == number], schema)
        for number, schema in enumerate(manifest.schemas)
    ]
    if not parts:
        return spark.createDataFrame([], COORDINATE_COLUMNS)
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The checkpoints of a file sink, as its folder has them."""

    folder: Folder
    owner: SinkOwner

    @classmethod
    def of(cls, folder: Folder) -> Checkpoints:
        """Return the checkpoints of a folder.

        Raises:
            ConfigurationError: it is no file sink's, or of another layout.
            SinkError: it can't be read.
        """
        marker = Marker.of(folder.read(layout.OWNER))
        if marker is None:
            raise ConfigurationError(
                f"{folder.uri} is no folder of a file sink (it has no {layout.OWNER}); name the path that the region's "
                "spec has, once its members have been started"
            )
        return cls(folder=folder, owner=marker.owner)

    def published(self) -> Iterator[CheckpointId]:
        """Yield the checkpoints that can be read, newest first, reading no further back than needed."""
        return newest_first(self.folder, timelines_in(self.folder))

    def manifest(self, sequence: int | None = None) -> Manifest:
        """Return a checkpoint's manifest; without a sequence, the newest one's.

        Raises:
            UnknownCheckpoint: there is no such checkpoint here, or none yet.
            CheckpointNotUsable: a reset has undone it, or its output was given up.
            SinkError: the folder can't be read.
        """
        if sequence is None:
            # One that is being written is not whole yet; the one before it is the newest then.
            for checkpoint in self.published():
                found = manifest_in_force(self.folder, checkpoint)
                if found is not None:
                    return found
            raise UnknownCheckpoint(f"{self._where} has no published checkpoint yet")
        self._require_in_force(sequence)
        for checkpoint in self._named(layout.MANIFESTS, sequence):
            found = manifest_in_force(self.folder, checkpoint)
            if found is not None:
                return found
        raise UnknownCheckpoint(f"{self._where} has no checkpoint {sequence}; {self._those()}")

    def sequence_of(self, run: str, store: str | None) -> int:
        """Return the checkpoint that a DAG run has.

        Args:
            run: `DAG/RUN`.
            store: the store's URL; None: `KCR_STORE_URL`.

        Raises:
            InvalidTarget: the run is not named so.
            UnknownCheckpoint: it has no complete current checkpoint.
            StoreError: the store can't be asked.
        """
        from airflow_kcr.api import Region

        dag_id, _, run_id = run.partition("/")
        target = ToRun(dag_id=dag_id, run_id=run_id)
        with Region(self.owner.region, store) as region:
            if region.region_id() != self.owner.region_id:
                raise UnknownCheckpoint(
                    f"{self._where} is the folder of {self.owner}, and the store's region of that name is another one "
                    f"(id {region.region_id()}), so run {run} has no checkpoint here; {self._those()}"
                )
            return region.checkpoints.number_of_run(target.dag_id, target.run_id)

    def _require_in_force(self, sequence: int) -> None:
        by = timelines_in(self.folder).superseded_by(sequence)
        if by is not None:
            raise CheckpointNotUsable(
                f"checkpoint {sequence} of {self._where} was superseded by timeline {by}: a reset went back before "
                "it, and its "
                f"records are processed again; {self._those()}"
            )
        if self._named(layout.RETIRED, sequence):
            raise CheckpointNotUsable(
                f"checkpoint {sequence} of {self._where} was retired, and its output deleted (`kcr checkpoint clean "
                f"--retired`); {self._those()}"
            )

    def _those(self) -> str:
        found = [str(checkpoint.sequence) for checkpoint in islice(self.published(), SHOWN + 1)]
        if not found:
            return "none is published"
        return f"published are {'…, ' if len(found) > SHOWN else ''}{', '.join(reversed(found[:SHOWN]))}"

    @property
    def _where(self) -> str:
        return f"{self.owner.name}, region {self.owner.region} ({self.folder.uri})"

    def _named(self, above: str, sequence: int) -> list[CheckpointId]:
        return [
            checkpoint
            for checkpoint in checkpoints_on(self.folder, above, layout.shelf(sequence))
            if checkpoint.sequence == sequence
        ]
