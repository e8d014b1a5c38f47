"""A run: a stopped region is started for one checkpoint at a boundary, and stops with it.

Nothing of a run is remembered but its request: a process that takes over from another, or hosts the other members of
the same run, finds it by its id. A run whose processes have all gone is joined by the next one, and both get their
checkpoints, in the order of their boundaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from airflow_kcr.errors import CheckpointRefused, RegionInState
from airflow_kcr.protocol import values
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import (
    boundaries,
    checkpoints,
    completion,
    first_starts,
    lifecycle,
    requests,
    resets,
    rows,
    timelines,
)
from airflow_kcr.protocol.region.commands import CompleteAtRest, RequestCheckpoint, Run
from airflow_kcr.protocol.region.state import NO_SEEK, Region
from airflow_kcr.protocol.values import GroupPartition, drawn, format_instant, replace


def start(region: Region, now: datetime, run: Run) -> Region:
    """Return the region started for a run, and its checkpoint asked for.

    Raises:
        RegionInState: it is halted, runs by itself, or another run is under way, by the names of its members.
        CheckpointRefused: the boundary is yet to come, or lies before what the region has processed; or the request id
            names another request.
    """
    run, known = _agreed(region, run), region.request_of(run.request_id)
    if known is not None and _is_unshown(region, known):
        # They publish it before the region runs, and then it answers the request again, which stops the region.
        region = lifecycle.start(region, now, run.requester)
        return region.with_request(replace(known, state=rows.RequestState.QUEUED))
    if _is_known(region, run):
        return requests.ask(region, now, _request(run))
    _require_possible(region, now, run)
    if region.state is rows.RegionState.STOPPED:
        region = boundaries.located(region, now, run.boundary, run.found)
        region = lifecycle.start(region, now, run.requester)
    region = requests.ask(region, now, _request(run))
    # At once: a batch may begin before the checkpoint can be opened.
    return boundaries.with_next_boundary(region, now, region.next_boundary, "a run goes up to it")


def complete_at_rest(region: Region, now: datetime, command: CompleteAtRest) -> Region:
    """Return the region with a run's checkpoint complete, where it rests and has nothing to read; else as it was.

    A region that has never run rests where it begins. Where earlier boundaries are caught up with, members make their
    checkpoints.

    Raises:
        RegionInState, CheckpointRefused: as for `start`.
    """
    run = _agreed(region, command.run)
    if _is_known(region, run):
        return requests.ask(region, now, _request(run))
    _require_possible(region, now, run)
    if boundaries.catches_up(region, run.boundary):
        return region
    is_first = region.restore_point is None
    if not is_first and not _has_shown_all(region):
        return region
    begun = _begun(region, now, command) if is_first else region
    located = boundaries.located(begun, now, run.boundary, run.found)
    if not _has_nothing_to_read(located, run.boundary, command.logs):
        return region
    if not run.allow_inexact and boundaries.overshoot(located, run.boundary, located.universe()):
        return region  # it would begin past the boundary, which is refused of its members
    return _completed(located, now, _request(run))


def is_complete(region: Region, request_id: values.RequestId) -> bool:
    """Whether the checkpoint of a run is there."""
    request = region.request_of(request_id)
    return request is not None and requests.valid_answer(region, request) is not None


def _agreed(region: Region, run: Run) -> Run:
    """Return a run with the boundary that was asked for first under its request id, where it goes up to now."""
    known = region.request_of(run.request_id)
    if known is None or known.boundary is None or not run.is_up_to_now:
        return run
    return replace(run, boundary=known.boundary)


def _is_unshown(region: Region, request: rows.CheckpointRequest) -> bool:
    """Whether members have to come once more, as those who made a run's checkpoint went before it was published."""
    sequence = requests.valid_answer(region, request)
    row = None if sequence is None else region.checkpoint_of(sequence)
    return row is not None and row.published_at is None and region.state is rows.RegionState.STOPPED


def _request(run: Run) -> RequestCheckpoint:
    return drawn(RequestCheckpoint, run, then=values.DesiredState.STOPPED)


def _is_known(region: Region, run: Run) -> bool:
    """Whether the run's checkpoint is there or asked for."""
    known, covering = region.request_of(run.request_id), timelines.covering(region, run.boundary)
    is_there = covering is not None and covering.boundary == run.boundary
    return is_there or (known is not None and requests.is_served(region, known))


