"""Where everything is in a file sink's folder; names that sort as cuts do.

::

    _kcr.json                            whose folder it is
    lineages/LINEAGE.COUNT.json          which cuts this lineage and those before it have undone
    data/SHELF/CUT/BATCH-EPOCH/part-….parquet
                                         what one batch has written, CUT being what it was stamped with at its begin
    data/SHELF/CUT/BATCH-EPOCH/_files.json
                                         the list of those files, written when the batch is over
    compacted/SHELF/CUT/….parquet        small files of a cut, put together
    manifests/SHELF/CUT.json             which files a published cut has
    retired/SHELF/CUT.json               that the output of a retired cut was given up, with the batches that it had
    table/                               the table in which readers see whole cuts, where the format has one

CUT is `LINEAGE.SEQUENCE`, zero-padded: also the partition key of the cut's asset event. SHELF is the sequence in
thousands, so that no folder ever has more than a thousand cuts, however many there have been. COUNT is how many cuts
LINEAGE had undone when the file was written: of several, the last one counts.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from airflow_kcr.protocol.values import BatchId, Epoch, Lineage, Sequence

OWNER: Final = "_kcr.json"
LINEAGES: Final = "lineages"
MANIFESTS: Final = "manifests"
RETIRED: Final = "retired"
DATA: Final = "data"
COMPACTED: Final = "compacted"
TABLE: Final = "table"
TEMPORARY: Final = "_temporary-"
"""Begins the names of what is still being written; Spark reads nothing that begins with an underscore."""

LIST: Final = "_files.json"
SHELF: Final = 1_000
"""How many sequences share a folder."""

_SUFFIX: Final = ".json"
_NAME: Final = re.compile(r"(\d{6,})\.(\d{10,})")
_SHELF: Final = re.compile(r"\d{7,}")


class CutName(NamedTuple):
    """What a cut is called in a folder; of two, the later one is the greater one."""

    lineage: Lineage
    sequence: Sequence

    def __str__(self) -> str:
        return f"{self.lineage:06d}.{self.sequence:010d}"


def attempt(stamp: CutName, batch: BatchId, epoch: Epoch) -> str:
    """Return the folder of what one batch writes; no other one ever writes there, since a batch's id is its own."""
    return f"{DATA}/{shelf(stamp.sequence)}/{stamp}/{batch}-{epoch}"


def batch_list(folder: str) -> str:
    """Return where the list of an attempt's files is."""
    return f"{folder}/{LIST}"


def manifest(cut: CutName) -> str:
    """Return where a cut's manifest is."""
    return f"{MANIFESTS}/{shelf(cut.sequence)}/{cut}{_SUFFIX}"


def lineage(number: Lineage, undone: int) -> str:
    """Return where it is said what lineages have undone.

    Args:
        number: the newest of them.
        undone: how many cuts that one has undone so far; it may become more while its reset looks its target up.
    """
    return f"{LINEAGES}/{number:06d}.{undone:010d}{_SUFFIX}"


def retired(cut: CutName) -> str:
    """Return where it is said that the output of a retired cut was given up."""
    return f"{RETIRED}/{shelf(cut.sequence)}/{cut}{_SUFFIX}"


def compacted(cut: CutName) -> str:
    """Return the folder of the files that were put together for a cut."""
    return f"{COMPACTED}/{shelf(cut.sequence)}/{cut}"


def shelf(sequence: int) -> str:
    """Return the folder that a cut is in, below `data`, `compacted`, `manifests` and `retired`."""
    return f"{sequence // SHELF:07d}"


def is_shelf(name: str) -> bool:
    """Whether a folder holds cuts by their thousands."""
    return _SHELF.fullmatch(name) is not None


def cut_of(name: str) -> CutName | None:
    """Return the cut that a file of `manifests` or `retired` is about; None: it is no such file."""
    return named(name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None


def lineage_of(name: str) -> tuple[Lineage, int] | None:
    """Return which lineage a file of `lineages` is about, and how many cuts it had undone; None: it is no such file."""
    found = cut_of(name)
    return None if found is None else (found.lineage, found.sequence)


def named(name: str) -> CutName | None:
    """Return the cut that a folder of `data` or `compacted` is called after; None: it is no such folder."""
    found = _NAME.fullmatch(name)
    return None if found is None else CutName(Lineage(int(found[1])), Sequence(int(found[2])))
