"""Which checkpoints are in force.

By one document for all timelines, whatever their number, and however far a reset goes back.

A reset says of a whole stretch of checkpoints that it has undone them; nothing that was written for one of them is
touched. So it costs the same after a minute and after years. What the checkpoints had is deleted later, by `cleanup`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.values import Timeline
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.contents import Ledger
from airflow_kcr.sinks.files.documents import Timelines
from airflow_kcr.sinks.files.folder import Folder, Table
from airflow_kcr.sinks.files.layout import CheckpointName, FileTarget

_LOG = logging.getLogger(__name__)


def timelines_in(folder: Folder) -> Timelines:
    """Return what a folder knows of its timelines; a document that is not whole yet is none.

    Raises:
        SinkError: the folder is away.
    """
    noted = filter(None, map(layout.timeline_of, folder.names(layout.TIMELINES)))
    for number, count in sorted(noted, reverse=True):
        found = Timelines.of(folder.read(layout.timeline(number, count)))
        if found is not None:
            return found
    return Timelines()


def brought_up_to_date(
    target: FileTarget, folder: Folder, ledger: Ledger, table: Table, known: Timelines | None = None
) -> Timelines:
    """Note in the folder what resets have undone since it was noted last, and return what is noted now.

    The sink's table has nothing of it any more before the note is there: as long as there is none, that is done again.

    Args:
        target: the sink.
        folder: where its files are.
        ledger: says what is undone.
        table: the sink's.
        known: what was noted at this process's last read; the folder is not read while nothing has changed.

    Raises:
        SinkError: the folder, the table or the store is away.
    """
    if known is not None and _with_news(known, ledger) == known:
        return known
    known = timelines_in(folder)
    fresh = _with_news(known, ledger)
    if fresh == known:
        return known
    news = [one for one in fresh.undone if one not in known.undone]
    if news:
        table.hide([one for one in fresh.undone if one.timeline >= known.timeline])
        _LOG.info("%s: undone by resets, and not in force any more: %s", target, ", ".join(map(str, news)))
    counted = sum(one.last - one.first + 1 for one in fresh.of_newest())
    where, text = layout.timeline(Timeline(fresh.timeline), counted), fresh.text()
    if not folder.create(where, text) and Timelines.of(folder.read(where)) is None:
        folder.replace(where, text)
    if Timelines.of(folder.read(where)) is None:
        raise SinkError(f"{target}: what was undone could not be noted in {folder.uri}/{where}; it is tried again")
    return fresh


def _with_news(known: Timelines, ledger: Ledger) -> Timelines:
    news = ledger.timelines(Timeline(known.timeline))
    return known if news.timeline < known.timeline else known.followed_by(news.timeline, news.undone)


def shelves(folder: Folder, above: str) -> list[str]:
    """Return the folders in which checkpoints are by their thousands, oldest first.

    Args:
        folder: the sink's.
        above: `layout.DATA`, `COMPACTED`, `MANIFESTS` or `RETIRED`.
    """
    return sorted((name for name in folder.names(above) if layout.is_shelf(name)), key=int)


def checkpoints_on(folder: Folder, above: str, shelf: str) -> set[CheckpointName]:
    """Return the checkpoints that the files on one shelf are about.

    Args:
        folder: the sink's.
        above: `layout.MANIFESTS` or `RETIRED`.
        shelf: one of `shelves`.
    """
    return set(filter(None, map(layout.checkpoint_of, folder.names(f"{above}/{shelf}"))))


def newest_first(folder: Folder, timelines: Timelines) -> Iterator[CheckpointName]:
    """Yield the checkpoints in force that have a manifest and were not given up, as many as are asked for."""
    for shelf in reversed(shelves(folder, layout.MANIFESTS)):
        there = checkpoints_on(folder, layout.MANIFESTS, shelf) - checkpoints_on(folder, layout.RETIRED, shelf)
        yield from sorted((c for c in there if timelines.superseded_by(c.sequence) is None), reverse=True)
