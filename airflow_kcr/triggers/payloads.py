"""What a trigger waits for, a goal or what only Kafka can tell, and what it answers, as values that travel as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, Self, TypeAlias, cast

from airflow_kcr import goals
from airflow_kcr.errors import ConfigurationError, KcrError, RefusedError, StoreUnavailable, TimedOut
from airflow_kcr.goals import WaitingFor
from airflow_kcr.protocol import documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Progresses(WaitingFor):
    """The region runs, and nothing in it waits for longer than it may."""

    kind = "progresses"


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipHealthy(WaitingFor):
    """Every check of the region's groups is all right, as `kcr group validate` makes them."""

    kind = "membership_healthy"
    asks_kafka = True

    groups: tuple[str, ...] = ()
    """Which of its groups; none named: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagBelow(WaitingFor):
    """Total consumer lag is below a threshold."""

    kind = "lag_below"
    asks_kafka = True

    records: int
    """> 0."""

    def __post_init__(self) -> None:
        if self.records <= 0:
            raise ConfigurationError(f"lag is waited for below a number above 0, not below {self.records}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentsChange(WaitingFor):
    """The region has other incidents than those that are known."""

    kind = "incidents_change"

    known: tuple[str, ...]
    """Their names."""

    late: timedelta
    """How long after its boundary a checkpoint is late."""

    retention: timedelta
    """How long before retention overtakes the restore point."""


_Known: TypeAlias = (
    goals.RequestPublished
    | goals.CheckpointCommitted
    | goals.CheckpointExists
    | goals.RegionReaches
    | goals.ResetFinished
    | goals.MembersEnded
    | goals.RunEnded
    | goals.RecomputationDone
    | Progresses
    | MembershipHealthy
    | LagBelow
    | IncidentsChange
)


def waiting_for_from_json(value: Mapping[str, object]) -> WaitingFor:
    """Return what `to_json` was made of.

    Raises:
        ConfigurationError: it is no payload of this version; a task that was deferred by another one asks again.
    """
    try:
        return cast("WaitingFor", documents.read(value, cast("type[object]", _Known)))
    except ValueError as error:
        kind, arguments = value.get("kind", ""), value.keys() - {"kind"}
        raise ConfigurationError(
            f"a trigger of another version of airflow-kcr waits for {kind or 'nothing'!r} with "
            f"{', '.join(sorted(arguments)) or 'no field'}; clear the task, so that it asks anew"
        ) from error


class Status(StrEnum):
    """How a wait ended."""

    REACHED = "reached"
    REFUSED = "refused"
    """It can't be reached any more; waiting again would not help."""

    TIMED_OUT = "timed_out"
    STORE_AWAY = "store_away"
    """The store did not answer for too long."""


_ERRORS: Final[Mapping[Status, type[KcrError]]] = {
    Status.REFUSED: RefusedError,
    Status.TIMED_OUT: TimedOut,
    Status.STORE_AWAY: StoreUnavailable,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerAnswer:
    """What a trigger's event says."""

    status: Status
    detail: str = ""
    """For people: at a time-out who or what was missing, by name."""

    def to_json(self) -> dict[str, str]:
        """Return it as JSON values."""
        return cast("dict[str, str]", documents.write(self, TriggerAnswer))

    def require_reached(self) -> None:
        """Return if what was waited for was reached.

        Raises:
            RefusedError, TimedOut, StoreUnavailable: it was not, with the event's detail.
        """
        if self.status is not Status.REACHED:
            raise _ERRORS[self.status](self.detail)

    @classmethod
    def from_json(cls, event: Mapping[str, object] | None) -> Self:
        """Return what an event says.

        Raises:
            ConfigurationError: it is none of ours.
        """
        try:
            return documents.read(event or {}, cls)
        except ValueError as error:
            raise ConfigurationError(
                f"the task was resumed with an event that is none of a region's trigger: {sorted(event or ())}"
            ) from error
