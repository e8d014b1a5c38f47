from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_kcr.api import Region
from airflow_kcr.errors import TimedOut
from airflow_kcr.hooks.kcr import interval_of
from airflow_kcr.operators import base
from airflow_kcr.operators.checkpoint import KcrDrainOperator
from airflow_kcr.operators.intervals import remarks
from airflow_kcr.protocol.region.commands import KillRegion, Reconcile, StoreBoundaryOffsets
from airflow_kcr.protocol.region.rows import BoundaryOffset, CheckpointPurpose, RequestState
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import Offset, RegionName, RequestId
from airflow_kcr.store.regions import RegionStore
from airflow_kcr.triggers.payloads import Status, TriggerAnswer
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support import airflow_tasks
from tests.support.airflow_tasks import REACHED, FakeTask, task_context
from tests.support.driver import Driver
from tests.support.live_region import SPEC, live_region

if TYPE_CHECKING:
    from airflow.sdk import Context

Json: TypeAlias = dict[str, Any]
MINUTE = timedelta(minutes=1)
FIVE = 5 * MINUTE


def now_of(driver: Driver) -> datetime:
    """The store's clock."""
    return driver.store.read(driver.name)[1]


def last_boundary(driver: Driver) -> datetime:
    """The last boundary of a region that checkpoints every five minutes."""
    now = now_of(driver)
    return now - (now - datetime(1970, 1, 1, tzinfo=UTC)) % FIVE


def text(instant: datetime) -> str:
    """An instant as results have it."""
    return instant.isoformat().replace("+00:00", "Z")


class Run(NamedTuple):
    """One run of a DAG, by the end of its data interval."""

    end: datetime | None
    name: str = ""
    length: timedelta = FIVE
    task_id: str = "drain"

    @property
    def context(self) -> Context:
        name = self.name or f"scheduled__{self.end and self.end.isoformat()}"
        task = FakeTask(task_id=self.task_id, run_id=name)
        return task_context(task, interval=None if self.end is None else (self.end - self.length, self.end))

    @property
    def request_id(self) -> RequestId:
        task = self.context["ti"]
        return RequestId(f"{task.dag_id}/{task.run_id}/{task.task_id}/-1")


def operator(**changed: Any) -> KcrDrainOperator:  # noqa: ANN401
    return KcrDrainOperator(**{"task_id": "drain", "region": "flights", **changed})


def deferred(run: Run, **changed: Any) -> TaskDeferred:  # noqa: ANN401
    """Let a run ask and wait, and return how it does."""
    return airflow_tasks.deferred(operator(**changed), run.context)


def resumed(waiting: TaskDeferred, run: Run, event: Json = REACHED, **changed: Any) -> Json:  # noqa: ANN401
    """Resume a task as Airflow does: another instance, in another process."""
    answer: Json = airflow_tasks.resumed(operator(**changed), waiting, run.context, event)
    return answer


def said_of(driver: Driver, run: Run) -> list[str]:
    """What the task's log says of a run's checkpoint."""
    row, previous = Region(driver.name, driver.store).answered(run.request_id)
    assert row is not None
    return remarks(interval_of(run.context), row, previous)


def at_boundary(driver: Driver, boundary: datetime, offset: int) -> None:
    """Let the members find where a boundary falls in each partition, process up to it and checkpoint there."""
    for member in sorted(driver.processes):
        found = {p: BoundaryOffset(offset=Offset(offset)) for p in driver.claims(member)}
        driver.handle(StoreBoundaryOffsets(caller=driver.caller(member), boundary=boundary, found=found))
    for member in sorted(driver.processes):
        width = max(offset - (claim.position or 0) for claim in driver.claims(member).values())
        if width > 0:
            driver.process(member, width=width)
    driver.handle(Reconcile())
    if driver.region.open_checkpoint is not None:
        driver.complete()
        driver.publish()


Start: TypeAlias = Callable[[str], Driver]


