"""What a region's sinks have written: what there is, what an earlier region has left, and what becomes of it.

`kcr region output`, `kcr region delete --with-output` and `kcr checkpoint clean` are these.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from airflow_kcr.api import opened
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.region.lifecycle import require_deletable
from airflow_kcr.protocol.values import RegionName, region_name
from airflow_kcr.sinks.contract import Choice, DeclaredSink, FoundOutput
from airflow_kcr.sinks.files.cleanup import Cleaned, GivenUp
from airflow_kcr.sinks.group import sinks_of_region
from airflow_kcr.sinks.kinds.files import DeclaredFolder
from airflow_kcr.spark.launch import launch, require_pyspark
from airflow_kcr.spec import stored_spec
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLEANING: Final = "kcr checkpoint clean"
_NO_CONF: Final[Mapping[str, str]] = MappingProxyType({})


def outputs(store: RegionStore, name: RegionName, conf: Mapping[str, str] = _NO_CONF) -> tuple[FoundOutput, ...]:
    """Return what a region's sinks have written, and what others have left there.

    Args:
        store: where the region is.
        name: its name.
        conf: settings of Spark, which reaches the folders of file sinks.

    Raises:
        UnknownRegion: there is none of that name.
        ConfigurationError: a variable is not set, a table can't be used at all.
        SinkError: a database or a folder can't be reached.
    """
    sinks = _declared(store, name, os.environ)
    with _lent_session(conf) as spark:
        return tuple(sink.output(spark) for sink in sinks)


def settle(
    store: RegionStore,
    name: RegionName,
    choice: Choice,
    conf: Mapping[str, str] = _NO_CONF,
    environ: Mapping[str, str] = os.environ,
) -> tuple[FoundOutput, ...]:
    """Do with what others have left where a region's sinks write what a person chose; return what was done.

    Args:
        store: where the region is.
        name: its name.
        choice: of the person.
        conf: settings of Spark, which reaches the folders of file sinks.
        environ: where references of the sinks are looked up.

    Raises:
        UnknownRegion: there is none of that name.
        RegionInState: the region is not stopped, or a member still holds a lease.
        ConfigurationError: a variable is not set, or a folder is another sink's.
        SinkError: a database or a folder refuses; of the other sinks, those before are settled.
    """
    _require_stopped(store, name)
    sinks = _declared(store, name, environ)
    with _lent_session(conf) as spark:
        found = (sink.settle(choice, store, spark) for sink in sinks)
        return tuple(one for one in found if one is not None)


def delete_outputs(store: RegionStore, name: RegionName, conf: Mapping[str, str]) -> tuple[FoundOutput, ...]:
    """Delete what a stopped region's sinks have written, with their progress; return the sinks with what was done.

    Args:
        store: where the region is.
        name: its name.
        conf: settings of Spark, which reaches the folders of file sinks.

    Raises:
        UnknownRegion: there is none of that name.
        RegionInState: the region is not stopped, or a member still holds a lease.
        ConfigurationError: a variable is not set, or it has a custom sink, which can't be deleted from here.
        SinkError: a database or a folder refuses; what was deleted before is gone, and the call may be repeated.
    """
    _require_stopped(store, name)
    sinks = _declared(store, name, os.environ)
    kept = [sink.spec for sink in sinks if not sink.is_deletable]
    if kept:
        raise ConfigurationError(
            f"sink {', '.join(one.name for one in kept)} is a {kept[0].kind} one, whose output only you can delete; "
            "delete it, then delete the region without --with-output"
        )
    with _lent_session(conf) as spark:
        return tuple(sink.delete(store, spark) for sink in sinks)


@contextmanager
def _lent_session(conf: Mapping[str, str]) -> Iterator[Callable[[], SparkSession]]:
    """Lend what starts a session, for whichever sink asks for it first."""
    with ExitStack() as stack:

        @cache
        def spark() -> SparkSession:
            return stack.enter_context(file_session(conf))

        yield spark


def _declared(store: RegionStore, name: RegionName, environ: Mapping[str, str]) -> tuple[DeclaredSink, ...]:
    region = store.read(name)[0]
    spec = stored_spec(region.spec.text)
    return tuple(sinks_of_region(spec, environ, region_id=region.region_id, taken=store.taken(name)))


def _require_stopped(store: RegionStore, name: RegionName) -> None:
    # As for deleting it: what its sinks have written can't change under its members.
    require_deletable(*store.read(name))


def _folders(sinks: Iterable[DeclaredSink]) -> list[DeclaredFolder]:
    return [sink for sink in sinks if isinstance(sink, DeclaredFolder)]


# What no checkpoint needs any more in the folders of file sinks: `kcr checkpoint clean`.


def clean_checkpoints(
    spark: SparkSession,
    region: str,
    what: GivenUp | str = GivenUp.UNDONE,
    *,
    store: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Cleaned, ...]:
    """Delete unreadable output from a region's file sinks, while members and publishers keep running.

    No file goes that a checkpoint has which can be read, or that a later checkpoint may need. Killed, or run twice at a
    time, it has deleted a part; the next one continues.

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
        ConfigurationError: `what` is neither, a variable is not set, or a folder is another sink's.
        SinkError: a folder can't be reached or written to.
        StoreError: the store can't be asked what is undone or retired.
    """
    try:
        wanted = GivenUp(what)
    except ValueError:
        raise ConfigurationError(f"{what!r} can't be cleaned: say {' or '.join(GivenUp)}") from None
    with opened(store) as found:
        name = region_name(region)
        return tuple(folder.clean(wanted, spark, found) for folder in _folders(_declared(found, name, environ)))


@contextmanager
def file_session(conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Lend a session for the folders of sinks, in this process; it needs no connector.

    Args:
        conf: settings of Spark, for instance `spark.jars.packages` and `spark.hadoop.fs.…` of an object store.

    Raises:
        ToolMissing: there is no PySpark or no Java.
        ServiceFailed: Spark's JVM did not start; the message has its own words.
        ConfigurationError: a setting holds a secret, which would stand in the command line of Spark's JVM.
    """
    require_pyspark()
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    wanted = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.master": "local[1]", **conf}
    settings = SparkConf(loadDefaults=False).setAll(list(wanted.items()))
    launch(settings)
    spark = SparkSession.builder.config(conf=settings).appName(_CLEANING).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
