"""Which columns a row of the region becomes, and back: one declaration for each class, for reading and for writing.

A row class whose fields are the columns is laid out by its type hints (`row_layout`); those of which there may be tens
of thousands, and those whose columns differ, say so themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Row
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, TypeAlias

from airflow_kcr.protocol import documents
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region.archive import Archive
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import (
    Absence,
    Batch,
    BoundaryKey,
    BoundaryOffset,
    Checkpoint,
    CheckpointPoint,
    CheckpointRequest,
    Claim,
    Contribution,
    InitialOffset,
    Lease,
    Member,
    Outcome,
    PersonReset,
    ResetAttempt,
    ResetPoint,
    RestorePoint,
)
from airflow_kcr.protocol.region.state import InitialKey, Region, Spec
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    ClusterId,
    Epoch,
    GroupId,
    GroupPartition,
    Incarnation,
    MemberId,
    Offset,
    Range,
    RegionId,
    RegionName,
    RequestId,
    TopicId,
)
from airflow_kcr.store.codec import event_from_json, from_json
from airflow_kcr.store.postgres import tables
from airflow_kcr.store.postgres.row_layout import (
    JsonLayout,
    Layout,
    MapLayout,
    Values,
    fields_of,
    json_row,
    member_of,
    named,
    of_dataclass,
    partition_of,
)
from airflow_kcr.store.postgres.session import Found
from airflow_kcr.store.postgres.tables import PARTITION

# The region's own row

HEAD_COLUMNS: Final = tuple(c for c in tables.region.c.keys() if c not in {"id", "name"})  # noqa: SIM118 (not a dict)
"""The columns of the region's own row, after id and name."""

SPEC_COLUMNS: Final = ("uid", "spec", "spec_revision", "next_spec", "next_spec_revision")
"""Those that seldom change, and are written only then: a spec is long."""

HEAD: Final = json_row(tables.region, HEAD_COLUMNS, "r")

_ELSEWHERE: Final = {*SPEC_COLUMNS, "unowned", "restore_point"}
_PLAIN: Final = fields_of(
    Region, [f.name for f in fields(Region) if f.name in HEAD_COLUMNS and f.name not in _ELSEWHERE]
)
"""The fields of a region that are columns; the others are made of several, or one of several."""

_UNCLAIMED: Final = dict[GroupPartition, datetime | Absence]

RulesOf: TypeAlias = Callable[[str], RegionRules]


def head_values(region: Region) -> dict[str, object]:
    """Return the values of the region's own row, by column, as they are written in JSON."""
    unclaimed = {**region.unowned, **region.absent}
    held = {part: getattr(region, part.name) for part in _PLAIN}
    return {
        "uid": region.region_id,
        "spec": region.spec.text,
        "spec_revision": region.spec.revision,
        "next_spec": region.next_spec and region.next_spec.text,
        "next_spec_revision": region.next_spec and region.next_spec.revision,
        "unowned": documents.write(unclaimed, _UNCLAIMED) if unclaimed else None,
        "restore_point": region.restore_sequence,
        "restore_point_epoch": region.restore_epoch,
        **{part.column: None if value == () else part.written(value) for part, value in held.items()},
    }


def region_from(name: RegionName, head: Row[Any], rules: RulesOf, archive: Archive) -> Region:
    """Return the region of its own row, its tables unread.

    Args:
        name: the region's.
        head: what `HEAD` has read.
        rules: makes them of the text of a spec.
        archive: what is over in the region.
    """
    row = dict(zip(HEAD_COLUMNS, head, strict=True))
    spec, next_spec, unowned = row["spec"], row["next_spec"], row["unowned"]
    unclaimed: Mapping[GroupPartition, datetime | Absence] = {} if unowned is None else from_json(unowned, _UNCLAIMED)
    plain: dict[str, Any] = {part.name: part.read(row[part.column]) for part in _PLAIN if row[part.column] is not None}
    return Region(
        name=name,
        region_id=RegionId(row["uid"]),
        spec=Spec(text=spec, rules=rules(spec), revision=row["spec_revision"]),
        next_spec=None
        if next_spec is None
        else Spec(text=next_spec, rules=rules(next_spec), revision=row["next_spec_revision"]),
        unowned={p: seen for p, seen in unclaimed.items() if isinstance(seen, datetime)},
        absent={p: seen for p, seen in unclaimed.items() if isinstance(seen, Absence)},
        restore_point=_restore_point(row["restore_point"], row["restore_point_epoch"]),
        archive=archive,
        **plain,
    )


