"""A batch that is held at one of its steps, so that something can happen to it there; once for each delivery.

Member 0, in a process of its own, stands at the gate of the step, and member 1 has nothing left to do. So what comes is
the fault's work alone, and the judgement after it can be exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Barrier

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.protocol.region.commands import RequestCheckpoint
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import RequestId
from tests.support.delivery_accounts import NOTHING, Delivered, delivered, rows_of
from tests.support.faults import checkpoints, finished
from tests.support.kafka import Kafka
from tests.support.member_accounts import Place
from tests.support.members import Live, Process, live
from tests.support.sink_writing import records_of

STEPS = ("planned", "recorded", "processing", "written", "staged", "published", "ended", "committed")
"""Of a batch, in order, as the gates of `member_process` are named: its range is planned; the ledger has its start; the
pipeline runs; it has written what it writes by itself; the declared table's rows are staged; they are published; the
ledger has its end; the checkpoint that it belongs to is committed to Kafka, and the store does not know it yet."""

SPEC = """\
batch: {target: 500ms, min_records: 50, max_records: 500, timeout: 12s}
timeouts: {lease: 4s, renew: 1s, session: 7s, relaunch: 4s, reset: 20s, drain: 15s, commit: 6s, close: 4s}
"""
PARTITIONS = 2
BEYOND, HELD = 30, 40
"""Records of each partition: processed beyond the last checkpoint, and in the batches around the fault."""

AT_MOST = 240.0
"""Seconds that anything may take, on whatever machine."""

WITHIN = timedelta(seconds=AT_MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one combination has done."""

    delivery: str
    fault: str
    step: str
    found: Delivered

    def __str__(self) -> str:
        return json.dumps({**asdict(self), "found": asdict(self.found)})


@dataclass(slots=True, kw_only=True)
class Scene:
    """A region of one delivery with a declared table, its two members, and what was counted so far."""

    one: Live
    delivery: Delivery
    label: str
    """The delivery, and what its sink is where that is no table."""

    kept: Callable[[], list[Place]]
    """The records that the sink shows, one entry for each time that it shows one."""

    victim: Process
    other: Process
    rows: list[Row] = field(default_factory=list)
    _so_far: Delivered = NOTHING

    def begins(self) -> None:
        """Make the first checkpoint; what is counted is counted from there."""
        self.one.fill(BEYOND)
        finished(self.one, AT_MOST)
        self._so_far = self.judged()

    def is_held(self, step: str) -> None:
        """Have records processed beyond the last checkpoint, and more, until member 0 stands at a step."""
        one = self.one
        one.fill(BEYOND)
        one.until(one.consumed, "consumed beyond the checkpoint", AT_MOST)
        if step == "committed":
            one.fill(HELD)
            one.until(one.consumed, "consumed", AT_MOST)
            self.victim.gate(step)
            one.handle(RequestCheckpoint(request_id=RequestId(f"{step}-{len(self.rows)}")))
        else:
            self.victim.gate(step)
            one.fill(HELD)
        one.until(lambda: self.victim.reached(step) and self._other_is_done(), f"member 0 at {step}", AT_MOST)

    def goes_on(self, step: str) -> None:
        """Let member 0 go on."""
        self.victim.open(step)

    def is_killed(self) -> None:
        """kill -9 of the process of member 0, and a new one at once."""
        self.victim.kill()
        self.victim = self.one.start(0, takeover=True)

    def sleeps(self, step: str) -> None:
        """SIGSTOP until the other has taken over and done everything, then SIGCONT in the middle of the step."""
        one = self.one
        self.victim.freeze()
        one.until(lambda: set(one.owners().values()) == {1} and self.one.runs(), "taken over", AT_MOST)
        finished(one, AT_MOST)
        self.goes_on(step)
        self.victim.thaw()
        one.until(self._is_shared, "member 0 is back", AT_MOST)

    def is_over(self, fault: str, step: str) -> None:
        """Wait until everything is processed and in a checkpoint, judge, and note what has come since the last time."""
        finished(self.one, AT_MOST)
        self.one.until(self._is_shared, "shared again", AT_MOST)
        found = self.judged()
        self.rows.append(Row(delivery=self.label, fault=fault, step=step, found=found.since(self._so_far)))
        self._so_far = found
        if self.delivery is Delivery.ALMOST_ONCE:
            assert self.rows[-1].found.in_flight <= 1, self.rows[-1]

    def goes_back(self) -> None:
        """Reset the region to the last checkpoint but two, or the first, and have all of it processed again."""
        one = self.one
        with Region(one.name, one.store) as region:
            target = checkpoints(one)[-3:][0].sequence
            plan = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=target)))
            region.resets.apply(plan, "to see")
            region.resets.wait_for(plan.plan, WITHIN)
        self.is_over("reset", "to an older checkpoint")

    def judged(self) -> Delivered:
        """Judge everything so far."""
        one = self.one
        wanted: set[Place] = {(one.topic, n, o) for n, end in one.kafka.ends(one.topic).items() for o in range(end)}
        history = one.store.history(one.name)
        return delivered(self.delivery, history, one.written(), self.kept(), wanted)

    def _is_shared(self) -> bool:
        """Whether both have partitions; a process that has ended itself is started again, as its supervisor does."""
        if not self.victim.running:
            self.victim = self.one.start(0, takeover=True)
        return self.one.runs() and set(self.one.owners().values()) == {0, 1}

    def _other_is_done(self) -> bool:
        ends = self.one.kafka.ends(self.one.topic)
        claims = self.one.region().claims.items()
        return all(c.position == ends[p.partition] for p, c in claims if c.owner is not None and c.owner.index == 1)


