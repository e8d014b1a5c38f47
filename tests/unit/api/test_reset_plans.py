"""What is asked of a reset: its JSON, the file and the records that texts name, local times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_kcr.api import ResetRequest
from airflow_kcr.api.reset_plans import from_file, local_instant, skipped
from airflow_kcr.errors import ConfigurationError, InvalidOffsetsFile, InvalidTarget, KcrError
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.targets import ToEarliest, ToOffset
from airflow_kcr.protocol.values import Offset
from tests.support.driver import Driver


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.up()
    return driver


def test_a_request_goes_through_json_unchanged(driver: Driver) -> None:
    request = ResetRequest(
        target=ToOffset(offset=Offset(7)),
        scope=parse_scope(["g"], ["t:0,1"]),
        skip=OffsetMap({driver.partition(0): Offset(9)}),
        forward=True,
        allow_partial=True,
    )
    assert documents.read(documents.write(request, ResetRequest), ResetRequest) == request


def test_all_but_the_target_may_be_left_out() -> None:
    assert documents.read({"target": "to-earliest"}, ResetRequest) == ResetRequest(target=ToEarliest())


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"target": {"kind": "to-earliest"}},
        {"target": "to-earliest", "force": True},
        {"target": "to-earliest", "forward": "yes"},
        {"target": "to-earliest", "scope": {"groups": "g"}},
        {"target": "to-earliest", "skip": {"g": {"t": [0]}}},
        {"target": "to-earliest", "skip": {"g": {"t": {"0": -1}}}},
        {"target": "to-earliest", "skip": "t:0:1"},
    ],
)
def test_anything_else_is_refused(document: object) -> None:
    with pytest.raises((KcrError, ValueError)):
        documents.read(document, ResetRequest)


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_file_of_kafkas_tool_is_a_target(driver: Driver) -> None:
    target = from_file(driver.region, '"t",0,4\n"t",3,7\n')
    assert dict(target.entries) == {driver.partition(0): 4, driver.partition(3): 7}


def test_all_that_is_wrong_with_a_file_is_said_at_once(driver: Driver) -> None:
    text = "Topic,Partition,Offset\nt,0,1\nt,0,2\nt,9,1\nother,0,1\nt,1,-1\n"
    with pytest.raises(InvalidOffsetsFile) as refused:
        from_file(driver.region, text)
    for finding in ("line 1", "line 3", "line 4", "line 5", "line 6", "-1 is negative", "has no partition 9"):
        assert finding in refused.value.message


# -- records -------------------------------------------------------------------------------------------------------


def test_a_record_is_skipped_in_every_group_that_reads_its_topic(driver: Driver) -> None:
    assert skipped(driver.region, ["t:0:5", "t:2:7"]) == OffsetMap(
        {driver.partition(0): Offset(5), driver.partition(2): Offset(7)}
    )


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (["t:0"], "TOPIC:PARTITION:OFFSET"),
        (["t:0:-1"], "TOPIC:PARTITION:OFFSET"),
        (["t:4:1"], "has no partition t:4"),
        (["other:0:1"], "has no partition other:0"),
        (["t:0:1", "t:0:2"], "one record of a partition"),
        ([f"t:0:{2**63}"], "must be between"),
    ],
)
def test_what_names_no_record_is_refused(driver: Driver, texts: list[str], what: str) -> None:
    with pytest.raises(InvalidTarget, match=what):
        skipped(driver.region, texts)


def test_a_group_that_is_not_the_regions_has_no_record_to_skip(driver: Driver) -> None:
    with pytest.raises(InvalidTarget):
        skipped(driver.region, ["t:0:1"], parse_scope(["nobody"]))


# -- local times ---------------------------------------------------------------------------------------------------


def test_a_local_time_means_an_instant_in_its_zone() -> None:
    assert local_instant("2026-07-01T12:00", "Europe/Zurich") == datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert local_instant("2026-01-01T12:00", "Europe/Zurich") == datetime(2026, 1, 1, 11, tzinfo=UTC)


def test_a_zone_in_the_text_counts_more() -> None:
    assert local_instant("2026-07-01T12:00Z", "Europe/Zurich") == datetime(2026, 7, 1, 12, tzinfo=UTC)


def test_a_time_that_is_twice_on_the_clocks_is_refused_with_both() -> None:
    with pytest.raises(ConfigurationError, match=r"twice .* 2026-10-25T02:30:00\+02:00 or 2026-10-25T02:30:00\+01:00"):
        local_instant("2026-10-25T02:30", "Europe/Zurich")


def test_a_time_that_is_on_no_clock_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not on the clocks"):
        local_instant("2026-03-29T02:30", "Europe/Zurich")


@pytest.mark.parametrize("zone", ["Europe/Nowhere", "../etc/passwd", "x" * 300])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a time zone"):
        local_instant("2026-07-01T12:00", zone)


@pytest.mark.parametrize(("text", "what"), [("2026-07-01T12:00", "has no zone"), ("yesterday", "is not a time")])
def test_without_a_zone_a_time_has_to_have_its_own(text: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        local_instant(text, "")
