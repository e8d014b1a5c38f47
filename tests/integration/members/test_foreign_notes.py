"""What another program has written into Kafka's commit metadata: reported, never taken over, and removed as the halt
says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_kcr.api import Region
from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.values import GroupId, GroupPartition, Offset, TopicName
from tests.support.driver import START, STOP
from tests.support.kafka import Kafka, groups_at
from tests.support.kafka_tool import consumer_groups
from tests.support.members import Live, live

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def region(kafka: Kafka, database_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(kafka, database_url, tmp_path, members=1, partitions=1, group=", static_membership: false") as one:
        yield one


def is_halted(region: Live) -> bool:
    return region.region().state is RegionState.HALTED


def stopped(region: Live) -> None:
    """Stop the region, and wait until its members have left."""
    region.handle(STOP)
    for process in region.processes:
        if process.running:
            process.wait(60)


def write(region: Live, offset: int, epoch: int) -> None:
    """Write a note as any client with the right to commit."""
    note = {
        "region": region.name,
        "region_id": region.region().region_id,
        "timeline": 1,
        "sequence": epoch,
        "epoch": epoch,
    }
    place = GroupPartition(GroupId(region.group), TopicName(region.topic), 0)
    with groups_at(region.kafka.settings, timedelta(seconds=20)) as groups:
        region.until(lambda: tried(lambda: groups.require_empty(GroupId(region.group))), "members have left")
        groups.alter(GroupId(region.group), OffsetMap({place: Offset(offset)}), json.dumps(note))


def tried(action: Callable[[], object]) -> bool:
    try:
        action()
    except KcrError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("way", ["kcr checkpoint repair", "kafka-consumer-groups.sh --delete-offsets"])
def test_a_number_that_no_region_gets_to_is_told_and_the_way_out_that_is_named_leads_out(
    region: Live, way: str
) -> None:
    region.start(0)
    region.until_running()
    if way.startswith("kcr"):
        region.fill(10)
        region.checkpoint()
    else:
        region.handle(KillRegion())  # before its first checkpoint
    stopped(region)
    before = region.region()
    write(region, offset=0, epoch=2**63 - 1)
    for _ in range(2):  # a resume alone does not help, and does no harm
        region.handle(START)
        region.start(0)
        region.until(lambda: is_halted(region), "halted")
        halt = region.region().halt
        assert halt is not None
        assert f"epoch {2**63 - 1}, the store has" in halt.text
        assert f"{region.topic}-0" in halt.text
        assert any(way in choice for choice in halt.choices)
        stopped(region)
    restore_point = region.region().restore_sequence
    if way.startswith("kcr"):
        assert restore_point is not None
        with Region(region.name, region.url) as opened:
            region.until(
                lambda: tried(lambda: opened.checkpoints.repair(int(restore_point))), "the restore point is told"
            )
    else:
        arguments = ("--group", region.group, "--topic", region.topic)
        consumer_groups(region.kafka.bootstrap_servers, "--delete-offsets", *arguments)
    region.handle(START)
    region.start(0)
    region.until_running()
    region.fill(20)
    region.until(region.consumed, "all records consumed")  # a checkpoint may fall before what was just produced
    region.checkpoint()
    assert region.region().epoch < before.epoch + 10
    assert region.account().is_sound


@pytest.mark.long
def test_a_number_that_the_region_can_have_reached_is_taken_over_by_the_resume_alone(region: Live) -> None:
    region.start(0)
    region.until_running()
    region.fill(10)
    region.checkpoint()
    stopped(region)
    before = region.region()
    write(region, offset=0, epoch=1000)
    region.handle(START)
    region.start(0)
    region.until(lambda: is_halted(region), "halted")
    halted = region.region()
    assert halted.epoch < before.epoch + 10
    region.handle(START)
    region.until_running()
    region.fill(20)
    region.checkpoint()
    after = region.region()
    assert after.epoch > 1000
    assert after.next_sequence > 1000
