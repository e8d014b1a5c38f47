"""The sink on Postgres and the fenced sink of the simulation, side by side: each step has the same outcome in both."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.values import Epoch, GroupPartition, Offset, Range, Timeline
from tests.support.simulation.sinks import FencedSink
from tests.support.sink_tables import Table

STEPS, PARTITIONS = 60, 3


class Pair:
    """Both sinks, asked the same by processes of any epoch and timeline."""

    def __init__(self, url: str, seed: int) -> None:
        self.random, self.model, self.url = random.Random(seed), FencedSink(), url
        self.newest = (1, 1)
        self.table = Table(url=url)
        self.told: list[str] = []

    def partition(self, number: int) -> GroupPartition:
        return self.table.partition(number)

    def begin(self) -> None:
        """The first reset, which the model does not need."""
        self.reset(*self.newest, dict.fromkeys(range(PARTITIONS), 0))

    def reset(self, epoch: int, timeline: int, resume: dict[int, int]) -> None:
        """Reset both, as the simulation's members do."""
        newest = max((n for n, _ in self.model.progress.values()), default=Timeline(timeline))
        ahead = not self.model.raise_fence(Epoch(epoch)) or newest > timeline
        if not ahead:
            for number, offset in resume.items():
                self.model.roll_back(self.partition(number), Timeline(timeline), Offset(offset))
        self.table.epoch, self.table.timeline = epoch, timeline
        refused = False
        try:
            self.table.reset(resume)
        except SinkError:
            refused = True
        self.same(f"reset {epoch}/{timeline} {resume}", ahead, refused)

    def publish(self, epoch: int, timeline: int, ranges: dict[int, tuple[int, int]]) -> None:
        """Publish a batch to both."""
        whole = {self.partition(p): Range(Offset(a), Offset(b)) for p, (a, b) in ranges.items()}
        accepted = self.model.publish(
            Epoch(epoch), Timeline(timeline), whole, OffsetMap({p: r.to for p, r in whole.items()})
        )
        self.table.epoch, self.table.timeline = epoch, timeline
        refused = False
        try:
            self.table.run(ranges)
        except SinkError:
            refused = True
        self.same(f"publish {epoch}/{timeline} {ranges}", not accepted, refused)

    def same(self, what: str, expected: bool, refused: bool) -> None:
        """Compare what came of a step, and what both hold."""
        self.told.append(f"{what}: {'refused' if refused else 'done'}")
        assert refused == expected, self.told
        progress = {p.partition: (int(n), int(o)) for p, (n, o) in self.model.progress.items()}
        assert self.table.progress() == progress, self.told
        rows = Counter({(p.partition, offset): n for (p, offset), n in self.model.rows.items()})
        exists = self.table.ask("SELECT to_regclass('out')") != [(None,)]
        assert Counter(self.table.held() if exists else []) == rows, self.told

    def step(self) -> None:
        """Something that may happen: the newest process goes on, or an older one, or a reset begins."""
        pick = self.random
        epoch, timeline = self.newest
        if pick.random() < 0.25:
            forward = pick.random() < 0.5
            self.newest = epoch + 1, timeline + forward
            upto = {p: int(self.model.progress[self.partition(p)][1]) for p in range(PARTITIONS)}
            self.reset(*self.newest, {p: pick.randint(0, end) if forward else end for p, end in upto.items()})
            return
        if pick.random() < 0.25:
            epoch = max(1, epoch - pick.randint(0, 2))
            timeline = max(1, timeline - pick.randint(0, 1))
        ranges = {}
        for number in pick.sample(range(PARTITIONS), pick.randint(1, PARTITIONS)):
            begin = int(self.model.progress[self.partition(number)][1])
            if pick.random() < 0.15:
                begin = max(0, begin + pick.randint(-3, 3))
            ranges[number] = (begin, begin + pick.randint(1, 4))
        if pick.random() < 0.1:
            self.reset(epoch, timeline, {p: begin for p, (begin, _) in ranges.items()})
        else:
            self.publish(epoch, timeline, ranges)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))])
def test_both_take_and_refuse_the_same(empty_database_url: str, seed: int) -> None:
    pair = Pair(empty_database_url, seed)
    pair.begin()
    for _ in range(STEPS):
        pair.step()
    outcomes = Counter(line.rpartition(": ")[2] for line in pair.told)
    assert min(outcomes["done"], outcomes["refused"]) > 5, outcomes
