from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_kcr.errors import NumberOutOfRange, OverlappingOffsets
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource, filled, from_offsets
from airflow_kcr.protocol.values import MAX_NUMBER, GroupId, GroupPartition, Offset, TopicName

P0, P1, P2, P10 = (GroupPartition(GroupId("etl"), TopicName("flights"), number) for number in (0, 1, 2, 10))


def offsets(numbers: Mapping[GroupPartition, int]) -> OffsetMap:
    return OffsetMap({partition: Offset(number) for partition, number in numbers.items()})


def entry(offset: int | None, source: SeekSource = SeekSource.MERGED) -> SeekEntry:
    return SeekEntry(offset=None if offset is None else Offset(offset), source=source)


class TestMap:
    def test_is_read_like_a_mapping(self) -> None:
        found = offsets({P0: 5, P1: 6})
        assert (found[P0], found.get(P2), len(found), P1 in found) == (5, None, 2, True)
        with pytest.raises(KeyError):
            found[P2]

    def test_does_not_change_with_what_it_was_made_of(self) -> None:
        given = {P0: Offset(5)}
        found = OffsetMap(given)
        given[P0] = Offset(7)
        assert found[P0] == 5

    def test_says_what_it_is(self) -> None:
        assert repr(offsets({P1: 6, P0: 5})) == "OffsetMap({etl:flights-0: 5, etl:flights-1: 6})"

    @pytest.mark.parametrize("number", [-1, -1001, MAX_NUMBER + 1])
    def test_symbols_and_overflows_are_no_offsets(self, number: int) -> None:
        with pytest.raises(NumberOutOfRange, match="the offset of etl:flights-0"):
            offsets({P0: number})

    @pytest.mark.parametrize("second", [5, 6])
    def test_a_partition_given_twice_is_refused(self, second: int) -> None:
        with pytest.raises(OverlappingOffsets, match="etl:flights-0 is given twice"):
            OffsetMap([(P0, Offset(5)), (P1, Offset(1)), (P0, Offset(second))])


class TestUnion:
    @pytest.mark.parametrize("other", [5, 6])
    def test_of_two_owners_of_a_partition_is_refused_even_where_they_agree(self, other: int) -> None:
        with pytest.raises(OverlappingOffsets, match="etl:flights-0: more than one owner"):
            offsets({P0: 5, P1: 6}).union(offsets({P0: other, P2: 1}))

    def test_names_every_partition_that_is_shared(self) -> None:
        with pytest.raises(OverlappingOffsets, match="etl:flights-0, etl:flights-1:"):
            offsets({P0: 5, P1: 6}).union(offsets({P1: 5, P0: 6}))


class TestReplace:
    def test_moves_in_both_directions_and_leaves_the_rest(self) -> None:
        found = offsets({P0: 5, P1: 6, P2: 7}).replace({P0: Offset(1), P1: Offset(9)})
        assert found == offsets({P0: 1, P1: 9, P2: 7})


class TestCovers:
    @pytest.mark.parametrize(
        ("other", "covered"),
        [
            ({P0: 5}, True),
            ({P0: 4, P1: 6}, True),
            ({P0: 6}, False),
            ({P0: 4, P1: 7}, False),
            ({P2: 99}, True),
            ({}, True),
        ],
    )
    def test_is_at_or_beyond_on_every_partition_that_both_have(
        self, other: dict[GroupPartition, int], covered: bool
    ) -> None:
        assert offsets({P0: 5, P1: 6}).covers(offsets(other)) is covered


class TestSeekMap:
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
