"""Plan, look, apply through the API: what plans show, what is refused, and resets with and without members."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from threading import Barrier

import pytest

from airflow_kcr import errors
from airflow_kcr.api import Plan, Region, ResetRequest, ResetView
from airflow_kcr.api.checkpoints import reach
from airflow_kcr.cli.reset import planned
from airflow_kcr.operators.reset_texts import markdown
from airflow_kcr.protocol.offsets import OffsetMap, SeekSource
from airflow_kcr.protocol.region.commands import Reconcile
from airflow_kcr.protocol.region.rows import RegionState, Requester, ResetCause
from airflow_kcr.protocol.scopes import parse_scope
from airflow_kcr.protocol.targets import (
    ByDuration,
    ShiftBy,
    Target,
    ToCheckpoint,
    ToCurrent,
    ToEarliest,
    ToInitial,
    ToLatest,
    ToOffset,
)
from airflow_kcr.protocol.values import CheckpointNumber, Offset, RegionId, TopicName
from tests.support.driver import Driver
from tests.support.live_region import SPEC, FakeCluster, live_region
from tests.support.reset_tasks import with_two_checkpoints


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def driver(driver: Driver) -> Driver:
    """Two checkpoints, at 100 and 200; positions at 300."""
    with_two_checkpoints(driver)
    return driver


@pytest.fixture
def region(driver: Driver, cluster: FakeCluster) -> Region:
    return Region(driver.name, driver.store, clusters=cluster.clusters, requester=Requester(who="pat"))


def targets(plan: Plan) -> list[int | None]:
    return [line.target for line in plan.entries]


def request(target: Target, *topics: str, skip: OffsetMap | None = None) -> ResetRequest:
    return ResetRequest(target=target, scope=parse_scope([], topics), skip=skip or OffsetMap())


# -- plans ---------------------------------------------------------------------------------------------------------


def test_what_is_left_of_an_unreachable_checkpoint_is_had_by_way_of_its_csv(
    region: Region, driver: Driver, cluster: FakeCluster
) -> None:
    cluster.starts = {2: 150}
    lost = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=CheckpointNumber(2))))
    assert [line.unreachable for line in lost.entries] == [False, False, True, False]
    assert lost.totals.unreachable == 1
    before = region.counter()
    told = (
        "g:t-2 would resume at 100, its log has 150 to 1000.*plan the same with -o csv, and then that file with --from"
    )
    with pytest.raises(errors.CheckpointNotUsable, match=told):
        region.resets.apply(lost, "to see")
    assert region.counter() == before
    plan = region.resets.plan(region.resets.request("from-file", lost.to_csv()))
    assert [(line.target, line.asked) for line in plan.entries] == [(100, None), (100, None), (150, 100), (100, None)]
    assert (plan.totals.clamped, plan.totals.unreachable) == (1, 0)
    driver.grow(driver.partition(2), start=150, end=1_000)
    applied(region, driver, plan)
    assert positions(driver) == [100, 100, 150, 100]
    assert region.verify().violations == ()


def test_a_plan_says_from_when_on_its_checkpoint_is_out_of_reach(region: Region, driver: Driver) -> None:
    target = ResetRequest(target=ToCheckpoint(sequence=CheckpointNumber(2)))
    assert region.resets.plan(target).overtaken_at is None, "no log has moved"
    driver.grow(driver.partition(1), start=50, end=1_000)
    driver.checkpoint("third")
    plan = region.resets.plan(target)
    page = driver.held.archive.checkpoint_page(before=None, last=None)
    assert plan.overtaken_at == reach(page)[CheckpointNumber(2)].overtaken_at is not None
    assert Plan.from_json(json.loads(json.dumps(plan.summary()))).overtaken_at == plan.overtaken_at
    assert "| Out of reach | from 20" in markdown(plan)
    facts = planned(plan).facts
    assert facts is not None
    assert str(facts["out of reach"]).startswith("from 20")
    assert region.resets.plan(ResetRequest(target=ToEarliest())).overtaken_at is None


def test_where_it_is_needs_no_broker(region: Region, cluster: FakeCluster) -> None:
    cluster.is_away = True
    assert targets(region.resets.plan(ResetRequest(target=ToCurrent()))) == [300] * 4
    with pytest.raises(errors.BrokerUnavailable):
        region.resets.plan(ResetRequest(target=ToEarliest()))


def test_each_plan_has_a_name_of_its_own_unless_it_is_given_one(region: Region) -> None:
    asked = ResetRequest(target=ToCurrent())
    first, second = region.resets.plan(asked), region.resets.plan(asked)
    assert first.plan != second.plan
    assert first.plan.startswith("flights/")
    assert region.resets.plan(asked, request_id="daily/run/plan/0").plan == "daily/run/plan/0"


def test_a_topic_that_kafka_has_no_more_is_named(region: Region, cluster: FakeCluster) -> None:
    cluster.counts = {TopicName("t"): 3}
    with pytest.raises(errors.InvalidTarget, match="Kafka has no log of g:t-3"):
        region.resets.plan(ResetRequest(target=ToEarliest()))
    assert targets(region.resets.plan(request(ToEarliest(), "t:0,1,2"))) == [0, 0, 0, 300]


def test_a_record_to_skip_has_to_be_in_the_log(region: Region, driver: Driver) -> None:
    def skipping(offset: int) -> ResetRequest:
        return request(ToCurrent(), skip=OffsetMap({driver.partition(0): Offset(offset)}))

    assert region.resets.plan(skipping(999)).request.skip
    with pytest.raises(errors.InvalidTarget, match="no record to skip in the log: g:t-0 at 1000"):
        region.resets.plan(skipping(1_000))
    with pytest.raises(errors.InvalidTarget, match="no such partition"):
        region.resets.plan(request(ToCurrent(), skip=OffsetMap({driver.partition(9): Offset(1)})))


@pytest.fixture
def fresh(database_url: str) -> Iterator[Driver]:
    """A region that has never run."""
    with live_region(database_url, SPEC.replace("flights", "other", 1)) as driver:
        yield driver


def test_a_region_that_has_never_run_is_reset_to_where_it_shall_begin(fresh: Driver, cluster: FakeCluster) -> None:
    region = Region(fresh.name, fresh.store, clusters=cluster.clusters)
    plan = region.resets.plan(request(ToOffset(offset=Offset(400)), "t:0,1"))
    assert [(line.current, line.target, line.source) for line in plan.entries] == [
        *[(None, 400, SeekSource.EXPLICIT)] * 2,
        *[(None, 0, SeekSource.INITIAL)] * 2,
    ]
    assert region.counter() == 1, "a plan changes nothing"
    assert region.resets.apply(plan, "taken over").state == "done"
    assert {p.partition: o for p, o in cluster.held.items()} == {0: 400, 1: 400, 2: 0, 3: 0}
    assert fresh.region.initialised, "what is found later begins at its start"

    # The first start goes there, and "everything" means from there on.
    fresh.up()
    assert {p.partition: c.position for p, c in fresh.region.claims.items()} == {0: 400, 1: 400, 2: 0, 3: 0}
    assert targets(region.resets.plan(ResetRequest(target=ToInitial()))) == [400, 400, 0, 0]
    assert not region.verify().violations


def test_where_a_region_that_has_never_run_would_begin_is_what_its_spec_says(
    database_url: str, cluster: FakeCluster
) -> None:
    spec = SPEC.replace("members: 2", "members: 2, start: committed")
    with live_region(database_url, spec) as driver:
        cluster.held = {driver.partition(1): 70}
        region = Region(driver.name, driver.store, clusters=cluster.clusters)
        assert targets(region.resets.plan(ResetRequest(target=ToCurrent()))) == [0, 70, 0, 0]
        assert targets(region.resets.plan(ResetRequest(target=ShiftBy(by=-20)))) == [0, 50, 0, 0]


def test_a_plan_of_a_region_that_has_never_run_is_stale_once_it_has_another_partition(
    fresh: Driver, cluster: FakeCluster
) -> None:
    region = Region(fresh.name, fresh.store, clusters=cluster.clusters)
    plan = region.resets.plan(ResetRequest(target=ToEarliest()))
    region.resets.require_fresh(plan)
    cluster.counts = {TopicName("t"): 5}
    for refused in (region.resets.require_fresh, partial(region.resets.apply, reason="taken over")):
        with pytest.raises(errors.StalePlan, match=r"of 4 partition\(s\), region other has 5 now"):
            refused(plan)
    assert region.counter() == 1


def test_a_region_without_a_topic_has_nothing_to_reset(fresh: Driver, cluster: FakeCluster) -> None:
    cluster.counts = {}
    with pytest.raises(errors.InvalidTarget, match="no partitions yet"):
        Region(fresh.name, fresh.store, clusters=cluster.clusters).resets.plan(ResetRequest(target=ToEarliest()))


# -- documents -----------------------------------------------------------------------------------------------------


def test_a_plan_goes_through_json_unchanged(region: Region) -> None:
    plan = region.resets.plan(request(ToOffset(offset=Offset(50)), "t:0,1"))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_summary_has_the_worst_partitions_and_can_be_applied(database_url: str, cluster: FakeCluster) -> None:
    with live_region(database_url, partitions=50) as driver:
        driver.up()
        driver.process(driver.member(0), width=30)
        driver.process(driver.member(1), width=10)
        cluster.counts = {TopicName("t"): 50}
        cluster.starts = {49: 5}
        region = Region(driver.name, driver.store, clusters=cluster.clusters)
        plan = region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(0))))
        summary = Plan.from_json(plan.summary())
        assert len(summary.entries) == 20
        assert summary.entries[0].partition.partition == 49, "clamped"
        assert {line.replay for line in summary.entries[1:]} == {30}
        assert summary.totals == plan.totals
        assert region.resets.apply(summary, "to see").state == "draining"


@pytest.mark.parametrize("document", [None, [], {}, {"plan": "x"}, {"region": "flights", "plan": ""}])
def test_what_is_no_plan_is_refused(document: object) -> None:
    with pytest.raises(errors.ConfigurationError, match="not a plan of a reset"):
        Plan.from_json(document)


@pytest.mark.parametrize(
    ("field", "value"),
    [("epoch", "1"), ("entries", [{}]), ("totals", {}), ("made_at", "now"), ("request", {}), ("region", "No Region")],
)
def test_a_plan_with_a_broken_field_is_refused(region: Region, field: str, value: object) -> None:
    document = region.resets.plan(ResetRequest(target=ToCurrent())).to_json()
    with pytest.raises(errors.ConfigurationError):
        Plan.from_json({**document, field: value})


# -- applied online ------------------------------------------------------------------------------------------------


def applied(region: Region, driver: Driver, plan: Plan, *, forced: bool = False) -> None:
    """Apply, and do the members' part."""
    region.resets.apply(plan, "to see", forced=forced)
    if driver.region.open_checkpoint is not None:
        driver.complete()
    driver.finish_reset()


