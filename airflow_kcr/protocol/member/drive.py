"""What follows from a member's facts: which state it is in, and what it wants done next.

This is level-triggered: it reads the facts, not the event that brought the last one, so a lost or repeated notification
changes nothing. `awaited` keeps an effect from being asked for twice; each rule asks for one thing. The order of the
rules is the order of importance: the lease, the end, the reset, the checkpoint, and only then the next batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from airflow_kcr.protocol.member import batch_steps, discovery, duties, presence, state_rules
from airflow_kcr.protocol.member.effects import Driven, Effect
from airflow_kcr.protocol.member.state import MemberMachine

RULES: Final[tuple[Callable[[MemberMachine, float], Driven], ...]] = (
    presence.lease,
    presence.report_later,
    batch_steps.doom,
    presence.store_away,
    presence.fenced,
    presence.terminate,
    presence.leave,
    batch_steps.ask_reset,
    batch_steps.pursue,
    presence.register,
    presence.join,
    duties.release,
    duties.claim,
    duties.reset,
    duties.contribute,
    duties.read_back,
    duties.commit,
    duties.publish,
    discovery.discover,
    discovery.report,
    discovery.rejoin,
    state_rules.place,
    duties.commit_seek,
    presence.reconcile,
    batch_steps.plan,
    presence.read,
)


def drive(member: MemberMachine, now: float) -> Driven:
    """Return the member in the state that its facts put it in, and the effects it wants.

    Args:
        member: the member, its newest fact recorded.
        now: monotonic seconds.
    """
    wanted: list[Effect] = []
    for rule in RULES:
        member, more = rule(member, now)
        wanted.extend(more)
    return member, tuple(wanted)
