from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_kcr import goals
from airflow_kcr.api import Progress, Region, waiting
from airflow_kcr.errors import CheckpointRefused, ConfigurationError, RegionInState, StoreUnavailable, TimedOut
from airflow_kcr.protocol.region.rows import CheckpointPurpose
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import DesiredState, RequestId
from tests.support.driver import START, Driver
from tests.support.scripts import boundary, hourly, located, running

SOON = timedelta(milliseconds=1)
LONG = timedelta(seconds=30)


class Steps:
    """Does the next step of the members at each look, and remembers what was missing."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)
        self.seen: list[Progress] = []

    def __call__(self, progress: Progress) -> None:
        self.seen.append(progress)
        if self._steps:
            self._steps.pop(0)()

    @property
    def missing(self) -> list[str]:
        """Everything that was ever missing, in its order."""
        return [who for progress in self.seen for who in progress.missing]


def region_of(driver: Driver) -> Region:
    return Region(driver.name, driver.store)


def test_a_start_waits_for_each_member_by_name_until_the_region_runs() -> None:
    driver = Driver()
    region = region_of(driver)
    region.start()

    def rest() -> None:
        driver.join(driver.member(1))
        driver.spread()
        driver.finish_reset()

    steps = Steps(lambda: driver.join(driver.member(0)), rest)
    view = region.wait_for(goals.RUNNING, LONG, steps)
    assert view.state == "running"
    assert "g[0] is not there" in steps.seen[0].missing[0]
    assert "g[1] is not there" in steps.seen[1].missing[0]
    assert not any("g[0] is not there" in who for who in steps.seen[1].missing)


def test_a_partition_that_nobody_covers_is_named_with_its_last_owner() -> None:
    driver = running()
    driver.crash(driver.member(1))
    driver.wait(60)
    region = region_of(driver)
    driver.request_checkpoint("n", purpose=CheckpointPurpose.DRAIN)
    with pytest.raises(TimedOut, match=r"g:t-2 is not covered \(last owner: g\[1\]\)"):
        region.wait_for_checkpoint("n", SOON)


def test_a_wait_that_is_over_says_for_how_long_and_who_was_missing() -> None:
    region = region_of(Driver())
    region.start()
    with pytest.raises(TimedOut, match=r"0.001 s .*flights to run \(starting\).*g\[0\] is not there"):
        region.wait_for(goals.RUNNING, SOON)


def test_a_timeout_of_nothing_looks_once() -> None:
    driver = running()
    assert region_of(driver).wait_for(goals.RUNNING, timedelta(0)).state == "running"


def test_a_drain_is_waited_for_until_its_checkpoint_is_published() -> None:
    driver = running()
    driver.process()
    region = region_of(driver)
    request_id = region.drain(request_id="n").request.request_id

    def contribute(index: int) -> Callable[[], object]:
        return lambda: driver.contribute(driver.member(index))

    steps = Steps(contribute(0), contribute(1), driver.publish)
    checkpoint = region.wait_for_checkpoint(request_id, LONG, steps)
    assert (checkpoint.request.state, checkpoint.checkpoint and checkpoint.checkpoint.state) == (
        "answered",
        "published",
    )
    assert "checkpoint 2 waits for g[1] (t-2, t-3)" in steps.seen[1].missing
    assert steps.seen[2].missing == ("checkpoint 2 is complete and not published yet",)


def test_an_approaching_checkpoint_says_how_far_it_still_is() -> None:
    driver = hourly(partitions=2, members=1)
    region = region_of(driver)
    driver.wait(3_601)
    region.drain(boundary(1), request_id="n")
    steps = Steps(lambda: located(driver, boundary(1), 30), driver.process)
    with pytest.raises(TimedOut, match="to the boundary"):
        region.wait_for_checkpoint("n", timedelta(seconds=0.2), steps)
    assert "g:t-0: it is not known yet where the boundary falls" in steps.seen[0].missing
    assert steps.seen[1].missing[0] == "60 records to the boundary, on 2 partition(s)"
    assert steps.seen[2].missing[1] == "g:t-0 at 10, the boundary is at 30"


def test_a_boundary_in_the_future_is_so_far_away() -> None:
    driver = hourly(partitions=2, members=1)
    region = region_of(driver)
    region.drain(boundary(1), request_id="n")
    with pytest.raises(TimedOut, match="the boundary 2026-01-01T01:00:00Z is 3600 s away"):
        region.wait_for_checkpoint("n", SOON)


def test_a_checkpoint_whose_drain_was_late_is_a_timeout_that_names_who_was_late() -> None:
    driver = running()
    region = region_of(driver)
    region.drain(request_id="n")
    driver.contribute(driver.member(0))
    driver.wait(200)
    with pytest.raises(TimedOut, match=r"aborted.*late: g\[1\]"):
        region.wait_for_checkpoint("n", LONG)


def test_a_drain_that_a_stop_without_members_supersedes_is_refused() -> None:
    driver = running()
    region = region_of(driver)
    region.drain(request_id="n")
    region.kill()
    with pytest.raises(CheckpointRefused, match="the region stopped"):
        region.wait_for_checkpoint("n", LONG)


def test_a_pause_waits_for_the_batches_in_flight() -> None:
    driver = running()
    batch = driver.start_batch(driver.member(0))
    region = region_of(driver)
    region.pause()
    steps = Steps(lambda: driver.finish_batch(batch))
    assert region.wait_for(goals.PAUSED, LONG, steps).desired_state == "paused"
    assert "a batch of g[0] has been running" in steps.missing[0]


def test_a_pause_that_somebody_ends_is_refused() -> None:
    driver = running()
    driver.start_batch(driver.member(0))
    region = region_of(driver)
    region.pause()
    with pytest.raises(RegionInState, match="desired state running"):
        region.wait_for(goals.PAUSED, LONG, Steps(region.resume))


def test_a_stop_waits_for_its_checkpoint_its_commit_and_for_the_members_to_leave() -> None:
    driver = running()
    driver.process()
    region = region_of(driver)
    region.stop()

    def read_back() -> None:
        for index in (0, 1):
            driver.read_back(driver.member(index))

    def leave() -> None:
        for index in (0, 1):
            driver.leave(driver.member(index))

    steps = Steps(driver.complete, driver.publish, read_back, leave)
    assert region.wait_for(goals.STOPPED, LONG, steps).state == "stopped"
    text = "\n".join(steps.missing)
    assert "waits for g[0] (t-0, t-1)" in text
    assert "is complete and not published yet" in text
    assert "Kafka's commit read-back of checkpoint 2 is outstanding" in text
    assert "g[1] still holds a lease" in text


def test_whoever_waits_does_what_is_due_when_nobody_else_is_there() -> None:
    driver = running()
    region = region_of(driver)
    region.stop()
    for member in tuple(driver.processes):
        driver.crash(member)
    steps = Steps(lambda: driver.clock.advance(60))
    assert region.wait_for(goals.STOPPED, LONG, steps).state == "stopped"


def test_a_halted_region_ends_the_wait_with_its_choices() -> None:
    driver = Driver()
    region = region_of(driver)
    region.start()
    driver.find_stranger()
    with pytest.raises(RegionInState, match=r"stranger on host host.*remove the foreign consumer"):
        region.wait_for(goals.RUNNING, LONG)


def test_a_predicate_of_ones_own_can_be_waited_for() -> None:
    driver = running()

    def has_restore_point(region: StoredRegion, now: object) -> bool:
        return region.restore_sequence is not None and region.restore_sequence > 1

    view = region_of(driver).wait_for(has_restore_point, LONG, Steps(lambda: driver.checkpoint("n")))
    assert view.restore_point == 2


def test_what_a_listener_raises_ends_the_wait_and_not_the_region() -> None:
    driver = Driver()
    region = region_of(driver)
    region.start()

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        region.wait_for(goals.RUNNING, LONG, interrupt)
    assert driver.region.desired_state is DesiredState.RUNNING


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A region whose store is away from the second reading on, without sleeping."""
    driver = Driver()
    driver.handle(START)
    real, answers = driver.store.read, [True, False, False, True]

    def read(name: object) -> object:
        if (answers.pop(0) if answers else False) is False:
            raise StoreUnavailable("the store at host/kcr can't be reached; tried for 1.0 s, nothing was changed")
        return real(driver.name)

    monkeypatch.setattr(driver.store, "read", read)
    monkeypatch.setattr(waiting, "sleep", lambda seconds: None)
    return driver


