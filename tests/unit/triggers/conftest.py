"""What the tests of the triggers share: a region in a store that Airflow's connection leads to, and ways to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

import pytest

from tests.support.driver import Driver

PATIENCE = 20.0
"""Seconds after which a test gives up; reached only when something is wrong."""


@pytest.fixture
def driver(driver: Driver) -> Driver:
    """A running region in the store of the connection `kcr_default`."""
    driver.up()
    return driver


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pollers look often."""
    monkeypatch.setenv("AIRFLOW__KCR__POLL_INTERVAL", "0.05")


async def until(reached: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = monotonic() + PATIENCE
    while not reached():
        assert monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


def running(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test in an event loop of its own."""

    async def aligned() -> None:
        await asyncio.wait_for(main(), 2 * PATIENCE)

    asyncio.run(aligned())
