"""What a trigger waits for, and what it answers, as values that travel as JSON.

Airflow stores a trigger as its arguments and recreates it wherever it is to run, so all that it knows is here. Nothing
of it is a secret, and nothing of it changes while it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self, TypeAlias, cast

from airflow_kcr.errors import ConfigurationError, RefusedError, StoreUnavailable, TimedOut
from airflow_kcr.protocol import documents
from airflow_kcr.verbs import Reaching


class _Payload:
    __slots__ = ()

    kind: ClassVar[str]
    """Names the class in JSON."""

    asks_kafka: ClassVar[bool] = False
    """Whether the store alone can't tell."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, its kind among them."""
        return cast("dict[str, Any]", documents.write(self, WaitingFor))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPublished(_Payload):
    """The request of a request id is answered by a checkpoint that is published."""

    kind = "checkpoint_published"

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted(_Payload):
    """A checkpoint is published, and it is known whether Kafka holds its offsets: yes, no or superseded."""

    kind = "checkpoint_committed"

    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointExists(_Payload):
    """The current timeline has a published checkpoint at or beyond a boundary, or of at least a sequence.

    One of the two is given.
    """

    kind = "checkpoint_exists"

    boundary: str | None = None
    """An instant, as ISO 8601 with a zone."""

    sequence: int | None = None

    def __post_init__(self) -> None:
        if (self.boundary is None) == (self.sequence is None):
            raise ConfigurationError(
                "a checkpoint is waited for by its boundary or by its sequence; give one of the two"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionReaches(_Payload):
    """The region is what a verb has asked for."""

    kind = "region_reaches"

    state: Reaching


@dataclass(frozen=True, slots=True, kw_only=True)
class Progresses(_Payload):
    """The region runs, and nothing in it waits for longer than it may."""

    kind = "progresses"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetFinished(_Payload):
    """A person's accepted reset, by its request id, is done."""

    kind = "reset_done"

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersEnded(_Payload):
    """The application that hosts these members has ended with its region."""

    kind = "members_ended"

    group: str
    indexes: tuple[int, ...]
    before: tuple[int, ...]
    """The incarnation that each of them had before the application was started."""

    come_by: str = ""
    """When the first of them has to have come at the latest, by the store's clock, as ISO 8601; empty: whenever."""

    last_request: str = ""
    """The request id that the application ends by, for the case that its task is killed; empty: it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipHealthy(_Payload):
    """Every check of the region's groups is all right, as `kcr group validate` makes them."""

    kind = "membership_healthy"
    asks_kafka = True

    groups: tuple[str, ...] = ()
    """Which of its groups; none named: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagBelow(_Payload):
    """Total consumer lag is below a threshold."""

    kind = "lag_below"
    asks_kafka = True

    records: int
    """> 0."""

    def __post_init__(self) -> None:
        if self.records <= 0:
            raise ConfigurationError(f"lag is waited for below a number above 0, not below {self.records}")


WaitingFor: TypeAlias = (
    RequestPublished
    | CheckpointCommitted
    | CheckpointExists
    | RegionReaches
    | Progresses
    | ResetFinished
    | MembersEnded
    | MembershipHealthy
    | LagBelow
)


def waiting_for_from_json(value: Mapping[str, object]) -> WaitingFor:
    """Return what `to_json` of a payload was made of.

    Raises:
        ConfigurationError: it is no payload of this version; a task that was deferred by another one asks again.
    """
    try:
        return cast("WaitingFor", documents.read(value, cast("type[object]", WaitingFor)))
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
        match self.status:
            case Status.REACHED:
                return
            case Status.REFUSED:
                raise RefusedError(self.detail)
            case Status.TIMED_OUT:
                raise TimedOut(self.detail)
            case Status.STORE_AWAY:
                raise StoreUnavailable(self.detail)

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
