"""What differs between the formats of file sinks: what Spark needs for one, and what there is beside the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from airflow_kcr.protocol.sinks import FileFormat
from airflow_kcr.sinks.files import FileTarget
from airflow_kcr.sinks.files.table import NO_TABLE, Table
from airflow_kcr.spark.delta import delta_table
from airflow_kcr.spark.session import DELTA, DELTA_CATALOG, DELTA_EXTENSION, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    table: Callable[[SparkSession, FileTarget], Table]
    """Opens what is beside the files; refuses a session that can't write it."""

    packages: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    catalog: str | None = None


_FORMATS: Final[Mapping[FileFormat, _Format]] = {
    FileFormat.PARQUET: _Format(table=lambda spark, target: NO_TABLE),
    FileFormat.DELTA: _Format(
        table=delta_table, packages=(DELTA,), extensions=(DELTA_EXTENSION,), catalog=DELTA_CATALOG
    ),
}


def table_of(spark: SparkSession, target: FileTarget) -> Table:
    """Return what a sink has beside its files; nothing of it is touched.

    Args:
        spark: the application's session.
        target: the sink.

    Raises:
        ConfigurationError: the session can't write this format.
    """
    return _FORMATS[target.format].table(spark, target)


def with_formats(settings: SparkSettings, targets: Iterable[FileTarget]) -> SparkSettings:
    """Return settings with what the formats of some sinks need beside them.

    Args:
        settings: of an application.
        targets: the file sinks of its region, of whatever group: any member may publish for all of them.
    """
    for kind in sorted({target.format for target in targets}):
        needs = _FORMATS[kind]
        settings = replace(
            settings,
            packages=(*settings.packages, *needs.packages),
            extensions=(*settings.extensions, *needs.extensions),
            catalog=settings.catalog or needs.catalog,
        )
    return settings
