"""What is made of partitions that the brokers have and no member owns: noted, waited for, named; and who joins anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.errors import StaleIncarnation
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.region import coverage, events
from airflow_kcr.protocol.region.commands import KillRegion, PartitionAdvice, ReportGroups, ReportPartitions
from airflow_kcr.protocol.region.rows import CheckpointPurpose, RegionState, RequestState, ResetCause
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import ForeignConsumerPolicy, RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, Incarnation, RequestId
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.judging import happened, judge
from tests.support.scripts import boundary, started
from tests.support.verifying import verify

REJOIN = Timeouts().rejoin_after.total_seconds()
WAIT = Timeouts().unowned_wait.total_seconds()
QUIESCED, AGAIN, REJOINS = (
    PartitionAdvice(),
    PartitionAdvice(report_again=True),
    PartitionAdvice(report_again=True, rejoin=True),
)


def region_of(members: int = 1, partitions: int = 2) -> Driver:
    """A region that runs, with a checkpoint of all that there was."""
    driver = started(Driver(members=members, partitions=partitions))
    checkpoint(driver, "first")
    return driver


def checkpoint(driver: Driver, request_id: str) -> CheckpointNumber:
    """A checkpoint that is complete and published."""
    driver.request_checkpoint(request_id)
    sequence = driver.complete()
    driver.publish()
    return sequence


def report(driver: Driver, index: int = 0, group: str = "g") -> PartitionAdvice:
    return driver.report_partitions(driver.member(index, group))


def grown(driver: Driver, number: int = 2, group: str = "g") -> GroupPartition:
    """One more partition, which Kafka assigns to no member."""
    fresh = driver.partition(number, group)
    driver.grow(fresh, end=500)
    return fresh


def resetting(driver: Driver) -> Region:
    """The region in a reset, in which no member has claimed."""
    return driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED)


# -- noted ------------------------------------------------------------------------------------------------------------


def test_a_partition_without_an_owner_is_told_once_with_since_when_and_forgotten_when_it_is_claimed() -> None:
    driver = region_of()
    fresh = grown(driver)
    since = driver.clock.now
    assert report(driver) == AGAIN
    driver.wait(5)
    assert report(driver) == AGAIN
    assert coverage.unowned(driver.region) == {fresh: since}
    assert happened(driver, events.PartitionsUnowned) == [events.PartitionsUnowned(partitions=(fresh,))]
    driver.spread()
    assert coverage.unowned(driver.region) == {}
    assert report(driver) == QUIESCED
    judge(driver)


def test_a_partition_whose_topic_is_gone_again_is_forgotten() -> None:
    driver = region_of()
    fresh = grown(driver)
    report(driver)
    del driver.logs[fresh]
    assert report(driver) == QUIESCED
    assert [e.partitions for e in happened(driver, events.PartitionsUnowned)] == [(fresh,), ()]


def test_a_partition_that_was_given_back_and_that_nobody_gets_has_no_owner() -> None:
    driver = region_of(partitions=2)
    driver.claim(driver.member(0), [driver.partition(0)])
    assert report(driver) == AGAIN
    assert list(coverage.unowned(driver.region)) == [driver.partition(1)]


def test_topics_that_the_spec_does_not_read_are_none_of_the_regions() -> None:
    driver = region_of()
    driver.grow(driver.partition(0, topic="other"), end=5)
    assert report(driver) == QUIESCED


def test_two_groups_are_told_of_apart() -> None:
    rules = RegionRules(groups={GroupId(g): group_rules(g, members=1) for g in ("a", "b")})
    driver = started(Driver(rules=rules, partitions=1))
    here, there = grown(driver, 1, "a"), grown(driver, 1, "b")
    assert report(driver, group="a") == AGAIN
    assert report(driver, group="b") == AGAIN
    assert set(coverage.unowned(driver.region)) == {here, there}
    driver.claim(driver.member(0, "a"), [driver.partition(0, "a"), here])
    assert report(driver, group="a") == QUIESCED
    assert set(coverage.unowned(driver.region)) == {there}


def test_a_process_that_is_not_the_member_any_more_is_not_believed() -> None:
    driver = region_of()
    inventory = ReportPartitions(member=driver.member(0), incarnation=Incarnation(0), partitions=frozenset())
    with pytest.raises(StaleIncarnation):
        driver.handle(inventory)


def test_a_stop_forgets_what_had_no_owner() -> None:
    driver = region_of()
    grown(driver)
    report(driver)
    driver.handle(KillRegion())
    assert coverage.unowned(driver.region) == {}
    judge(driver)


# -- who joins anew ---------------------------------------------------------------------------------------------------


def test_a_member_joins_anew_when_no_rebalance_comes_by_itself() -> None:
    driver = region_of(members=2, partitions=2)
    fresh = grown(driver)
    assert report(driver) == AGAIN
    driver.wait(REJOIN - 1)
    assert report(driver) == AGAIN
    assert coverage.overdue(driver.region, driver.clock.now) == {}
    driver.wait(1)
    assert (report(driver, 0), report(driver, 1)) == (REJOINS, AGAIN), "one of the group is enough"
    assert list(coverage.overdue(driver.region, driver.clock.now)) == [fresh]


def test_a_member_joins_anew_for_what_a_reset_waits_for() -> None:
    driver = region_of(members=2, partitions=2)
    resetting(driver)
    driver.claim(driver.member(0), [driver.partition(0)])
    driver.claim(driver.member(1), [])
    assert report(driver) == AGAIN
    driver.wait(REJOIN)
    assert (report(driver, 0), report(driver, 1)) == (REJOINS, AGAIN)
    driver.spread()
    driver.finish_reset()
    assert driver.region.state is RegionState.RUNNING
    assert report(driver) == QUIESCED
    judge(driver)


def test_nobody_joins_anew_in_a_reset_for_what_it_does_not_wait_for() -> None:
    driver = region_of(members=2, partitions=2)
    resetting(driver)
    grown(driver)
    driver.claim(driver.member(0), [driver.partition(0)])
    driver.claim(driver.member(1), [driver.partition(1)])
    report(driver)
    driver.wait(REJOIN)
    assert (report(driver, 0), report(driver, 1)) == (AGAIN, AGAIN)


def test_nobody_joins_anew_while_an_owner_is_down_whose_slot_kafka_keeps() -> None:
    driver = region_of(members=2, partitions=2)
    grown(driver)
    driver.crash(driver.member(1))
    driver.wait(60)
    assert report(driver) == AGAIN
    driver.wait(REJOIN)
    assert report(driver) == AGAIN
    driver.join(driver.member(1))
    assert report(driver) == REJOINS, "back with its old assignment, and all are there"


def test_nobody_joins_anew_for_what_a_foreign_consumer_has() -> None:
    driver = started(
        Driver(
            rules=RegionRules(groups={GROUP: group_rules(members=1)}, foreign_consumers=ForeignConsumerPolicy.WARN),
            partitions=2,
        )
    )
    grown(driver)
    report(driver)
    driver.wait(REJOIN)
    driver.handle(ReportGroups(seen={GROUP: (ForeignConsumer(group=GROUP, client_id="console"),)}))
    assert report(driver) == AGAIN
    driver.handle(ReportGroups(seen={GROUP: ()}))
    assert report(driver) == REJOINS


# -- checkpoints
# -------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_waits_for_a_partition_without_an_owner() -> None:
    driver = region_of()
    grown(driver)
    report(driver)
    driver.request_checkpoint("n")
    driver.wait(WAIT / 2)
    assert driver.region.requests[RequestId("n")].state is RequestState.QUEUED
    driver.spread()
    driver.wait(1)
    sequence = driver.complete()
    row = driver.region.checkpoints[sequence]
    assert len(driver.region.offsets[sequence]) == 3
    assert not row.inexact
    judge(driver)


def test_a_checkpoint_that_has_waited_long_enough_goes_on_without_and_names_what_it_lacks() -> None:
    driver = region_of()
    fresh = grown(driver)
    report(driver)
    driver.request_checkpoint("n", purpose=CheckpointPurpose.DRAIN)
    driver.wait(WAIT + 1)
    assert driver.region.requests[RequestId("n")].state is RequestState.OPEN, "time alone opens it"
    sequence = driver.complete()
    row = driver.region.checkpoints[sequence]
    assert row.inexact.keys() == {fresh}
    assert "without an owner since 2026-01-01" in row.inexact[fresh]
    judge(driver)


def test_a_dag_run_that_wants_an_exact_checkpoint_is_refused_one_that_lacks_a_partition() -> None:
    driver = region_of()
    fresh = grown(driver)
    report(driver)
    driver.wait(WAIT + 1)
    asked = driver.request_checkpoint("n", boundary=boundary(1))
    assert asked.state is RequestState.REFUSED
    assert str(fresh) in asked.refusal
    assert driver.request_checkpoint("m", boundary=boundary(1), allow_inexact=True).state is RequestState.OPEN


def test_a_checkpoint_that_was_opened_before_a_partition_was_found_is_tried_again_with_it() -> None:
    driver = region_of()
    driver.request_checkpoint("n")
    assert driver.region.state is RegionState.DRAINING
    fresh = grown(driver)
    report(driver)
    assert driver.region.open_checkpoint is None
    assert driver.region.requests[RequestId("n")].state is RequestState.QUEUED
    (aborted,) = happened(driver, events.CheckpointAborted)
    assert str(fresh) in aborted.reason
    driver.spread()
    sequence = driver.complete()
    assert fresh in driver.region.offsets[sequence]
    judge(driver)


def test_what_a_checkpoint_covers_already_does_not_stop_it() -> None:
    driver = region_of()
    fresh = grown(driver)
    report(driver)
    driver.wait(WAIT + 1)
    driver.request_checkpoint("n")
    assert report(driver).report_again
    assert driver.region.open_checkpoint is not None, f"{fresh} was known when it was opened"


# -- verify -----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_hides_what_it_lacks_is_a_violation() -> None:
    driver = region_of()
    fresh = grown(driver)
    report(driver)
    driver.wait(WAIT + 1)
    driver.request_checkpoint("n")
    sequence = driver.complete()
    assert not verify(History(events=driver.events, batches=driver.batches))
    hidden = [
        replace(e, body=replace(e.body, inexact={}))
        if isinstance(e.body, events.CheckpointCompleted) and e.body.sequence == sequence
        else e
        for e in driver.events
    ]
    (violation,) = verify(History(events=hidden, batches=driver.batches))
    assert violation.invariant == "R2"
    assert f"checkpoint {sequence} lacks {fresh}" in violation.detail
