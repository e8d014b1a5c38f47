"""The columns that a row of the region becomes, and back: one declaration for each class, for reading and for writing.

A row class whose fields are the columns is laid out by its type hints (`row_layout`); what differs is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeAlias

from airflow_kcr.protocol import documents, values
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap
from airflow_kcr.protocol.region import rows
from airflow_kcr.protocol.region.archive import Archive
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.state import InitialKey, Region, Spec
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.store.codec import event_from_json, from_json
from airflow_kcr.store.postgres.row_layout import (
    PARTITION,
    Field,
    JsonLayout,
    Layout,
    TableLayout,
    fields_of,
    json_row,
    listed,
    member_of,
    named,
)
from airflow_kcr.store.postgres.session import Found

# The region's own row

SPEC_COLUMNS: Final = ("uid", "spec", "spec_revision", "next_spec", "next_spec_revision")
"""Those that seldom change, and are written only then: a spec is long."""

_ELSEWHERE: Final = {"name", "region_id", "spec", "next_spec", "restore_point", "archive", "events", "ledger"}
_PLAIN: Final = fields_of(
    Region, without={*_ELSEWHERE, *(part.name for part in fields(Region) if part.default_factory is dict)}
)
"""The fields of a region that are columns; the others are tables, made of several columns, or one of several."""

MOVING_COLUMNS: Final = ("unserved", "restore_point", "restore_point_epoch", *(part.columns[0] for part in _PLAIN))

HEAD_COLUMNS: Final = SPEC_COLUMNS + MOVING_COLUMNS
"""The columns of the region's own row, after id and name."""

HEAD: Final = json_row(HEAD_COLUMNS, "r")

_UNSERVED: Final = dict[values.GroupPartition, rows.Unserved]

RulesOf: TypeAlias = Callable[[str], RegionRules]


def head_values(region: Region) -> dict[str, object]:
    """Return the values of the region's own row, by column, as they are written in JSON."""
    held = {part: getattr(region, part.name) for part in _PLAIN}
    return {
        "uid": region.region_id,
        "spec": region.spec.text,
        "spec_revision": region.spec.revision,
        "next_spec": region.next_spec and region.next_spec.text,
        "next_spec_revision": region.next_spec and region.next_spec.revision,
        "unserved": documents.write(region.unserved, _UNSERVED) if region.unserved else None,
        "restore_point": region.restore_sequence,
        "restore_point_epoch": region.restore_epoch,
        **{part.columns[0]: None if value == () else part.written([value])[0][0] for part, value in held.items()},
    }


def region_from(name: values.RegionName, head: Found, rules: RulesOf, archive: Archive) -> Region:
    """Return the region of its own row, its tables unread.

    Args:
        name: the region's.
        head: what `HEAD` has read.
        rules: makes them of the text of a spec.
        archive: what is over in the region.
    """
    row = dict(zip(HEAD_COLUMNS, head, strict=True))
    there = {column: [value] for column, value in row.items() if value is not None}
    plain: dict[str, Any] = {part.name: part.read(there)[0] for part in _PLAIN if part.columns[0] in there}

    at = row["restore_point"]

    def spec(text: str, revision: int) -> Spec:
        return Spec(text=text, rules=rules(text), revision=revision)

    return Region(
        name=name,
        region_id=values.RegionId(row["uid"]),
        spec=spec(row["spec"], row["spec_revision"]),
        next_spec=None if row["next_spec"] is None else spec(row["next_spec"], row["next_spec_revision"]),
        unserved=from_json(row["unserved"] or {}, _UNSERVED),
        restore_point=None if at is None else rows.RestorePoint(at, row["restore_point_epoch"]),
        archive=archive,
        **plain,
    )


# Few and wide rows

MEMBERS: Final[JsonLayout[values.MemberId, rows.Member]] = JsonLayout.of(
    "member", rows.Member, {"member": values.MemberId}
)
LEASES: Final[JsonLayout[values.MemberId, rows.Lease]] = JsonLayout.of("lease", rows.Lease, {"member": values.MemberId})
REQUESTS: Final[JsonLayout[values.RequestId, rows.CheckpointRequest]] = JsonLayout.of(
    "checkpoint_request", rows.CheckpointRequest, {"request_id": values.RequestId}
)
CHECKPOINTS: Final[JsonLayout[values.CheckpointNumber, rows.Checkpoint]] = JsonLayout.of(
    "checkpoint", rows.Checkpoint, {"sequence": values.CheckpointNumber}
)
RESETS: Final[JsonLayout[values.Epoch, rows.ResetAttempt]] = JsonLayout.of(
    "reset", rows.ResetAttempt, {"epoch": values.Epoch}
)
PERSON_RESETS: Final[JsonLayout[values.RequestId, rows.PersonReset]] = JsonLayout.of(
    "person_reset", rows.PersonReset, {"request_id": values.RequestId}
)

