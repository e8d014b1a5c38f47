"""What earlier regions, or sinks of other names, have left in a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
import psycopg.abc
from psycopg import sql

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.values import (
    GroupId,
    RegionId,
)
from airflow_kcr.sinks.postgres.target import (
    SOURCE,
    Target,
    TargetPlace,
)


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
    found = connection.execute(
        sql.SQL(
            "SELECT source, region_id, group_id, sink FROM {} WHERE target = %s AND region = %s ORDER BY source"
        ).format(place.fence),
        [place.table, target.region],
    ).fetchall()
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
    statement = sql.SQL("SELECT count(*) FROM (SELECT FROM {} WHERE kcr_source = %s LIMIT %s) AS its")
    found = connection.execute(statement.format(place.target), [source, most]).fetchone()
    return 0 if found is None else int(found[0])


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


def keep_output(connection: psycopg.Connection, place: TargetPlace, earlier: EarlierOutput) -> None:
    """Leave the rows of another sink beside those of the target's own, for good."""
    statement = sql.SQL("UPDATE {} SET region = '', region_id = 'kept ' || source WHERE source = %s")
    connection.execute(statement.format(place.fence), [earlier.source])


def delete_output(connection: psycopg.Connection, place: TargetPlace, source: int) -> int:
    """Delete the rows of a sink, its progress and its fence; return how many rows went.

    Raises:
        SinkError: rows are still there: a trigger of the table keeps them.
    """
    rows = 0
    if SOURCE in place.columns:
        where = sql.SQL("FROM {} WHERE kcr_source = %s").format(place.target)
        rows = connection.execute(sql.SQL("DELETE {}").format(where), [source]).rowcount
        require_gone(connection, place, where, [source])
    for own in (place.progress, place.fence):
        connection.execute(sql.SQL("DELETE FROM {} WHERE source = %s").format(own), [source])
    return rows


def require_gone(
    connection: psycopg.Connection, place: TargetPlace, where: sql.Composable, parameters: Sequence[object]
) -> None:
    """Refuse a target that keeps rows that were deleted.

    Args:
        connection: in the transaction.
        place: of the target.
        where: what follows SELECT to find one of them.
        parameters: of it.

    Raises:
        SinkError: there is one.
    """
    found = connection.execute(sql.SQL("SELECT EXISTS (SELECT {})").format(where), parameters).fetchone()
    if found is not None and found[0]:
        raise SinkError(
            f"table {place.shown} keeps rows that were deleted, so that a reset would double them: a trigger BEFORE "
            "DELETE returns NULL, most likely; drop it, or write to another table; nothing was changed"
        )


def take_over(
    connection: psycopg.Connection, target: Target, place: TargetPlace, earlier: EarlierOutput, own: int | None
) -> None:
    """Make what another sink has written this sink's: its rows, and up to where they go.

    The first reset of a new region deletes those of them that it processes again.

    Raises:
        SinkError: this sink has written already.
    """
    written = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE source = %s)").format(place.progress)
    found = connection.execute(written, [own]).fetchone()
    if found is not None and found[0]:
        raise SinkError(
            f"{target} has written to {place.shown} already, and can't take over what {earlier.sink} of group "
            f"{earlier.group} has written; keep or delete that"
        )
    connection.execute(sql.SQL("DELETE FROM {} WHERE source = %s").format(place.fence), [own])
    connection.execute(
        sql.SQL(
            "UPDATE {} SET region_id = %s, group_id = %s, sink = %s, target_id = to_regclass(%s)::oid WHERE source = %s"
        ).format(place.fence),
        [target.region_id, target.group, target.sink, place.shown, earlier.source],
    )
    if earlier.region_id == target.region_id:
        return
    # A new region counts its epochs and timelines anew.
    connection.execute(sql.SQL("UPDATE {} SET epoch = 0 WHERE source = %s").format(place.fence), [earlier.source])
    connection.execute(
        sql.SQL("UPDATE {} SET timeline = 0, epoch = 0, batch = '' WHERE source = %s").format(place.progress),
        [earlier.source],
    )
    if SOURCE in place.columns:
        statement = sql.SQL("UPDATE {} SET kcr_timeline = 0 WHERE kcr_source = %s AND kcr_timeline <> 0")
        connection.execute(statement.format(place.target), [earlier.source])
