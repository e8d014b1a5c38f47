"""The contract of custom sinks: the template of the documentation passes it, and sinks with one fault each don't."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.sinks.custom import AcceptedBatch, CompleteCheckpoint, CustomSink, Reset, SinkOwner
from airflow_kcr.sinks.custom.suite import SinkContract
from airflow_kcr.spark import BatchContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "write-your-own-sink.md"


class LakeModule(Protocol):
    """What the template has."""

    def make(self, options: dict[str, str], spark: SparkSession) -> CustomSink: ...

    def read(self, spark: SparkSession, root: Path) -> DataFrame: ...


def template() -> LakeModule:
    """The page's template, as a module."""
    found = re.search(r"## A template\n.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    module = ModuleType("lake_of_the_page")
    sys.modules[module.__name__] = module
    exec(compile(found[1], str(PAGE), "exec"), vars(module))
    return cast("LakeModule", module)


LAKE = template()


class TestTemplate(SinkContract):
    @pytest.fixture(autouse=True)
    def _target(self, tmp_path: Path, spark: SparkSession) -> None:
        self._root, self._spark = tmp_path / "lake", spark

    def session(self) -> SparkSession:
        return self._spark

    def make(self) -> CustomSink:
        return LAKE.make({"path": str(self._root)}, self._spark)

    def shown(self) -> Iterable[tuple[str, int, int]]:
        return coordinates(LAKE.read(self._spark, self._root))


class Keyed(CustomSink):
    """Rows under their coordinates in a SQLite, which shows them at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, owner: SinkOwner) -> None:
        columns = "topic, partition, offset"
        self._do(f"CREATE TABLE IF NOT EXISTS rows ({columns}, PRIMARY KEY ({columns}))", [()])
        self._do("CREATE TABLE IF NOT EXISTS owner (single PRIMARY KEY, name)", [()])
        self._do("INSERT OR IGNORE INTO owner VALUES (1, ?)", [(str(owner),)])
        with closing(sqlite3.connect(self.path)) as connection:
            if connection.execute("SELECT name FROM owner").fetchall() != [(str(owner),)]:
                raise ConfigurationError(f"{self.path} is another sink's than {owner}")

    def write(self, rows: DataFrame, batch: BatchContext) -> None:
        self._do("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", coordinates(rows))

    def prepare(self, sequence: int) -> None:
        pass

    def publish(self, checkpoint: CompleteCheckpoint) -> None:
        pass

    def rollback(self, reset: Reset) -> None:
        pass

    def _do(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.executemany(statement, rows)


class TestOverwriting(SinkContract):
    keeps_back = False

    @pytest.fixture(autouse=True)
    def _target(self, tmp_path: Path, spark: SparkSession) -> None:
        self._path, self._spark = tmp_path / "rows.db", spark

    def session(self) -> SparkSession:
        return self._spark

    def make(self) -> CustomSink:
        return Keyed(self._path)

    def shown(self) -> Iterable[tuple[str, int, int]]:
        with closing(sqlite3.connect(self._path)) as connection:
            return list(connection.execute("SELECT topic, partition, offset FROM rows"))


def coordinates(rows: DataFrame) -> list[tuple[str, int, int]]:
    return [(row.topic, row.partition, row.offset) for row in rows.select("topic", "partition", "offset").collect()]


# -- sinks with one fault each -------------------------------------------------------------------------------------


class Listing(CustomSink):
    """A sink in memory that keeps back; its faults are switched off."""

    def __init__(self, kept: dict[str, list[tuple[str, int, int]]], visible: list[tuple[str, int, int]]) -> None:
        self.kept, self.visible = kept, visible

    def check(self, owner: SinkOwner) -> None:
        if self.kept.setdefault("owner", [(str(owner), 0, 0)]) != [(str(owner), 0, 0)]:
            raise ConfigurationError(f"it is another sink's than {owner}")

    def write(self, rows: DataFrame, batch: BatchContext) -> None:
        self.kept[batch.batch_id] = coordinates(rows)

    def prepare(self, sequence: int) -> None:
        pass

    def publish(self, checkpoint: CompleteCheckpoint) -> None:
        for batch in checkpoint.batches:
            counts = self.records_of(batch)
            self.show([row for row in self.kept[batch.batch_id] if row in counts])

    def rollback(self, reset: Reset) -> None:
        if reset.undone:
            self.visible[:] = [row for row in self.visible if row[2] < min(reset.resume.values())]

    def replace(self, old: CompleteCheckpoint, new: CompleteCheckpoint) -> None:
        rows = [row for batch in new.batches for row in self.kept[batch.batch_id]]
        for batch in old.batches:
            records = self.records_of(batch)
            self.visible[:] = [row for row in self.visible if row not in records]
            self.kept[batch.batch_id] = [row for row in rows if row in records]
            self.visible.extend(self.kept[batch.batch_id])

    def records_of(self, batch: AcceptedBatch) -> set[tuple[str, int, int]]:
        return {(p.topic, p.partition, o) for p, r in batch.ranges.items() for o in range(r.from_, r.to)}

    def show(self, rows: list[tuple[str, int, int]]) -> None:
        self.visible.extend(row for row in rows if row not in self.visible)


class ShowsTwice(Listing):
    def show(self, rows: list[tuple[str, int, int]]) -> None:
        self.visible.extend(rows)


class ShowsAtOnce(Listing):
    def write(self, rows: DataFrame, batch: BatchContext) -> None:
        super().write(rows, batch)
        self.show(self.kept[batch.batch_id])


class ShowsWholeBatches(ShowsTwice):
    def publish(self, checkpoint: CompleteCheckpoint) -> None:
        for batch in checkpoint.batches:
            self.show(self.kept[batch.batch_id])


class ShowsWhateverLiesAround(ShowsTwice):
    def publish(self, checkpoint: CompleteCheckpoint) -> None:
        for name in sorted(self.kept):
            self.show(self.kept.pop(name))


class ForgetsToRollBack(Listing):
    def rollback(self, reset: Reset) -> None:
        pass


class Remembers(Listing):
    """Keeps in the memory of one process what another one has to publish."""

    def __init__(self, kept: dict[str, list[tuple[str, int, int]]], visible: list[tuple[str, int, int]]) -> None:
        super().__init__({}, visible)


class TakesAnyTarget(Listing):
    def check(self, owner: SinkOwner) -> None:
        pass


class ReplacesNothing(Listing):
    def replace(self, old: CompleteCheckpoint, new: CompleteCheckpoint) -> None:
        pass


class AddsWhatIsRecomputed(ShowsTwice):
    def replace(self, old: CompleteCheckpoint, new: CompleteCheckpoint) -> None:
        self.publish(new)


class ForgetsWhatItReplaced(Listing):
    def replace(self, old: CompleteCheckpoint, new: CompleteCheckpoint) -> None:
        kept = dict(self.kept)
        super().replace(old, new)
        self.kept |= kept


FAULTS = {
    ReplacesNothing: "test_what_is_recomputed_takes_the_place_of_what_was_published",
    AddsWhatIsRecomputed: "test_replacing_again_changes_nothing",
    ForgetsWhatItReplaced: "test_a_late_publisher_does_not_bring_back_what_was_replaced",
    TakesAnyTarget: "test_a_target_of_an_earlier_region_of_the_name_is_refused",
    ShowsTwice: "test_publishing_again_changes_nothing",
    ShowsAtOnce: "test_nothing_is_shown_before_its_checkpoint",
    ShowsWholeBatches: "test_what_is_still_accepted_of_a_batch_is_shown_and_the_rest_is_not",
    ShowsWhateverLiesAround: "test_a_batch_that_is_not_accepted_is_never_shown",
    ForgetsToRollBack: "test_a_checkpoint_that_a_reset_has_undone_is_not_shown_any_more_and_its_records_come_again",
    Remembers: "test_another_process_publishes_what_a_dead_one_had_prepared",
}


def contract_of(kind: type[Listing], spark: SparkSession) -> SinkContract:
    kept: dict[str, list[tuple[str, int, int]]] = {}
    visible: list[tuple[str, int, int]] = []

    class Contract(SinkContract):
        def session(self) -> SparkSession:
            return spark

        def make(self) -> CustomSink:
            return kind(kept, visible)

        def shown(self) -> Iterable[tuple[str, int, int]]:
            return visible

    return Contract()


@pytest.mark.long
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_seen(kind: type[Listing], spark: SparkSession) -> None:
    with pytest.raises((AssertionError, KeyError)):
        getattr(contract_of(kind, spark), FAULTS[kind])()


@pytest.mark.parametrize("name", sorted(set(FAULTS.values())))
def test_without_a_fault_nothing_is(name: str, spark: SparkSession) -> None:
    getattr(contract_of(Listing, spark), name)()
