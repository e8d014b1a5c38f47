"""What a file sink writes to, and where everything is in its folder; names that sort as checkpoints do.

::

    _kcr.json                            whose folder it is timelines/TIMELINE.COUNT.json          which checkpoints
    this timeline and those before it have undone data/SHELF/CHECKPOINT/BATCH-EPOCH/part-….parquet what one batch has
    written, CHECKPOINT being what it was stamped with at its start data/SHELF/CHECKPOINT/BATCH-EPOCH/_files.json the
    list of those files, written when the batch is over compacted/SHELF/CHECKPOINT/….parquet        small files of a
    checkpoint, put together manifests/SHELF/CHECKPOINT.json             which files a published checkpoint has
    retired/SHELF/CHECKPOINT.json               that the output of a retired checkpoint was given up, with the batches
    that it had table/                               the table in which readers see whole checkpoints, where the format
    has one

CHECKPOINT is `TIMELINE.SEQUENCE`, zero-padded: also the partition key of the checkpoint's asset event. SHELF is the
sequence in thousands, so that no folder ever has more than a thousand checkpoints, however many there have been. COUNT
is how many checkpoints TIMELINE had undone when the file was written: of several, the last one counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from airflow_kcr.protocol.delivery import FileFormat
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, Epoch, GroupId, RegionName, Timeline
from airflow_kcr.spec import RegionSpec, SinkKind, resolve_environment

OWNER: Final = "_kcr.json"
TIMELINES: Final = "timelines"
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


class CheckpointName(NamedTuple):
    """What a checkpoint is called in a folder; of two, the later one is the greater one."""

    timeline: Timeline
    sequence: CheckpointNumber

    def __str__(self) -> str:
        return f"{self.timeline:06d}.{self.sequence:010d}"


def attempt(stamp: CheckpointName, batch: BatchId, epoch: Epoch) -> str:
    """Return the folder of what one batch writes; no other one ever writes there, since a batch's id is its own."""
    return f"{DATA}/{shelf(stamp.sequence)}/{stamp}/{batch}-{epoch}"


def batch_list(folder: str) -> str:
    """Return where the list of an attempt's files is."""
    return f"{folder}/{LIST}"


def manifest(checkpoint: CheckpointName) -> str:
    """Return where a checkpoint's manifest is."""
    return f"{MANIFESTS}/{shelf(checkpoint.sequence)}/{checkpoint}{_SUFFIX}"


def timeline(number: Timeline, undone: int) -> str:
    """Return where it is said what timelines have undone.

    Args:
        number: the newest of them.
        undone: how many checkpoints that one has undone so far; it may become more while its reset looks its target up.
    """
    return f"{TIMELINES}/{number:06d}.{undone:010d}{_SUFFIX}"


def retired(checkpoint: CheckpointName) -> str:
    """Return where it is said that the output of a retired checkpoint was given up."""
    return f"{RETIRED}/{shelf(checkpoint.sequence)}/{checkpoint}{_SUFFIX}"


def compacted(checkpoint: CheckpointName) -> str:
    """Return the folder of the files that were put together for a checkpoint."""
    return f"{COMPACTED}/{shelf(checkpoint.sequence)}/{checkpoint}"


def shelf(sequence: int) -> str:
    """Return the folder that a checkpoint is in, below `data`, `compacted`, `manifests` and `retired`."""
    return f"{sequence // SHELF:07d}"


def is_shelf(name: str) -> bool:
    """Whether a folder holds checkpoints by their thousands."""
    return _SHELF.fullmatch(name) is not None


def checkpoint_of(name: str) -> CheckpointName | None:
    """Return the checkpoint that a file of `manifests` or `retired` is about; None: it is no such file."""
    return named(name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None


def timeline_of(name: str) -> tuple[Timeline, int] | None:
    """Return which timeline a file of `timelines` is about, and how many checkpoints it had undone.

    None: it is no such file.
    """
    found = checkpoint_of(name)
    return None if found is None else (found.timeline, found.sequence)


def named(name: str) -> CheckpointName | None:
    """Return the checkpoint that a folder of `data` or `compacted` is called after; None: it is no such folder."""
    found = _NAME.fullmatch(name)
    return None if found is None else CheckpointName(Timeline(int(found[1])), CheckpointNumber(int(found[2])))


# What a file sink writes to, as values.

MIB: Final = 1024 * 1024
FILE_SIZE: Final = 128 * MIB
"""Of files that are put together, where the spec names no other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTarget:
    """One sink of a group: which folder, and in whose name."""

    region: RegionName
    group: GroupId
    sink: str
    """Its name in the spec."""

    path: str
    """A path or URI; references are filled in."""

    file_size: int = FILE_SIZE
    """Into how large files small ones are put together, in bytes; 0: they stay as they are."""

    format: FileFormat = FileFormat.PARQUET
    """What readers find beside the manifests: nothing, or a table."""

    def __str__(self) -> str:
        return f"sink {self.sink} of group {self.group}"


def file_targets(spec: RegionSpec, environ: Mapping[str, str] = os.environ) -> tuple[FileTarget, ...]:
    """Return the file sinks of a region, of all its groups.

    Whichever member publishes a checkpoint writes for all of them.

    Args:
        spec: the region's.
        environ: where references of the paths are looked up.

    Raises:
        ConfigurationError: a variable is not set.
    """
    return tuple(
        FileTarget(
            region=RegionName(spec.region),
            group=GroupId(group.group_id),
            sink=sink.name,
            path=resolve_environment({f"sinks.{sink.name}.path": sink.path or ""}, environ)[f"sinks.{sink.name}.path"],
            file_size=FILE_SIZE if sink.file_size_mib is None else sink.file_size_mib * MIB,
            format=sink.format or FileFormat.PARQUET,
        )
        for group in spec.groups
        for sink in group.sinks
        if sink.kind is SinkKind.FILES
    )
