"""What belongs to a checkpoint, by the region and its ledger: never by what lies around in a folder.

The output of checkpoint N is what is accepted of all batches since the newest published checkpoint that is on the
current timeline before N. So the manifests of the current checkpoints hold each accepted record once, also after
resets: where one went back into the middle of a checkpoint, or took some partitions back only, that checkpoint is
undone as a whole, and what is still accepted of it belongs to the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_kcr.errors import KcrError, SinkError
from airflow_kcr.ports import SinkPlace
from airflow_kcr.protocol import values
from airflow_kcr.protocol.region.batches import stamp
from airflow_kcr.protocol.region.rows import Batch, Checkpoint, Outcome
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.sinks.checkpoints import AcceptedBatch, CheckpointId, CompleteCheckpoint
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import DataFile, FileTarget, Manifest, Timelines
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from airflow_kcr.sinks.files.tables import Table

_LOG = logging.getLogger(__name__)


def timelines_in(folder: Folder) -> Timelines:
    """Return what a folder knows of its timelines; a document that is not whole yet is none.

    Raises:
        SinkError: the folder is away.
    """
    noted = filter(None, map(layout.timeline_of, folder.names(layout.TIMELINES)))
    for number, count in sorted(noted, reverse=True):
        found = Timelines.of(folder.read(layout.timeline(number, count)))
        if found is not None:
            return found
    return Timelines()


def brought_up_to_date(
    target: FileTarget, folder: Folder, ledger: RegionLedger, table: Table, known: Timelines | None = None
) -> Timelines:
    """Note in the folder what resets have undone since it was noted last, and return what is noted now.

    The sink's table has nothing of it any more before the note is there: as long as there is none, that is done again.

    Args:
        target: the sink.
        folder: where its files are.
        ledger: says what is undone.
        table: the sink's.
        known: what was noted at this process's last read; the folder is not read while nothing has changed.

    Raises:
        SinkError: the folder, the table or the store is away.
    """
    if known is not None and _with_news(known, ledger) == known:
        return known
    known = timelines_in(folder)
    fresh = _with_news(known, ledger)
    if fresh == known:
        return known
    news = [one for one in fresh.undone if one not in known.undone]
    if news:
        table.hide([one for one in fresh.undone if one.by >= known.timeline])
        _LOG.info("%s: undone by resets, and not in force any more: %s", target, ", ".join(map(str, news)))
    counted = sum(one.last - one.first + 1 for one in fresh.of_newest())
    where = layout.timeline(values.Timeline(fresh.timeline), counted)
    if folder.noted(where, fresh) is None:
        raise SinkError(f"{target}: what was undone could not be noted in {folder.uri}/{where}; it is tried again")
    return fresh


def _with_news(known: Timelines, ledger: RegionLedger) -> Timelines:
    news = ledger.timelines(values.Timeline(known.timeline))
    return known if news.timeline < known.timeline else known.followed_by(news.timeline, news.undone)


def shelves(folder: Folder, above: str) -> list[str]:
    """Return the folders in which checkpoints are by their thousands, oldest first.

    Args:
        folder: the sink's.
        above: `layout.DATA`, `COMPACTED`, `MANIFESTS`, `REVISIONS` or `RETIRED`.
    """
    return sorted((name for name in folder.names(above) if layout.is_shelf(name)), key=int)


def checkpoints_on(folder: Folder, above: str, shelf: str) -> set[CheckpointId]:
    """Return the checkpoints that the files on one shelf are about.

    Args:
        folder: the sink's.
        above: `layout.MANIFESTS` or `RETIRED`.
        shelf: one of `shelves`.
    """
    return set(filter(None, map(layout.checkpoint_of, folder.names(f"{above}/{shelf}"))))


def files_in(folder: Folder, where: str) -> tuple[DataFile, ...]:
    """Return the files that a batch has written.

    Args:
        folder: the sink's.
        where: the batch's, from there.
    """
    return tuple(DataFile(path=file, bytes=size) for file, size in folder.written(where).items())


def revisions_on(folder: Folder, shelf: str) -> dict[CheckpointId, list[values.EventNumber]]:
    """Return the revisions that one shelf has something of, by their checkpoints, newest first.

    Not each of them is shown, or ever will be.
    """
    found: dict[CheckpointId, set[values.EventNumber]] = {}
    for name in folder.names(f"{layout.REVISIONS}/{shelf}"):
        revision = layout.revision_of(name) or layout.named_revision(name)
        if revision is not None:
            found.setdefault(revision[0], set()).add(revision[1])
    return {checkpoint: sorted(numbers, reverse=True) for checkpoint, numbers in found.items()}


def manifests_in_force(folder: Folder, checkpoints: Iterable[CheckpointId]) -> dict[CheckpointId, Manifest]:
    """Return the manifests of checkpoints, as the newest revision of each has it; not every checkpoint has any.

    Whether a checkpoint itself is in force is not asked.
    """
    wanted = list(checkpoints)
    shelved = {layout.shelf(checkpoint.sequence) for checkpoint in wanted}
    numbers = {checkpoint: found for shelf in shelved for checkpoint, found in revisions_on(folder, shelf).items()}
    places = {c: [*(layout.revision(c, n) for n in numbers.get(c, ())), layout.manifest(c)] for c in wanted}
    found: dict[CheckpointId, Manifest] = {}
    while places:
        texts = folder.read_all([newest for newest, *_ in places.values()])
        read = zip(places, map(Manifest.of, texts), strict=True)
        found |= {checkpoint: manifest for checkpoint, manifest in read if manifest is not None}
        places = {c: older for c, (_, *older) in places.items() if older and c not in found}
    return found


def manifest_in_force(folder: Folder, checkpoint: CheckpointId) -> Manifest | None:
    """Return a checkpoint's manifest, as its newest revision has it; None: there is none."""
    return manifests_in_force(folder, [checkpoint]).get(checkpoint)


