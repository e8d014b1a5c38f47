"""Cuts that a reset has undone: noted in the folder as superseded, by whoever comes first."""

from __future__ import annotations

import logging

from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.accepted import Ledger
from airflow_kcr.sinks.files.documents import Manifest, Superseded
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import CutName
from airflow_kcr.sinks.files.table import Table
from airflow_kcr.sinks.files.target import FileTarget

_LOG = logging.getLogger(__name__)


def set_aside(target: FileTarget, folder: Folder, ledger: Ledger, table: Table) -> None:
    """Note every cut that a reset has undone, and take its manifest away; the note is there first.

    Before both, the sink's table has nothing of it any more: as long as there is no note, that is done again.

    Args:
        target: the sink.
        folder: where its files are.
        ledger: says what is undone.
        table: the sink's.

    Raises:
        SinkError: the folder, the table or the store is away.
    """
    undone = ledger.undone()
    published, noted = cuts_in(folder, layout.MANIFESTS), cuts_in(folder, layout.SUPERSEDED)
    fresh = sorted(undone.keys() - (noted - published))
    if fresh:
        table.hide(fresh)
    for cut in fresh:
        where = layout.superseded(cut)
        manifest = Manifest.of(folder.read(layout.manifest(cut))) if cut in published else None
        note = Superseded.of(folder.read(where)) if cut in noted else None
        if note is None or (note.manifest is None and manifest is not None):
            folder.replace(where, Superseded(undone_by=undone[cut], manifest=manifest).text())
        if cut in published:
            _LOG.info("%s: cut %s is superseded by lineage %s", target, cut, undone[cut])
            folder.delete([layout.manifest(cut)])


def cuts_in(folder: Folder, name: str) -> set[CutName]:
    """Return the cuts that a folder's files are about.

    Args:
        folder: the sink's.
        name: of the folder in it: `layout.MANIFESTS`, `SUPERSEDED` or `RETIRED`.
    """
    return {cut for name_ in folder.names(name) if (cut := layout.cut_of(name_)) is not None}