# Rows by partition, of which there may be tens of thousands


def _owner(name: str) -> Field:
    """Return an owner of a claim: a member of the partition's own group, hence only its index."""
    return Field(
        name,
        (f"{name}_index",),
        lambda owner: None if owner is None else owner.index,
        lambda group, index: None if index is None else member_of(group, index),
        beside=("group_id",),
    )


_LOG: Final = ("log_start", "log_end", "log_topic_id", "log_leader_epoch")
_log_columns = attrgetter("start", "end", "topic_id", "leader_epoch")


def _log_bounds(start: values.Offset, end: values.Offset, topic_id: values.TopicId, leader_epoch: int) -> LogBounds:
    return LogBounds(start=start, end=end, topic_id=topic_id, leader_epoch=leader_epoch)


CLAIMS: Final[Layout[values.GroupPartition, rows.Claim]] = Layout.of(
    "claim", rows.Claim, {"partition": values.GroupPartition}, _owner("owner"), _owner("last_owner")
)
INITIAL: Final[Layout[InitialKey, rows.InitialOffset]] = Layout.of(
    "initial_offset",
    rows.InitialOffset,
    {"partition": values.GroupPartition, "topic_id": values.TopicId},
    Field("bounds", _LOG, _log_columns, _log_bounds),
)
BOUNDARY_OFFSETS: Final[Layout[rows.BoundaryKey, rows.BoundaryOffset]] = Layout.of(
    "boundary_offset",
    rows.BoundaryOffset,
    {"partition": values.GroupPartition, "topic_id": values.TopicId, "boundary": datetime},
    Field("boundary", ("boundary",)),
)

# Maps by partition: the offsets of one checkpoint, the seek map of one epoch

GROUPS: Final = TableLayout("consumer_group", ("group_id",), ("cluster_id",))
OFFSETS: Final = TableLayout("checkpoint_offset", ("sequence", *PARTITION), ("next_offset",))
READ_BACKS: Final = TableLayout("read_back", ("sequence", *PARTITION), ("next_offset",))
FROZEN: Final = TableLayout("checkpoint_partition", ("sequence", *PARTITION))
SKIPS: Final = TableLayout("skip", (*PARTITION, "skipped_offset"))

_REWINDS: Final = """coalesce(n.next_offset < (
        SELECT s.next_offset FROM kcr.seek_offset s
        WHERE s.region_id = :region AND s.group_id = n.group_id AND s.topic = n.topic AND s.partition = n.partition
          AND s.epoch = (SELECT max(r.epoch) FROM kcr.reset r WHERE r.region_id = :region AND r.epoch < n.epoch)
    ), true)"""
"""Of an entry `n` that is written: whether it is, or may be, before the one of the reset just before (`undone`)."""

SEEKS: Final[Layout[tuple[values.Epoch, values.GroupPartition], SeekEntry]] = Layout.of(
    "seek_offset", SeekEntry, {"epoch": values.Epoch, "partition": values.GroupPartition}, derived={"rewinds": _REWINDS}
)


def offset_map(found: Iterable[Sequence[Any]]) -> OffsetMap:
    """Return offsets by partition from their four columns."""
    return OffsetMap([(values.GroupPartition(g, t, p), values.Offset(o)) for g, t, p, o in found])


def seek_maps(columns: Sequence[Sequence[Any]]) -> dict[values.Epoch, SeekMap]:
    """Return seek maps from the columns of `SEEKS`."""
    found: dict[values.Epoch, dict[values.GroupPartition, SeekEntry]] = {}
    for (epoch, partition), entry in SEEKS.read(columns).items():
        found.setdefault(epoch, {})[partition] = entry
    return {epoch: SeekMap(entries) for epoch, entries in found.items()}


# Contributions: one row for the member, one for each partition

ContributionKey: TypeAlias = tuple[values.CheckpointNumber, values.MemberId]


CONTRIBUTORS: Final[JsonLayout[ContributionKey, rows.Contribution]] = JsonLayout.of(
    "contribution",
    rows.Contribution,
    {"sequence": values.CheckpointNumber, "member": values.MemberId},
    without=("offsets", "committed", "bounds"),
)
"""The rows of members' contributions, without what each has of partitions."""

CONTRIBUTED: Final = TableLayout(
    "contribution_offset", ("sequence", *PARTITION), ("member_index", "next_offset", "committed_offset", *_LOG)
)

