from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_kcr.errors import NumberOutOfRange, OverlappingOffsets
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import MAX_NUMBER, GroupId, GroupPartition, Offset, TopicName

P0, P1, P2, P10 = (GroupPartition(GroupId("etl"), TopicName("flights"), number) for number in (0, 1, 2, 10))


def offsets(numbers: Mapping[GroupPartition, int]) -> OffsetMap:
    return OffsetMap({partition: Offset(number) for partition, number in numbers.items()})


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
