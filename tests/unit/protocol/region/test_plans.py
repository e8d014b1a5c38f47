from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_kcr.protocol.observations import LogView, TimeAnswer
from airflow_kcr.protocol.region.plans import Plan, plan
from airflow_kcr.protocol.region.rows import Requester, ResetRequest
from airflow_kcr.protocol.scopes import EVERYTHING, Scope, parse_scope
from airflow_kcr.protocol.targets import ShiftBy, Target, ToCheckpoint, ToDatetime, ToLatest
from airflow_kcr.protocol.values import GroupPartition, Offset, RequestId
from tests.support.driver import BEGINNING, Driver
from tests.support.scripts import checkpoints_of_ten, running


def planned(
    driver: Driver, target: Target, *, scope: Scope = EVERYTHING, times: Mapping[GroupPartition, int] | None = None
) -> Plan:
    request = ResetRequest(target=target, scope=scope)
    answers = {p: TimeAnswer(offset=Offset(offset)) for p, offset in (times or {}).items()}
    log = LogView(bounds=driver.logs, answers=answers, read_at=driver.clock.now)
    return plan(driver.region, driver.clock.now, RequestId("r"), request, log)


def test_a_plan_shows_every_partition_with_where_it_is_and_where_it_would_go() -> None:
    driver = running(partitions=2)
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    driver.process()
    found = planned(driver, ToCheckpoint(sequence=checkpoint), scope=parse_scope(topics=["t:1"]))
    assert [(line.current, line.entry.offset, line.in_scope) for line in found.entries] == [
        (20, 20, False),
        (20, 10, True),
    ]
    assert (found.region, found.epoch) == (driver.name, driver.region.epoch)
    assert found.request.target == ToCheckpoint(sequence=checkpoint)


def test_what_it_would_process_again_and_pass_over_is_counted() -> None:
    driver = running(partitions=2)
    driver.process()
    back = planned(driver, ShiftBy(by=-4))
    assert (back.totals.replay, back.totals.skip) == (8, 0)
    forth = planned(driver, ToLatest())
    assert (forth.totals.replay, forth.totals.skip) == (0, 1_980)


def test_what_is_clamped_says_what_was_asked_for() -> None:
    driver = running(partitions=1, members=1)
    driver.process()
    line = planned(driver, ShiftBy(by=-50)).entries[0]
    assert (line.entry.offset, line.entry.clamped_from) == (0, -40)


def test_the_checkpoints_and_runs_that_it_undoes_are_named_in_the_order_of_their_checkpoints() -> None:
    driver = running()
    checkpoints = []
    for run in ("r2", "r1", "r3"):
        driver.process()
        driver.request_checkpoint(run, requester=Requester(dag_id="checkpoint", run_id=run))
        checkpoints.append(driver.complete())
        driver.publish()
    driver.process()
    checkpoints.append(driver.checkpoint("by-hand"))
    found = planned(driver, ToCheckpoint(sequence=checkpoints[0]))
    assert found.undoes == tuple(checkpoints[1:])
    assert [run.run_id for run in found.runs] == ["r1", "r3"]
    assert planned(driver, ToCheckpoint(sequence=checkpoints[-1])).undoes == ()


def test_what_the_log_no_longer_has_is_shown_as_unreachable() -> None:
    driver = running(partitions=2)
    checkpoint = checkpoints_of_ten(driver, 1)[0]
    driver.process()
    driver.grow(driver.partition(0), start=15, end=1_000)
    found = planned(driver, ToCheckpoint(sequence=checkpoint))
    assert [(u.partition, u.target) for u in found.unreachable] == [(driver.partition(0), 10)]


def test_times_are_looked_up_by_the_caller() -> None:
    driver = running(partitions=1, members=1)
    driver.process()
    line = planned(driver, ToDatetime(instant=BEGINNING), times={driver.partition(0): 6}).entries[0]
    assert line.entry.offset == 6
    with pytest.raises(KeyError):
        planned(driver, ToDatetime(instant=BEGINNING))
