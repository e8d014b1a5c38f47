"""What the invariants say of a region's history; certificates, which the next proof continues from; their files.

An archive file is gzip of JSON lines. The first one is the header: the certificate's body and digest, and once more
what tells the file's place in the chain. The others are the lines that the certificate's `content` is the SHA-256 of,
to the letter. The files of a region are in one folder, named after the region and its first certificate, so that a
region that is deleted and recreated begins a chain of its own.

It is written beside its name, forced to the disk and then renamed: whatever stands under the name is whole.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final, NoReturn, Self, cast

from airflow_kcr.api.views import View
from airflow_kcr.errors import ArchiveError, StoreError
from airflow_kcr.ports import Certificate, Chronicle, Horizon
from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.invariants.proof import Proof, Tally, beginning
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import BatchId, EventNumber, RegionName
from airflow_kcr.store.codec import from_json, to_json

CERTIFICATE: Final = "certificate"
"""What stands for an invariant where a certificate contradicts the store."""

_BEGINNING: Final = Horizon(counter=EventNumber(0), ledger=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(View):
    """A history judged."""

    region: RegionName
    checked_events: int
    checked_batches: int
    violations: tuple[Violation, ...]
    """Whatever the history contradicts; none: it is consistent."""

    certificate: Certificate | None = None
    """The newest one, if the history up to it was found consistent."""

    not_certified: str = ""
    """Why nothing was certified though what is new was found consistent; empty: there is no such reason."""

    @classmethod
    def of(cls, region: RegionName, chronicle: Chronicle, *, from_start: bool = False) -> Self:
        """Judge what is recorded of a region up to this moment, reading it once and holding none of it.

        It continues from the newest certificate, and certifies what it finds consistent.

        Args:
            region: its name.
            chronicle: what is recorded of it.
            from_start: judge again what was certified, and compare it with the certificates.
        """
        judged = Judged(region=region, chronicle=chronicle)
        certificate = judged.from_start() if from_start else judged.from_newest()
        if not judged.contradictions:
            certificate = judged.to_horizon(certificate)
        return cls(
            region=region,
            checked_events=judged.events,
            checked_batches=judged.batches,
            violations=(*judged.contradictions, *judged.proof.finished()),
            certificate=None if judged.contradictions else certificate,
            not_certified=judged.not_certified,
        )

    def facts(self) -> Mapping[str, object]:
        """Return it as in `verify`."""
        newest = self.certificate
        return {
            "region": self.region,
            "checked_events": self.checked_events,
            "checked_batches": self.checked_batches,
            "violations": self.violations,
            "certificate": None
            if newest is None
            else {"number": newest.number, "upto": newest.horizon.counter, "digest": newest.digest},
            "not_certified": self.not_certified or None,
        }


@dataclass(slots=True, kw_only=True)
class Judged:
    """A proof on its way through a chronicle."""

    region: RegionName
    chronicle: Chronicle
    proof: Proof = field(default_factory=beginning)
    at: Horizon = _BEGINNING
    events: int = 0
    batches: int = 0
    contradictions: list[Violation] = field(default_factory=list)
    not_certified: str = ""

    def from_newest(self) -> Certificate | None:
        """Go on from the newest certificate, if it holds against the store."""
        newest = self.chronicle.newest_certificate()
        if newest is None:
            return None
        self._contradicted(newest, flaws(newest) or self._unlike(newest))
        if self.contradictions:
            return None
        self.go_on_from(newest)
        return newest

    def go_on_from(self, certificate: Certificate) -> None:
        """Be where the proof of a certificate was."""
        self.proof, self.at = resumed(certificate), certificate.horizon
        rows = self.chronicle.rows(still_open(certificate))
        self.proof.open = {row.batch: row for row in rows}

    def _unlike(self, newest: Certificate) -> list[str]:
        """Return where the store's newest rows are not what a certificate was made of."""
        name, upto = f"certificate {newest.number}", newest.horizon.counter
        last = next(self.chronicle.events(EventNumber(upto - 1), upto), None)
        if last is None:
            return [f"{name} ends with event {upto}, which the store does not have"]
        found = []
        if last_event(last) != newest.body.get("last_event"):
            found.append(f"{name} ends with event {upto}, the store has another one of that number")
        place = newest.horizon.ledger
        if place and next(self.chronicle.batches(place - 1, place), None) is None:
            found.append(f"{name} ends with the batch at place {place} of the ledger, which the store does not have")
        known = {row.batch for row in self.chronicle.rows(still_open(newest))}
        lost = [batch for batch in still_open(newest) if batch not in known]
        return [*found, *(f"{name} names batch {batch}, which the store does not have" for batch in lost)]

    def from_start(self) -> Certificate | None:
        """Prove again what was certified, and compare."""
        newest: Certificate | None = None
        for certificate in self.chronicle.certificates():
            found = flaws(certificate)
            expected = NOTHING if newest is None else newest.digest
            if certificate.body.get("previous") != expected:
                found.append(f"certificate {certificate.number} does not go on from the one before it")
            self._contradicted(certificate, found)
            anew = self.again(certificate, newest)
            self._contradicted(certificate, [] if found else compared(certificate, anew))
            newest = certificate
        return newest

    def again(
        self, certificate: Certificate, earlier: Certificate | None, write: Callable[[str], object] = len
    ) -> Certificate:
        """Prove again what a certificate covers, and return the one that comes of it.

        Args:
            certificate: the next one.
            earlier: the one before it.
            write: is handed each line.
        """
        content = self._take(certificate.horizon, frozenset(still_open(certificate)), write)
        return certificate_of(self.region, self.proof, content, certificate.horizon, earlier)

    def to_horizon(self, earlier: Certificate | None) -> Certificate | None:
        """Prove what is new, and certify it if nothing is found."""
        horizon = self.chronicle.horizon()
        if horizon == self.at and not self.proof.open:
            return earlier
        content = self._take(horizon, frozenset())
        if earlier is not None and horizon == earlier.horizon and not content.lines:
            return earlier
        # Rows may have been changed since by what came after: a reset whose sinks' progress proved them done.
        self.proof.later(self.chronicle.events(horizon.counter, self.chronicle.horizon().counter))
        if self.proof.finished():
            return earlier
        self.not_certified = self.chronicle.uncertifiable()
        if self.not_certified:
            return earlier
        certificate = certificate_of(self.region, self.proof, content, horizon, earlier)
        return certificate if self.chronicle.certify(certificate) else earlier

    def _take(self, horizon: Horizon, running: frozenset[str], write: Callable[[str], object] = len) -> Content:
        """Go on to a horizon.

        Args:
            horizon: how far.
            running: batches that were open there; their rows may say by now what became of them.
            write: is handed each line.
        """
        content = Content(write=write)
        before = self.proof.events, self.proof.tally.batches
        self.proof.witness = content
        rows = self.chronicle.rows(tuple(self.proof.open))
        self.proof.take(
            self.chronicle.events(self.at.counter, horizon.counter),
            chain(rows, self.chronicle.batches(self.at.ledger, horizon.ledger)),
            horizon.counter,
            lambda batch: batch.batch in running,
        )
        self.events += self.proof.events - before[0]
        self.batches += self.proof.tally.batches - before[1]
        self.at = horizon
        return content

    def _contradicted(self, certificate: Certificate, details: list[str]) -> None:
        self.contradictions += [Violation(CERTIFICATE, detail, (certificate.horizon.counter,)) for detail in details]