@contextmanager
def scene(
    kafka: Kafka,
    store: str,
    target: str | Path,
    delivery: Delivery,
    folder: Path,
    spec: str = SPEC,
    *,
    hosting: str = "tests.support.member_process",
    pipeline: str = "none:none",
) -> Iterator[Scene]:
    """Lend a region of a delivery whose two members have made no checkpoint.

    Args:
        kafka: the broker.
        store: the URL of the store.
        target: the URL of the declared table's database, or the folder of declared files.
        delivery: of its group.
        folder: for what the processes leave.
        spec: the lines about batches and times.
        hosting: the module that the members' processes run.
        pipeline: of the group, where they run on Spark.
    """
    name = kafka.group_id("g")
    if isinstance(target, Path):
        sink, label, kept = f"{{kind: files, path: {target}}}", f"{delivery} (files)", partial(records_of, target)
    else:
        table = f"out_{name.replace('-', '_')}"
        sink, label = f"{{kind: postgres, url: '{target}', table: {table}}}", str(delivery)
        kept = partial(rows_of, target, table)
    group = f", delivery: {delivery}, sinks: {{out: {sink}}}"
    folder.mkdir()
    with live(
        kafka,
        store,
        folder,
        members=2,
        partitions=PARTITIONS,
        spec=spec,
        group=group,
        name=name,
        hosting=hosting,
        pipeline=pipeline,
    ) as one:
        made = Scene(one=one, delivery=delivery, label=label, kept=kept, victim=one.start(0), other=one.start(1))
        one.until(made._is_shared, "shared", AT_MOST)
        yield made


@dataclass(slots=True, kw_only=True)
class Stage:
    """Regions of every delivery side by side; a fault of a service happens to all of them at once."""

    scenes: list[Scene]

    def play(self, fault: str, steps: tuple[str, ...], server: Callable[[], None] | None = None) -> list[Row]:
        """Let a fault happen at each step, with a reset to an older checkpoint after every second one.

        Args:
            fault: its name: of a service that `server` kills and starts again, else `process` or `zombie`.
            steps: at which.
            server: kills a service and starts it again.
        """
        together = Barrier(len(self.scenes), action=server)

        def one(scene: Scene) -> None:
            try:
                scene.begins()
                for number, step in enumerate(steps):
                    scene.is_held(step)
                    if server is not None:
                        together.wait(2 * AT_MOST)
                        scene.goes_on(step)
                    elif fault == "process":
                        scene.is_killed()
                    else:
                        scene.sleeps(step)
                    scene.is_over(fault, step)
                    if number % 2:
                        scene.goes_back()
            except BaseException:
                together.abort()
                raise

        with ThreadPoolExecutor(len(self.scenes)) as pool:
            for done in [pool.submit(one, scene) for scene in self.scenes]:
                done.result()
        return [row for scene in self.scenes for row in scene.rows]


@contextmanager
def stage(
    kafka: Kafka, store: str, target: str | Path, folder: Path, deliveries: tuple[Delivery, ...] = tuple(Delivery)
) -> Iterator[Stage]:
    """Lend regions of these deliveries, all of them in one store and one target; see `scene`."""
    kafka.admin.list_topics(timeout=30)  # the client is made once, before threads share it
    with ExitStack() as stack:
        with ThreadPoolExecutor(len(deliveries)) as pool:
            lent = [
                pool.submit(lambda one=one: stack.enter_context(scene(kafka, store, target, one, folder / one)))  # type: ignore[misc]
                for one in deliveries
            ]
        yield Stage(scenes=[one.result() for one in lent])