def positions(driver: Driver) -> list[int | None]:
    return [claim.position for _, claim in sorted(driver.region.claims.items())]


def test_the_name_of_a_plan_is_not_used_for_another_target(region: Region, driver: Driver) -> None:
    plan = region.resets.plan(ResetRequest(target=ToEarliest()), request_id="n")
    other = region.resets.plan(ResetRequest(target=ToLatest()), request_id="n")
    applied(region, driver, plan)
    with pytest.raises(errors.ConfigurationError, match="applied already, with another target"):
        region.resets.apply(other, "to see")


def test_a_duration_applied_twice_is_one_reset_too(region: Region, driver: Driver, cluster: FakeCluster) -> None:
    plan = region.resets.plan(ResetRequest(target=ByDuration(back=timedelta(hours=1))))
    applied(region, driver, plan)
    assert region.resets.apply(plan, "once more").state == "done"


def test_a_plan_that_was_made_once_more_under_its_name_does_not_seem_to_be_applied(
    region: Region, driver: Driver
) -> None:
    plan = region.resets.plan(ResetRequest(target=ToEarliest()), request_id="dag/run/plan/-1/try 1")
    applied(region, driver, plan)
    assert region.resets.apply(plan, "a retry").state == "done"
    again = region.resets.plan(ResetRequest(target=ToEarliest()), request_id="dag/run/plan/-1/try 1")
    with pytest.raises(
        errors.ConfigurationError, match="was applied already, in epoch 2, and another one has been made"
    ):
        region.resets.apply(again, "the run was deleted and made anew")


