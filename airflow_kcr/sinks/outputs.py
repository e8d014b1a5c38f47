"""What a region's sinks have written: what there is, what an earlier region has left, and what becomes of it.

`kcr region output` and `kcr region delete --with-output` are these.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.region.lifecycle import require_deletable
from airflow_kcr.protocol.values import GroupId, RegionName
from airflow_kcr.sinks.files.cleanup import file_session
from airflow_kcr.sinks.files.folder import Folder, HadoopFolder
from airflow_kcr.sinks.files.layout import OWNER, FileTarget, Owner, file_targets
from airflow_kcr.sinks.group import postgres_sinks
from airflow_kcr.sinks.postgres import PostgresSink, bookkeeping
from airflow_kcr.sinks.postgres.bookkeeping import TargetPlace
from airflow_kcr.spec import SinkKind, stored_spec
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    import psycopg


class Choice(StrEnum):
    """What becomes of what an earlier region, or a sink that was renamed, has left in a table."""

    KEEP = "keep"
    """It stays where it is, beside what is written now."""

    DELETE = "delete"
    TAKE_OVER = "take_over"
    """It is this region's; the first reset deletes what the region processes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOutput:
    """One sink, and what is where it writes to."""

    group: GroupId
    sink: str
    kind: SinkKind
    place: str
    """A table and its database, or a folder, or the function of a custom sink."""

    rows: int | None = None
    """How many rows of this sink a table has; None: it is no table."""

    earlier: tuple[str, ...] = ()
    """Whose rows are there beside: sinks of an earlier region of the name, or that were renamed."""

    note: str = ""
    """What is wrong with the place, or was done."""


def outputs(store: RegionStore, name: RegionName, environ: Mapping[str, str] = os.environ) -> tuple[FoundOutput, ...]:
    """Return what a region's sinks have written, and what others have left there.

    Args:
        store: where the region is.
        name: its name.
        environ: where references of the sinks are looked up.

    Raises:
        UnknownRegion: there is none of that name.
        ConfigurationError: a variable is not set, a table can't be used at all.
        SinkError: a database can't be reached.
    """
    region = store.read(name)[0]
    spec = stored_spec(region.spec.text)
    found = []
    for sink in _tables(store, name, environ):
        with _located(sink) as (connection, place):
            known = bookkeeping.source_of(connection, place, sink.target)
            earlier = bookkeeping.earlier_outputs(connection, sink.target, place)
            found.append(
                FoundOutput(
                    group=sink.target.group,
                    sink=sink.target.sink,
                    kind=SinkKind.POSTGRES,
                    place=_shown(sink, place),
                    rows=0 if known is None else bookkeeping.rows_of(connection, place, known),
                    earlier=tuple(f"{one.group}/{one.sink} of region id {one.region_id}" for one in earlier),
                    note="" if bookkeeping.is_same(connection, place, known) else "another table than was written to",
                )
            )
    for group in spec.groups:
        for declared in group.sinks:
            if declared.kind is not SinkKind.POSTGRES:
                where = declared.path or declared.factory or ""
                found.append(
                    FoundOutput(group=GroupId(group.group_id), sink=declared.name, kind=declared.kind, place=where)
                )
    return tuple(found)


def settle(
    store: RegionStore, name: RegionName, choice: Choice, environ: Mapping[str, str] = os.environ
) -> tuple[FoundOutput, ...]:
    """Do with what others have left in a region's tables what a person chose; return the sinks with what was done.

    A table that took the place of another is accepted with `TAKE_OVER`, and so is a table or folder that was emptied.
    Folders are never shared: name another one, or delete what is in it.

    Args:
        store: where the region is.
        name: its name.
        choice: of the person.
        environ: where references of the sinks are looked up.

    Raises:
        UnknownRegion: there is none of that name.
        RegionInState: the region is not stopped, or a member still holds a lease.
        ConfigurationError: a variable is not set.
        SinkError: a database refuses; of the other sinks, those before are settled.
    """
    _require_stopped(store, name)
    done, taken = [], store.taken(name)
    for sink in _tables(store, name, environ):
        with _located(sink) as (connection, place):
            own = bookkeeping.source_of(connection, place, sink.target)
            told = _settled(connection, sink, place, own, choice)
            if choice is Choice.TAKE_OVER and own is None and not told and sink.where in taken:
                store.let_go(name, sink.where)
                told.append("the table is the sink's as it is")
            done.append(
                FoundOutput(
                    group=sink.target.group,
                    sink=sink.target.sink,
                    kind=SinkKind.POSTGRES,
                    place=_shown(sink, place),
                    note="; ".join(told) or "nothing to do",
                )
            )
    if choice is Choice.TAKE_OVER:
        region = store.read(name)[0]
        for folder in file_targets(stored_spec(region.spec.text), environ, region_id=region.region_id):
            store.let_go(name, folder.place)
            note = "the folder is the sink's as it is"
            done.append(
                FoundOutput(
                    group=folder.group, sink=folder.sink, kind=SinkKind.FILES, place=folder.place.place, note=note
                )
            )
    return tuple(done)


