"""How fast a backlog is read with a pipeline that does nothing, against Structured Streaming, Python and Java clients.

`pytest -m benchmark -n 0 tests/benchmarks`; what is measured is in the docs (explanation of performance).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import pytest

from airflow_kcr.spark.reads import DEFAULTS
from tests.benchmarks.contenders import Contender, Race, bare_loop, java_tool, member, our_options, streaming
from tests.benchmarks.figures import Report, Scale, ratio, spread
from tests.benchmarks.lab import PARTITIONS, Filled, Lab

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

SMALL_BATCH, LARGE_BATCH = 60_000, 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many records of a size the topics hold."""

    short: int
    """For batches of 60,000, and for the Python client."""

    long: int
    """For larger ones."""


SIZES = {100: Sizes(short=1_200_000, long=3_600_000), 1_000: Sizes(short=600_000, long=1_800_000)}


@pytest.mark.parametrize("size", SIZES)
def test_a_backlog(lab: Lab, scale: Scale, report: Callable[[str], Report], size: int) -> None:
    found = report(f"backlog-{size}")
    short = lab.filled(scale.of(SIZES[size].short, SMALL_BATCH), size)
    long = lab.filled(scale.of(SIZES[size].long, LARGE_BATCH), size)
    race = Race(_contenders(lab, short, long))
    race.run(scale.rounds)
    fastest = median(race.rates("member, one batch"))
    found.table(
        f"{PARTITIONS} partitions, records of {size} B: records per second",
        ("who reads", "batches", "median", "smallest to largest", "to a member's one batch"),
        [
            (name, readings[0].batches, median(rates), spread(rates), median(rates) / fastest)
            for name, readings in race.rows()
            for rates in [race.rates(name)]
        ],
    )
    _goals(found, race, size)


def _contenders(lab: Lab, short: Filled, long: Filled) -> tuple[Contender, ...]:
    ours = our_options()
    client = {name.removeprefix("kafka."): value for name, value in DEFAULTS.items() if name.startswith("kafka.")}
    by_batch = [
        contender
        for topic, batch in ((short, SMALL_BATCH), (long, LARGE_BATCH))
        for contender in (
            Contender(name=f"member, {batch:,}", read=partial(member, lab, topic, batch)),
            Contender(name=f"streaming, {batch:,}", read=partial(streaming, lab, topic, most=batch)),
            Contender(
                name=f"streaming with our settings, {batch:,}",
                read=partial(streaming, lab, topic, most=batch, options=ours),
            ),
        )
    ]
    return (
        *by_batch,
        Contender(name="member, one batch", read=partial(member, lab, long, long.records)),
        Contender(name="streaming, one batch", read=partial(streaming, lab, long)),
        Contender(name="streaming with our settings, one batch", read=partial(streaming, lab, long, options=ours)),
        Contender(name="Python client, consume(10000)", read=partial(bare_loop, lab, short)),
        Contender(name="Kafka's Java tool", read=partial(java_tool, lab, long)),
        Contender(name="Kafka's Java tool with our settings", read=partial(java_tool, lab, long, client)),
    )


def _goals(found: Report, race: Race, size: int) -> None:
    rates = race.rates
    for batch in (f"{SMALL_BATCH:,}", f"{LARGE_BATCH:,}", "one batch"):
        ours, what = rates(f"member, {batch}"), f"{size} B, {batch}"
        found.at_least(f"{what}: to Structured Streaming", ratio(ours, rates(f"streaming, {batch}")), 2.2)
        same = ratio(ours, rates(f"streaming with our settings, {batch}"))
        found.at_least(f"{what}: to Structured Streaming with our settings", same, 1.1)
    big = rates("member, one batch")
    found.at_least(f"{size} B: to the Python client", ratio(big, rates("Python client, consume(10000)")), 6)
    found.at_least(f"{size} B: to Kafka's Java tool", ratio(big, rates("Kafka's Java tool")), 0.85)
