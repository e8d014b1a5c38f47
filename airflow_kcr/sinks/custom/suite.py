"""What a sink of your own has to do, as tests for pytest, which runs them where they are subclassed.

For a sink of module `lake`::

    class TestLake(SinkContract):
        @pytest.fixture(autouse=True)
        def _target(self, tmp_path, spark):
            self._path, self._spark = str(tmp_path / "lake"), spark

        def session(self):
            return self._spark

        def make(self):
            return lake.make({"path": self._path}, self._spark)

        def shown(self):
            return [(row.topic, row.partition, row.offset) for row in lake.read(self._path)]

Each test says in its name what it checks, and in its error what readers saw instead. They need Spark, no broker and
no store: the contract plays the region. Those of `replace` are skipped where the sink has no such method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final
from unittest import SkipTest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol import values
from airflow_kcr.sinks.custom import AcceptedBatch, CheckpointId, CompleteCheckpoint, CustomSink, Reset, SinkOwner
from airflow_kcr.spark.context import BatchContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = values.TopicName("topic")
PLACE: Final = values.TopicPartition(TOPIC, 0)
OWNER: Final = SinkOwner(
    region=values.RegionName("region"), region_id=values.RegionId("one"), group=values.GroupId("group"), sink="sink"
)
_MEMBER: Final = values.MemberId(values.GroupId("group"), 0)
_COLUMNS: Final = "topic STRING, partition INT, offset BIGINT, value STRING"


def checkpoint_id(sequence: int, timeline: int = 1) -> CheckpointId:
    """Return the name of a checkpoint."""
    return CheckpointId(timeline=values.Timeline(timeline), sequence=values.CheckpointNumber(sequence))


def batch_of(name: str, offsets: range, sequence: int = 1, timeline: int = 1, epoch: int = 1) -> BatchContext:
    """Return a batch of partition 0."""
    return BatchContext(
        region=values.RegionName("region"),
        member=_MEMBER,
        batch_id=values.BatchId(name),
        epoch=values.Epoch(epoch),
        timeline=values.Timeline(timeline),
        sequence=values.CheckpointNumber(sequence),
        ranges={PLACE: values.Range(values.Offset(offsets.start), values.Offset(offsets.stop))},
    )


def accepted(batch: BatchContext, upto: int | None = None) -> AcceptedBatch:
    """Return what counts of a batch.

    Args:
        batch: the batch.
        upto: the offset from which on a reset has undone it; None: all of it counts.
    """
    whole = batch.ranges[PLACE]
    return AcceptedBatch(
        batch_id=batch.batch_id,
        epoch=batch.epoch,
        checkpoint=CheckpointId(timeline=batch.timeline, sequence=batch.sequence),
        ranges={PLACE: whole if upto is None else values.Range(whole.from_, values.Offset(upto))},
        is_whole=upto is None,
    )


def checkpoint_of(
    checkpoint: CheckpointId, *batches: AcceptedBatch, previous: CheckpointId | None = None
) -> CompleteCheckpoint:
    """Return a complete checkpoint."""
    return CompleteCheckpoint(id=checkpoint, epoch=values.Epoch(1), previous=previous, boundary=None, batches=batches)


def reset_to(epoch: int, timeline: int, undone: Mapping[CheckpointId, int], resume: int) -> Reset:
    """Return a reset of partition 0."""
    return Reset(
        epoch=values.Epoch(epoch),
        timeline=values.Timeline(timeline),
        undone={checkpoint: values.Timeline(by) for checkpoint, by in undone.items()},
        resume={PLACE: values.Offset(resume)},
    )


class SinkContract(ABC):
    """The tests; what is abstract here is for the subclass to say."""

    keeps_back: ClassVar[bool] = True
    """Whether the sink shows output with its checkpoint. One that overwrites shows it at once, and is asked less."""

    @abstractmethod
    def session(self) -> SparkSession:
        """Return a Spark session."""

    @abstractmethod
    def make(self) -> CustomSink:
        """Return a new object for this test's target, as another process would make one; at first it is empty."""

    @abstractmethod
    def shown(self) -> Iterable[tuple[str, int, int]]:
        """Return topic, partition and offset of the rows that readers see now, each as often as it is there."""

    # -- the tests -----------------------------------------------------------------------------------------------

    def test_what_is_published_is_shown_once(self) -> None:
        """Two batches of a checkpoint, and a second checkpoint."""
        sink = self._checked()
        one, two, three = batch_of("a", range(5)), batch_of("b", range(5, 8)), batch_of("c", range(8, 9), sequence=2)
        self._write(sink, one, two)
        sink.prepare(values.CheckpointNumber(1))
        sink.publish(checkpoint_of(checkpoint_id(1), accepted(one), accepted(two)))
        self._expect(range(8))
        self._write(sink, three)
        sink.prepare(values.CheckpointNumber(2))
        sink.publish(checkpoint_of(checkpoint_id(2), accepted(three), previous=checkpoint_id(1)))
        self._expect(range(9))

    def test_publishing_again_changes_nothing(self) -> None:
        """By the same object, and by another one."""
        sink, one = self._checked(), batch_of("a", range(5))
        self._write(sink, one)
        sink.prepare(values.CheckpointNumber(1))
        for publisher in (sink, sink, self._checked()):
            publisher.publish(checkpoint_of(checkpoint_id(1), accepted(one)))
            self._expect(range(5))

    def test_another_process_publishes_what_a_dead_one_had_prepared(self) -> None:
        """Nothing that publishing needs is in the memory of who wrote."""
        sink, one = self._checked(), batch_of("a", range(5))
        self._write(sink, one)
        sink.prepare(values.CheckpointNumber(1))
        self._checked().publish(checkpoint_of(checkpoint_id(1), accepted(one)))
        self._expect(range(5))

    def test_a_checkpoint_without_batches_shows_nothing_and_harms_nothing(self) -> None:
        """As of a group that had no records."""
        sink, one = self._checked(), batch_of("a", range(5))
        self._write(sink, one)
        sink.prepare(values.CheckpointNumber(1))
        sink.publish(checkpoint_of(checkpoint_id(1), accepted(one)))
        sink.publish(checkpoint_of(checkpoint_id(2), previous=checkpoint_id(1)))
        self._expect(range(5))

    def test_a_batch_without_rows_is_fine(self) -> None:
        """As of records that the pipeline leaves out."""
        sink, one = self._checked(), batch_of("a", range(5))
        sink.write(self._rows(range(0)), one)
        sink.prepare(values.CheckpointNumber(1))
        sink.publish(checkpoint_of(checkpoint_id(1), accepted(one)))
        self._expect(range(0))

    def test_nothing_is_shown_before_its_checkpoint(self) -> None:
        """Of a sink that keeps back."""
        if self.keeps_back:
            sink, one = self._checked(), batch_of("a", range(5))
            self._write(sink, one)
            self._expect(range(0))
            sink.prepare(values.CheckpointNumber(1))
            self._expect(range(0))

    def test_a_batch_that_is_not_accepted_is_never_shown(self) -> None:
        """It failed, and its records came again in another one, with other ranges."""
        sink = self._checked()
        dead, one, two = batch_of("dead", range(5)), batch_of("a", range(3)), batch_of("b", range(3, 5))
        self._write(sink, dead, one, two)
        sink.prepare(values.CheckpointNumber(1))
        sink.publish(checkpoint_of(checkpoint_id(1), accepted(one), accepted(two)))
        self._expect(range(5))

    def test_what_is_still_accepted_of_a_batch_is_shown_and_the_rest_is_not(self) -> None:
        """A reset went back into the middle of it."""
        sink, one = self._checked(), batch_of("a", range(6))
        self._write(sink, one)
        sink.rollback(reset_to(2, 2, {}, resume=4))
        again = batch_of("b", range(4, 6), sequence=2, timeline=2, epoch=2)
        self._write(sink, again)
        sink.prepare(values.CheckpointNumber(2))
        sink.publish(checkpoint_of(checkpoint_id(2, 2), accepted(one, upto=4), accepted(again)))
        self._expect(range(6))

    def test_a_checkpoint_that_a_reset_has_undone_is_not_shown_any_more_and_its_records_come_again(self) -> None:
        """The checkpoint before it stays."""
        sink = self._checked()
        one, two = batch_of("a", range(5)), batch_of("b", range(5, 9), sequence=2)
        self._write(sink, one)
        sink.publish(checkpoint_of(checkpoint_id(1), accepted(one)))
        self._write(sink, two)
        sink.publish(checkpoint_of(checkpoint_id(2), accepted(two), previous=checkpoint_id(1)))
        back = reset_to(2, 2, {checkpoint_id(2): 2}, resume=5)
        for member in (sink, self._checked(), sink):
            member.rollback(back)
            self._expect(range(5) if self.keeps_back else range(9))
        again = batch_of("c", range(5, 10), sequence=3, timeline=2, epoch=2)
        self._write(sink, again)
        sink.prepare(values.CheckpointNumber(3))
        sink.publish(checkpoint_of(checkpoint_id(3, 2), accepted(again), previous=checkpoint_id(1)))
        self._expect(range(10))

    def test_what_a_zombie_writes_after_a_reset_is_never_shown(self) -> None:
        """It was frozen, and continues under the older epoch; a refusal is fine too."""
        sink, zombie = self._checked(), self._checked()
        late = batch_of("late", range(5))
        sink.rollback(reset_to(2, 2, {}, resume=0))
        again = batch_of("a", range(5), sequence=2, timeline=2, epoch=2)
        self._write(sink, again)
        # Whatever it says to that; that it is not shown is what counts.
        with suppress(Exception):
            self._write(zombie, late)
        sink.prepare(values.CheckpointNumber(2))
        sink.publish(checkpoint_of(checkpoint_id(2, 2), accepted(again)))
        self._expect(range(5))

    def test_a_target_of_an_earlier_region_of_the_name_is_refused(self) -> None:
        """Check that each region's output is told from that of others, whose numbers are the same."""
        self._checked()
        self._checked()
        try:
            self.make().check(replace(OWNER, region_id=values.RegionId("another")))
        except ConfigurationError:
            return
        raise AssertionError("the target is taken by a sink of another region, and `check` did not refuse it")

    # -- of a sink that has `replace` ----------------------------------------------------------------------------

    def test_what_is_recomputed_takes_the_place_of_what_was_published(self) -> None:
        """All of it at once, also where it has fewer rows; the checkpoint after it stays."""
        sink, old, new = self._recomputed()
        if self.keeps_back:
            self._expect(range(9))
        sink.replace(old, new)
        self._expect([*range(2), *range(4, 9)])

    def test_what_is_recomputed_is_shown_where_its_checkpoint_has_never_been(self) -> None:
        """The sink was added to the spec later, or is another one than the region's (`--into`)."""
        sink = self._replacing()
        absent, there = batch_of("absent", range(6)), batch_of("there", range(6), epoch=2)
        sink.write(self._rows(range(4)), there)
        old = checkpoint_of(checkpoint_id(1), accepted(absent))
        sink.replace(old, replace(old, batches=(accepted(there),)))
        self._expect(range(4))

    def test_replacing_again_changes_nothing(self) -> None:
        """By the same object, and by another one."""
        sink, old, new = self._recomputed()
        for replacer in (sink, sink, self._checked()):
            replacer.replace(old, new)
            self._expect([*range(2), *range(4, 9)])

    def test_what_is_recomputed_is_replaced_by_what_is_recomputed_later(self) -> None:
        """`old` is what was published, however often it was replaced."""
        sink, old, new = self._recomputed()
        sink.replace(old, new)
        later = batch_of("later", range(6), epoch=2)
        sink.write(self._rows(range(1, 4)), later)
        self._checked().replace(old, replace(old, batches=(accepted(later),)))
        self._expect([*range(1, 4), *range(6, 9)])

    def test_a_late_publisher_does_not_bring_back_what_was_replaced(self) -> None:
        """It was frozen since before the checkpoint was published."""
        sink, old, new = self._recomputed()
        sink.replace(old, new)
        self._checked().publish(old)
        self._expect([*range(2), *range(4, 9)])

    def test_what_a_reset_leaves_of_a_recomputed_checkpoint_is_shown_as_recomputed(self) -> None:
        """The next checkpoint names the batches that were replaced, with what still counts of them."""
        sink, old, new = self._recomputed()
        sink.replace(old, new)
        one, two = old.batches
        half = {PLACE: values.Range(values.Offset(3), values.Offset(5))}
        sink.rollback(reset_to(2, 2, {checkpoint_id(1): 2, checkpoint_id(2): 2}, resume=5))
        again = batch_of("again", range(5, 8), sequence=3, timeline=2, epoch=2)
        self._write(sink, again)
        sink.prepare(values.CheckpointNumber(3))
        rest = (one, replace(two, ranges=half, is_whole=False), accepted(again))
        sink.publish(checkpoint_of(checkpoint_id(3, 2), *rest))
        self._expect([*range(2), *range(4, 8)] if self.keeps_back else [*range(2), *range(4, 9)])

    def test_a_reset_undoes_what_was_recomputed(self) -> None:
        """With its checkpoint."""
        sink, old, new = self._recomputed()
        sink.replace(old, new)
        sink.rollback(reset_to(2, 2, {checkpoint_id(1): 2, checkpoint_id(2): 2}, resume=0))
        if self.keeps_back:
            self._expect(range(0))
        again = batch_of("again", range(9), sequence=3, timeline=2, epoch=2)
        self._write(sink, again)
        sink.prepare(values.CheckpointNumber(3))
        sink.publish(checkpoint_of(checkpoint_id(3, 2), accepted(again)))
        self._expect(range(9))

    # ------------------------------------------------------------------------------------------------------------

    def _recomputed(self) -> tuple[CustomSink, CompleteCheckpoint, CompleteCheckpoint]:
        """Publish two checkpoints, and have the first one processed again: of records 2 and 3 there is no row now."""
        sink = self._replacing()
        one, two, three = batch_of("a", range(3)), batch_of("b", range(3, 6)), batch_of("c", range(6, 9), sequence=2)
        self._write(sink, one, two)
        sink.prepare(values.CheckpointNumber(1))
        old = checkpoint_of(checkpoint_id(1), accepted(one), accepted(two))
        sink.publish(old)
        self._write(sink, three)
        sink.prepare(values.CheckpointNumber(2))
        sink.publish(checkpoint_of(checkpoint_id(2), accepted(three), previous=checkpoint_id(1)))
        less, more = batch_of("d", range(4), epoch=2), batch_of("e", range(4, 6), epoch=2)
        sink.write(self._rows(range(2)), less)
        self._write(sink, more)
        return sink, old, replace(old, batches=(accepted(less), accepted(more)))

    def _replacing(self) -> CustomSink:
        sink = self._checked()
        if type(sink).replace is CustomSink.replace:
            raise SkipTest(f"{type(sink).__name__} has no method replace(old, new), so it can't be recomputed")
        return sink

    def _checked(self) -> CustomSink:
        sink = self.make()
        sink.check(OWNER)
        return sink

    def _write(self, sink: CustomSink, *batches: BatchContext) -> None:
        for batch in batches:
            range_ = batch.ranges[PLACE]
            sink.write(self._rows(range(range_.from_, range_.to)), batch)

    def _rows(self, offsets: range) -> DataFrame:
        return self.session().createDataFrame([(str(TOPIC), 0, n, f"value {n}") for n in offsets], _COLUMNS)

    def _expect(self, offsets: Iterable[int]) -> None:
        wanted = Counter((str(TOPIC), 0, offset) for offset in offsets)
        found = Counter((str(topic), int(partition), int(offset)) for topic, partition, offset in self.shown())
        lacking, surplus = sorted((wanted - found).elements()), sorted((found - wanted).elements())
        if lacking or surplus:
            raise AssertionError(
                f"readers lack {lacking or 'nothing'}, and see {surplus or 'nothing'} that they should not"
            )
