"""What a sink does with the table of a person, whatever its format: when it commits, and what.

The table notes whose sink it is, and which of the sink's commits was the last. Each commit requires the table to be as
it was when that was read, and is then tried again only after it was read again: that, not the table, says whether a
commit that was decided before still counts. Commits of others in between change nothing.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from airflow_kcr.errors import ConfigurationError, KcrError, SinkError
from airflow_kcr.protocol.region.archive import Stretch
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.files import layout
from airflow_kcr.sinks.files.columns import Columns, ColumnsOfTable
from airflow_kcr.sinks.files.contents import checkpoints_on, newest_first, revisions_on, shelves, timelines_in
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.layout import FileTarget, Manifest
from airflow_kcr.sinks.files.tables import Table
from airflow_kcr.sinks.tables.columns import TableColumn, fitted, require_fillable, require_taken
from airflow_kcr.sinks.tables.labels import BATCH, Labels, label_of

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyspark.sql import DataFrame

NOTE: Final = "kcr.sink"
"""The property of a table that says whose it is."""

PAUSES: Final = (0.05, 2.0)
"""The first and the longest pause between two tries of a commit that others came before, in seconds; each next one is
twice as long."""

TRIED_FOR: Final = 30.0
"""How long a commit is tried while others commit to the table, in seconds; then the caller asks again."""

_TAKES: Final = 3
"""Attempts at taking a table in while other members do."""


class NotedTable(Protocol):
    """A table as it is now, with what its sink has noted in it."""

    @property
    def owner(self) -> SinkOwner:
        """Whose it is."""

    @property
    def commits(self) -> int:
        """What grows with each commit of the sink."""

    def columns(self) -> Mapping[str, TableColumn]:
        """Return its columns by name."""

    def has_shown(self, checkpoint: CheckpointId) -> bool:
        """Whether a checkpoint was published."""


N = TypeVar("N", bound=NotedTable)
N_co = TypeVar("N_co", bound=NotedTable, covariant=True)


class TablePlace(ABC, Generic[N_co]):
    """Where the table of a person is, as its format reaches it; nothing is reached before it is asked.

    Args:
        who: the sink, for messages.

    Each call may raise ConfigurationError (there is no such table) and SinkError (it is away).
    """

    def __init__(self, who: str) -> None:
        self.who = who

    @abstractmethod
    def location(self) -> str:
        """Return where the table is, as Spark's file systems have it."""

    @abstractmethod
    def noted(self) -> N_co | None:
        """Return the table as it is now; None: no sink has noted anything in it."""

    @abstractmethod
    def columns(self) -> Mapping[str, TableColumn]:
        """Return the table's columns by name, as they are now."""

    @abstractmethod
    def files_below(self, path: str) -> FileSystem:
        """Return a folder below the table's location, as the format's own library reaches it."""

    @abstractmethod
    def leave(self, *, is_emptied: bool) -> None:
        """Take the note of a sink away, whichever it is of, and its rows with it if `is_emptied`."""

    @abstractmethod
    def require_writable(self) -> None:
        """Refuse a table that a commit of files alone would damage."""

    @contextmanager
    def asked(self, what: str) -> Iterator[None]:
        """Tell an error of the library, its catalog or its storage as the sink's; its words may hold secrets.

        Args:
            what: what the table could not, where it fails.

        Raises:
            ConfigurationError: there is no such table, or a catalog refuses.
            SinkError: anything else: the catalog or the storage is away.
        """
        try:
            yield
        except KcrError:
            raise
        except Exception as error:
            raise self._told(error, what) from error

    @abstractmethod
    def _told(self, error: Exception, what: str) -> KcrError:
        """Return an error as the sink's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """What one commit does to a table."""

    out: Labels = field(default_factory=Labels)
    """What has written the rows that go."""

    manifest: Manifest | None = None
    """Whose files come."""

    shown: CheckpointId | None = None
    """Which checkpoint counts as published then; None: the same."""

    told: Mapping[str, str]
    """What the commit says of itself."""

    @classmethod
    def of(cls, manifest: Manifest, out: Labels | None = None) -> TableChange:
        """Return the change that shows the files of a manifest."""
        owner = manifest.owner
        told = {
            "kcr.region": owner.region,
            "kcr.region-id": owner.region_id,
            "kcr.group": owner.group,
            "kcr.sink": owner.sink,
            "kcr.timeline": str(manifest.timeline),
            "kcr.sequence": str(manifest.sequence),
            "kcr.revision": str(manifest.revision),
            "kcr.epoch": str(manifest.epoch),
            "kcr.digest": manifest.digest,
        }
        shown = None if manifest.revision else manifest.checkpoint
        return cls(out=out or Labels(), manifest=manifest, shown=shown, told=told)


def spark_uri(uri: str) -> str:
    """Return a place as Spark's file systems have it: people write `s3://`, Hadoop's client answers to `s3a://`."""
    scheme, there, rest = uri.partition("://")
    return f"s3a://{rest}" if there and scheme in ("s3", "s3n") else uri


def folder_of(location: str, owner: SinkOwner) -> str:
    """Return where the files of a sink are, below its table's location."""
    return f"{location.rstrip('/')}/{below(owner)}"


