"""Deletes unreadable output from file sinks: of undone checkpoints, dead batches and retired checkpoints.

    from airflow_kcr.sinks import clean_checkpoints

    clean_checkpoints(spark, "flights")                 # what resets have undone, and what died
    clean_checkpoints(spark, "flights", "retired")      # the output of retired checkpoints as well

Spark is there for its file systems; nothing is read.

The newest published checkpoint decides everything before it: whatever batches of its time or before have written is in
a manifest in force, or counts no more. So of the folders up to there, every file goes that is in no such manifest; what
is newer is left alone, since a publisher may be at work on it, and so is what a running recomputation has written. That
holds in each order of steps: a checkpoint that a reset undoes meanwhile has its files still, and one that is published
meanwhile has newer ones.

Killed anywhere, or run twice at a time, it only ever deletes files that nothing names, and the next run continues.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.region.recomputations import is_over
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.contents import (
    RegionLedger,
    brought_up_to_date,
    checkpoints_on,
    manifest_in_force,
    manifests_in_force,
    revisions_on,
    shelves,
)
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import FileTarget, Marker, Retired
from airflow_kcr.sinks.files.revisions import given_up
from airflow_kcr.sinks.files.tables import NO_TABLE, Table

_LOG: Final = logging.getLogger(__name__)

_OF_MANIFESTS: Final = layout.MANIFESTS, layout.REVISIONS


class GivenUp(StrEnum):
    """Which output is deleted."""

    UNDONE = "undone"
    """Of checkpoints that a reset has undone, and of batches that never counted.

    What no checkpoint has that can be read.
    """

    RETIRED = "retired"
    """Of checkpoints whose checkpoint is retired as well: they could be read, and can't be afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What was deleted in one sink's folder."""

    sink: str
    """Which sink of which group."""

    undone: tuple[CheckpointNumber, ...] = ()
    """Checkpoints that a reset had undone, whose files are gone now."""

    retired: tuple[CheckpointNumber, ...] = ()
    """Retired checkpoints, whose files are gone now."""

    files: int = 0
    bytes: int = 0


class Cleaner:
    """Deletes unreadable output from one sink's folder.

    Args:
        target: the sink.
        folder: where its files are.
        ledger: says what is undone and retired.
        table: the sink's; what is undone goes from there as well, what is retired stays in it.
    """

    def __init__(self, target: FileTarget, folder: Folder, ledger: RegionLedger, table: Table = NO_TABLE) -> None:
        self._target, self._folder, self._ledger, self._table = target, folder, ledger, table

    def clean(self, what: GivenUp) -> Cleaned:
        """Delete files, and return what is gone; asked again, it finds nothing.

        It goes through the folder shelf by shelf, oldest first, and remembers no more than one at a time.

        Raises:
            ConfigurationError: the folder is another sink's, or of another layout.
            SinkError: the folder or the store is away, or another process writes the same notes; then try again.
        """
        if not self._is_ours():
            return Cleaned(sink=str(self._target))
        brought_up_to_date(self._target, self._folder, self._ledger, self._table)
        checkpoints = self._ledger.checkpoints()
        for checkpoint, number in self._ended(checkpoints):
            # Before any manifest is read: its process may have been frozen since it was allowed to show its files.
            given_up(self._folder, checkpoint, number)
        listed = sorted({s for above in _OF_MANIFESTS for s in shelves(self._folder, above)}, key=int)
        if what is GivenUp.RETIRED:
            for shelf in listed:
                self._give_up(shelf, checkpoints)
        retired = [checkpoint for shelf in listed for checkpoint in self._withdraw(shelf)]
        settled = _Settled(self._folder, checkpoints, self._table.forget(checkpoints))
        files = size = 0
        for deleted in self._deleted(settled, checkpoints):
            files, size = files + 1, size + deleted
        undone = [checkpoint for shelf in listed for checkpoint in self._forget(shelf, settled)]
        _LOG.info("%s: %d files of %d bytes are deleted", self._target, files, size)
        return Cleaned(
            sink=str(self._target),
            undone=tuple(checkpoint.sequence for checkpoint in undone),
            retired=tuple(checkpoint.sequence for checkpoint in retired),
            files=files,
            bytes=size,
        )

    def _is_ours(self) -> bool:
        marker = Marker.of(self._folder.read(layout.OWNER))
        owner = self._target.owner
        if marker is not None and marker.owner != owner:
            raise ConfigurationError(
                f"{owner.name} of region {owner.region} (id {owner.region_id}): {self._folder.uri} is "
                f"the folder of {marker.owner}; nothing is deleted"
            )
        return marker is not None

    def _give_up(self, shelf: str, checkpoints: Mapping[CheckpointId, Checkpoint]) -> None:
        """Note for every retired checkpoint on a shelf that its output is given up; from here on it is not read."""
        for checkpoint in sorted(checkpoints_on(self._folder, layout.MANIFESTS, shelf)):
            row = checkpoints.get(checkpoint)
            if row is None or row.state is not CheckpointState.RETIRED or not row.is_current:
                continue
            manifest = manifest_in_force(self._folder, checkpoint)
            if manifest is None or manifest.digest != row.digest:
                continue
            note = Retired(digest=row.digest, batches=manifest.batches, schemas=manifest.schemas)
            if self._folder.noted(layout.retired(checkpoint), note) != note:
                raise SinkError(
                    f"{self._target}: the note that checkpoint {checkpoint} is retired is not what was written"
                )

    def _withdraw(self, shelf: str) -> list[CheckpointId]:
        """Take the manifests of retired checkpoints away, also those that a late publisher has brought back."""
        there, noted = self._manifests(shelf), checkpoints_on(self._folder, layout.RETIRED, shelf)
        found = [checkpoint for checkpoint in sorted(there.keys() & noted) if self._retired(checkpoint) is not None]
        self._folder.delete(where for checkpoint in found for where in there[checkpoint])
        return found

    def _manifests(self, shelf: str) -> dict[CheckpointId, list[str]]:
        """Return where the manifests of each checkpoint on a shelf are, with those of its revisions."""
        found = {c: [layout.manifest(c)] for c in checkpoints_on(self._folder, layout.MANIFESTS, shelf)}
        for checkpoint, numbers in revisions_on(self._folder, shelf).items():
            found.setdefault(checkpoint, []).extend(layout.revision(checkpoint, number) for number in numbers)
        return found

    def _ended(self, checkpoints: Mapping[CheckpointId, Checkpoint]) -> Iterator[tuple[CheckpointId, EventNumber]]:
        """Yield the revisions with files whose recomputation is over."""
        for shelf in shelves(self._folder, layout.REVISIONS):
            for name in self._folder.names(f"{layout.REVISIONS}/{shelf}"):
                revision = layout.named_revision(name)
                if revision is not None and _is_over(checkpoints, *revision):
                    yield revision

    def _deleted(self, settled: _Settled, checkpoints: Mapping[CheckpointId, Checkpoint]) -> Iterator[int]:
        """Delete unneeded files, and yield the bytes of each."""
        for above, last in ((layout.DATA, settled.newest), (layout.COMPACTED, settled.newest - 1)):
            for shelf in shelves(self._folder, above):
                for name in self._folder.names(f"{above}/{shelf}"):
                    checkpoint = layout.named(name)
                    if checkpoint is None or checkpoint.sequence > last:
                        continue
                    needed = settled.files_for(checkpoint.sequence)
                    if needed is not None:
                        yield from self._cleared(f"{above}/{shelf}/{name}", needed)

        for checkpoint, number in self._ended(checkpoints):
            needed = settled.files_for(checkpoint.sequence)
            if needed is not None:
                yield from self._cleared(layout.revised(checkpoint, number), needed)

    def _forget(self, shelf: str, settled: _Settled) -> list[CheckpointId]:
        """Take the manifests of undone checkpoints away whose files are gone."""
        there = self._manifests(shelf)
        found = [checkpoint for checkpoint in sorted(there) if settled.is_void(checkpoint)]
        self._folder.delete(where for checkpoint in found for where in there[checkpoint])
        return found

    def _cleared(self, path: str, needed: Set[str]) -> Iterator[int]:
        files = self._folder.walk(path)
        if needed.isdisjoint(files):
            self._folder.delete([path])
            yield from _sizes(files.items())
            return
        for folder, found in groupby(files.items(), key=lambda item: item[0].rpartition("/")[0]):
            here = dict(found)
            if needed.isdisjoint(here) and folder != path:
                self._folder.delete([folder])
                yield from _sizes(here.items())
                continue
            superfluous = {file: size for file, size in here.items() if file not in needed and not _is_list(file)}
            self._folder.delete(superfluous)
            yield from superfluous.values()

    def _retired(self, checkpoint: CheckpointId) -> Retired | None:
        return Retired.of(self._folder.read(layout.retired(checkpoint)))


class _Settled:
    """What the published current checkpoints have decided.

    The output up to each is in its manifest, or was given up.

    Args:
        folder: the sink's.
        checkpoints: as the store had them at one moment. A checkpoint that a reset undoes since may have a part that
            stands, which no newer manifest has yet; so it is taken as it was then.
        shown: files that readers of the sink's table may be sent to.
    """

    def __init__(self, folder: Folder, checkpoints: Mapping[CheckpointId, Checkpoint], shown: frozenset[str]) -> None:
        self._folder, self._checkpoints = folder, checkpoints
        rows = sorted(c for c, row in checkpoints.items() if row.is_current and row.published_at is not None)
        self._current = sorted(rows, key=lambda checkpoint: checkpoint.sequence)
        self._numbers = [checkpoint.sequence for checkpoint in self._current]
        self._last: tuple[CheckpointId, frozenset[str] | None] | None = None
        self._kept = shown.union(self._pinned())
        self.newest = next(
            (c.sequence for c in self._newest_first() if self._files_of(c) is not None), CheckpointNumber(0)
        )
        """The newest checkpoint that is decided; 0: none is."""

    def files_for(self, stamp: CheckpointNumber) -> frozenset[str] | None:
        """Return which files are needed of what was written under a stamp; None: that can't be told yet."""
        place = bisect_left(self._numbers, stamp)
        if place == len(self._current):
            return None
        checkpoint = self._current[place]
        if self._last is None or self._last[0] != checkpoint:
            self._last = (checkpoint, self._files_of(checkpoint))
        found = self._last[1]
        return None if found is None else found | self._kept

    def is_void(self, checkpoint: CheckpointId) -> bool:
        """Whether a reset has undone a checkpoint, it isn't pinned, and what is left of it is in a newer one."""
        row = self._checkpoints.get(checkpoint)
        return row is not None and row.undone_by is not None and not row.pinned_as and checkpoint.sequence < self.newest

    def _newest_first(self) -> Iterator[CheckpointId]:
        """Yield the current checkpoints of which the folder says something."""
        current, kinds = frozenset(self._current), (layout.MANIFESTS, layout.RETIRED)
        there = {shelf for above in kinds for shelf in shelves(self._folder, above)}
        for shelf in sorted(there, key=int, reverse=True):
            named = {checkpoint for above in kinds for checkpoint in checkpoints_on(self._folder, above, shelf)}
            yield from sorted(named & current, key=lambda checkpoint: checkpoint.sequence, reverse=True)

    def _files_of(self, checkpoint: CheckpointId) -> frozenset[str] | None:
        """Return the files of a checkpoint's manifest, none where its output was given up.

        None: neither is known here.
        """
        digest = self._checkpoints[checkpoint].digest
        manifest = manifest_in_force(self._folder, checkpoint)
        if manifest is not None and manifest.digest == digest:
            return frozenset(file.path for file in manifest.files)
        note = Retired.of(self._folder.read(layout.retired(checkpoint)))
        return frozenset() if note is not None and note.digest == digest else None

    def _pinned(self) -> Iterator[str]:
        """Yield the files of undone checkpoints that are pinned."""
        pinned = sorted(c for c, row in self._checkpoints.items() if row.undone_by is not None and row.pinned_as)
        for manifest in manifests_in_force(self._folder, pinned).values():
            yield from (file.path for file in manifest.files)


def _is_over(checkpoints: Mapping[CheckpointId, Checkpoint], checkpoint: CheckpointId, number: EventNumber) -> bool:
    """Whether a recomputation may show nothing any more, by the region, which knows each from its start on."""
    row = checkpoints.get(checkpoint)
    if row is None:
        return False
    if row.undone_by is not None or row.state is not CheckpointState.PUBLISHED:
        return True
    return is_over(row, number)


def _sizes(files: Iterable[tuple[str, int]]) -> Iterator[int]:
    """Yield the bytes of those files that aren't lists."""
    return (size for path, size in files if not _is_list(path))


def _is_list(path: str) -> bool:
    return path.rpartition("/")[2] == layout.LIST
