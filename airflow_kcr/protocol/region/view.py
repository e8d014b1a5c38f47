"""What one member sees of its region: everything its state machine decides from, and no more.

A view is read without the region lock, so it may be old the moment it is read. That is safe because every decision is
made again under the lock; a view only says what is worth asking for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_kcr.protocol import values
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap, SeekEntry
from airflow_kcr.protocol.region import rows
from airflow_kcr.protocol.targets import Target
from airflow_kcr.protocol.values import DesiredState, GroupPartition, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRegion:
    """The region, as one member sees it."""

    counter: values.EventNumber
    recorded_at: datetime | None = None
    """When the event of this number was recorded, by the store's clock; see `Region.recorded_at`."""

    epoch: values.Epoch
    timeline: values.Timeline
    state: rows.RegionState
    desired_state: DesiredState
    next_sequence: values.CheckpointNumber
    spec_digest: str
    """Of the spec in force."""

    incarnation: values.Incarnation
    """The member's newest incarnation in the store; another than one's own means fenced."""

    token: str = ""
    """Which process has it: another than one's own by one's own number is of a restored store. Empty: none has."""

    left: bool = False
    """Whether the store counts the member out: it left, or the spec has no place for it any more."""

    acknowledged: bool = False
    failures: int = 0
    """Resets for failed batches since progress was last accepted."""

    stopping: bool = False
    """Whether the region waits for the commits of its last checkpoint."""

    checkpoint: rows.Checkpoint | None = None
    """The open one."""

    contributed: bool = False
    """Whether the member has contributed to it."""

    publish: tuple[values.CheckpointNumber, ...] = ()
    """Complete checkpoints that this member shall publish now, in this order."""

    commit: values.CheckpointNumber | None = None
    """The restore point, where Kafka's commit read-back of this member's partitions is still awaited."""

    claims: Mapping[GroupPartition, rows.Claim] = field(default_factory=dict)
    """What the member holds in this epoch."""

    open: Mapping[GroupPartition, SeekEntry] = field(default_factory=dict)
    target: Target | None = None
    """The person's target that open entries ask for."""

    limit: datetime | None = None
    """The boundary that no batch may cross."""

    boundary_offsets: Mapping[GroupPartition, rows.BoundaryOffset] = field(default_factory=dict)
    """Where that boundary falls, as far as it is known."""

    restore_point: OffsetMap = EMPTY
    """The restore point's offsets of the member's partitions, if there is a boundary.

    Below them no boundary falls.
    """

    skips: Mapping[GroupPartition, tuple[Offset, ...]] = field(default_factory=dict)
    records_left: int | None = None
    """How many offsets may be started before the checkpoint by count."""

    initialised: bool = False
    """Whether a partition without initial offset was found later, and so starts at its beginning."""
