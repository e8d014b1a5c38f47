"""Offsets by partition: the offset map, the seek map of a reset, and Kafka's reset CSV.

Contributions, checkpoints, seek maps and positions are all of this shape. The few ways to change one (advance,
restrict, disjoint union) are the few ways in which the protocol ever combines offsets; each refuses what would lose or
double records, so that a wrong map is an error where it arises and not a wrong seek later.

A seek map is total over the region's partitions. An entry that needs the world (a sink's progress, a broker's log
bounds or time index) is *open* at first and is written later by the first owner who knows it; the first writer wins and
an entry once written never changes. The key of a seek map is the epoch, so every attempt has its own.

The CSV follows the rules of Kafka's ConsumerGroupCommand:

- `topic,partition,offset` where one group is meant, `group,topic,partition,offset` if there are several.
- There is no header line, and each line is read on its own. Kafka's tool fails on a header; we never write one but
  skip one whose names are exactly right, since a spreadsheet invites to add it.
- Names are quoted where they need it. Kafka also quotes long ones; both sides read both.

Ours on top: a file is used as a whole or not at all, and all that is wrong with it is said at once, each finding with
its line and column. Kafka's tool takes the last of two lines for one partition, and moves a negative offset to the
log start.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final, Self, TypeVar, overload

from airflow_kcr.errors import InvalidOffsetsFile, OverlappingOffsets
from airflow_kcr.protocol.scopes import LARGEST_PARTITION
from airflow_kcr.protocol.values import MAX_NUMBER, GroupId, GroupPartition, Offset, TopicId, TopicName, checked

D = TypeVar("D")
V = TypeVar("V")


class PartitionMap(Mapping[GroupPartition, V]):
    """An immutable map by partition, in the order of the partitions.

    What `Mapping` has of its methods asks for one partition after the other, by a call each.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: Iterable[tuple[GroupPartition, V]]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, partition: GroupPartition) -> V:
        return self._rows[partition]

    def __iter__(self) -> Iterator[GroupPartition]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, partition: object) -> bool:
        return partition in self._rows

    @overload
    def get(self, partition: GroupPartition, /) -> V | None: ...

    @overload
    def get(self, partition: GroupPartition, /, default: V | D) -> V | D: ...

    def get(self, partition: GroupPartition, /, default: V | D | None = None) -> V | D | None:
        """Return what a partition has, or the default where it is not in the map."""
        return self._rows.get(partition, default)

    def keys(self) -> KeysView[GroupPartition]:
        """Return the partitions, in order."""
        return self._rows.keys()

    def values(self) -> ValuesView[V]:
        """Return what they have, in the order of the partitions."""
        return self._rows.values()

    def items(self) -> ItemsView[GroupPartition, V]:
        """Return both, in order."""
        return self._rows.items()


class OffsetMap(PartitionMap[Offset]):
    """An immutable, hashable map from partition to the next offset to read.

    Iteration is in the order of the partitions, whatever order they were given in.

    Args:
        offsets: a mapping, or pairs (partition, offset); each partition once.

    Raises:
        NumberOutOfRange: an offset is negative ("latest" and other symbols are resolved before they get here) or
            larger than the store can hold.
        OverlappingOffsets: a partition is given twice.
    """

    __slots__ = ("_hash",)

    def __init__(self, offsets: Mapping[GroupPartition, Offset] | Iterable[tuple[GroupPartition, Offset]] = ()) -> None:
        pairs = sorted(offsets.items() if isinstance(offsets, Mapping) else offsets)
        for partition, offset in pairs:
            if not 0 <= offset <= MAX_NUMBER:  # seldom, and only then has the message to be made
                checked(offset, f"the offset of {partition}")
        super().__init__(pairs)
        if len(self) != len(pairs):
            twice = next(a for (a, _), (b, _) in pairwise(pairs) if a == b)
            raise OverlappingOffsets(f"{twice} is given twice in one offset map")
        self._hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self._rows.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self._rows == other._rows if isinstance(other, OffsetMap) else NotImplemented

    def __repr__(self) -> str:
        return f"OffsetMap({{{', '.join(f'{p}: {o}' for p, o in self._rows.items())}}})"

    def restrict(self, partitions: Iterable[GroupPartition]) -> Self:
        """Return the map of those of `partitions` that it has; the others are left out silently."""
        return type(self)({p: self._rows[p] for p in partitions if p in self._rows})

    def union(self, other: Mapping[GroupPartition, Offset]) -> Self:
        """Return the map of both, which must not share a partition: the merge of contributions is this.

        Raises:
            OverlappingOffsets: both have a partition, even at the same offset; two owners of one partition are a
                double claim, and whose offset is right can't be told from the offsets.
        """
        shared = sorted(self._rows.keys() & other.keys())
        if shared:
            raise OverlappingOffsets(f"{', '.join(map(str, shared))}: more than one owner's offset")
        return type(self)({**self._rows, **other})

    def replace(self, offsets: Mapping[GroupPartition, Offset]) -> Self:
        """Return the map with the given partitions at the given offsets, forwards or backwards: a reset's scope."""
        return type(self)({**self._rows, **offsets})

    def covers(self, other: Mapping[GroupPartition, Offset]) -> bool:
        """Whether this map is at or beyond `other` on every partition that both have (`timelines` asks)."""
        return all(self._rows[p] >= o for p, o in other.items() if p in self._rows)


