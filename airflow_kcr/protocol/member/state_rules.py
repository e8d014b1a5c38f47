"""Which state a member's facts mean."""

from __future__ import annotations

from airflow_kcr.protocol.member import state
from airflow_kcr.protocol.member.effects import Driven
from airflow_kcr.protocol.member.state import ACTIVE, MemberMachine, State, Why, moved
from airflow_kcr.protocol.region.rows import RESET_STATES, CheckpointPhase, DesiredState, RegionState
from airflow_kcr.protocol.region.view import MemberRegion


def place(member: MemberMachine, now: float) -> Driven:
    """Put the member into the state that its facts mean."""
    if member.state not in ACTIVE or (member.state is State.HOLDING and member.why is Why.STORE_AWAY):
        return member, ()
    view = member.view
    if member.incarnation is None or view is None:
        return moved(member, State.JOINING), ()
    if view.state is RegionState.HALTED or (member.batch is not None and member.batch.epoch != view.epoch):
        return moved(member, State.HOLDING, Why.RESET), ()
    if not state.has_claimed(member, view):
        return moved(member, State.JOINING), ()
    if view.state in RESET_STATES or not view.acknowledged:
        return moved(member, State.READY), ()
    return _processing(member, view, now), ()


def _processing(member: MemberMachine, view: MemberRegion, now: float) -> MemberMachine:
    approaching = view.checkpoint is not None and view.checkpoint.phase is CheckpointPhase.APPROACHING
    if view.state is RegionState.DRAINING or _is_committing(member, view, now):
        return moved(member, State.HOLDING, Why.DRAINED)
    if view.held_by:
        return moved(member, State.HOLDING, Why.FOREIGN_CONSUMER)
    if view.desired_state is not DesiredState.RUNNING and not approaching:
        return moved(member, State.HOLDING, Why.PAUSED)
    if member.batch is None and state.is_at_limit(member, view):
        return moved(member, State.HOLDING, Why.BOUNDARY)
    if now < member.retry_at:
        return moved(member, State.HOLDING, Why.RETRY)
    return moved(member, State.PROCESSING)


def _is_committing(member: MemberMachine, view: MemberRegion, now: float) -> bool:
    """Whether the member still waits for its own commit; it continues after the commit timeout without."""
    if view.commit is None or view.commit == member.commit_done:
        return False
    waited = now - member.commit_since if "commit" in member.awaited else 0.0
    return waited < state.seconds(member.timeouts.commit)