CONTRIBUTIONS: Final = f"""json_agg(json_build_array({CONTRIBUTORS.selected("k")}, (
        SELECT json_agg(json_build_array({named(("topic", "partition", *CONTRIBUTED.values[1:]), "o")}))
        FROM kcr.contribution_offset o
        WHERE o.region_id = k.region_id AND o.sequence = k.sequence AND o.group_id = k.group_id
          AND o.member_index = k.member_index)))"""
"""All of contributions `k`."""


def contributions_from(found: list[Any] | None) -> dict[values.MemberId, rows.Contribution]:
    """Return what `CONTRIBUTIONS` has read, by member in order."""
    contributors = CONTRIBUTORS.read([whole for whole, _ in found or []])
    pairs = zip(contributors.items(), found or [], strict=True)
    return dict(sorted((member, _contribution(member, by, parts or [])) for ((_, member), by), (_, parts) in pairs))


def _contribution(member: values.MemberId, by: rows.Contribution, found: Iterable[Found]) -> rows.Contribution:
    parts = [(values.GroupPartition(member.group, topic, partition), *held) for topic, partition, *held in found]
    return replace(
        by,
        offsets=OffsetMap([(p, offset) for p, offset, *_ in parts]),
        committed=OffsetMap([(p, committed) for p, _, committed, *_ in parts if committed is not None]),
        bounds={p: _log_bounds(*log) for p, _, _, *log in parts if log[0] is not None},
    )


def contributed_rows(
    sequence: values.CheckpointNumber, member: values.MemberId, part: rows.Contribution
) -> Iterable[Found]:
    """Yield the rows of a contribution by partition: number, partition, and the values of `CONTRIBUTED`."""
    for p, offset in part.offsets.items():
        log = part.bounds.get(p)
        seen = (None,) * 4 if log is None else _log_columns(log)
        yield sequence, *p, member.index, offset, part.committed.get(p), *seen


# Batches and events

ROWS: Final = {"contributions": CONTRIBUTIONS} | {
    layout.name: layout.selected("t")
    for layout in (MEMBERS, LEASES, REQUESTS, CHECKPOINTS, RESETS, PERSON_RESETS, BOUNDARY_OFFSETS, SEEKS)
}
"""What statements select of these tables' rows, by the table's name."""

_RANGE: Final = (*PARTITION, "from_offset", "to_offset")


def _ranges(found: Iterable[Found] | None) -> dict[values.GroupPartition, values.Range]:
    return {values.GroupPartition(g, t, p): values.Range(begin, end) for g, t, p, begin, end in sorted(found or ())}


BATCHES: Final[JsonLayout[int, rows.Batch]] = JsonLayout.of(
    "batch", rows.Batch, {"number": int}, Field("ranges", ("ranges",), join=_ranges), without=("undone_from",)
)
"""Batches by their numbers, as JSON of the columns and of what each has in `batch_range`."""


def _batch(ranges: str) -> str:
    return f"json_build_array({listed(ranges if c == 'ranges' else f'b.{c}' for c in BATCHES.columns)})"


BATCH_ALONE: Final = _batch("NULL")
"""A batch `b` without its ranges."""

BATCH: Final = _batch(
    f"""(SELECT json_agg(json_build_array({named(_RANGE, "q")}))
        FROM kcr.batch_range q WHERE q.batch_number = b.number)"""
)
"""A batch `b` with its ranges as JSON: they are five columns of a million rows otherwise."""


def batches_from(found: Iterable[Found]) -> list[rows.Batch]:
    """Return batches that `BATCH` has read, as they are stored."""
    return [*BATCHES.read([row for (row,) in found]).values()]


def started_columns(batch: rows.Batch) -> dict[str, object]:
    """Return the parameters that store a batch, but for the partitions of its ranges."""
    own = ("batch", "incarnation", "epoch", "timeline", "sequence", "started_at", "started_after")
    return {
        **{name: getattr(batch, name) for name in own},
        "group": batch.member.group,
        "index": batch.member.index,
        "froms": [r.from_ for r in batch.ranges.values()],
        "tos": [r.to for r in batch.ranges.values()],
    }


EVENT_COLUMNS: Final = ("number", "at", "epoch", "timeline", "kind", "body")


def event_values(event: Event) -> Found:
    """Return an event as the values of its columns."""
    body = documents.write(event.body, type(event.body))
    return event.number, event.at, event.epoch, event.timeline, event.kind, body


def event_from(found: Found) -> Event:
    """Return an event from its columns."""
    number, at, epoch, timeline, kind, body = found
    return Event(number=number, at=at, epoch=epoch, timeline=timeline, body=event_from_json(kind, body))
