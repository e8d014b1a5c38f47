"""The recomputation of one checkpoint, as the process that carries it out asks it of the store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final, TypeAlias

from airflow_kcr.api.checkpoint_context import context
from airflow_kcr.api.regions import Handle, require_groups
from airflow_kcr.api.views import AnswerColumns, View, of
from airflow_kcr.errors import ConfigurationError, ResetInProgress, UpsertNeedsConsent
from airflow_kcr.protocol import values
from airflow_kcr.protocol.region import recomputations, rows
from airflow_kcr.protocol.region.commands import (
    FailRecomputation,
    FinishRecomputation,
    RenewRecomputation,
    StartRecomputation,
)
from airflow_kcr.protocol.region.lookup import require_checkpoint
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.spec import RegionSpec, stored_spec
from airflow_kcr.spec.elsewhere import with_sinks

LEASE: Final = timedelta(seconds=60)
"""After how long a process that says nothing counts as lost. It holds up only another recomputation."""

_LOOK_AGAIN: Final = timedelta(seconds=2)
"""A region tells most of what happens in it; whether a reset is over is looked at as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """What is made takes the place of the checkpoint's output."""

    purpose: ClassVar[rows.RecomputationPurpose] = rows.RecomputationPurpose.REPLACE
    consent_upsert: bool = False
    """Whether tables of mode `upsert` may be recomputed."""

    consent_compacted: bool = False
    """Whether topics that are compacted may be read once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Into:
    """What is made goes into other sinks; those of the region are not touched."""

    purpose: ClassVar[rows.RecomputationPurpose] = rows.RecomputationPurpose.INTO
    sinks: Mapping[str, object]
    """By group and name, as a spec has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """What is made is compared with the checkpoint's output, and dropped."""

    purpose: ClassVar[rows.RecomputationPurpose] = rows.RecomputationPurpose.COMPARE
    key: tuple[str, ...]
    """The columns that name a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRows:
    """One key whose rows differ."""

    key: Mapping[str, object]
    """The key's columns, with their values as JSON has them."""

    before: tuple[Mapping[str, object], ...]
    """The other columns of each row that is shown; none: there is no such key."""

    after: tuple[Mapping[str, object], ...]
    """Those of each row that would take their place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison(View):
    """How the output that one sink shows of a checkpoint differs from what its records make now, by keys."""

    shown = AnswerColumns["OutputComparison"](
        *("sequence", "group", "sink", "key", "rows_before", "rows_after", "same", "different"),
        *("only_before", "only_after", "columns_only_before", "columns_only_after", "examples"),
        table=(
            *("sequence", "group", "sink", "rows_before", "rows_after"),
            *("same", "different", "only_before", "only_after"),
        ),
    )

    sequence: int
    """The checkpoint's."""

    group: str
    sink: str
    key: tuple[str, ...]
    rows_before: int
    rows_after: int
    same: int
    """Keys with the same rows on both sides."""

    different: int
    only_before: int
    only_after: int
    columns_only_before: tuple[str, ...]
    """Columns that are not compared, as the other side lacks them."""

    columns_only_after: tuple[str, ...]
    examples: Mapping[str, tuple[ComparedRows, ...]]
    """Of each kind of difference (`different`, `only_before`, `only_after`) the first keys."""


RecomputedOutput: TypeAlias = Replace | Into | Compare
"""What becomes of what a recomputation makes."""

