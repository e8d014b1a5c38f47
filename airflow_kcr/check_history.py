# ruff: noqa: D102, D103, SIM905, T201 (a program by itself, as short as it can be read)
"""Check archived history, and the certificates in it, without the program that wrote them.

    python check_history.py FOLDER [--digest HEX]

FOLDER holds the archive files of one region: 00000001.jsonl.gz and on. HEX is the digest of the newest archived
certificate, as you noted it elsewhere: with it, files that are missing at the end are found too.

Every digest holds, the chain has no gap, and from the lines alone: no event is missing, each batch begins once and has
one fate, what was accepted of each partition leads from checkpoint to checkpoint without a gap or an offset counted
twice, and that adds up to what each certificate says. Exit status: 0 it holds; 1 not, and why; 2 wrong usage.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import zlib
from datetime import datetime
from pathlib import Path
from typing import Any

FORMAT = 1
HEADER = set("kind format region number after upto previous digest certificate".split())
CERTIFICATE = set("format region number after upto content last_event state region_state partitions batches".split())
CERTIFICATE |= {"outcomes", "open", "previous"}
LINES = {
    "event": set("event at epoch timeline kind body".split()),
    "begin": set("begin member incarnation epoch timeline sequence after at ranges".split()),
    "end": set("end outcome after at".split()),
}

Json = dict[str, Any]
Place = tuple[str, str, int]
Ranges = list[list[int]]  # [from, to) each


class WrongHistory(Exception):
    """What was found."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise WrongHistory(what)


def text(document: object) -> str:
    """The one form of JSON that is digested."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def by_partition(nested: Json) -> dict[Place, Any]:
    """{group: {topic: {number: value}}}, by (group, topic, number)."""
    return {(g, t, int(p)): v for g, topics in nested.items() for t, ps in topics.items() for p, v in ps.items()}


def joined(ranges: Ranges) -> Ranges:
    """The union of [from, to) ranges: ascending, neither overlapping nor touching."""
    found: Ranges = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        elif start < end:
            found.append([start, end])
    return found


def below(ranges: Ranges, offset: int) -> Ranges:
    return [[a, min(b, offset)] for a, b in ranges if a < offset]


def width(ranges: Ranges) -> int:
    return sum(b - a for a, b in joined(ranges))


class Partition:
    """One partition: what certificates say of it, and its way since the restore point."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.initial: int | None = None
        self.begun = self.accepted = self.undone = 0
        self.point: int | None = None
        self.standing, self.skips, self.done, self.gaps, self.tried = (Ranges() for _ in range(5))

    def total(self) -> Json:
        """As a certificate has it: what is nothing is left out."""
        found: Json = {"initial": self.initial, "begun": self.begun, "accepted": self.accepted, "undone": self.undone}
        found["standing"] = self.standing
        return {name: value for name, value in found.items() if value or (name == "initial" and value is not None)}

    def accept(self, start: int, end: int) -> None:
        before = width(self.standing)
        self.standing, self.done = joined([*self.standing, [start, end]]), joined([*self.done, [start, end]])
        require(width(self.standing) == before + end - start, f"{self.name} [{start}, {end}) is accepted twice")
        self.accepted += end - start

    def seek(self, offset: int | None, *, opens: bool, explains: bool) -> None:
        """A reset sends it there: what lies beyond does not count any more."""
        if offset is not None:
            before, self.standing = width(self.standing), below(self.standing, offset)
            self.undone += before - width(self.standing)
        if opens or (self.point is None and offset is not None):
            self.rebase(offset)
        elif offset is not None:  # what was started and never accepted is a gap where it is not started again
            tried = self.tried if explains else []
            self.done, self.gaps = below(self.done, offset), below([*self.gaps, *tried], offset)

    def rebase(self, offset: int | None) -> None:
        self.point, self.done, self.gaps, self.tried = offset, [], [], []

    def complete(self, offset: int | None) -> None:
        """A checkpoint is complete there: everything since the one before was accepted, once; None: it lacks this."""
        point = self.point
        if offset is not None:
            if point is None or offset < point:
                raise WrongHistory(f"{self.name} is at {offset} in a checkpoint, its restore point is {point}")
            require(width([*self.done, [point, offset]]) == offset - point, f"{self.name} has more than its checkpoint")
            covered = joined([*self.done, *self.gaps, *self.skips])
            inside = width([[max(a, point), min(b, offset)] for a, b in covered if b > point and a < offset])
            require(inside == offset - point, f"{self.name} has a gap between {point} and {offset}: records were lost")
        self.rebase(offset)