@pytest.fixture
def start(store_connection: str) -> Iterator[Start]:
    """Starts the region with checkpoints as a spec says."""
    lent = []

    def started(checkpoint: str) -> Driver:
        context = live_region(store_connection, SPEC + (f"checkpoint: {checkpoint}\n" if checkpoint else ""))
        driver = context.__enter__()
        lent.append(context)
        driver.up()
        return driver

    yield started
    for context in lent:
        context.__exit__(None, None, None)


BY_RUN = "{every: 5m, request: dag_run}"


# -- asking and waiting ------------------------------------------------------------------------------------------------


def test_a_run_asks_for_the_end_of_its_interval_waits_without_a_slot_and_returns_its_checkpoint(start: Start) -> None:
    driver = start(BY_RUN)
    boundary = last_boundary(driver)
    run = Run(boundary)
    waiting = deferred(run, timeout=10 * MINUTE)
    request = driver.region.requests[run.request_id]
    assert (request.boundary, request.purpose) == (run.end, CheckpointPurpose.REQUEST)
    assert request.requester.run_id == run.context["dag_run"].run_id
    trigger = waiting.trigger
    assert isinstance(trigger, RegionTrigger)
    assert trigger.waiting_for == {"kind": "checkpoint_published", "request_id": run.request_id}
    assert trigger.deadline == 600
    assert waiting.timeout == timedelta(seconds=660)
    at_boundary(driver, boundary, 10)
    assert resumed(waiting, run) == {
        "region": "flights",
        "timeline": driver.region.timeline,
        "sequence": driver.region.restore_sequence,
        "boundary": text(boundary),
        "inexact": False,
        "revision": 0,
    }