def test_a_plan_of_an_earlier_region_of_the_name_is_refused(region: Region) -> None:
    plan = region.resets.plan(ResetRequest(target=ToEarliest()))
    earlier = replace(plan, region_id=RegionId("the first"))
    told = r"an earlier region flights \(id the first\), which was deleted and declared again"
    with pytest.raises(errors.StalePlan, match=told):
        region.resets.require_fresh(earlier)
    with pytest.raises(errors.StalePlan, match=told):
        region.resets.apply(earlier, "to see")


def test_a_plan_of_another_region_is_refused(region: Region, driver: Driver, cluster: FakeCluster) -> None:
    plan = region.resets.plan(ResetRequest(target=ToEarliest()))
    with pytest.raises(errors.ConfigurationError, match="the plan is of region flights, this is other"):
        Region("other", driver.store, clusters=cluster.clusters).resets.apply(plan, "to see")


def test_what_the_log_has_lost_since_the_plan_is_refused_before_the_drain(
    region: Region, driver: Driver, cluster: FakeCluster
) -> None:
    plan = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=CheckpointNumber(2))))
    cluster.starts = dict.fromkeys(range(4), 101)
    with pytest.raises(errors.CheckpointNotUsable, match=r"4 partition\(s\) can't go there"):
        region.resets.apply(plan, "to see")
    assert driver.region.open_checkpoint is None


