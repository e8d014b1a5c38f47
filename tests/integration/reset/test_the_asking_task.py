"""The task that asks for a reset is killed or cleared in each phase of it: a fresh try answers with the same reset.

Real broker, real store, three members in processes of their own; the task runs the operator and its trigger in a
process of its own, which is killed (kill -9) while it waits in its slot, or whose trigger is cancelled. The reset is
done once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_kcr.api import Plan, Region
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.rows import PersonResetState, ResetCause
from tests.support.faults import Note, finished, judged, resets, told
from tests.support.kafka import Kafka
from tests.support.members import TOP, Live, live
from tests.support.reset_phases import DONE, PARTITIONS, PHASES, Scene, Step, cancelling, planned, seeking, went_there

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(600)]

RUN = "manual__2026-01-01T12:00:00+00:00"
WITHIN = 120.0

LONG = """\
batch: {target: 500ms, min_records: 50, max_records: 500, timeout: 200s}
timeouts: {lease: 4s, renew: 1s, session: 7s, relaunch: 4s, reset: 240s, drain: 220s, commit: 6s, close: 4s}
"""
"""Times that a phase may be held for, until a task has been started twice on a busy machine."""


@dataclass(slots=True, kw_only=True)
class Task:
    """The tries of one task."""

    one: Live
    region: Region
    folder: Path
    deferrable: bool
    plan: Plan | None = None
    forced: bool = False
    tries: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def ask(self, plan: Plan, forced: bool) -> None:
        """Start the first try, and wait until the reset is accepted."""
        self.plan, self.forced = plan, forced
        self.starts()
        self.one.until(lambda: self.region.resets.applied(plan.plan) is not None, self.said("accepted"), WITHIN)

    def starts(self) -> None:
        """Start a try: the first one, or what clearing the task makes of it."""
        assert self.plan is not None
        number = len(self.tries) + 1
        (self.folder / str(number)).mkdir(parents=True)
        arguments = {
            "folder": str(self.folder / str(number)),
            "run_id": RUN,
            "try_number": number,
            "operator": {
                "region": self.one.name,
                "plan": self.plan.summary(),
                "reason": "to see",
                "forced": self.forced,
                "deferrable": self.deferrable or number > 1,
            },
        }
        with (self.folder / str(number) / "log").open("wb") as out:
            self.tries.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.support.apply_task", json.dumps(arguments)],
                    cwd=TOP,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )

    def ends(self) -> None:
        """End what still runs of it."""
        for process in self.tries:
            process.kill()
            process.wait(30)

    def until(self, what: str) -> None:
        """Wait until the newest try has come so far."""
        file = self.folder / str(len(self.tries)) / what
        self.one.until(file.exists, self.said(what), WITHIN)

    def said(self, what: str) -> str:
        """What was waited for, and where the newest try tells of itself."""
        return f"the task {what}; see {self.folder / str(len(self.tries)) / 'log'}"

    def answer(self) -> dict[str, Any]:
        """Wait for the end of the newest try, and return what the task returns."""
        self.until("ended.json")
        ended = json.loads((self.folder / str(len(self.tries)) / "ended.json").read_text())
        assert ended["state"] == "success", ended
        found: dict[str, Any] = ended["result"]
        return found


def killed(task: Task) -> None:
    """kill -9 of the worker's process while it waits there."""
    task.until("asked")
    task.tries[-1].kill()
    task.tries[-1].wait(30)


def cleared(task: Task) -> None:
    """The task was deferred, and its trigger is cancelled."""
    task.until("deferred")
    task.tries[-1].terminate()
    task.tries[-1].wait(30)
    assert (task.folder / "1" / "cancelled").exists()


End = Callable[[Task], None]
ENDS: tuple[End, ...] = (killed, cleared)
SAMPLE: frozenset[tuple[Step, End]] = frozenset({(planned, cleared), (seeking, killed)})
"""What an ordinary run tries."""


def combinations() -> Iterator[object]:
    for phase in PHASES:
        for end in ENDS:
            marks = () if (phase, end) in SAMPLE else (pytest.mark.soak,)
            yield pytest.param(phase, end, id=f"{phase.__name__}, {end.__name__}", marks=marks)


@pytest.mark.long
@pytest.mark.parametrize(("phase", "end"), [*combinations()])
def test_a_fresh_try_answers_with_the_same_reset_which_is_done_once(
    kafka: Kafka,
    store_connection: str,
    tmp_path: Path,
    record_property: Note,
    phase: Step,
    end: End,
) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(live(kafka, store_connection, tmp_path, partitions=PARTITIONS, spec=LONG))
        region = stack.enter_context(Region(one.name, one.store))
        task = Task(one=one, region=region, folder=tmp_path / "task", deferrable=end is cleared)
        stack.callback(task.ends)
        members = [one.start(index) for index in range(3)]
        scene = Scene(one=one, region=region, members=members, ask=task.ask)
        one.shared(0, 1, 2)
        one.fill(DONE)
        finished(one)
        phase(scene)
        end(task)
        (request_id,) = scene.request_ids
        assert one.region().person_resets[request_id].state not in {PersonResetState.DONE, PersonResetState.FAILED}
        task.starts()
        task.until("asked")
        scene.goes_on()
        answer = task.answer()

        view = region.resets.show(request_id)
        assert (answer["state"], answer["plan"], answer["id"]) == ("done", request_id, view.reset_id)
        assert (view.requester.run_id, view.requester.reason) == (RUN, "to see")
        assert [body.request_id for body in told(one, events.PersonResetAccepted)] == [request_id]
        assert len([body for body in resets(one) if body.cause is ResetCause.PERSON]) == 1
        assert set(one.region().person_resets) == {request_id}
        finished(one, 90)
        assert went_there(scene)
        judged(one, record_property)
        assert phase is cancelling or len(resets(one)) == 1
