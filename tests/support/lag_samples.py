"""Samples of lag from before, of a store whose clock can't be moved."""

from __future__ import annotations

from datetime import timedelta

from airflow_kcr.api import partitions
from airflow_kcr.api.lag import samples_of
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster


def keep_lag(driver: Driver, cluster: FakeCluster, *, minutes: int) -> None:
    """Keep a sample of a region as it is, as if it had been taken some minutes ago."""
    region, now = driver.store.read(driver.name)
    rows = partitions.lag(region, cluster.clusters, lambda: region)
    driver.store.add_lag(driver.name, samples_of(region, now - timedelta(minutes=minutes), rows))
