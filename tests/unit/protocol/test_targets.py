from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from airflow_kcr.errors import InvalidTarget, ProtocolError
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.observations import LogBounds, LogView, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.scopes import EVERYTHING, Scope
from airflow_kcr.protocol.target_resolution import PlanLine, ignored, resolve
from airflow_kcr.protocol.targets import (
    ByDuration,
    FromFile,
    ShiftBy,
    Situation,
    Target,
    ToCheckpoint,
    ToCurrent,
    ToDatetime,
    ToEarliest,
    ToInitial,
    ToLatest,
    ToOffset,
    ToRun,
    parse_target,
)
from airflow_kcr.protocol.values import MAX_NUMBER, CheckpointNumber, GroupId, GroupPartition, Offset, TopicName

ETL, AUDIT = GroupId("etl"), GroupId("audit")
FLIGHTS, WEATHER = TopicName("flights"), TopicName("weather")
E0, E1 = GroupPartition(ETL, FLIGHTS, 0), GroupPartition(ETL, FLIGHTS, 1)
A0, W0 = GroupPartition(AUDIT, FLIGHTS, 0), GroupPartition(ETL, WEATHER, 0)
PARTITIONS = (A0, E0, E1, W0)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MORNING = datetime(2026, 1, 1, 6, tzinfo=UTC)
ONLY_E0 = Scope(groups=frozenset({ETL}), topics={FLIGHTS: frozenset({0})})

NO_FILLS = SeekMap({})
EXPLICIT, DRAINED = SeekSource.EXPLICIT, SeekSource.DRAINED


def offsets(numbers: Mapping[GroupPartition, int]) -> OffsetMap:
    return OffsetMap({partition: Offset(number) for partition, number in numbers.items()})


def bounds(start: int, end: int) -> LogBounds:
    return LogBounds(start=Offset(start), end=Offset(end))


LOG = LogView(bounds={partition: bounds(100, 200) for partition in PARTITIONS}, read_at=NOW)
UNREAD = LogView(bounds={}, read_at=NOW)
CURRENT = offsets(dict.fromkeys(PARTITIONS, 150))
INITIAL = offsets(dict.fromkeys(PARTITIONS, 110))


def situation(
    *,
    partitions: Collection[GroupPartition] = PARTITIONS,
    current: OffsetMap = CURRENT,
    initial: OffsetMap = INITIAL,
    log: LogView = LOG,
    checkpoint: OffsetMap | None = None,
    fills: SeekMap = NO_FILLS,
) -> Situation:
    """Every log is [100, 200), every position 150, every initial offset 110, but for what a test changes."""
    return Situation(
        partitions=partitions, current=current, initial=initial, log=log, checkpoint=checkpoint, fills=fills
    )


def at(offset: int | None, source: SeekSource, *, clamped_from: int | None = None) -> SeekEntry:
    return SeekEntry(offset=None if offset is None else Offset(offset), source=source, clamped_from=clamped_from)


Lines = Collection[PlanLine]


def seek_of(lines: Lines) -> SeekMap:
    return SeekMap({line.partition: replace(line.entry, current=None) for line in lines})


def entry_of(lines: Lines, partition: GroupPartition) -> SeekEntry:
    return seek_of(lines)[partition]


def unreachable(lines: Lines) -> list[PlanLine]:
    return [line for line in lines if line.unreachable]


ALL_TARGETS: list[Target] = [
    ToCheckpoint(sequence=CheckpointNumber(12)),
    ToInitial(),
    ToRun(dag_id="hourly_checkpoint", run_id="scheduled__2026-01-01T00:00:00+00:00"),
    ToEarliest(),
    ToLatest(),
    ToDatetime(instant=MORNING),
    ByDuration(back=timedelta(hours=6)),
    ShiftBy(by=-10),
    ToOffset(offset=Offset(120)),
    ToCurrent(),
    FromFile(entries=offsets({E0: 120})),
]


