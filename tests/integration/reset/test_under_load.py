"""Resets to random targets while records are produced: at the end nothing tells that there were any.

Real broker, real store, three members in processes of their own with an engine without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from airflow_kcr.api import Plan, Region, ResetRequest
from airflow_kcr.errors import RefusedError, StalePlan
from airflow_kcr.protocol import targets
from airflow_kcr.protocol.region.rows import Outcome
from airflow_kcr.protocol.scopes import EVERYTHING, Scope, parse_scope
from airflow_kcr.protocol.values import CheckpointNumber, Offset
from tests.support.faults import Note, checkpoints, finished, judged, stored
from tests.support.load import steadily
from tests.support.members import BRISK, Lend, Live

PARTITIONS = 6
OFTEN = f"checkpoint: {{every: 2s, grace: 500ms}}\n{BRISK}"
WITHIN = timedelta(seconds=60)
DRAWS = 50


@dataclass(slots=True, kw_only=True)
class Resets:
    """Draws resets that go back or stay, so that no record is passed over on purpose, and applies them."""

    one: Live
    region: Region
    random: Random
    began: datetime
    applied: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    """How often what was looked at had changed before it was applied."""

    def next(self) -> None:
        """Apply one reset, and wait until it is done."""
        for _ in range(DRAWS):
            plan = self._drawn()
            if plan is None:
                continue
            try:
                self.region.resets.apply(plan, "to see")
            except StalePlan:
                self.refused += 1
                continue
            view = self.region.resets.wait_for(plan.plan, WITHIN)
            assert view.state == "done"
            self.applied[plan.target.split(" ")[0]] += 1
            return
        raise AssertionError(f"no reset in {DRAWS} draws")

    def _drawn(self) -> Plan | None:
        target, scope = self._target()
        try:
            plan = self.region.resets.plan(ResetRequest(target=target, scope=scope))
        except RefusedError:  # a checkpoint of another branch
            return None
        return None if plan.totals.skip or plan.totals.unreachable else plan

    def _target(self) -> tuple[targets.Target, Scope]:
        draw = self.random
        place = parse_scope([self.one.group], [f"{self.one.topic}:{draw.randrange(PARTITIONS)}"])
        positions = [int(c.position or 0) for c in self.one.region().claims.values()]
        age = datetime.now(UTC) - self.began
        known = [row.sequence for row in checkpoints(self.one)] or [CheckpointNumber(1)]
        choices: list[Callable[[], tuple[targets.Target, Scope]]] = [
            lambda: (targets.ToCheckpoint(sequence=draw.choice(known)), EVERYTHING),
            lambda: (targets.ToCheckpoint(sequence=draw.choice(known)), place),
            lambda: (targets.ShiftBy(by=-draw.randrange(200)), EVERYTHING),
            lambda: (targets.ShiftBy(by=-draw.randrange(200)), place),
            lambda: (targets.ToOffset(offset=Offset(draw.randrange(min(positions) + 1))), EVERYTHING),
            lambda: (targets.ToEarliest(), place),
            lambda: (targets.ToInitial(), place),
            lambda: (targets.ToCurrent(), EVERYTHING),
            lambda: (targets.ToDatetime(instant=self.began + age * draw.random()), EVERYTHING),
            lambda: (targets.ByDuration(back=age * draw.random()), place),
            lambda: (self._file(positions), EVERYTHING),
        ]
        return draw.choice(choices)()

    def _file(self, positions: list[int]) -> targets.Target:
        rows = [(n, self.random.randrange(min(positions) + 1)) for n in range(PARTITIONS)]
        lines = self.random.sample(rows, self.random.randrange(1, PARTITIONS))
        return self.region.resets.request(
            "from-file", "".join(f"{self.one.topic},{n},{offset}\n" for n, offset in lines)
        ).target


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "seed"),
    [
        pytest.param(4, 1, id="4"),
        pytest.param(20, 2, id="20", marks=(pytest.mark.soak, pytest.mark.timeout(900))),
        pytest.param(20, 3, id="20, other", marks=(pytest.mark.soak, pytest.mark.timeout(900))),
    ],
)
def test_resets_under_load_leave_what_a_run_without_any_leaves(
    lend: Lend, record_property: Note, count: int, seed: int
) -> None:
    random = Random(seed)
    with (
        lend(members=3, partitions=PARTITIONS, spec=OFTEN) as one,
        Region(one.name, one.store) as region,
    ):
        began = datetime.now(UTC)
        one.fill(100)
        for index in range(3):
            one.start(index)
        one.shared(0, 1, 2)
        one.checkpoint()
        drawn = Resets(one=one, region=region, random=random, began=began)
        with steadily(one.kafka, one.topic, PARTITIONS, 0.02):
            for _ in range(count):
                drawn.next()
                progress(one, random.randrange(1, 400))
        finished(one)
        record_property("targets", dict(drawn.applied))
        record_property("stale plans", drawn.refused)
        judged(one, record_property)
        # What a run without resets leaves: every record of the logs once, in their order, and Kafka told the ends.
        records = {r.place: r.value for r in stored(one.kafka, one.topic)}
        assert accepted(one) == records
        ends = one.kafka.ends(one.topic)
        assert {p.partition: c.position for p, c in one.region().claims.items()} == ends
        assert one.kafka.committed(one.group) == {(one.topic, n): end for n, end in ends.items()}
        assert sum(r.state == "done" and r.plan != "" for r in region.resets.list()) == count


def progress(one: Live, records: int) -> None:
    """Wait until N more records are in batches that are done."""

    def done() -> int:
        return sum(int(c.position or 0) for c in one.region().claims.values())

    before = done()
    one.until(lambda: done() >= before + records, f"{records} more records")


def accepted(one: Live) -> dict[tuple[str, int, int], str]:
    """What the output holds of the batches that are done and not undone."""
    kept = {
        (str(batch.batch), str(p.topic), p.partition): range(r.from_, min(r.to, batch.undone_from.get(p, r.to)))
        for batch in one.store.batches(one.name)
        if batch.outcome is Outcome.DONE
        for p, r in batch.ranges.items()
    }
    return {
        (row.topic, row.partition, row.offset): row.value
        for row in one.written()
        if row.offset in kept.get((row.batch, row.topic, row.partition), ())
    }