EMPTY = OffsetMap()


# The seek map


class SeekSource(StrEnum):
    """Where a seek entry's offset comes from."""

    MERGED = "merged"
    """The merge of a complete checkpoint's contributions."""

    INITIAL = "initial"
    """The partition's stored initial offset: the target has no offset for it."""

    START_POSITION = "start_position"
    """The partition's first owner resolves the group's start position; it becomes the initial offset."""

    SINK_PROGRESS = "sink_progress"
    """What the fenced sink has stored with its output (`exactly_once`)."""

    BATCH_END = "batch_end"
    """The end of the last done batch (`almost_once`), of the last started one (`at_most_once`), or a forced reset's."""

    PREVIOUS_CHECKPOINT = "previous_checkpoint"
    """A gap of an incomplete checkpoint, filled from the complete one before it (`allow_partial` only)."""

    COMMITTED = "committed"
    """A gap that no complete checkpoint fills either: the committed offset that was seen (`allow_partial` only)."""

    EXPLICIT = "explicit"
    """A person's target: one of Kafka's eight, or an offset by name."""

    DRAINED = "drained"
    """Out of a person's scope: the partition keeps the position of the drain that came first."""

    RESUME_POINT = "resume_point"
    """Nothing was done or started since the last resume point, so it stays."""

    OUT_OF_RANGE = "out_of_range"
    """The resume point is no longer in the log; the region's policy chose log start or end."""


@dataclass(frozen=True)
class SeekEntry:
    """Where one partition resumes."""

    offset: Offset | None
    """None while the entry is open: its source has yet to be read."""

    source: SeekSource
    current: Offset | None = None
    """Where the partition was when the reset began; None if it had no position."""

    clamped_from: int | None = None
    """The offset that was asked for, where the log did not have it any more or yet; may be negative (a shift)."""

    recreated: TopicId = TopicId("")
    """The topic that was recreated and that `offset` is of, while `current` is of the one before; empty: it is one."""


class SeekMap(PartitionMap[SeekEntry]):
    """Immutable map from partition to its seek entry, in the order of the partitions."""

    __slots__ = ()

    def __init__(self, entries: Mapping[GroupPartition, SeekEntry]) -> None:
        for partition, entry in entries.items():
            if entry.offset is not None and not 0 <= entry.offset <= MAX_NUMBER:
                checked(entry.offset, f"the seek offset of {partition}")
        super().__init__(sorted(entries.items()))

    @property
    def offsets(self) -> OffsetMap:
        """The entries that are known."""
        return OffsetMap({p: e.offset for p, e in self._rows.items() if e.offset is not None})

    @property
    def open(self) -> tuple[GroupPartition, ...]:
        """The partitions whose entry is still to be written."""
        return tuple(p for p, e in self._rows.items() if e.offset is None)

    def write(self, entries: Mapping[GroupPartition, SeekEntry]) -> SeekMap:
        """Return the map with the open ones of `entries` written; those already known stay as they are."""
        fresh = {p: e for p, e in entries.items() if p not in self._rows or self._rows[p].offset is None}
        return SeekMap({**self._rows, **fresh}) if fresh else self


