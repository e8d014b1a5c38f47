from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from airflow_kcr.protocol.invariants.tiling import below, common, lacking, width
from airflow_kcr.protocol.values import Offset, Range, joined

ranges = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda t: Range(Offset(min(t)), Offset(max(t)))), max_size=6
)


def offsets(found: tuple[Range, ...] | list[Range]) -> set[int]:
    return {o for r in found for o in range(r.from_, r.to)}


@given(ranges)
def test_joined_ranges_hold_the_same_offsets_and_never_touch(some: list[Range]) -> None:
    found = joined(some)
    assert offsets(found) == offsets(some)
    assert all(a.to < b.from_ for a, b in pairwise(found))
    assert width(some) == len(offsets(some))


@given(ranges, ranges)
def test_common_and_lacking_are_intersection_and_difference(some: list[Range], other: list[Range]) -> None:
    assert offsets(common(some, other)) == offsets(some) & offsets(other)
    assert offsets(lacking(some, other)) == offsets(some) - offsets(other)


@given(ranges, st.integers(0, 30))
def test_below_keeps_what_is_below(some: list[Range], offset: int) -> None:
    assert offsets(below(some, Offset(offset))) == {o for o in offsets(some) if o < offset}
