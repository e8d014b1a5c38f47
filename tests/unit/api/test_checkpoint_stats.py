"""How long checkpoints took: by phase and by member, over a time."""

from __future__ import annotations

from datetime import timedelta

from airflow_kcr.api import Region
from airflow_kcr.api.checkpoint_stats import CheckpointStats
from airflow_kcr.protocol.values import CheckpointNumber
from tests.support.driver import Driver


def checkpoint(driver: Driver, request: str, *, drain: float, publish: float) -> None:
    """The second member takes longest to drain."""
    driver.process()
    driver.request_checkpoint(request)
    driver.contribute(driver.member(0))
    driver.clock.advance(drain)
    driver.heartbeat()
    driver.contribute(driver.member(1))
    driver.clock.advance(publish)
    driver.heartbeat()
    driver.publish()


def by_phase(found: tuple[CheckpointStats, ...]) -> dict[str, CheckpointStats]:
    return {one.what: one for one in found}


def test_the_median_the_p90_and_the_slowest_of_each_phase_and_member() -> None:
    driver = Driver()
    driver.up()
    for number, seconds in enumerate((1.0, 5.0, 2.0)):
        checkpoint(driver, str(number), drain=seconds, publish=0.5)
    found = Region("flights", driver.store).checkpoints.stats()
    assert [one.what for one in found] == ["drain", "publish", "g[1]", "g[0]"]
    newest = driver.region.restore_sequence
    assert newest is not None
    assert by_phase(found)["drain"] == CheckpointStats(
        what="drain",
        checkpoints=3,
        median=timedelta(seconds=2),
        p90=timedelta(seconds=5),
        longest=timedelta(seconds=5),
        slowest=CheckpointNumber(newest - 1),
    )
    assert by_phase(found)["publish"].median == timedelta(seconds=0.5)
    assert by_phase(found)["g[0]"].longest == timedelta(0)
    assert by_phase(found)["g[1]"].longest == timedelta(seconds=5)


def test_checkpoints_before_the_time_do_not_count() -> None:
    driver = Driver()
    driver.up()
    checkpoint(driver, "a", drain=4.0, publish=1.0)
    driver.clock.advance(2)
    driver.heartbeat()
    checkpoint(driver, "b", drain=1.0, publish=1.0)
    found = Region("flights", driver.store).checkpoints.stats(timedelta(seconds=3))
    assert by_phase(found)["drain"].longest == timedelta(seconds=1)
    assert Region("flights", driver.store).checkpoints.stats(timedelta(0)) == ()
