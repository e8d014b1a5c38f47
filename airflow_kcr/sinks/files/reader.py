"""Reading a file sink's checkpoints.

`read_checkpoint` gives exactly what one checkpoint has, now and whenever it is asked again.

    from airflow_kcr.sinks import read_checkpoint

    rows = read_checkpoint(spark, "s3a://lake/delays", sequence=42)

It asks the folder alone; the region's store only where a checkpoint is named by its DAG run. A checkpoint whose output
`cleanup` has deleted is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import TYPE_CHECKING

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, UnknownCheckpoint
from airflow_kcr.protocol.targets import ToRun
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.contents import checkpoints_on, newest_first, timelines_in
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.hadoop import HadoopFolder
from airflow_kcr.sinks.files.layout import CheckpointName, Manifest, Owner
from airflow_kcr.sinks.files.writer import read_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COORDINATES = "kcr_topic STRING, kcr_partition INT, kcr_offset BIGINT"
"""Of the record that a row was made of, in every checkpoint."""

SHOWN = 5
"""How many checkpoints a message names."""


def read_checkpoint(
    spark: SparkSession, path: str, *, sequence: int | None = None, run: str | None = None, store: str | None = None
) -> DataFrame:
    """Return the rows of one checkpoint: what was processed since the current checkpoint before it.

    Args:
        spark: a session that can read the folder.
        path: of the file sink, as its spec has it, references filled in.
        sequence: the checkpoint's. Without it and without `run`, the newest checkpoint there is: another one each time.
        run: the DAG run that asked for the checkpoint, as `DAG/RUN`; the store knows which checkpoint that is.
        store: the store's URL, only for `run`; absent: `KCR_STORE_URL`.

    Returns:
        The columns that the pipeline has written, and the records' coordinates: `kcr_topic`, `kcr_partition`,
        `kcr_offset`. Reading the same checkpoint again reads the same files.

    Raises:
        UnknownCheckpoint: there is no such checkpoint here, or none yet.
        CheckpointNotUsable: a reset has undone the checkpoint, and the message names the timeline that replaced it; or
            the checkpoint was retired, and its output deleted.
        ConfigurationError: the path is no file sink's folder, or both `sequence` and `run` are given.
        SinkError: the folder can't be read.
        StoreError: the store can't be asked which checkpoint a run has.
    """
    if sequence is not None and run is not None:
        raise ConfigurationError("read_checkpoint was given sequence and run; one of them names the checkpoint")
    checkpoints = Checkpoints.of(HadoopFolder(spark, path))
    if run is not None:
        sequence = checkpoints.sequence_of(run, store)
    return rows_of(spark, path, checkpoints.manifest(sequence))


def rows_of(spark: SparkSession, path: str, manifest: Manifest) -> DataFrame:
    """Return the rows of a manifest's files.

    Args:
        spark: the session.
        path: of the file sink.
        manifest: of one of its checkpoints.
    """
    root = path.rstrip("/")
    parts = [
        read_files(spark, [f"{root}/{file.path}" for file in manifest.files if file.schema == number], schema)
        for number, schema in enumerate(manifest.schemas)
    ]
    if not parts:
        return spark.createDataFrame([], COORDINATES)
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The checkpoints of a file sink, as its folder has them."""

    folder: Folder
    owner: Owner

    @classmethod
    def of(cls, folder: Folder) -> Checkpoints:
        """Return the checkpoints of a folder.

        Raises:
            ConfigurationError: it is no file sink's, or of another layout.
            SinkError: it can't be read.
        """
        owner = Owner.of(folder.read(layout.OWNER))
        if owner is None:
            raise ConfigurationError(
                f"{folder.uri} is no folder of a file sink (it has no {layout.OWNER}); name the path that the region's "
                "spec has, once its members have been started"
            )
        return cls(folder=folder, owner=owner)

    def published(self) -> Iterator[CheckpointName]:
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
                found = Manifest.of(self.folder.read(layout.manifest(checkpoint)))
                if found is not None:
                    return found
            raise UnknownCheckpoint(f"{self._where} has no published checkpoint yet")
        self._require_in_force(sequence)
        for checkpoint in self._named(layout.MANIFESTS, sequence):
            found = Manifest.of(self.folder.read(layout.manifest(checkpoint)))
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
            return region.checkpoint_number_of_run(target.dag_id, target.run_id)

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
        return f"sink {self.owner.sink} of group {self.owner.group}, region {self.owner.region} ({self.folder.uri})"

    def _named(self, above: str, sequence: int) -> list[CheckpointName]:
        return [
            checkpoint
            for checkpoint in checkpoints_on(self.folder, above, layout.shelf(sequence))
            if checkpoint.sequence == sequence
        ]
