from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_kcr.errors import InvalidTarget
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.observations import LogBounds, LogView, TimeAnswer
from airflow_kcr.protocol.offsets import OffsetMap, SeekMap, SeekSource, read_offsets, write_offsets
from airflow_kcr.protocol.rules import COMMITTED, EARLIEST, LATEST, StartPosition, parse_start
from airflow_kcr.protocol.scopes import Scope, parse_scope
from airflow_kcr.protocol.target_resolution import resolve
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
)
from airflow_kcr.protocol.values import (
    EPOCH_START,
    MAX_NUMBER,
    CheckpointNumber,
    GroupId,
    GroupPartition,
    Offset,
    TopicName,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
PARTITIONS = [GroupPartition(GroupId(g), TopicName(t), n) for g in "gh" for t in "tu" for n in (0, 1)]

numbers = st.integers(0, MAX_NUMBER)
small = st.integers(0, 50).map(Offset)
durations = st.timedeltas(min_value=timedelta(0))

# Local times, as the strategy wants its limits; at least a day inside of what every zone can say in UTC.
FIRST, LAST = (EPOCH_START.replace(tzinfo=None) + timedelta(days=days) for days in (1, 365 * 7_900))
instants = st.datetimes(min_value=FIRST, max_value=LAST, timezones=st.timezones())
past = st.datetimes(min_value=FIRST, max_value=NOW.replace(tzinfo=None) - timedelta(days=1), timezones=st.timezones())
offset_maps = st.dictionaries(st.sampled_from(PARTITIONS), small).map(OffsetMap)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
scopes = st.builds(
    Scope,
    groups=st.frozensets(st.sampled_from([GroupId("g"), GroupId("h")])),
    topics=st.dictionaries(
        st.sampled_from([TopicName("t"), TopicName("u")]),
        st.none() | st.frozensets(st.integers(0, 1), min_size=1),
    ),
)
starts: st.SearchStrategy[StartPosition] = st.one_of(
    st.sampled_from([EARLIEST, LATEST, COMMITTED]),
    st.builds(StartPosition, kind=st.just("timestamp"), instant=past),
    st.builds(StartPosition, kind=st.just("duration"), back=durations),
)
targets: st.SearchStrategy[Target] = st.one_of(
    st.sampled_from([ToInitial(), ToEarliest(), ToLatest(), ToCurrent()]),
    st.builds(ToCheckpoint, sequence=numbers.map(CheckpointNumber)),
    st.builds(ToRun, dag_id=texts.filter(lambda text: "/" not in text), run_id=texts),
    st.builds(ToDatetime, instant=past),
    st.builds(ByDuration, back=durations),
    st.builds(ShiftBy, by=st.integers(-MAX_NUMBER, MAX_NUMBER) | st.integers(-60, 60)),
    st.builds(ToOffset, offset=numbers.map(Offset) | small),
    st.builds(FromFile, entries=offset_maps.filter(bool)),
)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    begins, widths = draw(st.lists(small, min_size=8, max_size=8)), draw(st.lists(small, min_size=8, max_size=8))
    partitions = draw(st.sets(st.sampled_from(PARTITIONS), min_size=1))
    bounds = {
        partition: LogBounds(start=begin, end=Offset(begin + width))
        for partition, begin, width in zip(PARTITIONS, begins, widths, strict=True)
    }
    found = draw(offset_maps)
    answers = {partition: TimeAnswer(offset=found.get(partition)) for partition in PARTITIONS}
    return Situation(
        partitions=partitions,
        current=draw(offset_maps).restrict(partitions),
        initial=draw(offset_maps).restrict(partitions),
        log=LogView(bounds=bounds, committed=draw(offset_maps), answers=answers, read_at=NOW),
        checkpoint=draw(offset_maps),
    )


@given(targets, scopes, situations())
def test_a_seek_map_is_total_and_out_of_scope_nothing_moves(target: Target, scope: Scope, situation: Situation) -> None:
    try:
        found = resolve(target, scope, situation)
    except InvalidTarget:
        assume(False)
        raise
    seek = SeekMap({line.partition: line.entry for line in found})
    assert seek.keys() == set(situation.partitions)
    # Open are only those that no member has ever been on.
    assert all(p not in situation.initial for p in seek.open)
    for partition, entry in seek.items():
        if partition not in scope and partition in situation.current:
            assert (entry.offset, entry.source) == (situation.current[partition], SeekSource.DRAINED)
        if partition in scope and not isinstance(target, FromFile):
            assert entry.source is not SeekSource.DRAINED


@given(targets, scopes, situations())
def test_in_scope_every_entry_is_in_its_log_or_reported(target: Target, scope: Scope, situation: Situation) -> None:
    try:
        found = resolve(target, scope, situation)
    except InvalidTarget:
        assume(False)
        raise
    lost = {u.partition for u in found if u.unreachable}
    for line in found:
        offset = line.entry.offset
        if not line.in_scope or offset is None:
            assert line.partition not in lost
            continue
        assert (offset in situation.log.bounds[line.partition]) is (line.partition not in lost)
        assert line.entry.clamped_from is None or line.entry.clamped_from not in situation.log.bounds[line.partition]
    # Asked for by a file, what is lost is clamped, and marked.
    asked = OffsetMap({n.partition: n.entry.offset for n in found if n.in_scope and n.entry.offset is not None})
    assume(asked)
    for line in resolve(FromFile(entries=asked), scope, situation):
        offset = line.entry.offset
        if line.partition in asked:
            assert offset is not None
            assert offset in situation.log.bounds[line.partition]
            assert (line.partition in lost) is (line.entry.clamped_from is not None)


@given(scopes, situations())
def test_a_scope_selects_what_it_contains_or_is_refused(scope: Scope, situation: Situation) -> None:
    contained = {partition for partition in situation.partitions if partition in scope}
    parts = [{p for p in contained if p.group == group} for group in scope.groups]
    for topic, listed in scope.topics.items():
        of_topic = {p for p in contained if p.topic == topic}
        parts += [of_topic] if listed is None else [{p for p in of_topic if p.partition == n} for n in listed]
    try:
        selected = scope.select(situation.partitions)
    except InvalidTarget:
        assert not contained or not all(parts)
    else:
        assert selected == contained
        assert contained
        assert all(parts)


@given(starts, situations())
def test_a_start_position_always_lies_in_the_log(start: StartPosition, situation: Situation) -> None:
    for partition in situation.partitions:
        entry = start.entry(partition, situation.log)
        assert entry.source is SeekSource.START_POSITION
        assert entry.offset is not None
        assert entry.offset in situation.log.bounds[partition]


@given(targets)
def test_a_stored_target_is_read_back(target: Target) -> None:
    assert documents.read(json.loads(json.dumps(documents.write(target, Target))), Target) == target


@given(scopes)
def test_a_stored_scope_is_read_back_and_so_are_its_options(scope: Scope) -> None:
    assert documents.read(json.loads(json.dumps(documents.write(scope, Scope))), Scope) == scope
    words = iter(str(scope).split()) if scope != Scope() else iter(())
    options = list(zip(words, words, strict=True))
    groups, topics = ([value for option, value in options if option == name] for name in ("--group", "--topic"))
    assert parse_scope(groups, topics) == scope


@given(starts)
def test_the_text_of_a_start_position_is_read_back(start: StartPosition) -> None:
    assert parse_start(start.text) == start


@given(durations)
def test_the_text_of_a_duration_is_read_back(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(st.integers(0, 10**9), st.sampled_from([("w", 604800), ("d", 86400), ("h", 3600), ("m", 60), ("s", 1)]))
def test_both_forms_of_a_duration_mean_the_same(count: int, unit: tuple[str, int]) -> None:
    name, seconds = unit
    assume(count * seconds < 10**13)
    iso = f"P{count}{name.upper()}" if name in "wd" else f"PT{count}{name.upper()}"
    assert parse_duration(f"{count}{name}") == parse_duration(iso) == timedelta(seconds=count * seconds)


@given(instants)
def test_the_text_of_an_instant_is_read_back(instant: datetime) -> None:
    # In UTC: Python never finds a local time that happens twice, or never, equal to one of another zone.
    assert parse_instant(format_instant(instant)) == instant.astimezone(UTC)
    assert parse_instant(instant.isoformat()) == instant.astimezone(UTC)


odd_groups = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8).map(GroupId)


@given(
    st.dictionaries(
        st.builds(
            GroupPartition,
            group=odd_groups,
            topic=st.sampled_from([TopicName("t"), TopicName("a.b_c-D")]),
            partition=st.integers(0, 2**31 - 1),
        ),
        numbers.map(Offset),
        min_size=1,
    )
)
def test_what_is_written_as_csv_is_read_back(given_: dict[GroupPartition, Offset]) -> None:
    offsets = OffsetMap(given_)
    assert read_offsets(write_offsets(offsets), partitions=given_.keys()) == offsets
    assert read_offsets(write_offsets(offsets, with_group=True), partitions=given_.keys()) == offsets
