"""What the tests of the operators share: a region in the store of the connection `kcr_default`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.driver import Driver
from tests.support.live_region import live_region
from tests.support.reset_tasks import World, prepared


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    """A region, flights, declared and stopped."""
    with live_region(store_connection) as driver:
        yield driver


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Kafka and people, as a reset meets them."""
    return prepared(monkeypatch)
