"""Deleting what nobody can read any more: what resets have undone, what died, and, if asked to, what was retired.

The newest published cut settles everything before it: whatever batches of its time or before have written is in a
manifest in force, or counts no more. So of the folders up to there, every file goes that is in no such manifest; what
is newer is left alone, since a publisher may be at work on it. That holds in each order of steps: a cut that a reset
undoes meanwhile has its files still, and one that is published meanwhile has newer ones.

Killed anywhere, or run twice at a time, it only ever deletes files that nothing names, and the next run goes on.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState
from airflow_kcr.protocol.values import Sequence
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.accepted import Ledger
from airflow_kcr.sinks.files.documents import Manifest, Owner, Retired, Superseded
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import CutName
from airflow_kcr.sinks.files.superseding import cuts_in, set_aside
from airflow_kcr.sinks.files.table import NO_TABLE, Table
from airflow_kcr.sinks.files.target import FileTarget

_LOG: Final = logging.getLogger(__name__)


class GivenUp(StrEnum):
    """Which output is deleted."""

    UNDONE = "undone"
    """Of cuts that a reset has undone, and of batches that never counted: what no cut has that can be read."""

    RETIRED = "retired"
    """Of cuts whose checkpoint is retired as well: they could be read, and can't be afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What was deleted in one sink's folder."""

    sink: str
    """Which sink of which group."""

    undone: tuple[Sequence, ...] = ()
    """Cuts that a reset had undone, whose files are gone now."""

    retired: tuple[Sequence, ...] = ()
    """Retired cuts, whose files are gone now."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What the folder and the store say of a sink's cuts."""

    manifests: Mapping[CutName, Manifest]
    """In force, and whole."""

    path: tuple[Sequence, ...]
    """The published cuts on the path, in order; the output up to each is settled by it."""

    settled: frozenset[Sequence]
    """Those of them whose output is known here: it is in a manifest, or was given up."""

    def is_settled(self, stamp: Sequence) -> bool:
        """Whether what was written under a stamp is in a manifest that is known, or counts no more."""
        place = bisect_left(self.path, stamp)
        return place < len(self.path) and self.path[place] in self.settled

    @property
    def newest(self) -> Sequence:
        """The newest cut that is settled; 0: none is."""
        return max(self.settled, default=Sequence(0))


