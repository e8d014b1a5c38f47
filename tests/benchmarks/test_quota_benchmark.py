"""How fast a backlog is read under a broker's quota, against what the quota allows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import Epoch
from tests.benchmarks.contenders import ledger
from tests.benchmarks.figures import Report, Scale
from tests.benchmarks.lab import Lab
from tests.support.kafka import Kafka
from tests.support.kafka_tool import slowed

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

PARTITIONS = 8
SIZE = 1_000
SECONDS = 55
"""That the backlog takes at the quota."""

GOAL = 0.8
QUOTAS = [(entity, rate) for entity in ("users", "clients") for rate in (250_000, 1_000_000)]
SLOWEST = ("users", 50_000)
"""Bytes per second that are no goal: a member gets on with them, that is all."""


def test_a_backlog_under_a_quota(lab: Lab, default_kafka: Kafka, scale: Scale, report: Callable[[str], Report]) -> None:
    found = report("quotas")
    own = Lab(spark=lab.spark, kafka=default_kafka, store=lab.store, store_address=lab.store_address, folder=lab.folder)
    cases = [*QUOTAS, SLOWEST] if scale.rounds > 1 else QUOTAS[1:2]
    rows = []
    for entity, rate in cases:
        topic = own.filled(scale.of(SECONDS * rate // SIZE, PARTITIONS), SIZE, PARTITIONS)
        with slowed(default_kafka.bootstrap_servers, entity) as quota:
            quota(rate)
            # As a spec has it by default.
            with own.hosted(topic, batch="target: 2s") as hosted:
                hosted.until_consumed()
                batches = list(hosted.store.batches(hosted.name))
                epoch = hosted.store.read(hosted.name)[0].epoch
        reading = ledger(iter(batches))
        share = reading.rate * SIZE / rate
        rows.append((f"{entity}, {rate // 1_000} kB/s", topic.records, reading.seconds, len(batches), share))
        assert (epoch, _failed(batches)) == (Epoch(1), 0)
        if (entity, rate) != SLOWEST:
            found.at_least(f"{rate // 1_000} kB/s, {entity}: to the quota", share, GOAL)
    found.table(
        f"a backlog of {SECONDS} s at the quota, read once: {PARTITIONS} partitions, {SIZE} B each; no batch failed",
        ("quota", "records", "seconds", "batches", "to the quota"),
        rows,
    )


def _failed(batches: list[Batch]) -> int:
    return sum(batch.outcome is not Outcome.DONE for batch in batches)
