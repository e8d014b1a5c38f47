"""What happens in the demo, one act after the other, as people would do it: through Airflow's own interface."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import psutil

from airflow_kcr.api import Region
from airflow_kcr.api.goals import RUNNING, STOPPED
from airflow_kcr.embedded.airflow import FLIGHTS_SPEC, MARKER, Airflow, example_dags
from airflow_kcr.embedded.airflow_client import RUN_ENDS, TASK_ENDS, AirflowClient, AirflowRun
from airflow_kcr.embedded.demo.stage import DemoPhase, Stage
from airflow_kcr.embedded.flights import producer
from airflow_kcr.embedded.flights.producer import Order, Produced
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import RefusedError, ServiceFailed, TimedOut
from airflow_kcr.protocol.region.rows import Checkpoint, CheckpointState
from airflow_kcr.schedules import Every
from airflow_kcr.spec import load

REGION: Final = "flights"
CONSUMERS: Final = "flights_consumers"
CHECKPOINT: Final = "flights_checkpoint"
BUILD: Final = "flights_build"
RESET: Final = "flights_reset"
DAGS: Final = frozenset({CONSUMERS, CHECKPOINT, BUILD, RESET})

REASON: Final = "the demo goes back to an earlier checkpoint"
VICTIM: Final = 1
"""The index of the member whose application is killed."""

_ASKS: Final = "awaiting_input"
_SUCCESS: Final = "success"
_SILENT: Final = {"log_level": "2"}
"""A broker that has just started is retried; that needs no line on the screen."""

PAUSE: Final = 2.0
"""Seconds between two polls; each is a few requests, answered with the cores that the tasks need."""

READING: Final = 3.0
"""Seconds that a person takes to read a question."""

RUNNING_WITHIN: Final = 300.0
CHECKPOINT_WITHIN: Final = 240.0
BACK_WITHIN: Final = 240.0
ANSWERED_WITHIN: Final = 180.0
CAUGHT_UP_WITHIN: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How long and how much.

    Args:
        every: the time between two checkpoints.
        rate: flights a second.
        before_kill: how many intervals are checkpointed before a consumer is killed.
        before_reset: how many are checkpointed before the reset, their runs ended or not.
        undone: how many of them the reset goes back by.
        least: how many are checkpointed in all, at least.
    """

    every: timedelta = timedelta(seconds=45)
    rate: float = 150.0
    before_kill: int = 1
    before_reset: int = 2
    undone: int = 1
    least: int = 4


@dataclass(slots=True, kw_only=True)
class Happened:
    """What has come of the acts, for who judges them."""

    since: datetime
    """When the first data interval begins."""

    produced: Produced | None = None
    last_boundary: datetime | None = None
    killed: int = 0
    """How many processes of the application were killed."""

    viewer_refused: int = 0
    """How often Airflow refused what a viewer tried."""

    reset_to: int = 0
    reset_run: str = ""
    cleared: tuple[str, ...] = ()
    """The runs whose intervals the reset has undone."""

    retried: int = 0
    """How many tries the killed member's task has had."""


@dataclass(slots=True, kw_only=True)
class Production:
    """Flights that are written to the topic while everything else continues."""

    future: Future[Produced]
    stop: threading.Event

    def end(self) -> Produced:
        """Stop writing, and return what was written once the broker has confirmed it."""
        self.stop.set()
        return self.future.result()


def declare(stage: Stage, script: Script) -> Happened:
    """Make the topic and declare the region, with its clock running.

    Checkpoints align from here on, however late a member comes.
    """
    producer.ensure_topic({**stage.settings, **_SILENT}, producer.TOPIC)
    example = load(example_dags() / FLIGHTS_SPEC)
    spec = replace(example, checkpoint=replace(example.checkpoint, every=script.every))
    with Region(REGION, stage.store_url) as region:
        region.apply(spec)
        next_boundary = region.start().next_boundary
    schedule = Every(script.every)
    return Happened(
        since=schedule.at_or_before(datetime.now(UTC)) if next_boundary is None else next_boundary - script.every
    )


