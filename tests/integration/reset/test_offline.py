"""Resets of a stopped region: Kafka is told from outside, and its own tool agrees in both directions of the CSV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.errors import GroupNotEmpty
from airflow_kcr.goals import STOPPED
from airflow_kcr.protocol.region.rows import Committed
from airflow_kcr.protocol.targets import FromFile, ToEarliest, ToOffset
from airflow_kcr.protocol.values import GroupId, Offset
from tests.support.faults import group_size, held_at
from tests.support.kafka import Kafka
from tests.support.kafka_tool import consumer_groups
from tests.support.live_region import SPEC, live_region
from tests.support.members import Lend, Live


@pytest.fixture
def stopped(lend: Lend) -> Iterator[Live]:
    """Everything is consumed, and all members have left."""
    with lend(members=2, partitions=3) as one:
        one.fill(200)
        process = one.start(0, 1)
        one.until(one.consumed, "all records")
        with Region(one.name, one.store) as region:
            region.stop()
            region.wait_for(STOPPED)
        process.wait(30)
        yield one


@pytest.mark.long
def test_kafkas_tool_and_a_plan_understand_each_other(kafka: Kafka, stopped: Live, tmp_path: Path) -> None:
    topic, group = stopped.topic, stopped.group
    with Region(stopped.name, stopped.store) as region:
        # Ours: planned, applied, and Kafka holds it.
        plan = region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(100))))
        assert region.resets.apply(plan, "to see").state == "done"
        assert kafka.committed(group, topic) == {(topic, n): 100 for n in range(3)}

        # Our CSV, taken by Kafka's tool.
        ours = tmp_path / "ours.csv"
        ours.write_text(region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(77)))).to_csv())
        reset = ("--group", group, "--reset-offsets")
        consumer_groups(kafka.bootstrap_servers, *reset, "--from-file", str(ours), "--execute")
        assert kafka.committed(group, topic) == {(topic, n): 77 for n in range(3)}

        # Kafka's CSV, taken by us; what Kafka was told above was not by the region, which goes where it is sent.
        theirs = consumer_groups(
            kafka.bootstrap_servers, *reset, "--topic", f"{topic}:0,2", "--to-offset", "60", "--dry-run", "--export"
        )
        applied = region.resets.plan(region.resets.request("from-file", theirs))
        assert [line.target for line in applied.entries] == [60, 100, 60]
        region.resets.apply(applied, "to see")
        assert kafka.committed(group, topic) == {(topic, 0): 60, (topic, 1): 100, (topic, 2): 60}

        # And the members resume there.
        region.start()
        stopped.start(0, 1)
        stopped.until(stopped.consumed, "the rest again")
        stopped.checkpoint()
        stopped.require_sound()
        assert [r.counted and r.counted.replayed for r in region.resets.list() if r.plan] == [300, 80]


def test_whoever_is_in_the_group_is_named_and_nothing_is_changed(kafka: Kafka, stopped: Live) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": stopped.group, "client.id": "zombie"}
    zombie = Consumer({**settings, "log_level": 0})
    try:
        zombie.subscribe([stopped.topic])
        stopped.until(lambda: zombie.poll(0.1) is not None or bool(zombie.assignment()), "the zombie in the group")
        with Region(stopped.name, stopped.store) as region:
            plan, before = region.resets.plan(ResetRequest(target=ToEarliest())), region.counter()
            with pytest.raises(GroupNotEmpty, match=r"zombie on .*Nothing was changed"):
                region.resets.apply(plan, "to see")
            assert region.counter() == before
    finally:
        zombie.close()
    with Region(stopped.name, stopped.store) as region:
        assert region.resets.apply(plan, "to see").state == "done"
    assert set(kafka.committed(stopped.group).values()) == {0}


@pytest.mark.long
def test_offsets_that_expired_are_seeded_again_and_are_not_needed_for_a_start(kafka: Kafka, stopped: Live) -> None:
    def expire() -> None:
        # What the broker does to a group that was empty for a week.
        kafka.admin.delete_consumer_groups([stopped.group])[stopped.group].result(30)
        assert kafka.committed(stopped.group) == {}

    everything = {(stopped.topic, n): 200 for n in range(3)}
    with Region(stopped.name, stopped.store) as region:
        restore_point = region.show().restore_point
        assert restore_point is not None
        expire()
        view = region.checkpoints.repair(restore_point)
        assert (view.checkpoint.committed, kafka.committed(stopped.group)) == (Committed.YES, everything)

        plan = region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(60))))
        region.resets.apply(plan, "to see")
        expire()
        assert region.resets.apply(plan, "once more").state == "done", "the same plan tells Kafka alone"
        assert kafka.committed(stopped.group) == dict.fromkeys(everything, 60)

        expire()
        region.start()
        stopped.start(0, 1)
        stopped.until(stopped.consumed, "from the restore point, whatever Kafka has forgotten")
        stopped.checkpoint()
        assert kafka.committed(stopped.group) == everything
        assert [r.counted and r.counted.replayed for r in region.resets.list() if r.plan] == [3 * 140]
        stopped.require_sound()


@pytest.mark.long
def test_a_file_of_several_groups_goes_both_ways(kafka: Kafka, database_url: str, tmp_path: Path) -> None:
    topic, groups = kafka.topic(2), sorted([kafka.group_id(), kafka.group_id()])
    kafka.fill(topic, {0: 50, 1: 50})
    group = "  - {group_id: g, topics: [t], members: 2, pipeline: 'jobs.flights:process'}\n"
    both = "".join(group.replace("group_id: g", f"group_id: {g}").replace("[t]", f"[{topic}]") for g in groups)
    spec = SPEC.replace("broker.invalid:9092", kafka.bootstrap_servers).replace(group, both)
    with live_region(database_url, spec, partitions=2) as driver, Region(driver.name, driver.store) as region:
        driver.up()
        ours = tmp_path / "ours.csv"
        ours.write_text(region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(20)))).to_csv())
        assert ours.read_text() == "".join(f"{g},{topic},{n},20\n" for g in groups for n in (0, 1))
        reset = ("--group", groups[0], "--group", groups[1], "--reset-offsets")
        consumer_groups(kafka.bootstrap_servers, *reset, "--from-file", str(ours), "--execute")
        assert [kafka.committed(g, topic) for g in groups] == [{(topic, 0): 20, (topic, 1): 20}] * 2

        theirs = consumer_groups(
            kafka.bootstrap_servers, *reset, "--topic", f"{topic}:1", "--to-offset", "30", "--dry-run", "--export"
        )
        read = region.resets.request("from-file", theirs).target
        assert isinstance(read, FromFile)
        assert {(p.group, p.partition): o for p, o in read.entries.items()} == {(GroupId(g), 1): 30 for g in groups}
        plan = region.resets.plan(ResetRequest(target=read))
        assert [line.target for line in plan.entries] == [0, 30, 0, 30]


@pytest.mark.long
def test_a_member_that_was_frozen_before_its_commit_and_wakes_up_afterwards_does_not_win(
    lend: Lend, kafka: Kafka
) -> None:
    with (
        lend(members=2, partitions=3) as one,
        Region(one.name, one.store) as region,
    ):
        zombie, other = one.start(0), one.start(1)
        one.shared(0, 1)
        held_at(one, "committing", zombie, each=200)
        zombie.freeze()
        region.kill()
        other.wait(60)
        one.until(lambda: group_size(kafka, one.group) == 0, "its session over")
        plan = region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(100))))
        assert region.resets.apply(plan, "to see").state == "done"
        assert set(kafka.committed(one.group).values()) == {100}

        zombie.open("committing")
        zombie.thaw()
        zombie.wait(60)
        epoch = region.show().epoch
        region.start()
        one.start(0, 1)
        one.until_running()
        assert region.show().epoch == epoch + 1
        assert {e.offset for e in one.region().seek.values()} == {100}
        one.until(one.consumed, "the rest again")
        one.checkpoint()
        assert set(kafka.committed(one.group).values()) == {200}
        one.require_sound()