# Certificates: what a proof has found of a region's history up to a moment, and what the next one continues from.
#
# A certificate's body is JSON that can be checked without this program: `content` is the SHA-256 of the lines
# below, `previous` the digest of the certificate before, and the certificate's own digest the SHA-256 of its body.
# Everything is digested as JSON in one form: keys in order, no spaces, UTF-8.
#
# The lines are what happened between two certificates, in its order: an event, the start of a batch, and its outcome
# once that is final. Of what a later reset undoes they say nothing; the reset's own event does.

FORMAT: Final = 1
"""Of bodies and lines; what reads them refuses any other."""

_SHOWN: Final = 200
"""Characters of a value that differs."""

NOTHING: Final = ""
"""The digest before the first certificate."""


def digest_of(document: object) -> str:
    """Return the SHA-256 of a JSON document, in hexadecimal."""
    return hashlib.sha256(_text(document).encode()).hexdigest()


_text: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


@dataclass(slots=True)
class Content:
    """The lines of what a proof takes, digested; implements `proof.Witness`."""

    write: Callable[[str], object] = len
    """Is handed each line."""

    lines: int = 0
    last_event: str = NOTHING
    """The digest of the newest event."""

    _digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        """Of all lines so far."""
        return self._digest.hexdigest()

    def event(self, event: Event) -> None:
        """See `Witness`."""
        document = _event(event)
        self.last_event = digest_of(document)
        self._line(document)

    def begin(self, batch: Batch) -> None:
        """See `Witness`."""
        self._line(
            {
                "begin": batch.batch,
                "member": [batch.member.group, batch.member.index],
                "incarnation": batch.incarnation,
                "epoch": batch.epoch,
                "timeline": batch.timeline,
                "sequence": batch.sequence,
                "after": batch.started_after,
                "at": batch.started_at.isoformat(),
                "ranges": [[*partition, *range_] for partition, range_ in batch.ranges.items()],
            }
        )

    def end(self, batch: Batch, outcome: Outcome) -> None:
        """See `Witness`."""
        at = None if batch.finished_at is None else batch.finished_at.isoformat()
        proven = {} if batch.proven_in is None else {"proven": batch.proven_in}
        self._line({"end": batch.batch, "outcome": str(outcome), "after": batch.finished_after, "at": at, **proven})

    def _line(self, document: Mapping[str, object]) -> None:
        line = _text(document) + "\n"
        self.lines += 1
        self._digest.update(line.encode())
        self.write(line)


