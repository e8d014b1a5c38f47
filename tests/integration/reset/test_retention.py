"""A reset to a checkpoint that retention overtakes: warned of before, refused then, and what is left of it.

Real broker, real store, members in a process of their own.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import CheckpointNotUsable
from airflow_kcr.protocol.targets import ToCheckpoint
from tests.support.faults import checkpoints, up
from tests.support.members import Lend

WITHIN = timedelta(seconds=60)


@pytest.mark.long
def test_it_is_warned_of_then_refused_and_its_csv_goes_to_what_is_left(lend: Lend) -> None:
    with (
        lend(members=2, partitions=2) as one,
        Region(one.name, one.store) as region,
    ):
        up(one, (0, 1), each=100)
        target = ResetRequest(target=ToCheckpoint(sequence=checkpoints(one)[-1].sequence))
        one.fill(100)
        one.until(one.consumed, "all records")
        one.kafka.delete_records(one.topic, {0: 60})

        def is_warned_of() -> bool:
            # What a part of a checkpoint tells of its log may have been read a moment before.
            one.checkpoint()
            return region.resets.plan(target).overtaken_at is not None

        warned_in_time = happened(is_warned_of, within=60)
        parts = one.region().contributions
        seen = [
            (key[0], part.contributed_at, {str(p): b.start for p, b in part.bounds.items()})
            for key, part in parts.items()
        ]
        assert warned_in_time, f"log starts as the checkpoints have them: {seen}"
        warned = region.resets.plan(target)
        assert warned.totals.unreachable == 0
        assert warned.overtaken_at is not None
        assert warned.overtaken_at > datetime.now(UTC) - timedelta(hours=1)

        one.kafka.delete_records(one.topic, {0: 130})
        before = region.counter()
        with pytest.raises(CheckpointNotUsable, match=r"-0 would resume at 100, its log has 130 to 200.*--from-file"):
            region.resets.apply(warned, "as it was shown")
        assert region.counter() == before

        lost = region.resets.plan(target)
        assert [line.unreachable for line in lost.entries] == [True, False]
        left = region.resets.plan(region.resets.request("from-file", lost.to_csv()))
        assert [(line.target, line.asked) for line in left.entries] == [(130, 100), (100, None)]
        region.resets.apply(left, "without what is lost")
        assert region.resets.wait_for(left.plan, WITHIN).state == "done"
        one.until(one.consumed, "what is left, again")
        one.checkpoint()
        one.require_sound()
        counted = region.resets.list()[-1].counted
        assert counted is not None
        assert counted.replayed == 70 + 100
