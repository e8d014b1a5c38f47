"""Numbers in Kafka's commit metadata that are later than the store's: of a restored store, or of another writer.

Every client with the right to commit to a group can write such a note. So it halts the region and says what it says,
and nothing is taken over by itself. Numbers that the region could have reached are taken over when a person lets it
leave the halt, so that no number is used twice; numbers that no region reaches were written by another program, and are
never taken over.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from airflow_kcr.errors import NumberOutOfRange
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import Noted
from airflow_kcr.protocol.region.state import Region, record
from airflow_kcr.protocol.values import MAX_NUMBER, CheckpointNumber, Epoch, Timeline, replace

REACHABLE: Final = 1_000_000_000
"""How far beyond the store's own number another one can be: with a checkpoint each second, a region is there after
thirty years, and no backup is that old."""


def later(region: Region, noted: Noted) -> tuple[str, ...]:
    """Return what a note says that is later than what the store has, in words."""
    return tuple(
        f"{what} {_shown(seen)}, the store has {held}" for what, seen, held in _pairs(region, noted) if seen > held
    )


def is_reachable(region: Region, noted: Noted) -> bool:
    """Whether the region itself can have written a note, before its store was restored."""
    return all(seen <= min(held + REACHABLE, MAX_NUMBER) for _, seen, held in _pairs(region, noted))


def require_numbers_left(region: Region) -> None:
    """Refuse to continue in a region that has taken over numbers beyond which there are none.

    Raises:
        NumberOutOfRange: there is no next epoch, sequence or timeline; the message says what to do.
    """
    held = {"epoch": region.epoch, "sequence": region.next_sequence, "timeline": region.timeline}
    for what, number in held.items():
        if number >= MAX_NUMBER:
            raise NumberOutOfRange(
                f"region {region.name} has {what} {number}, and none comes after it: an earlier version took over what "
                "another client had written into Kafka's commit metadata. Begin the region anew: end its members, "
                f"`kcr region kill {region.name}`, `kcr region delete {region.name}`, and apply its spec again with "
                "`start: committed`, which begins where Kafka has the groups"
            )


def taken_over(region: Region, now: datetime) -> Region:
    """Return the region with its numbers raised above those of the note that it was halted for, if there is one."""
    halt = region.halt
    if halt is None or halt.noted is None:
        return region
    noted, what = halt.noted, "; ".join(later(region, halt.noted))
    raised = replace(
        region,
        epoch=Epoch(max(region.epoch, noted.epoch)),
        timeline=Timeline(max(region.timeline, noted.timeline)),
        next_sequence=CheckpointNumber(max(region.next_sequence, noted.sequence + 1)),
        halt=replace(halt, noted=None),
    )
    return record(raised, now, events.StoreRestoredSeen(member=noted.member, detail=f"taken over: {what}"))


def _pairs(region: Region, noted: Noted) -> tuple[tuple[str, int, int], ...]:
    return (
        ("epoch", noted.epoch, region.epoch),
        ("sequence", noted.sequence, region.next_sequence - 1),
        ("timeline", noted.timeline, region.timeline),
    )


def _shown(number: int) -> str:
    return str(number) if number <= MAX_NUMBER else f"of {len(str(number))} digits"
