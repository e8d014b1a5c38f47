"""Reads the output of one checkpoint: of a file sink by its folder, of a table by its name or its location."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.sinks.delta.places import DeltaPlace
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.frames import Checkpoints, rows_of
from airflow_kcr.sinks.files.hadoop import HadoopFolder
from airflow_kcr.sinks.iceberg.catalogs import NamedTable
from airflow_kcr.sinks.tables.owned import NotedTable, TablePlace, folder_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READER: Final = "read_checkpoint"
_NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})


def read_checkpoint(
    spark: SparkSession,
    path: str,
    *,
    sequence: int | None = None,
    run: str | None = None,
    store: str | None = None,
    catalog: str | None = None,
    options: Mapping[str, str] = _NO_OPTIONS,
) -> DataFrame:
    """Return the rows of one checkpoint: what was processed since the current checkpoint before it.

    Args:
        spark: a session that can read the folder.
        path: of the file sink or of the Delta table, as its spec has it, references filled in; with `catalog`, the name
            of an Iceberg table.
        sequence: the checkpoint's. Without it and without `run`, the newest checkpoint there is: another one each time.
        run: the DAG run that asked for the checkpoint, as `DAG/RUN`; the store knows which checkpoint that is.
        store: the store's URL, only for `run`; absent: `KCR_STORE_URL`.
        catalog: of an Iceberg table, as the spec has it.
        options: of a table, as the spec has them, references filled in.

    Returns:
        The columns that the pipeline has written, and the records' coordinates: `kcr_topic`, `kcr_partition`,
        `kcr_offset`; of a table also `kcr_batch`. Reading the same checkpoint again reads the same files, until its
        records are processed once more and the output is replaced; what others did to a table since changes nothing.

    Raises:
        UnknownCheckpoint: there is no such checkpoint here, or none yet.
        CheckpointNotUsable: a reset has undone the checkpoint, and the message names the timeline that replaced it; or
            the checkpoint was retired, and its output deleted.
        ConfigurationError: there is no such table, or no sink writes to it; the path is no file sink's folder; or both
            `sequence` and `run` are given.
        SinkError: the folder or the table can't be read.
        StoreError: the store can't be asked which checkpoint a run has.
    """
    if sequence is not None and run is not None:
        raise ConfigurationError("read_checkpoint was given sequence and run; one of them names the checkpoint")
    folder = HadoopFolder(spark, path) if catalog is None else None
    if folder is None or (folder.read(layout.OWNER) is None and folder.names("_delta_log")):
        folder = HadoopFolder(spark, _folder_of_table(path, catalog, options))
    checkpoints = Checkpoints.of(folder)
    if run is not None:
        sequence = checkpoints.sequence_of(run, store)
    return rows_of(spark, folder.uri, checkpoints.manifest(sequence))


def _folder_of_table(name: str, catalog: str | None, options: Mapping[str, str]) -> str:
    """Return where the sink of a table keeps its files."""
    place: TablePlace[NotedTable] = DeltaPlace(_READER, name, options)
    if catalog is not None:
        place = NamedTable(lambda _: _READER, catalog, options, name)
    noted = place.noted()
    if noted is None:
        raise ConfigurationError(f"{_READER}: no sink writes to table {name}; name the one of the spec")
    return folder_of(place.location(), noted.owner)
