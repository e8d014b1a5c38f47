from __future__ import annotations

import pytest

from airflow_kcr.errors import InvalidOffsetsFile
from airflow_kcr.protocol.offsets import OffsetMap, read_offsets, write_offsets
from airflow_kcr.protocol.values import MAX_NUMBER, GroupId, GroupPartition, Offset, TopicName

ETL, AUDIT = GroupId("etl"), GroupId("audit")
FLIGHTS, WEATHER = TopicName("flights"), TopicName("weather")
E0, E1, E10 = (GroupPartition(ETL, FLIGHTS, number) for number in (0, 1, 10))
W0, A0 = GroupPartition(ETL, WEATHER, 0), GroupPartition(AUDIT, FLIGHTS, 0)
ONE = (E0, E1, E10, W0)
BOTH = (*ONE, A0)


def offsets(*pairs: tuple[GroupPartition, int]) -> OffsetMap:
    return OffsetMap((partition, Offset(offset)) for partition, offset in pairs)


def findings(text: str, partitions: tuple[GroupPartition, ...] = ONE, group: GroupId | None = None) -> list[str]:
    with pytest.raises(InvalidOffsetsFile) as caught:
        read_offsets(text, partitions=partitions, group=group)
    head, *lines = caught.value.message.split("\n")
    assert head == f"the offsets file can't be used, {len(lines)} finding(s):"
    return [line.strip() for line in lines]


class TestWriting:
    def test_one_group_is_written_without_it_and_without_a_header(self) -> None:
        text = write_offsets(offsets((E10, 3), (E0, 1), (E1, 2), (W0, 4)))
        assert text == "flights,0,1\nflights,1,2\nflights,10,3\nweather,0,4\n"

    def test_several_groups_are_named(self) -> None:
        assert write_offsets(offsets((E0, 1), (A0, 2))) == "audit,flights,0,2\netl,flights,0,1\n"

    def test_the_group_can_be_asked_for_and_left_out(self) -> None:
        assert write_offsets(offsets((E0, 1)), with_group=True) == "etl,flights,0,1\n"
        assert write_offsets(offsets((E0, 1), (A0, 2)), with_group=False) == "flights,0,2\nflights,0,1\n"

    def test_numbers_are_plain_digits(self) -> None:
        assert write_offsets(offsets((E0, MAX_NUMBER), (E1, 1_234_567))) == (
            "flights,0,9223372036854775807\nflights,1,1234567\n"
        )

    def test_names_are_quoted_where_they_need_it(self) -> None:
        odd = GroupPartition(GroupId('a "b", c'), FLIGHTS, 0)
        assert write_offsets(offsets((odd, 5)), with_group=True) == '"a ""b"", c",flights,0,5\n'

    def test_nothing_is_written_as_nothing(self) -> None:
        assert write_offsets(OffsetMap()) == ""


class TestReading:
    def test_what_kafkas_tool_exports_for_one_group(self) -> None:
        assert read_offsets("flights,0,1\nflights,10,3\n", partitions=ONE) == offsets((E0, 1), (E10, 3))

    def test_what_kafkas_tool_exports_for_several_groups(self) -> None:
        text = "etl,flights,0,1\naudit,flights,0,2\n"
        assert read_offsets(text, partitions=BOTH) == offsets((E0, 1), (A0, 2))

    def test_kafka_quotes_long_names_without_need(self) -> None:
        assert read_offsets('"flights",0,1\n', partitions=ONE) == offsets((E0, 1))

    def test_lines_without_group_mean_the_one_that_was_named(self) -> None:
        assert read_offsets("flights,0,1\n", partitions=BOTH, group=AUDIT) == offsets((A0, 1))

    def test_one_group_may_be_named_in_the_lines(self) -> None:
        assert read_offsets("etl,flights,0,1\n", partitions=ONE) == offsets((E0, 1))

    @pytest.mark.parametrize("header", ["topic,partition,offset", "group,topic,partition,offset"])
    def test_a_header_that_is_right_is_skipped(self, header: str) -> None:
        line = "flights,0,1" if header.startswith("topic") else "etl,flights,0,1"
        assert read_offsets(f"{header}\n{line}\n", partitions=ONE) == offsets((E0, 1))

    def test_what_editors_do_to_files_is_forgiven(self) -> None:
        text = "\ufeffflights,0,1\r\n\r\n flights , 1 , 2 \r\n  \r\nflights,10,3"
        assert read_offsets(text, partitions=ONE) == offsets((E0, 1), (E1, 2), (E10, 3))

    def test_the_largest_offset_fits(self) -> None:
        text = f"flights,0,{MAX_NUMBER}\nflights,1,000{MAX_NUMBER}\n"
        assert read_offsets(text, partitions=ONE) == offsets((E0, MAX_NUMBER), (E1, MAX_NUMBER))


