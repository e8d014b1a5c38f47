"""What it costs a store that members only hold their leases: a thousand regions of ten members, by processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from statistics import median
from time import perf_counter

import pytest

from airflow_kcr.api.regions import store_url
from airflow_kcr.ports import Renewal
from airflow_kcr.protocol.region.commands import DeclareRegion, Heartbeat, Renew
from airflow_kcr.protocol.region.rows import Lease, Member
from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import GroupId, Incarnation, MemberId, RegionName
from airflow_kcr.store.regions import RegionStore
from tests.benchmarks.figures import Report, Scale, ratio, spread
from tests.support.driver import group_rules
from tests.support.plans import statements

pytestmark = [pytest.mark.benchmark, pytest.mark.postgres, pytest.mark.timeout(1800)]

REGIONS = 1_000
MEMBERS = 10
PER_PROCESS = (1, 10, 100)
"""Members of one process: each alone, those of one region, those of ten."""

INTERVAL = 2.0
"""Seconds between two renewals, as `timeouts.renew` has it."""

LEASE = timedelta(hours=1)


def test_members_that_only_hold_their_leases(durable_store: str, scale: Scale, report: Callable[[str], Report]) -> None:
    found = report("renewals")
    with regions(durable_store, scale.of(REGIONS, 10)) as (store, asked):
        sent: dict[int, int] = {}
        taken: dict[int, list[float]] = {each: [] for each in PER_PROCESS}
        for _ in range(scale.rounds):
            for each in PER_PROCESS:
                sent[each], seconds = renewed(store, asked, each)
                taken[each].append(seconds)
    found.table(
        f"{len(asked):,} members of {len(asked) // MEMBERS:,} regions renew their leases, COMMITs on the disk, one "
        f"after the other: statements a second with an interval of {INTERVAL:g} s, and s for one renewal of all",
        ("members in a process", "processes", "statements/s", "s for all", "smallest to largest"),
        [
            (each, len(asked) // each, sent[each] / INTERVAL, median(taken[each]), spread(taken[each]))
            for each in PER_PROCESS
        ],
    )
    for each in PER_PROCESS[1:]:
        found.at_most(f"statements with {each} members in a process, to one each", sent[each] / sent[1], 1 / each)
        found.at_most(f"time with {each} members in a process, to one each", ratio(taken[each], taken[1]), 0.5)


def renewed(store: RegionStore, asked: Sequence[Renewal], each: int) -> tuple[int, float]:
    """Renew all leases, N members at a time; return how many statements and how many seconds that took."""
    with statements() as run:
        began = perf_counter()
        for some in (asked[at : at + each] for at in range(0, len(asked), each)):
            heartbeats = store.renew(some).values()
            assert len(heartbeats) == len(some)
            assert all(isinstance(heartbeat, Heartbeat) and heartbeat.renewed for heartbeat in heartbeats)
        return len(run), perf_counter() - began


@contextmanager
def regions(url: str, number: int) -> Iterator[tuple[RegionStore, list[Renewal]]]:
    """Lend a store with N regions, and the renewals of their members; the regions are deleted at the end."""
    rules = {
        RegionName(f"renewals-{n}"): RegionRules(
            groups={GroupId(f"renewals-{n}"): group_rules(f"renewals-{n}", members=MEMBERS)}
        )
        for n in range(number)
    }
    with RegionStore.connect(store_url(url), lambda text: rules[RegionName(text)]) as store:
        asked = list[Renewal]()
        for name, own in rules.items():
            members = [MemberId(GroupId(name), index) for index in range(MEMBERS)]
            store.handle(name, DeclareRegion(spec=Spec(text=name, rules=own)))
            store.decide(name, partial(_with_leases, members))
            asked += [
                Renewal(region=name, command=Renew(member=m, incarnation=Incarnation(1), lease=LEASE)) for m in members
            ]
        try:
            yield store, asked
        finally:
            for name in rules:
                store.delete(name, lambda region, now: None)


def _with_leases(members: Sequence[MemberId], region: Region, now: datetime) -> tuple[Region, None]:
    lease = Lease(incarnation=Incarnation(1), until=now + LEASE)
    rows = {member: Member(member=member, incarnation=Incarnation(1), token=f"t-{member}") for member in members}
    return replace(region, members=rows, leases=dict.fromkeys(members, lease)), None