def past_skips(offset: Offset, skips: Iterable[Offset]) -> Offset:
    """Return the next offset at or after one that no person chose to step over.

    Args:
        offset: where to look from.
        skips: the skipped offsets, in their order.
    """
    for skipped in skips:
        if skipped == offset:
            offset = Offset(skipped + 1)
    return offset


def from_offsets(offsets: Mapping[GroupPartition, Offset], source: SeekSource) -> SeekMap:
    """Return a seek map that resumes every partition of `offsets` there, all from one source."""
    return SeekMap({p: SeekEntry(offset=o, source=source) for p, o in offsets.items()})


def filled(
    target: SeekMap, *, initial: Mapping[GroupPartition, Offset], partitions: Iterable[GroupPartition]
) -> SeekMap:
    """Return `target` made total over `partitions`: one that it lacks resumes at its initial offset.

    A partition first seen after the checkpoint is thus never left where it is and never jumps
    to the group's start position; without an initial offset its entry stays open for its first owner.

    Args:
        target: entries of the reset's target; those outside `partitions` are left out.
        initial: the stored initial offsets.
        partitions: every partition of the region.
    """
    entries: dict[GroupPartition, SeekEntry] = {}
    for partition in partitions:
        if partition in target:
            entries[partition] = target[partition]
        elif partition in initial:
            entries[partition] = SeekEntry(offset=initial[partition], source=SeekSource.INITIAL)
        else:
            entries[partition] = SeekEntry(offset=None, source=SeekSource.START_POSITION)
    return SeekMap(entries)


# Kafka's reset CSV

ONE_GROUP: Final = ("topic", "partition", "offset")
"""The columns where one group is meant."""

MANY_GROUPS: Final = ("group", *ONE_GROUP)
"""The columns if there are several groups; also fine for one."""


def write_offsets(offsets: Mapping[GroupPartition, Offset], *, with_group: bool | None = None) -> str:
    """Return the CSV text of `offsets`, one line per partition in their order, each ended by a line feed.

    Args:
        offsets: what to write.
        with_group: whether lines begin with the group; None: if there are several groups.
    """
    groups = {partition.group for partition in offsets}
    named = len(groups) > 1 if with_group is None else with_group
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for partition, offset in sorted(offsets.items()):
        row = (partition.topic, partition.partition, offset)
        writer.writerow((partition.group, *row) if named else row)
    return text.getvalue()


