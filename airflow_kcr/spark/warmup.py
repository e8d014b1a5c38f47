"""Getting Spark ready before the first batch counts.

The first batch of an application pays for much that no later one does: the connector's classes, a consumer for each
partition, code that Spark generates, Python workers and what they import. That took 12 to 16 s on a laptop, of the
batch's timeout. So a record of each partition is read, and seen by Python, while the members join their group.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Final

from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.values import GroupPartition, Offset, Range, Timeline
from airflow_kcr.spark.pipelines import Pipeline
from airflow_kcr.spark.reads import Reader, Source
from airflow_kcr.spark.session import member_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHIN: Final = 60.0
"""Seconds that the members wait for it; then they begin, and their first batch pays for what is left."""

_NO_TIMELINE: Final = Timeline(0)
"""Executors keep consumers by the timeline; a batch has none of these."""

_LOG = logging.getLogger(__name__)


class Warming:
    """Gets Spark ready, in a thread of its own.

    Args:
        work: what is to be done; what it raises is logged, and blocks nothing.
        within: seconds to wait for it.
    """

    def __init__(self, work: Callable[[], None], within: float = WITHIN) -> None:
        self._work, self._deadline = work, time.monotonic() + within
        self._done = threading.Event()
        threading.Thread(target=self._run, name="warms Spark up", daemon=True).start()

    def is_over(self) -> bool:
        """Whether batches may begin: Spark is ready, or the wait for it is over."""
        return self._done.is_set() or time.monotonic() >= self._deadline

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 (the first batch meets it again, and says what it means)
            _LOG.info("Spark could not be warmed up, the first batch takes longer: %s: %s", type(error).__name__, error)
        else:
            _LOG.info("Spark is ready after %.1f s", time.monotonic() - began)
        finally:
            self._done.set()


def warm_up(
    spark: SparkSession, source: Source, logs: Mapping[GroupPartition, LogBounds], imports: Iterable[str]
) -> None:
    """Read a record of each log that has one, and have Python workers see it and import what the pipeline does.

    Args:
        spark: the application's session.
        source: of one of its members.
        logs: of the group; if none has a record, only Python is started.
        imports: names of modules; those that a worker does not have are left out.
    """
    from pyspark.sql.functions import udf

    context, session = spark.sparkContext, member_session(spark)
    context.setJobDescription("kcr: gets Spark ready")
    ranges = {p: Range(log.start, Offset(log.start + 1)) for p, log in logs.items() if log.start < log.end}
    slots = context.defaultParallelism
    rows = Reader(session, source).read(ranges, _NO_TIMELINE) if ranges else session.range(slots, numPartitions=slots)
    # What pipelines are made of: a function in Python, a shuffle, a write.
    ready = udf(_imported(tuple(imports)), "int")
    rows.select(ready(rows.columns[0]).alias("modules")).groupBy("modules").count().write.format("noop").mode(
        "overwrite"
    ).save()


def imports_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the modules that a pipeline's module has imported; Python workers need them for its functions."""
    module = sys.modules.get(getattr(pipeline, "__module__", ""))
    found = (value.__name__ for value in vars(module or ModuleType("none")).values() if isinstance(value, ModuleType))
    return tuple(sorted(set(found)))


def _imported(names: tuple[str, ...]) -> Callable[[object], int]:
    def ready(value: object) -> int:
        for name in names:
            with suppress(Exception):  # what the driver has need not be there
                importlib.import_module(name)
        return len(names)

    return ready