class TestValues:
    def test_only_to_current_needs_nothing_but_the_checkpoint(self) -> None:
        assert [t.option for t in ALL_TARGETS if not t.needs_logs] == ["to-current"]

    def test_times_need_the_time_index_and_checkpoints_a_checkpoint(self) -> None:
        by_time = {t.option for t in ALL_TARGETS if t.needs_time}
        stored = {t.option for t in ALL_TARGETS if t.needs_checkpoint}
        assert by_time == {"to-datetime", "by-duration"}
        assert stored == {"to-checkpoint", "to-run"}

    @pytest.mark.parametrize(
        ("make", "why"),
        [
            pytest.param(lambda: ToOffset(offset=Offset(-1)), "between 0 and", id="negative-offset"),
            pytest.param(lambda: ToOffset(offset=Offset(MAX_NUMBER + 1)), "between 0 and", id="offset-too-large"),
            pytest.param(lambda: ToCheckpoint(sequence=CheckpointNumber(-1)), "between 0 and", id="negative-sequence"),
            pytest.param(lambda: ShiftBy(by=-MAX_NUMBER - 1), "between 0 and", id="shift-too-large"),
            pytest.param(lambda: ToDatetime(instant=MORNING.replace(tzinfo=None)), "no zone", id="naive-datetime"),
            pytest.param(lambda: ToDatetime(instant=datetime(1969, 1, 1, tzinfo=UTC)), "before 1970", id="before-1970"),
            pytest.param(lambda: ByDuration(back=timedelta(seconds=-1)), "negative", id="negative-duration"),
            pytest.param(lambda: ToRun(dag_id="", run_id="r"), "DAG/RUN", id="no-dag"),
            pytest.param(lambda: ToRun(dag_id="d", run_id=""), "DAG/RUN", id="no-run"),
            pytest.param(lambda: ToRun(dag_id="a/b", run_id="r"), "DAG/RUN", id="slash-in-dag"),
            pytest.param(lambda: FromFile(entries=OffsetMap()), "no offset", id="empty-file"),
        ],
    )
    def test_what_means_nothing_cannot_be_made(self, make: Callable[[], Target], why: str) -> None:
        with pytest.raises(InvalidTarget, match=why):
            make()

    def test_a_local_time_that_happens_twice_names_the_one_that_was_meant(self) -> None:
        # 02:30 in Berlin, when the clocks went back: Python finds no two zones' times equal there.
        berlin = ZoneInfo("Europe/Berlin")
        first, second = (datetime(2025, 10, 26, 2, 30, fold=fold, tzinfo=berlin) for fold in (0, 1))
        assert ToDatetime(instant=first) == parse_target("to-datetime", "2025-10-26T00:30:00Z")
        assert ToDatetime(instant=second) == parse_target("to-datetime", "2025-10-26T01:30:00Z")


class TestText:
    @pytest.mark.parametrize(
        ("kind", "value", "target"),
        [
            ("to-checkpoint", "12", ToCheckpoint(sequence=CheckpointNumber(12))),
            ("to-initial", None, ToInitial()),
            ("to-run", "hourly/manual__1/2", ToRun(dag_id="hourly", run_id="manual__1/2")),
            ("to-earliest", None, ToEarliest()),
            ("to-latest", None, ToLatest()),
            ("to-datetime", "2026-01-01T07:00:00+01:00", ToDatetime(instant=MORNING)),
            ("by-duration", "PT6H", ByDuration(back=timedelta(hours=6))),
            ("by-duration", "6h", ByDuration(back=timedelta(hours=6))),
            ("shift-by", "-10", ShiftBy(by=-10)),
            ("shift-by", "+10", ShiftBy(by=10)),
            ("to-offset", "9223372036854775807", ToOffset(offset=Offset(MAX_NUMBER))),
            ("to-current", None, ToCurrent()),
        ],
    )
    def test_options_are_read(self, kind: str, value: str | None, target: Target) -> None:
        assert parse_target(kind, value) == target

    @pytest.mark.parametrize(
        ("kind", "value", "why"),
        [
            ("to-newest", None, "not a target: use one of to-checkpoint, to-run"),
            ("to-latest", "5", "has no value"),
            ("to-offset", None, "needs a value"),
            ("to-offset", "-5", "between 0 and"),
            ("to-offset", "latest", "whole number"),
            ("to-offset", "1_000", "whole number"),
            ("to-offset", "\N{ARABIC-INDIC DIGIT FIVE}", "whole number"),
            ("to-offset", "9" * 5000, "at most 9223372036854775807"),
            ("to-offset", "99999999999999999999999", "at most 9223372036854775807"),
            ("to-checkpoint", "99999999999999999999999", "at most 9223372036854775807"),
            ("shift-by", "-99999999999999999999999", "at most 9223372036854775807"),
            ("shift-by", "ten", "whole number"),
            ("shift-by", "-", "whole number"),
            ("to-run", "hourly", "DAG/RUN"),
            ("to-datetime", "2026-01-01T00:00:00", "no zone"),
            ("by-duration", "P1M", "--by-duration: .*months"),
            ("from-file", "offsets.csv", "--from-file: the offsets file can't be used"),
        ],
    )
    def test_what_cannot_be_read_says_why(self, kind: str, value: str | None, why: str) -> None:
        with pytest.raises(InvalidTarget, match=why):
            parse_target(kind, value)

    def test_a_target_describes_itself_by_option_and_value(self) -> None:
        assert [str(target) for target in ALL_TARGETS] == [
            "to-checkpoint 12",
            "to-initial",
            "to-run hourly_checkpoint/scheduled__2026-01-01T00:00:00+00:00",
            "to-earliest",
            "to-latest",
            "to-datetime 2026-01-01T06:00:00Z",
            "by-duration PT6H",
            "shift-by -10",
            "to-offset 120",
            "to-current",
            "from-file of 1 partition(s)",
        ]


