"""A scripted region whose batches Spark writes into a file sink, on a disk."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.targets import ShiftBy
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, EventNumber
from airflow_kcr.sinks import read_checkpoint
from airflow_kcr.sinks.contract import Revision, SinkOfBatch
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.sinks.files.folder import Folder
from airflow_kcr.sinks.files.frames import Rewriter
from airflow_kcr.sinks.files.hadoop import HadoopFolder
from airflow_kcr.sinks.files.layout import FileTarget
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.files.tables import NO_TABLE, Table
from tests.support.driver import GROUP, Driver
from tests.support.live_region import SPEC
from tests.support.scripts import asking, call_of, recomputation, reset_order
from tests.support.sink_files import owner_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENT = SPEC.replace("lease: 60s", "lease: 240s")
"""Of a region in a store, for as long as Spark may take on a busy machine."""

READ = "kcr_topic", "kcr_partition", "kcr_offset"


@dataclass(slots=True)
class Lake:
    """A scripted region whose batches are written by Spark."""

    spark: SparkSession
    root: Path
    file_size: int = 0
    driver: Driver = field(default_factory=Driver)
    """Of a region that was not started yet."""

    sink: FileSink = field(init=False)

    def __post_init__(self) -> None:
        self.driver.up()
        self.sink = self.opened(self.root.as_uri())
        self.sink.check()

    def target(self, uri: str) -> FileTarget:
        """The sink at a path, as the spec has it."""
        return FileTarget(owner=owner_of(self.driver), path=uri, file_size=self.file_size)

    def opened(self, uri: str) -> FileSink:
        """The sink at a path, as a process has it."""
        target, folder = self.target(uri), HadoopFolder(self.spark, uri)
        ledger, table = RegionLedger(self.driver.store, self.driver.name), self.table(target, folder)
        return FileSink(target, folder, ledger, Rewriter(self.spark, folder, table.write), table)

    def table(self, target: FileTarget, folder: Folder) -> Table:
        """What shows whole checkpoints beside the manifests."""
        return NO_TABLE

    def rows(self, call: BatchCall) -> DataFrame:
        """One row for each record."""
        found = [(p.topic, p.partition, o, f"{o}") for p, r in call.ranges.items() for o in range(r.from_, r.to)]
        return self.spark.createDataFrame(found, "topic string, partition int, offset bigint, value string")

    def batch(self, index: int = 0, width: int = 10, **more: str) -> BatchId:
        """Process one batch of a member, with more columns by their SQL."""
        batch = self.driver.start_batch(self.driver.member(index), width)
        call = call_of(self.driver, batch)
        writer = SinkOfBatch(self.sink, call)
        writer.write(self.rows(call).selectExpr("*", *(f"{sql} AS {name}" for name, sql in more.items())))
        writer.finish()
        self.driver.finish_batch(batch)
        return batch

    def revision(
        self, sequence: CheckpointNumber, number: EventNumber, *columns: str, sink: FileSink | None = None
    ) -> Revision:
        """A checkpoint once more, written and held back.

        Args:
            sequence: the checkpoint's.
            number: of the recomputation.
            columns: what its rows have, by their SQL.
            sink: as a process has it.
        """
        contents = RegionLedger(self.driver.store, self.driver.name).contents(sequence, GROUP)
        revision = (sink or self.sink).revised(contents, number)
        for batch in contents.batches:
            call = replace(
                call_of(self.driver, batch.batch_id),
                batch=BatchId(f"{batch.batch_id}-{number}"),
                timeline=contents.id.timeline,
                sequence=contents.id.sequence,
            )
            writer = SinkOfBatch(revision, call)
            writer.write(self.rows(call).selectExpr(*(columns or ("*", "true AS again"))))
            writer.finish()
        return revision

    def recompute(self, sequence: CheckpointNumber, *columns: str) -> EventNumber:
        """Recompute a checkpoint."""
        number = recomputation(self.driver, sequence, "again")
        self.revision(sequence, number, *columns).replace(asking(self.driver, sequence, number))
        return number

    def checkpoint(self, request_id: str, requester: Requester | None = None) -> CheckpointNumber:
        """Make a checkpoint and publish it."""
        self.driver.request_checkpoint(request_id, requester=requester)
        sequence = self.driver.complete()
        self.sink.publish(sequence)
        self.driver.publish()
        return sequence

    def reset(self, by: int) -> None:
        """Go back on one partition."""
        self.driver.reset(ShiftBy(by=by), scope=parse_scope(topics=["t:0"]))
        self.driver.complete()
        self.sink.reset(reset_order(self.driver))
        self.driver.finish_reset()

    def read(self, sequence: CheckpointNumber | None = None) -> list[tuple[str, int, int]]:
        """The records of a checkpoint."""
        rows = read_checkpoint(self.spark, self.root.as_uri(), sequence=sequence).select(*READ).collect()
        return sorted((row[0], row[1], row[2]) for row in rows)

    def everything(self) -> list[tuple[str, int, int]]:
        """Every record before the positions, once."""
        ends = {p: int(c.position or 0) for p, c in self.driver.region.claims.items()}
        return sorted((p.topic, p.partition, o) for p, end in ends.items() for o in range(end))