class Cleaner:
    """Deletes what nobody can read any more from one sink's folder.

    Args:
        target: the sink.
        folder: where its files are.
        ledger: says what is undone and retired.
        table: the sink's; what is undone goes from there as well, what is retired stays in it.
    """

    def __init__(self, target: FileTarget, folder: Folder, ledger: Ledger, table: Table = NO_TABLE) -> None:
        self._target, self._folder, self._ledger, self._table = target, folder, ledger, table

    def clean(self, what: GivenUp) -> Cleaned:
        """Delete files, and return what is gone; asked again, it finds nothing.

        Raises:
            ConfigurationError: the folder is another sink's.
            SinkError: the folder or the store is away, or somebody writes the same notes; then again.
        """
        if not self._is_ours():
            return Cleaned(sink=str(self._target))
        set_aside(self._target, self._folder, self._ledger, self._table)
        cuts = self._ledger.cuts()
        if what is GivenUp.RETIRED:
            self._give_up(cuts)
        retired = self._withdraw()
        known = self._known(cuts)
        notes = self._notes()
        undone = {cut: note for cut, note in notes.items() if cut.sequence < known.newest and _is_void(cuts.get(cut))}
        needed = [*known.manifests.values(), *(n.manifest for c, n in notes.items() if c not in undone and n.manifest)]
        files = dict(self._deleted({file.path for manifest in needed for file in manifest.files}, known))
        emptied = [cut for cut, note in undone.items() if note.manifest is not None]
        for cut in emptied:
            self._forget_files(cut, undone[cut])
        _LOG.info("%s: %d files of %d bytes are deleted", self._target, len(files), sum(files.values()))
        return Cleaned(
            sink=str(self._target),
            undone=tuple(cut.sequence for cut in emptied),
            retired=tuple(cut.sequence for cut in retired),
            files=len(files),
            bytes=sum(files.values()),
        )

    def _is_ours(self) -> bool:
        owner = Owner.of(self._folder.read(layout.OWNER))
        mine = (self._target.region, self._target.group, self._target.sink)
        if owner is not None and (owner.region, owner.group, owner.sink) != mine:
            raise ConfigurationError(
                f"{self._target} of region {self._target.region}: {self._folder.uri} is the folder of sink "
                f"{owner.sink} of group {owner.group}, region {owner.region}; nothing is deleted"
            )
        return owner is not None

    def _give_up(self, cuts: Mapping[CutName, Checkpoint]) -> None:
        """Note of every retired cut that its output is given up; from here on nobody reads it."""
        for cut in sorted(cuts_in(self._folder, layout.MANIFESTS)):
            row, manifest = cuts.get(cut), Manifest.of(self._folder.read(layout.manifest(cut)))
            if row is None or row.state is not CheckpointState.RETIRED or not row.is_on_path:
                continue
            if manifest is None or manifest.digest != row.digest:
                continue
            note = Retired(digest=row.digest, batches=manifest.batches, schemas=manifest.schemas)
            self._folder.create(layout.retired(cut), note.text())
            if self._retired(cut) is None:
                self._folder.replace(layout.retired(cut), note.text())
            if self._retired(cut) != note:
                raise SinkError(f"{self._target}: the note that cut {cut} is retired is not what was written")

    def _withdraw(self) -> list[CutName]:
        """Take the manifests of retired cuts away, also those that a late publisher has brought back."""
        both = cuts_in(self._folder, layout.MANIFESTS) & cuts_in(self._folder, layout.RETIRED)
        found = [cut for cut in sorted(both) if self._retired(cut) is not None]
        self._folder.delete(layout.manifest(cut) for cut in found)
        return found

    def _known(self, cuts: Mapping[CutName, Checkpoint]) -> _Known:
        published = sorted(cuts_in(self._folder, layout.MANIFESTS))
        texts = self._folder.read_all([layout.manifest(cut) for cut in published])
        manifests = {c: m for c, text in zip(published, texts, strict=True) if (m := Manifest.of(text)) is not None}
        given_up = {c: n for c in cuts_in(self._folder, layout.RETIRED) if (n := self._retired(c)) is not None}
        path = {c: row for c, row in cuts.items() if row.is_on_path and row.published_at is not None}
        digests = {c: m.digest for c, m in manifests.items()} | {c: n.digest for c, n in given_up.items()}
        return _Known(
            manifests=manifests,
            path=tuple(sorted(c.sequence for c in path)),
            settled=frozenset(c.sequence for c, row in path.items() if digests.get(c) == row.digest),
        )

    def _notes(self) -> dict[CutName, Superseded]:
        noted = sorted(cuts_in(self._folder, layout.SUPERSEDED))
        texts = self._folder.read_all([layout.superseded(cut) for cut in noted])
        return {c: n for c, text in zip(noted, texts, strict=True) if (n := Superseded.of(text)) is not None}

    def _deleted(self, needed: set[str], known: _Known) -> Iterator[tuple[str, int]]:
        """Delete what nobody needs, and yield it: files with their bytes."""
        for above, last in ((layout.DATA, known.newest), (layout.COMPACTED, known.newest - 1)):
            for name in self._folder.names(above):
                cut = layout.named(name)
                if cut is not None and cut.sequence <= last and known.is_settled(cut.sequence):
                    yield from self._cleared(f"{above}/{name}", needed)

    def _cleared(self, path: str, needed: set[str]) -> Iterator[tuple[str, int]]:
        files = self._folder.walk(path)
        if needed.isdisjoint(files):
            self._folder.delete([path])
            yield from _data(files.items())
            return
        for folder, found in groupby(files.items(), key=lambda item: item[0].rpartition("/")[0]):
            here = dict(found)
            if needed.isdisjoint(here) and folder != path:
                self._folder.delete([folder])
                yield from _data(here.items())
                continue
            superfluous = [(file, size) for file, size in _data(here.items()) if file not in needed]
            self._folder.delete(file for file, _ in superfluous)
            yield from superfluous

    def _forget_files(self, cut: CutName, note: Superseded) -> None:
        """Have a note say no more which files an undone cut had."""
        less = Superseded(undone_by=note.undone_by, manifest=None)
        try:
            self._folder.replace(layout.superseded(cut), less.text())
        except SinkError:
            if Superseded.of(self._folder.read(layout.superseded(cut))) != less:
                raise

    def _retired(self, cut: CutName) -> Retired | None:
        return Retired.of(self._folder.read(layout.retired(cut)))


def _is_void(row: Checkpoint | None) -> bool:
    """Whether a cut with a note was undone when the store was asked, and nobody keeps it.

    One that a reset undoes meanwhile may have a part that stands, which no newer manifest has yet.
    """
    return row is None or (row.undone_by is not None and not row.pinned_as)


def _data(files: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Yield those files that aren't lists."""
    return ((path, size) for path, size in files if path.rpartition("/")[2] != layout.LIST)
