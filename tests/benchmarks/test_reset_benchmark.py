"""How long it takes to rewind a group that runs, and to have all partitions flow after a kill, beside plain consumers.

Three members in processes of their own, on an engine without Spark, so that what is measured is the group and not a
JVM; beside them three plain consumers with the same session, over the same topic of twelve partitions.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median

import pytest

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.protocol.targets import ByDuration, Target, ToEarliest, ToOffset
from airflow_kcr.protocol.values import Offset
from tests.benchmarks.deliveries import TOP, Bare, Deliveries
from tests.benchmarks.figures import Report, Scale, in_turns, ratio, spread
from tests.support.kafka import Kafka
from tests.support.kafka_tool import consumer_groups
from tests.support.live_region import SPEC, live_region
from tests.support.load import steadily
from tests.support.members import BRISK, Live, live

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

PARTITIONS = 12
SHORT = 7
"""s of a session, as in BRISK: the least that leaves a lease its place, so that waiting for its end is short."""

LONG = 12
"""s of a session that outlasts, as with the default timeouts, a lease and the time in which a process ends itself."""

MANY = 1_000
"""Partitions of a plan."""

PLANNED_WITHIN = 2.0
"""s, at most, for such a plan."""

STEADY = 0.05
"""s between the records of a partition while a member is killed."""

Turn = Callable[[], float]


@contextmanager
def members(kafka: Kafka, url: str, folder: Path, session: int) -> Iterator[tuple[Live, Deliveries]]:
    """Lend a region whose three members share the partitions."""
    spec = BRISK.replace("session: 7s", f"session: {session}s")
    with live(kafka, url, folder, members=3, partitions=PARTITIONS, spec=spec) as region:
        for index in range(3):
            region.start(index)
        region.shared(0, 1, 2)
        region.until_running()
        yield region, Deliveries(files=lambda: [process.output for process in region.processes])


@contextmanager
def plain(kafka: Kafka, topic: str, folder: Path, session: int, *, static: bool) -> Iterator[Bare]:
    """Lend three plain consumers of a topic."""
    bare = Bare(kafka=kafka, topic=topic, folder=folder, session=session * 1000, static=static)
    bare.start()
    try:
        yield bare
    finally:
        bare.kill()


def test_a_reset_of_a_group_that_runs(
    kafka: Kafka,
    default_kafka: Kafka,
    durable_store: str,
    tmp_path: Path,
    scale: Scale,
    report: Callable[[str], Report],
) -> None:
    found = report("reset-online")
    each, target = 400, 200
    ends, wanted = dict.fromkeys(range(PARTITIONS), each - 1), dict.fromkeys(range(PARTITIONS), target)
    with (
        members(default_kafka, durable_store, tmp_path, SHORT) as (region, delivered),
        Region(region.name, region.store) as ours,
        plain(default_kafka, region.topic, tmp_path, SHORT, static=True) as static,
        plain(default_kafka, region.topic, tmp_path, SHORT, static=False) as dynamic,
        plain(kafka, kafka.topic(partitions=PARTITIONS), tmp_path, SHORT, static=False) as hasty,
    ):
        region.fill(each)
        kafka.fill(hasty.topic, dict.fromkeys(range(PARTITIONS), each))
        for seen in (delivered, static.deliveries, dynamic.deliveries, hasty.deliveries):
            seen.until(ends)

        def measured(reset: Callable[[], object], seen: Deliveries) -> float:
            seen.forget()
            began = time.perf_counter()
            reset()
            seen.until(wanted)
            seconds = time.perf_counter() - began
            assert seen.first == wanted, "the first record of each partition is the right one"
            seen.until(ends)
            return seconds

        def online() -> float:
            # The members process nothing any more, and the last reset is done.
            region.until(region.consumed, "all consumed")
            region.until_running()
            request = ResetRequest(target=ToOffset(offset=Offset(target)))
            return measured(lambda: ours.resets.apply(ours.resets.plan(request), "to measure"), delivered)

        def by_command() -> float:
            region.until(region.consumed, "all consumed")
            region.until_running()
            return measured(lambda: commands(region, target, tmp_path), delivered)

        def stopped(bare: Bare) -> float:
            def reset() -> None:
                bare.stop()
                bare.until_empty()
                where = ("--topic", bare.topic, "--to-offset", str(target))
                consumer_groups(
                    bare.kafka.bootstrap_servers, "--group", bare.group, "--reset-offsets", *where, "--execute"
                )
                bare.start()

            return measured(reset, bare.deliveries)

        contenders: dict[str, Turn] = {
            "a region, from Python": online,
            "a region, `kcr reset plan` and `apply`": by_command,
            "consumers with static ids stopped, Kafka's tool, started": lambda: stopped(static),
            "the same without static ids": lambda: stopped(dynamic),
            "the same, and no time to gather": lambda: stopped(hasty),
        }
        seconds = in_turns(contenders, scale.rounds)
    online_reset, _, *peers = seconds.values()
    found.table(
        f"three consumers, {PARTITIONS} partitions, sessions of {SHORT} s: s from the request to the first "
        "right record of every partition",
        ("how", "median", "smallest to largest", "to a region's"),
        [(name, median(one), spread(one), ratio(one, online_reset)) for name, one in seconds.items()],
    )
    for how, peer in zip(("static ids", "dynamic ids", "dynamic ids and no time to gather"), peers, strict=True):
        found.at_least(f"{how}: stopped, Kafka's tool and started, to a reset online", ratio(peer, online_reset), 5)


def test_a_plan_of_a_thousand_partitions(
    kafka: Kafka, durable_store: str, scale: Scale, report: Callable[[str], Report]
) -> None:
    found = report("reset-plan")
    topic, group = kafka.topic(MANY), kafka.group_id("unused")
    spec = SPEC.replace("broker.invalid:9092", kafka.bootstrap_servers).replace("topics: [t]", f"topics: [{topic}]")
    with live_region(durable_store, spec, partitions=MANY) as driver, Region(driver.name, driver.store) as region:
        driver.up()

        def planned(target: Target) -> float:
            began = time.perf_counter()
            assert region.resets.plan(ResetRequest(target=target)).totals.partitions == MANY
            return time.perf_counter() - began

        def dry_run() -> float:
            began = time.perf_counter()
            told = ("--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--dry-run")
            assert consumer_groups(kafka.bootstrap_servers, *told).count(topic) == MANY
            return time.perf_counter() - began

        contenders: dict[str, Turn] = {
            "a plan, to the earliest offsets": lambda: planned(ToEarliest()),
            "a plan, to an hour ago": lambda: planned(ByDuration(back=timedelta(hours=1))),
            "Kafka's tool, to the earliest offsets, dry run": dry_run,
        }
        seconds = in_turns(contenders, scale.rounds)
    found.medians(f"a plan for {MANY:,} partitions, the broker's answers included: s", "who", seconds)
    for name in list(seconds)[:2]:
        found.at_most(f"{name}, of {PLANNED_WITHIN:g} s", median(seconds[name]) / PLANNED_WITHIN, 1)


def commands(region: Live, target: int, folder: Path) -> None:
    """Reset by the command line: a plan, and its application, which does not wait."""
    file, kcr = folder / "plan.json", (sys.executable, "-m", "airflow_kcr", "reset")
    store = ("--store", region.url)
    plan = ("plan", region.name, "--to-offset", str(target), "--save", str(file), *store)
    for command in (plan, ("apply", str(file), "--reason", "to measure", *store)):
        ran = subprocess.run((*kcr, *command), cwd=TOP, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr


def test_all_partitions_flow_after_one_of_three_was_killed(
    kafka: Kafka, durable_store: str, tmp_path: Path, scale: Scale, report: Callable[[str], Report]
) -> None:
    found = report("kill-of-one")
    with (
        members(kafka, durable_store, tmp_path, LONG) as (region, delivered),
        plain(kafka, region.topic, tmp_path, LONG, static=True) as bare,
        steadily(kafka, region.topic, PARTITIONS, STEADY),
    ):
        now = dict(enumerate(region.processes))

        def of_ours(*, again: bool) -> float:
            def fault() -> None:
                now[0].kill()
                if again:
                    now[0] = region.start(0, takeover=True)

            seconds = _until_flowing(kafka, region.topic, delivered, fault)
            if not again:
                now[0] = region.start(0, takeover=True)
            region.shared(0, 1, 2)
            region.until_running()
            return seconds

        def of_theirs(*, again: bool) -> float:
            def fault() -> None:
                bare.kill(0)
                if again:
                    bare.start(0)

            seconds = _until_flowing(kafka, region.topic, bare.deliveries, fault)
            if not again:
                bare.start(0)
            _flowing(kafka, region.topic, bare.deliveries)
            return seconds

        contenders: dict[str, Turn] = {
            "a region, killed": lambda: of_ours(again=False),
            "consumers, killed": lambda: of_theirs(again=False),
            "a region, killed and started again at once": lambda: of_ours(again=True),
            "consumers, killed and started again at once": lambda: of_theirs(again=True),
        }
        for seen in (delivered, bare.deliveries):
            _flowing(kafka, region.topic, seen)
        seconds = in_turns(contenders, scale.rounds, warm_up=0)
    found.medians(
        f"three consumers with static ids, {PARTITIONS} partitions, sessions of {LONG} s: s from the kill "
        "-9 of one to a newer record of every partition",
        "who",
        seconds,
    )
    ours, theirs, *_ = seconds.values()
    found.at_most("a region less 1 s, to consumers", (median(ours) - 1) / median(theirs), 1.2)


def _flowing(kafka: Kafka, topic: str, seen: Deliveries) -> None:
    """Wait until every partition has delivered a record that was produced from now on."""
    seen.forget()
    seen.until(kafka.ends(topic))


def _until_flowing(kafka: Kafka, topic: str, seen: Deliveries, fault: Callable[[], object]) -> float:
    """Let a fault happen while everything flows; return the seconds until everything flows again."""
    _flowing(kafka, topic, seen)
    began = time.perf_counter()
    fault()
    _flowing(kafka, topic, seen)
    return time.perf_counter() - began
