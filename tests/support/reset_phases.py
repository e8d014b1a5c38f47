"""A person's reset that is held in one of its phases, so that something can happen to it there.

Real broker, real store, three members in processes of their own with an engine without Spark; a gate in the process of
member 0 holds the phase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import Offset, RequestId
from tests.support.faults import resets
from tests.support.members import Live, Process

PARTITIONS = 6
TARGET, OTHER, DONE, MORE = 50, 20, 100, 60


@dataclass(slots=True, kw_only=True)
class Scene:
    """A region in the middle of a person's reset, held there by a gate in the process of member 0."""

    one: Live
    region: Region
    members: list[Process]
    gate: str = ""
    request_ids: list[RequestId] = field(default_factory=list)

    @property
    def held(self) -> Process:
        """The process that is held."""
        return self.members[0]

    def apply(self, target: int = TARGET, *, forced: bool = False) -> None:
        """Ask for a reset, and don't wait for it."""
        plan = self.region.resets.plan(ResetRequest(target=ToOffset(offset=Offset(target))))
        self.region.resets.apply(plan, "to see", forced=forced)
        self.request_ids.append(RequestId(plan.plan))

    def holds(self, gate: str) -> None:
        """Put up the gate of the phase."""
        self.gate = gate
        self.held.gate(gate)

    def until_held(self) -> None:
        """Wait until member 0 stands at the gate."""
        self.one.until(lambda: self.held.reached(self.gate), f"member 0 at {self.gate}")

    def goes_on(self) -> None:
        """Let the held process go on."""
        self.held.open(self.gate)


# -- phases ------------------------------------------------------------------------------------------------------------


def requested(scene: Scene) -> None:
    """Accepted, and its drain waits for a batch of member 0."""
    scene.holds("processing")
    scene.one.fill(MORE)
    scene.until_held()
    scene.apply()


def planned(scene: Scene) -> None:
    """Drained, and one contribution short of its start."""
    _until_held_at(scene, "contributing")


def cancelling(scene: Scene) -> None:
    """Started without a drain, and member 0 has a batch that does not hear its cancellation."""
    scene.holds("hung")
    scene.one.fill(MORE)
    scene.until_held()
    scene.apply(forced=True)


def seeking(scene: Scene) -> None:
    """Started, and member 0 has not gone to its positions."""
    _until_held_at(scene, "resetting")


def acknowledging(scene: Scene) -> None:
    """Started, and member 0 has claimed and not acknowledged."""
    _until_held_at(scene, "claimed")


def _until_held_at(scene: Scene, gate: str) -> None:
    """Apply the plan with nothing left to process, and wait until member 0 stands at a gate."""
    scene.one.fill(MORE)
    scene.one.until(scene.one.consumed, "consumed")
    scene.holds(gate)
    scene.apply()
    scene.until_held()


Step = Callable[[Scene], None]
PHASES: tuple[Step, ...] = (requested, planned, cancelling, seeking, acknowledging)


def went_there(scene: Scene) -> bool:
    """Whether all that began by a person's wish sent every partition that there was where that person wanted."""
    begun = [body.epoch for body in resets(scene.one) if body.cause is ResetCause.PERSON]
    maps = scene.one.region().seek_maps
    # A forced one, which has read no log, leaves the offsets to the owners; where an attempt was given up, unanswered.
    places = [{e.offset for p, e in maps[n].items() if p.partition < PARTITIONS} - {None} for n in begun]
    return bool(places) and bool(places[-1]) and all(found in (set(), {TARGET}, {OTHER}) for found in places)
