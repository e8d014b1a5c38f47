"""What the installed Airflow has: timetables, by whichever name, and the features that older ones lack.

Other names that Airflow has moved come from its own `airflow.providers.common.compat.sdk`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from airflow import sdk
from airflow.sdk.definitions._internal.types import NOTSET
from airflow.sdk.definitions.param import DagParam
from typing_extensions import override

from airflow_kcr.airflow_features import CHECKPOINT_KEYS, PARTITION_DATES, Feature
from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context, CronDataIntervalTimetable, CronPartitionTimetable, DeltaDataIntervalTimetable
    from airflow.sdk.types import OutletEventAccessorProtocol
else:
    try:
        from airflow.sdk import CronDataIntervalTimetable, DeltaDataIntervalTimetable
    except ImportError:
        from airflow.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable
    try:
        from airflow.sdk import CronPartitionTimetable
    except ImportError:

        class CronPartitionTimetable:
            """Stands for the class that this Airflow lacks; it has no instances."""


__all__ = ["CronDataIntervalTimetable", "CronPartitionTimetable", "DeltaDataIntervalTimetable"]

T = TypeVar("T")

HAS: Final[dict[Feature, bool]] = {
    # The schedule of DAGs whose tasks emit keys came with the method that emits them.
    CHECKPOINT_KEYS: hasattr(sdk, "PartitionedAtRuntime"),
    PARTITION_DATES: "partition_date" in sdk.Context.__annotations__,
}
"""Which of the features that a DAG may ask for the installed Airflow has."""


def has(feature: Feature) -> bool:
    """Whether the installed Airflow has a feature."""
    return HAS[feature]


def require(feature: Feature, asked_by: str) -> None:
    """Refuse a DAG that asks for what the installed Airflow lacks.

    Args:
        feature: what is asked for.
        asked_by: the argument that asks for it.

    Raises:
        ConfigurationError: it has it not; the message says what to write instead.
    """
    if not has(feature):
        raise ConfigurationError(f"{asked_by}: {feature.missing}")


def partition_date(context: Context) -> datetime | None:
    """Return the date of a run's partition; None: the run is of none.

    Args:
        context: a task's.

    Raises:
        ConfigurationError: the schedule makes partitions, and this Airflow doesn't tell tasks their dates.
    """
    run = context["dag_run"]
    if getattr(run, "partition_key", None) and run.run_type.value in {"scheduled", "backfill"}:
        require(PARTITION_DATES, f"schedule of DAG {run.dag_id}")
    found: datetime | None = getattr(run, "partition_date", None)
    return found


def add_key(event: OutletEventAccessorProtocol, key: str) -> None:
    """Give an event a partition key, where this Airflow can."""
    if has(CHECKPOINT_KEYS):
        event.add_partitions(key)


def not_durable() -> dict[str, bool]:
    """Return the arguments with which Airflow keeps no job of an earlier try; before 3.3 it never does."""
    return {"durable": False} if hasattr(sdk, "ResumableJobMixin") else {}


class _NamedParam(DagParam):
    """A param of a DAG that is stored without the mark that it has no default."""

    @override
    def serialize(self) -> dict[str, object]:
        return {name: value for name, value in super().serialize().items() if value is not NOTSET}


def storable(argument: T) -> T:
    """Return an argument of a task as every Airflow can store it; 3.1 loses the file of a DAG whose params it can't."""
    if not isinstance(argument, DagParam):
        return argument
    said = argument.serialize()
    return cast("T", _NamedParam(argument.current_dag, said["name"], said["default"]))


def cron_of(timetable: CronDataIntervalTimetable | CronPartitionTimetable) -> tuple[str, str]:
    """Return the expression and the zone of a timetable."""
    zone = _field(timetable, "timezone")
    return _field(timetable, "expression"), str(getattr(zone, "name", zone))


def delta_of(timetable: DeltaDataIntervalTimetable) -> object:
    """Return the length of a timetable's intervals, a timedelta for one."""
    return _field(timetable, "delta")


def _field(timetable: object, name: str) -> Any:  # noqa: ANN401 (Airflow's own)
    """Return what a timetable was made with; in Airflow 3.1 it has no public name."""
    return getattr(timetable, name, None) or getattr(timetable, f"_{name}")
