"""Whatever members, persons and time do to a region, it stays sound, and recovers once they let it."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.commands import Reconcile
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import CheckpointRules, Delivery, OutOfRangePolicy, RegionRules, RetentionRules
from airflow_kcr.protocol.values import GroupId
from tests.support.driver import GROUP, START, Driver, group_rules
from tests.support.random_scripts import PARTITIONS, USUAL, VERBS, WAITED_FOR, EveryMinute, Script, Step
from tests.support.verifying import verify

small = st.integers(0, 7)
steps = st.lists(st.tuples(st.sampled_from([*USUAL * 3, *VERBS]), small, small, small), max_size=40)
deliveries = st.sampled_from(list(Delivery))
policies = st.sampled_from(list(OutOfRangePolicy))


@st.composite
def regions(draw: st.DrawFn) -> RegionRules:
    groups = {GroupId("g"): group_rules("g", members=2, delivery=draw(deliveries))}
    if draw(st.booleans()):
        groups[GroupId("h")] = group_rules("h", members=1, delivery=draw(deliveries))
    return RegionRules(
        groups=groups,
        checkpoint=CheckpointRules(
            schedule=EveryMinute() if draw(st.booleans()) else None, catchup=draw(st.booleans())
        ),
        max_failures=draw(st.integers(0, 5)),
        out_of_range=draw(policies),
        beyond_end=draw(policies),
        retention=RetentionRules(keep=draw(st.integers(1, 3))),
    )


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(rules=regions(), script=steps)
def test_no_script_violates_an_invariant(rules: RegionRules, script: list[Step]) -> None:
    runner = Script(Driver(partitions=PARTITIONS, rules=rules))
    for step in [("up", 0, 0, 0), *script]:
        runner.run(step)
        require_sound(runner.driver.region)
    require_new_numbers(runner.driver)
    assert verify(History(runner.driver.events, runner.driver.batches)) == ()


def require_sound(region: Region) -> None:
    """Check what a region's rows say at any moment."""
    unresolved = {p for p, c in region.claims.items() if c.resume is None and (p, c.topic_id) not in region.initial}
    if region.reset is not None:
        assert region.seek.keys() >= region.universe() - unresolved
    if region.state in {RegionState.RUNNING, RegionState.DRAINING}:
        assert region.seek.offsets.keys() >= set(region.universe())
    started = [p for b in region.running.values() if b.epoch == region.epoch for p in b.ranges]
    assert len(started) == len(set(started))
    if region.restore_sequence is not None and region.restore_epoch is None:
        assert region.checkpoints[region.restore_sequence].is_complete
        assert region.restore_sequence in region.offsets


def require_new_numbers(driver: Driver) -> None:
    """Check that no number is used twice: sequences, epochs and event numbers only grow."""
    history = driver.events
    assert [e.number for e in history] == list(range(1, len(history) + 1))
    burnt = [e.body.sequence for e in history if isinstance(e.body, events.CheckpointOpened | events.ResetBegun)]
    assert burnt == sorted(set(burnt))
    epochs = [e.body.epoch for e in history if isinstance(e.body, events.ResetBegun | events.Killed)]
    assert epochs == sorted(set(epochs))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(rules=regions(), script=steps.map(lambda script: script[:15]))
def test_nor_is_one_violated_on_the_way(rules: RegionRules, script: list[Step]) -> None:
    runner = Script(Driver(partitions=PARTITIONS, rules=rules))
    for step in [("up", 0, 0, 0), *script]:
        runner.run(step)
        assert verify(History(runner.driver.events, runner.driver.batches)) == ()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(delivery=deliveries, script=steps.map(lambda script: [step for step in script if step[0] not in WAITED_FOR]))
def test_when_faults_stop_the_region_runs_again(delivery: Delivery, script: list[Step]) -> None:
    rules = RegionRules(groups={GROUP: group_rules(members=3, delivery=delivery)}, retention=RetentionRules(keep=3))
    driver = Driver(partitions=PARTITIONS, rules=rules)
    runner = Script(driver)
    for step in [("up", 0, 0, 0), *script]:
        runner.run(step)
    driver.processes.clear()
    driver.wait(60)
    driver.handle(START)
    driver.recover()
    for _ in range(20):
        if driver.region.open_checkpoint is not None:
            driver.complete()
        driver.finish_reset()
        driver.handle(Reconcile())
    assert driver.region.state is RegionState.RUNNING
    assert {driver.region.claims[partition].owner for partition in driver.logs} <= driver.processes.keys()
