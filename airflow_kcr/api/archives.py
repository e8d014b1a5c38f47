"""A closed history: closing one into archive files (`verdict`), and reading what is closed as a whole.

Closing goes in this order, for one certificate after the other, so that a process that ends anywhere has lost nothing
and the next one continues:

1. what the certificate covers is proved once more, from the archived one before it, and written to a file meanwhile;
2. what comes of that is the certificate itself, or nothing is closed from here on;
3. the file is forced to the disk, renamed into its place and read back;
4. the certificate's row says where the file is, and how to continue from there;
5. the rows are dropped, in pieces.

A certificate is old enough once the event after it is: whatever the certificate covers happened before. The newest one
is never closed: the store has always something that the next proof continues from.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

from airflow_kcr.api import verdict
from airflow_kcr.api.verdict import CERTIFICATE, ArchiveFolder, Judged
from airflow_kcr.api.views import View
from airflow_kcr.ports import ArchiveContents, ArchiveFile, Certificate, Chronicle, Dropped, Horizon
from airflow_kcr.protocol.invariants.history import History, Violation
from airflow_kcr.protocol.offsets import SeekEntry, SeekMap
from airflow_kcr.protocol.region.events import Event, MemberRegistered, ResetBegun, SeekWritten
from airflow_kcr.protocol.region.rows import Batch, CheckpointState, Outcome
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.region.timelines import Rewinds
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RegionName,
    TopicName,
    TopicPartition,
)
from airflow_kcr.store.codec import event_from_json

# A history of which a part is closed, read as a whole: from its archive files first, then from the store.

Line = Mapping[str, Any]
"""A line of an archive file, as JSON."""

_OUTCOMES: Final = {str(o): o for o in Outcome}

_REGISTERED: Final = f'"kind":"{MemberRegistered.__name__}"'
_BEGIN: Final = '"begin":'
"""Told in the lines that are worth parsing."""


class Contents:
    """What the lines of a file hold, gathered while they are written."""

    def __init__(self) -> None:
        self._ranges: dict[GroupPartition, Range] = {}
        self._processes: dict[tuple[MemberId, Incarnation], str] = {}

    def take(self, text: str) -> None:
        """Take the next line."""
        if _REGISTERED in text:
            body = _event(json.loads(text)).body
            if isinstance(body, MemberRegistered):
                self._processes[body.member, body.incarnation] = body.label
        elif _BEGIN in text:
            for partition, range_ in _begun(json.loads(text)).ranges.items():
                known = self._ranges.get(partition, range_)
                self._ranges[partition] = Range(min(known.from_, range_.from_), max(known.to, range_.to))

    def told(self) -> ArchiveContents:
        """Return what the lines held that were taken."""
        return ArchiveContents(ranges=self._ranges, processes=self._processes)


class ClosedRecords:
    """What became of records in closed history: reads the files that may tell, and no other.

    Args:
        store: what is recorded of the region in the store.
        folder: its archive files.
        closed: its newest archived certificate.
    """

    def __init__(self, store: Chronicle, folder: ArchiveFolder, closed: Certificate) -> None:
        self._store, self._folder, self._closed = store, folder, closed

    def readers(self, place: TopicPartition) -> set[GroupPartition]:
        """Return the partitions of any group, of this topic and number, that the closed history knows."""
        known = cast("Mapping[GroupId, Mapping[TopicName, Mapping[str, object]]]", self._closed.body["partitions"])
        return {
            GroupPartition(group, place.topic, place.partition)
            for group, topics in known.items()
            if str(place.partition) in topics.get(place.topic, {})
        }

    def batches_with(self, partition: GroupPartition, offset: Offset) -> tuple[Batch, ...]:
        """Return the closed batches whose ranges contain an offset, with what resets have undone of them.

        Raises:
            ArchiveError: a file that may tell is missing, or was changed.
        """
        found: dict[BatchId, Batch] = {}
        for certificate in self._store.archived_with(partition, offset):
            begun: dict[BatchId, Batch] = {}
            for line in self._lines(certificate):
                if "begin" in line and _holds(line, partition, offset):
                    begun[line["begin"]] = _begun(line)
                elif line.get("end") in begun:
                    begun[line["end"]] = _ended(begun[line["end"]], line)
            self._settle(begun, certificate)
            found |= begun
        return self._store.seen([*found.values()])

    def registered(self, member: MemberId, incarnation: Incarnation) -> str:
        """Return how the process of an incarnation called itself when it registered; empty: no closed event tells."""
        return self._store.archived_process(member, incarnation)

    def _settle(self, begun: dict[BatchId, Batch], certificate: Certificate) -> None:
        """Look in the files after that of a certificate for the ends of the batches that it leaves open."""
        waiting = begun.keys() & verdict.still_open(certificate)
        while waiting and certificate.number < self._closed.number:
            (certificate,) = self._store.certificates(after=certificate.number, limit=1)
            still_open = waiting & {*verdict.still_open(certificate)}
            if still_open != waiting:
                for line in self._lines(certificate):
                    if line.get("end") in waiting:
                        begun[line["end"]] = _ended(begun[line["end"]], line)
            waiting = still_open

    def _lines(self, certificate: Certificate) -> Iterator[Line]:
        return map(json.loads, self._folder.lines(certificate))


def _holds(line: Line, partition: GroupPartition, offset: Offset) -> bool:
    """Whether the batch that a line begins contains an offset."""
    return any(first <= offset < end and tuple(place) == partition for *place, first, end in line["ranges"])


class WholeHistory:
    """Implements `ports.Chronicle` for a region of which a part is closed.

    What it is asked for of the closed part is what certificates cover: `batches` between the horizons of two.

    Args:
        store: what is recorded of the region in the store.
        folder: its archive files.
    """

    def __init__(self, store: Chronicle, folder: ArchiveFolder) -> None:
        self._store, self._folder = store, folder
        known = store.certificates()
        self._files = [certificate for certificate in known if certificate.archive is not None]
        for certificate in self._files:
            folder.check(certificate)
        self._at = self._files[-1].horizon if self._files else Horizon(counter=EventNumber(0), ledger=0)
        self._ended = self._ends()

    # -- the archive -------------------------------------------------------------------------------------------------

    def archived_batches(self, certificate: Certificate) -> Iterator[Batch]:
        """Yield the batches that begin in a file, in its order; each with its end, if any file has that."""
        waiting: dict[BatchId, Batch] = {}
        unsettled = set(verdict.still_open(certificate))
        settled = set(unsettled)
        for line in self._lines(certificate):
            if "begin" in line:
                name = BatchId(line["begin"])
                waiting[name] = self._ended.get(name) or _begun(line)
            elif "end" in line and line["end"] in waiting and line["end"] not in unsettled:
                waiting[line["end"]] = _ended(waiting[line["end"]], line)
                settled.add(line["end"])
            while waiting and (first := next(iter(waiting))) in settled:
                settled.discard(first)
                yield waiting.pop(first)

    def _lines(self, certificate: Certificate) -> Iterator[Line]:
        """Yield what an archived certificate covers."""
        return map(json.loads, self._folder.lines(certificate))

    def _ends(self) -> dict[BatchId, Batch]:
        """Return the batches that were open at a certificate and that a later file ends."""
        unsettled = {batch for certificate in self._files for batch in verdict.still_open(certificate)}
        begun: dict[BatchId, Batch] = {}
        ended: dict[BatchId, Batch] = {}
        if not unsettled:
            return ended
        for certificate in self._files:
            for line in self._lines(certificate):
                if line.get("begin") in unsettled:
                    begun[line["begin"]] = _begun(line)
                elif line.get("end") in unsettled:
                    ended[line["end"]] = _ended(begun[line["end"]], line)
        return ended

    def history(self, stored: History) -> History:
        """Return the whole history, its batches with what resets have undone of them.

        Args:
            stored: what the store has of it.
        """
        events = [*self.events(EventNumber(0), self._at.counter)]
        events += [event for event in stored.events if event.number > self._at.counter]
        rewinds = Rewinds(_seek_maps(events))
        newer = {batch.batch: batch for batch in stored.batches}
        older = (batch for certificate in self._files for batch in self.archived_batches(certificate))
        batches = [newer.pop(b.batch) if b.batch in newer else rewinds.seen_in(b) for b in older]
        return History(events=events, batches=[*batches, *newer.values()])

    def seen(self, batches: Sequence[Batch]) -> tuple[Batch, ...]:
        """See `ports.Chronicle.seen`."""
        return self._store.seen(batches)

    # -- ports.Chronicle ---------------------------------------------------------------------------------------------

    def horizon(self) -> Horizon:
        """See `ports.Chronicle.horizon`."""
        return self._store.horizon()

    def events(self, after: EventNumber, upto: EventNumber) -> Iterator[Event]:
        """See `ports.Chronicle.events`."""
        for certificate in self._files:
            if certificate.horizon.counter > after and cast("int", certificate.body["after"]) < upto:
                for line in self._lines(certificate):
                    if "event" in line and after < line["event"] <= upto:
                        yield _event(line)
        yield from self._store.events(max(after, self._at.counter), upto)

    def batches(self, after: int, upto: int) -> Iterator[Batch]:
        """See `ports.Chronicle.batches`."""
        for certificate in self._files:
            if after < certificate.horizon.ledger <= upto:
                yield from self.archived_batches(certificate)
        yield from self._store.batches(max(after, self._at.ledger), upto)

    def rows(self, batches: Collection[BatchId]) -> tuple[Batch, ...]:
        """See `ports.Chronicle.rows`."""
        found = [self._ended[batch] for batch in self._ended if batch in batches]
        return (*found, *self._store.rows([batch for batch in batches if batch not in self._ended]))

    def certificates(self, after: int = 0, limit: int | None = None) -> tuple[Certificate, ...]:
        """See `ports.Chronicle.certificates`."""
        return self._store.certificates(after, limit)

    def newest_certificate(self) -> Certificate | None:
        """See `ports.Chronicle.newest_certificate`."""
        return self._store.newest_certificate()

    def uncertifiable(self) -> str:
        """See `ports.Chronicle.uncertifiable`."""
        return self._store.uncertifiable()

    def certify(self, certificate: Certificate) -> bool:
        """See `ports.Chronicle.certify`."""
        return self._store.certify(certificate)

    def closed(self) -> Certificate | None:
        """See `ports.Chronicle.closed`."""
        return self._store.closed()

    def archived(self, number: int, file: ArchiveFile, resume: bytes, contents: ArchiveContents) -> None:
        """See `ports.Chronicle.archived`."""
        self._store.archived(number, file, resume, contents)

    def archived_with(self, partition: GroupPartition, offset: Offset) -> tuple[Certificate, ...]:
        """See `ports.Chronicle.archived_with`."""
        return self._store.archived_with(partition, offset)

    def archived_process(self, member: MemberId, incarnation: Incarnation) -> str:
        """See `ports.Chronicle.archived_process`."""
        return self._store.archived_process(member, incarnation)

    def drop(self, closed: Certificate, floor: CheckpointNumber) -> Iterator[Dropped]:
        """See `ports.Chronicle.drop`."""
        return self._store.drop(closed, floor)


def _seek_maps(events: Iterable[Event]) -> dict[Epoch, SeekMap]:
    """Return where resets sent the partitions, by epoch."""
    found: dict[Epoch, dict[GroupPartition, SeekEntry]] = {}
    for event in events:
        match event.body:
            case ResetBegun(epoch=epoch, seek=seek) | SeekWritten(epoch=epoch, seek=seek):
                found.setdefault(epoch, {}).update(seek)
            case _:
                pass
    return {epoch: SeekMap(entries) for epoch, entries in found.items()}


def _event(line: Line) -> Event:
    return Event(
        number=EventNumber(line["event"]),
        at=datetime.fromisoformat(line["at"]),
        epoch=line["epoch"],
        timeline=line["timeline"],
        body=event_from_json(line["kind"], line["body"]),
    )


def _begun(line: Line) -> Batch:
    group, index = line["member"]
    return Batch(
        batch=BatchId(line["begin"]),
        member=MemberId(group, index),
        incarnation=line["incarnation"],
        epoch=line["epoch"],
        timeline=line["timeline"],
        sequence=line["sequence"],
        ranges={GroupPartition(GroupId(g), TopicName(t), number): Range(a, b) for g, t, number, a, b in line["ranges"]},
        started_at=datetime.fromisoformat(line["at"]),
        started_after=EventNumber(line["after"]),
    )


def _ended(batch: Batch, line: Line) -> Batch:
    return replace(
        batch,
        outcome=_OUTCOMES[line["outcome"]],
        finished_at=None if line["at"] is None else datetime.fromisoformat(line["at"]),
        finished_after=line["after"],
        proven_in=line.get("proven"),
    )


# Closing a history.


@dataclass(slots=True, kw_only=True)
class Closing(View):
    """What was closed of a region's history by one call."""

    region: RegionName
    archived: list[Path] = field(default_factory=list)
    """The files that were written."""

    events: int = 0
    """How many left the store."""

    batches: int = 0
    """How many left the store."""

    upto: EventNumber | None = None
    """The newest event that is closed by now, by this call or an earlier one; None: none is."""

    violations: tuple[Violation, ...] = ()
    """What speaks against closing more: the history contradicts an invariant, or a certificate the store."""

    def facts(self) -> Mapping[str, object]:
        """Return it as in `history close`."""
        return {
            "region": self.region,
            "closed_upto": self.upto,
            "archived": self.archived,
            "dropped_events": self.events,
            "dropped_batches": self.batches,
            "violations": self.violations,
        }


