"""The recomputation of one checkpoint, as the process that carries it out asks it of the store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from airflow_kcr.api.regions import Handle, require_groups
from airflow_kcr.api.views import AnswerColumns, View
from airflow_kcr.errors import ConfigurationError, ResetInProgress, UpsertNeedsConsent
from airflow_kcr.protocol.region import recomputations, rows
from airflow_kcr.protocol.region.commands import (
    FailRecomputation,
    FinishRecomputation,
    RenewRecomputation,
    StartRecomputation,
)
from airflow_kcr.protocol.region.plans import require_checkpoint
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    EventNumber,
    GroupId,
    GroupPartition,
    Range,
    RequestId,
)
from airflow_kcr.spec import stored_spec

LEASE: Final = timedelta(seconds=60)
"""After how long a process that says nothing counts as lost. It holds up only another recomputation."""

_LOOK_AGAIN: Final = timedelta(seconds=2)
"""A region tells most of what happens in it; whether a reset is over is looked at as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputationView(View):
    """Where a recomputation stands."""

    shown = AnswerColumns["RecomputationView"](
        "region",
        ("timeline", lambda r: r.checkpoint.timeline),
        ("sequence", lambda r: r.checkpoint.sequence),
        ("boundary", lambda r: r.checkpoint.boundary),
        ("revision", lambda r: r.checkpoint.revision),
        ("request_id", lambda r: r.recomputation.request_id),
        ("state", lambda r: r.recomputation.state),
        ("groups", lambda r: list(r.recomputation.groups)),
        ("started_at", lambda r: r.recomputation.started_at),
        ("finished_at", lambda r: r.recomputation.finished_at),
        ("why", lambda r: r.recomputation.failure or None),
        table=("region", "sequence", "boundary", "revision", "state", "request_id", "finished_at", "why"),
    )

    region: str
    checkpoint: rows.Checkpoint
    recomputation: rows.Recomputation


