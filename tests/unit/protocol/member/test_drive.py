from __future__ import annotations

import inspect

from airflow_kcr.protocol.member import discovery, drive, duties, messages, presence
from airflow_kcr.protocol.member.state import State
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.values import CheckpointNumber
from tests.support import answers
from tests.support.lone_member import LoneMember, claims_of, view_of

MODULES = (drive, presence, duties, discovery)


def rules_of(module: object) -> set[str]:
    """Return the names of a module's own public functions."""
    return {
        name
        for name, value in inspect.getmembers(module, inspect.isfunction)
        if value.__module__ == module.__name__ and not name.startswith("_")  # type: ignore[attr-defined]
    }


def test_every_rule_of_the_member_is_asked() -> None:
    asked = {(rule.__module__, rule.__name__) for rule in drive.RULES}
    rules = {(module.__name__, name) for module in MODULES for name in rules_of(module)}
    assert asked == rules - {(drive.__name__, drive.drive.__name__)}


def test_facts_and_not_the_event_decide_so_a_repeated_hint_changes_nothing() -> None:
    lone = LoneMember().processing()
    once = lone.member
    assert lone.feed(messages.Notice.TICK) == ()
    assert lone.member == once


def test_several_things_may_follow_from_one_event_in_the_order_of_their_importance() -> None:
    lone = LoneMember().processing()
    lone.now = 3.0
    lone.see(view_of(claims_of()))
    assert isinstance(lone.last[0], commands.Renew)


def test_a_member_that_is_closed_wants_nothing_more() -> None:
    lone = LoneMember()
    lone.feed(messages.Notice.TICK, answers.registration_refused(why="no such index"))
    assert lone.state is State.CLOSED
    assert lone.feed(messages.Notice.TICK, answers.publication_failed(sequence=CheckpointNumber(1))) == ()
