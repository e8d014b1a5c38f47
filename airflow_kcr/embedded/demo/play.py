"""What happens in the demo, one act after the other, as people would do it: through Airflow's own interface."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil

from airflow_kcr.api import Region
from airflow_kcr.embedded import services
from airflow_kcr.embedded.airflow import FLIGHTS_SPEC, client_of, copy_examples, start_examples_at, started_by
from airflow_kcr.embedded.airflow_client import ASKS, RUN_ENDS, TASK_ENDS, AirflowClient, AirflowRun
from airflow_kcr.embedded.flights import producer
from airflow_kcr.embedded.flights.producer import Produced
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import RefusedError, ServiceFailed, TimedOut
from airflow_kcr.goals import RUNNING, STOPPED
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState
from airflow_kcr.schedules import Every
from airflow_kcr.spec import load

Tell: TypeAlias = Callable[[float, float | None, str], None]
"""Says how much of a phase is done, out of how much where that is known, and what is waited for."""

Audience: TypeAlias = Callable[[str], AbstractContextManager[Tell]]
"""Shows phases: one begins with its name, and ends with the block."""

KEPT: Final = 1_000
"""Checkpoints: all are looked at in the end, however many a slow machine makes."""

_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    # The applications start at once but are ready one after the other; so the first one does not begin alone.
    "kafka": {"group.initial.rebalance.delay.ms": "5000"},
    # The examples don't change while they run; parsed every few seconds, they would take a third of a core.
    "airflow": {"DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60"},
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A Kafka and a Postgres with an empty region store, then an Airflow with the example DAGs."""

    folder: Path

    def start(self, *, without: Collection[str]) -> None:
        """Start the services but for some.

        Raises:
            ServiceFailed: one does not start, or a download fails.
            ToolMissing: Java or a Python package is missing.
        """
        services.up(self.folder, lambda _: None, without, _SETTINGS)

    @property
    def kafka(self) -> dict[str, str]:
        """Client settings of Kafka; a broker that has just started is retried, which needs no line on the screen."""
        return {"bootstrap.servers": services.status(self.folder)["kafka"].address, "log_level": "2"}

    @property
    def store_url(self) -> str:
        """The address of the region store."""
        return services.status(self.folder)["postgres"].address

    def client(self, user: str) -> AirflowClient:
        """Return a client of Airflow that acts as a user."""
        return client_of(self.folder / "airflow", user)


REGION: Final = "flights"
CONSUMERS: Final = "flights_consumers"
CHECKPOINT: Final = "flights_checkpoint"
BUILD: Final = "flights_build"
RESET: Final = "flights_reset"
ONCE: Final = "flights_once"
"""The DAG that processes the same flights without consumers, and the region that is behind it."""

DAGS: Final = frozenset({CONSUMERS, CHECKPOINT, BUILD, RESET, ONCE})

EVERY: Final = timedelta(seconds=45)
"""The time between two checkpoints."""

RATE: Final = 150.0
"""Flights a second."""

BEFORE_RESET: Final = 2
"""How many intervals are checkpointed before the reset, which goes back by one; their runs may not have ended."""

LEAST: Final = 4
"""How many are checkpointed in all, at least."""

REASON: Final = "the demo goes back to an earlier checkpoint"
VICTIM: Final = 1
"""The index of the member whose application is killed."""

_SUCCESS: Final = "success"

PAUSE: Final = 2.0
"""Seconds between two polls; each is a few requests, answered with the cores that the tasks need."""

READING: Final = 3.0
"""Seconds that a person takes to read a question."""

WITHIN: Final = 300.0
"""Seconds for an act that may have to wait for the applications."""

ANSWERED_WITHIN: Final = 180.0
CAUGHT_UP_WITHIN: Final = 1200.0


