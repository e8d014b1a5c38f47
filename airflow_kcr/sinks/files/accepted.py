"""What belongs to a cut, by the region and its ledger: never by what lies around in a folder.

The output of cut N is what is accepted of all batches since the newest published cut that is on the path before N. So
the manifests of the cuts on the path hold each accepted record once, also after resets: where one went back into the
middle of a cut, or took some partitions back only, that cut is undone as a whole, and what is still accepted of it
belongs to the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.region.batches import stamp
from airflow_kcr.protocol.region.rows import Batch, Checkpoint, Outcome
from airflow_kcr.protocol.region.state import Region, checkpoint_of
from airflow_kcr.protocol.values import GroupId, GroupPartition, Lineage, Offset, Range, Sequence
from airflow_kcr.sinks.files.documents import Lineages, Undone
from airflow_kcr.sinks.files.layout import CutName


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is accepted of one batch."""

    batch: Batch
    kept: Mapping[GroupPartition, Range]

    @property
    def is_whole(self) -> bool:
        """Whether all of it is."""
        return self.kept == self.batch.ranges

    @property
    def stamp(self) -> CutName:
        """What the batch was stamped with at its begin."""
        return CutName(self.batch.lineage, self.batch.sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What belongs to a complete cut."""

    cut: CutName
    digest: str
    bound: datetime | None
    previous: CutName | None
    """The newest cut before it whose manifest is in force."""

    undone_by: Lineage | None
    pieces: tuple[Piece, ...]
    """In the order in which the batches began."""

    undone: tuple[CutName, ...] = ()
    """Cuts before it that a reset has undone and that may have had the output of one of its batches, oldest first."""


class Ledger(Protocol):
    """The region and its ledger, as a file sink asks them. Every call may raise SinkError: the store is away."""

    def contents(self, sequence: Sequence, group: GroupId) -> Contents:
        """Return what one group has in a complete cut."""
        ...

    def undone(self) -> Mapping[CutName, Lineage]:
        """Return the cuts that resets have undone, with the lineages that were opened by them."""
        ...

    def lineages(self, since: Lineage) -> Lineages:
        """Return what a lineage and the later ones have undone.

        Args:
            since: the first of them; one that the region has not reached: there is nothing to tell.
        """
        ...

    def cuts(self) -> Mapping[CutName, Checkpoint]:
        """Return every cut that the store remembers."""
        ...

    def progress(self, lineage: Lineage, group: GroupId) -> Mapping[GroupPartition, Offset]:
        """Return up to where one group has done everything in this lineage, since the base."""
        ...

    def stamp(self) -> Sequence:
        """Return the sequence that a batch would be stamped with that begins now."""
        ...


def previous(region: Region, sequence: Sequence) -> CutName | None:
    """Return the newest published cut on the path before another one."""
    found = region.archive.newest_published(sequence)
    return None if found is None else CutName(found.lineage, found.sequence)


def contents(region: Region, batches: Iterable[Batch], sequence: Sequence, group: GroupId) -> Contents:
    """Return what one group has in a complete cut.

    Args:
        region: as the store has it now.
        batches: of the ledger, oldest first; at least those with a later sequence than `previous`.
        sequence: of the cut.
        group: whose output.

    Raises:
        SinkError: there is no such cut, or it is not complete.
    """
    cut = checkpoint_of(region, sequence)
    if cut is None or not (cut.is_complete or cut.is_on_path):
        raise SinkError(f"cut {sequence} of region {region.name} is {'unknown' if cut is None else cut.state}")
    before = previous(region, sequence)
    first = Sequence(0) if before is None else before.sequence
    pieces = tuple(
        Piece(batch=b, kept=kept)
        for b in batches
        if b.member.group == group and first < b.sequence <= sequence and (kept := accepted(b))
    )
    oldest = min((p.batch.sequence for p in pieces), default=sequence)
    return Contents(
        cut=CutName(cut.lineage, cut.sequence),
        digest=cut.digest,
        bound=cut.bound,
        previous=before,
        undone_by=cut.undone_by,
        pieces=pieces,
        undone=tuple(
            CutName(row.lineage, row.sequence)
            for row in region.archive.checkpoints(first=Sequence(oldest), before=sequence)
            if row.undone_by is not None
        ),
    )


def accepted(batch: Batch) -> dict[GroupPartition, Range]:
    """Return what is accepted of a batch's ranges: done, and not undone by a later reset."""
    if batch.outcome is not Outcome.DONE:
        return {}
    ends = {p: batch.undone_from.get(p, r.to) for p, r in batch.ranges.items()}
    return {p: Range(r.from_, ends[p]) for p, r in batch.ranges.items() if ends[p] > r.from_}


def undone(region: Region) -> dict[CutName, Lineage]:
    """Return the cuts that resets have undone, with the lineages that were opened by them."""
    return {
        CutName(c.lineage, c.sequence): c.undone_by for c in region.archive.checkpoints() if c.undone_by is not None
    }


def lineages(region: Region, since: Lineage) -> Lineages:
    """Return what a lineage and the later ones have undone; cuts that follow each other are told as one stretch.

    Numbers that were burnt by a reset or an aborted cut don't end a stretch: nothing of theirs is in any sink.
    """
    if since > region.lineage:
        return Lineages()
    found = region.archive.stretches(since)
    return Lineages(lineage=region.lineage, undone=tuple(Undone(s.by, s.first, s.last) for s in found))


def cuts(region: Region) -> dict[CutName, Checkpoint]:
    """Return every cut that the store remembers."""
    return {CutName(c.lineage, c.sequence): c for c in region.archive.checkpoints()}


def progress(batches: Iterable[Batch], lineage: Lineage, group: GroupId) -> dict[GroupPartition, Offset]:
    """Return up to where one group has done everything in a lineage.

    The store refuses to end a batch of an older epoch, so this stands still once a reset has begun.
    """
    found: dict[GroupPartition, Offset] = {}
    for batch in batches:
        if batch.lineage == lineage and batch.member.group == group:
            for partition, range_ in accepted(batch).items():
                found[partition] = max(found.get(partition, range_.to), range_.to)
    return found


def next_stamp(region: Region) -> Sequence:
    """Return the sequence that a batch would be stamped with that begins now."""
    return stamp(region)
