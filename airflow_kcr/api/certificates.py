"""Certificates: what a proof has found of a region's history up to a moment, and what the next one goes on from.

A certificate's body is JSON that anybody can check without this program: `content` is the SHA-256 of the lines below,
`previous` the digest of the certificate before, and the certificate's own digest the SHA-256 of its body. Everything is
digested as JSON in one form: keys in order, no spaces, UTF-8.

The lines are what happened between two certificates, in its order: an event, the begin of a batch, and what became of
it once that is settled. Of what a later reset undoes they say nothing; the reset's own event does.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from airflow_kcr.errors import StoreError
from airflow_kcr.ports import Certificate, Horizon
from airflow_kcr.protocol.invariants.moment import Moment
from airflow_kcr.protocol.invariants.proof import Proof
from airflow_kcr.protocol.invariants.tally import Tally
from airflow_kcr.protocol.invariants.verify import beginning
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import BatchId, RegionName
from airflow_kcr.store.codec import from_json, to_json

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
                "after": batch.begun_after,
                "at": batch.begun_at.isoformat(),
                "ranges": [[*partition, *range_] for partition, range_ in batch.ranges.items()],
            }
        )

    def end(self, batch: Batch, outcome: Outcome) -> None:
        """See `Witness`."""
        at = None if batch.ended_at is None else batch.ended_at.isoformat()
        proven = {} if batch.proven_in is None else {"proven": batch.proven_in}
        self._line({"end": batch.batch, "outcome": str(outcome), "after": batch.ended_after, "at": at, **proven})

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
        earlier: the certificate that it has gone on from; None: it began at the beginning.
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
        StoreError: the certificate has nothing to go on from, or another program has written it.
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
    """Return the SHA-256 of what a proof goes on from, as its certificate has it."""
    return hashlib.sha256(zlib.decompress(resume)).hexdigest()


def still_open(certificate: Certificate) -> tuple[BatchId, ...]:
    """Return the batches whose fate was not settled yet."""
    return tuple(cast("list[BatchId]", certificate.body.get("open", [])))


def compared(certificate: Certificate, anew: Certificate) -> list[str]:
    """Return where a certificate differs from the one that was made anew of the same events and batches."""
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