def _restore_point(sequence: CheckpointNumber | None, epoch: Epoch | None) -> RestorePoint | None:
    if sequence is None:
        return None
    return CheckpointPoint(sequence) if epoch is None else ResetPoint(sequence, epoch)


# Few and wide rows

_MEMBER: Final = ("group_id", "member_index")


def _member_key(member: MemberId) -> Values:
    return (member.group, member.index)


def _read_member(columns: Row[Any]) -> MemberId:
    return member_of(columns[0], columns[1])


GROUPS: Final[JsonLayout[GroupId, ClusterId]] = JsonLayout(
    tables.consumer_group,
    key=("group_id",),
    values=("cluster_id",),
    split=lambda group, cluster: (group, cluster),
    join=lambda c: (GroupId(c[0]), ClusterId(c[1])),
    key_values=lambda key: (key,),
)
MEMBERS: Final[JsonLayout[MemberId, Member]] = of_dataclass(
    tables.member, Member, field="member", key=_MEMBER, key_values=_member_key, read_key=_read_member
)
LEASES: Final[JsonLayout[MemberId, Lease]] = of_dataclass(
    tables.lease, Lease, field=None, key=_MEMBER, key_values=_member_key, read_key=_read_member
)
REQUESTS: Final[JsonLayout[RequestId, CheckpointRequest]] = of_dataclass(
    tables.checkpoint_request, CheckpointRequest, field="request_id", key=("request_id",)
)
CHECKPOINTS: Final[JsonLayout[CheckpointNumber, Checkpoint]] = of_dataclass(
    tables.checkpoint, Checkpoint, field="sequence", key=("sequence",)
)
RESETS: Final[JsonLayout[Epoch, ResetAttempt]] = of_dataclass(tables.reset, ResetAttempt, field="epoch", key=("epoch",))
PERSON_RESETS: Final[JsonLayout[RequestId, PersonReset]] = of_dataclass(
    tables.person_reset, PersonReset, field="request_id", key=("request_id",)
)

# Rows by partition, written out: there may be tens of thousands


def _split_claim(key: GroupPartition, value: Claim) -> Values:
    return (
        *key,
        None if value.owner is None else value.owner.index,
        value.incarnation,
        value.epoch,
        None if value.last_owner is None else value.last_owner.index,
        value.topic_id,
        value.leader_epoch,
        value.resume,
        value.position,
        value.started_to,
    )


def _join_claim(columns: Row[Any]) -> tuple[GroupPartition, Claim]:
    group, topic, partition, owner, incarnation, epoch, last, topic_id, leader_epoch, resume, position, begun = columns
    return partition_of(group, topic, partition), Claim(
        owner=None if owner is None else member_of(group, owner),
        incarnation=incarnation,
        epoch=epoch,
        last_owner=None if last is None else member_of(group, last),
        topic_id=topic_id,
        leader_epoch=leader_epoch,
        resume=resume,
        position=position,
        started_to=begun,
    )


CLAIM_VALUES: Final = (
    "owner_index",
    "incarnation",
    "epoch",
    "last_owner_index",
    "topic_id",
    "leader_epoch",
    "resume_offset",
    "position",
    "started_to",
)
CLAIMS: Final[Layout[GroupPartition, Claim]] = Layout(
    tables.claim, PARTITION, CLAIM_VALUES, _split_claim, _join_claim, tuple
)


def _split_initial(key: InitialKey, value: InitialOffset) -> Values:
    bounds = value.bounds
    log = (bounds.start, bounds.end, bounds.topic_id, bounds.leader_epoch)
    return (*key[0], key[1], value.offset, value.source, *log)


def _join_initial(columns: Row[Any]) -> tuple[InitialKey, InitialOffset]:
    group, topic, partition, topic_id, offset, source, start, end, log_topic_id, log_leader_epoch = columns
    bounds = LogBounds(start=start, end=end, topic_id=log_topic_id, leader_epoch=log_leader_epoch)
    key = (partition_of(group, topic, partition), TopicId(topic_id))
    return key, InitialOffset(offset=Offset(offset), source=source, bounds=bounds)


INITIAL: Final[Layout[InitialKey, InitialOffset]] = Layout(
    tables.initial_offset,
    (*PARTITION, "topic_id"),
    ("next_offset", "source", "log_start", "log_end", "log_topic_id", "log_leader_epoch"),
    _split_initial,
    _join_initial,
    lambda key: (*key[0], key[1]),
)


