"""Failures that Postgres and its driver report of the store, as errors of this project.

Failures are recognised by SQLSTATE and by the names of constraints, and by the text of a message only where a
connection was never made, of which there is nothing else (`libpq`). No text of the driver is passed on, since it may
quote values. Each says whether anything can have changed: nothing has (`StoreBusy`, `StoreUnavailable`), or that is
open (`OutcomeUnknown`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import psycopg
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from airflow_kcr import errors, libpq

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_REFUSED: Final[Mapping[str, str]] = {**libpq.REFUSALS, "42501": "this user may not use the kcr schema"}
"""Every further try is refused too, until the server or the address is changed."""

UNDEFINED: Final = frozenset({"42P01", "42703", "3F000", "42883"})
"""Undefined table, column, schema or function: the schema is not the one that this program was written for."""

_BY_CONSTRAINT: Final[Mapping[str, tuple[type[errors.KcrError], str | None]]] = {
    "region_name_key": (errors.RegionExists, None),
    "consumer_group_cluster_id_group_id_key": (errors.GroupInOtherRegion, None),
    "batch_region_id_batch_id_key": (
        errors.BatchRefused,
        "a batch of this id exists already; make a new id for every batch",
    ),
    "contribution_offset_pkey": (
        errors.OverlappingOffsets,
        "two members contributed one partition to the same checkpoint",
    ),
    "initial_offset_inside_log": (errors.OffsetOutsideLog, "an initial offset lies outside of its log"),
}
"""What a row is refused for, and what is said of it; None: the caller knows the names."""


def address_of(url: URL) -> str:
    """Return where a store is, for messages: never its password.

    Args:
        url: the engine's URL.
    """
    socket = url.query.get("host")
    host = url.host or (socket if isinstance(socket, str) else "") or "localhost"
    port = f":{url.port}" if url.port else ""
    return f"{url.username or ''}@{host}{port}/{url.database or ''}".removeprefix("@")


def cause_of(error: BaseException | None) -> BaseException | None:
    """Return what the driver raised, of what it or SQLAlchemy did."""
    return error.orig if isinstance(error, DBAPIError) else error


def before_commit(error: Exception, address: str, seconds: float) -> errors.KcrError:
    """Return the error for a failure before COMMIT was sent: nothing was changed.

    Args:
        error: what SQLAlchemy or the driver raised.
        address: the store's.
        seconds: how long the call has been trying.
    """
    if isinstance(error, PoolTimeout):
        return errors.StoreBusy(
            f"no connection to the store at {address} became free in {seconds:.1f} s; nothing was changed"
        )
    cause = cause_of(error)
    state = libpq.sqlstate_of(cause)
    if isinstance(cause, psycopg.Error) and cause.diag.constraint_name:
        return _by_constraint(cause.diag.constraint_name)
    if state in libpq.BUSY:
        return errors.StoreBusy(
            f"the store at {address} gave the transaction up after {seconds:.1f} s: {libpq.BUSY[state]}; "
            "nothing was changed, ask again"
        )
    if state in libpq.AWAY:
        return errors.StoreUnavailable(
            f"the store at {address} can't be used ({libpq.AWAY[state]}); tried for {seconds:.1f} s, "
            "nothing was changed"
        )
    if state in _REFUSED:
        return errors.StoreRefused(f"the store at {address} can't be used: {_REFUSED[state]}; nothing was changed")
    if libpq.is_lost(cause) or state.startswith("08"):
        return _not_reached(cause, address, seconds)
    return _by_value(cause, state) or errors.StoreError(
        f"the store at {address} refused a statement (SQLSTATE {state or 'none'}, {type(error).__name__}); "
        "nothing was changed"
    )


def _not_reached(cause: BaseException | None, address: str, seconds: float) -> errors.StoreUnavailable:
    """Return the error for a connection that is lost, or was never made."""
    known = libpq.not_made(str(cause))
    if known is not None and known.is_refusal:
        return errors.StoreRefused(f"the store at {address} can't be used: {known.why}; nothing was changed")
    reason = "" if known is None else f" ({known.why})"
    return errors.StoreUnavailable(
        f"the store at {address} can't be reached{reason}; tried for {seconds:.1f} s, nothing was changed"
    )


def outcome_unknown(address: str, seconds: float) -> errors.OutcomeUnknown:
    """Return the error for a COMMIT whose answer was lost."""
    return errors.OutcomeUnknown(
        f"the connection to the store at {address} was lost while COMMIT was on its way, after {seconds:.1f} s; "
        "read what became of it before asking again"
    )


def unstorable() -> errors.InvalidIdentifier:
    """Return the error for a name that no text of Postgres can be."""
    return errors.InvalidIdentifier(
        "a name in this request holds NUL or half of a surrogate pair; the store can't keep it"
    )


def _by_constraint(name: str) -> errors.KcrError:
    if name in _BY_CONSTRAINT:
        kind, sentence = _BY_CONSTRAINT[name]
        return kind(sentence)
    if name.endswith(("_not_negative", "_not_empty")):
        return errors.NumberOutOfRange(f"the store refused a number (constraint {name}); nothing was changed")
    return errors.StoreError(f"the store refused a row (constraint {name}); nothing was changed")


def _by_value(cause: BaseException | None, state: str) -> errors.KcrError | None:
    if state == "22003":
        return errors.NumberOutOfRange("a number does not fit into the store's 64 bits; nothing was changed")
    # NUL is found by the driver, which then has no SQLSTATE; a wrong encoding by the server.
    if state in {"22021", "22P05"} or (isinstance(cause, psycopg.DataError) and not state):
        return unstorable()
    return None


FAILURES: Final = (SQLAlchemyError, psycopg.Error)
"""What a statement may raise; everything else is a mistake in the code."""