class TestDocument:
    @pytest.mark.parametrize("target", ALL_TARGETS, ids=str)
    def test_what_is_written_is_read_back(self, target: Target) -> None:
        document = json.loads(json.dumps(documents.write(target, Target)))
        assert documents.read(document, Target) == target == Target.from_text(target.text)

    @pytest.mark.parametrize("number", [999, 1000, 1_234_567, 2**31, MAX_NUMBER])
    def test_large_numbers_stay_plain_digits(self, number: int) -> None:
        target = ToCheckpoint(sequence=CheckpointNumber(number))
        assert documents.write(target, Target) == f"to-checkpoint {number}"
        assert documents.read(f"to-checkpoint {number}", Target) == target

    def test_a_target_is_its_text(self) -> None:
        assert documents.write(FromFile(entries=offsets({E0: 5})), Target) == "from-file etl,flights,0,5\n"
        assert documents.write(ByDuration(back=timedelta(days=1)), Target) == "by-duration P1D"
        assert documents.write(ToLatest(), Target) == "to-latest"

    @pytest.mark.parametrize(
        "document",
        [
            None,
            [],
            {},
            {"kind": "to-latest"},
            "",
            "to-newest",
            "to-latest 5",
            "to-offset",
            "to-offset ",
            "to-offset -5",
            "to-offset 5 1",
            "to-datetime PT5M",
            "by-duration 5",
            "by-duration P1M",
            "from-file",
            "from-file ",
            "from-file etl,flights,0",
            "from-file flights,0,1",
            "from-file etl,flights,0,-1",
            "from-file etl,flights,0,1\netl,flights,0,1",
        ],
    )
    def test_what_was_not_written_by_us_is_refused(self, document: object) -> None:
        with pytest.raises((InvalidTarget, ValueError)):
            documents.read(document, Target)


