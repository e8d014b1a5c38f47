"""The operator of an interval on a real store, with a stand-in for Spark's command that does what members would."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred
from airflow.sdk.api.datamodels._generated import DagRunType

from airflow_kcr.airflow_features import PARTITION_DATES
from airflow_kcr.api import runs
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks import compat
from airflow_kcr.hooks.assets import region_asset
from airflow_kcr.operators.interval import KcrIntervalOperator
from airflow_kcr.operators.intervals import boundary_of, interval_of
from airflow_kcr.operators.run_members import KcrRunMembersOperator
from airflow_kcr.protocol.region.commands import Run
from airflow_kcr.protocol.region.rows import RegionState, Requester
from airflow_kcr.protocol.values import RequestId
from airflow_kcr.spec import RegionSpec, parse
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster
from tests.support.scripts import carried_out
from tests.unit.operators.conftest import Submitted

if TYPE_CHECKING:
    from airflow.sdk import Context

END = datetime(2026, 3, 1, 12, 5, tzinfo=UTC)
START = END - timedelta(minutes=5)
TASK = FakeTask(task_id="run", dag_id="flights_interval", run_id="run-1")
REQUEST = "flights_interval/run-1/run/-1"


def context(task: FakeTask = TASK) -> Any:  # noqa: ANN401
    """A run of the interval."""
    return task_context(task, interval=(START, END))


def operator(**changed: Any) -> KcrIntervalOperator:  # noqa: ANN401
    return KcrIntervalOperator(**{"task_id": "run", "region": "flights", **changed})


def execute(one: KcrIntervalOperator, made: Any) -> dict[str, Any]:  # noqa: ANN401
    found: dict[str, Any] = one.execute.__wrapped__(one, made)  # type: ignore[attr-defined]
    return found


@pytest.fixture(autouse=True)
def later(driver: Driver) -> None:
    """It is some time after the interval, and there is something to read that is not looked at yet."""
    driver.clock.advance((END - driver.clock()).total_seconds() + 3600)


def members_do(driver: Driver) -> None:
    """Do what the application does."""
    wanted = Run(
        request_id=RequestId(REQUEST),
        boundary=END,
        requester=Requester(who="airflow", dag_id="flights_interval", run_id="run-1"),
    )
    carried_out(driver, wanted, 10)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka is not there to be looked at: members have to."""
    monkeypatch.setattr(runs.RegionRun, "_look", lambda *_: None)


@pytest.mark.usefixtures("unread")
def test_an_application_of_all_members_runs_and_the_checkpoint_is_returned_and_told(
    driver: Driver, submitted: Submitted
) -> None:
    submitted.does = lambda: members_do(driver)
    made = context()
    answer = execute(operator(), made)
    assert submitted.arguments == [
        *("run", "flights", "--until", "2026-03-01T12:05:00Z", "--request-id", REQUEST),
        *("--dag-run", "flights_interval/run-1"),
    ]
    assert submitted.environment["KCR_TASK_GONE_DRAIN"] == "0"
    assert (answer["boundary"], answer["inexact"]) == ("2026-03-01T12:05:00Z", False)
    assert made["outlet_events"][region_asset("flights")].extra["sequence"] == answer["sequence"]
    assert driver.region.state is RegionState.STOPPED


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(("on_clear", "max_tries"), [("recompute", 0), ("find", 0), ("find", 1)])
def test_a_run_that_has_its_checkpoint_finds_it_and_starts_nothing(
    driver: Driver, submitted: Submitted, on_clear: str, max_tries: int
) -> None:
    members_do(driver)
    answer = execute(operator(on_clear=on_clear), context(replace(TASK, max_tries=max_tries)))
    assert answer["sequence"] == driver.region.restore_sequence
    assert submitted.arguments == []


@pytest.mark.usefixtures("unread")
def test_a_run_that_is_cleared_before_it_had_a_checkpoint_goes_on(driver: Driver, submitted: Submitted) -> None:
    submitted.does = lambda: members_do(driver)
    execute(operator(), context(replace(TASK, max_tries=1)))
    assert submitted.arguments[0] == "run"