class RegionRecomputation:
    """One recomputation of a checkpoint, from its start to its end; the checkpoint's records are read by the caller.

    Args:
        handle: the region, and who asks.
        sequence: the checkpoint's.
        groups: whose output is replaced; none: that of all groups.
        request_id: names it, so that another try finds it.
        consent_upsert: whether tables of mode `upsert` may be recomputed.
    """

    def __init__(
        self,
        handle: Handle,
        sequence: CheckpointNumber,
        groups: Sequence[str],
        request_id: RequestId,
        *,
        consent_upsert: bool = False,
    ) -> None:
        self.region, self.sequence, self.request_id = handle.name, sequence, request_id
        self._handle, self._groups, self._consents = handle, groups, consent_upsert
        self._token = uuid.uuid4().hex
        self._number = EventNumber(0)

    def done(self) -> RecomputationView | None:
        """Return what is done already under this request id; None: nothing is, and the checkpoint can be recomputed.

        Raises:
            UnknownCheckpoint, CheckpointNotUsable: there is none of that number, it is not published, was undone by a
                reset, or is retired.
        """
        row = recomputations.replaceable(self._handle.read(), self.sequence)
        known = recomputations.newest(row, self.request_id)
        is_done = known is not None and known.state is rows.RecomputationState.DONE
        return self.view(known) if known is not None and is_done else None

    def groups(self) -> tuple[GroupId, ...]:
        """Return the groups whose output is replaced.

        Raises:
            ConfigurationError: there is no such group, or one has no sink whose output could be replaced.
            UpsertNeedsConsent: a table of mode `upsert` is among the sinks.
        """
        return self._checked(self._handle.read())

    def begin(
        self, groups: tuple[GroupId, ...], ranges: Mapping[GroupPartition, tuple[Range, ...]]
    ) -> rows.Recomputation:
        """Begin it, and return it.

        Args:
            groups: as `groups` has returned them.
            ranges: what the checkpoint has of these groups, by the ledger.

        Raises:
            UnknownCheckpoint, CheckpointNotUsable: as for `done`.
            RecomputationRefused: the checkpoint is being recomputed under another request id.
        """
        command = StartRecomputation(
            sequence=self.sequence,
            request_id=self.request_id,
            token=self._token,
            groups=groups,
            ranges=ranges,
            lease=LEASE,
            requester=self._handle.requester,
        )
        begun = self._handle.store.handle(self._handle.name, command)
        self._number = begun.number
        return begun

    def renew(self) -> Region:
        """Say that it lives, and return the region.

        Raises:
            CheckpointNotUsable: a reset has undone the checkpoint, or it is retired.
            RecomputationRefused: another process has taken this one's place.
        """
        command = RenewRecomputation(sequence=self.sequence, number=self._number, lease=LEASE)
        return self._handle.store.handle(self._handle.name, command)

    def require_wanted(self) -> None:
        """Return if its output may be shown; to be asked while no reset of the sink can begin.

        Raises:
            CheckpointNotUsable, RecomputationRefused: as for `renew`.
            ResetInProgress: the region resets, and what that undoes may not be known yet.
        """
        self._require_no_reset(self.renew())

    def wait_for_resets(self, deadline: float) -> None:
        """Wait until the region is in no reset, so that what that undoes is known.

        Args:
            deadline: until when, by `time.monotonic`.

        Raises:
            CheckpointNotUsable, RecomputationRefused: as for `renew`.
            ResetInProgress: the region resets still.
        """
        region = self.renew()
        while region.state in rows.RESET_STATES and time.monotonic() < deadline:
            self._handle.store.wait(self.region, region.counter, _LOOK_AGAIN)
            region = self.renew()
        self._require_no_reset(region)

    def _require_no_reset(self, region: Region) -> None:
        if region.state in rows.RESET_STATES:
            raise ResetInProgress(
                f"region {self.region} resets, and may undo checkpoint {self.sequence}; recompute it when it runs"
            )

    def finish(self, batches: Sequence[Mapping[GroupPartition, Range]]) -> RecomputationView:
        """Say that the sinks show what was made, and return it.

        Args:
            batches: what was processed.

        Raises:
            CheckpointNotUsable, RecomputationRefused: as for `renew`; the sinks show it all the same.
        """
        command = FinishRecomputation(sequence=self.sequence, number=self._number, batches=tuple(batches))
        return self.view(self._handle.store.handle(self._handle.name, command))

    def fail(self, why: str) -> None:
        """Say that it came to nothing."""
        command = FailRecomputation(sequence=self.sequence, number=self._number, why=why)
        self._handle.store.handle(self._handle.name, command)

    def view(self, one: rows.Recomputation) -> RecomputationView:
        """Return where it stands, with its checkpoint as it is now."""
        row = require_checkpoint(self._handle.read(), self.sequence)
        return RecomputationView(region=self.region, checkpoint=row, recomputation=one)

    def _checked(self, region: Region) -> tuple[GroupId, ...]:
        """Return the groups, each with sinks that can be recomputed."""
        require_groups(region, self._groups)
        spec = stored_spec(region.spec.text)
        groups = tuple(GroupId(name) for name in dict.fromkeys(self._groups)) or tuple(sorted(region.rules.groups))
        without = [group for group in groups if not spec.group(group).sinks]
        if without:
            raise ConfigurationError(
                f"group {without[0]} has no sink in the spec of region {region.name}: what its pipeline writes by "
                "itself can't be replaced; recompute the other groups (--group), give it a sink, or, for a run of an "
                'interval that was cleared, let it find its checkpoint (on_clear="find")'
            )
        upserts = [f"{one.name} of group {group}" for group in groups for one in region.rules.groups[group].upserts]
        if upserts and not self._consents:
            raise UpsertNeedsConsent(
                f"sink {', '.join(upserts)} has mode upsert, which keeps one row a key: of checkpoint {self.sequence}, "
                "rows that it wrote last are replaced by what is made now, or go; rows that a later checkpoint has "
                "written stay, and what it had overwritten does not come back; to recompute it all the same, give "
                "--consent-upsert (consent_upsert=True in Python)"
            )
        return groups
