"""R2, R3, R12, R13: what a checkpoint is made of, how many may be under way, and which may be forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_kcr.protocol.invariants.history import Cut, Index, Violation
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region.events import (
    CheckpointPinned,
    CheckpointsRetired,
    Contributed,
    CutAborted,
    CutAnswered,
    CutCompleted,
    CutOpened,
    Event,
    InitialOffsetsStored,
    ResetBegun,
)
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.values import EventNumber, GroupPartition, Nonce, Offset, Sequence


def complete(index: Index) -> Iterator[Violation]:
    """R2 (V) a complete checkpoint covers every frozen partition once, by distinct roster members.

    Every member of the roster has contributed, once, as the incarnation that is on it; their offsets don't overlap,
    their union is the frozen partitions and is what the checkpoint holds. Beyond that it may only hold partitions that
    outsiders had, where they stood, and names each as inexact. A partition that was known to be on the brokers without
    an owner is not in it otherwise, and the checkpoint says so: it is inexact there.

    It can't see partitions that no member has found on the brokers yet: they are in no event.
    """
    for event in index.history.events:
        match event.body:
            case CutCompleted(sequence=sequence) as body:
                cut = index.cuts.get(sequence)
                if cut is None:
                    yield Violation("R2", f"cut {sequence} is complete, nobody opened it", (event.number,))
                else:
                    yield from _parts(event.number, cut, body)
                    yield from _hidden(index, event.number, body)
            case Contributed(sequence=sequence, member=member) if sequence not in index.cuts:
                yield Violation("R2", f"{member} contributed to cut {sequence}, nobody opened it", (event.number,))
            case _:
                pass


def _parts(number: EventNumber, cut: Cut, body: CutCompleted) -> Iterator[Violation]:
    roster, name = dict(cut.opened.roster), f"cut {body.sequence}"
    total: dict[GroupPartition, Offset] = {}
    for at, part in cut.parts:
        if roster.pop(part.member, None) != part.incarnation:
            detail = f"{name}: {part.member}, incarnation {part.incarnation}, is not on the roster or contributed twice"
            yield Violation("R2", detail, (cut.number, at))
        twice = sorted(total.keys() & part.offsets.keys())
        if twice:
            yield Violation("R2", f"{name}: {twice[0]} was contributed twice", (at, number))
        total.update(part.offsets)
    if roster:
        yield Violation("R2", f"{name} is complete without a contribution of {min(roster)}", (cut.number, number))
    odd = sorted(total.keys() ^ frozenset(cut.opened.partitions))
    if odd:
        what = "contributed, not frozen" if odd[0] in total else "frozen, not contributed"
        yield Violation("R2", f"{name}: {odd[0]} was {what}", (cut.number, number))
    own = {p: o for p, o in body.offsets.items() if p in total or p not in body.inexact}
    if total != own:
        differ = sorted(p for p in total.keys() | own.keys() if total.get(p) != own.get(p))
        yield Violation("R2", f"{name}: {differ[0]} is not what was contributed", (number,))


def _hidden(index: Index, number: EventNumber, body: CutCompleted) -> Iterator[Violation]:
    """Yield what was known to lack an owner, is not in the cut, and is not named by it."""
    for partition in sorted(index.unowned.at(number) - body.offsets.keys() - body.inexact.keys()):
        detail = f"cut {body.sequence} lacks {partition}, which had no owner, and does not say that it is inexact"
        yield Violation("R2", detail, (index.unowned.since(number), number))


def inside(index: Index) -> Iterator[Violation]:
    """R3 (V) stored offsets are concrete and lay inside the log as read with them, or are marked clamped.

    Contributions and initial offsets, each with the bounds stored with it; a contribution may lie just past skipped
    records at the end of the log. That they are numbers >= 0 is checked wherever an offset map is built, so a history
    with another one can't even be read. A seek entry that was clamped carries what was asked for.

    It can't see whether the bounds were read truly, nor the log of a seek entry or a bound offset: their bounds are not
    stored.
    """
    for event in index.history.events:
        match event.body:
            case Contributed(offsets=offsets, bounds=bounds) | InitialOffsetsStored(offsets=offsets, bounds=bounds):
                for partition, offset in offsets.items():
                    if not _is_inside(index, event, partition, bounds):
                        log = bounds.get(partition)
                        seen = "no bounds" if log is None else f"[{log.start}, {log.end}]"
                        detail = f"{event.kind}: {partition} at {offset}, its log as read: {seen}"
                        yield Violation("R3", detail, (event.number,))
            case _:
                pass


def _is_inside(
    index: Index, event: Event, partition: GroupPartition, bounds: Mapping[GroupPartition, LogBounds]
) -> bool:
    log = bounds.get(partition)
    if log is None or not isinstance(event.body, Contributed | InitialOffsetsStored):
        return False
    offset = event.body.offsets[partition]
    if isinstance(event.body, InitialOffsetsStored):
        return offset in log
    return log.start <= offset <= max(log.end, index.past_skips(partition, log.end, event.number))


def retired(index: Index) -> Iterator[Violation]:
    """R12 (V) the base is never retired.

    Nor what it was built from (the cut before a base that is a cut), a pinned cut, one on the path that is
    unpublished, or the newest usable one; each as things were when `CheckpointsRetired` was recorded. A person's forced
    reset gives up the cuts whose publication is in its way, in the same transaction; of those, only the base must stay.

    It can't see which checkpoint a person's reset under way goes to, if not by number, nor that the offsets are really
    still there.
    """
    pinned: dict[Sequence, str] = {}
    for event in index.history.events:
        match event.body:
            case CheckpointPinned(sequence=sequence, name=name):
                pinned[sequence] = name
            case CheckpointsRetired(sequences=sequences):
                kept = _protected(index, event, pinned)
                for sequence in sequences:
                    if sequence in kept:
                        yield Violation("R12", f"checkpoint {sequence} was retired: {kept[sequence]}", (event.number,))
            case _:
                pass


def _protected(index: Index, event: Event, pinned: dict[Sequence, str]) -> dict[Sequence, str]:
    before = EventNumber(event.number - 1)
    base = index.bases.at(before)
    kept: dict[Sequence, str] = {} if base is None else {base: "it is the base"}
    if _is_forced(index, event):
        return kept
    cut = None if base is None else index.cuts.get(base)
    if cut is not None and cut.completed is not None and cut.completed[1].previous is not None:
        kept.setdefault(cut.completed[1].previous, f"the base {base} was built from it")
    usable = index.usable(before)
    if usable:
        kept.setdefault(usable[-1], "it is the newest usable one")
    for sequence in usable:
        published = index.cuts[sequence].published
        if published is None or published > before:
            kept.setdefault(sequence, "it is not published yet")
    kept.update({s: f"it is pinned as {name}" for s, name in pinned.items() if name and s not in kept})
    return kept


def _is_forced(index: Index, event: Event) -> bool:
    """Whether the next reset after this event is a person's forced one, begun in the same transaction."""
    later = (e for e in index.following(event.number) if isinstance(e.body, ResetBegun))
    begun = next(later, None)
    if begun is None or not isinstance(begun.body, ResetBegun) or begun.body.cause is not ResetCause.PERSON:
        return False
    person = None if begun.body.person is None else index.persons.get(begun.body.person)
    return person is not None and person.forced and person.number < event.number and begun.at == event.at