def test_an_interval_without_a_record_starts_nothing(
    driver: Driver, cluster: FakeCluster, submitted: Submitted
) -> None:
    members_do(driver)
    cluster.ends = dict.fromkeys(range(4), 10)
    later = FakeTask(task_id="run", dag_id="flights_interval", run_id="run-2")
    answer = execute(operator(), task_context(later, interval=(END, END + timedelta(minutes=5))))
    assert answer["boundary"] == "2026-03-01T12:10:00Z"
    assert submitted.arguments == []


@pytest.mark.usefixtures("unread")
def test_another_try_takes_the_members_over(driver: Driver, submitted: Submitted) -> None:
    submitted.does = lambda: members_do(driver)
    execute(operator(allow_inexact=True), context(replace(TASK, try_number=2)))
    assert submitted.arguments[-2:] == ["--allow-inexact", "--takeover"]


def part(**changed: Any) -> KcrRunMembersOperator:  # noqa: ANN401
    given = {"task_id": "members", "region": "flights", "run_task_id": "run", "group_id": "g", "indexes": [1]}
    return KcrRunMembersOperator(**{**given, **changed})


PART = replace(TASK, task_id="members", map_index=0)


@pytest.mark.usefixtures("unread")
def test_an_application_of_some_members_has_its_part_in_the_run_and_emits_nothing(
    driver: Driver, submitted: Submitted
) -> None:
    submitted.does = lambda: members_do(driver)
    made = context(replace(PART, try_number=2))
    part().execute.__wrapped__(part(), made)  # type: ignore[attr-defined]
    assert submitted.arguments[submitted.arguments.index("--request-id") + 1] == REQUEST
    assert submitted.arguments[-5:] == ["--takeover", "--group", "g", "--index", "1"]
    assert not part().outlets
    # The task of the run finds the checkpoint, and so does this one if it is cleared.
    submitted.arguments.clear()
    answer = execute(operator(group_id="g", indexes=[0]), context())
    assert answer["sequence"] == driver.region.restore_sequence
    part().execute.__wrapped__(part(), context(replace(PART, max_tries=1)))  # type: ignore[attr-defined]
    assert submitted.arguments == []


@pytest.mark.usefixtures("unread")
def test_in_a_cluster_an_application_is_waited_for_by_its_own_members(submitted: Submitted) -> None:
    submitted.is_cluster = True
    with pytest.raises(TaskDeferred) as deferred:
        part().execute.__wrapped__(part(), context(PART))  # type: ignore[attr-defined]
    assert deferred.value.trigger.serialize()[1]["waiting_for"]["before"] == {"g[1]": 0}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"group_id": "other"}, "has no group 'other'"),
        ({"indexes": [7]}, "7 is not among them"),
        ({"indexes": []}, "names no members"),
    ],
)
def test_members_that_there_are_not_are_refused_before_anything_is_asked(
    driver: Driver, submitted: Submitted, changed: dict[str, object], why: str
) -> None:
    counter = driver.region.counter
    with pytest.raises(AirflowFailException, match=why):
        part(**changed).execute.__wrapped__(part(**changed), context(PART))  # type: ignore[attr-defined]
    assert (driver.region.counter, submitted.arguments) == (counter, [])


@pytest.mark.parametrize("given", [{"group_id": "g"}, {"indexes": [0]}])
def test_group_and_indexes_come_together(given: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="give both"):
        operator(**given)


@pytest.mark.usefixtures("unread")
def test_an_application_that_ends_without_the_checkpoint_fails_the_task(submitted: Submitted) -> None:
    with pytest.raises(AirflowFailException, match="has ended without its checkpoint"):
        execute(operator(), context())


@pytest.mark.usefixtures("unread")
def test_in_a_cluster_the_task_waits_without_a_slot_until_the_run_is_over(driver: Driver, submitted: Submitted) -> None:
    submitted.is_cluster = True
    one = operator()
    with pytest.raises(TaskDeferred) as deferred:
        execute(one, context())
    assert deferred.value.trigger.serialize()[1]["waiting_for"]["kind"] == "run_ended"
    members_do(driver)
    made = context()
    assert one.resume(made, {"status": "reached", "detail": ""})["sequence"] == driver.region.restore_sequence
    with pytest.raises(AirflowException, match="no member came"):
        one.resume(context(), {"status": "timed_out", "detail": "no member came"})


