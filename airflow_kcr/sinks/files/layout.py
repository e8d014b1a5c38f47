"""Where everything is in a file sink's folder; names that sort as cuts do.

::

    _kcr.json                            whose folder it is
    data/CUT/BATCH-EPOCH/part-….parquet  what one batch has written, CUT being what it was stamped with at its begin
    data/CUT/BATCH-EPOCH/_files.json     the list of those files, written when the batch is over
    compacted/CUT/….parquet              small files of a cut, put together
    manifests/CUT.json                   which files a published cut has
    superseded/CUT.json                  that a reset has undone a cut, with the manifest that it had
    retired/CUT.json                     that the output of a retired cut was given up, with the batches that it had
    table/                               the table in which readers see whole cuts, where the format has one

CUT is `LINEAGE.SEQUENCE`, zero-padded: also the partition key of the cut's asset event.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from airflow_kcr.protocol.values import BatchId, Epoch, Lineage, Sequence

OWNER: Final = "_kcr.json"
MANIFESTS: Final = "manifests"
SUPERSEDED: Final = "superseded"
RETIRED: Final = "retired"
DATA: Final = "data"
COMPACTED: Final = "compacted"
TABLE: Final = "table"
TEMPORARY: Final = "_temporary-"
"""Begins the names of what is still being written; Spark reads nothing that begins with an underscore."""

LIST: Final = "_files.json"
_SUFFIX: Final = ".json"
_NAME: Final = re.compile(r"(\d{6,})\.(\d{10,})")


class CutName(NamedTuple):
    """What a cut is called in a folder; of two, the later one is the greater one."""

    lineage: Lineage
    sequence: Sequence

    def __str__(self) -> str:
        return f"{self.lineage:06d}.{self.sequence:010d}"


def attempt(stamp: CutName, batch: BatchId, epoch: Epoch) -> str:
    """Return the folder of what one batch writes; no other one ever writes there, since a batch's id is its own."""
    return f"{DATA}/{stamp}/{batch}-{epoch}"


def batch_list(folder: str) -> str:
    """Return where the list of an attempt's files is."""
    return f"{folder}/{LIST}"


def manifest(cut: CutName) -> str:
    """Return where a cut's manifest is."""
    return f"{MANIFESTS}/{cut}{_SUFFIX}"


def superseded(cut: CutName) -> str:
    """Return where it is said that a reset has undone a cut."""
    return f"{SUPERSEDED}/{cut}{_SUFFIX}"


def retired(cut: CutName) -> str:
    """Return where it is said that the output of a retired cut was given up."""
    return f"{RETIRED}/{cut}{_SUFFIX}"


def compacted(cut: CutName) -> str:
    """Return the folder of the files that were put together for a cut."""
    return f"{COMPACTED}/{cut}"


def cut_of(name: str) -> CutName | None:
    """Return the cut that a file of `manifests`, `superseded` or `retired` is about; None: it is no such file."""
    return named(name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None


def named(name: str) -> CutName | None:
    """Return the cut that a folder of `data` or `compacted` is called after; None: it is no such folder."""
    found = _NAME.fullmatch(name)
    return None if found is None else CutName(Lineage(int(found[1])), Sequence(int(found[2])))