REPLACE: Final = Replace()
"""It takes the place of the checkpoint's output, if no table of mode `upsert` is among it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputationView(View):
    """Where a recomputation stands."""

    shown = AnswerColumns["RecomputationView"](
        "region",
        *of("checkpoint", "timeline", "sequence", "boundary", "revision"),
        *of("recomputation", "request_id", "state", "purpose", "into", "groups", "started_at", "finished_at"),
        ("why", lambda r: r.recomputation.failure or None),
        table=("region", "sequence", "boundary", "revision", "purpose", "state", "request_id", "finished_at", "why"),
    )

    region: str
    checkpoint: rows.Checkpoint
    recomputation: rows.Recomputation
    comparisons: tuple[OutputComparison, ...] = ()
    """Of each sink, where the output was compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputationPlan(View):
    """What a recomputation would process again, and whose output it would replace."""

    shown = AnswerColumns["RecomputationPlan"](
        "region", *of("checkpoint", "sequence", "boundary", "revision"), "offsets", "groups", "sinks", "upserts"
    )

    region: str
    checkpoint: rows.Checkpoint
    offsets: int
    """How many are processed again, at most as many records."""

    groups: tuple[str, ...]
    sinks: tuple[str, ...]
    """Whose output is replaced, as `GROUP/SINK: KIND PLACE`."""

    upserts: tuple[str, ...]
    """Tables of mode `upsert` among them, which take a consent."""


