"""R5, R10: where partitions begin, and where they go on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from airflow_kcr.protocol.invariants.history import NEVER, Index, Start, Violation


def resumed(index: Index) -> Iterator[Violation]:
    """R5 (V) the first range begun on a partition after a reset starts at its resume point, whoever owns it.

    For every resume point (a seek entry, past skipped offsets; in its epoch replaced by the offsets of a completed
    cut), the first range begun while it is in force must begin there, and none may begin where there is none yet.

    It can't see the first *record* that Spark read in that range: offsets may be missing in a log (compaction, markers
    of transactions).
    """
    for partition, begun in sorted(index.begun.items()):
        places = index.resumes.get(partition, [])
        numbers = [h.number for h in begun]
        before_any = places[0].number if places else NEVER
        if numbers and numbers[0] < before_any:
            first = begun[0]
            detail = f"{partition}: batch {first.batch.batch} begins {first.range} without a resume point"
            yield Violation("R5", detail, (first.number,))
        for place, until in zip(places, [*(p.number for p in places[1:]), NEVER], strict=True):
            found = bisect_left(numbers, place.number)
            if found == len(numbers) or numbers[found] >= until:
                continue
            handled = begun[found]
            if place.offset is None:
                detail = f"{partition}: batch {handled.batch.batch} begins {handled.range}, its seek entry is open"
            elif handled.range.from_ in {place.offset, index.past_skips(partition, place.offset, handled.number)}:
                continue
            else:
                detail = (
                    f"{partition}: batch {handled.batch.batch} begins {handled.range}, it resumes at {place.offset}"
                )
            yield Violation("R5", detail, (place.number, handled.number))


def resolved_once(index: Index) -> Iterator[Violation]:
    """R10 (V) a start position is resolved once per partition.

    No partition has two initial offsets for one topic id. A broker that tells no id can't tell a recreated topic
    either: without two different ids a second one counts as a second resolution.

    It can't see whether the position was resolved as the spec's start asks.
    """
    for partition, starts in sorted(index.starts.items()):
        for place, start in enumerate(starts):
            earlier = next((e for e in starts[:place] if _may_be_one_topic(e, start)), None)
            if earlier is not None:
                detail = f"{partition}: the initial offset {start.offset} was stored, it had {earlier.offset} already"
                yield Violation("R10", detail, (earlier.number, start.number))


def _may_be_one_topic(a: Start, b: Start) -> bool:
    return a.topic_id == b.topic_id or not a.topic_id or not b.topic_id