@contextmanager
def producing(stage: Stage, script: Script) -> Iterator[Production]:
    """Write flights at a rate for as long as the block lasts, or until they are stopped."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="flights") as pool:
        order = Order(topic=producer.TOPIC, rate=script.rate)
        running = pool.submit(producer.produce, {**stage.settings, **_SILENT}, order, stop=stop)
        try:
            yield Production(future=running, stop=stop)
        finally:
            stop.set()


@dataclass(slots=True, kw_only=True)
class Play:
    """The acts, once the stage is set and Airflow is up."""

    stage: Stage
    airflow: Airflow
    region: Region
    editor: AirflowClient
    script: Script
    found: Happened
    answers: dict[tuple[str, datetime | None], int] = field(default_factory=dict, repr=False)
    """The checkpoints that runs have got, by the run and when it ended."""

    def start_consumers(self, phase: DemoPhase) -> None:
        """Start the consumers' DAG, and wait until the region runs."""
        self.editor.wait_for_dags(DAGS, within=RUNNING_WITHIN)
        for dag in DAGS - {CHECKPOINT}:
            self.editor.unpause(dag)
        self.editor.trigger(CONSUMERS)
        self.region.wait_for(
            RUNNING, timedelta(seconds=RUNNING_WITHIN), lambda told: phase.tell(0, None, next(iter(told.missing), ""))
        )
        self.editor.unpause(CHECKPOINT)

    def wait_for_intervals(self, phase: DemoPhase, wanted: int) -> None:
        """Wait until N data intervals are checkpointed and published, and their runs have succeeded."""
        self._wait_for(phase, wanted, "data intervals checkpointed", lambda: len(self.settled()))

    def wait_for_checkpoints(self, phase: DemoPhase, wanted: int) -> None:
        """Wait until N data intervals are checkpointed and published, whatever Airflow has made of their runs.

        That is all that a person needs who goes back to one of them.
        """
        self._wait_for(phase, wanted, "checkpoints published", lambda: len(self.checkpoints()))

    def kill_a_consumer(self, phase: DemoPhase) -> None:
        """Kill an application at once, its JVM and its Python, and wait until Airflow has brought its member back."""
        before = self._incarnation()
        victims = self._processes_of(VICTIM)
        if not victims:
            raise ServiceFailed(f"the application of member {VICTIM} is not there to be killed")
        for one in victims:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self.found.killed = len(victims)

        def is_back() -> bool:
            view = self.region.show()
            phase.tell(0, None, f"the region is {view.state}")
            return self._incarnation() > before and view.state in {"running", "draining"}

        _until(is_back, "the killed member back", BACK_WITHIN)

    def reset(self, phase: DemoPhase, production: Production) -> datetime:
        """Go back to an earlier checkpoint as a person does: trigger, choose, read the plan, approve.

        A viewer tries it first, and may not. Once it is approved no more flights are written, so that the last data
        interval ends while the region goes back; returns when that is.
        """
        checkpoints = self.checkpoints()
        target = checkpoints[-1 - self.script.undone]
        self.found.reset_to = target.sequence
        with self.airflow.client("viewer") as viewer:
            self.found.viewer_refused += is_refused(lambda: viewer.trigger(RESET))
            run = self.editor.trigger(RESET).run_id
            self.found.reset_run = run
            for task in ("choose", "approve"):
                phase.tell(0, None, f"waiting for the task {task}")
                self.editor.wait_for_task(RESET, run, task, {_ASKS}, within=ANSWERED_WITHIN)
                self.found.viewer_refused += is_refused(partial(viewer.answer, RESET, run, task, ["OK"]))
                self._have_answered(run, task, target.sequence)
        phase.tell(0, None, "the reset runs")
        self.found.produced = production.end()
        enough = self.found.since + self.script.least * self.script.every
        last = max(Every(self.script.every).after(datetime.now(UTC)), enough)
        self.found.last_boundary = last
        ended = self.editor.wait_for_run(RESET, run, within=ANSWERED_WITHIN)
        if ended.state != _SUCCESS:
            raise ServiceFailed(f"the run {run} of {RESET} has {ended.state}: look at its tasks' logs")
        self.region.wait_for(RUNNING, timedelta(seconds=BACK_WITHIN))
        self._clear_undone()
        return last

    def finish(self, phase: DemoPhase, last: datetime) -> None:
        """Let every flight that was written be checkpointed, each interval by its run.

        Args:
            phase: is shown how far that is.
            last: the end of the last interval.
        """
        wanted = round((last - self.found.since) / self.script.every)

        def is_checkpoint() -> bool:
            self._clear_undone()
            done = [run for run in self.settled() if run.interval_end is not None and run.interval_end <= last]
            phase.tell(len(done), wanted, f"{len(done)} of {wanted} data intervals checkpointed")
            return len(done) >= wanted

        _until(is_checkpoint, f"{wanted} data intervals checkpointed", CAUGHT_UP_WITHIN)
        self.editor.pause(CHECKPOINT)

        def is_built() -> bool:
            built = self.built()
            left = [row for row in self.checkpoints(last) if (row.timeline, row.sequence) not in built]
            phase.tell(wanted - len(left), wanted, f"{len(left)} checkpoints left to be built upon")
            return not left

        _until(is_built, "something built on each checkpoint", CAUGHT_UP_WITHIN)

    def stop(self, phase: DemoPhase) -> None:
        """Stop the region; that ends the consumers' tasks well."""
        phase.tell(0, None, "the region stops")
        self.region.stop()
        self.region.wait_for(STOPPED, timedelta(seconds=BACK_WITHIN))
        (run,) = self.editor.runs(CONSUMERS)
        ended = self.editor.wait_for_run(CONSUMERS, run.run_id, within=BACK_WITHIN)
        if ended.state != _SUCCESS:
            raise ServiceFailed(f"the consumers' run has {ended.state}, though the region has stopped")
        task = self.editor.task(CONSUMERS, run.run_id, "consume", VICTIM)
        self.found.retried = 0 if task is None else task.try_number

    # -- reading -------------------------------------------------------------------------------------------------

    def settled(self) -> tuple[AirflowRun, ...]:
        """Return the runs of the checkpoint DAG that have succeeded, with checkpoints that no reset has undone."""
        current = {int(row.sequence) for row in self.checkpoints()}
        return tuple(run for run in self._ended() if run.state == _SUCCESS and self.answer_of(run) in current)

    def answer_of(self, run: AirflowRun) -> int:
        """Return the checkpoint that an ended run of the checkpoint DAG has got; 0: none."""
        known = (run.run_id, run.ended)
        if known not in self.answers:
            told = self.editor.result(CHECKPOINT, run.run_id, "commit" if run.state == _SUCCESS else "drain")
            self.answers[known] = int(told["sequence"]) if isinstance(told, dict) else 0
        return self.answers[known]

    def checkpoints(self, last: datetime | None = None) -> tuple[Checkpoint, ...]:
        """Return the published current checkpoints that have a boundary, up to the last one, oldest first."""
        rows = (one.checkpoint for one in self.region.checkpoints())
        published = (r for r in rows if r.is_current and r.boundary and r.state is CheckpointState.PUBLISHED)
        return tuple(row for row in published if row.boundary and (last is None or row.boundary <= last))

    def built(self) -> Counter[tuple[int, int]]:
        """Return how often something was built on each checkpoint, by timeline and sequence."""
        runs = (run for run in self.editor.runs(BUILD) if run.state == _SUCCESS)
        keys = ((run.partition_key or "0.0").split(".") for run in runs)  # with zeros before the numbers
        return Counter((int(timeline), int(sequence)) for timeline, sequence in keys)

    def _ended(self) -> tuple[AirflowRun, ...]:
        return tuple(run for run in self.editor.runs(CHECKPOINT) if run.state in RUN_ENDS)

    def _incarnation(self) -> int:
        (group,) = self.region.show().groups
        return next(member.incarnation for member in group.members if member.member.index == VICTIM)

    def _processes_of(self, index: int) -> list[psutil.Process]:
        wanted = f"--index {index}"
        return [one for one in psutil.process_iter() if wanted in self._told(one)]

    def _told(self, process: psutil.Process) -> str:
        """The command line of a process, where an application of ours runs in it."""
        try:
            is_ours = process.environ().get(MARKER) == str(self.airflow.folder)
            return " ".join(process.cmdline()) if is_ours and "KCR_TASK_PID" in process.environ() else ""
        except psutil.Error:
            return ""

    # -- waiting -------------------------------------------------------------------------------------------------

    def _wait_for(self, phase: DemoPhase, wanted: int, what: str, count: Callable[[], int]) -> None:
        def is_there() -> bool:
            found = count()
            phase.tell(found, wanted, f"{found} of {wanted} {what}")
            return found >= wanted

        _until(is_there, f"{wanted} {what}", CHECKPOINT_WITHIN + wanted * self.script.every.total_seconds())

    # -- doing ---------------------------------------------------------------------------------------------------

    def _have_answered(self, run: str, task: str, checkpoint: int) -> None:
        """Answer a task as the editor, and wait until it is done with the answer.

        Airflow loses a task that is answered before the scheduler has heard that its process has ended; it is tried
        again then, and asks again. So a person who is that quick waits for the process.
        """
        while True:
            asked = self.editor.wait_for_task(RESET, run, task, {_ASKS, *TASK_ENDS}, within=ANSWERED_WITHIN)
            if asked.state == _SUCCESS:
                return
            if asked.state != _ASKS:
                raise ServiceFailed(f"the task {task} of {RESET} has {asked.state}: look at its log")
            _until(partial(_has_ended, asked.id), f"the process of the task {task} ended", ANSWERED_WITHIN)
            threading.Event().wait(READING)
            question = self.editor.question(RESET, run, task)
            told: Mapping[str, object] = {"checkpoint": checkpoint, "reason": REASON}
            answers = {name: told.get(name, field["value"]) for name, field in question.params.items()}
            self.editor.answer(RESET, run, task, [question.options[0]], answers)

    def _clear_undone(self) -> None:
        """Have the runs run again whose checkpoints were undone, so that what is built on them is rebuilt.

        One whose checkpoint was undone while it ran has failed.
        """
        ended = self._ended()
        undone = {int(one.checkpoint.sequence) for one in self.region.checkpoints() if one.checkpoint.undone_by}
        for run in ended:
            if self.answer_of(run) in undone:
                self.editor.clear(CHECKPOINT, run.run_id, ["validate", "drain", "commit", "report"])
                self.found.cleared = (*self.found.cleared, run.run_id)
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
