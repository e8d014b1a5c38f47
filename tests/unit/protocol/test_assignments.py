"""Assignments and what changes between them."""

from __future__ import annotations

from airflow_kcr.protocol.member.state import Assignment, AssignmentChange
from airflow_kcr.protocol.values import AssignmentId, GroupId, GroupPartition, TopicName


def partitions(*numbers: int) -> frozenset[GroupPartition]:
    return frozenset(GroupPartition(GroupId("g"), TopicName("t"), n) for n in numbers)


def assigned(number: int, *numbers: int) -> Assignment:
    return Assignment(assignment=AssignmentId(number), partitions=partitions(*numbers))


def test_after_a_revoke_everything_is_added() -> None:
    assert assigned(1, 0, 1).since(None) == AssignmentChange(added=partitions(0, 1))


def test_an_equal_assignment_changes_nothing_and_is_another_one() -> None:
    first, second = assigned(1, 0), assigned(2, 0)
    assert not second.since(first)
    assert first != second