def test_a_reset_whose_checkpoint_is_aborted_says_so_and_nothing_else_has_changed(
    region: Region, driver: Driver
) -> None:
    plan = region.resets.plan(ResetRequest(target=ToEarliest()))
    region.resets.apply(plan, "to see")
    driver.request_reset(driver.member(0), ResetCause.CLAIM, "a test")
    with pytest.raises(errors.ResetFailed, match=r"failed: .*a reset began"):
        region.resets.wait_for(plan.plan, timedelta(0))
    driver.finish_reset()
    assert (driver.region.timeline, driver.region.state) == (1, RegionState.RUNNING)
    assert region.resets.apply(plan, "once more").state == "failed", "the plan is used up; another has another name"


# -- forced --------------------------------------------------------------------------------------------------------


# -- consent -------------------------------------------------------------------------------------------------------


# -- applied offline -----------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(region: Region, driver: Driver) -> Driver:
    region.stop()
    driver.complete()
    driver.publish()
    for member in sorted(driver.processes):
        driver.read_back(member)
    for member in sorted(driver.processes):
        driver.leave(member)
    driver.handle(Reconcile())
    assert driver.region.state is RegionState.STOPPED
    return driver


def test_a_stopped_region_is_reset_at_once_and_kafka_is_told(
    region: Region, stopped: Driver, cluster: FakeCluster
) -> None:
    plan = region.resets.plan(request(ToCheckpoint(sequence=CheckpointNumber(2)), "t:0,1"))
    assert region.resets.apply(plan, "to see").state == "done"
    assert cluster.held == {stopped.partition(n): o for n, o in enumerate([100, 100, 300, 300])}
    note = json.loads(cluster.notes[stopped.partition(0)])
    assert note == {"region": "flights", "region_id": "id of flights", "timeline": 2, "sequence": 5, "epoch": 2}
    stopped.up()
    assert positions(stopped) == [100, 100, 300, 300]


def test_nothing_is_changed_while_somebody_is_in_a_group(region: Region, stopped: Driver, cluster: FakeCluster) -> None:
    plan = region.resets.plan(ResetRequest(target=ToEarliest()))
    cluster.inside, before = "zombie on 10.0.0.9", region.counter()
    with pytest.raises(errors.GroupNotEmpty, match=r"zombie on 10\.0\.0\.9.*Nothing was changed"):
        region.resets.apply(plan, "to see")
    assert region.counter() == before


def test_who_joins_between_store_and_kafka_leaves_an_error_that_says_how_to_repeat(
    region: Region, stopped: Driver, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = region.resets.plan(ResetRequest(target=ToEarliest()))

    def joined(group: object, offsets: object, metadata: object) -> None:
        raise errors.GroupNotEmpty("group g: somebody joined it meanwhile")

    with monkeypatch.context() as patched:
        patched.setattr(FakeCluster, "alter", staticmethod(joined))
        with pytest.raises(errors.GroupNotEmpty, match=r"the reset is stored \(epoch 2\).*Apply the same plan again"):
            region.resets.apply(plan, "to see")
    assert region.show().epoch == 2
    assert region.resets.apply(plan, "once more").state == "done"
    assert set(cluster.held.values()) == {0}
    assert region.show().epoch == 2


def test_kafka_is_not_told_again_once_the_region_has_gone_on(
    region: Region, stopped: Driver, cluster: FakeCluster
) -> None:
    plan = region.resets.plan(ResetRequest(target=ToEarliest()))
    region.resets.apply(plan, "to see")
    stopped.up()
    cluster.held = {}
    region.resets.apply(plan, "once more")
    assert cluster.held == {}


def together(steps: Iterable[Callable[[], object]]) -> list[object]:
    """Take steps at the same time, and return what each has returned or raised."""
    steps = list(steps)
    ready = Barrier(len(steps))

    def taken(step: Callable[[], object]) -> object:
        ready.wait(30)
        try:
            return step()
        except errors.KcrError as error:
            return error

    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(taken, steps))


