"""What a file sink writes to, and where everything is in its folder; names that sort as checkpoints do.

::

    _kcr.json                               whose folder it is
    columns/HASH.json                       which type a column has
    timelines/TIMELINE.COUNT.json           which checkpoints this timeline and those before it have undone
    data/SHELF/CHECKPOINT/BATCH-EPOCH/      of one batch, CHECKPOINT being what it was stamped with at its start:
        part-….parquet                        what it has written
        _files.json                           the list of those files, written when the batch is over
    compacted/SHELF/CHECKPOINT/….parquet    small files of a checkpoint, put together
    manifests/SHELF/CHECKPOINT.json         which files a published checkpoint has
    revisions/SHELF/CHECKPOINT.NUMBER.json  which files it has since its records were processed once more
    revisions/SHELF/CHECKPOINT.NUMBER/      those files, in a folder for each batch, and small ones put together
    retired/SHELF/CHECKPOINT.json           that a retired checkpoint's output was given up, with the batches it had

CHECKPOINT is `TIMELINE.SEQUENCE`, zero-padded: also the partition key of the checkpoint's asset event. SHELF is the
sequence in thousands, so that no folder ever has more than a thousand checkpoints, however many there have been. COUNT
is how many checkpoints TIMELINE had undone when the file was written: of several, the last one counts.

NUMBER is that of the recomputation, zero-padded. The manifest in force of a checkpoint is that of its revision with the
highest number, or the one that it was published with. An empty file in a revision's place keeps it from being shown: a
recomputation that came to nothing, whose files are deleted.

What is written down is one line of JSON and one with its hash, so that a half-written text is never believed. The same
content has the same text, whichever process writes it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.ports import SinkPlace
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.region.archive import Stretch
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, Epoch, EventNumber, Timeline
from airflow_kcr.sinks.checkpoints import CheckpointId, CompleteCheckpoint
from airflow_kcr.sinks.contract import SinkOwner

OWNER: Final = "_kcr.json"
TIMELINES: Final = "timelines"
COLUMNS: Final = "columns"
MANIFESTS: Final = "manifests"
REVISIONS: Final = "revisions"
RETIRED: Final = "retired"
DATA: Final = "data"
COMPACTED: Final = "compacted"
FOLDERS: Final = frozenset({TIMELINES, COLUMNS, MANIFESTS, REVISIONS, RETIRED, DATA, COMPACTED})
"""What a sink makes in its folder."""

TEMPORARY: Final = "_temporary-"
"""Begins the names of what is still being written; Spark reads nothing that begins with an underscore."""

LIST: Final = "_files.json"
SHELF: Final = 1_000
"""How many sequences share a folder."""

_SUFFIX: Final = ".json"
_NAME: Final = re.compile(r"(\d{6,})\.(\d{10,})")
_REVISION: Final = re.compile(rf"({_NAME.pattern})\.(\d{{10,}})")
_SHELF: Final = re.compile(r"\d{7,}")


def attempt(stamp: CheckpointId, batch: BatchId, epoch: Epoch) -> str:
    """Return the folder of what one batch writes; no other one ever writes there, since a batch's id is its own."""
    return f"{DATA}/{shelf(stamp.sequence)}/{stamp}/{batch}-{epoch}"


def batch_list(folder: str) -> str:
    """Return where the list of an attempt's files is."""
    return f"{folder}/{LIST}"


def manifest(checkpoint: CheckpointId) -> str:
    """Return where a checkpoint's manifest is."""
    return f"{MANIFESTS}/{shelf(checkpoint.sequence)}/{checkpoint}{_SUFFIX}"


def revision(checkpoint: CheckpointId, number: EventNumber) -> str:
    """Return where the manifest of a checkpoint's revision is."""
    return f"{revised(checkpoint, number)}{_SUFFIX}"


def revised(checkpoint: CheckpointId, number: EventNumber) -> str:
    """Return the folder of the files that were written for a checkpoint's revision."""
    return f"{REVISIONS}/{shelf(checkpoint.sequence)}/{label(checkpoint, number)}"


def label(checkpoint: CheckpointId, number: EventNumber) -> str:
    """Return what has written the rows of a revision."""
    return f"{checkpoint}.{number:010d}"


def timeline(number: Timeline, undone: int) -> str:
    """Return where it is said what timelines have undone.

    Args:
        number: the newest of them.
        undone: how many checkpoints that one has undone so far; it may become more while its reset looks its target up.
    """
    return f"{TIMELINES}/{number:06d}.{undone:010d}{_SUFFIX}"


