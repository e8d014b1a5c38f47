"""Sets of offsets of one partition, as ascending disjoint ranges: started, explained, missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_kcr.protocol.values import Offset, Range


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the union of `ranges` as ascending ranges that neither overlap nor touch."""
    found: list[Range] = []
    for range_ in sorted(ranges):
        if range_.from_ >= range_.to:
            continue
        if found and range_.from_ <= found[-1].to:
            found[-1] = Range(found[-1].from_, max(found[-1].to, range_.to))
        else:
            found.append(range_)
    return tuple(found)


def add(ranges: list[Range], range_: Range) -> tuple[Range, ...]:
    """Add a range to ascending disjoint ones, in place, and return what of it they had already.

    By far the most frequent case is the first one: a range goes on where the last one ended.
    """
    if ranges:
        last = ranges[-1]
        if range_.from_ == last.to:
            ranges[-1] = Range(last.from_, range_.to)
            return ()
        if range_.from_ < last.to:
            twice = common(ranges, [range_])
            ranges[:] = joined([*ranges, range_])
            return twice
    ranges.append(range_)
    return ()


def common(a: Iterable[Range], b: Iterable[Range]) -> tuple[Range, ...]:
    """Return the offsets that are in both."""
    left, right = joined(a), joined(b)
    return tuple(_common(left, right))


def _common(left: tuple[Range, ...], right: tuple[Range, ...]) -> Iterator[Range]:
    i = j = 0
    while i < len(left) and j < len(right):
        from_, to = max(left[i].from_, right[j].from_), min(left[i].to, right[j].to)
        if from_ < to:
            yield Range(from_, to)
        if left[i].to < right[j].to:
            i += 1
        else:
            j += 1


def lacking(wanted: Iterable[Range], covered: Iterable[Range]) -> tuple[Range, ...]:
    """Return the offsets of `wanted` that are not in `covered`."""
    missing: list[Range] = []
    cover = joined(covered)
    for range_ in joined(wanted):
        place = range_.from_
        for piece in common([range_], cover):
            if place < piece.from_:
                missing.append(Range(place, piece.from_))
            place = piece.to
        if place < range_.to:
            missing.append(Range(place, range_.to))
    return tuple(missing)


def below(ranges: Iterable[Range], offset: Offset) -> tuple[Range, ...]:
    """Return what of `ranges` lies below `offset`."""
    return joined(Range(r.from_, min(r.to, offset)) for r in ranges)


def width(ranges: Iterable[Range]) -> int:
    """Return how many offsets the ranges hold."""
    return sum(r.width for r in joined(ranges))