def newest_first(folder: Folder, timelines: Timelines) -> Iterator[CheckpointId]:
    """Yield the checkpoints in force that have a manifest and were not given up, as many as are asked for."""
    for shelf in reversed(shelves(folder, layout.MANIFESTS)):
        there = checkpoints_on(folder, layout.MANIFESTS, shelf) - checkpoints_on(folder, layout.RETIRED, shelf)
        yield from sorted((c for c in there if timelines.superseded_by(c.sequence) is None), reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContents(CompleteCheckpoint):
    """What belongs to a complete checkpoint, and what the region has decided about it since."""

    undone_by: values.Timeline | None
    undone: tuple[CheckpointId, ...] = ()
    """Earlier checkpoints that a reset has undone and that may have had the output of its batches, oldest first."""


def contents(
    region: Region, batches: Iterable[Batch], sequence: values.CheckpointNumber, group: values.GroupId
) -> CheckpointContents:
    """Return what one group has in a complete checkpoint.

    Args:
        region: as the store has it now.
        batches: of the ledger, oldest first; at least those since the checkpoint before.
        sequence: of the checkpoint.
        group: whose output.

    Raises:
        SinkError: there is no such checkpoint, or it is not complete.
    """
    checkpoint = region.checkpoint_of(sequence)
    if checkpoint is None or not (checkpoint.is_complete or checkpoint.is_current):
        raise SinkError(
            f"checkpoint {sequence} of region {region.name} is {'unknown' if checkpoint is None else checkpoint.state}"
        )
    before = _previous(region, sequence)
    first = values.CheckpointNumber(0) if before is None else before.sequence
    counted = tuple(
        AcceptedBatch(
            batch_id=batch.batch,
            epoch=batch.epoch,
            checkpoint=CheckpointId(batch.timeline, batch.sequence),
            ranges={p.topic_partition: ranges[p] for p in sorted(ranges)},
            is_whole=ranges == batch.ranges,
        )
        for batch in batches
        if batch.member.group == group and first < batch.sequence <= sequence and (ranges := accepted(batch))
    )
    oldest = min((one.checkpoint.sequence for one in counted), default=sequence)
    return CheckpointContents(
        id=CheckpointId(checkpoint.timeline, checkpoint.sequence),
        epoch=checkpoint.epoch,
        digest=checkpoint.digest,
        boundary=checkpoint.boundary,
        previous=before,
        undone_by=checkpoint.undone_by,
        batches=counted,
        undone=tuple(
            CheckpointId(row.timeline, row.sequence)
            for row in region.archive.checkpoints(first=values.CheckpointNumber(oldest), before=sequence)
            if row.undone_by is not None
        ),
    )


def accepted(batch: Batch) -> dict[values.GroupPartition, values.Range]:
    """Return what is accepted of a batch's ranges: done, and not undone by a later reset."""
    if batch.outcome is not Outcome.DONE:
        return {}
    ends = {p: batch.undone_from.get(p, r.to) for p, r in batch.ranges.items()}
    return {p: values.Range(r.from_, ends[p]) for p, r in batch.ranges.items() if ends[p] > r.from_}


class RegionLedger:
    """The region and its ledger, as sinks ask them what is accepted. Every call may raise SinkError: the store is away.

    Args:
        store: where the region is.
        name: the region's.
    """

    def __init__(self, store: RegionStore, name: values.RegionName) -> None:
        self._store, self._name = store, name

    def contents(self, sequence: values.CheckpointNumber, group: values.GroupId) -> CheckpointContents:
        """Return what one group has in a complete checkpoint."""
        with self._asked():
            before = _previous(self._region(), sequence)
            after = values.CheckpointNumber(0) if before is None else before.sequence
            batches = self._store.batches_since(self._name, after, sequence)
            # A reset may have started between the two; what it has undone is then seen in both, or in the batches only.
            return contents(self._region(), batches, sequence, group)

    def undone(self) -> Mapping[CheckpointId, values.Timeline]:
        """Return the checkpoints that resets have undone, with the timelines that were opened by them."""
        rows = self.checkpoints().items()
        return {checkpoint: row.undone_by for checkpoint, row in rows if row.undone_by is not None}

    def timelines(self, since: values.Timeline) -> Timelines:
        """Return what a timeline and the later ones have undone, checkpoints that follow each other as one stretch.

        Numbers that were burnt by a reset or an aborted checkpoint don't end a stretch: nothing of theirs is in any
        sink.

        Args:
            since: the first of them; one that the region has not reached: there is nothing to say.
        """
        with self._asked():
            region = self._region()
            if since > region.timeline:
                return Timelines()
            return Timelines(timeline=region.timeline, undone=region.archive.stretches(since))

    def checkpoints(self) -> Mapping[CheckpointId, Checkpoint]:
        """Return every checkpoint that the store remembers."""
        with self._asked():
            return {CheckpointId(c.timeline, c.sequence): c for c in self._region().archive.checkpoints()}

    def progress(
        self, timeline: values.Timeline, group: values.GroupId
    ) -> Mapping[values.GroupPartition, values.Offset]:
        """Return up to where one group has done everything in this timeline, since the restore point.

        The store refuses to end a batch of an older epoch, so this stands still once a reset has started.
        """
        with self._asked():
            found: dict[values.GroupPartition, values.Offset] = {}
            restore_point = self._region().restore_sequence or values.CheckpointNumber(0)
            for batch in self._store.batches_since(self._name, restore_point):
                if batch.timeline == timeline and batch.member.group == group:
                    for partition, range_ in accepted(batch).items():
                        found[partition] = max(found.get(partition, range_.to), range_.to)
            return found

    def stamp(self) -> values.CheckpointNumber:
        """Return the sequence that a batch would be stamped with that begins now."""
        with self._asked():
            return stamp(self._region())

    def has_taken(self, place: SinkPlace) -> bool:
        """Whether a sink has written, or could, to a place before."""
        with self._asked():
            return place in self._store.taken(self._name)

    def take(self, place: SinkPlace) -> None:
        """Note that a sink may write to a place from now on."""
        with self._asked():
            self._store.take(self._name, place)

    def _region(self) -> Region:
        return self._store.read(self._name)[0]

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except SinkError:
            raise
        except KcrError as error:
            raise SinkError(f"region {self._name} can't be asked what is accepted: {error}") from error


def _previous(region: Region, sequence: values.CheckpointNumber) -> CheckpointId | None:
    """Return the newest published current checkpoint before another one."""
    found = region.archive.newest_published(sequence)
    return None if found is None else CheckpointId(found.timeline, found.sequence)