class TestLogTargets:
    def test_earliest_is_the_log_start(self) -> None:
        found = resolve(ToEarliest(), EVERYTHING, situation())
        assert seek_of(found) == dict.fromkeys(PARTITIONS, at(100, EXPLICIT))

    def test_latest_is_the_end(self) -> None:
        found = resolve(ToLatest(), EVERYTHING, situation())
        assert seek_of(found) == dict.fromkeys(PARTITIONS, at(200, EXPLICIT))

    @pytest.mark.parametrize(
        ("by", "entry"),
        [
            (-20, at(130, EXPLICIT)),
            (20, at(170, EXPLICIT)),
            (0, at(150, EXPLICIT)),
            (-50, at(100, EXPLICIT)),
            (-51, at(100, EXPLICIT, clamped_from=99)),
            (-1000, at(100, EXPLICIT, clamped_from=-850)),
            (51, at(200, EXPLICIT, clamped_from=201)),
            (MAX_NUMBER, at(200, EXPLICIT, clamped_from=MAX_NUMBER)),
        ],
    )
    def test_a_shift_is_relative_to_the_position_and_clamped(self, by: int, entry: SeekEntry) -> None:
        assert entry_of(resolve(ShiftBy(by=by), EVERYTHING, situation()), E0) == entry

    def test_a_partition_never_claimed_is_shifted_from_its_initial_offset(self) -> None:
        found = resolve(ShiftBy(by=5), ONLY_E0, situation(current=offsets({E1: 150})))
        assert entry_of(found, E0) == at(115, EXPLICIT)

    def test_what_has_no_position_cannot_be_shifted(self) -> None:
        nowhere = situation(current=OffsetMap(), initial=OffsetMap())
        with pytest.raises(InvalidTarget, match="etl:flights-0 has no position in this log"):
            resolve(ShiftBy(by=5), ONLY_E0, nowhere)

    @pytest.mark.parametrize(
        ("asked", "entry"),
        [
            (120, at(120, EXPLICIT)),
            (100, at(100, EXPLICIT)),
            (200, at(200, EXPLICIT)),
            (5, at(100, EXPLICIT, clamped_from=5)),
            (500, at(200, EXPLICIT, clamped_from=500)),
        ],
    )
    def test_an_offset_is_clamped_into_each_log(self, asked: int, entry: SeekEntry) -> None:
        assert entry_of(resolve(ToOffset(offset=Offset(asked)), EVERYTHING, situation()), E0) == entry

    def test_current_is_the_position_and_needs_no_log(self) -> None:
        found = resolve(ToCurrent(), EVERYTHING, situation(log=UNREAD))
        assert seek_of(found) == dict.fromkeys(PARTITIONS, at(150, EXPLICIT))
        assert unreachable(found) == []

    @pytest.mark.parametrize("target", [ToEarliest(), ToLatest(), ShiftBy(by=1), ToOffset(offset=Offset(1))])
    def test_a_log_that_was_not_read_is_an_error_and_no_guess(self, target: Target) -> None:
        with pytest.raises(KeyError):
            resolve(target, EVERYTHING, situation(log=UNREAD))


class TestTimeTargets:
    @staticmethod
    def _with_times(answers: Mapping[GroupPartition, int | None]) -> Situation:
        found = {p: TimeAnswer(offset=None if o is None else Offset(o)) for p, o in answers.items()}
        return situation(log=replace(LOG, answers=found))

    @pytest.mark.parametrize("target", [ToDatetime(instant=MORNING), ByDuration(back=timedelta(hours=6))])
    def test_a_time_is_the_first_record_at_or_after_it(self, target: Target) -> None:
        found = resolve(target, ONLY_E0, self._with_times({E0: 130}))
        assert entry_of(found, E0) == at(130, EXPLICIT)

    @pytest.mark.parametrize("target", [ToDatetime(instant=MORNING), ByDuration(back=timedelta(hours=6))])
    def test_a_time_with_nothing_at_or_after_it_is_the_end(self, target: Target) -> None:
        found = resolve(target, ONLY_E0, self._with_times({E0: None}))
        assert entry_of(found, E0) == at(200, EXPLICIT)

    def test_retention_between_the_two_reads_is_clamped_and_marked(self) -> None:
        found = resolve(ToDatetime(instant=MORNING), ONLY_E0, self._with_times({E0: 90}))
        assert entry_of(found, E0) == at(100, EXPLICIT, clamped_from=90)

    def test_the_future_is_refused_and_now_is_not_the_future(self) -> None:
        with pytest.raises(InvalidTarget, match=r"is in the future; it is 2026-01-01T12:00:00Z now"):
            ToDatetime(instant=NOW + timedelta(microseconds=1)).time_needed(NOW)
        with pytest.raises(InvalidTarget, match="is in the future"):
            resolve(ToDatetime(instant=NOW + timedelta(days=1)), EVERYTHING, situation())
        assert ToDatetime(instant=NOW).time_needed(NOW) == NOW

    def test_one_instant_is_looked_up_and_only_for_times(self) -> None:
        needed = {target.option: target.time_needed(NOW) for target in ALL_TARGETS}
        assert {kind for kind, instant in needed.items() if instant is not None} == {
            "to-datetime",
            "by-duration",
        }
        assert needed["to-datetime"] == needed["by-duration"] == MORNING


