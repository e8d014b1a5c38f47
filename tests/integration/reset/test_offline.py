"""Resets of a stopped region: Kafka is told from outside, and its own tool agrees in both directions of the CSV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.api.goals import STOPPED
from airflow_kcr.errors import GroupNotEmpty
from airflow_kcr.protocol.targets import ToEarliest, ToOffset
from airflow_kcr.protocol.values import Offset
from tests.support.kafka import Kafka
from tests.support.kafka_tool import consumer_groups
from tests.support.members import BRISK, Live, live


@pytest.fixture
def stopped(kafka: Kafka, database_url: str, tmp_path: Path) -> Iterator[Live]:
    """Everything is consumed, and everybody has left."""
    with live(kafka, database_url, tmp_path, members=2, partitions=3, spec=BRISK) as one:
        one.fill(200)
        process = one.start(0, 1)
        one.until(one.consumed, "all records")
        with Region(one.name, one.store) as region:
            region.stop()
            region.wait_for(STOPPED)
        process.wait(30)
        yield one


def test_kafkas_tool_and_a_plan_understand_each_other(kafka: Kafka, stopped: Live, tmp_path: Path) -> None:
    topic, group = stopped.topic, stopped.group
    with Region(stopped.name, stopped.store) as region:
        # Ours: planned, applied, and Kafka holds it.
        plan = region.plan_reset(ResetRequest(target=ToOffset(offset=Offset(100))))
        assert region.apply_reset(plan, "to see").state == "done"
        assert kafka.committed(group, topic) == {(topic, n): 100 for n in range(3)}

        # Our CSV, taken by Kafka's tool.
        ours = tmp_path / "ours.csv"
        ours.write_text(region.plan_reset(ResetRequest(target=ToOffset(offset=Offset(77)))).to_csv())
        reset = ("--group", group, "--reset-offsets")
        consumer_groups(kafka.bootstrap_servers, *reset, "--from-file", str(ours), "--execute")
        assert kafka.committed(group, topic) == {(topic, n): 77 for n in range(3)}

        # Kafka's CSV, taken by us; what Kafka was told above was not by the region, which goes where it is sent.
        theirs = consumer_groups(
            kafka.bootstrap_servers, *reset, "--topic", f"{topic}:0,2", "--to-offset", "60", "--dry-run", "--export"
        )
        applied = region.plan_reset(ResetRequest(target=region.offsets_file(theirs.out)))
        assert [line.target for line in applied.lines] == [60, 100, 60]
        region.apply_reset(applied, "to see")
        assert kafka.committed(group, topic) == {(topic, 0): 60, (topic, 1): 100, (topic, 2): 60}

        # And the members resume there.
        region.start()
        stopped.start(0, 1)
        stopped.until(stopped.consumed, "the rest again")
        stopped.cut()
        account = stopped.account()
        assert account.is_sound, account
        assert [r.counted and r.counted.replayed for r in region.resets() if r.plan] == [300, 80]


def test_whoever_is_in_the_group_is_named_and_nothing_is_changed(kafka: Kafka, stopped: Live) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": stopped.group, "client.id": "zombie"}
    zombie = Consumer({**settings, "log_level": 0})
    try:
        zombie.subscribe([stopped.topic])
        stopped.until(lambda: zombie.poll(0.1) is not None or bool(zombie.assignment()), "the zombie in the group")
        with Region(stopped.name, stopped.store) as region:
            plan, before = region.plan_reset(ResetRequest(target=ToEarliest())), region.counter()
            with pytest.raises(GroupNotEmpty, match=r"zombie on .*Nothing was changed"):
                region.apply_reset(plan, "to see")
            assert region.counter() == before
    finally:
        zombie.close()
    with Region(stopped.name, stopped.store) as region:
        assert region.apply_reset(plan, "to see").state == "done"
    assert set(kafka.committed(stopped.group).values()) == {0}