def _event(event: Event) -> dict[str, object]:
    return {
        "event": event.number,
        "at": event.at.isoformat(),
        "epoch": event.epoch,
        "timeline": event.timeline,
        "kind": event.kind,
        "body": to_json(event.body, type(event.body)),
    }


def last_event(event: Event) -> str:
    """Return the digest of an event, as a certificate has that of its newest one."""
    return digest_of(_event(event))


def certificate_of(
    region: RegionName, proof: Proof, content: Content, horizon: Horizon, earlier: Certificate | None
) -> Certificate:
    """Return the certificate of a proof that has come to a horizon without finding anything.

    Args:
        region: whose.
        proof: it.
        content: the lines since the certificate before.
        horizon: how far it has come.
        earlier: the certificate that it has continued from; None: it began at the beginning.
    """
    resume = _resume(proof)
    moment = proof.moment
    body: dict[str, object] = {
        "format": FORMAT,
        "region": region,
        "number": 1 if earlier is None else earlier.number + 1,
        "after": 0 if earlier is None else earlier.horizon.counter,
        "upto": horizon.counter,
        "content": content.digest,
        "last_event": content.last_event if content.last_event or earlier is None else earlier.body["last_event"],
        "state": hashlib.sha256(resume).hexdigest(),
        "region_state": {
            "state": str(moment.state),
            "epoch": moment.epoch,
            "timeline": moment.timeline,
            "restore_point": moment.restore_point,
        },
        **tallied(proof.tally),
        "open": sorted(proof.open),
        "previous": NOTHING if earlier is None else earlier.digest,
    }
    number = 1 if earlier is None else earlier.number + 1
    return Certificate(number=number, horizon=horizon, body=body, digest=digest_of(body), resume=zlib.compress(resume))


def tallied(tally: Tally) -> dict[str, object]:
    """Return what a history adds up to, as a certificate has it."""
    found = cast("dict[str, object]", to_json(tally, Tally))
    return {
        "partitions": found.get("partitions", {}),
        "batches": tally.batches,
        "outcomes": dict(sorted(tally.outcomes.items())),
    }