class TestCheckpointTargets:
    @pytest.mark.parametrize("target", [ToCheckpoint(sequence=CheckpointNumber(7)), ToRun(dag_id="d", run_id="r")])
    def test_a_checkpoint_is_its_merge(self, target: Target) -> None:
        merged = offsets({A0: 120, E0: 121, E1: 122, W0: 123})
        found = resolve(target, EVERYTHING, situation(checkpoint=merged))
        assert seek_of(found).offsets == merged
        assert {entry.source for entry in seek_of(found).values()} == {SeekSource.MERGED}

    def test_a_partition_that_it_lacks_goes_to_its_initial_offset_and_does_not_stay(self) -> None:
        found = resolve(
            ToCheckpoint(sequence=CheckpointNumber(7)), EVERYTHING, situation(checkpoint=offsets({E0: 120}))
        )
        assert entry_of(found, E1) == at(110, SeekSource.INITIAL)

    def test_without_an_initial_offset_the_entry_stays_open_for_the_first_owner(self) -> None:
        given = situation(checkpoint=offsets({E0: 120}), initial=OffsetMap())
        found = resolve(ToCheckpoint(sequence=CheckpointNumber(7)), EVERYTHING, given)
        assert entry_of(found, E1) == at(None, SeekSource.START_POSITION)

    def test_gaps_of_an_incomplete_one_are_filled_before_the_initial_offsets(self) -> None:
        fills = SeekMap({E0: at(1, SeekSource.COMMITTED), E1: at(115, SeekSource.PREVIOUS_CHECKPOINT)})
        given = situation(checkpoint=offsets({E0: 120}), fills=fills)
        found = resolve(ToCheckpoint(sequence=CheckpointNumber(7)), EVERYTHING, given)
        assert entry_of(found, E0) == at(120, SeekSource.MERGED)
        assert entry_of(found, E1) == at(115, SeekSource.PREVIOUS_CHECKPOINT)
        assert entry_of(found, W0) == at(110, SeekSource.INITIAL)

    def test_a_checkpoint_that_nobody_gave_is_an_error_and_not_an_empty_one(self) -> None:
        with pytest.raises(ProtocolError, match="to-checkpoint 7 can't be resolved"):
            resolve(ToCheckpoint(sequence=CheckpointNumber(7)), EVERYTHING, situation())

    def test_what_retention_overtook_is_reported_and_not_clamped(self) -> None:
        given = situation(checkpoint=offsets({A0: 120, E0: 99, E1: 201, W0: 100}))
        found = resolve(ToCheckpoint(sequence=CheckpointNumber(7)), EVERYTHING, given)
        assert [(u.partition, u.target) for u in unreachable(found)] == [(E0, 99), (E1, 201)]
        assert entry_of(found, E0) == at(99, SeekSource.MERGED)
        assert unreachable(found)[0].loss == "etl:flights-0 would resume at 99, its log has 100 to 200"

    def test_the_loss_is_accepted_by_asking_for_the_same_by_a_file_and_is_then_marked(self) -> None:
        given = situation(checkpoint=offsets({A0: 120, E0: 99, E1: 201, W0: 100}))
        lost = resolve(ToCheckpoint(sequence=CheckpointNumber(7)), EVERYTHING, given)
        accepted = resolve(FromFile(entries=seek_of(lost).offsets), EVERYTHING, given)
        assert unreachable(accepted) == []
        assert entry_of(accepted, E0) == at(100, SeekSource.EXPLICIT, clamped_from=99)
        assert entry_of(accepted, E1) == at(200, SeekSource.EXPLICIT, clamped_from=201)
        assert entry_of(accepted, W0) == at(100, SeekSource.EXPLICIT)

    def test_what_is_unreachable_out_of_scope_is_none_of_the_targets_business(self) -> None:
        given = situation(checkpoint=offsets({E0: 120, E1: 1}), current=offsets(dict.fromkeys(PARTITIONS, 1)))
        assert unreachable(resolve(ToCheckpoint(sequence=CheckpointNumber(7)), ONLY_E0, given)) == []

    def test_partitions_that_left_the_region_are_listed_and_ignored(self) -> None:
        gone = E0._replace(partition=9)
        given = situation(checkpoint=offsets({E0: 120, gone: 5}))
        found = resolve(ToCheckpoint(sequence=CheckpointNumber(7)), EVERYTHING, given)
        assert ignored(EVERYTHING, given) == (gone,)
        assert gone not in seek_of(found)

    def test_partitions_that_left_are_not_listed_where_they_are_out_of_scope(self) -> None:
        gone = W0._replace(partition=9)
        given = situation(checkpoint=offsets({E0: 120, gone: 5}))
        assert ignored(ONLY_E0, given) == ()

    def test_initial_is_every_partitions_own_and_may_be_overtaken(self) -> None:
        found = resolve(ToInitial(), EVERYTHING, situation(initial=offsets({A0: 110, E0: 50})))
        assert entry_of(found, A0) == at(110, SeekSource.INITIAL)
        assert entry_of(found, E1) == at(None, SeekSource.START_POSITION)
        assert [u.partition for u in unreachable(found)] == [E0]


