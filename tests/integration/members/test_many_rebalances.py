"""Members that come, leave and die one after the other, while records come all the time: counted.

Real broker, real store, members in processes of their own with an engine without Spark; both of Kafka's protocols.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.integration.members.conftest import Lend, in_both_protocols
from tests.support.faults import Note, finished, judged, resets
from tests.support.load import steadily
from tests.support.members import BRISK, Live, Process

DYNAMIC = ", static_membership: false"
OFTEN = f"checkpoint: {{every: 3s, grace: 500ms}}\n{BRISK}"
PARTITIONS = 6
KILLS_ONE_OF = 3
"""Of as many members that go, the last one is killed in a batch; the others end in good order."""


def in_a_batch(region: Live, process: Process) -> None:
    """Wait until a process has started a batch, which then goes no further."""
    process.gate("processing")
    region.until(lambda: process.reached("processing"), "in a batch")


@in_both_protocols
@pytest.mark.parametrize(
    "rebalances",
    [
        pytest.param(10, marks=(pytest.mark.long, pytest.mark.timeout(600))),
        pytest.param(100, marks=(pytest.mark.soak, pytest.mark.timeout(7200))),
    ],
)
def test_many_rebalances_under_load_lose_nothing_and_the_ledger_knows_of_each_record_written_again(
    lend: Lend, record_property: Note, rebalances: int
) -> None:
    random, gone = Random(rebalances), 0
    with lend(members=3, partitions=PARTITIONS, spec=OFTEN, group=DYNAMIC) as region:
        there = {0: region.start(0)}
        region.shared(*there)
        before = len(resets(region))
        with steadily(region.kafka, region.topic, PARTITIONS, 0.02):
            for _ in range(rebalances):
                index = random.choice((1, 2))
                if index not in there:
                    there[index] = region.start(index)
                else:
                    gone += 1
                    leaver = there.pop(index)
                    if gone % KILLS_ONE_OF:
                        leaver.terminate()
                        assert leaver.wait(60) == 0
                    else:
                        in_a_batch(region, leaver)
                        leaver.kill()
                # Each is over before the next one: all partitions are claimed, by those who are there.
                region.until(
                    lambda: set(region.owners().values()) == there.keys() and len(region.owners()) == PARTITIONS,
                    f"shared by {sorted(there)}",
                    120,
                )
        finished(region, 120)
        record_property("kills", gone // KILLS_ONE_OF)
        record_property("resets", len(resets(region)) - before)
        judged(region, record_property)
