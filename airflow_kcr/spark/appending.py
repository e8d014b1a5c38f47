"""Many very small Parquet files, one behind the other in fewer of them, before Spark makes a few of all their rows.

Spark takes longer to open a file than to read what is in a very small one; Parquet's own library copies it as it is, in
less than half of that time. What comes of that is not worth keeping: its parts are as small as they were.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from airflow_kcr.errors import SinkError
from airflow_kcr.spark.hadoop import HadoopFolder

FEWEST: Final = 64
"""Fewer files than that are left to Spark. So many become one: they are open at the same time."""

MOST_BYTES: Final = 64 * 1024 * 1024
"""This process copies them, so larger ones are left to Spark, which has executors for it."""

_OTHER_CALENDAR: Final = frozenset({"org.apache.spark.legacyDateTime", "org.apache.spark.legacyINT96"})
"""In a file's footer they say of all its old dates that another calendar is meant; a file of both kinds can't be."""

_LOG = logging.getLogger(__name__)


def appended(folder: HadoopFolder, sources: Mapping[str, int], into: str) -> tuple[str, ...]:
    """Return the paths of files that have the same rows as others, fewer where that saves time.

    Args:
        folder: where the files are.
        sources: paths of the files, which have one schema, with their bytes.
        into: the path of a folder for new files; whoever asks deletes it when they were read.
    """
    paths = tuple(sources)
    if len(paths) < 2 * FEWEST or sum(sources.values()) > MOST_BYTES:
        return paths
    parts = {f"{into}/{place:05d}.parquet": paths[place : place + FEWEST] for place in range(0, len(paths), FEWEST)}
    try:
        footers = folder.append_parquet(parts)
    except SinkError as error:
        # Files of one schema may differ all the same; and what is missing or damaged Spark finds as well.
        _LOG.info("%s: small files are read one by one: %s", folder.uri, error)
        return paths
    said = {name for footer in footers for name in footer}
    return paths if said & _OTHER_CALENDAR else tuple(parts)