def test_a_plan_that_several_apply_at_once_is_one_reset(region: Region, stopped: Driver, cluster: FakeCluster) -> None:
    plan = region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(50))))
    found = together([lambda: region.resets.apply(plan, "to see")] * 4)
    assert [getattr(view, "state", view) for view in found] == ["done"] * 4
    assert (stopped.region.epoch, len(stopped.region.person_resets)) == (2, 1)
    assert set(cluster.held.values()) == {50}


def test_of_several_plans_that_are_applied_at_once_one_is_and_nothing_of_the_others(
    region: Region, stopped: Driver, cluster: FakeCluster
) -> None:
    plans = {o: region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(o)))) for o in (10, 20, 30, 40)}
    found = together(partial(region.resets.apply, plan, "to see") for plan in plans.values())
    done = [view for view in found if isinstance(view, ResetView)]
    assert len(done) == 1, found
    assert {type(refused) for refused in found if refused is not done[0]} == {errors.StalePlan}
    offset = next(o for o, plan in plans.items() if plan.plan == done[0].plan)
    assert set(cluster.held.values()) == set(stopped.region.seek.offsets.values()) == {offset}
    assert (stopped.region.epoch, list(stopped.region.person_resets)) == (2, [done[0].plan])
    assert region.verify().violations == ()


def test_online_too_a_plan_that_several_apply_at_once_is_one_reset(region: Region, driver: Driver) -> None:
    plan = region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(50))))
    found = together([lambda: region.resets.apply(plan, "to see")] * 4)
    assert [getattr(view, "state", view) for view in found] == ["draining"] * 4
    driver.complete()
    driver.finish_reset()
    assert (driver.region.epoch, positions(driver)) == (2, [50] * 4)


# -- history -------------------------------------------------------------------------------------------------------


def test_the_history_tells_who_why_and_what_was_replayed(region: Region, driver: Driver) -> None:
    plan = region.resets.plan(request(ToCheckpoint(sequence=CheckpointNumber(2)), "t:0,1"))
    applied(region, driver, plan)
    driver.process(width=50)
    start, reset = region.resets.list()
    assert (start.cause, start.state, start.target) == ("start", "done", "automatic")
    shown = reset.to_json()
    assert (shown["id"], shown["plan"], shown["state"], shown["cause"]) == ("flights/5", plan.plan, "done", "person")
    assert (shown["target"], shown["scope"], shown["skip"]) == ("to-checkpoint 2", "--topic t:0,1", [])
    assert (shown["forced"], shown["consent_upsert"]) == (False, False)
    assert (shown["who"], shown["dag_id"], shown["reason"]) == ("pat", None, "to see")
    assert (shown["timeline"], shown["epoch"], shown["failure"]) == (2, 2, None)
    assert (shown["undone"], shown["rewound"], shown["replayed"]) == ([3, 4], 400, 100)


def test_a_reset_is_found_by_its_id_its_sequence_and_its_plan(region: Region, driver: Driver) -> None:
    plan = region.resets.plan(ResetRequest(target=ToEarliest()), request_id="daily/monday/plan/-1")
    applied(region, driver, plan)
    for name in ("flights/5", "5", "daily/monday/plan/-1", "flights/daily/monday/plan/-1"):
        assert region.resets.show(name).plan == plan.plan
    with pytest.raises(errors.UnknownReset, match="has no reset '6'"):
        region.resets.show("6")


def test_further_attempts_belong_to_the_reset(region: Region, driver: Driver) -> None:
    plan = region.resets.plan(ResetRequest(target=ToEarliest()))
    region.resets.apply(plan, "to see")
    driver.complete()
    driver.request_reset(driver.member(0), ResetCause.LEASE_LOST, "a test")
    driver.finish_reset()
    reset = region.resets.show(plan.plan)
    assert [(a.attempt, str(a.state)) for a in reset.attempts] == [(1, "superseded"), (2, "done")]
    assert reset.state == "done"
    assert len(region.resets.list()) == 2


def test_a_wait_for_a_plan_that_nobody_applied_is_refused(region: Region) -> None:
    with pytest.raises(errors.RegionInState, match="apply its plan first"):
        region.resets.wait_for("nobody's", timedelta(0))
