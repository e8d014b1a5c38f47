from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import airflow_kcr
from airflow_kcr.errors import InvalidIdentifier, NumberOutOfRange
from airflow_kcr.protocol.member.state import MemberMachine
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import (
    MAX_NUMBER,
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    Range,
    TopicName,
    checked,
    checked_range,
    few,
    group_id,
    region_name,
    replace,
    topic_name,
)

PARTITION = GroupPartition(GroupId("etl"), TopicName("flights"), 3)


@dataclass(frozen=True, slots=True)
class Narrow:
    one: int
    other: int


@dataclass(frozen=True)
class Wide:
    one: int
    other: int


class TestCopies:
    @pytest.mark.parametrize("row", [Narrow(one=1, other=2), Wide(one=1, other=2)])
    def test_a_copy_differs_in_what_was_changed(self, row: Narrow | Wide) -> None:
        kind = type(row)
        assert replace(row, other=3) == kind(one=1, other=3)
        assert row == kind(one=1, other=2)

    @pytest.mark.parametrize("kind", [Region, MemberMachine])
    def test_values_of_many_fields_are_copied_at_once(self, kind: type[object]) -> None:
        assert not hasattr(kind, "__slots__")


class TestNumbers:
    @pytest.mark.parametrize("number", [0, 1, 2**31, MAX_NUMBER])
    def test_what_the_store_can_hold_passes_unchanged(self, number: int) -> None:
        assert checked(number, "it") == number

    @pytest.mark.parametrize("number", [-1, MAX_NUMBER + 1])
    def test_what_the_store_cannot_hold_is_refused_by_name(self, number: int) -> None:
        with pytest.raises(NumberOutOfRange, match=f"the epoch is {number}; it must be between 0 and"):
            checked(number, "the epoch")


class TestRanges:
    def test_a_range_counts_from_its_begin_to_before_its_end(self) -> None:
        range_ = Range(Offset(5), Offset(8))
        assert checked_range(range_, PARTITION) is range_
        assert range_.width == 3
        assert str(range_) == "[5, 8)"

    @pytest.mark.parametrize("range_", [Range(Offset(5), Offset(5)), Range(Offset(6), Offset(5))])
    def test_a_range_without_records_is_none(self, range_: Range) -> None:
        with pytest.raises(NumberOutOfRange, match=r"etl:flights-3: .* holds no record"):
            checked_range(range_, PARTITION)

    @pytest.mark.parametrize(
        ("range_", "which"),
        [(Range(Offset(-1), Offset(5)), "the begin"), (Range(Offset(5), Offset(MAX_NUMBER + 1)), "the end")],
    )
    def test_both_ends_of_a_range_are_offsets(self, range_: Range, which: str) -> None:
        with pytest.raises(NumberOutOfRange, match=f"{which} of the range of etl:flights-3"):
            checked_range(range_, PARTITION)


class TestPlaces:
    def test_places_are_written_for_readers(self) -> None:
        assert str(PARTITION) == "etl:flights-3"
        assert str(PARTITION.topic_partition) == "flights-3"
        assert str(MemberId(GroupId("etl"), 2)) == "etl[2]"

    def test_partitions_are_ordered_by_number_and_not_as_texts(self) -> None:
        two, ten = PARTITION._replace(partition=2), PARTITION._replace(partition=10)
        assert sorted([ten, two]) == [two, ten]


class TestNames:
    @pytest.mark.parametrize("name", ["a", "flights-2_x", "0", "a" * 100])
    def test_a_regions_name(self, name: str) -> None:
        assert region_name(name) == name

    @pytest.mark.parametrize("name", ["", "Flights", "a.b", "a b", "é", "a\n", "a/b", "a" * 101])
    def test_what_is_no_regions_name(self, name: str) -> None:
        with pytest.raises(InvalidIdentifier, match="is not a region's name"):
            region_name(name)

    @pytest.mark.parametrize("name", ["flights", "A.b_c-D", "...", "0", "a" * 249])
    def test_a_topics_name(self, name: str) -> None:
        assert topic_name(name) == name

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "a:b", "a,b", "é", "a\n", "a" * 250])
    def test_what_kafka_would_refuse_as_a_topic(self, name: str) -> None:
        with pytest.raises(InvalidIdentifier, match="is not a topic's name"):
            topic_name(name)

    @pytest.mark.parametrize("name", ["etl", "a b", "a,b", 'a"b', "gruppe-ä", "群组", "a" * 255])
    def test_a_group_id(self, name: str) -> None:
        assert group_id(name) == name

    @pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\x00", "\ud83d", "a\u2028b", "a" * 256])
    def test_what_would_not_survive_as_a_group_id(self, name: str) -> None:
        with pytest.raises(InvalidIdentifier, match="is not a usable group id"):
            group_id(name)


def test_a_list_names_the_first_few_and_counts_the_others() -> None:
    texts = [few(range(n), 3) for n in range(2, 6)]
    assert texts == ["0, 1", "0, 1, 2", "0, 1, 2 and 1 more", "0, 1, 2 and 2 more"]
    assert few(()) == ""
    assert few("abc", 2, "; ") == "a; b; and 1 more"


def test_no_other_place_counts_what_it_leaves_out() -> None:
    package = Path(airflow_kcr.__file__).parent
    counting = (path for path in package.rglob("*.py") if re.search(r"and \{[^}]*\} more", path.read_text()))
    own = {path.relative_to(package).as_posix() for path in counting}
    # The other counts what it never had as a list.
    assert own == {"protocol/values.py", "protocol/invariants/moment.py"}
