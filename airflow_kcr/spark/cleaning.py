"""Deleting what nobody can read any more from a region's file sinks.

    from airflow_kcr.spark import clean_checkpoints

    clean_checkpoints(spark, "flights")                 # what resets have undone, and what died
    clean_checkpoints(spark, "flights", "retired")      # the output of retired checkpoints as well

Spark is there for its file systems; nothing is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airflow_kcr.api import opened
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import region_name
from airflow_kcr.sinks.files import FileTarget
from airflow_kcr.sinks.files.cleaning import Cleaned, Cleaner, GivenUp
from airflow_kcr.spark.file_formats import table_of, with_formats
from airflow_kcr.spark.group_sinks import file_targets
from airflow_kcr.spark.hadoop import HadoopFolder
from airflow_kcr.spark.installation import no_pyspark
from airflow_kcr.spark.launch import launch
from airflow_kcr.spark.region_ledger import RegionLedger
from airflow_kcr.spark.session import SparkSettings, missing_extensions, names_library
from airflow_kcr.spec import RegionSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = "spark.jars.packages"


def clean_checkpoints(
    spark: SparkSession,
    region: str,
    what: GivenUp | str = GivenUp.UNDONE,
    *,
    store: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Cleaned, ...]:
    """Delete what nobody can read any more from a region's file sinks, whatever else is at work meanwhile.

    No file goes that a checkpoint has which can be read, or that a later checkpoint may need. Killed, or run twice at a
    time, it has deleted a part; the next one goes on.

    Args:
        spark: a session that can write to the folders.
        region: whose sinks.
        what: `undone`: files of checkpoints that resets have undone, and of batches that never counted. `retired`: the
            output of checkpoints whose checkpoints are retired as well; these could be read until now.
        store: the store's URL; absent: `KCR_STORE_URL`.
        environ: where references of the sinks' paths are looked up.

    Returns:
        For each sink what was deleted, in the order of the spec.

    Raises:
        UnknownRegion: there is none of that name.
        ConfigurationError: `what` is neither, a variable is not set, a folder is another sink's, or this session
            can't write the format of one.
        SinkError: a folder can't be reached or written to.
        StoreError: the store can't be asked what is undone or retired.
    """
    try:
        wanted = GivenUp(what)
    except ValueError:
        raise ConfigurationError(f"{what!r} can't be cleaned: say {' or '.join(GivenUp)}") from None
    with opened(store) as found:
        name = region_name(region)
        targets = file_targets(RegionSpec.from_json(found.read(name)[0].spec.text), environ)
        cleaners = [
            Cleaner(t, HadoopFolder(spark, t.path), RegionLedger(found, name), table_of(spark, t)) for t in targets
        ]
        return tuple(cleaner.clean(wanted) for cleaner in cleaners)


def sinks_of(
    region: str, *, store: str | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[FileTarget, ...]:
    """Return the file sinks of a region.

    Args:
        region: whose.
        store: the store's URL; absent: `KCR_STORE_URL`.
        environ: where references of the sinks' paths are looked up.

    Raises:
        UnknownRegion: there is none of that name.
        ConfigurationError: a variable is not set.
        StoreError: the store can't be asked.
    """
    with opened(store) as found:
        return file_targets(RegionSpec.from_json(found.read(region_name(region))[0].spec.text), environ)


@contextmanager
def file_session(conf: Mapping[str, str], sinks: Iterable[FileTarget] = ()) -> Iterator[SparkSession]:
    """Lend a session for the folders of sinks, in this process; it needs no connector.

    Args:
        conf: settings of Spark, for instance `spark.jars.packages` and `spark.hadoop.fs.…` of an object store.
        sinks: whose formats it can write.

    Raises:
        ToolMissing: there is no PySpark or no Java.
        ServiceFailed: Spark's JVM did not start; the message has its own words.
        ConfigurationError: a setting holds a secret, which would stand in the command line of Spark's JVM.
    """
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise no_pyspark(error) from error
    wanted = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.master": "local[1]", **conf}
    wanted |= _of_formats(wanted, sinks)
    settings = SparkConf(loadDefaults=False).setAll(list(wanted.items()))
    launch(settings)
    spark = SparkSession.builder.config(conf=settings).appName("kcr checkpoint clean").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _of_formats(conf: Mapping[str, str], sinks: Iterable[FileTarget]) -> dict[str, str]:
    """Return what the formats of sinks need that is not in the settings."""
    needs = with_formats(SparkSettings(app_name="kcr checkpoint clean", conf=conf), sinks)
    found = missing_extensions(conf, needs)
    packages = [one for one in needs.packages if not names_library(conf, one.split(":")[1])]
    if packages:
        found[PACKAGES] = ",".join((*filter(None, [conf.get(PACKAGES)]), *packages))
    return found
