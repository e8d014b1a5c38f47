"""Kafka's reset CSV, both ways: what `kafka-consumer-groups --reset-offsets` exports and takes with `--from-file`.

Rules, as Kafka's ConsumerGroupCommand has them:

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
import re
from typing import TYPE_CHECKING, Final

from airflow_kcr.errors import InvalidOffsetsFile
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.scopes import LARGEST_PARTITION
from airflow_kcr.protocol.values import MAX_NUMBER, GroupId, GroupPartition, Offset, TopicName

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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


def read_offsets(text: str, *, partitions: Collection[GroupPartition], group: GroupId | None = None) -> OffsetMap:
    """Return the offsets that a reset CSV says.

    Args:
        text: the whole file; line feeds with or without carriage returns, a byte order mark is skipped.
        partitions: every partition of the region; a line for another one is a finding.
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
            findings.append((number, f"looks like a header; write {','.join(columns)}, or none, as Kafka's tool does"))
    if columns is ONE_GROUP and group is None:
        group = _only_group(partitions)
    found: dict[GroupPartition, tuple[int, Offset]] = {}
    for number, row in rows:
        if len(row) != len(columns):
            findings.append((number, f"{len(row)} column(s), expected {len(columns)}: {','.join(columns)}"))
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
        raise InvalidOffsetsFile(f"the offsets file has no line with an offset; write {','.join(columns)}")
    return OffsetMap({key: offset for key, (_, offset) in found.items()})


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
    partitions: Collection[GroupPartition],
    found: Mapping[GroupPartition, tuple[int, Offset]],
) -> list[str]:
    """Return what is wrong with a line whose cells can be read."""
    if key in found:
        return [f"column {columns.index('topic') + 1} (topic): {key} is in line {found[key][0]} already"]
    if key in partitions:
        return []
    if columns is ONE_GROUP and not key.group:
        return [f"column 1 (topic): the region has several groups; write {','.join(MANY_GROUPS)}"]
    groups = sorted({p.group for p in partitions})
    if key.group not in groups:
        return [f"column 1 (group): {key.group!r} is not a group of this region: {', '.join(groups)}"]
    if key.topic not in {p.topic for p in partitions if p.group == key.group}:
        return [f"column {columns.index('topic') + 1} (topic): group {key.group} does not read {key.topic!r}"]
    return [f"column {columns.index('partition') + 1} (partition): {key.topic!r} has no partition {key.partition}"]


def _only_group(partitions: Collection[GroupPartition]) -> GroupId | None:
    groups = {partition.group for partition in partitions}
    return groups.pop() if len(groups) == 1 else None
