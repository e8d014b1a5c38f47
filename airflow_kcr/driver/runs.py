"""A run of a region in one process: all members of all groups, started for one checkpoint and gone with it."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from airflow_kcr.api import Region, runs
from airflow_kcr.api.checkpoints import CheckpointRequestView
from airflow_kcr.api.group_readers import real_reader
from airflow_kcr.api.regions import Handle
from airflow_kcr.driver.application import MemberRun
from airflow_kcr.driver.process import run_members
from airflow_kcr.driver.starting import START_WITHIN, StartPatience
from airflow_kcr.errors import CheckpointRefused, ConfigurationError
from airflow_kcr.protocol.region.rows import RequestState
from airflow_kcr.protocol.values import GroupId, MemberId
from airflow_kcr.spec import RegionSpec
from airflow_kcr.store.regions import RegionStore


def run_region(store: RegionStore, run: MemberRun, *, start_within: timedelta = START_WITHIN) -> CheckpointRequestView:
    """Carry a run out, and return its request, answered by a checkpoint; Spark is started only where there is work.

    Args:
        store: where the region is.
        run: what is wanted, and who is to be started for it.
        start_within: how long to wait while the store, a broker or a sink's database is away.

    Raises:
        KcrError: as `Region.run`, and `run_members`.
        CheckpointRefused: the run has ended without a checkpoint, as the region was stopped, killed or halted.
    """
    if run.wanted is None:
        raise ConfigurationError(f"no run of region {run.region} is wanted; name it, or use run_members")
    handle = Handle(store, run.region, real_reader, run.requester)
    patience = StartPatience(run.region, start_within)
    if not patience.answered(partial(runs.is_done_at_rest, handle, run.wanted)):
        run_members(store, run, start_within=start_within)
    asked = Region(run.region, store).checkpoint_request(run.wanted.request_id)
    if asked.request.state is not RequestState.ANSWERED:
        raise CheckpointRefused(
            f"the run of region {run.region} has ended without its checkpoint: "
            f"{asked.request.refusal or f'its request is {asked.request.state}'}; run it again to go on"
        )
    return asked


def members_of(spec: RegionSpec) -> tuple[MemberId, ...]:
    """Return every member of a region."""
    return tuple(MemberId(GroupId(group.group_id), index) for group in spec.groups for index in range(group.members))
