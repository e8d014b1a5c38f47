"""Which cuts are in force: by one document for all lineages, whatever their number, and however far a reset goes back.

A reset says of a whole stretch of cuts that it has undone them; nothing that was written for one of them is touched.
So it costs the same after a minute and after years. What the cuts had is deleted later, by `cleaning`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.values import Lineage
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.accepted import Ledger
from airflow_kcr.sinks.files.documents import Lineages
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import CutName
from airflow_kcr.sinks.files.table import Table
from airflow_kcr.sinks.files.target import FileTarget

_LOG = logging.getLogger(__name__)


def lineages_in(folder: Folder) -> Lineages:
    """Return what a folder knows of its lineages; a document that is not whole yet is none.

    Raises:
        SinkError: the folder is away.
    """
    noted = filter(None, map(layout.lineage_of, folder.names(layout.LINEAGES)))
    for number, count in sorted(noted, reverse=True):
        found = Lineages.of(folder.read(layout.lineage(number, count)))
        if found is not None:
            return found
    return Lineages()


def brought_up_to_date(
    target: FileTarget, folder: Folder, ledger: Ledger, table: Table, known: Lineages | None = None
) -> Lineages:
    """Note in the folder what resets have undone since it was noted last, and return what is noted now.

    The sink's table has nothing of it any more before the note is there: as long as there is none, that is done again.

    Args:
        target: the sink.
        folder: where its files are.
        ledger: says what is undone.
        table: the sink's.
        known: what was noted when this process looked last; the folder is not looked at while nothing has changed.

    Raises:
        SinkError: the folder, the table or the store is away.
    """
    if known is not None and _with_news(known, ledger) == known:
        return known
    known = lineages_in(folder)
    fresh = _with_news(known, ledger)
    if fresh == known:
        return known
    news = [one for one in fresh.undone if one not in known.undone]
    if news:
        table.hide([one for one in fresh.undone if one.lineage >= known.lineage])
        _LOG.info("%s: undone by resets, and not in force any more: %s", target, ", ".join(map(str, news)))
    counted = sum(one.last - one.first + 1 for one in fresh.of_newest())
    where, text = layout.lineage(Lineage(fresh.lineage), counted), fresh.text()
    if not folder.create(where, text) and Lineages.of(folder.read(where)) is None:
        folder.replace(where, text)
    if Lineages.of(folder.read(where)) is None:
        raise SinkError(f"{target}: what was undone could not be noted in {folder.uri}/{where}; it is tried again")
    return fresh


def _with_news(known: Lineages, ledger: Ledger) -> Lineages:
    news = ledger.lineages(Lineage(known.lineage))
    return known if news.lineage < known.lineage else known.followed_by(news.lineage, news.undone)


def shelves(folder: Folder, above: str) -> list[str]:
    """Return the folders in which cuts are by their thousands, oldest first.

    Args:
        folder: the sink's.
        above: `layout.DATA`, `COMPACTED`, `MANIFESTS` or `RETIRED`.
    """
    return sorted((name for name in folder.names(above) if layout.is_shelf(name)), key=int)


def cuts_on(folder: Folder, above: str, shelf: str) -> set[CutName]:
    """Return the cuts that the files on one shelf are about.

    Args:
        folder: the sink's.
        above: `layout.MANIFESTS` or `RETIRED`.
        shelf: one of `shelves`.
    """
    return set(filter(None, map(layout.cut_of, folder.names(f"{above}/{shelf}"))))


def newest_first(folder: Folder, lineages: Lineages) -> Iterator[CutName]:
    """Yield the cuts in force that have a manifest and were not given up, looking at no more than is asked for."""
    for shelf in reversed(shelves(folder, layout.MANIFESTS)):
        there = cuts_on(folder, layout.MANIFESTS, shelf) - cuts_on(folder, layout.RETIRED, shelf)
        yield from sorted((c for c in there if lineages.superseded_by(c.sequence) is None), reverse=True)
