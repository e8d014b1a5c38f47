"""The routes of a FastAPI application, whichever way its version keeps those of an included router."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI


def routes_of(app: FastAPI) -> list[Any]:
    """Return every way into an application, whatever kind of route it is."""
    return list(_flat(app.routes))


def _flat(routes: list[Any]) -> Iterator[Any]:
    for route in routes:
        included = getattr(route, "original_router", None)
        yield from [route] if included is None else _flat(included.routes)
