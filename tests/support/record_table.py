"""A table of records beside a file sink's manifests, which refuses writes as Delta does; it is kept in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from airflow_kcr.protocol.region.archive import Stretch
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.sinks.checkpoints import CheckpointId
from airflow_kcr.sinks.files.layout import Manifest
from airflow_kcr.sinks.files.tables import Table
from tests.support.sink_files import LocalFolder, Record, records_in


@dataclass(slots=True)
class Rows:
    """What is in the table, as all processes see it."""

    checkpoints: dict[CheckpointId, Counter[Record]] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    is_made: bool = False
    transaction: int = 0
    """The newest transaction version that was written with."""

    def records(self) -> Counter[Record]:
        """Every record that readers see, and how often."""
        return sum(self.checkpoints.values(), Counter())


@dataclass(slots=True)
class RecordTable(Table):
    """The table, as one process has it; `kill` may end it before a step."""

    rows: Rows
    folder: LocalFolder
    kill: Callable[[str], None] = lambda step: None

    def is_there(self) -> bool:
        """Whether it was made."""
        return self.rows.is_made

    def check(self) -> None:
        """Make it."""
        self.rows.is_made = True

    def seen(self) -> int:
        """Return how many commits there were."""
        return len(self.rows.commits)

    def show(self, manifest: Manifest, seen: int) -> tuple[TableVersion, ...] | None:
        """Add a checkpoint."""
        if manifest.checkpoint in self.rows.checkpoints:
            return ()
        found = Counter(record for file in manifest.files for record in records_in(self.folder, file.path))
        if not self._committed(f"show {manifest.checkpoint}", seen):
            return None
        self.rows.checkpoints[manifest.checkpoint] = found
        self.kill("shown")
        return ()

    def replace(self, manifest: Manifest, seen: int) -> tuple[TableVersion, ...] | None:
        """Exchange a checkpoint."""
        found = Counter(record for file in manifest.files for record in records_in(self.folder, file.path))
        if not self._committed(f"replace {manifest.checkpoint} by {manifest.revision}", seen):
            return None
        self.rows.checkpoints[manifest.checkpoint] = found
        self.kill("replaced")
        return ()

    def hide(self, undone: Collection[Stretch]) -> None:
        """Take checkpoints out."""
        assert self._committed(f"hide {', '.join(map(str, undone))}", self.seen())
        for checkpoint in list(self.rows.checkpoints):
            if any(checkpoint.timeline < one.by and one.first <= checkpoint.sequence <= one.last for one in undone):
                del self.rows.checkpoints[checkpoint]
        self.kill("hidden")

    def _committed(self, what: str, seen: int) -> bool:
        self.kill(what)
        if self.rows.transaction > seen:
            return False
        self.rows.transaction = seen + 1
        self.rows.commits.append(what)
        return True