def starting_offsets(offsets: Mapping[GroupPartition, Offset]) -> str:
    """Return the offsets of one group as `startingOffsets` of Structured Streaming's Kafka source, which is JSON."""
    found: dict[str, dict[str, int]] = {}
    for (_, topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(found)


def read_offsets(
    text: str, *, partitions: Collection[GroupPartition] | None = None, group: GroupId | None = None
) -> OffsetMap:
    """Return the offsets that a reset CSV says.

    Args:
        text: the whole file; line feeds with or without carriage returns, a byte order mark is skipped.
        partitions: every partition of the region; a line for another one is a finding. None: not known, and each line
            has its group.
        group: the group that lines without one mean; None: the region's only one.

    Raises:
        InvalidOffsetsFile: the file is empty, or has findings; the message has them all, and nothing was used.
    """
    lines = [
        (number, line)
        for number, line in enumerate(re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff")), start=1)
        if line.strip()
    ]
    rows, findings = _rows(lines)
    columns = ONE_GROUP if rows and len(rows[0][1]) == len(ONE_GROUP) else MANY_GROUPS
    if rows and _names_columns(rows[0][1]):
        number, names = rows.pop(0)
        if tuple(names) not in {ONE_GROUP, MANY_GROUPS}:
            findings.append((number, f"looks like a header; write none, as Kafka's tool does, or {_FORMS}"))
    if columns is ONE_GROUP and group is None:
        group = _only_group(partitions or ())
    found: dict[GroupPartition, tuple[int, Offset]] = {}
    for number, row in rows:
        if len(row) != len(columns):
            findings.append((number, f"{len(row)} column(s); {_LINES}"))
            continue
        named = dict(zip(columns, row, strict=True))
        partition, offset = (
            _number(named, "partition", LARGEST_PARTITION, findings, (number, columns)),
            _number(named, "offset", MAX_NUMBER, findings, (number, columns)),
        )
        if partition is None or offset is None:
            continue
        key = GroupPartition(GroupId(named.get("group", group or "")), TopicName(named["topic"]), partition)
        findings += [(number, complaint) for complaint in _complaints(key, columns, partitions, found)]
        found.setdefault(key, (number, Offset(offset)))
    if findings:
        listed = "\n".join(f"  line {number}, {finding}" for number, finding in sorted(findings))
        raise InvalidOffsetsFile(f"the offsets file can't be used, {len(findings)} finding(s):\n{listed}")
    if not found:
        raise InvalidOffsetsFile(f"the offsets file has no line with an offset; write {_FORMS}")
    return OffsetMap({key: offset for key, (_, offset) in found.items()})


_FORMS: Final = f"{','.join(ONE_GROUP)} or {','.join(MANY_GROUPS)}"
"""Both accepted forms."""

_LINES: Final = f"write {_FORMS}, all lines alike, with commas and without comments"


def _names_columns(row: list[str]) -> bool:
    """Whether a line has words where partition and offset would be."""
    return len(row) in {len(ONE_GROUP), len(MANY_GROUPS)} and all(re.search(r"[A-Za-z]{2}", cell) for cell in row[-2:])


def _rows(lines: list[tuple[int, str]]) -> tuple[list[tuple[int, list[str]]], list[tuple[int, str]]]:
    """Return the cells of each line, and what is wrong with the quoting of the others."""
    rows: list[tuple[int, list[str]]] = []
    findings: list[tuple[int, str]] = []
    for number, line in lines:
        try:
            # Line by line, as Kafka does: an open quote must not swallow the rest of the file.
            rows += [(number, [cell.strip() for cell in row]) for row in csv.reader([line], strict=True)]
        except csv.Error as error:
            findings.append((number, f"not CSV: {error}"))
    return rows, findings


def _number(
    named: Mapping[str, str],
    column: str,
    largest: int,
    findings: list[tuple[int, str]],
    place: tuple[int, tuple[str, ...]],
) -> int | None:
    """Return a cell as a number from 0 to `largest`, or None and a finding."""
    line, columns = place
    text = named[column]
    where = f"column {columns.index(column) + 1} ({column})"
    if re.fullmatch(r"-[0-9]+", text):
        findings.append((line, f"{where}: {text:.60} is negative"))
    elif not re.fullmatch(r"[0-9]+", text):
        findings.append((line, f"{where}: {text[:60]!r} is not a whole number"))
    elif len(text.lstrip("0")) > len(str(largest)) or int(text) > largest:
        findings.append((line, f"{where}: {text:.60} is above {largest}"))
    else:
        return int(text)
    return None


def _complaints(
    key: GroupPartition,
    columns: tuple[str, ...],
    partitions: Collection[GroupPartition] | None,
    found: Mapping[GroupPartition, tuple[int, Offset]],
) -> list[str]:
    """Return what is wrong with a line whose cells can be read."""
    if key in found:
        return [f"column {columns.index('topic') + 1} (topic): {key} is in line {found[key][0]} already"]
    if columns is ONE_GROUP and not key.group:
        return [f"column 1 (topic): the region has several groups; write {','.join(MANY_GROUPS)}"]
    if partitions is None or key in partitions:
        return []
    groups = sorted({p.group for p in partitions})
    if key.group not in groups:
        return [f"column 1 (group): {key.group!r} is not a group of this region: {', '.join(groups)}"]
    if key.topic not in {p.topic for p in partitions if p.group == key.group}:
        return [f"column {columns.index('topic') + 1} (topic): group {key.group} does not read {key.topic!r}"]
    return [f"column {columns.index('partition') + 1} (partition): {key.topic!r} has no partition {key.partition}"]


def _only_group(partitions: Collection[GroupPartition]) -> GroupId | None:
    groups = {partition.group for partition in partitions}
    return groups.pop() if len(groups) == 1 else None
