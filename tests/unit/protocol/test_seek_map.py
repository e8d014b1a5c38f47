from __future__ import annotations

import pytest

from airflow_kcr.errors import NumberOutOfRange
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource, filled, from_offsets
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName

P0, P1, P2, P10 = (GroupPartition(GroupId("etl"), TopicName("flights"), number) for number in (0, 1, 2, 10))


def entry(offset: int | None, source: SeekSource = SeekSource.MERGED) -> SeekEntry:
    return SeekEntry(offset=None if offset is None else Offset(offset), source=source)


class TestMap:
    def test_is_read_like_a_mapping_in_the_order_of_the_partitions(self) -> None:
        seek = SeekMap({P10: entry(3), P2: entry(2), P0: entry(1)})
        assert list(seek) == [P0, P2, P10]
        assert (len(seek), seek[P2], P1 in seek) == (3, entry(2), False)

    @pytest.mark.parametrize("offset", [-1, 2**63])
    def test_refuses_what_is_no_offset(self, offset: int) -> None:
        with pytest.raises(NumberOutOfRange, match="the seek offset of etl:flights-0"):
            SeekMap({P0: entry(offset)})

    def test_what_was_asked_for_may_be_negative(self) -> None:
        shifted = SeekEntry(offset=Offset(0), source=SeekSource.EXPLICIT, clamped_from=-5)
        assert SeekMap({P0: shifted})[P0].clamped_from == -5

    def test_does_not_change_with_what_it_was_made_of(self) -> None:
        given = {P0: entry(1)}
        seek = SeekMap(given)
        given[P1] = entry(2)
        assert list(seek) == [P0]


class TestOpenEntries:
    seek = SeekMap({P0: entry(5), P1: entry(None, SeekSource.SINK_PROGRESS)})

    def test_a_known_entry_never_changes(self) -> None:
        written = self.seek.write({P1: entry(7)})
        assert written.write({P1: entry(8), P0: entry(6)}) is written

    def test_a_missing_entry_can_be_written_too(self) -> None:
        assert self.seek.write({P2: entry(9)})[P2] == entry(9)


def test_offsets_of_one_source_become_a_map() -> None:
    seek = from_offsets(OffsetMap({P0: Offset(5), P1: Offset(6)}), SeekSource.DRAINED)
    assert seek == {P0: entry(5, SeekSource.DRAINED), P1: entry(6, SeekSource.DRAINED)}


class TestFilled:
    def test_an_open_entry_of_the_target_stays_open_and_is_not_the_initial_offset(self) -> None:
        target = SeekMap({P0: entry(None, SeekSource.SINK_PROGRESS)})
        assert filled(target, initial={P0: Offset(1)}, partitions=[P0]) == target
