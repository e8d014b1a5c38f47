from __future__ import annotations

from typing import cast

import pytest

from airflow_kcr.errors import ProtocolError
from airflow_kcr.ports import CommittedOffset, always
from airflow_kcr.protocol.member import messages
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.commands import Caller
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, Incarnation, Offset, Timeline
from airflow_kcr.runtime.effects import Grouping, Happening
from airflow_kcr.runtime.leases import Identity, read_note
from airflow_kcr.runtime.metrics import Metrics
from tests.support.driver import group_rules
from tests.support.runtime_fakes import FLIGHTS, MEMBER, REGION_ID, FakeMembership, p

COMMIT = messages.Commit(
    sequence=CheckpointNumber(4), timeline=Timeline(1), epoch=Epoch(2), offsets=OffsetMap({p(0): Offset(7)})
)
SEEK = messages.CommitSeek(
    caller=Caller(member=MEMBER, incarnation=Incarnation(1), epoch=Epoch(3)),
    sequence=CheckpointNumber(6),
    timeline=Timeline(2),
    offsets=OffsetMap({p(0): Offset(5)}),
)


class Desk:
    """A member's place in its group, its loop's queue as a list."""

    def __init__(self) -> None:
        self.queue: list[Happening] = []
        self.failures: list[BaseException] = []
        self.metrics = Metrics()
        who = Identity(region=FLIGHTS, region_id=REGION_ID, member=MEMBER, group=group_rules(), timeouts=Timeouts())
        self.grouping = Grouping(who, FakeMembership, self.queue.append, self.failures.append, self.metrics)
        self.membership = cast("FakeMembership", self.grouping.membership)

    def loop(self) -> list[messages.Event]:
        """Take everything out of the queue; return the events."""
        heard: list[messages.Event] = []
        for happening in self.queue:
            if callable(happening):
                happening()
            else:
                heard.append(happening)
        self.queue.clear()
        return heard


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_equal_assignments_have_different_numbers(desk: Desk) -> None:
    desk.grouping.assigned(frozenset({p(0)}))
    desk.grouping.assigned(frozenset({p(0)}))
    first, second = desk.loop()
    assert isinstance(first, messages.Assigned)
    assert isinstance(second, messages.Assigned)
    assert first.partitions == second.partitions == {p(0)}
    assert second.assignment > first.assignment
    assert desk.metrics.counts.rebalances == 2


def test_kafka_gets_what_it_takes_when_the_member_releases_that_and_nothing_else() -> None:
    desk, released = Desk(), list[str]()
    desk.grouping.revoking(frozenset({p(0)}), lambda: released.append("first"))
    desk.grouping.revoking(frozenset({p(1)}), lambda: released.append("second"))
    assert desk.loop() == [messages.Revoking(partitions=frozenset({p(n)})) for n in (0, 1)]
    desk.grouping.release(messages.ReleasePartitions(partitions=frozenset({p(0)})))
    assert released == []
    desk.grouping.release(messages.ReleasePartitions(partitions=frozenset({p(1)})))
    assert released == ["second"]


def test_what_the_client_tells_is_put_into_the_queue_and_nothing_else_is_done(desk: Desk) -> None:
    desk.grouping.assigned(frozenset())
    desk.grouping.revoked()
    desk.grouping.left()
    desk.grouping.fenced("another process has the static id")
    desk.grouping.troubled("broker 1 is down")
    desk.grouping.failed(ProtocolError("the event thread failed"))
    # Counting is the loop's: nothing has happened in this thread.
    assert desk.metrics == Metrics()
    assigned, *notices = desk.loop()
    assert isinstance(assigned, messages.Assigned)
    assert notices == [messages.Notice.REVOKED, messages.Notice.LEFT_GROUP, messages.Notice.INSTANCE_FENCED]
    assert (desk.metrics.counts.troubles, desk.metrics.counts.last_trouble) == (2, "broker 1 is down")
    assert [str(one) for one in desk.failures] == ["the event thread failed"]


def test_a_commit_says_who_wrote_it(desk: Desk) -> None:
    desk.grouping.commit(COMMIT, always)
    note = read_note(desk.membership.notes[0])
    assert note is not None
    assert (note.region, note.region_id) == (FLIGHTS, REGION_ID)
    assert (note.timeline, note.sequence, note.epoch) == (1, 4, 2)


def test_the_commit_read_back_of_a_commit_is_what_kafka_holds_of_the_partitions_asked_for(desk: Desk) -> None:
    desk.membership.held = {p(1): CommittedOffset(offset=Offset(99))}
    desk.grouping.commit(COMMIT, always)
    assert desk.loop() == [messages.CommitAnswered(sequence=CheckpointNumber(4), offsets=OffsetMap({p(0): Offset(7)}))]
    assert desk.metrics.counts.failed_commits == 0


def test_a_commit_that_failed_is_counted_and_answered_with_what_kafka_holds(desk: Desk) -> None:
    desk.membership.held = {p(0): CommittedOffset(offset=Offset(3)), p(1): CommittedOffset(offset=Offset(9))}
    desk.membership.commit_failure = "the coordinator moved"
    desk.grouping.commit(COMMIT, always)
    held = OffsetMap({p(0): Offset(3)})
    assert desk.loop() == [messages.CommitAnswered(sequence=CheckpointNumber(4), offsets=held, failed=True)]
    assert desk.metrics.counts.failed_commits == 1
    assert "the coordinator moved" in desk.metrics.counts.last_trouble
    assert "checkpoint 4" in desk.metrics.counts.last_trouble


def test_where_a_reset_resumed_is_told_to_kafka_and_noted(desk: Desk) -> None:
    noted: list[str] = []
    desk.grouping.commit_seek(SEEK, noted.append, always)
    note = read_note(desk.membership.notes[0])
    assert note is not None
    assert (note.region, note.region_id) == (FLIGHTS, REGION_ID)
    assert (note.timeline, note.sequence, note.epoch) == (2, 6, 3)
    assert noted == [""]
    assert desk.loop() == []


def test_a_resume_that_kafka_did_not_take_is_counted_and_its_reason_noted(desk: Desk) -> None:
    noted: list[str] = []
    desk.membership.commit_failure = "not in the group"
    desk.grouping.commit_seek(SEEK, noted.append, always)
    assert noted == ["not in the group"]
    desk.loop()
    assert desk.metrics.counts.failed_commits == 1