def _resume(proof: Proof) -> bytes:
    document = {
        "moment": to_json(proof.moment, Moment),
        "tally": to_json(proof.tally, Tally),
        "checks": {check.invariant: to_json(check, type(check)) for check in proof.checks},
        "open": sorted(proof.open),
        "doubted": proof.doubted,
    }
    # The order of keys counts: of requests, the oldest are forgotten first.
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def resumed(certificate: Certificate) -> Proof:
    """Return the proof that a certificate was made of; the rows of what it has `open` are to be read again.

    Raises:
        StoreError: the certificate has nothing to continue from, or another program has written it.
    """
    if certificate.resume is None or certificate.body.get("format") != FORMAT:
        raise StoreError(f"certificate {certificate.number} can't be gone on from; use --from-start")
    document = json.loads(zlib.decompress(certificate.resume))
    proof = beginning()
    proof.checks = tuple(from_json(document["checks"][c.invariant], type(c)) for c in proof.checks)
    proof.moment = from_json(document["moment"], Moment)
    proof.tally = from_json(document["tally"], Tally)
    proof.doubted = dict(document["doubted"])
    return proof


def flaws(certificate: Certificate) -> list[str]:
    """Return what is wrong with a certificate by itself; nothing: it is as it was made."""
    said, name = certificate.body, f"certificate {certificate.number}"
    found = []
    if digest_of(said) != certificate.digest:
        found.append(f"{name} was changed: its digest is not that of what it says")
    if (said.get("number"), said.get("upto")) != (certificate.number, certificate.horizon.counter):
        found.append(f"{name} stands in the row of number {certificate.number}, event {certificate.horizon.counter}")
    if certificate.resume is not None:
        archive = certificate.archive
        if resume_digest(certificate.resume) != (said.get("state") if archive is None else archive.resume):
            found.append(f"{name} was changed: its state is not the one that it was made of")
    return found


def resume_digest(resume: bytes) -> str:
    """Return the SHA-256 of what a proof continues from, as its certificate has it."""
    return hashlib.sha256(zlib.decompress(resume)).hexdigest()


def still_open(certificate: Certificate) -> tuple[BatchId, ...]:
    """Return the batches without a final outcome."""
    return tuple(cast("list[BatchId]", certificate.body.get("open", [])))


def compared(certificate: Certificate, anew: Certificate) -> list[str]:
    """Return where a certificate differs from the one that was recreated from the same events and batches."""
    name = f"certificate {certificate.number} (up to event {certificate.horizon.counter})"
    found = []
    said, seen = certificate.body, anew.body
    for key in sorted(said.keys() | seen.keys() - {"partitions", "state"}):
        if key in {"partitions", "state"} or said.get(key) == seen.get(key):
            continue
        found.append(f"{name} says of {key}: {_short(said.get(key))}; the store says {_short(seen.get(key))}")
    a, b = _by_partition(said), _by_partition(seen)
    differ = sorted(place for place in a.keys() | b.keys() if a.get(place) != b.get(place))
    told = (f"{name} says of {p}: {_short(a.get(p))}; the store says {_short(b.get(p))}" for p in differ)
    return [*found, *told]


def _by_partition(body: Mapping[str, object]) -> dict[str, object]:
    groups = cast("Mapping[str, Mapping[str, Mapping[str, object]]]", body.get("partitions", {}))
    return {
        f"{group}:{topic}-{number}": total
        for group, topics in groups.items()
        for topic, numbers in topics.items()
        for number, total in numbers.items()
    }


def _short(document: object) -> str:
    text = _text(document)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


# Archive files: each holds what one certificate covers

ARCHIVE_FORMAT: Final = 1
"""Of files; what reads them refuses any other."""

KIND: Final = "kcr history"
_LEVEL: Final = 6
_PREFIX: Final = 12
"""Hexadecimal digits of the first certificate's digest in the name of a folder."""


def header_of(certificate: Certificate) -> dict[str, object]:
    """Return the first line of the file of a certificate."""
    body = certificate.body
    return {
        "kind": KIND,
        "format": ARCHIVE_FORMAT,
        "region": body.get("region"),
        "number": certificate.number,
        "after": body.get("after"),
        "upto": certificate.horizon.counter,
        "previous": body.get("previous"),
        "digest": certificate.digest,
        "certificate": dict(body),
    }


