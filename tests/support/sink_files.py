"""A file sink on a real disk without Spark: files hold the names of records, and few are made of many by reading them.

The batches of a scripted region (`Driver`) write them, so what is accepted is what the protocol says.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from airflow_kcr.errors import SinkError
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.offsets import EMPTY
from airflow_kcr.protocol.region.commands import FinishRecomputation
from airflow_kcr.protocol.scopes import EVERYTHING, Scope
from airflow_kcr.protocol.targets import Target
from airflow_kcr.protocol.values import (
    BatchId,
    CheckpointNumber,
    EventNumber,
    GroupPartition,
    MemberId,
    Range,
    TopicName,
    TopicPartition,
)
from airflow_kcr.sinks.checkpoints import AcceptedBatch
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.cleanup import Cleaned, Cleaner, GivenUp
from airflow_kcr.sinks.files.contents import RegionLedger, checkpoints_on, manifests_in_force, shelves, timelines_in
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.frames import Rewriter
from airflow_kcr.sinks.files.layout import TEMPORARY, FileTarget, Manifest, Timelines
from airflow_kcr.sinks.files.revisions import FileRevision
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.files.tables import NO_TABLE, Table
from tests.support.driver import GROUP, Driver
from tests.support.scripts import asking, call_of, recomputation, reset_order

SCHEMA = '{"fields":[],"type":"struct"}'

Record = tuple[str, int, int]
"""Topic, partition, offset."""


def owner_of(driver: Driver) -> SinkOwner:
    """Return whose output the sink `out` of the region's group has."""
    return SinkOwner(region=driver.name, region_id=driver.region.region_id, group=GROUP, sink="out")


class Killed(Exception):
    """The process ends here."""


def killing(steps: int) -> Callable[[str], None]:
    """Return what ends a process before its step after so many."""
    left = iter(range(steps))

    def kill(step: str) -> None:
        if next(left, None) is None:
            raise Killed(step)

    return kill


