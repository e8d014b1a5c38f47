from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kcr.errors import OverlappingOffsets
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource, filled
from airflow_kcr.protocol.values import MAX_NUMBER, GroupId, GroupPartition, Offset, TopicName

PARTITIONS = [GroupPartition(GroupId(g), TopicName(t), n) for g in "gh" for t in "tu" for n in (0, 1, 10)]
numbers = st.integers(0, MAX_NUMBER).map(Offset)
places = st.dictionaries(st.sampled_from(PARTITIONS), numbers)
maps = places.map(OffsetMap)
subsets = st.sets(st.sampled_from(PARTITIONS))


@given(maps, maps)
def test_a_union_does_not_depend_on_the_order(one: OffsetMap, other: OffsetMap) -> None:
    rest = other.restrict(other.keys() - one.keys())
    assert one.union(rest) == rest.union(one)
    assert dict(one.union(rest)) == {**one, **rest}


@given(maps, maps)
def test_a_union_is_refused_exactly_where_a_partition_is_shared(one: OffsetMap, other: OffsetMap) -> None:
    if one.keys() & other.keys():
        for first, second in ((one, other), (other, one)):
            with pytest.raises(OverlappingOffsets):
                first.union(second)
    else:
        assert one.union(other).keys() == one.keys() | other.keys()


@given(maps, subsets, subsets)
def test_restricting_takes_the_common_part(
    one: OffsetMap, some: set[GroupPartition], more: set[GroupPartition]
) -> None:
    assert one.restrict(some).keys() == one.keys() & some
    assert one.restrict(some).restrict(more) == one.restrict(some & more)
    assert one.restrict(some).union(one.restrict(one.keys() - some)) == one


@given(places)
def test_equal_maps_are_one_key_whatever_order_they_came_in(given_: dict[GroupPartition, Offset]) -> None:
    backwards = dict(reversed(given_.items()))
    assert len({OffsetMap(given_), OffsetMap(backwards), OffsetMap(given_.items())}) == 1
    assert list(OffsetMap(backwards)) == sorted(given_)


@given(maps, maps, subsets)
def test_filling_makes_a_target_total_and_changes_none_of_its_entries(
    target: OffsetMap, initial: OffsetMap, partitions: set[GroupPartition]
) -> None:
    entries = {p: SeekEntry(offset=o, source=SeekSource.MERGED) for p, o in target.items()}
    seek = filled(SeekMap(entries), initial=initial, partitions=partitions)
    assert seek.keys() == partitions
    assert set(seek.open) == partitions - target.keys() - initial.keys()
    assert all(seek[p] == entries[p] for p in partitions & target.keys())
    assert all(seek[p].offset == initial[p] for p in (partitions & initial.keys()) - target.keys())


@given(maps, maps, maps)
def test_the_first_writer_of_an_open_entry_wins_for_ever(known: OffsetMap, one: OffsetMap, other: OffsetMap) -> None:
    entries = {p: SeekEntry(offset=known.get(p), source=SeekSource.SINK_PROGRESS) for p in PARTITIONS}

    def written(offsets: OffsetMap) -> dict[GroupPartition, SeekEntry]:
        return {p: SeekEntry(offset=o, source=SeekSource.SINK_PROGRESS) for p, o in offsets.items()}

    after = SeekMap(entries).write(written(one)).write(written(other))
    assert after.offsets == OffsetMap({**other, **one, **known})