@dataclass(slots=True, kw_only=True)
class Written:
    """A file on its way."""

    write: Callable[[str], object]
    """Takes its lines."""

    is_right: bool = False
    """Whether it shall stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFolder:
    """The files of one region's certificates.

    Args:
        root: the spec's `history.archive`, which exists.
        region: whose.
        first: the digest of its first certificate.
    """

    root: Path
    region: RegionName
    first: str

    @property
    def path(self) -> Path:
        """The folder."""
        return self.root / f"{self.region}-{self.first[:_PREFIX]}"

    def path_of(self, certificate: Certificate) -> Path:
        """Return the file of a certificate."""
        return self.path / f"{certificate.number:08}.jsonl.gz"

    @contextmanager
    def writing(self, certificate: Certificate) -> Iterator[Written]:
        """Lend what writes the lines of a certificate's file.

        Once this ends, and what was written is right, the file is there and on the disk; else nothing is left of it.

        Raises:
            ArchiveError: it can't be written, there is no such folder as `root`, or there is a file of that name that
                holds something else.
        """
        final = self.path_of(certificate)
        if final.exists():  # by a call that ended before the store recorded the file
            self.check(certificate)
            yield Written(write=len)
            return
        part = final.with_name(f"{final.name}.{os.getpid()}.part")
        try:
            if not self.root.is_dir():
                raise ArchiveError(f"there is no folder {self.root} to archive to; make or mount it")
            self.path.mkdir(exist_ok=True)
            for left in self.path.glob(f"{final.name}.*.part"):  # by a process that was killed
                left.unlink(missing_ok=True)
            with part.open("xb") as raw:
                with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as packed:
                    packed.write(_line(header_of(certificate)))
                    written = Written(write=lambda line: packed.write(line.encode()))
                    yield written
                raw.flush()
                os.fsync(raw.fileno())
            if written.is_right:
                part.replace(final)
                for folder in (self.path, self.root):
                    _force(folder)
        except OSError as error:
            raise ArchiveError(
                f"{final} can't be written: {error.strerror or error}; the history stays in the store"
            ) from error
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def require(self, certificate: Certificate) -> None:
        """Check that the file of an archived certificate exists and has its recorded size.

        Raises:
            ArchiveError: it is missing, or was changed.
        """
        file = certificate.archive
        if file is None:
            return
        path = self.path_of(certificate)
        try:
            size = path.stat().st_size
        except OSError as error:
            raise ArchiveError(f"archive file {path} is missing: {error.strerror or error}") from None
        if size != file.size:
            _changed(path, f"it has {size} bytes; {file.size} were written")

    def lines(self, certificate: Certificate) -> Iterator[str]:
        """Yield the lines of a certificate's file, which holds what it covers if this comes to its end.

        Raises:
            ArchiveError: the file is missing, can't be read, or was changed.
        """
        path, digest = self.path_of(certificate), hashlib.sha256()
        try:
            with gzip.open(path, "rb") as packed:
                if packed.readline() != _line(header_of(certificate)):
                    _changed(path, f"its header is not that of certificate {certificate.number}")
                for line in packed:
                    digest.update(line)
                    yield line.decode()
        except FileNotFoundError:
            raise ArchiveError(f"archive file {path} is missing") from None
        except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
            _changed(path, str(error))
        except OSError as error:
            raise ArchiveError(f"archive file {path} can't be read: {error.strerror or error}") from error
        if digest.hexdigest() != certificate.body.get("content"):
            _changed(path, f"its lines are not those that certificate {certificate.number} was made of")

    def check(self, certificate: Certificate) -> int:
        """Read the file of a certificate back, and return its size in bytes.

        Raises:
            ArchiveError: see `lines`.
        """
        self.require(certificate)
        for _ in self.lines(certificate):
            pass
        return self.path_of(certificate).stat().st_size


def _changed(path: Path, what: str) -> NoReturn:
    raise ArchiveError(f"archive file {path} was changed: {what}")


def _line(document: object) -> bytes:
    return (json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def _force(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