def floor(region: Region) -> CheckpointNumber:
    """Return the newest sequence whose batches are no longer read.

    Publishing a checkpoint reads the batches since the newest published one before it, resetting those since the
    restore point.
    """
    waiting = [
        row.sequence
        for row in region.checkpoints.values()
        if row.state in {CheckpointState.OPEN, CheckpointState.COMPLETE}
    ]
    published = region.archive.newest_published(min(waiting, default=region.next_sequence))
    return min(
        CheckpointNumber(0) if published is None else published.sequence, region.restore_point or CheckpointNumber(0)
    )


def close(region: Region, chronicle: Chronicle, root: Path, now: datetime, keep: timedelta) -> Closing:
    """Archive and drop what is certified and old enough.

    Args:
        region: as it is stored now.
        chronicle: what is recorded of it.
        root: the folder of the archive.
        now: the store's clock.
        keep: how old everything must be that a closed certificate covers.

    Raises:
        ArchiveError: a file can't be written, or the newest one that is there is not what it was. What was archived
            before is closed then, and everything else is in the store.
    """
    made = _Closing(region=region, chronicle=chronicle, root=root, now=now, keep=keep)
    try:
        made.archive()
    finally:
        made.drop()
    return made.told


@dataclass(slots=True, kw_only=True)
class _Closing:
    """A history that is being closed."""

    region: Region
    chronicle: Chronicle
    root: Path
    now: datetime
    keep: timedelta
    told: Closing = field(init=False)
    closed: Certificate | None = None
    """The newest certificate whose file is known to be there."""

    def __post_init__(self) -> None:
        self.told = Closing(region=self.region.name)

    def archive(self) -> None:
        """Write the files of the certificates that are old enough, oldest first."""
        first = self.chronicle.certificates(limit=1)
        if not first:
            return
        folder = ArchiveFolder(root=self.root, region=self.region.name, first=first[0].digest)
        self.closed = self.chronicle.closed()
        judged = Judged(region=self.region.name, chronicle=self.chronicle)
        if self.closed is not None:
            folder.require(self.closed)
            if not self._holds(self.closed, verdict.flaws(self.closed)):
                return
            judged.go_on_from(self.closed)
        for certificate in self._closable():
            if not self._is_old(certificate) or not self._archive(folder, judged, certificate):
                return

    def _closable(self) -> Iterator[Certificate]:
        """Yield the certificates that no file has and that have a newer one; what is closed is not read again."""
        at = 0 if self.closed is None else self.closed.number
        while len(found := self.chronicle.certificates(after=at, limit=2)) > 1:
            yield found[0]
            at = found[0].number

    def _is_old(self, certificate: Certificate) -> bool:
        upto = certificate.horizon.counter
        after = next(self.chronicle.events(upto, EventNumber(upto + 1)), None)
        return after is not None and self.now - after.at > self.keep

    def _archive(self, folder: ArchiveFolder, judged: Judged, certificate: Certificate) -> bool:
        """Write one file, or find it there; return whether what it holds is what was certified."""
        contents = Contents()

        def write(line: str) -> None:
            contents.take(line)
            written.write(line)

        with folder.writing(certificate) as written:
            anew = judged.again(certificate, self.closed, write)
            flaws = verdict.flaws(certificate) or verdict.compared(certificate, anew)
            written.is_right = self._holds(certificate, flaws) and not judged.proof.violations
        if not written.is_right or anew.resume is None:
            self.told.violations += judged.proof.violations
            return False
        path = folder.path_of(certificate)
        file = ArchiveFile(
            name=str(path.relative_to(self.root)),
            size=folder.check(certificate),
            resume=verdict.resume_digest(anew.resume),
        )
        self.chronicle.archived(certificate.number, file, anew.resume, contents.told())
        self.closed = replace(certificate, archive=file, resume=anew.resume)
        self.told.archived.append(path)
        return True

    def _holds(self, certificate: Certificate, flaws: list[str]) -> bool:
        upto = certificate.horizon.counter
        self.told.violations += tuple(Violation(CERTIFICATE, flaw, (upto,)) for flaw in flaws)
        return not flaws

    def drop(self) -> None:
        """Drop whatever is archived, also by a call that ended before it dropped its rows."""
        if self.closed is None:
            return
        self.told.upto = self.closed.horizon.counter
        for dropped in self.chronicle.drop(self.closed, floor(self.region)):
            self.told.events += dropped.events
            self.told.batches += dropped.batches