def retired(checkpoint: CheckpointId) -> str:
    """Return where it is said that the output of a retired checkpoint was given up."""
    return f"{RETIRED}/{shelf(checkpoint.sequence)}/{checkpoint}{_SUFFIX}"


def compacted(checkpoint: CheckpointId) -> str:
    """Return the folder of the files that were put together for a checkpoint."""
    return f"{COMPACTED}/{shelf(checkpoint.sequence)}/{checkpoint}"


def column(path: str) -> str:
    """Return where it is said which type a column has."""
    return f"{COLUMNS}/{hashlib.sha256(path.encode()).hexdigest()[:32]}{_SUFFIX}"


def shelf(sequence: int) -> str:
    """Return the folder that a checkpoint is in, below `data`, `compacted`, `manifests`, `revisions` and `retired`."""
    return f"{sequence // SHELF:07d}"


def is_shelf(name: str) -> bool:
    """Whether a folder holds checkpoints by their thousands."""
    return _SHELF.fullmatch(name) is not None


def checkpoint_of(name: str) -> CheckpointId | None:
    """Return the checkpoint that a file of `manifests` or `retired` is about; None: it is no such file."""
    return named(name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None


def revision_of(name: str) -> tuple[CheckpointId, EventNumber] | None:
    """Return the revision that a file of `revisions` is about; None: it is no such file."""
    return named_revision(name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None


def timeline_of(name: str) -> tuple[Timeline, int] | None:
    """Return which timeline a file of `timelines` is about, and how many checkpoints it had undone.

    None: it is no such file.
    """
    found = checkpoint_of(name)
    return None if found is None else (found.timeline, found.sequence)


def named(name: str) -> CheckpointId | None:
    """Return the checkpoint that a folder of `data` or `compacted` is called after; None: it is no such folder."""
    found = _NAME.fullmatch(name)
    return None if found is None else CheckpointId(Timeline(int(found[1])), CheckpointNumber(int(found[2])))


def named_revision(name: str) -> tuple[CheckpointId, EventNumber] | None:
    """Return the revision that a folder of `revisions` is called after; None: it is no such folder."""
    found = _REVISION.fullmatch(name)
    checkpoint = None if found is None else named(found[1])
    return None if found is None or checkpoint is None else (checkpoint, EventNumber(int(found[4])))


# What a file sink writes to, as values.

MIB: Final = 1024 * 1024
FILE_SIZE: Final = 128 * MIB
"""Of files that are put together, where the spec names no other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTarget:
    """One sink of a group: which folder, and in whose name."""

    owner: SinkOwner
    path: str
    """A path or URI; references are filled in."""

    name: str = ""
    """By which the store knows the place, where that isn't the path: a table may have another location tomorrow."""

    file_size: int = FILE_SIZE
    """Into how large files small ones are put together, in bytes; 0: they stay as they are."""

    @property
    def place(self) -> SinkPlace:
        """Where it writes to, as the store notes it."""
        return SinkPlace(self.owner.group, self.owner.sink, self.name or self.path.rstrip("/"))

    def __str__(self) -> str:
        return self.owner.name


PARQUET: Final = "parquet"
LAYOUT: Final = 2
"""Of a folder's names; 1 had all checkpoints of a kind in one folder."""


def sealed(content: Mapping[str, object]) -> str:
    """Return a content as the text that is stored."""
    line = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{line}\n{hashlib.sha256(line.encode()).hexdigest()}\n"


def unsealed(text: str | None) -> dict[str, Any] | None:
    """Return the content of a text; None: there is none, or it isn't whole."""
    line, _, rest = (text or "").partition("\n")
    if rest != f"{hashlib.sha256(line.encode()).hexdigest()}\n":
        return None
    content: dict[str, Any] = json.loads(line)
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a text says: its fields."""

    def text(self) -> str:
        """Return it as it is stored."""
        return sealed(cast("Mapping[str, object]", documents.write(self, type(self))))

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """Return what a text says; None: it isn't whole."""
        content = unsealed(text)
        return None if content is None else documents.read(content, cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker(Document):
    """Whose folder it is."""

    owner: SinkOwner
    since: int
    """The sequence from which on batches may have written here."""

    format: str = PARQUET
    """Of the sink; an earlier version kept a Delta table in the folder."""

    layout: int = 1
    """Which names its files have; the texts of the first ones don't say."""

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """Return what a text says; None: it isn't whole.

        Raises:
            ConfigurationError: the folder was started with names that are not those of `layout`.
        """
        marker = super(Marker, cls).of(text)
        if marker is not None and marker.layout != LAYOUT:
            raise ConfigurationError(
                f"the folder of {marker.owner.name}, region {marker.owner.region}, has layout "
                f"{marker.layout}, and this version of airflow-kcr reads and writes layout {LAYOUT}; name another "
                "folder in the spec, and read this one with the version that wrote it"
            )
        return marker


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file."""

    path: str
    """From the sink's folder."""

    bytes: int
    schema: int = 0
    """Which of the schemas it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType(Document):
    """Which type a column has."""

    column: str
    """Its path, in lower case."""

    type: str
    """As Spark writes it in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchList(Document):
    """What one batch has written."""

    batch: BatchId
    schema: str
    """As Spark writes it in JSON."""

    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Document):
    """Which files a checkpoint has."""

    owner: SinkOwner
    timeline: int
    sequence: int
    digest: str
    """The hash over the checkpoint's offsets."""

    boundary: str | None
    """The instant that it is aligned to, as ISO 8601."""

    previous: str | None
    """The checkpoint before it on the current timeline: this one has what came after that."""

    batches: tuple[str, ...]
    """Of whose records it holds the output, in the order in which they began."""

    schemas: tuple[str, ...]
    files: tuple[DataFile, ...]
    revision: int = 0
    """The recomputation that has made the files; 0: they are what the batches have written."""

    labels: tuple[str, ...] = ()
    """What has written the rows, where the files say so of each; none: the batches."""

    epoch: int = 0
    """In which the checkpoint was made; the first texts don't say."""

    @classmethod
    def of_checkpoint(
        cls,
        owner: SinkOwner,
        checkpoint: CompleteCheckpoint,
        batches: Iterable[str],
        *,
        schemas: tuple[str, ...] = (),
        files: tuple[DataFile, ...] = (),
        labels: tuple[str, ...] = (),
    ) -> Self:
        """Return the manifest of a checkpoint as it is published.

        Args:
            owner: whose output it is.
            checkpoint: which one.
            batches: of whose records it holds the output.
            schemas: of the files.
            files: those that it has; none: there is nothing of it.
            labels: what has written the rows, where that isn't the batches.
        """
        return cls(
            owner=owner,
            timeline=checkpoint.id.timeline,
            sequence=checkpoint.id.sequence,
            digest=checkpoint.digest,
            boundary=None if checkpoint.boundary is None else checkpoint.boundary.isoformat(),
            previous=None if checkpoint.previous is None else str(checkpoint.previous),
            epoch=checkpoint.epoch,
            batches=tuple(batches),
            schemas=schemas,
            files=files,
            labels=labels,
        )

    @property
    def checkpoint(self) -> CheckpointId:
        """Its checkpoint."""
        return CheckpointId(Timeline(self.timeline), CheckpointNumber(self.sequence))

    def schemas_of_files(self) -> list[str]:
        """Return the schemas that its files have; of a checkpoint without files none."""
        return [self.schemas[number] for number in sorted({file.schema for file in self.files})]

    def holds_as(self, other: Manifest) -> bool:
        """Whether another manifest is of the same checkpoint with the same output, in whichever files."""
        mine = (self.owner, self.checkpoint, self.digest, self.batches)
        return mine == (other.owner, other.checkpoint, other.digest, other.batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines(Document):
    """What the timelines up to one have undone: by it alone a reader knows which checkpoints are in force."""

    timeline: int = 0
    """The newest timeline; 0: none was noted yet."""

    undone: tuple[Stretch, ...] = ()
    """In the order of timelines, then of checkpoints."""

    def superseded_by(self, sequence: int) -> int | None:
        """Return the timeline that has undone a checkpoint; None: the checkpoint is in force, if there is one."""
        return next((one.by for one in self.undone if one.first <= sequence <= one.last), None)

    def of_newest(self) -> tuple[Stretch, ...]:
        """Return what the newest timeline has undone."""
        return tuple(one for one in self.undone if one.by == self.timeline)

    def followed_by(self, timeline: int, undone: Iterable[Stretch]) -> Self:
        """Return what is known once more is.

        Args:
            timeline: the newest one now; the same one where it has undone more.
            undone: all that this and the timelines between have undone.
        """
        earlier = (one for one in self.undone if one.by < self.timeline)
        return type(self)(timeline=timeline, undone=(*earlier, *undone))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired(Document):
    """That the output of a retired checkpoint was given up: its files are deleted, or about to be."""

    digest: str
    batches: tuple[str, ...]
    """Whose output it had; no later checkpoint has anything of it."""

    schemas: tuple[str, ...]