def declare(stage: Stage) -> datetime:
    """Make topic and DAGs, and declare the region, with its clock running; return when its first interval begins.

    Checkpoints align from here on, however late a member comes.
    """
    producer.ensure_topic(stage.kafka, producer.TOPIC)
    dags = stage.folder / "dags"
    copy_examples(dags, every=EVERY, since=datetime.now(UTC))
    with (dags / FLIGHTS_SPEC).open("a") as spec:  # the DAG of the consumers applies it, too
        spec.write(f"retention: {{keep: {KEPT}}}\n")
    with Region(REGION, stage.store_url) as region:
        region.apply(load(dags / FLIGHTS_SPEC))
        boundary = region.start().next_boundary
    since = Every(EVERY).at_or_before(datetime.now(UTC)) if boundary is None else boundary - EVERY
    start_examples_at(since, dags)
    return since


@contextmanager
def producing(stage: Stage) -> Iterator[Callable[[], Produced]]:
    """Write flights for as long as the block lasts; lend what ends it earlier, and returns what was written then."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="flights") as pool:
        running = pool.submit(producer.produce, stage.kafka, rate=RATE, stop=stop)

        def end() -> Produced:
            stop.set()
            return running.result()

        try:
            yield end
        finally:
            stop.set()


@dataclass(slots=True, kw_only=True)
class Play:
    """The acts, once the stage is set and Airflow is up, and what has come of them for who judges them."""

    stage: Stage
    region: Region
    editor: AirflowClient
    since: datetime
    """When the first data interval begins."""

    last: datetime = field(default=datetime.max.replace(tzinfo=UTC))
    """When the last one ends, once that is known."""

    produced: Produced = field(default=Produced(records=0, size=0, seconds=0.0))
    killed: int = 0
    """How many processes of the application were killed."""

    viewer_refused: int = 0
    """How often Airflow refused what a viewer tried."""

    reset_to: int = 0
    reset_run: str = ""
    cleared: int = 0
    """How many runs were cleared because the reset has undone their checkpoints."""

    recomputed: Mapping[str, object] = field(default_factory=dict)
    """The checkpoint that a cleared run has recomputed, as its task returned it."""

    retried: int = 0
    """How many tries the killed member's task has had."""

    returned: dict[tuple[str, str, datetime | None], Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """What the tasks of runs have returned, by the DAG, the run, and when that ended."""

    def start_consumers(self, tell: Tell) -> None:
        """Start the consumers' DAG, and wait until the region runs."""
        self.editor.wait_for_dags(DAGS, within=WITHIN)
        for dag in DAGS - {CHECKPOINT}:
            self.editor.unpause(dag)
        self.editor.trigger(CONSUMERS)
        self.region.wait_for(
            RUNNING, timedelta(seconds=WITHIN), lambda told: tell(0, None, next(iter(told.missing), ""))
        )
        self.editor.unpause(CHECKPOINT)

    def wait_for(self, tell: Tell, wanted: int, what: str, count: Callable[[], int]) -> None:
        """Wait until there are N of something."""

        def is_there() -> bool:
            found = count()
            tell(found, wanted, f"{found} of {wanted} {what}")
            return found >= wanted

        _until(is_there, f"{wanted} {what}", CAUGHT_UP_WITHIN)

    def kill_a_consumer(self, tell: Tell) -> None:
        """Kill an application at once, its JVM and its Python, and wait until Airflow has brought its member back."""
        before = self._incarnation()
        victims = list(self._application())
        if not victims:
            raise ServiceFailed(f"the application of member {VICTIM} is not there to be killed")
        for one in victims:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self.killed = len(victims)

        def is_back() -> bool:
            view = self.region.show()
            tell(0, None, f"the region is {view.state}")
            return self._incarnation() > before and view.state in {"running", "draining"}

        _until(is_back, "the killed member back", WITHIN)

    def reset(self, tell: Tell, end: Callable[[], Produced]) -> None:
        """Go back to an earlier checkpoint as a person does: trigger, choose, read the plan, approve.

        A viewer tries it first, and may not. Once it is approved no more flights are written, so that the last data
        interval ends while the region goes back.
        """
        self.reset_to = self.checkpoints()[-2].sequence
        with self.stage.client("viewer") as viewer:
            self.viewer_refused += is_refused(lambda: viewer.trigger(RESET))
            run = self.reset_run = self.editor.trigger(RESET).run_id
            for task in ("choose", "approve"):
                tell(0, None, f"waiting for the task {task}")
                self.editor.wait_for_task(RESET, run, task, ASKS, within=ANSWERED_WITHIN)
                self.viewer_refused += is_refused(partial(viewer.answer, RESET, run, task, ["OK"]))
                self._have_answered(run, task)
        tell(0, None, "the reset runs")
        self.produced = end()
        self.last = max(Every(EVERY).after(datetime.now(UTC)), self.since + LEAST * EVERY)
        self._await_success(RESET, run)
        self.region.wait_for(RUNNING, timedelta(seconds=WITHIN))
        self._clear_undone()

    @property
    def ends(self) -> list[datetime]:
        """The end of each data interval, up to the last boundary."""
        return [self.since + number * EVERY for number in range(1, round((self.last - self.since) / EVERY) + 1)]

    def finish(self, tell: Tell) -> None:
        """Let every flight that was written be checkpointed, each interval by its run, and be built upon."""

        def checkpointed() -> int:
            self._clear_undone()
            return sum(run.interval_end in self.ends for run in self.settled())

        self.wait_for(tell, len(self.ends), "data intervals checkpointed", checkpointed)
        self.editor.pause(CHECKPOINT)
        count = len(self.checkpoints())
        self.wait_for(tell, count, "checkpoints built upon", lambda: count - len(self.unbuilt()))

    def stop(self, tell: Tell) -> None:
        """Stop the region; that ends the consumers' tasks well."""
        tell(0, None, "the region stops")
        self.region.stop()
        self.region.wait_for(STOPPED, timedelta(seconds=WITHIN))
        (run,) = self.editor.runs(CONSUMERS)
        self._await_success(CONSUMERS, run.run_id)
        task = self.editor.task(CONSUMERS, run.run_id, "consume", VICTIM)
        self.retried = 0 if task is None else task.try_number

    def recompute(self, tell: Tell) -> None:
        """Process all flights in one run, clear that, and wait until its output has been made anew and replaced."""
        tell(0, None, "one run processes the flights")
        run = self.editor.trigger(ONCE).run_id
        self._await_success(ONCE, run)
        tell(0, None, "the run is cleared, and recomputes them")
        self.editor.clear(ONCE, run, ["process"])
        self.recomputed = self._returned_by(ONCE, self._await_success(ONCE, run), "process")

    # -- reading -------------------------------------------------------------------------------------------------

    def settled(self) -> tuple[AirflowRun, ...]:
        """Return the runs of the checkpoint DAG that have succeeded, with checkpoints that no reset has undone."""
        current = {row.sequence for row in self.checkpoints()}
        return tuple(run for run in self._ended() if run.state == _SUCCESS and self.answer_of(run) in current)

    def answer_of(self, run: AirflowRun) -> int:
        """Return the checkpoint that an ended run of the checkpoint DAG has got; 0: none."""
        told = self._returned_by(CHECKPOINT, run, "commit" if run.state == _SUCCESS else "drain")
        return int(told.get("sequence", 0))

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Return the published current checkpoints that have a boundary, oldest first; at last up to the last one."""
        rows = (one.checkpoint for one in self.region.checkpoints.list())
        published = (row for row in rows if row.is_current and row.state is CheckpointState.PUBLISHED)
        return tuple(row for row in published if row.boundary and row.boundary <= self.last)

    def built(self) -> Counter[tuple[int, int]]:
        """Return how often something was built on each checkpoint, by timeline and sequence."""
        runs = (run for run in self.editor.runs(BUILD) if run.state == _SUCCESS)
        told = [self._returned_by(BUILD, run, "build") for run in runs]
        return Counter((int(one["timeline"]), int(one["sequence"])) for one in told if one)

    def unbuilt(self) -> tuple[tuple[int, int], ...]:
        """Return the checkpoints on which nothing was built yet.

        Runs without keys, as they are before Airflow 3.3, build on the newest checkpoint, and so on those before it.
        """
        wanted, built = [(int(row.timeline), int(row.sequence)) for row in self.checkpoints()], self.built()
        if any(run.partition_key for run in self.editor.runs(BUILD)):
            return tuple(key for key in wanted if key not in built)
        return tuple(key for key in wanted if key > max(built, default=(0, 0)))

    def _returned_by(self, dag: str, run: AirflowRun, task: str) -> Mapping[str, Any]:
        """Return what a task of an ended run has returned; nothing: it was skipped, as on what a reset has undone."""
        known = (dag, run.run_id, run.ended)
        if known not in self.returned:
            found = self.editor.task(dag, run.run_id, task)
            has_succeeded = found is not None and found.state == _SUCCESS
            told = self.editor.result(dag, run.run_id, task) if has_succeeded else None
            self.returned[known] = told if isinstance(told, dict) else {}
        return self.returned[known]

    def _ended(self) -> tuple[AirflowRun, ...]:
        return tuple(run for run in self.editor.runs(CHECKPOINT) if run.state in RUN_ENDS)

    def _incarnation(self) -> int:
        (group,) = self.region.show().groups
        return next(member.incarnation for member in group.members if member.member.index == VICTIM)

    def _application(self) -> Iterator[psutil.Process]:
        """Yield the processes of the application that hosts the victim."""
        for one in started_by(self.stage.folder / "airflow"):
            with suppress(psutil.Error):
                if "KCR_TASK_PID" in one.environ() and f"--index {VICTIM}" in " ".join(one.cmdline()):
                    yield one

    # -- doing ---------------------------------------------------------------------------------------------------

    def _await_success(self, dag: str, run: str) -> AirflowRun:
        ended = self.editor.wait_for_run(dag, run, within=WITHIN)
        if ended.state != _SUCCESS:
            raise ServiceFailed(f"the run {run} of {dag} has {ended.state}: look at its tasks' logs")
        return ended

    def _have_answered(self, run: str, task: str) -> None:
        """Answer a task as the editor, and wait until it is done with the answer.

        Airflow loses a task that is answered before the scheduler has heard that its process has ended; it is tried
        again then, and asks again. So a person who is that quick waits for the process.
        """
        while True:
            asked = self.editor.wait_for_task(RESET, run, task, {*ASKS, *TASK_ENDS}, within=ANSWERED_WITHIN)
            if asked.state == _SUCCESS:
                return
            if asked.state not in ASKS:
                raise ServiceFailed(f"the task {task} of {RESET} has {asked.state}: look at its log")
            _until(partial(_has_ended, asked.id), f"the process of the task {task} ended", ANSWERED_WITHIN)
            threading.Event().wait(READING)
            question = self.editor.question(RESET, run, task)
            if question.response_received:
                continue
            told: Mapping[str, object] = {"checkpoint": self.reset_to, "reason": REASON}
            answers = {name: told[name] for name in question.params if name in told}
            self.editor.answer(RESET, run, task, [question.options[0]], answers)

    def _clear_undone(self) -> None:
        """Have the runs run again whose checkpoints were undone, so that what is built on them is rebuilt.

        One whose checkpoint was undone while it ran has failed.
        """
        ended = self._ended()
        undone = {int(one.checkpoint.sequence) for one in self.region.checkpoints.list() if one.checkpoint.undone_by}
        for run in ended:
            if self.answer_of(run) in undone:
                self.editor.clear(CHECKPOINT, run.run_id, ["validate", "drain", "commit", "report"])
                self.cleared += 1
            elif run.state != _SUCCESS:
                raise ServiceFailed(f"the run {run.run_id} of {CHECKPOINT} has {run.state}: look at its tasks' logs")


def _has_ended(task: str) -> bool:
    """Whether the process of a try of a task, which has its id in its title, is gone."""
    return not any(task in " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))


def is_refused(act: Callable[[], object]) -> bool:
    """Whether Airflow knows who asks and refuses what they ask for (403)."""
    try:
        act()
    except RefusedError as error:
        return ": 403 " in error.message  # nothing but the status: the id of a run may have these digits too
    return False


def _until(condition: Callable[[], bool], what: str, within: float) -> None:
    if not happened(condition, within=within, pause=PAUSE):
        raise TimedOut(f"{what}: not within {within:g} s")
