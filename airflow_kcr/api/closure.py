"""Closing a history: what a certificate covers, and is old enough, goes to an archive file and leaves the store.

In this order, for one certificate after the other, so that a process that ends anywhere has lost nothing and the next
one continues:

1. what the certificate covers is proved once more, from the archived one before it, and written to a file meanwhile;
2. what comes of that is the certificate itself, or nothing is closed from here on;
3. the file is forced to the disk, renamed into its place and read back;
4. the certificate's row says where the file is, and how to continue from there;
5. the rows are dropped, in pieces.

A certificate is old enough once the event after it is: whatever the certificate covers happened before. The newest one
is never closed: the store has always something that the next proof continues from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from airflow_kcr.api import verdict
from airflow_kcr.api.archives import ArchiveFolder, Contents
from airflow_kcr.api.verdict import CERTIFICATE, Judged
from airflow_kcr.api.views import View
from airflow_kcr.ports import ArchiveFile, Certificate, Chronicle
from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.region.rows import CheckpointState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, RegionName


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
