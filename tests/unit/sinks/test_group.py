from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.rules import Delivery, FileFormat
from airflow_kcr.protocol.values import UNDECLARED, GroupId
from airflow_kcr.sinks.contract import NoSinks, WithCheckpoints
from airflow_kcr.sinks.files.layout import file_targets
from airflow_kcr.sinks.group import OpenedSinks, checked_sinks
from airflow_kcr.spark.context import no_output
from airflow_kcr.spec import GroupSpec, RegionSpec, SinkKind, SinkSpec
from tests.support.driver import Driver
from tests.support.sink_files import Files

G, H = GroupId("g"), GroupId("h")
MIB = 1024 * 1024


def spec(delivery: Delivery = Delivery.AT_LEAST_ONCE, size: int | None = None) -> RegionSpec:
    sink = SinkSpec(name="out", kind=SinkKind.FILES, path="${LAKE}/out", file_size_mib=size)
    groups = (
        GroupSpec(group_id=G, pipeline="jobs:process", topics=("t",), sinks=(sink,), delivery=delivery),
        GroupSpec(group_id=H, pipeline="jobs:process", topics=("t",)),
    )
    return RegionSpec(region="flights", kafka={"bootstrap.servers": "localhost:9092"}, groups=groups)


def test_the_file_sinks_of_all_groups_are_found() -> None:
    (target,) = file_targets(spec(size=2), {"LAKE": "s3a://lake"}, region_id=UNDECLARED)
    assert (target.path, target.group, target.sink, target.file_size) == ("s3a://lake/out", G, "out", 2 * MIB)
    assert file_targets(spec(), {"LAKE": ""}, region_id=UNDECLARED)[0].file_size == 128 * MIB
    assert file_targets(spec(size=0), {"LAKE": ""}, region_id=UNDECLARED)[0].file_size == 0
    assert target.format is FileFormat.PARQUET


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"sinks\.out\.path needs LAKE"):
        file_targets(spec(), {}, region_id=UNDECLARED)


def test_a_file_sink_needs_no_database() -> None:
    assert checked_sinks(spec(Delivery.EXACTLY_ONCE), G, {}, region_id=UNDECLARED) == ()


def test_members_of_every_group_publish_and_those_of_its_own_are_fenced(tmp_path: Path) -> None:
    driver = Driver()
    driver.up()
    files = (Files(driver, tmp_path / "out").sink,)
    own, other = (OpenedSinks(group=group, files=files).of_member(spec()) for group in (G, H))
    assert isinstance(own, WithCheckpoints)
    assert isinstance(other, WithCheckpoints)
    assert own.fenced
    assert not other.fenced
    assert isinstance(OpenedSinks(group=H).of_member(spec()), NoSinks)
    assert OpenedSinks(group=G, files=files).output() is not no_output
    assert OpenedSinks(group=H, files=files).output() is no_output
    assert OpenedSinks(group=G).output() is no_output