def _settled(
    connection: psycopg.Connection, sink: PostgresSink, place: TargetPlace, own: int | None, choice: Choice
) -> list[str]:
    """Do with the rows in one table what a person chose; return what was done."""
    earlier = bookkeeping.earlier_outputs(connection, sink.target, place)
    if choice is Choice.TAKE_OVER and len(earlier) > 1:
        raise ConfigurationError(
            f"{sink.target}: {place.shown} has rows of {len(earlier)} earlier sinks, and one can be taken over; keep "
            "or delete them"
        )
    told = []
    for one in earlier:
        match choice:
            case Choice.KEEP:
                bookkeeping.keep_output(connection, place, one)
                told.append(f"rows of {one.group}/{one.sink} stay")
            case Choice.DELETE:
                rows = bookkeeping.delete_output(connection, place, one.source)
                told.append(f"{rows} rows of {one.group}/{one.sink} deleted")
            case Choice.TAKE_OVER:
                bookkeeping.take_over(connection, sink.target, place, one, own)
                told.append(f"rows of {one.group}/{one.sink} taken over")
    if choice is Choice.TAKE_OVER and own is not None and not bookkeeping.is_same(connection, place, own):
        bookkeeping.remember_target(connection, place, own)
        told.append("this table is the sink's now")
    return told


def delete_outputs(
    store: RegionStore, name: RegionName, conf: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> tuple[FoundOutput, ...]:
    """Delete what a stopped region's sinks have written, with their progress; return the sinks with what was done.

    Args:
        store: where the region is.
        name: its name.
        conf: settings of Spark, which reaches the folders of file sinks.
        environ: where references of the sinks are looked up.

    Raises:
        UnknownRegion: there is none of that name.
        RegionInState: the region is not stopped, or a member still holds a lease.
        ConfigurationError: a variable is not set, or it has a custom sink, which can't be deleted from here.
        SinkError: a database or a folder refuses; what was deleted before is gone, and the call may be repeated.
    """
    _require_stopped(store, name)
    region = store.read(name)[0]
    spec = stored_spec(region.spec.text)
    customs = [sink.name for group in spec.groups for sink in group.sinks if sink.kind is SinkKind.CUSTOM]
    if customs:
        raise ConfigurationError(
            f"sink {', '.join(customs)} is a custom one, whose output only you can delete; delete it, then delete the "
            "region without --with-output"
        )
    done = []
    for sink in _tables(store, name, environ):
        with _located(sink) as (connection, place):
            own = bookkeeping.source_of(connection, place, sink.target)
            rows = 0 if own is None else bookkeeping.delete_output(connection, place, own)
            note = f"{rows} rows deleted"
            done.append(
                FoundOutput(
                    group=sink.target.group,
                    sink=sink.target.sink,
                    kind=SinkKind.POSTGRES,
                    place=_shown(sink, place),
                    note=note,
                )
            )
        # Only once it is deleted: a place that is forgotten is taken as a new one.
        store.let_go(name, sink.where)
    folders = file_targets(spec, environ, region_id=region.region_id)
    if folders:
        with file_session(conf, folders) as spark:
            for target in folders:
                folder = HadoopFolder(spark, target.path)
                note = emptied(folder, target)
                store.let_go(name, target.place)
                done.append(
                    FoundOutput(group=target.group, sink=target.sink, kind=SinkKind.FILES, place=folder.uri, note=note)
                )
    return tuple(done)


def emptied(folder: Folder, target: FileTarget) -> str:
    """Delete all that is in a sink's folder, if its marker says that it is the sink's; return what was done.

    Args:
        folder: where the files are.
        target: the sink.
    """
    owner = Owner.of(folder.read(OWNER))
    if owner is None:
        return "nothing deleted: no sink has taken this folder"
    if not owner.is_of(target):
        return f"nothing deleted: it is the folder of {owner}"
    # The marker last: what an interruption leaves is still the sink's.
    folder.delete(name for name in folder.names("") if name != OWNER)
    folder.delete([OWNER])
    return "all files deleted"


def _tables(store: RegionStore, name: RegionName, environ: Mapping[str, str]) -> tuple[PostgresSink, ...]:
    region = store.read(name)[0]
    spec = stored_spec(region.spec.text)
    return tuple(
        sink
        for group in spec.groups
        for sink in postgres_sinks(spec, GroupId(group.group_id), environ, region_id=region.region_id)
    )


@contextmanager
def _located(sink: PostgresSink) -> Iterator[tuple[psycopg.Connection, TargetPlace]]:
    """Lend a transaction, and where the target is."""
    with sink.deciding() as connection:
        yield connection, bookkeeping.located(connection, sink.target)


def _shown(sink: PostgresSink, place: TargetPlace) -> str:
    return f"{place.schema}.{place.table} at {sink.database.address}"


def _require_stopped(store: RegionStore, name: RegionName) -> None:
    # As for deleting it: what its sinks have written can't change under its members.
    require_deletable(*store.read(name))