def _require_possible(region: Region, now: datetime, run: Run) -> None:
    if run.boundary > now + region.rules.checkpoint.grace:
        raise CheckpointRefused(
            f"until: {format_instant(run.boundary)} is yet to come (it is {format_instant(now)} by the store's clock); "
            "run the region then, or up to now"
        )
    if (covering := timelines.covering(region, run.boundary)) is not None and covering.boundary is not None:
        raise CheckpointRefused(
            f"until: the records before {format_instant(run.boundary)} are in checkpoint {covering.sequence} already, "
            f"which was made up to {format_instant(covering.boundary)}; run the region up to a later instant, or reset "
            "it before"
        )
    if region.halt is not None:
        choices = "; ".join(region.halt.choices)
        raise RegionInState(f"region {region.name} is halted: {region.halt.text}; choices: {choices}")
    if region.state is not rows.RegionState.STOPPED:
        _require_left(region, now)
        return
    for partition, row in run.found.items():
        place = region.claim_of(partition).resume
        if place is not None and place > region.past_skips(partition, row.offset) and not run.allow_inexact:
            raise CheckpointRefused(
                f"until: {partition} is at {place}, past the offset of {format_instant(run.boundary)}, "
                f"{row.offset}: run the region up to a later instant, or reset it before"
            )


def _require_left(region: Region, now: datetime) -> None:
    """Refuse a run beside members that are there for something else."""
    live = region.live_members(now)
    if not region.is_in_run:
        raise RegionInState(
            f"region {region.name} is {region.state} by itself, and a run would stop it: stop it before, with "
            "kcr region stop, or ask its members for a checkpoint, with kcr region drain --until"
        )
    if live:
        raise RegionInState(
            f"a run of region {region.name} is under way, by {', '.join(map(str, live))}: run it again when that one "
            "is over"
        )


def _begun(region: Region, now: datetime, command: CompleteAtRest) -> Region:
    """Return a region that has never run, stopped where it begins, in its first timeline.

    So the start of its members would leave it. No sink is told: none has output of it, and its next start tells them.
    """
    region = first_starts.met(region, now, command.begins)
    opened = resets.open_timeline(region, now, rows.ResetCause.START, NO_SEEK, command.run.requester.who)
    return resets.done_stopped(opened, now)


def _has_shown_all(region: Region) -> bool:
    """Whether a region is at its newest checkpoint, and the sinks show that."""
    checkpoint = region.restore_checkpoint
    return (
        checkpoint is not None
        and checkpoint.timeline == region.timeline
        and checkpoint.state is rows.CheckpointState.PUBLISHED
    )


def _has_nothing_to_read(region: Region, boundary: datetime, logs: Mapping[GroupPartition, LogBounds]) -> bool:
    """Whether the restore point of a stopped region has all that is to be read up to a boundary.

    Args:
        region: the region.
        boundary: the instant; its offsets are stored.
        logs: every log of the topics that its groups read, as read now.
    """
    partitions = region.universe()
    return (
        region.state is rows.RegionState.STOPPED
        and region.next_spec is None
        and not region.absent()
        and bool(partitions)
        and logs.keys() == partitions == region.restore_point_offsets().keys()
        and all(
            _rests(region, region.claims[p], boundaries.boundary_offset(region, p, boundary), logs[p])
            for p in partitions
        )
    )


def _rests(region: Region, claim: rows.Claim, row: rows.BoundaryOffset | None, log: LogBounds) -> bool:
    return (
        row is not None
        and claim.resume is not None
        and not claim.is_started
        and not claim.is_in_flight
        and claim.resume >= row.offset
        and claim.resume in log
        and not timelines.is_recreated(claim.topic_id, log.topic_id)
    )


def _completed(region: Region, now: datetime, request: RequestCheckpoint) -> Region:
    """Return the region, stopped, with a checkpoint that holds nothing new; no member takes part."""
    offsets = region.restore_point_offsets()
    region = requests.noted(region, now, request)
    asked = region.requests[request.request_id]
    region, checkpoint = checkpoints.opened(region, now, asked, {}, frozenset(offsets))
    return completion.complete(region, now, checkpoint, offsets)
