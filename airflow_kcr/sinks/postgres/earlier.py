"""What earlier regions, or sinks of other names, have left in a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.values import GroupId, RegionId
from airflow_kcr.sinks.postgres.target import SOURCE, Target, TargetPlace

if TYPE_CHECKING:
    import psycopg


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierOutput:
    """A sink that has written into a target, and that no one here is."""

    source: int
    region_id: RegionId
    group: GroupId
    sink: str


def earlier_outputs(connection: psycopg.Connection, target: Target, place: TargetPlace) -> tuple[EarlierOutput, ...]:
    """Return whose rows are in a target: an earlier region's of the name, or a sink's that the region has no more.

    Another region of the name may also be one of another store. Regions of other names write beside each other.
    """
    if SOURCE not in place.columns:
        return ()
    found = place.run(connection, "writers", region=target.region)
    others = [
        EarlierOutput(source=source, region_id=RegionId(uid), group=GroupId(group), sink=sink)
        for source, uid, group, sink in found
        if uid != target.region_id
        or ((group, sink) not in target.beside and (group, sink) != (target.group, target.sink))
    ]
    return tuple(one for one in others if rows_of(connection, place, one.source, most=1))


def rows_of(connection: psycopg.Connection, place: TargetPlace, source: int, most: int = 2**62) -> int:
    """Return how many rows a sink has in the target; counted up to `most`."""
    if SOURCE not in place.columns:
        return 0
    return int(place.value(connection, "count_rows", source=source, most=most))


def require_no_earlier(connection: psycopg.Connection, target: Target, place: TargetPlace) -> None:
    """Refuse a target that has rows of an earlier sink.

    Raises:
        ConfigurationError: it has; the message has the ways out.
    """
    found = earlier_outputs(connection, target, place)
    if not found:
        return
    told = "; ".join(
        f"sink {one.sink} of group {one.group}"
        + (f", region id {one.region_id}" if one.region_id != target.region_id else ", which the spec has no more")
        for one in found
    )
    raise ConfigurationError(
        f"{target}: table {place.shown} has rows of an earlier region {target.region}, of another store's, or of a "
        f"sink that was renamed ({told}); say what becomes of them: `kcr region output {target.region} --keep` leaves "
        "them where they are, --delete deletes them, --take-over makes them this sink's; or name another table"
    )


def require_no_unknown(connection: psycopg.Connection, target: Target, place: TargetPlace) -> None:
    """Refuse a target that has rows of sinks, and no fence of any: those of a new sink would get their numbers.

    Raises:
        ConfigurationError: it has; the message has the ways out.
    """
    if SOURCE in place.columns and place.value(connection, "has_unknown_rows"):
        raise ConfigurationError(
            f"{target}: table {place.shown} has rows of sinks that kcr_fence does not know: it was dropped, made anew "
            "or restored from before; put it back, or say what becomes of them: `kcr region output "
            f"{target.region} --keep` leaves them where they are, --delete deletes them, --take-over makes them this "
            "sink's; or name another table"
        )


def note_unknown(connection: psycopg.Connection, target: Target, place: TargetPlace) -> None:
    """Have rows of sinks that no fence knows be those of an earlier region of the name."""
    if SOURCE in place.columns:
        place.run(connection, "note_unknown", region=target.region)


def keep_output(connection: psycopg.Connection, place: TargetPlace, earlier: EarlierOutput) -> None:
    """Leave the rows of another sink beside those of the target's own, for good."""
    place.run(connection, "keep_beside", source=earlier.source)


def delete_output(connection: psycopg.Connection, place: TargetPlace, source: int) -> int:
    """Delete the rows of a sink, its progress and its fence; return how many rows went.

    Raises:
        SinkError: rows are still there: a trigger of the table keeps them.
    """
    rows = 0
    if SOURCE in place.columns:
        rows = place.run(connection, "delete_rows", source=source).rowcount
        if place.value(connection, "has_rows", source=source):
            raise rows_kept(place, "rows that were deleted", "DELETE")
    place.run(connection, "delete_progress", source=source)
    place.run(connection, "delete_fence", source=source)
    return rows


def rows_kept(place: TargetPlace, what: str, verb: str) -> SinkError:
    """Return the error of a target that keeps rows that were deleted or changed."""
    return SinkError(
        f"table {place.shown} keeps {what}, so that a reset would double them: a trigger BEFORE {verb} returns NULL, "
        "most likely; drop it, or write to another table; nothing was changed"
    )


def take_over(
    connection: psycopg.Connection, target: Target, place: TargetPlace, earlier: EarlierOutput, own: int | None
) -> None:
    """Make what another sink has written this sink's: its rows, and up to where they go.

    The first reset of a new region deletes those of them that it processes again.

    Raises:
        SinkError: this sink has written already, or a trigger of the table keeps its rows as they were.
    """
    if place.value(connection, "has_progress", source=own):
        raise SinkError(
            f"{target} has written to {place.shown} already, and can't take over what {earlier.sink} of group "
            f"{earlier.group} has written; keep or delete that"
        )
    place.run(connection, "delete_fence", source=own)
    place.run(connection, "take_over", source=earlier.source, **target.writer)
    if earlier.region_id == target.region_id:
        return
    place.run(connection, "restart_fence", source=earlier.source)
    place.run(connection, "restart_progress", source=earlier.source)
    if SOURCE in place.columns:
        place.run(connection, "restart_rows", source=earlier.source)
        if place.value(connection, "is_not_restarted", source=earlier.source):
            raise rows_kept(place, "rows as they were", "UPDATE")
