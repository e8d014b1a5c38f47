"""Reading a file sink's cuts: `read_cut` gives exactly what one cut has, now and whenever it is asked again.

    from airflow_kcr.spark import read_cut

    rows = read_cut(spark, "s3a://lake/delays", sequence=42)

It asks the folder alone; the region's store only where a cut is named by its DAG run. A cut whose output `cleaning` has
deleted is refused by name.
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
from airflow_kcr.sinks.files.documents import Manifest, Owner
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.force import cuts_on, lineages_in, newest_first
from airflow_kcr.sinks.files.layout import CutName
from airflow_kcr.spark.file_sinks import read_files
from airflow_kcr.spark.hadoop import HadoopFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COORDINATES = "kcr_topic STRING, kcr_partition INT, kcr_offset BIGINT"
"""Of the record that a row was made of, in every cut."""

SHOWN = 5
"""How many cuts a message names."""


def read_cut(
    spark: SparkSession, path: str, *, sequence: int | None = None, run: str | None = None, store: str | None = None
) -> DataFrame:
    """Return the rows of one cut: what was processed between the cut before it on the path, and it.

    Args:
        spark: a session that can read the folder.
        path: of the file sink, as its spec has it, references filled in.
        sequence: the cut's. Without it and without `run`, the newest cut there is: another one each time.
        run: the DAG run that asked for the cut, as `DAG/RUN`; the store knows which cut that is.
        store: the store's URL, only for `run`; absent: `KCR_STORE_URL`.

    Returns:
        The columns that the pipeline has written, and the records' coordinates: `kcr_topic`, `kcr_partition`,
        `kcr_offset`. Reading the same cut again reads the same files.

    Raises:
        UnknownCheckpoint: there is no such cut here, or none yet.
        CheckpointNotUsable: a reset has undone the cut, and the message names the lineage that replaced it; or the cut
            was retired, and its output deleted.
        ConfigurationError: the path is no file sink's folder, or both `sequence` and `run` are given.
        SinkError: the folder can't be read.
        StoreError: the store can't be asked which cut a run has.
    """
    if sequence is not None and run is not None:
        raise ConfigurationError("read_cut was given sequence and run; one of them names the cut")
    cuts = Cuts.of(HadoopFolder(spark, path))
    if run is not None:
        sequence = cuts.sequence_of(run, store)
    return rows_of(spark, path, cuts.manifest(sequence))


def rows_of(spark: SparkSession, path: str, manifest: Manifest) -> DataFrame:
    """Return the rows of a manifest's files.

    Args:
        spark: the session.
        path: of the file sink.
        manifest: of one of its cuts.
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
class Cuts:
    """The cuts of a file sink, as its folder has them."""

    folder: Folder
    owner: Owner

    @classmethod
    def of(cls, folder: Folder) -> Cuts:
        """Return the cuts of a folder.

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

    def published(self) -> Iterator[CutName]:
        """Yield the cuts that can be read, newest first, looking no further back than is asked for."""
        return newest_first(self.folder, lineages_in(self.folder))

    def manifest(self, sequence: int | None = None) -> Manifest:
        """Return a cut's manifest; without a sequence, the newest one's.

        Raises:
            UnknownCheckpoint: there is no such cut here, or none yet.
            CheckpointNotUsable: a reset has undone it, or its output was given up.
            SinkError: the folder can't be read.
        """
        if sequence is None:
            # One that is being written is not whole yet; the one before it is the newest then.
            for cut in self.published():
                found = Manifest.of(self.folder.read(layout.manifest(cut)))
                if found is not None:
                    return found
            raise UnknownCheckpoint(f"{self._where} has no published cut yet")
        self._require_in_force(sequence)
        for cut in self._named(layout.MANIFESTS, sequence):
            found = Manifest.of(self.folder.read(layout.manifest(cut)))
            if found is not None:
                return found
        raise UnknownCheckpoint(f"{self._where} has no cut {sequence}; {self._those()}")

    def sequence_of(self, run: str, store: str | None) -> int:
        """Return the cut that a DAG run has.

        Args:
            run: `DAG/RUN`.
            store: the store's URL; None: `KCR_STORE_URL`.

        Raises:
            InvalidTarget: the run is not named so.
            UnknownCheckpoint: it has no complete cut on the path.
            StoreError: the store can't be asked.
        """
        from airflow_kcr.api import Region

        dag_id, _, run_id = run.partition("/")
        target = ToRun(dag_id=dag_id, run_id=run_id)
        with Region(self.owner.region, store) as region:
            return region.cut_of_run(target.dag_id, target.run_id)

    def _require_in_force(self, sequence: int) -> None:
        by = lineages_in(self.folder).superseded_by(sequence)
        if by is not None:
            raise CheckpointNotUsable(
                f"cut {sequence} of {self._where} was superseded by lineage {by}: a reset went back before it, and its "
                f"records are processed again; {self._those()}"
            )
        if self._named(layout.RETIRED, sequence):
            raise CheckpointNotUsable(
                f"cut {sequence} of {self._where} was retired, and its output deleted (`kcr checkpoint clean "
                f"--retired`); {self._those()}"
            )

    def _those(self) -> str:
        found = [str(cut.sequence) for cut in islice(self.published(), SHOWN + 1)]
        if not found:
            return "none is published"
        return f"published are {'…, ' if len(found) > SHOWN else ''}{', '.join(reversed(found[:SHOWN]))}"

    @property
    def _where(self) -> str:
        return f"sink {self.owner.sink} of group {self.owner.group}, region {self.owner.region} ({self.folder.uri})"

    def _named(self, above: str, sequence: int) -> list[CutName]:
        return [cut for cut in cuts_on(self.folder, above, layout.shelf(sequence)) if cut.sequence == sequence]
