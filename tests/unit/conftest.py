"""What the tests of several folders share: a region in a store, and Kafka as Airflow's hook sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from airflow_kcr.protocol.values import GroupId
from airflow_kcr.spec import RegionSpec
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster, live_region


@pytest.fixture
def driver(store_connection: str) -> Iterator[Driver]:
    """A region, flights, declared and stopped, in the store of the connection `kcr_default`."""
    with live_region(store_connection) as driver:
        yield driver


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """What the hook sees of Kafka."""
    from airflow_kcr.hooks.kcr import KcrHook  # here, as most tests do without Airflow

    cluster = FakeCluster()

    def opened(self: KcrHook, spec: RegionSpec, group: GroupId) -> AbstractContextManager[object]:
        return cluster.clusters(spec, group)

    monkeypatch.setattr(KcrHook, "cluster", opened)
    return cluster
