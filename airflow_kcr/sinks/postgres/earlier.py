"""What earlier regions, or sinks of other names, have left in a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.values import GroupId, RegionId
from airflow_kcr.sinks.contract import SinkOwner
from airflow_kcr.sinks.postgres import bookkeeping, staging
from airflow_kcr.sinks.postgres.target import SOURCE, TargetTable


def earlier_outputs(table: TargetTable) -> Mapping[int, SinkOwner]:
    """Return whose rows are in a target, by their number: an earlier region's, or a sink's that the region has no more.

    Another region of the name may also be one of another store. Regions of other names write beside each other.
    """
    if SOURCE not in table.columns:
        return {}
    own, beside = table.target.owner, table.target.beside
    found = {
        source: SinkOwner(region=own.region, region_id=RegionId(uid), group=GroupId(group), sink=sink)
        for source, uid, group, sink in table.run("writers", region=own.region)
    }
    return {
        source: one
        for source, one in found.items()
        if one != own
        and (one.region_id != own.region_id or (one.group, one.sink) not in beside)
        and rows_of(table, source, most=1)
    }


def rows_of(table: TargetTable, source: int, most: int = 2**62) -> int:
    """Return how many rows a sink has in the target; counted up to `most`."""
    if SOURCE not in table.columns:
        return 0
    return int(table.value("count_rows", source=source, most=most))


def require_no_earlier(table: TargetTable) -> None:
    """Refuse a target that has rows of an earlier sink.

    Raises:
        ConfigurationError: it has; the message has the ways out.
    """
    owner, found = table.target.owner, earlier_outputs(table)
    if not found:
        return
    told = "; ".join(
        f"sink {one.sink} of group {one.group}"
        + (f", region id {one.region_id}" if one.region_id != owner.region_id else ", which the spec has no more")
        for one in found.values()
    )
    raise ConfigurationError(
        f"{owner.name}: table {table.shown} has rows of an earlier region {owner.region}, of another store's, or of a "
        f"sink that was renamed ({told}); say what becomes of them: `kcr region output {owner.region} --keep` leaves "
        "them where they are, --delete deletes them, --take-over makes them this sink's; or name another table"
    )


def require_no_unknown(table: TargetTable) -> None:
    """Refuse a target that has rows of sinks, and no fence of any: those of a new sink would get their numbers.

    Raises:
        ConfigurationError: it has; the message has the ways out.
    """
    if SOURCE in table.columns and table.value("has_unknown_rows"):
        raise ConfigurationError(
            f"{table.target}: table {table.shown} has rows of sinks that kcr_fence does not know: it was dropped, made "
            "anew or restored from before; put it back, or say what becomes of them: `kcr region output "
            f"{table.target.owner.region} --keep` leaves them where they are, --delete deletes them, --take-over makes "
            "them this sink's; or name another table"
        )


def note_unknown(table: TargetTable) -> None:
    """Have rows of sinks that no fence knows be those of an earlier region of the name."""
    if SOURCE in table.columns:
        table.run("note_unknown", region=table.target.owner.region)


def delete_output(table: TargetTable, source: int) -> int:
    """Delete the rows of a sink, its progress and its fence; return how many rows went.

    Raises:
        SinkError: rows are still there: a trigger of the table keeps them.
    """
    rows = 0
    if SOURCE in table.columns:
        rows = table.run("delete_rows", source=source).rowcount
        if table.value("has_rows", source=source):
            raise rows_kept(table, "rows that were deleted", "DELETE")
    table.run("delete_progress", source=source)
    _forget(table, source)
    return rows


def rows_kept(table: TargetTable, what: str, verb: str) -> SinkError:
    """Return the error of a target that keeps rows that were deleted or changed."""
    return SinkError(
        f"table {table.shown} keeps {what}, so that a reset would double them: a trigger BEFORE {verb} returns NULL, "
        "most likely; drop it, or write to another table; nothing was changed"
    )


def take_over(table: TargetTable, source: int, earlier: SinkOwner, own: int | None) -> None:
    """Make what another sink has written this sink's: its rows, and up to where they go.

    The first reset of a new region deletes those of them that it processes again.

    Raises:
        SinkError: this sink has written already, or a trigger of the table keeps its rows as they were.
    """
    if table.value("has_progress", source=own):
        raise SinkError(
            f"{table.target} has written to {table.shown} already, and can't take over what {earlier.sink} of group "
            f"{earlier.group} has written; keep or delete that"
        )
    if earlier.region_id == table.target.owner.region_id:
        table.run("delete_fence", source=own)
        table.run("take_over", source=source, **table.target.writer)
        return
    # Under a number of its own: what of the earlier region is still alive somewhere finds its fence gone.
    own = bookkeeping.ensure_source(table)
    table.run("move_progress", source=source, own=own)
    if SOURCE in table.columns:
        table.run("move_rows", source=source, own=own)
        if table.value("has_rows", source=source):
            raise rows_kept(table, "rows as they were", "UPDATE")
    _forget(table, source)
    bookkeeping.remember_target(table, own)


def _forget(table: TargetTable, source: int) -> None:
    """Delete the fence of a sink, and what its batches have staged."""
    table.run("delete_fence", source=source)
    for left in staging.leftovers(replace(table, source=source)):
        staging.drop(table, left)
