from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.observations import LogBounds, LogView, TimeAnswer
from airflow_kcr.protocol.offsets import SeekEntry, SeekSource
from airflow_kcr.protocol.rules import COMMITTED, EARLIEST, LATEST, StartPosition, parse_start
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName

PARTITION = GroupPartition(GroupId("etl"), TopicName("flights"), 3)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MORNING = datetime(2026, 1, 1, 6, tzinfo=UTC)
AT_MORNING = StartPosition(kind="timestamp", instant=MORNING)
SIX_HOURS = StartPosition(kind="duration", back=timedelta(hours=6))
ALL: list[StartPosition] = [EARLIEST, LATEST, COMMITTED, AT_MORNING, SIX_HOURS]


def view(*, committed: int | None = None, found: int | None = None) -> LogView:
    return LogView(
        bounds={PARTITION: LogBounds(start=Offset(100), end=Offset(200))},
        committed={} if committed is None else {PARTITION: Offset(committed)},
        answers={PARTITION: TimeAnswer(offset=None if found is None else Offset(found))},
        read_at=NOW,
    )


def entry(offset: int, *, clamped_from: int | None = None) -> SeekEntry:
    return SeekEntry(offset=Offset(offset), source=SeekSource.START_POSITION, clamped_from=clamped_from)


class TestText:
    @pytest.mark.parametrize(
        ("text", "start"),
        [
            ("earliest", EARLIEST),
            ("latest", LATEST),
            ("committed", COMMITTED),
            ("timestamp:2026-01-01T06:00:00Z", AT_MORNING),
            ("timestamp:2026-01-01T07:00:00+01:00", AT_MORNING),
            ("duration:PT6H", SIX_HOURS),
            ("duration:6h", SIX_HOURS),
        ],
    )
    def test_the_five_forms_are_read(self, text: str, start: StartPosition) -> None:
        assert parse_start(text) == start

    @pytest.mark.parametrize("start", ALL)
    def test_what_is_written_is_read_back(self, start: StartPosition) -> None:
        assert parse_start(start.text) == start

    def test_the_written_form_is_canonical(self) -> None:
        assert [start.text for start in ALL] == [
            "earliest",
            "latest",
            "committed",
            "timestamp:2026-01-01T06:00:00Z",
            "duration:PT6H",
        ]

    @pytest.mark.parametrize("text", ["42", "-1", "offset:42", "offset"])
    def test_an_offset_is_never_a_start_position(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="is an offset, which is never a start position"):
            parse_start(text)

    @pytest.mark.parametrize(
        "text", ["", "oldest", "Earliest", "earliest:", "latest:5m", "timestamp", "duration", "6h"]
    )
    def test_other_words_are_refused_with_what_is_accepted(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="is not a start position: use earliest, latest, committed"):
            parse_start(text)

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("timestamp:2026-01-01T00:00:00", "no zone"),
            ("timestamp:yesterday", "is not a time"),
            ("timestamp:1960-01-01T00:00:00Z", "before 1970"),
            ("duration:P1M", "months"),
            ("duration:-6h", "negative"),
        ],
    )
    def test_a_bad_value_says_what_is_bad_about_it(self, text: str, why: str) -> None:
        with pytest.raises(ConfigurationError, match=why):
            parse_start(text)


class TestValues:
    def test_cannot_be_made_of_what_means_nothing(self) -> None:
        with pytest.raises(ConfigurationError, match="no zone"):
            StartPosition(kind="timestamp", instant=MORNING.replace(tzinfo=None))
        with pytest.raises(ConfigurationError, match="negative"):
            StartPosition(kind="duration", back=timedelta(seconds=-1))

    def test_a_local_time_that_happens_twice_names_the_one_that_was_meant(self) -> None:
        # 02:30 in Berlin, when the clocks went back: Python finds no two zones' times equal there.
        berlin = ZoneInfo("Europe/Berlin")
        first, second = (datetime(2025, 10, 26, 2, 30, fold=fold, tzinfo=berlin) for fold in (0, 1))
        assert StartPosition(kind="timestamp", instant=first) == parse_start("timestamp:2025-10-26T00:30:00Z")
        assert StartPosition(kind="timestamp", instant=second) == parse_start("timestamp:2025-10-26T01:30:00Z")

    def test_do_not_change(self) -> None:
        with pytest.raises(FrozenInstanceError):
            SIX_HOURS.back = timedelta(0)  # type: ignore[misc]


class TestResolution:
    def test_earliest_is_the_log_start(self) -> None:
        assert EARLIEST.entry(PARTITION, view()) == entry(100)

    def test_latest_is_the_end(self) -> None:
        assert LATEST.entry(PARTITION, view()) == entry(200)

    def test_committed_is_what_kafka_has_for_the_group(self) -> None:
        assert COMMITTED.entry(PARTITION, view(committed=150)) == entry(150)

    def test_committed_is_the_earliest_where_nothing_was_committed(self) -> None:
        assert COMMITTED.entry(PARTITION, view()) == entry(100)

    @pytest.mark.parametrize(("committed", "offset"), [(99, 100), (0, 100), (201, 200)])
    def test_committed_outside_of_the_log_is_clamped_and_marked(self, committed: int, offset: int) -> None:
        assert COMMITTED.entry(PARTITION, view(committed=committed)) == entry(offset, clamped_from=committed)

    @pytest.mark.parametrize("committed", [100, 200])
    def test_committed_at_either_end_of_the_log_is_inside(self, committed: int) -> None:
        assert COMMITTED.entry(PARTITION, view(committed=committed)) == entry(committed)

    @pytest.mark.parametrize("start", [AT_MORNING, SIX_HOURS])
    def test_a_time_is_the_first_record_at_or_after_it(self, start: StartPosition) -> None:
        assert start.entry(PARTITION, view(found=140)) == entry(140)

    @pytest.mark.parametrize("start", [AT_MORNING, SIX_HOURS])
    def test_a_time_with_nothing_at_or_after_it_is_the_end(self, start: StartPosition) -> None:
        assert start.entry(PARTITION, view(found=None)) == entry(200)

    def test_a_time_index_that_is_behind_the_log_start_is_clamped_and_marked(self) -> None:
        assert AT_MORNING.entry(PARTITION, view(found=90)) == entry(100, clamped_from=90)

    @pytest.mark.parametrize("start", ALL)
    def test_a_log_that_was_not_read_is_an_error_and_no_guess(self, start: StartPosition) -> None:
        other = PARTITION._replace(partition=4)
        with pytest.raises(KeyError):
            start.entry(other, view(found=140))


class TestTimeNeeded:
    @pytest.mark.parametrize("start", [EARLIEST, LATEST, COMMITTED])
    def test_no_lookup_without_a_time(self, start: StartPosition) -> None:
        assert start.time_needed(NOW) is None

    @pytest.mark.parametrize("start", [AT_MORNING, SIX_HOURS])
    def test_the_instant_is_the_one_that_is_resolved(self, start: StartPosition) -> None:
        assert start.time_needed(NOW) == MORNING

    def test_the_instant_is_in_utc_whatever_zone_was_given(self) -> None:
        local = StartPosition(kind="timestamp", instant=MORNING.astimezone(timezone(timedelta(hours=2))))
        needed = local.time_needed(NOW)
        assert needed is not None
        assert needed.utcoffset() == timedelta(0)