class LineHistory:
    """What a region's lines add up to."""

    def __init__(self) -> None:
        self.number = self.epoch = self.timeline = self.began = 0
        self.state, self.point, self.last_event = "stopped", None, ""
        self.partitions, self.deliveries = dict[Place, Partition](), dict[str, str]()
        self.checkpoints, self.known = set[int](), set[str]()
        self.open, self.outcomes = dict[str, Json](), dict[str, int]()

    def at(self, place: Place) -> Partition:
        if place not in self.partitions:
            self.partitions[place] = Partition("{}:{}-{}".format(*place))
        return self.partitions[place]

    def line(self, line: Json) -> None:
        kind = next((kind for kind in LINES if kind in line), "end")
        require(set(line) - ({"proven"} if kind == "end" else set()) == LINES[kind], f"has other fields than {kind}s")
        require(line["at"] is None or datetime.fromisoformat(line["at"]).utcoffset() is not None, "has no time zone")
        {"event": self.event, "begin": self.begin, "end": self.end}[kind](line)

    def event(self, line: Json) -> None:  # noqa: C901 (one case for each kind that counts)
        require(line["event"] == self.number + 1, f"is event {line['event']} after event {self.number}")
        require(line["epoch"] >= self.epoch and line["timeline"] >= self.timeline, "goes back in epoch or timeline")
        self.number, self.epoch, self.timeline = line["event"], line["epoch"], line["timeline"]
        self.last_event = sha(text(line))
        body = line["body"]
        match line["kind"]:
            case "RegionCreated" | "SpecChanged":
                self.deliveries = body.get("deliveries", {})
            case "StateChanged":
                require(body["before"] == self.state, f"leaves state {body['before']}, the region was {self.state}")
                self.state = body["after"]
            case "InitialOffsetsStored":
                for place, offset in by_partition(body["offsets"]).items():
                    if self.at(place).initial is None:
                        self.at(place).initial = offset
            case "ResetBegun":
                self.began, self.point = body["epoch"], body["restore_point"]
                self.seek(body["seek"], opens=body["restore_point"] == body["sequence"])
            case "SeekWritten":
                self.seek(body["seek"], opens=False)
            case "Killed" | "StoreRestoredSeen":
                self.began = body.get("epoch", line["epoch"])
            case "Skipped":
                for place, offset in by_partition(body["offsets"]).items():
                    self.at(place).skips.append([offset, offset + 1])
            case "CheckpointOpened" | "CheckpointAborted" | "CheckpointCompleted" as kind:
                self.checkpoint(kind, body)

    def checkpoint(self, kind: str, body: Json) -> None:
        is_open = body["sequence"] in self.checkpoints
        require(is_open is (kind != "CheckpointOpened"), f"opens checkpoint {body['sequence']} twice, or ends another")
        self.checkpoints ^= {body["sequence"]}
        if kind == "CheckpointCompleted":
            self.point, offsets = body["sequence"], by_partition(body["offsets"])
            for place in self.partitions.keys() | offsets.keys():
                self.at(place).complete(offsets.get(place))

    def seek(self, entries: Json, *, opens: bool) -> None:
        for place, entry in by_partition(entries).items():
            explains = self.deliveries.get(place[0]) == "at_most_once"
            self.at(place).seek(entry.get("offset"), opens=opens, explains=explains)

    def begin(self, line: Json) -> None:
        name, ranges = line["begin"], line["ranges"]
        require(name not in self.known, f"begins batch {name}, which has started before")
        require(line["after"] == self.number, f"begins after event {line['after']}, it stands after {self.number}")
        require(line["epoch"] == self.began and line["timeline"] == self.timeline, "is of another epoch or timeline")
        places = [(g, t, p) for g, t, p, _, _ in ranges]
        require(ranges and len(set(places)) == len(places), "has no range, or two of one partition")
        require(all(0 <= a < b and g == line["member"][0] for g, _, _, a, b in ranges), "has a range that can't be")
        self.known.add(name)
        self.open[name] = line
        for place, (*_, a, b) in zip(places, ranges, strict=True):
            self.at(place).begun += b - a
            self.at(place).tried = joined([*self.at(place).tried, [a, b]])

    def end(self, line: Json) -> None:
        name, outcome = line["end"], line["outcome"]
        require(name in self.open, f"ends batch {name}, which has not started, or has ended before")
        begun = self.open.pop(name)
        require(outcome in ("done", "discarded", "unknown"), f"is of outcome {outcome!r}")
        ended = line["after"]
        require(ended is None or begun["after"] <= ended <= self.number, f"ends after event {ended}, which can't be")
        proven = line.get("proven")
        require(proven is None or (outcome == "done" and begun["epoch"] < proven), "is proven in an epoch too early")
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if outcome == "done":
            for group, topic, number, a, b in begun["ranges"]:
                self.at((group, topic, number)).accept(a, b)

    def certified(self, body: Json) -> None:
        """Compare with what a certificate says."""
        state = {"state": self.state, "epoch": self.began, "timeline": self.timeline, "restore_point": self.point}
        seen = {
            "upto": self.number,
            "last_event": self.last_event,
            "batches": len(self.known),
            "outcomes": self.outcomes,
            "open": sorted(self.open),
            "region_state": state,
        }
        for name, value in seen.items():
            require(body[name] == value, f"the certificate says {name} {text(body[name])}, the lines {text(value)}")
        said = by_partition(body["partitions"])
        totals = {place: found for place, p in self.partitions.items() if (found := p.total())}
        for place in sorted(said.keys() | totals.keys()):
            pair = [text(each.get(place)) for each in (said, totals)]
            require(pair[0] == pair[1], f"the certificate says of {place} {pair[0]}, the lines {pair[1]}")