@pytest.mark.usefixtures("unread")
def test_a_task_that_is_killed_tells_its_application(driver: Driver, submitted: Submitted) -> None:
    one = operator()
    one.on_kill()
    assert not submitted.was_told
    submitted.does = one.on_kill
    with pytest.raises(AirflowFailException, match="has ended without its checkpoint"):
        execute(one, context())
    assert submitted.was_told


def test_what_a_cleared_run_does_is_one_of_its_words() -> None:
    with pytest.raises(ConfigurationError, match="on_clear is 'again'; write one of recompute, find"):
        operator(on_clear="again")


def test_region_or_spec_is_given() -> None:
    with pytest.raises(ConfigurationError, match="takes region or spec"):
        operator(spec="region: x\n")
    with pytest.raises(ConfigurationError, match="takes region or spec"):
        KcrIntervalOperator(task_id="run")


def test_an_interval_that_does_not_fit_the_region_is_refused(driver: Driver, submitted: Submitted) -> None:
    with pytest.raises(AirflowFailException, match="has a data interval of no length"):
        execute(operator(), task_context(TASK, interval=(END, END)))
    assert submitted.arguments == []


def test_an_interval_of_another_schedule_is_refused_and_an_instant_that_is_given_is_not_compared() -> None:
    hourly = spec_with("checkpoint: {cron: '0 * * * *'}\n")
    with pytest.raises(ConfigurationError, match="does not end at a boundary of region flights"):
        boundary_of(context(), hourly, None)
    assert boundary_of(context(), hourly, END) == END


@pytest.mark.parametrize(
    ("until", "why"),
    [
        ("yesterday", "until: 'yesterday' is not a time"),
        ("2026-01-01T00:00", "until: 2026-01-01T00:00:00 has no zone"),
    ],
)
def test_an_end_that_can_not_be_is_refused_by_its_name_and_starts_nothing(
    driver: Driver, submitted: Submitted, until: str, why: str
) -> None:
    before = driver.region.counter
    with pytest.raises(AirflowFailException, match=why):
        execute(operator(until=until), context())
    assert (submitted.arguments, driver.region.counter) == ([], before)


@pytest.mark.usefixtures("unread")
def test_a_run_without_an_interval_takes_what_is_there_now(submitted: Submitted) -> None:
    with pytest.raises(AirflowFailException, match="has ended without its checkpoint"):
        execute(operator(), task_context(TASK))
    assert submitted.arguments[:4] == ["run", "flights", "--until", "now"]


def partition(of: RegionSpec, date: datetime | None) -> tuple[datetime, datetime] | None:
    """What a run of a partition is for."""
    run = SimpleNamespace(
        dag_id="d",
        run_id="r",
        run_type=DagRunType.SCHEDULED,
        data_interval_start=None,
        data_interval_end=None,
        partition_key=None if date is None else "2026-03-01T10",
        partition_date=date,
    )
    return interval_of(cast("Context", {"dag_run": run}), of)


def spec_with(checkpoint: str) -> RegionSpec:
    return parse(
        "region: flights\nkafka: {bootstrap.servers: 'b:1'}\n"
        f"groups: [{{group_id: g, topics: [t], pipeline: 'a:b'}}]\n{checkpoint}"
    )


def test_a_partition_is_the_period_that_its_date_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat.HAS, PARTITION_DATES, True)
    hourly = spec_with("checkpoint: {cron: '0 * * * *'}\n")
    ten = datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert partition(hourly, ten) == (ten, ten + timedelta(hours=1))
    assert partition(hourly, None) is None
    with pytest.raises(ConfigurationError, match=r"of the partition 2026-03-01T10:00:00Z, and region flights has no"):
        partition(spec_with(""), ten)


def test_a_scheduled_partition_is_refused_where_airflow_does_not_tell_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat.HAS, PARTITION_DATES, False)
    with pytest.raises(ConfigurationError, match=r"^schedule of DAG d: runs of partitions .* need Airflow 3\.3: "):
        partition(spec_with("checkpoint: {cron: '0 * * * *'}\n"), datetime(2026, 3, 1, 10, tzinfo=UTC))