class TestFromFile:
    def test_entries_are_clamped_and_all_others_keep_their_position(self) -> None:
        found = resolve(FromFile(entries=offsets({E0: 120, E1: 5})), EVERYTHING, situation())
        assert entry_of(found, E0) == at(120, EXPLICIT)
        assert entry_of(found, E1) == at(100, EXPLICIT, clamped_from=5)
        assert entry_of(found, W0) == entry_of(found, A0) == at(150, DRAINED)

    def test_an_entry_that_the_region_does_not_have_is_refused(self) -> None:
        strange = offsets({E0: 120, E0._replace(partition=9): 5})
        with pytest.raises(InvalidTarget, match="etl:flights-9, which the region does not have; nothing was used"):
            resolve(FromFile(entries=strange), EVERYTHING, situation())

    def test_an_entry_out_of_scope_is_refused(self) -> None:
        with pytest.raises(InvalidTarget, match="names etl:flights-1, out of the scope --group etl --topic flights:0"):
            resolve(FromFile(entries=offsets({E0: 120, E1: 5})), ONLY_E0, situation())


class TestPlan:
    @pytest.mark.parametrize(
        "target", [ToInitial(), ToEarliest(), ToLatest(), ShiftBy(by=-10), ToOffset(offset=Offset(120)), ToCurrent()]
    )
    def test_out_of_scope_keeps_the_position_of_the_drain(self, target: Target) -> None:
        found = resolve(target, ONLY_E0, situation())
        assert {p: e for p, e in seek_of(found).items() if p != E0} == dict.fromkeys((A0, E1, W0), at(150, DRAINED))
        assert entry_of(found, E0).source is not DRAINED

    def test_out_of_scope_and_never_claimed_goes_to_its_initial_offset(self) -> None:
        found = resolve(ToEarliest(), ONLY_E0, situation(current=offsets({E0: 150})))
        assert entry_of(found, E1) == at(110, SeekSource.INITIAL)

    def test_replay_counts_what_is_processed_again_and_negative_what_is_skipped(self) -> None:
        given = situation(current=offsets({A0: 150, E0: 180, E1: 100}), initial=OffsetMap())
        found = resolve(ToOffset(offset=Offset(120)), Scope(groups=frozenset({ETL}), topics={FLIGHTS: None}), given)
        lines = {line.partition: (line.current, line.replay, line.in_scope) for line in found}
        assert lines == {
            A0: (150, 0, False),
            E0: (180, 60, True),
            E1: (100, 0, True),
            W0: (None, None, False),
        }

    def test_entries_are_in_the_order_of_the_partitions(self) -> None:
        found = resolve(ToLatest(), EVERYTHING, situation(partitions=frozenset(PARTITIONS)))
        assert [line.partition for line in found] == sorted(PARTITIONS)

    def test_a_scope_that_matches_nothing_is_refused(self) -> None:
        with pytest.raises(InvalidTarget, match="topic typo"):
            resolve(ToLatest(), Scope(topics={TopicName("typo"): None}), situation())
