"""Who a member's process is, for the store and for Kafka."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.commands import Register, ReportNoted
from airflow_kcr.protocol.region.rows import Noted
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import BatchId, CheckpointNumber, Epoch, GroupPartition, MemberId, RegionName, Timeline


def _token() -> str:
    return uuid.uuid4().hex


def _label() -> str:
    return f"{socket.gethostname()}, process {os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One start of one member."""

    region: RegionName
    member: MemberId
    group: GroupRules
    timeouts: Timeouts
    takeover: bool = False
    """Whether a live lease of another process is superseded (Airflow's retry of the same task)."""

    spec_revision: int | None = None
    """Of the spec that the member is built from; None: that is not checked."""

    label: str = field(default_factory=_label)
    """Host and process, for people."""

    version: str = ""
    """Of the package that the process runs; empty: it does not say."""

    token: str = field(default_factory=_token)
    """Unique for each start: a repeated registration is recognised by it, and batches are named after it."""

    def registration(self, *, sinks_fenced: bool) -> Register:
        """Return how this process registers the member.

        Args:
            sinks_fenced: whether every sink of the pipeline refuses an older epoch by itself.
        """
        return Register(
            member=self.member,
            token=self.token,
            label=self.label,
            version=self.version,
            takeover=self.takeover,
            sinks_fenced=sinks_fenced,
            ends_within=self.timeouts.process_end_limit,
            spec_revision=self.spec_revision,
        )

    def batch_id(self, number: int) -> BatchId:
        """Return the id of this start's batch of that number; no other batch ever has it."""
        return BatchId(f"{self.token}-{number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitNote:
    """What a region writes beside the offsets that it commits, as Kafka's metadata."""

    region: RegionName
    timeline: Timeline
    sequence: CheckpointNumber
    epoch: Epoch

    def text(self) -> str:
        """Return the metadata: JSON, far below Kafka's limit of 4096 bytes."""
        return json.dumps(
            {"region": self.region, "timeline": self.timeline, "sequence": self.sequence, "epoch": self.epoch},
            separators=(",", ":"),
        )


def later_note(
    region: RegionName, member: MemberId, held: Mapping[GroupPartition, CommittedOffset], newest: CheckpointNumber
) -> ReportNoted | None:
    """Return what to tell a store that knows less than Kafka's commit metadata: it was restored. None: it does not.

    Args:
        region: the region's name; what others wrote does not count.
        member: who tells it.
        held: the committed offsets of the member's partitions.
        newest: the newest checkpoint number that the store has used.
    """
    notes = [(place, note) for place, row in held.items() if (note := read_note(row.metadata)) is not None]
    later = [(p, note) for p, note in notes if note.region == region and note.sequence > newest]
    if not later:
        return None
    place, last = max(later, key=lambda one: (max(one[1].epoch, one[1].sequence, one[1].timeline), one[0]))
    noted = Noted(member=member, epoch=last.epoch, sequence=last.sequence, timeline=last.timeline)
    return ReportNoted(partition=place, noted=noted)


def read_note(metadata: str) -> CommitNote | None:
    """Return what was written by `CommitNote.text`; None if another program wrote it, or there is none."""
    try:
        value = json.loads(metadata)
        return CommitNote(
            region=RegionName(str(value["region"])),
            timeline=Timeline(int(value["timeline"])),
            sequence=CheckpointNumber(int(value["sequence"])),
            epoch=Epoch(int(value["epoch"])),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        # The last two: JSON's Infinity, and brackets without end.
        return None