@dataclass(slots=True)
class LocalFolder(Folder):
    """A folder of this machine; `steps` names what was done, and `kill` may end it before one of them."""

    root: Path
    kill: Callable[[str], None] = lambda step: None
    steps: list[str] = field(default_factory=list)

    uri: str = field(init=False)

    def __post_init__(self) -> None:
        self.uri = str(self.root)

    def read(self, path: str) -> str | None:
        """Return a text."""
        found = self.root / path
        return found.read_text() if found.is_file() else None

    def read_all(self, paths: Iterable[str]) -> list[str | None]:
        """Return several texts."""
        return [self.read(path) for path in paths]

    def put(self, path: str, text: str) -> None:
        """Write a text under its own name."""
        self._step(f"write {path}")
        self._put(self.root / path, text)

    def create(self, path: str, text: str) -> bool:
        """Write a text where there is none."""
        if (self.root / path).exists():
            return False
        self.replace(path, text)
        return True

    def replace(self, path: str, text: str) -> None:
        """Write a text."""
        self._step(f"write {path}")
        found = self.root / path
        temporary = found.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
        self._put(temporary, text)
        self._step(f"rename {path}")
        temporary.rename(found)

    def move(self, source: str, path: str) -> None:
        """Rename a file."""
        (self.root / source).rename(self.root / path)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files and folders."""
        for path in paths:
            self._step(f"delete {path}")
            if (self.root / path).is_dir():
                shutil.rmtree(self.root / path)
            else:
                (self.root / path).unlink(missing_ok=True)

    def names(self, path: str) -> tuple[str, ...]:
        """Return what is in a folder."""
        found = self.root / path
        return tuple(sorted(p.name for p in found.iterdir())) if found.is_dir() else ()

    def sizes(self, path: str) -> Mapping[str, int]:
        """Return the files in a folder."""
        names = [name for name in self.names(path) if not name.startswith(("_", "."))]
        return {n: (self.root / path / n).stat().st_size for n in names if (self.root / path / n).is_file()}

    def walk(self, path: str) -> Mapping[str, int]:
        """Return every file below a folder."""
        found = sorted(p for p in (self.root / path).rglob("*") if p.is_file())
        return {p.relative_to(self.root).as_posix(): p.stat().st_size for p in found}

    def _put(self, file: Path, text: str) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        except OSError as error:
            raise SinkError(f"{file} can't be written: {error.strerror}") from error

    def _step(self, step: str) -> None:
        self.steps.append(step)
        self.kill(step)


@dataclass(frozen=True, slots=True)
class RecordRewriter(Rewriter):
    """Makes few files of many, as Spark would."""

    folder: LocalFolder

    def rewrite(
        self,
        sources: Iterable[str],
        schema: str,
        into: str,
        *,
        files: int,
        kept: Mapping[TopicPartition, tuple[Range, ...]] | None = None,
    ) -> Mapping[str, int]:
        """Write the records of several files into a few."""
        found = [record for path in sources for record in records_in(self.folder, path)]
        if kept is not None:
            found = [
                r
                for r in found
                if any(k.from_ <= r[2] < k.to for k in kept.get(TopicPartition(TopicName(r[0]), r[1]), ()))
            ]
        made: dict[str, int] = {}
        attempt = uuid.uuid4().hex[:6]
        for number in range(files):
            path = f"{into}-{attempt}-{number:05d}"
            text = json.dumps(found[number::files])
            self.folder.replace(path, text)
            made[path] = len(text)
        return made


def manifests_in(folder: LocalFolder) -> dict[CheckpointNumber, Manifest]:
    """Return the newest whole manifest of every checkpoint in a folder, by sequence."""
    there = (sorted(checkpoints_on(folder, layout.MANIFESTS, shelf)) for shelf in shelves(folder, layout.MANIFESTS))
    found = manifests_in_force(folder, (checkpoint for shelf in there for checkpoint in shelf))
    return {checkpoint.sequence: found[checkpoint] for checkpoint in sorted(found)}


def records_in(folder: LocalFolder, path: str) -> list[Record]:
    """Return the records of a file."""
    text = folder.read(path)
    if text is None:
        raise SinkError(f"{path} is missing")
    return [(topic, partition, offset) for topic, partition, offset in json.loads(text)]


@dataclass(slots=True)
class Files:
    """A scripted region and the file sink of its group."""

    driver: Driver
    root: Path
    file_size: int = 0
    table: Table = NO_TABLE
    folder: LocalFolder = field(init=False)
    sink: FileSink = field(init=False)
    ending: ClassVar[str] = ""
    """Of the names of data files."""

    def __post_init__(self) -> None:
        self.folder = LocalFolder(self.root)
        self.sink = self.process(self.folder)
        self.sink.check()

    def process(self, folder: LocalFolder, table: Table | None = None) -> FileSink:
        """The sink as another process has it."""
        target = FileTarget(owner=owner_of(self.driver), path=folder.uri, file_size=self.file_size)
        ledger = RegionLedger(self.driver.store, self.driver.name)
        return FileSink(target, folder, ledger, RecordRewriter(folder), table or self.table)

    def clean(self, what: GivenUp = GivenUp.UNDONE, folder: LocalFolder | None = None) -> Cleaned:
        """Delete unreadable output, as another process does."""
        folder = folder or LocalFolder(self.root)
        ledger = RegionLedger(self.driver.store, self.driver.name)
        return Cleaner(self.sink.target, folder, ledger, self.table).clean(what)

    # -- what members do -----------------------------------------------------------------------------------------

    def call(self, batch: BatchId) -> BatchCall:
        """A batch of the region as an engine has it."""
        return call_of(self.driver, batch)

    def write(self, batch: BatchId, files: int = 1, schema: str = SCHEMA, sink: FileSink | None = None) -> None:
        """Write a batch's files and their list."""
        call, sink = self.call(batch), sink or self.sink
        found = [(p.topic, p.partition, o) for p, r in call.ranges.items() for o in range(r.from_, r.to)]
        for number in range(files):
            self.put(self.root / sink.attempt(call) / f"part-{number:05d}{self.ending}", found[number::files], batch)
        sink.list_files(call, schema)

    def put(self, path: Path, found: Sequence[Record], batch: BatchId) -> None:
        """Make a file of records of a batch."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))

    def process_batch(self, member: MemberId, width: int = 10, files: int = 1) -> BatchId:
        """Begin a batch, write its files, and end it."""
        batch = self.driver.start_batch(member, width)
        self.write(batch, files)
        self.driver.finish_batch(batch)
        return batch

    def fill(self, batches: int = 1, width: int = 10) -> None:
        """Have each of two members process so many batches, of so many records of each partition."""
        for _ in range(batches):
            for index in range(2):
                self.process_batch(self.driver.member(index), width)

    def checkpoint(self, request_id: str, batches: int = 0) -> CheckpointNumber:
        """Have each of two members process so many batches, make a checkpoint, and publish it here as well."""
        self.fill(batches)
        self.driver.request_checkpoint(request_id)
        sequence = self.driver.complete()
        self.driver.publish(self.sink.publish(sequence))
        return sequence

    def reset_order(self, *asked: GroupPartition) -> ResetSinks:
        """What a member is told of the running reset."""
        return reset_order(self.driver, *asked)

    def go_back(self, target: Target, scope: Scope = EVERYTHING) -> None:
        """Reset the region, and publish here what it drained to."""
        self.driver.reset(target, scope=scope)
        self.sink.publish(self.driver.complete())
        self.follow_reset()

    def follow_reset(self) -> None:
        """Have the sink and the members do what the running reset asks for."""
        self.sink.reset(self.reset_order())
        self.driver.finish_reset()

    # -- what a recomputation does -------------------------------------------------------------------------------

    def begin(self, sequence: CheckpointNumber, request_id: str = "again") -> EventNumber:
        """Begin a recomputation, in the place of one under the same request id that runs; return its number."""
        return recomputation(self.driver, sequence, request_id)

    def revision(
        self, sequence: CheckpointNumber, number: EventNumber, copies: int = 2, sink: FileSink | None = None
    ) -> FileRevision:
        """A checkpoint once more, written and held back: each of its records so many times."""
        contents = RegionLedger(self.driver.store, self.driver.name).contents(sequence, GROUP)
        revision = (sink or self.sink).revised(contents, number)
        for place, batch in enumerate(contents.batches):
            self.rewrite(revision, batch, f"{number}-{place}", copies)
        return revision

    def rewrite(self, revision: FileRevision, batch: AcceptedBatch, name: str, copies: int = 2) -> None:
        """Write the records of one batch once more."""
        call = BatchCall(
            region=self.driver.name,
            member=self.driver.member(0),
            batch=BatchId(name),
            epoch=batch.epoch,
            timeline=revision.checkpoint.id.timeline,
            sequence=revision.checkpoint.id.sequence,
            ranges={GroupPartition(GROUP, p.topic, p.partition): r for p, r in batch.ranges.items()},
            progress=EMPTY,
        )
        found = [(p.topic, p.partition, o) for p, r in batch.ranges.items() for o in range(r.from_, r.to)] * copies
        self.put_again(Path(revision.folder.uri) / revision.attempt(call), found, revision)
        revision.list_files(call, SCHEMA)

    def put_again(self, folder: Path, found: Sequence[Record], revision: FileRevision) -> None:
        """Make a file of records that are written once more."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "part-00000").write_text(json.dumps(found))

    def wanted(self, sequence: CheckpointNumber, number: EventNumber) -> Callable[[], None]:
        """Ask whether a recomputation may replace output, as its process does."""
        return asking(self.driver, sequence, number)

    def recompute(self, sequence: CheckpointNumber, copies: int = 2, request_id: str = "again") -> EventNumber:
        """Recompute a checkpoint, so that it has each record so many times."""
        number = self.begin(sequence, request_id)
        tables = self.revision(sequence, number, copies).replace(self.wanted(sequence, number))
        self.driver.handle(FinishRecomputation(sequence=sequence, number=number, batches=(), tables=tables))
        return number

    # -- what there is -------------------------------------------------------------------------------------------

    def manifests(self) -> dict[CheckpointNumber, Manifest]:
        """The manifests that are in force, by sequence."""
        noted = self.timelines()
        return {s: m for s, m in manifests_in(self.folder).items() if noted.superseded_by(s) is None}

    def undone(self) -> dict[CheckpointNumber, Manifest]:
        """The manifests of checkpoints that resets have undone, by sequence."""
        noted = self.timelines()
        return {s: m for s, m in manifests_in(self.folder).items() if noted.superseded_by(s) is not None}

    def timelines(self) -> Timelines:
        """What is noted of checkpoints that resets have undone."""
        return timelines_in(self.folder)

    def data_files(self) -> set[str]:
        """Every file with records that there is."""
        above = (layout.DATA, layout.COMPACTED, layout.REVISIONS)
        found = {path for name in above for path in self.folder.walk(name)}
        # Manifests, and what is left of those that were half written, lie on the shelves.
        return {path for path in found if path.count("/") > 2 and not path.endswith(layout.LIST)}

    def needed(self) -> set[str]:
        """The files of the manifests that are in force."""
        return {file.path for manifest in self.manifests().values() for file in manifest.files}

    def are_whole(self) -> bool:
        """Return whether the manifests in force hold each record before the positions once."""
        claims = self.driver.region.claims.items()
        return self.records() == self.expected({p: int(claim.position or 0) for p, claim in claims})

    def records(self, *sequences: CheckpointNumber) -> Counter[Record]:
        """The records of some checkpoints, by default of all that are in force, and how often each is there."""
        manifests = self.manifests()
        wanted = sequences or tuple(manifests)
        return Counter(r for s in wanted for f in manifests[s].files for r in records_in(self.folder, f.path))

    def expected(self, up_to: Mapping[GroupPartition, int]) -> Counter[Record]:
        """Every record before these offsets, once."""
        return Counter((p.topic, p.partition, o) for p, end in up_to.items() for o in range(end))