class TestFindings:
    @pytest.mark.parametrize("text", ["", "\n\n", "\ufeff", "topic,partition,offset\n"])
    def test_a_file_without_offsets_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidOffsetsFile, match="no line with an offset"):
            read_offsets(text, partitions=ONE)

    @pytest.mark.parametrize(
        "offset", ["x", "", "1.5", "1e3", "0x10", "latest", "1_000", "\N{ARABIC-INDIC DIGIT FIVE}", "+5"]
    )
    def test_an_offset_that_is_no_number(self, offset: str) -> None:
        assert findings(f"flights,0,{offset}\n") == [f"line 1, column 3 (offset): {offset!r} is not a whole number"]

    @pytest.mark.parametrize("offset", ["-1", "-2"])
    def test_an_offset_that_is_negative(self, offset: str) -> None:
        assert findings(f"flights,0,{offset}\n") == [f"line 1, column 3 (offset): {offset} is negative"]

    def test_numbers_that_are_too_large(self) -> None:
        assert findings(f"flights,0,{MAX_NUMBER + 1}\nflights,2147483648,5\n") == [
            f"line 1, column 3 (offset): {MAX_NUMBER + 1} is above {MAX_NUMBER}",
            "line 2, column 2 (partition): 2147483648 is above 2147483647",
        ]

    def test_a_number_of_endless_digits_does_not_stop_the_reader(self) -> None:
        assert findings(f"flights,0,{'9' * 5000}\n")[0].startswith("line 1, column 3 (offset): 999999")

    def test_columns_are_counted_as_they_are_in_the_file(self) -> None:
        assert findings("etl,flights,x,y\n") == [
            "line 1, column 3 (partition): 'x' is not a whole number",
            "line 1, column 4 (offset): 'y' is not a whole number",
        ]

    def test_a_line_of_another_width(self) -> None:
        assert findings("flights,0,1\netl,flights,1,2\nflights,1\n") == [
            "line 2, 4 column(s); write topic,partition,offset or group,topic,partition,offset, all lines alike, with "
            "commas and without comments",
            "line 3, 2 column(s); write topic,partition,offset or group,topic,partition,offset, all lines alike, with "
            "commas and without comments",
        ]

    def test_a_header_that_is_wrong_is_said_to_be_one(self) -> None:
        assert findings("TOPIC,PARTITION,NEW-OFFSET\nflights,0,x\n") == [
            "line 1, looks like a header; write none, as Kafka's tool does, or "
            "topic,partition,offset or group,topic,partition,offset",
            "line 2, column 3 (offset): 'x' is not a whole number",
        ]

    def test_a_header_is_only_skipped_where_it_is_first(self) -> None:
        assert len(findings("flights,0,1\ntopic,partition,offset\n")) == 2

    def test_a_partition_that_is_there_twice(self) -> None:
        assert findings("flights,0,1\nflights,1,2\nflights,0,1\nflights,0,3\n") == [
            "line 3, column 1 (topic): etl:flights-0 is in line 1 already",
            "line 4, column 1 (topic): etl:flights-0 is in line 1 already",
        ]

    def test_what_the_region_does_not_have(self) -> None:
        text = "typo,flights,0,1\netl,typo,0,1\netl,flights,7,1\naudit,weather,0,1\n"
        assert findings(text, BOTH) == [
            "line 1, column 1 (group): 'typo' is not a group of this region: audit, etl",
            "line 2, column 2 (topic): group etl does not read 'typo'",
            "line 3, column 3 (partition): 'flights' has no partition 7",
            "line 4, column 2 (topic): group audit does not read 'weather'",
        ]

    def test_lines_without_group_where_there_are_several(self) -> None:
        assert findings("flights,0,1\n", BOTH) == [
            "line 1, column 1 (topic): the region has several groups; write group,topic,partition,offset"
        ]

    def test_quotes_that_do_not_close_spoil_only_their_line(self) -> None:
        found = findings('"flights,0,1\nflights,x,1\n')
        assert found[0].startswith("line 1, not CSV: ")
        assert found[1:] == ["line 2, column 2 (partition): 'x' is not a whole number"]

    def test_all_findings_come_at_once_in_the_order_of_the_lines(self) -> None:
        text = 'flights,0,1\nflights,0,-1\nflights,1\n"x\ntypo,0,1\nflights,0,2\n'
        assert [finding.split(",")[0] for finding in findings(text)] == [
            "line 2",
            "line 3",
            "line 4",
            "line 5",
            "line 6",
        ]


@pytest.mark.parametrize("text", ["flights;0;1\n", "flights\t0\t1\n", "# offsets\nflights,0,1\n", "etl;flights;0;1\n"])
def test_other_separators_and_comments_are_refused_with_both_accepted_forms(text: str) -> None:
    assert findings(text)[0] == (
        "line 1, 1 column(s); write topic,partition,offset or group,topic,partition,offset, all lines alike, with "
        "commas and without comments"
    )
