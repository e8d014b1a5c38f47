"""Reads all regions of a store again and again, keeps samples of their lag, and serves their metrics to Prometheus.

A scrape is answered from the newest reading: it asks neither the store nor Kafka, and takes no longer while they are
away. A reading that is too old is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Final, Self

from airflow_kcr.api.checkpoints import reach_of
from airflow_kcr.api.clusters import Cluster, Clusters, client_settings, reader_with
from airflow_kcr.api.lag import measure
from airflow_kcr.api.resets import RegionResets
from airflow_kcr.errors import KcrError, UnknownRegion
from airflow_kcr.floods import unflooded
from airflow_kcr.metrics.declared import METRICS, RegionFacts
from airflow_kcr.metrics.outlets import families
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.values import GroupId, RegionName
from airflow_kcr.spec import RegionSpec
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

PERIOD: Final = 30.0
"""Seconds between two readings."""

OLD: Final = 3 * PERIOD
"""Seconds after which a reading is left out."""

RESETS: Final = 20
"""Of how many of the newest resets it is counted what they had processed again."""

_AGAIN = unflooded(f"{__name__}.again")


class KeptClusters:
    """Opens each cluster once, for groups of any region with the same settings: it is a process of its own."""

    def __init__(self) -> None:
        self._open: dict[tuple[tuple[str, str], ...], tuple[Cluster, ExitStack]] = {}
        self._lent: set[tuple[tuple[str, str], ...]] = set()

    def __call__(self, spec: RegionSpec, group: GroupId) -> AbstractContextManager[Cluster]:
        """Lend the cluster of a group."""
        settings = client_settings(spec, group, os.environ)
        key = tuple(sorted(settings.items()))
        if key not in self._open:
            stack = ExitStack()
            self._open[key] = (stack.enter_context(reader_with(settings)), stack)
        self._lent.add(key)
        return nullcontext(self._open[key][0])

    def close_unused(self) -> None:
        """Close what was not lent since this was last called: its regions are gone, or have other settings."""
        for key in self._open.keys() - self._lent:
            self._open.pop(key)[1].close()
        self._lent.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lent.clear()
        self.close_unused()


@dataclass(slots=True)
class _Replayed:
    """What the resets of a region had processed again, as last read: the newest ones may still grow."""

    newest: Mapping[str, int] = field(default_factory=dict)
    earlier: int = 0
    """Of those that are among the newest no more."""

    def counted(self, newest: Mapping[str, int]) -> int:
        """Take what was read of the newest resets; return the sum of all that were ever read."""
        self.earlier += sum(count for reset, count in self.newest.items() if reset not in newest)
        self.newest = newest
        return self.earlier + sum(newest.values())


class Exporter:
    """The newest readings of all regions of a store; a collector of `prometheus_client`.

    Args:
        store: where the regions are.
        clusters: how Kafka is reached.
        with_partitions: whether each partition has series of its own.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        store: RegionStore,
        clusters: Clusters,
        *,
        with_partitions: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store, self._clusters, self._with_partitions, self._clock = store, clusters, with_partitions, clock
        self._replayed: dict[RegionName, _Replayed] = {}
        self._read: Mapping[RegionName, tuple[float, RegionFacts]] = {}

    def read(self) -> None:
        """Read all regions, and keep a sample of the lag of each; what is away is said, and read the next time."""
        try:
            names = self._store.names()
        except KcrError as error:
            _AGAIN.warning("the store can't be read now; its regions have no metrics: %s", error)
            return
        self._read = {name: known for name, known in self._read.items() if name in names}
        self._replayed = {name: known for name, known in self._replayed.items() if name in names}
        for name in names:
            try:
                facts = self._facts(name)
            except UnknownRegion:
                continue
            except KcrError as error:
                _AGAIN.warning("region %s can't be read now: %s", name, error)
                continue
            # Replaced, not changed: a scrape may be reading it.
            self._read = {**self._read, name: (self._clock(), facts)}

    def _facts(self, name: RegionName) -> RegionFacts:
        region, now, seen = self._store.look(name)
        restore_point = region.restore_checkpoint
        facts = RegionFacts(
            region=region,
            now=now,
            liveness=liveness.judge(region, now, seen),
            lag=None,
            reach=None if restore_point is None else reach_of(region, restore_point.sequence),
            replayed=self._replayed_of(name),
            with_partitions=self._with_partitions,
        )
        try:
            lag = measure(self._store, name, self._clusters)
        except (KcrError, OSError) as error:
            _AGAIN.warning("the lag of region %s is not known now: %s", name, error)
            return facts
        self._store.add_lag(name, lag.samples)
        return replace(facts, lag=lag)

    def _replayed_of(self, name: RegionName) -> int:
        resets = RegionResets(self._store, name, self._clusters, Requester()).list(last=RESETS)
        newest = {one.reset_id: one.counted.replayed for one in resets if one.counted is not None}
        return self._replayed.setdefault(name, _Replayed()).counted(newest)

    def known(self) -> list[RegionFacts]:
        """Return the readings that are not too old."""
        return [facts for at, facts in self._read.values() if self._clock() - at < OLD]

    def collect(self) -> Iterator[Family]:
        """Yield every metric, with the values of the readings that are not too old."""
        return families(METRICS, self.known())