class RegionRecomputation:
    """One recomputation of a checkpoint, from its start to its end; the checkpoint's records are read by the caller.

    Args:
        handle: the region, and who asks.
        sequence: the checkpoint's.
        groups: whose records are processed; none: those of all groups, or of those that have other sinks.
        request_id: names it, so that another try finds it.
        output: what becomes of what is made.
    """

    def __init__(
        self,
        handle: Handle,
        sequence: values.CheckpointNumber,
        groups: Sequence[str],
        request_id: values.RequestId,
        output: RecomputedOutput,
    ) -> None:
        self.region, self.sequence, self.request_id, self.output = handle.name, sequence, request_id, output
        self._handle, self._groups = handle, groups
        self._token = uuid.uuid4().hex
        self._number = values.EventNumber(0)

    def done(self) -> RecomputationView | None:
        """Return what is done already under this request id; None: nothing is, and the checkpoint can be recomputed.

        Raises:
            UnknownCheckpoint, CheckpointNotUsable: there is none of that number, it is not published, was undone by a
                reset, or is retired.
            ConfigurationError: the other sinks are declared wrongly.
            RecomputationRefused: the request id names another recomputation.
        """
        region = self._handle.read()
        places = self._places(self._spec(region))
        known = recomputations.done(region, self.sequence, self.request_id, self.output.purpose, places)
        return None if known is None else self.view(known)

    def plan(self) -> RecomputationPlan:
        """Return what it would do, as far as the store knows; changes nothing, and Kafka is not asked.

        Raises:
            UnknownCheckpoint, CheckpointNotUsable: as for `done`.
            ConfigurationError: as for `groups`.
        """
        region = self._handle.read()
        row = recomputations.replaceable(region, self.sequence)
        groups, spec = self._with_sinks(region), self._spec(region)
        own = [one for one in context(region, self.sequence).ranges if one.partition.group in groups]
        return RecomputationPlan(
            region=self.region,
            checkpoint=row,
            offsets=sum(one.range.width for one in own),
            groups=groups,
            sinks=_sinks(spec, groups),
            upserts=tuple(_upserts(region, groups)),
        )

    def spec(self) -> RegionSpec:
        """Return the spec whose pipelines and sinks are taken.

        Raises:
            ConfigurationError: the other sinks are declared wrongly, or are of no group of the region.
        """
        return self._spec(self._handle.read())

    def groups(self) -> tuple[values.GroupId, ...]:
        """Return the groups whose records are processed.

        Raises:
            ConfigurationError: there is no such group, or one has no sink whose output could be replaced; the other
                sinks are declared wrongly.
            UpsertNeedsConsent: a table of mode `upsert` is among the sinks whose output is replaced.
        """
        region = self._handle.read()
        groups = self._with_sinks(region)
        upserts = _upserts(region, groups)
        if upserts and isinstance(self.output, Replace) and not self.output.consent_upsert:
            raise UpsertNeedsConsent(
                f"sink {', '.join(upserts)} has mode upsert, which keeps one row a key: of checkpoint {self.sequence}, "
                "rows that it wrote last are replaced by what is made now, or go; rows that a later checkpoint has "
                "written stay, and what it had overwritten does not come back; to recompute it all the same, give "
                "--consent-upsert (consent_upsert=True in Python)"
            )
        return groups

    def begin(
        self, groups: tuple[values.GroupId, ...], ranges: Mapping[values.GroupPartition, tuple[values.Range, ...]]
    ) -> rows.Recomputation:
        """Begin it, and return it.

        Args:
            groups: as `groups` has returned them.
            ranges: what the checkpoint has of these groups, by the ledger.

        Raises:
            UnknownCheckpoint, CheckpointNotUsable: as for `done`.
            RecomputationRefused: the checkpoint is being recomputed under another request id, or this one names another
                recomputation.
        """
        command = StartRecomputation(
            sequence=self.sequence,
            request_id=self.request_id,
            token=self._token,
            groups=groups,
            ranges=ranges,
            purpose=self.output.purpose,
            into=self._places(self.spec()),
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

    def finish(
        self,
        batches: Sequence[Mapping[values.GroupPartition, values.Range]],
        comparisons: Sequence[OutputComparison] = (),
        tables: Sequence[TableVersion] = (),
    ) -> RecomputationView:
        """Say that the sinks show what was made, or that it was compared, and return it.

        Args:
            batches: what was processed.
            comparisons: with what was there.
            tables: what tables that people own have of it.

        Raises:
            CheckpointNotUsable, RecomputationRefused: as for `renew`; the sinks show it all the same.
        """
        command = FinishRecomputation(
            sequence=self.sequence, number=self._number, batches=tuple(batches), tables=tuple(tables)
        )
        return values.replace(
            self.view(self._handle.store.handle(self._handle.name, command)), comparisons=tuple(comparisons)
        )

    def fail(self, why: str) -> None:
        """Say that it came to nothing."""
        command = FailRecomputation(sequence=self.sequence, number=self._number, why=why)
        self._handle.store.handle(self._handle.name, command)

    def view(self, one: rows.Recomputation) -> RecomputationView:
        """Return where it stands, with its checkpoint as it is now."""
        row = require_checkpoint(self._handle.read(), self.sequence)
        return RecomputationView(region=self.region, checkpoint=row, recomputation=one)

    def _spec(self, region: Region) -> RegionSpec:
        spec = stored_spec(region.spec.text)
        return with_sinks(spec, self.output.sinks) if isinstance(self.output, Into) else spec

    def _places(self, spec: RegionSpec) -> tuple[str, ...]:
        if not isinstance(self.output, Into):
            return ()
        return _sinks(spec, [group.group_id for group in spec.groups])

    def _with_sinks(self, region: Region) -> tuple[values.GroupId, ...]:
        """Return the groups, each with sinks."""
        require_groups(region, self._groups)
        spec = self._spec(region)
        known = [group.group_id for group in spec.groups]
        groups = tuple(values.GroupId(name) for name in sorted(dict.fromkeys(self._groups) or known))
        missing = [group for group in groups if group not in known]
        if missing:
            raise ConfigurationError(f"into names no sinks of group {missing[0]}; name them, or leave the group out")
        without = [group for group in groups if not spec.group(group).sinks]
        if without:
            raise ConfigurationError(
                f"group {without[0]} has no sink in the spec of region {region.name}: what its pipeline writes by "
                "itself can't be replaced; recompute the other groups (--group), give it a sink, or, for a run of an "
                'interval that was cleared, let it find its checkpoint (on_clear="find")'
            )
        return groups


def _sinks(spec: RegionSpec, groups: Sequence[str]) -> tuple[str, ...]:
    sinks = ((group.group_id, sink) for group in spec.groups if group.group_id in groups for sink in group.sinks)
    return tuple(f"{group}/{sink.name}: {sink.kind} {sink.place}" for group, sink in sinks)


def _upserts(region: Region, groups: Sequence[values.GroupId]) -> list[str]:
    return [f"{one.name} of group {group}" for group in groups for one in region.rules.groups[group].upserts]
