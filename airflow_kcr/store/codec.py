"""Documents that the store holds, read back: what can't be read there is the store's error."""

from __future__ import annotations

from typing import TypeVar

from airflow_kcr.errors import KcrError, StoreError
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.region.events import BODIES, Body

T = TypeVar("T")


def from_json(document: object, hint: type[T]) -> T:
    """Return the value that a document of the store is of.

    Raises:
        StoreError: it is not of that form; the row was written by something else.
    """
    try:
        return documents.read(document, hint)
    except (ValueError, KcrError) as error:
        raise StoreError(f"the store holds what can't be read: {error}") from error


def event_from_json(kind: str, document: object) -> Body:
    """Return the body of an event from its kind and its document.

    Raises:
        StoreError: the kind is unknown here, or the document is not of its form.
    """
    if kind not in BODIES:
        raise StoreError(f"the store holds an event {kind!r} that this program does not know; upgrade airflow-kcr")
    return from_json(document, BODIES[kind])
