"""What the API answers about checkpoints and about requests for checkpoints; rendered as in docs/reference/cli.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from airflow_kcr.api.reachability import Reach, reach
from airflow_kcr.api.views import instant
from airflow_kcr.errors import ConfigurationError, UnknownCheckpoint
from airflow_kcr.protocol.offsets import EMPTY, OffsetMap
from airflow_kcr.protocol.region import completion, retirement
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointRequest, Requester
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import checkpoint_of, contributions_to, offsets_of, request_of
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """One checkpoint in a line."""

    checkpoint: Checkpoint
    kept: str = ""
    """Why retirement leaves it; empty: age and count decide."""

    reach: Reach | None = None
    """Whether it can still be gone back to; None: it has no offsets."""

    @classmethod
    def newest_of(cls, region: StoredRegion, *, before: CheckpointNumber | None, last: int | None) -> tuple[Self, ...]:
        """Return checkpoints, the oldest first.

        Args:
            region: as it was read.
            before: only those of lower numbers; None: all.
            last: only so many of these, the newest; None: all.
        """
        rows = region.archive.checkpoints(before=before, last=last)
        kept, reaches = retirement.protected(region), reach(region, rows)
        return tuple(
            cls(
                checkpoint=row,
                kept=kept.get(row.sequence, "") or retirement.own_reason(row),
                reach=reaches.get(row.sequence),
            )
            for row in rows
        )

    def to_json(self) -> dict[str, object]:
        """Return the checkpoint as in `checkpoint list`."""
        row = self.checkpoint
        return {
            "sequence": row.sequence,
            "timeline": row.timeline,
            "state": str(row.state),
            "purpose": str(row.purpose),
            "boundary": instant(row.boundary),
            "inexact": bool(row.inexact),
            "committed": str(row.committed) if row.is_complete else None,
            "on_path": row.is_on_path if row.is_on_path or row.undone_by is not None else None,
            "undone_by": row.undone_by,
            "opened_at": instant(row.opened_at),
            "ended_at": instant(row.ended_at),
            "published_at": instant(row.published_at),
            "pinned_as": row.pinned_as or None,
            "kept_because": self.kept or None,
            "unreachable": None if self.reach is None else self.reach.is_unreachable,
            "overtaken_at": None if self.reach is None else instant(self.reach.overtaken_at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """One checkpoint with its offsets."""

    region: str
    checkpoint: Checkpoint
    requester: Requester
    offsets: OffsetMap
    """Of an open one, what was contributed so far; of an aborted or retired one, none."""

    read_backs: OffsetMap
    """What Kafka holds, as read back after the commit."""

    lacking: tuple[str, ...] = ()
    """What an open one waits for."""

    runs: tuple[Requester, ...] = ()
    """The DAG runs that it answers, in the order in which they asked."""

    @classmethod
    def of(cls, region: StoredRegion, sequence: CheckpointNumber) -> Self:
        """Return one checkpoint.

        Raises:
            UnknownCheckpoint: there is none of that sequence; the message names those that there are.
        """
        row = require_checkpoint(region, sequence)
        request = request_of(region, row.request_id)
        is_open = region.open_checkpoint == sequence
        parts = completion.merged(contributions_to(region, sequence)) if is_open else EMPTY
        return cls(
            region=region.name,
            checkpoint=row,
            requester=Requester() if request is None else request.requester,
            offsets=offsets_of(region, sequence) or EMPTY if row.is_complete else parts,
            read_backs=region.archive.read_backs(sequence) if row.is_complete else EMPTY,
            lacking=completion.lacking(region, row) if is_open else (),
            runs=_runs(region, sequence),
        )

    def inexact_at(self, partition: GroupPartition) -> str:
        """Return why the boundary does not separate a partition's records exactly; empty: it does."""
        return self.checkpoint.inexact.get(partition, "")

    def to_json(self) -> dict[str, object]:
        """Return the checkpoint as in `checkpoint show`."""
        row = self.checkpoint
        return {
            "region": self.region,
            "timeline": row.timeline,
            "sequence": row.sequence,
            "state": str(row.state),
            "boundary": instant(row.boundary),
            "inexact": bool(row.inexact),
            "requested_by": {"dag_id": self.requester.dag_id or None, "run_id": self.requester.run_id or None},
            "offsets": [
                {
                    "group": p.group,
                    "topic": p.topic,
                    "partition": p.partition,
                    "offset": offset,
                    "committed": self.read_backs.get(p),
                }
                for p, offset in self.offsets.items()
            ],
        }


def _runs(region: StoredRegion, sequence: CheckpointNumber) -> tuple[Requester, ...]:
    return tuple(one.requester for one in region.archive.requests_for([sequence]))


def require_checkpoint(region: StoredRegion, sequence: CheckpointNumber) -> Checkpoint:
    """Return a checkpoint's row.

    Raises:
        UnknownCheckpoint: there is none of that sequence; the message names those that there are.
    """
    row = checkpoint_of(region, sequence)
    if row is None:
        known = [str(other.sequence) for other in region.archive.checkpoints(last=10)]
        newest = f"its newest are {', '.join(known)}" if known else "it has none yet"
        raise UnknownCheckpoint(f"region {region.name} has no checkpoint {sequence}; {newest}")
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequestView:
    """Where a request for a checkpoint stands, and the checkpoint that answers it."""

    region: str
    request: CheckpointRequest
    checkpoint: Checkpoint | None

    @classmethod
    def of(cls, region: StoredRegion, request_id: RequestId) -> Self:
        """Return where the request of a request id stands.

        Raises:
            ConfigurationError: nobody has asked with that request id.
        """
        request = request_of(region, request_id)
        if request is None:
            raise ConfigurationError(
                f"nobody has asked region {region.name} for a checkpoint with the request id {request_id!r}"
            )
        sequence = request.sequence
        return cls(
            region=region.name,
            request=request,
            checkpoint=None if sequence is None else checkpoint_of(region, sequence),
        )

    def to_json(self) -> dict[str, object]:
        """Return the request as in `region drain`."""
        row = self.request
        return {
            "region": self.region,
            "request_id": row.request_id,
            "state": str(row.state),
            "boundary": instant(row.boundary),
            "sequence": row.sequence,
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint.state),
            "inexact": None if self.checkpoint is None else bool(self.checkpoint.inexact),
            "why": row.refusal or None,
        }
