"""Members of a group whose partitions the broker deals out (`protocol: consumer`): they come, die, return and leave.

Real broker, real store, members in processes of their own with an engine without Spark. Judged as every other fault of
members: nothing missing, nothing accepted twice, and nothing written again but what the ledger accounts for.
"""

from __future__ import annotations

import pytest

from airflow_kcr.api.group_readers import real_reader
from airflow_kcr.api.validation import validate
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.validation import Question
from tests.integration.members.conftest import Lend
from tests.support import faults
from tests.support.faults import Note, finished
from tests.support.members import BRISK, Live

pytestmark = pytest.mark.timeout(240)

OFTEN = f"checkpoint: {{every: 3s, grace: 500ms}}\n{BRISK}"
STATIC, DYNAMIC = ", protocol: consumer", ", protocol: consumer, static_membership: false"
both_kinds = pytest.mark.parametrize("group", [STATIC, DYNAMIC], ids=["static", "dynamic"])


def settled(region: Live, record_property: Note) -> None:
    """Wait until everything is processed and a checkpoint holds it, and judge."""
    finished(region, 120)
    faults.judged(region, record_property)
    ends = region.kafka.ends(region.topic)
    assert region.kafka.committed(region.group) == {(region.topic, n): end for n, end in ends.items()}
    assert region.kafka.group(region.group).type.name == "CONSUMER"


def resets(region: Live, after: int) -> list[str]:
    """Why resets began after an event."""
    return [str(event.body.cause) for event in region.events(after) if isinstance(event.body, events.ResetBegun)]


@both_kinds
def test_two_members_share_the_work_and_everything_is_processed_once(
    lend: Lend, record_property: Note, group: str
) -> None:
    with lend(members=2, partitions=4, spec=OFTEN, group=group) as region:
        for index in (0, 1):
            region.start(index)
        region.shared(0, 1)
        region.fill(200)
        settled(region, record_property)
        assert region.account().repeated == 0
        found = {check.question: check for check in validate(region.store, region.name, real_reader).checks}
        assert found[Question.PROTOCOL].detail.startswith("consumer, assignor uniform")
        assert (found[Question.TIMES].verdict, found[Question.FOREIGN_CONSUMERS].verdict) == (CheckVerdict.OK,) * 2


@pytest.mark.long
@both_kinds
def test_a_member_that_is_killed_returns_and_nothing_is_lost(lend: Lend, record_property: Note, group: str) -> None:
    with lend(members=2, partitions=4, spec=OFTEN, group=group) as region:
        victim, _ = [region.start(index) for index in (0, 1)]
        region.shared(0, 1)
        region.fill(100)
        finished(region)
        victim.gate("processing")
        region.fill(100)
        region.until(lambda: victim.reached("processing"), "in a batch")
        victim.kill()
        region.start(0)
        region.fill(100)
        settled(region, record_property)
        # Kafka keeps the place of the one that was killed until its session is over.
        region.shared(0, 1)


@pytest.mark.long
def test_partitions_that_are_added_are_read_and_the_others_stay_where_they_are(
    lend: Lend, record_property: Note
) -> None:
    with lend(members=2, partitions=4, spec=OFTEN, group=STATIC) as region:
        for index in (0, 1):
            region.start(index)
        region.shared(0, 1)
        region.fill(100)
        finished(region)
        before, counter = region.owners(), region.region().counter
        region.kafka.add_partitions(region.topic, 6)
        region.fill(100)
        region.until(lambda: len(region.owners()) == 6, "the new ones", 60)
        settled(region, record_property)
        assert {n: owner for n, owner in region.owners().items() if n in before} == before
        assert resets(region, counter) == []
