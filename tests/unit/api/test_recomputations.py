from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from airflow_kcr.api import Compare, Into, Region, Replace
from airflow_kcr.errors import (
    CheckpointNotUsable,
    ConfigurationError,
    RecomputationRefused,
    ResetInProgress,
    UpsertNeedsConsent,
)
from airflow_kcr.protocol.region import rows
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, Offset, Range
from tests.support.driver import Driver
from tests.support.live_region import live_region
from tests.support.scripts import rewind

SPEC = """\
region: flights
kafka: {bootstrap.servers: 'broker.invalid:9092'}
groups:
  - {group_id: g, topics: [t], members: 2, pipeline: 'jobs.flights:process', SINKS}
timeouts: {lease: 60s}
"""
LAKE = "sinks: {out: {kind: custom, factory: 'jobs.lake:make'}}"
TABLE = "delivery: exactly_once, sinks: {out: {kind: postgres, url: 'postgresql://h/d', table: t, MODE}}"


@pytest.fixture
def driver(database_url: str, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A region with two checkpoints, and the sinks that a test wants."""
    sinks = getattr(request, "param", LAKE)
    with live_region(database_url, SPEC.replace(", SINKS", f", {sinks}" if sinks else "")) as driver:
        driver.up()
        for name in ("first", "second"):
            driver.process()
            driver.checkpoint(name)
        yield driver


def region(driver: Driver) -> Region:
    return Region(driver.name, driver.store, requester=rows.Requester(who="somebody"))


def newest(driver: Driver) -> CheckpointNumber:
    found = driver.region.restore_sequence
    assert found is not None
    return found


def revisions(driver: Driver) -> list[int]:
    """The revision that has replaced what was made of a record, of one in each checkpoint."""
    found = [region(driver).record(f"t:0:{offset}") for offset in (5, 15)]
    return [one.starts[-1].revision for (one,) in found]


def test_it_is_begun_kept_alive_and_done(driver: Driver) -> None:
    wanted = region(driver).recompute(newest(driver), request_id="again")
    assert wanted.done() is None
    assert wanted.groups() == ("g",)
    ranges = {p: (Range(Offset(10), Offset(20)),) for p in driver.region.claims}
    begun = wanted.begin(wanted.groups(), ranges)
    assert begun.requester.who == "somebody"
    assert revisions(driver) == [0, 0]
    wanted.require_wanted()
    wanted.wait_for_resets(time.monotonic() + 60)
    view = wanted.finish([{p: held for p, (held,) in ranges.items()}])
    assert (view.to_json()["revision"], view.to_json()["state"]) == (1, "done")
    again = region(driver).recompute(newest(driver), request_id="again").done()
    assert again is not None
    assert again.to_json() == view.to_json()
    assert revisions(driver) == [0, 1]
    assert region(driver).verify().violations == ()


def test_while_the_region_resets_nothing_may_be_shown(driver: Driver) -> None:
    first = region(driver).checkpoints.list()[0].checkpoint.sequence
    wanted = region(driver).recompute(first)
    wanted.begin(wanted.groups(), {})
    driver.reset(ToCheckpoint(sequence=first))
    driver.complete()
    assert driver.region.state is rows.RegionState.RESETTING
    for asked in (wanted.require_wanted, lambda: wanted.wait_for_resets(time.monotonic())):
        with pytest.raises(ResetInProgress, match=f"resets, and may undo checkpoint {first}"):
            asked()
    driver.finish_reset()
    wanted.require_wanted()


def test_what_a_reset_has_undone_may_not_be_shown(driver: Driver) -> None:
    first = region(driver).checkpoints.list()[0].checkpoint.sequence
    wanted = region(driver).recompute(newest(driver))
    wanted.begin(wanted.groups(), {})
    rewind(driver, ToCheckpoint(sequence=first))
    for asked in (wanted.require_wanted, wanted.plan):
        with pytest.raises(CheckpointNotUsable, match="was undone by a reset"):
            asked()
    wanted.fail("it was undone")


@pytest.mark.parametrize("driver", [""], indirect=True)
def test_a_group_without_a_sink_is_refused(driver: Driver) -> None:
    for asked in (region(driver).recompute(newest(driver)).groups, region(driver).recompute(newest(driver)).plan):
        with pytest.raises(ConfigurationError, match="group g has no sink in the spec"):
            asked()


@pytest.mark.parametrize("driver", [TABLE.replace("MODE", "mode: upsert, key: [k]")], indirect=True)
def test_a_plan_says_what_would_be_processed_again_and_replaced(driver: Driver) -> None:
    plan = region(driver).recompute(newest(driver)).plan()
    assert plan.checkpoint.sequence == newest(driver)
    assert plan.offsets == 10 * len(driver.region.claims)
    assert plan.groups == ("g",)
    (sink,) = plan.sinks
    assert sink.startswith("g/out: postgres ")
    assert plan.upserts == ("out of group g",)


def test_a_group_that_is_none_is_refused(driver: Driver) -> None:
    with pytest.raises(ConfigurationError, match="has no group strange"):
        region(driver).recompute(newest(driver), groups=["strange"]).groups()


@pytest.mark.parametrize("driver", [TABLE.replace("MODE", "mode: upsert, key: [k]")], indirect=True)
def test_a_table_of_mode_upsert_needs_consent(driver: Driver) -> None:
    with pytest.raises(
        UpsertNeedsConsent, match=r"has mode upsert.*--consent-upsert \(consent_upsert=True in Python\)"
    ):
        region(driver).recompute(newest(driver)).groups()
    assert region(driver).recompute(newest(driver), output=Replace(consent_upsert=True)).groups() == ("g",)


def test_what_goes_elsewhere_leaves_the_revision_as_it_is_and_is_found(driver: Driver) -> None:
    into = Into(sinks={"g": {"out": {"kind": "custom", "factory": "jobs.lake:make", "options": {"path": "tried"}}}})
    wanted = region(driver).recompute(newest(driver), request_id="try", output=into)
    assert wanted.done() is None
    assert wanted.groups() == ("g",)
    assert wanted.spec().group("g").sinks[0].options == {"path": "tried"}
    wanted.begin(wanted.groups(), {})
    view = wanted.finish([])
    answer = view.to_json()
    assert (answer["purpose"], answer["into"], answer["revision"]) == ("into", ["g/out: custom jobs.lake:make"], 0)
    again = region(driver).recompute(newest(driver), request_id="try", output=into).done()
    assert again is not None
    assert again.to_json() == answer
    with pytest.raises(RecomputationRefused, match=r"request id try names another recomputation .*purpose into"):
        region(driver).recompute(newest(driver), request_id="try").done()
    with pytest.raises(RecomputationRefused, match="give this one an id of its own"):
        region(driver).recompute(newest(driver), request_id="try").begin(wanted.groups(), {})


def test_a_comparison_is_always_made_anew(driver: Driver) -> None:
    for _ in range(2):
        wanted = region(driver).recompute(newest(driver), request_id="try", output=Compare(key=("k",)))
        assert wanted.done() is None
        wanted.begin(wanted.groups(), {})
        assert wanted.finish([]).checkpoint.revision == 0


@pytest.mark.parametrize("driver", [TABLE.replace("MODE", "mode: upsert, key: [k]")], indirect=True)
def test_what_replaces_nothing_needs_no_consent(driver: Driver) -> None:
    assert region(driver).recompute(newest(driver), output=Compare(key=("k",))).groups() == ("g",)


@pytest.mark.parametrize("driver", [""], indirect=True)
def test_a_group_without_a_sink_has_one_elsewhere(driver: Driver) -> None:
    tried = Into(sinks={"g": {"out": {"kind": "custom", "factory": "jobs.lake:make"}}})
    assert region(driver).recompute(newest(driver), output=tried).groups() == ("g",)
