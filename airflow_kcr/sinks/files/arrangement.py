"""The files of a checkpoint: its batches', small ones put together, and what is left of undone checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.values import BatchId, Range, TopicPartition
from airflow_kcr.sinks.checkpoints import AcceptedBatch, CheckpointId, ranges_of
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.contents import CheckpointContents
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.frames import Rewriter
from airflow_kcr.sinks.files.layout import BatchList, DataFile, FileTarget, Manifest, Retired

FEWEST: Final = 16
"""This many small files of one schema are left alone."""

SMALL: Final = 4
"""A file is small when it is less than this part of the size that is aimed at."""

FILES_IN_ONE: Final = 256
"""A task opens its files one after the other, so this many of them are split over several tasks, however small they
are."""


@dataclass(slots=True, kw_only=True)
class Arrangement:
    """The files of one checkpoint of a sink, as they come together.

    Args:
        target: the sink.
        folder: where its files are.
        rewriter: makes new files of others.
        since: the sequence from which on batches may have written; older ones had no such sink.
    """

    target: FileTarget
    folder: Folder
    rewriter: Rewriter
    since: int
    schemas: list[str] = field(default_factory=list)
    files: list[DataFile] = field(default_factory=list)
    batches: list[BatchId] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    """What has written the rows: batches, and what undone checkpoints have of others."""

    superfluous: list[str] = field(default_factory=list)
    """Folders that are no longer needed once the manifest is written."""

    def arrange(
        self, contents: CheckpointContents, undone: Sequence[Manifest], retired: Mapping[CheckpointId, Retired]
    ) -> None:
        """Put the files of a checkpoint together.

        Args:
            contents: what is accepted.
            undone: manifests since the checkpoint before, which resets have undone.
            retired: checkpoints since the checkpoint before whose output was given up; it does not come back.

        Raises:
            SinkError: the list of an accepted batch is missing, or files can't be written.
        """
        owners = _last_holders(undone, retired)
        batches = [p for p in contents.batches if owners.get(p.batch_id, p.checkpoint.sequence >= self.since)]
        self.batches = [p.batch_id for p in batches]
        into = layout.compacted(contents.id)
        for manifest in undone:
            rest = [p for p in batches if owners.get(p.batch_id) is manifest]
            self._add_rest(manifest, rest, into)
        own = [p for p in batches if p.batch_id not in owners]
        self.labels += [p.batch_id for p in own]
        whole: list[BatchList] = []
        for batch, listed in zip(own, self._lists(own), strict=True):
            if batch.is_whole:
                whole.append(listed)
                continue
            name = f"{into}/{batch.batch_id}"
            self._rewrite([f.path for f in listed.files], self._number(listed.schema), name, ranges_of([batch]))
        self.put_together(whole, into)

    def put_together(self, lists: Iterable[BatchList], into: str) -> None:
        """Add the files of batches of which everything counts, with small ones made into a few.

        Args:
            lists: of the batches' files.
            into: the folder of new files.

        Raises:
            SinkError: files can't be written.
        """
        small: dict[int, list[DataFile]] = {}
        for listed in lists:
            number = self._number(listed.schema)
            for file in listed.files:
                if file.bytes * SMALL < self.target.file_size:
                    small.setdefault(number, []).append(file)
                else:
                    self.files.append(DataFile(path=file.path, bytes=file.bytes, schema=number))
        for number in sorted(small):
            self._add_small(number, small[number], into)

    def _number(self, schema: str) -> int:
        """Return the number of a schema."""
        if schema not in self.schemas:
            self.schemas.append(schema)
        return self.schemas.index(schema)

    def _lists(self, batches: Sequence[AcceptedBatch]) -> Iterator[BatchList]:
        folders = [layout.attempt(p.checkpoint, p.batch_id, p.epoch) for p in batches]
        texts = self.folder.read_all([layout.batch_list(folder) for folder in folders])
        for batch, folder, text in zip(batches, folders, texts, strict=True):
            listed = BatchList.of(text)
            if listed is None or listed.batch != batch.batch_id:
                wrong = "missing" if text is None else "damaged" if listed is None else f"that of batch {listed.batch}"
                raise SinkError(
                    f"{self.target}: batch {batch.batch_id} is accepted, and the list of its files in "
                    f"{self.folder.uri}/{folder} is {wrong}: the folder was changed; restore it, or reset the region "
                    "to a checkpoint before this batch"
                )
            yield listed

    def _add_rest(self, manifest: Manifest, rest: Sequence[AcceptedBatch], into: str) -> None:
        """Take over what is still accepted of a checkpoint that was undone."""
        if not rest:
            return
        self.labels += manifest.labels or manifest.batches
        for place, text in enumerate(manifest.schemas):
            sources = [f.path for f in manifest.files if f.schema == place]
            if sources:
                self._rewrite(sources, self._number(text), f"{into}/of-{manifest.checkpoint}-{place}", ranges_of(rest))

    def _add_small(self, number: int, small: Sequence[DataFile], into: str) -> None:
        if len(small) < FEWEST:
            self.files += [DataFile(path=f.path, bytes=f.bytes, schema=number) for f in small]
            return
        sources, size = [file.path for file in small], sum(file.bytes for file in small)
        self._rewrite(sources, number, f"{into}/small-{number}", None, size)
        listed = {_above(file) for file in self.files}
        self.superfluous += [folder for folder in dict.fromkeys(map(_above, small)) if folder not in listed]

    def _rewrite(
        self,
        sources: Sequence[str],
        number: int,
        into: str,
        kept: Mapping[TopicPartition, tuple[Range, ...]] | None,
        size: int = 0,
    ) -> None:
        if not sources:
            return
        wanted = size / self.target.file_size if self.target.file_size else 0
        files = max(1, round(wanted), -(-len(sources) // FILES_IN_ONE))
        made = self.rewriter.rewrite(sources, self.schemas[number], into, files=files, kept=kept)
        self.files += [DataFile(path=path, bytes=made[path], schema=number) for path in sorted(made)]


def _above(file: DataFile) -> str:
    return file.path.rpartition("/")[0]


def _last_holders(undone: Sequence[Manifest], retired: Mapping[CheckpointId, Retired]) -> dict[str, Manifest | None]:
    """Return which undone manifest held what is accepted of a batch last; None: a checkpoint that was given up."""
    held: dict[CheckpointId, tuple[tuple[str, ...], Manifest | None]] = {m.checkpoint: (m.batches, m) for m in undone}
    held |= {checkpoint: (note.batches, None) for checkpoint, note in retired.items()}
    found: dict[str, Manifest | None] = {}
    for checkpoint in sorted(held):
        batches, manifest = held[checkpoint]
        found |= dict.fromkeys(batches, manifest)
    return found