def test_a_store_that_is_away_for_a_while_is_waited_for_too(restless: Driver) -> None:
    steps = Steps()
    goal = waiting.CallersGoal(lambda r, now: len(steps.seen) > 2)
    waiting.wait_for(restless.store, restless.name, goal, timeout=LONG, on_progress=steps)
    assert [str(p) for p in steps.seen[1:3]] == [
        "waiting for the store: the store at host/kcr can't be reached; tried for 1.0 s, nothing was changed"
    ] * 2


def test_a_store_that_stays_away_is_the_answer_in_the_end(restless: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "STORE_AWAY", timedelta(0))
    with pytest.raises(StoreUnavailable):
        waiting.wait_for(restless.store, restless.name, goals.RUNNING, timeout=LONG)


def test_progress_names_a_few_and_counts_the_others() -> None:
    seen = Progress(what="x", waited=SOON, state="starting", missing=tuple(f"p{n}" for n in range(8)))
    assert str(seen) == "waiting for x (starting): p0; p1; p2; p3; p4; and 3 more"


@pytest.mark.parametrize("count", range(1, 9))
def test_progress_leaves_nothing_out_unsaid(count: int) -> None:
    text = str(Progress(what="x", waited=SOON, state="", missing=tuple(f"p{n}" for n in range(count))))
    assert text.count("p") + (int(text.split()[-2]) if text.endswith(" more") else 0) == count


def test_a_request_id_that_nobody_used_is_not_waited_for() -> None:
    with pytest.raises(ConfigurationError, match="has no checkpoint request with the id"):
        region_of(running()).wait_for_checkpoint(RequestId("n"), LONG)