def _split_boundary(key: BoundaryKey, value: BoundaryOffset) -> Values:
    partition, topic_id, boundary = key
    return (*partition, topic_id, boundary, value.offset, documents.storable(value.inexact), value.leader_epoch)


def _join_boundary(columns: Row[Any]) -> tuple[BoundaryKey, BoundaryOffset]:
    group, topic, partition, topic_id, boundary, offset, inexact, leader_epoch = columns
    row = BoundaryOffset(offset=Offset(offset), inexact=inexact, leader_epoch=leader_epoch)
    return (partition_of(group, topic, partition), TopicId(topic_id), boundary), row


BOUNDARY_OFFSETS: Final[Layout[BoundaryKey, BoundaryOffset]] = Layout(
    tables.boundary_offset,
    (*PARTITION, "topic_id", "boundary"),
    ("next_offset", "inexact", "leader_epoch"),
    _split_boundary,
    _join_boundary,
    lambda key: (*key[0], key[1], key[2]),
)

# Maps by partition: the offsets of one checkpoint, the seek map of one epoch

OFFSETS: Final = MapLayout(tables.checkpoint_offset, "sequence", ("next_offset",))
READ_BACKS: Final = MapLayout(tables.read_back, "sequence", ("next_offset",))
FROZEN: Final = MapLayout(tables.checkpoint_partition, "sequence", ())

_REWINDS: Final = """coalesce(n.next_offset < (
        SELECT s.next_offset FROM kcr.seek_offset s
        WHERE s.region_id = :region AND s.group_id = n.group_id AND s.topic = n.topic AND s.partition = n.partition
          AND s.epoch = (SELECT max(r.epoch) FROM kcr.reset r WHERE r.region_id = :region AND r.epoch < n.epoch)
    ), true)"""
"""Of an entry `n` that is written: whether it is, or may be, before the one of the reset just before (`undone`)."""

SEEKS: Final = MapLayout(
    tables.seek_offset,
    "epoch",
    ("next_offset", "source", "current_offset", "clamped_from", "recreated"),
    derived=(("rewinds", _REWINDS),),
)

_SOURCES: Final = {str(source): source for source in SeekSource}


def offset_map(rows: Iterable[Row[Any]]) -> OffsetMap:
    """Return offsets by partition from their four columns."""
    return OffsetMap([(partition_of(g, t, p), Offset(o)) for g, t, p, o in rows])


def seek_map(rows: Iterable[Row[Any]]) -> SeekMap:
    """Return a seek map from the columns of a partition, and those of `SEEKS`."""
    return SeekMap(
        {
            partition_of(g, t, p): SeekEntry(
                offset=offset,
                source=_SOURCES[source],
                current=current,
                clamped_from=clamped_from,
                recreated=TopicId(recreated),
            )
            for g, t, p, offset, source, current, clamped_from, recreated in rows
        }
    )


def seek_values(entry: SeekEntry) -> Values:
    """Return an entry as the values of `SEEKS`."""
    return entry.offset, str(entry.source), entry.current, entry.clamped_from, entry.recreated


# Contributions: one row for the member, one for each partition

