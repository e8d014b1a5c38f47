"""A table of mode `upsert`, written by Spark: a reset behind it needs consent, and its replay makes it right again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.errors import UpsertNeedsConsent
from airflow_kcr.protocol.targets import ToCheckpoint
from tests.support.databases import execute
from tests.support.delivery_servers import Servers
from tests.support.faults import checkpoints, finished
from tests.support.kafka import Kafka
from tests.support.members import Lend, Live
from tests.support.spark_latest_pipeline import KEYS

WITHIN = 240.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.postgres]


def rows(url: str, table: str) -> dict[str, int]:
    """The newest offset of each key, as the table has it."""
    return dict(execute(url, f"SELECT name, newest FROM {table}"))


def newest(one: Live) -> dict[str, int]:
    """The newest offset of each key, as the topic has it."""
    ends = one.kafka.ends(one.topic).items()
    return {f"{number}-{offset % KEYS}": offset for number, end in ends for offset in range(end)}


def test_a_reset_behind_an_upserted_table_needs_consent_and_its_replay_makes_it_right(
    lend_on_spark: Lend, kafka: Kafka, servers: Servers
) -> None:
    sink = f"{{kind: postgres, url: '{servers.target.url()}', table: latest, mode: upsert, key: [name]}}"
    with lend_on_spark(
        url=servers.store.url(),
        group=f", delivery: exactly_once, sinks: {{out: {sink}}}",
        name=kafka.group_id("g"),
        pipeline="tests.support.spark_latest_pipeline:process",
    ) as one:
        one.start(0)
        for _ in range(3):
            one.fill(30)
            finished(one, WITHIN)
        assert rows(servers.target.url(), "latest") == newest(one)

        with Region(one.name, one.store) as region:
            plan = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=checkpoints(one)[0].sequence)))
            before = region.show()
            with pytest.raises(UpsertNeedsConsent, match="out"):
                region.resets.apply(plan, "without consent")
            assert region.show().epoch == before.epoch, "nothing was changed"
            region.resets.apply(plan, "with consent", consent_upsert=True)
            region.resets.wait_for(plan.plan, timedelta(seconds=WITHIN))
        one.fill(30)
        finished(one, WITHIN)

        assert rows(servers.target.url(), "latest") == newest(one)
        with Region(one.name, one.store) as region:
            assert not region.verify().violations
