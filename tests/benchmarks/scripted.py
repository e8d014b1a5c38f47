"""Scripted regions on a durable store, for what costs nothing but the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupId, RegionName
from airflow_kcr.store.regions import RegionStore
from tests.support.driver import Driver, group_rules
from tests.support.processor_time import ProcessorTime


def rules_of(group: str = "g", members: int = 1) -> RegionRules:
    """Return rules with a long lease, so that nothing expires while a slow machine is measured."""
    groups = {GroupId(group): group_rules(group, members=members)}
    return RegionRules(groups=groups, timeouts=Timeouts(lease=timedelta(hours=5)))


@contextmanager
def scripted(
    url: str, partitions: int, *, members: int = 1, name: str = "", end: int = 1_000_000_000
) -> Iterator[tuple[Driver, ProcessorTime]]:
    """Lend a declared region that is not up yet, and a clock of what it costs.

    Args:
        url: of the store.
        partitions: of its group.
        members: of its group.
        name: of the region and its group, where the store has others.
        end: of every log.
    """
    rules = rules_of(name or "g", members)
    with RegionStore.connect(url, lambda _: rules) as store:
        clock = ProcessorTime(store._engine)
        driver = Driver(partitions=partitions, rules=rules, transactions=store, name=RegionName(name or "flights"))
        for partition in driver.logs:
            driver.grow(partition, end=end)
        yield driver, clock