ContributionKey: TypeAlias = tuple[CheckpointNumber, MemberId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """The row of one member's contribution, without its offsets."""

    incarnation: Incarnation
    contributed_at: datetime


CONTRIBUTORS: Final[JsonLayout[ContributionKey, Contributor]] = of_dataclass(
    tables.contribution,
    Contributor,
    field=None,
    key=("sequence", *_MEMBER),
    key_values=lambda key: (key[0], key[1].group, key[1].index),
    read_key=lambda c: (CheckpointNumber(c[0]), member_of(c[1], c[2])),
)
CONTRIBUTED: Final = MapLayout(
    tables.contribution_offset,
    "sequence",
    (
        "member_index",
        "next_offset",
        "committed_offset",
        "log_start",
        "log_end",
        "log_topic_id",
        "log_leader_epoch",
    ),
)

CONTRIBUTIONS: Final = f"""json_agg(json_build_array({CONTRIBUTORS.selected("k")}, (
        SELECT json_agg(json_build_array({named(("topic", "partition", *CONTRIBUTED.values[1:]), "o")}))
        FROM kcr.contribution_offset o
        WHERE o.region_id = k.region_id AND o.sequence = k.sequence AND o.group_id = k.group_id
          AND o.member_index = k.member_index)))"""
"""All of contributions `k`."""


def contributions_from(found: list[Any] | None) -> dict[MemberId, Contribution]:
    """Return what `CONTRIBUTIONS` has read, by member in order."""
    return dict(sorted(_contribution(whole, rows or []) for whole, rows in found or []))


def _contribution(whole: list[Any], rows: Iterable[Row[Any]]) -> tuple[MemberId, Contribution]:
    (_, member), by = CONTRIBUTORS.join(whole)
    parts = [(partition_of(member.group, topic, partition), *held) for topic, partition, *held in rows]
    return member, Contribution(
        incarnation=by.incarnation,
        contributed_at=by.contributed_at,
        offsets=OffsetMap([(p, offset) for p, offset, *_ in parts]),
        committed=OffsetMap([(p, committed) for p, _, committed, *_ in parts if committed is not None]),
        bounds={
            p: LogBounds(start=start, end=end, topic_id=topic_id, leader_epoch=leader_epoch)
            for p, _, _, start, end, topic_id, leader_epoch in parts
            if start is not None
        },
    )


def contributed_rows(sequence: CheckpointNumber, member: MemberId, part: Contribution) -> Iterable[Values]:
    """Yield the rows of a contribution by partition: number, partition, and the values of `CONTRIBUTED`."""
    for p, offset in part.offsets.items():
        log = part.bounds.get(p)
        seen = (None,) * 4 if log is None else (log.start, log.end, log.topic_id, log.leader_epoch)
        yield sequence, *p, member.index, offset, part.committed.get(p), *seen


# Batches and events

BATCH_COLUMNS: Final = (
    "number",
    "batch_id",
    "group_id",
    "member_index",
    "incarnation",
    "epoch",
    "timeline",
    "sequence",
    "started_at",
    "started_after",
    "outcome",
    "finished_at",
    "finished_after",
    "quiesced_after",
    "proven_in",
)

BATCH_ALONE: Final = f"json_build_array({named(BATCH_COLUMNS, 'b')})"
"""A batch `b` without its ranges, as JSON."""

BATCH: Final = f"""json_build_array({named(BATCH_COLUMNS, "b")}, (
        SELECT json_agg(json_build_array(q.group_id, q.topic, q.partition, q.from_offset, q.to_offset))
        FROM kcr.batch_range q WHERE q.batch_number = b.number))"""
"""A batch `b` with its ranges, as JSON: they are five columns of a million rows otherwise."""

_OUTCOMES: Final[Mapping[str | None, Outcome | None]] = {None: None, **{str(outcome): outcome for outcome in Outcome}}


def batch_from(found: Row[Any]) -> Batch:
    """Return a batch that `BATCH` has read, as it is stored."""
    _, batch, group, index, incarnation, epoch, timeline, sequence, started_at, started_after, *rest = found
    outcome, finished_at, finished_after, quiesced_after, proven_in, ranges = rest
    return Batch(
        batch=batch,
        member=member_of(group, index),
        incarnation=incarnation,
        epoch=epoch,
        timeline=timeline,
        sequence=sequence,
        ranges={partition_of(g, t, p): Range(begin, end) for g, t, p, begin, end in sorted(ranges or ())},
        started_at=datetime.fromisoformat(started_at),
        started_after=started_after,
        outcome=_OUTCOMES[outcome],
        finished_at=finished_at and datetime.fromisoformat(finished_at),
        finished_after=finished_after,
        proven_in=proven_in,
        quiesced_after=quiesced_after and datetime.fromisoformat(quiesced_after),
    )


def started_columns(batch: Batch) -> dict[str, object]:
    """Return the parameters that store a batch, but for the partitions of its ranges."""
    return {
        "batch": batch.batch,
        "group": batch.member.group,
        "index": batch.member.index,
        "incarnation": batch.incarnation,
        "epoch": batch.epoch,
        "timeline": batch.timeline,
        "sequence": batch.sequence,
        "started_at": batch.started_at,
        "started_after": batch.started_after,
        "froms": [r.from_ for r in batch.ranges.values()],
        "tos": [r.to for r in batch.ranges.values()],
    }


EVENT_COLUMNS: Final = ("number", "at", "epoch", "timeline", "kind", "body")


def event_values(event: Event) -> Values:
    """Return an event as the values of its columns."""
    body = documents.write(event.body, type(event.body))
    return event.number, event.at, event.epoch, event.timeline, event.kind, body


def event_from(found: Found) -> Event:
    """Return an event from its columns."""
    number, at, epoch, timeline, kind, body = found
    return Event(number=number, at=at, epoch=epoch, timeline=timeline, body=event_from_json(kind, body))