def below(owner: SinkOwner) -> str:
    """Return the folder of a sink's files, from its table's location."""
    return f"_kcr/{owner.region_id.replace(' ', '-')}/{owner.sink}"


def taken_from(place: TablePlace[NotedTable], owner: SinkOwner, other: SinkOwner) -> str:
    """Return what is said of a table that is another sink's."""
    return (
        f"{place.who} of region {owner.region} (id {owner.region_id}): table {place} is written by {other}, and each "
        "table has one sink; name another table, or stop the region and say what becomes of those rows: "
        f"`kcr region output {owner.region}` with --keep or --delete"
    )


class OwnedTable(Table, ABC, Generic[N]):
    """The table in which readers see whole checkpoints.

    Args:
        target: the sink.
        place: where its table is.
        folder: where its files are.
    """

    def __init__(self, target: FileTarget, place: TablePlace[N], folder: Folder) -> None:
        self.target, self._place, self.folder = target, place, folder
        self._seen: N | None = None
        """As the table was read last by `seen`; who commits next need not read it again."""

        self._ending = threading.Event()

    def end(self) -> None:
        """Try no commit again."""
        self._ending.set()

    # -- what differs by format ----------------------------------------------------------------------------------

    @abstractmethod
    def _take(self) -> None:
        """Add the columns of `COLUMNS` that the table lacks, and note whose it is."""

    @abstractmethod
    def _require_whole(self, noted: N) -> None:
        """Refuse a table that lacks what the sink has committed; see `_lost` and `_rolled_back`."""

    @abstractmethod
    def _commit(self, noted: N, change: TableChange) -> N | None:
        """Commit a change to the table as it was noted, and return it as it is then.

        None: others have committed since, and nothing is changed.
        """

    @abstractmethod
    def _version(self, noted: N, manifest: Manifest) -> TableVersion | None:
        """Return what a table has of a manifest; None: what it was with it is not known any more."""

    # -- the sink's place in it ----------------------------------------------------------------------------------

    def is_there(self) -> bool:
        """Whether it has the sink's note: a table that was made anew under the name does not."""
        noted = self._place.noted()
        return noted is not None and noted.owner == self.target.owner

    def check(self) -> None:
        """Note whose table it is, and add the columns that say which records a row is made of.

        Raises:
            ConfigurationError: it is another sink's, lacks what it had, or takes no batch, whatever is in it.
            SinkError: it is away, or refuses.
        """
        require_fillable(self._place.columns(), self._where)
        for left in reversed(range(_TAKES)):
            if self._own() is not None:
                break
            try:
                self._take()
            except SinkError:
                # Another member may take it at the same time.
                if not left:
                    raise
        self._noted()

    def _own(self) -> N | None:
        """Return the table with the sink's note; None: no sink has noted anything.

        Raises:
            ConfigurationError: it is another sink's.
        """
        noted = self._place.noted()
        if noted is not None and noted.owner != self.target.owner:
            raise ConfigurationError(taken_from(self._place, self.target.owner, noted.owner))
        return noted

    def _noted(self) -> N:
        """Return the table as it is now with the sink's note.

        Raises:
            SinkError: it isn't the table that the sink has written to, or lacks what the sink has committed.
        """
        with _going_on():
            noted = self._own()
            if noted is None:
                raise SinkError(
                    f"{self._where} is not the one that this sink has written to: it was dropped and made anew, or its "
                    f"note {NOTE} was removed; put it back as it was, or stop the region and accept it as it is with "
                    f"{self._take_over}"
                )
            self._require_whole(noted)
        return noted

    def _lost(self, columns: Collection[str]) -> SinkError:
        return SinkError(
            f"{self._where} has lost its column {', '.join(columns)}, and rows can't be told from each other; if it "
            "was renamed, give it its name again; if it was dropped, its values are gone, even where it was added "
            "again: name another table in the spec"
        )

    def _rolled_back(self, what: str) -> SinkError:
        return SinkError(
            f"{self._where} was rolled back to before {what}, and lacks rows that were published; roll it forward "
            f"again, or stop the region, accept the table as it is with {self._take_over}, and reset the region to "
            "before the rows that are missing"
        )

    @property
    def _where(self) -> str:
        return f"{self._place.who}: table {self._place}"

    @property
    def _take_over(self) -> str:
        return f"`kcr region output {self.target.owner.region} --take-over`"

    # -- what no checkpoint needs --------------------------------------------------------------------------------

    @abstractmethod
    def needed(self) -> frozenset[str]:
        """Return the sink's files, from its folder, that readers of the table may be sent to."""

    def accept(self) -> None:
        """Commit that the table is right as it is, whatever was rolled back in it."""
        newest = next(newest_first(self.folder, timelines_in(self.folder)), None)
        for _ in self._tries():
            noted = self._own()
            if noted is None:
                self._take()
            elif self._commit(noted, TableChange(shown=newest, told={"kcr.accepted": "true"})) is not None:
                return
        raise self._busy()

    def forget(self, checkpoints: Mapping[CheckpointId, Checkpoint]) -> frozenset[str]:
        """Let go of nothing, and return the files that readers may be sent to."""
        self._noted()
        return self.needed()

    # -- batches -------------------------------------------------------------------------------------------------

    def as_stored(self, rows: DataFrame, label: str) -> DataFrame:
        """Return the rows of a batch as the table takes them, with what has written them."""
        from pyspark.sql import functions

        labelled = rows.withColumn(BATCH, functions.lit(self._label(label)))
        return fitted(labelled, self._noted().columns(), self._where)

    def columns(self, folder: Folder) -> Columns:
        """Return that the table itself knows the types of its columns."""
        return ColumnsOfTable(folder)

    def _label(self, name: str) -> str:
        return label_of(self.target.owner.region_id, name)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def seen(self) -> int:
        """Return which of the sink's commits was the last."""
        self._seen = self._noted()
        return self._seen.commits

    def show(self, manifest: Manifest, seen: int) -> tuple[TableVersion, ...] | None:
        """Add the files of a checkpoint.

        Raises:
            SinkError: the table lacks the one before: an older copy of it, or of its metadata, has taken its place.
        """
        before = layout.named(manifest.previous or "")
        was_here = before is not None and self.folder.read(layout.manifest(before)) is not None
        noted = self._committed(seen, TableChange.of(manifest), before if was_here else None)
        return None if noted is None else self._versions(noted, manifest)

    def replace(self, manifest: Manifest, seen: int) -> tuple[TableVersion, ...] | None:
        """Exchange the rows of a checkpoint for the files of its revision."""
        noted = self._committed(seen, TableChange.of(manifest, self._written_by([manifest.checkpoint])))
        return None if noted is None else self._versions(noted, manifest)

    def version_of(self, manifest: Manifest) -> tuple[TableVersion, ...]:
        """Return what the table has of a manifest that it was given before."""
        return self._versions(self._noted(), manifest)

    def _versions(self, noted: N, manifest: Manifest) -> tuple[TableVersion, ...]:
        found = self._version(noted, manifest)
        return () if found is None else (found,)

    def hide(self, undone: Collection[Stretch]) -> None:
        """Delete the rows of undone checkpoints; a commit is made in any case."""
        told = {"kcr.undone": ", ".join(f"{one.first}-{one.last}" for one in undone)}
        change = TableChange(out=self._written_by(self._published(undone)), told=told)
        for _ in self._tries():
            if self._committed(self.seen(), change) is not None:
                return
        raise self._busy()

    def _committed(self, seen: int, change: TableChange, after: CheckpointId | None = None) -> N | None:
        """Commit a change, unless it shows what is shown already.

        Args:
            seen: the sink's last commit, when it was decided.
            change: what changes.
            after: a checkpoint that is shown already; None: there is none.

        Returns:
            The table as it is then. None: the sink has committed since, and nothing is changed.
        """
        noted, self._seen = self._seen, None
        for _ in self._tries():
            if noted is None or noted.commits != seen:
                noted = self._noted()
            if change.shown is not None and noted.has_shown(change.shown):
                return noted
            if after is not None and not noted.has_shown(after):
                raise self._rolled_back(f"checkpoint {after}")
            if noted.commits != seen:
                return None
            if change.manifest is not None:
                require_taken(change.manifest.schemas_of_files(), noted.columns(), self._where)
            with _going_on():
                noted = self._commit(noted, change)
            if noted is not None:
                return noted
        raise self._busy()

    def _tries(self) -> Iterator[None]:
        """Yield as often as a commit may be tried, after a pause each time but the first."""
        until, pause = time.monotonic() + TRIED_FOR, PAUSES[0]
        yield
        # Writers that came in each other's way shall not all come back in the same moment.
        while time.monotonic() < until and not self._ending.wait(pause * random.uniform(0.5, 1.0)):  # noqa: S311
            yield
            pause = min(2 * pause, PAUSES[1])

    def _busy(self) -> SinkError:
        why = "this process ends" if self._ending.is_set() else f"others have done so for {TRIED_FOR:.0f} s"
        return SinkError(f"{self._where} could not be committed to: {why}")

    def _published(self, undone: Collection[Stretch]) -> list[CheckpointId]:
        """Return the checkpoints that have a manifest of those that were undone."""
        wanted = {s for one in undone for s in range(one.first // layout.SHELF, one.last // layout.SHELF + 1)}
        there = [shelf for shelf in shelves(self.folder, layout.MANIFESTS) if int(shelf) in wanted]
        found = (c for shelf in there for c in checkpoints_on(self.folder, layout.MANIFESTS, shelf))
        return sorted(c for c in found for u in undone if c.timeline < u.by and u.first <= c.sequence <= u.last)

    def _written_by(self, checkpoints: Collection[CheckpointId]) -> Labels:
        """Return what has written the rows of checkpoints."""
        return Labels({label for checkpoint in checkpoints for label in self._labels_of(checkpoint)})

    def _labels_of(self, checkpoint: CheckpointId) -> Iterator[str]:
        """Yield what the rows of a checkpoint are labelled with, those of each of its revisions among them."""
        numbers = revisions_on(self.folder, layout.shelf(checkpoint.sequence)).get(checkpoint, [])
        places = [layout.manifest(checkpoint), *(layout.revision(checkpoint, number) for number in numbers)]
        for manifest in filter(None, map(Manifest.of, self.folder.read_all(places))):
            yield from map(self._label, manifest.labels or manifest.batches)
        yield from (self._label(layout.label(checkpoint, number)) for number in numbers)


@contextmanager
def _going_on() -> Iterator[None]:
    """Have a table tried again that is wrong under a member: it is put back, or the right to it granted again."""
    try:
        yield
    except ConfigurationError as error:
        raise SinkError(error.message) from error


def is_kept(row: Checkpoint) -> bool:
    """Whether what a table was with a checkpoint stays readable."""
    return bool(row.pinned_as) or (row.is_current and row.state is not CheckpointState.RETIRED)