def test_a_deferred_drain_reads_the_store_four_times(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = start(BY_RUN)
    boundary = last_boundary(driver)
    run = Run(boundary)
    reads: list[RegionName] = []
    read = RegionStore.read

    def counted(store: RegionStore, name: RegionName) -> tuple[StoredRegion, datetime]:
        reads.append(name)
        return read(store, name)

    with monkeypatch.context() as patched:
        patched.setattr(RegionStore, "read", counted)
        patched.setattr(base, "PATIENCE", timedelta(seconds=1.2))
        waiting = deferred(run)
    assert len(reads) == 3, "for its schedule, once asked, and after the patience: nothing happens in between"
    at_boundary(driver, boundary, 10)
    with monkeypatch.context() as patched:
        patched.setattr(RegionStore, "read", counted)
        resumed(waiting, run)
        assert len(reads) == 4
        operator().execute(run.context)
        assert len(reads) == 4 + 3, "a cleared task asks again"


def test_without_deferring_the_task_waits_itself_and_names_who_is_missing(start: Start) -> None:
    start("")
    with pytest.raises(AirflowException, match=r"gave up after 0.2 s.*waits for g\[0\]") as late:
        operator(deferrable=False, timeout=timedelta(seconds=0.2)).execute(Run(None, "manual__1").context)
    assert not isinstance(late.value, AirflowFailException)


# -- which records a run's checkpoint has
# -------------------------------------------------------------------------------------


def test_a_late_scheduler_finds_the_checkpoint_that_the_region_made_itself(start: Start) -> None:
    driver = start("{every: 1d, request: auto}")
    # What the region has done at its boundary, long before a scheduler came.
    boundary = now_of(driver).replace(hour=0, minute=0, second=0, microsecond=0)
    driver.request_checkpoint(f"boundary:{boundary.isoformat()}", boundary=boundary, purpose=CheckpointPurpose.SCHEDULE)
    at_boundary(driver, boundary, 10)
    made = driver.region.restore_sequence
    driver.process(width=5)
    before = driver.region.next_sequence
    run = Run(boundary, length=timedelta(days=1))
    assert operator().execute(run.context)["sequence"] == made
    assert driver.region.next_sequence == before


def test_an_earlier_run_that_asks_when_a_later_one_is_served_shares_its_checkpoint_and_says_so(start: Start) -> None:
    driver = start(BY_RUN)
    last = last_boundary(driver)
    later, earlier = Run(last), Run(last - FIVE)
    waiting = {run: deferred(run) for run in (later, earlier)}
    at_boundary(driver, last, 20)
    assert resumed(waiting[earlier], earlier) == resumed(waiting[later], later)
    said = said_of(driver, earlier)
    assert f"no checkpoint was made at {text(last - FIVE)}" in said[0]
    assert f"of {text(last)}" in said[0]
    assert said_of(driver, later) == [f"it is the region's first checkpoint: it holds all records before {text(last)}"]


def test_a_skipped_run_leaves_its_records_to_the_next_one_which_says_so(start: Start) -> None:
    driver = start(BY_RUN)
    last = last_boundary(driver)
    first, third = Run(last - 2 * FIVE), Run(last)
    waiting = deferred(first)
    at_boundary(driver, last - 2 * FIVE, 10)
    resumed(waiting, first)
    waiting = deferred(third)
    at_boundary(driver, last, 30)
    sequence = resumed(waiting, third)["sequence"]
    assert set(driver.region.offsets[sequence].values()) == {30}
    assert said_of(driver, third) == [
        f"no checkpoint was made at {text(last - FIVE)}, the begin of the run's interval: this one holds the "
        "records since "
        f"{text(last - 2 * FIVE)}"
    ]


def test_a_checkpoint_that_somebody_made_in_between_holds_the_first_records_of_the_interval(start: Start) -> None:
    driver = start(BY_RUN)
    last = last_boundary(driver)
    driver.process(width=5)
    between = driver.checkpoint("somebody")
    run = Run(last)
    waiting = deferred(run)
    at_boundary(driver, last, 10)
    resumed(waiting, run)
    assert said_of(driver, run) == [
        f"checkpoint {between} before it has no boundary: the interval's records up to there are in that one"
    ]


def test_a_checkpoint_that_holds_just_the_interval_needs_no_remark(start: Start) -> None:
    driver = start(BY_RUN)
    last = last_boundary(driver)
    for number, boundary in enumerate((last - FIVE, last), start=1):
        waiting = deferred(Run(boundary))
        at_boundary(driver, boundary, 10 * number)
        resumed(waiting, Run(boundary))
    assert said_of(driver, Run(last)) == []


def test_a_run_without_an_interval_checkpoints_where_the_members_are(start: Start) -> None:
    driver = start("")
    driver.process(width=7)
    run = Run(None, "manual__2026-01-01")
    waiting = deferred(run)
    driver.complete()
    driver.publish()
    answer = resumed(waiting, run)
    assert answer["boundary"] is None
    assert set(driver.region.offsets[answer["sequence"]].values()) == {7}


def test_a_given_boundary_counts_instead_of_the_interval_whatever_the_schedule_says(start: Start) -> None:
    driver = start(BY_RUN)
    odd = last_boundary(driver) - MINUTE
    deferred(Run(None, "manual__1"), until=odd.isoformat())
    deferred(Run(None, "manual__2"), until=odd)
    assert {r.boundary for r in driver.region.requests.values()} == {odd}


def test_a_given_boundary_that_is_none_is_not_retried(start: Start) -> None:
    start(BY_RUN)
    with pytest.raises(AirflowFailException, match="'' is not a time"):
        operator(until="").execute(Run(None, "manual__1").context)


# -- what does not fit -------------------------------------------------------------------------------------------------


def test_an_interval_of_another_phase_is_refused_without_a_retry_and_nothing_is_asked(start: Start) -> None:
    driver = start(BY_RUN)
    with pytest.raises(AirflowFailException, match="does not end at a boundary of region flights"):
        operator().execute(Run(last_boundary(driver) - MINUTE).context)
    assert driver.region.requests == {}


# -- again -------------------------------------------------------------------------------------------------------------


def test_a_cleared_run_finds_its_checkpoint_again(start: Start) -> None:
    driver = start(BY_RUN)
    boundary = last_boundary(driver)
    run = Run(boundary - FIVE)
    waiting = deferred(run)
    at_boundary(driver, boundary - FIVE, 10)
    first = resumed(waiting, run)
    later = Run(boundary)
    waiting = deferred(later)
    at_boundary(driver, boundary, 20)
    assert resumed(waiting, later)["sequence"] > first["sequence"]
    assert operator().execute(run.context) == first


def test_an_aborted_checkpoint_fails_with_who_was_late_and_a_retry_gets_another_one(store_connection: str) -> None:
    quick = SPEC.replace("lease: 60s", "lease: 60s, drain: 2s") + "batch: {target: 500ms, timeout: 1s}\n"
    run = Run(None, "manual__1")
    with live_region(store_connection, quick) as driver:
        driver.up()
        waiting = deferred(run)
        driver.contribute(driver.member(0))
        region = Region(driver.name, driver.store)
        with pytest.raises(TimedOut) as late:
            region.wait_for_checkpoint(run.request_id)
        event = TriggerAnswer(status=Status.TIMED_OUT, detail=late.value.message).to_json()
        with pytest.raises(AirflowException, match=r"aborted.*late: g\[1\]") as failed:
            resumed(waiting, run, event)
        assert not isinstance(failed.value, AirflowFailException)
        aborted = driver.region.requests[run.request_id].sequence
        waiting = deferred(run)
        driver.complete()
        driver.publish()
        sequence = resumed(waiting, run)["sequence"]
        assert aborted is not None
        assert sequence > aborted


def test_a_checkpoint_that_a_reset_has_undone_is_asked_for_anew(start: Start) -> None:
    from airflow_kcr.protocol.targets import ToCheckpoint
    from tests.support.scripts import rewind

    driver = start("")
    driver.process()
    first = driver.checkpoint("before")
    driver.process()
    run = Run(None, "manual__1")
    waiting = deferred(run)
    driver.complete()
    driver.publish()
    undone = driver.region.requests[run.request_id].sequence
    rewind(driver, ToCheckpoint(sequence=first))
    with pytest.raises(TaskDeferred) as again:
        resumed(waiting, run)
    driver.complete()
    driver.publish()
    answer = resumed(again.value, run)
    assert undone is not None
    assert answer["sequence"] > undone
    assert answer["timeline"] == driver.region.timeline == 2


# -- a region that can't -----------------------------------------------------------------------------------------------


def test_a_stopped_region_is_refused_at_once(start: Start) -> None:
    driver = start("")
    driver.handle(KillRegion())
    with pytest.raises(AirflowFailException, match="is stopped"):
        operator().execute(Run(None, "manual__1").context)


def test_a_region_that_halts_while_the_task_waits_fails_it_without_a_retry(start: Start) -> None:
    driver = start("")
    run = Run(None, "manual__1")
    waiting = deferred(run)
    with pytest.raises(AirflowFailException, match="halted"):
        resumed(waiting, run, {"status": "refused", "detail": "region flights is halted: somebody"})
    driver.find_stranger()
    with pytest.raises(AirflowFailException, match="consumer stranger on host"):
        operator().execute(run.context)


def test_a_position_past_the_boundary_is_refused_unless_an_inexact_checkpoint_is_allowed(start: Start) -> None:
    driver = start("")
    boundary = last_boundary(driver)
    for member in sorted(driver.processes):
        found = {p: BoundaryOffset(offset=Offset(5)) for p in driver.claims(member)}
        driver.handle(StoreBoundaryOffsets(caller=driver.caller(member), boundary=boundary, found=found))
    driver.process(width=7)
    run = Run(boundary)
    with pytest.raises(AirflowFailException, match="past the boundary's offset 5"):
        operator().execute(run.context)
    assert driver.region.requests[run.request_id].state is RequestState.REFUSED
    waiting = deferred(run, allow_inexact=True)
    driver.complete()
    driver.publish()
    assert resumed(waiting, run, allow_inexact=True)["inexact"] is True


def test_a_task_that_waits_is_retried_soon_unless_its_author_says_otherwise() -> None:
    from airflow.sdk import DAG

    assert (operator().retries, operator().retry_delay) == (3, timedelta(seconds=10))
    assert operator(retries=0).retries == 0
    with DAG("d", default_args={"retries": 7, "retry_delay": MINUTE}):
        made = operator()
    assert (made.retries, made.retry_delay) == (7, MINUTE)
