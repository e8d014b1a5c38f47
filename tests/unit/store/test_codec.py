"""Every value that is stored as JSON comes back as it was, whatever is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, NamedTuple, NewType, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_kcr.errors import StoreError
from airflow_kcr.protocol.documents import codec_of, storable, write
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.events import BODIES
from airflow_kcr.protocol.region.rows import Halt, Requester
from airflow_kcr.protocol.scopes import EVERYTHING, Scope, parse_scope
from airflow_kcr.protocol.targets import (
    ByDuration,
    FromFile,
    ShiftBy,
    Target,
    ToCheckpoint,
    ToDatetime,
    ToInitial,
    ToRun,
)
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, MemberId, Offset, Range, TopicName
from airflow_kcr.store.codec import event_from_json, from_json

# What a group id may be: printable, no space at either end; JSON must not mind the rest.
names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
numbers = st.integers(0, 2**63 - 1)
instants = st.datetimes(min_value=datetime(1970, 1, 2), timezones=st.just(UTC))  # noqa: DTZ001 (the zone is beside it)
partitions = st.builds(GroupPartition, names.map(GroupId), names.map(TopicName), st.integers(0, 2**31 - 1))
offset_maps = st.dictionaries(partitions, numbers, max_size=5).map(OffsetMap)  # type: ignore[arg-type]
entries = st.builds(
    SeekEntry,
    offset=st.none() | numbers.map(Offset),
    source=st.sampled_from(SeekSource),
    current=st.none() | numbers.map(Offset),
    clamped_from=st.none() | st.integers(-(2**62), 2**62),
)
targets: st.SearchStrategy[Target] = st.one_of(
    st.just(ToInitial()),
    numbers.map(lambda n: ToCheckpoint(sequence=CheckpointNumber(n))),
    st.integers(-(2**62), 2**62).map(lambda n: ShiftBy(by=n)),
    instants.map(lambda i: ToDatetime(instant=i)),
    st.timedeltas(timedelta(0), timedelta(days=400)).map(lambda d: ByDuration(back=d)),
    offset_maps.filter(bool).map(lambda m: FromFile(entries=m)),
    st.just(ToRun(dag_id="d", run_id="r/1")),
)


def values_of(hint: object) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type hint, as the codec reads them."""
    plain = hint.__supertype__ if isinstance(hint, NewType) else hint
    known: dict[object, st.SearchStrategy[Any]] = {
        str: texts,
        int: numbers,
        bool: st.booleans(),
        datetime: instants,
        timedelta: st.timedeltas(timedelta(0), timedelta(days=9999)),
        OffsetMap: offset_maps,
        SeekMap: st.dictionaries(partitions, entries, max_size=4).map(SeekMap),
        GroupPartition: partitions,
        MemberId: st.builds(MemberId, names.map(GroupId), st.integers(0, 99)),
        Range: st.builds(Range, numbers.map(Offset), numbers.map(Offset)),
        Target: targets,
        Scope: st.just(EVERYTHING) | st.just(parse_scope(["g"], ["t:0,1", "u"])),
    }
    if plain in known:
        return known[plain]
    origin, arguments = get_origin(plain), get_args(plain)
    if origin in {Union, UnionType}:
        return st.none() | values_of(next(a for a in arguments if a is not NoneType))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=4).map(tuple)
    if origin is frozenset:
        return st.frozensets(values_of(arguments[0]), max_size=4)
    if origin is Mapping:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if isinstance(plain, type) and hasattr(plain, "__members__"):
        return st.sampled_from(plain)
    if isinstance(plain, type):
        hints = get_type_hints(plain)
        return st.builds(plain, **{f.name: values_of(hints[f.name]) for f in fields(plain)})
    raise AssertionError(hint)


def through_text(document: object) -> object:
    """Return a document as Postgres gives it back: through its text, the order of keys not kept."""
    return json.loads(json.dumps(document, sort_keys=True))


def comparable(value: events.Body) -> dict[str, object]:
    """Return an event's fields; seek maps, which know no equality, as dicts."""
    held = {f.name: getattr(value, f.name) for f in fields(value)}
    return {name: dict(v) if isinstance(v, SeekMap) else v for name, v in held.items()}


@pytest.mark.parametrize("kind", sorted(BODIES))
def test_every_event_comes_back_as_it_was(kind: str) -> None:
    body = BODIES[kind]

    @settings(max_examples=30)  # the kinds are many, and have their fields' types in common
    @given(values_of(body))
    def check(value: events.Body) -> None:
        read = event_from_json(kind, through_text(write(value, body)))
        assert type(read) is body
        assert comparable(read) == comparable(value)

    check()


@pytest.mark.parametrize("hint", [Requester, Halt, LogBounds, Target, Scope, tuple[CheckpointNumber, ...]])
def test_the_documents_of_rows_come_back_as_they_were(hint: Any) -> None:  # noqa: ANN401
    @given(values_of(hint))
    def check(value: object) -> None:
        assert from_json(through_text(write(value, hint)), hint) == value

    check()


def test_what_is_at_its_default_is_left_out() -> None:
    assert write(Requester(who="me"), Requester) == {"who": "me"}
    assert write(LogBounds(start=Offset(1), end=Offset(2)), LogBounds) == {"start": 1, "end": 2}


def test_a_stored_text_is_one_that_postgres_takes() -> None:
    assert storable("a\0b\ud800c") == "a�b?c"
    assert storable("grüße\n☃") == "grüße\n☃"


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("NoSuchEvent", {}),
        ("CheckpointPublished", {}),
        ("CheckpointPublished", {"sequence": "1", "member": None}),
        ("CheckpointPublished", {"sequence": True, "member": None}),
        ("CheckpointPublished", {"sequence": 1, "member": None, "more": 2}),
        ("CheckpointPublished", [1]),
        ("DesiredStateChanged", {"desired_state": "sideways", "requester": {}}),
        ("BoundaryStored", {"boundary": "2026-01-01T00:00:00", "offsets": {}, "inexact": {}}),
        ("BoundaryStored", {"boundary": 7, "offsets": {}, "inexact": {}}),
        ("Skipped", {"offsets": {"g": {"t": {"x": 1}}}}),
        ("Skipped", {"offsets": {"g": {"t": {"0": -1}}}}),
    ],
)
def test_what_was_not_written_here_is_refused(kind: str, document: object) -> None:
    with pytest.raises(StoreError):
        event_from_json(kind, document)


def test_a_type_that_nobody_has_described_is_a_mistake_in_the_code() -> None:
    @dataclass(frozen=True)
    class Strange:
        held: complex

    for hint in (Strange, int | str, Mapping[float, int], tuple[int, str]):
        with pytest.raises(TypeError):
            codec_of(hint)


class Pair(NamedTuple):
    number: Offset
    text: str | None


@pytest.mark.parametrize(
    ("value", "hint", "document"),
    [
        (Pair(Offset(3), None), Pair, [3, None]),
        ([Pair(Offset(1), "a")], list[Pair], [[1, "a"]]),
        ({"b", "a"}, set[str], ["a", "b"]),
        ({Offset(7): "x"}, dict[Offset, str], {"7": "x"}),
    ],
)
def test_what_a_proof_is_made_of_comes_back_as_it_was(value: object, hint: type[object], document: object) -> None:
    written = write(value, hint)
    assert written == document
    assert from_json(json.loads(json.dumps(written)), hint) == value


def test_a_duration_beyond_every_calendar_is_refused_as_any_document() -> None:
    with pytest.raises(StoreError, match="can't be read"):
        from_json(10**30, timedelta)