def one_at_a_time(index: Index) -> Iterator[Violation]:
    """R13 (V) one request, one cut at a time.

    No cut opens while another is open; none opens for a nonce that has a complete cut on the path; an opened cut ends
    once; an answer is a complete cut on the path.

    It can't see requests that were only repeated: asking again for what is there leaves no trace.
    """
    open_cut: tuple[Sequence, EventNumber] | None = None
    cuts_of: dict[Nonce, list[Sequence]] = {}
    for event in index.history.events:
        number = event.number
        match event.body:
            case CutOpened(sequence=sequence, nonce=nonce):
                if open_cut is not None:
                    detail = f"cut {sequence} was opened while cut {open_cut[0]} was open"
                    yield Violation("R13", detail, (open_cut[1], number))
                for earlier in cuts_of.get(nonce, ()):
                    if index.cuts[earlier].is_on_path(number):
                        detail = f"cut {sequence} was opened for {nonce}, which cut {earlier} has answered"
                        yield Violation("R13", detail, (index.cuts[earlier].number, number))
                open_cut = sequence, number
                cuts_of.setdefault(nonce, []).append(sequence)
            case CutCompleted(sequence=sequence) | CutAborted(sequence=sequence):
                if open_cut is None or open_cut[0] != sequence:
                    yield Violation("R13", f"cut {sequence} ended, it was not open", (number,))
                open_cut = None
            case CutAnswered(nonce=nonce, sequence=sequence):
                cut = index.cuts.get(sequence)
                if cut is None or not cut.is_on_path(number):
                    detail = f"{nonce} was answered by cut {sequence}, which is not a complete cut on the path"
                    yield Violation("R13", detail, (number,))
            case _:
                pass
