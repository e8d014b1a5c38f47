"""What the invariants say of a region's history, and how far it is certified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Self

from airflow_kcr.api import certificates
from airflow_kcr.api.certificates import Content
from airflow_kcr.ports import Certificate, Chronicle, Horizon
from airflow_kcr.protocol.invariants.history import Violation
from airflow_kcr.protocol.invariants.proof import Proof
from airflow_kcr.protocol.invariants.verify import beginning, report
from airflow_kcr.protocol.values import EventNumber, RegionName

CERTIFICATE: Final = "certificate"
"""What stands for an invariant where a certificate contradicts the store."""

_BEGINNING: Final = Horizon(counter=EventNumber(0), ledger=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
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

        It goes on from the newest certificate, and certifies what it finds consistent.

        Args:
            region: its name.
            chronicle: what is recorded of it.
            from_start: judge anew what was certified, and compare it with the certificates.
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

    def to_json(self) -> dict[str, object]:
        """Return it as in `verify`."""
        told = report(self.region, self.checked_events, self.checked_batches, self.violations)
        newest = self.certificate
        said = None if newest is None else {"number": newest.number, "upto": newest.horizon.counter}
        certificate = said if newest is None or said is None else {**said, "digest": newest.digest}
        return {**told, "certificate": certificate, "not_certified": self.not_certified or None}


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
        self._contradicted(newest, certificates.flaws(newest) or self._unlike(newest))
        if self.contradictions:
            return None
        self.go_on_from(newest)
        return newest

    def go_on_from(self, certificate: Certificate) -> None:
        """Be where the proof of a certificate was."""
        self.proof, self.at = certificates.resumed(certificate), certificate.horizon
        rows = self.chronicle.rows(certificates.still_open(certificate))
        self.proof.open = {row.batch: row for row in rows}

    def _unlike(self, newest: Certificate) -> list[str]:
        """Return where the store, as far as a look tells, is not what a certificate was made of."""
        name, upto = f"certificate {newest.number}", newest.horizon.counter
        last = next(self.chronicle.events(EventNumber(upto - 1), upto), None)
        if last is None:
            return [f"{name} ends with event {upto}, which the store does not have"]
        found = []
        if certificates.last_event(last) != newest.body.get("last_event"):
            found.append(f"{name} ends with event {upto}, the store has another one of that number")
        place = newest.horizon.ledger
        if place and next(self.chronicle.batches(place - 1, place), None) is None:
            found.append(f"{name} ends with the batch at place {place} of the ledger, which the store does not have")
        known = {row.batch for row in self.chronicle.rows(certificates.still_open(newest))}
        lost = [batch for batch in certificates.still_open(newest) if batch not in known]
        return [*found, *(f"{name} names batch {batch}, which the store does not have" for batch in lost)]

    def from_start(self) -> Certificate | None:
        """Prove anew what was certified, and compare."""
        newest: Certificate | None = None
        for certificate in self.chronicle.certificates():
            flaws = certificates.flaws(certificate)
            expected = certificates.NOTHING if newest is None else newest.digest
            if certificate.body.get("previous") != expected:
                flaws.append(f"certificate {certificate.number} does not go on from the one before it")
            self._contradicted(certificate, flaws)
            anew = self.again(certificate, newest)
            self._contradicted(certificate, [] if flaws else certificates.compared(certificate, anew))
            newest = certificate
        return newest

    def again(
        self, certificate: Certificate, earlier: Certificate | None, write: Callable[[str], object] = len
    ) -> Certificate:
        """Prove anew what a certificate covers, and return the one that comes of it.

        Args:
            certificate: the next one.
            earlier: the one before it.
            write: is handed each line.
        """
        content = self._take(certificate.horizon, frozenset(certificates.still_open(certificate)), write)
        return certificates.certificate_of(self.region, self.proof, content, certificate.horizon, earlier)

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
        certificate = certificates.certificate_of(self.region, self.proof, content, horizon, earlier)
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
