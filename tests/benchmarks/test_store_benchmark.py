"""What the store costs by partitions: a batch, a checkpoint's completion, a reset's start, a plan's reading, memory.

Every figure is a whole transaction, its COMMIT waiting for the disk, over the Unix socket of a server on the same
machine.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import mean, median
from time import perf_counter, process_time

import psutil
import pytest

from airflow_kcr.protocol.observations import LogView
from airflow_kcr.protocol.region import plans
from airflow_kcr.protocol.region.commands import FinishBatch, ReadRegion, RequestReset, StartBatch
from airflow_kcr.protocol.region.rows import PersonReset, PersonResetState, Requester, ResetCause
from airflow_kcr.protocol.scopes import EVERYTHING
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber, Offset, Range, RequestId
from airflow_kcr.store.garbage import uncollected
from tests.benchmarks.figures import Report, Scale
from tests.benchmarks.scripted import scripted
from tests.support.databases import execute
from tests.support.driver import Driver

pytestmark = [pytest.mark.benchmark, pytest.mark.postgres, pytest.mark.timeout(1800)]


def timed(call: Callable[[], object]) -> float:
    """Return how many milliseconds a call takes."""
    started = perf_counter()
    call()
    return (perf_counter() - started) * 1000


def _batch(driver: Driver, number: int) -> tuple[StartBatch, FinishBatch]:
    """Return the next batch of every partition."""
    member, claims = driver.member(0), driver.region.claims
    ranges = {p: Range(place, Offset(place + 100)) for p in driver.logs if (place := claims[p].position) is not None}
    start = driver.batch_of(member, ranges, f"b-{number}")
    return start, FinishBatch(batch=start.batch, member=member, incarnation=start.incarnation)


VERBS = ("batch start", "batch finish", "completion", "reset begin", "plan", "view")


@dataclass(slots=True)
class Costs:
    """What a verb took: milliseconds that passed, and those of a processor in this process and in its servers."""

    passed: list[float] = field(default_factory=list)
    python: list[float] = field(default_factory=list)
    postgres: list[float] = field(default_factory=list)

    def add(self, url: str, call: Callable[[], object]) -> None:
        servers = [psutil.Process(int(str(pid))) for (pid,) in execute(url, _SERVERS)]
        of_servers, of_python = _processor(servers), process_time()
        self.passed.append(timed(call))
        self.python.append((process_time() - of_python) * 1000)
        self.postgres.append((_processor(servers) - of_servers) * 1000)


_SERVERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'kcr'"


def _processor(servers: list[psutil.Process]) -> float:
    spent = [server.cpu_times() for server in servers]
    return sum(times.user + times.system for times in spent)


def test_checkpoint_reset_and_view(durable_store: str, scale: Scale, report: Callable[[str], Report]) -> None:
    found: dict[int, dict[str, Costs]] = {}
    peaks: dict[int, float] = {}
    for total in (100, scale.of(1_000, 200), scale.of(10_000, 400)):
        # Every size has the same database, emptied: what one leaves behind must not slow the next.
        execute(durable_store, "TRUNCATE kcr.region, kcr.batch CASCADE")
        with scripted(durable_store, total) as (driver, _):
            driver.up()
            found[total] = {verb: Costs() for verb in VERBS}
            peaks[total] = _checkpoints_and_resets(durable_store, driver, found[total])
    shown = report("wide")
    for kind, what in (
        ("passed", "ms"),
        ("python", "ms of a processor in Python"),
        ("postgres", "ms of a processor in Postgres, which counts them by tens"),
    ):
        shown.table(
            f"a whole transaction by the partitions of its region, one member, {what}, means of five",
            ("partitions", *VERBS),
            [(total, *(mean(asdict(costs[verb])[kind]) for verb in VERBS)) for total, costs in found.items()],
        )
    shown.table("memory that a completion takes", ("partitions", "MiB"), list(peaks.items()))
    _, some, many = found
    for verb in VERBS[:-1]:
        more = median(found[many][verb].python) / median(found[some][verb].python)
        shown.at_most(f"{verb}: Python's time at {many:,} partitions, each, to {some:,}", more * some / many, 1.5)


def _plan(driver: Driver, reset: PersonReset, log: LogView) -> None:
    region, now = driver.store.read(driver.name)
    with uncollected():  # as `api.resets` makes one
        plans.plan(region, now, reset.request_id, reset, log)


def _checkpoints_and_resets(url: str, driver: Driver, found: Mapping[str, Costs]) -> float:
    """Measure five times; return the MiB that a completion takes."""
    peak = 0.0
    for turn in range(6):
        start, finish = _batch(driver, turn)
        found["batch start"].add(url, partial(driver.handle, start))
        found["batch finish"].add(url, partial(driver.handle, finish))
        driver.request_checkpoint(f"n{turn}")
        contribute = partial(driver.handle, driver.part_of(driver.member(0)))
        if turn == 0:  # tracing costs time, so once and apart
            tracemalloc.start()
            contribute()
            peak = tracemalloc.get_traced_memory()[1] / 2**20
            tracemalloc.stop()
        else:
            found["completion"].add(url, contribute)
        driver.publish()
        found["plan"].add(url, partial(_plan, driver, _rewind(driver), _log(driver)))
        found["view"].add(url, partial(driver.handle, ReadRegion(member=driver.member(0))))
        begin = RequestReset(caller=driver.caller(driver.member(0)), cause=ResetCause.LEASE_LOST, detail="to measure")
        found["reset begin"].add(url, partial(driver.handle, begin))
        driver.finish_reset()
    return peak


def _rewind(driver: Driver) -> PersonReset:
    """Return a person's reset to the newest checkpoint: its plan reads that, and asks what the reset would undo."""
    return PersonReset(
        request_id=RequestId("plan"),
        target=ToCheckpoint(sequence=driver.region.restore_sequence or CheckpointNumber(0)),
        scope=EVERYTHING,
        state=PersonResetState.WAITING,
        requester=Requester(who="somebody"),
        requested_at=driver.clock.now,
        order=0,
    )


def _log(driver: Driver) -> LogView:
    return LogView(bounds=driver.logs, read_at=driver.clock.now)