def check_file(path: Path, history: LineHistory, number: int, region: str | None, previous: str) -> Json:
    """Check the next file; return its header."""
    place, digest = 1, hashlib.sha256()
    try:
        with gzip.open(path, "rb") as lines:
            first = lines.readline().decode()
            header = json.loads(first)
            body = header["certificate"]
            require(set(header) == HEADER and set(body) == CERTIFICATE, "the header has other fields")
            require(first == text(header) + "\n", "the header is not in the one form")
            formats = (header["kind"], header["format"], body["format"])
            require(formats == ("kcr history", FORMAT, FORMAT), f"the format is {formats}")
            require(sha(text(body)) == header["digest"], "the certificate's digest is not that of what it says")
            same = ("region", "number", "after", "upto", "previous")
            require(all(header[name] == body[name] for name in same), "the header is not that of the certificate")
            require(region in (None, body["region"]), f"this is of region {body['region']}")
            require(body["number"] == number, f"this is number {body['number']}, number {number} is missing")
            require(body["previous"] == previous, "this does not go on from the certificate before")
            require(body["after"] == history.number, f"this goes on after event {body['after']}, not {history.number}")
            for raw in lines:
                place += 1
                digest.update(raw)
                line = json.loads(raw)
                require(raw.decode() == text(line) + "\n", "this is not in the one form")
                history.line(line)
        require(digest.hexdigest() == body["content"], "the digest of the lines is not that of the certificate")
        history.certified(body)
    except WrongHistory as wrong:
        raise WrongHistory(f"{path}: line {place}: {wrong}") from None
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise WrongHistory(f"{path}: line {place}: can't be read: {type(error).__name__} {error}") from None
    return dict(header)


def check(folder: Path, newest: str | None = None) -> str:
    """Check a folder; return what was found to hold."""
    files = sorted(path for path in folder.iterdir() if not path.name.endswith(".part"))
    require(files, f"{folder}: there is no archive file")
    history = LineHistory()
    header: Json = {"region": None, "digest": ""}
    for number, path in enumerate(files, 1):
        require(path.name == f"{number:08}.jsonl.gz", f"{path}: number {number:08} is missing, or this is no such file")
        header = check_file(path, history, number, header["region"], header["digest"])
    require(newest in (None, header["digest"]), f"{folder}: ends with {header['digest']}, not with {newest}")
    held = f"{len(files)} certificates hold, up to event {history.number}, {len(history.known)} batches"
    return f"region {header['region']}: {held}; digest {header['digest']}"


if __name__ == "__main__":
    if len(sys.argv) not in (2, 4) or (len(sys.argv) == 4 and sys.argv[2] != "--digest"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    try:
        print(check(Path(sys.argv[1]), *sys.argv[3:]))
    except (WrongHistory, OSError) as wrong:
        print(wrong)
        sys.exit(1)
