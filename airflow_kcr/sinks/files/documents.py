"""What a file sink writes down: texts that tell whether they are whole, so that a half-written one is never believed.

A text is one line of JSON and one with its hash. The same content has the same text, whichever process writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final, NamedTuple, Self

from pydantic import ConfigDict, TypeAdapter

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, Timeline
from airflow_kcr.sinks.files.layout import CheckpointName

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

    __pydantic_config__ = ConfigDict(extra="forbid")

    def text(self) -> str:
        """Return it as it is stored."""
        return sealed(asdict(self))

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """Return what a text says; None: it isn't whole."""
        content = unsealed(text)
        return None if content is None else cls._adapter().validate_python(content)

    @classmethod
    @cache  # one for each kind: to make one takes longer than to read a batch's list
    def _adapter(cls) -> TypeAdapter[Self]:
        return TypeAdapter(cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner(Document):
    """Whose folder it is."""

    region: str
    group: str
    sink: str
    since: int
    """The sequence from which on batches may have written here."""

    format: str = PARQUET
    """Of the sink."""

    layout: int = 1
    """Which names its files have; the texts of the first ones don't say."""

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """Return what a text says; None: it isn't whole.

        Raises:
            ConfigurationError: the folder was started with names that are not those of `layout`.
        """
        owner = super(Owner, cls).of(text)
        if owner is None:
            return None
        if owner.layout != LAYOUT:
            raise ConfigurationError(
                f"the folder of sink {owner.sink} of group {owner.group}, region {owner.region}, has layout "
                f"{owner.layout}, and this version of airflow-kcr reads and writes layout {LAYOUT}; name another "
                "folder in the spec, and read this one with the version that wrote it"
            )
        return owner


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file."""

    path: str
    """From the sink's folder."""

    bytes: int
    schema: int = 0
    """Which of the schemas it has."""


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

    region: str
    group: str
    sink: str
    timeline: int
    sequence: int
    digest: str
    """The hash over the checkpoint's offsets."""

    boundary: str | None
    """The instant that it is aligned to, as ISO 8601."""

    previous: str | None
    """The checkpoint before it on the current timeline: this one has what came after that."""

    batches: tuple[str, ...]
    """Of which it holds the output, in the order in which they began."""

    schemas: tuple[str, ...]
    files: tuple[DataFile, ...]
    format: str = PARQUET

    @property
    def checkpoint(self) -> CheckpointName:
        """Its checkpoint."""
        return CheckpointName(Timeline(self.timeline), CheckpointNumber(self.sequence))

    def holds_as(self, other: Manifest) -> bool:
        """Whether another manifest is of the same checkpoint with the same output, in whichever files."""
        mine = (self.region, self.group, self.sink, self.checkpoint, self.digest, self.batches)
        return mine == (other.region, other.group, other.sink, other.checkpoint, other.digest, other.batches)


class Undone(NamedTuple):
    """Checkpoints that followed each other, and that one timeline has undone."""

    timeline: int
    """The timeline; the checkpoints are of earlier ones."""

    first: int
    """The first checkpoint's sequence."""

    last: int
    """The last checkpoint's sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines(Document):
    """What the timelines up to one have undone: by it alone a reader knows which checkpoints are in force."""

    timeline: int = 0
    """The newest timeline; 0: none was noted yet."""

    undone: tuple[Undone, ...] = ()
    """In the order of timelines, then of checkpoints."""

    def superseded_by(self, sequence: int) -> int | None:
        """Return the timeline that has undone a checkpoint; None: the checkpoint is in force, if there is one."""
        return next((one.timeline for one in self.undone if one.first <= sequence <= one.last), None)

    def of_newest(self) -> tuple[Undone, ...]:
        """Return what the newest timeline has undone."""
        return tuple(one for one in self.undone if one.timeline == self.timeline)

    def followed_by(self, timeline: int, undone: Iterable[Undone]) -> Self:
        """Return what is known once more is.

        Args:
            timeline: the newest one now; the same one where it has undone more.
            undone: all that this and the timelines between have undone.
        """
        earlier = (one for one in self.undone if one.timeline < self.timeline)
        return type(self)(timeline=timeline, undone=(*earlier, *undone))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired(Document):
    """That the output of a retired checkpoint was given up: its files are deleted, or about to be."""

    digest: str
    batches: tuple[str, ...]
    """Whose output it had; no later checkpoint has anything of it."""

    schemas: tuple[str, ...]
