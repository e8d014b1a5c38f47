"""How fast a backlog is read with a pipeline that does nothing, against Structured Streaming, Python and Java clients.

`pytest -m benchmark -n 0 tests/benchmarks`; what is measured is in the docs (explanation of performance).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import pytest

from airflow_kcr.spark.reads import DEFAULTS
from tests.benchmarks.contenders import (
    Reading,
    bare_loop,
    java_tool,
    member,
    our_options,
    rates,
    shown,
    streaming,
)
from tests.benchmarks.figures import Report, Scale, in_turns, ratio
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
    race = in_turns(_contenders(lab, short, long), scale.rounds)
    fastest = median(rates(race["member, one batch"]))
    found.table(
        f"{PARTITIONS} partitions, records of {size} B: records per second",
        ("who reads", "batches", "median", "smallest to largest", "to a member's one batch"),
        [(*row, median(rates(race[str(row[0])])) / fastest) for row in shown(race, rates)],
    )
    _goals(found, race, size)


def _contenders(lab: Lab, short: Filled, long: Filled) -> dict[str, Callable[[], Reading]]:
    ours = our_options()
    client = {name.removeprefix("kafka."): value for name, value in DEFAULTS.items() if name.startswith("kafka.")}
    by_batch: dict[str, Callable[[], Reading]] = {}
    for topic, batch in ((short, SMALL_BATCH), (long, LARGE_BATCH)):
        by_batch |= {
            f"member, {batch:,}": partial(member, lab, topic, batch),
            f"streaming, {batch:,}": partial(streaming, lab, topic, most=batch),
            f"streaming with our settings, {batch:,}": partial(streaming, lab, topic, most=batch, options=ours),
        }
    return {
        **by_batch,
        "member, one batch": partial(member, lab, long, long.records),
        "streaming, one batch": partial(streaming, lab, long),
        "streaming with our settings, one batch": partial(streaming, lab, long, options=ours),
        "Python client, consume(10000)": partial(bare_loop, lab, short),
        "Kafka's Java tool": partial(java_tool, lab, long),
        "Kafka's Java tool with our settings": partial(java_tool, lab, long, client),
    }


def _goals(found: Report, race: Mapping[str, Sequence[Reading]], size: int) -> None:
    of = {name: rates(readings) for name, readings in race.items()}
    for batch in (f"{SMALL_BATCH:,}", f"{LARGE_BATCH:,}", "one batch"):
        ours, what = of[f"member, {batch}"], f"{size} B, {batch}"
        found.at_least(f"{what}: to Structured Streaming", ratio(ours, of[f"streaming, {batch}"]), 2.2)
        same = ratio(ours, of[f"streaming with our settings, {batch}"])
        found.at_least(f"{what}: to Structured Streaming with our settings", same, 1.1)
    big = of["member, one batch"]
    found.at_least(f"{size} B: to the Python client", ratio(big, of["Python client, consume(10000)"]), 6)
    found.at_least(f"{size} B: to Kafka's Java tool", ratio(big, of["Kafka's Java tool"]), 0.85)
