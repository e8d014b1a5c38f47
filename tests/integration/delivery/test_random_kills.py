"""A million records, thirty kills: nothing is lost and nothing is double, and the ledger explains the rest.

Real broker, real store, real table; members in processes of their own with an engine without Spark.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from random import Random

import pytest

from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.rules import Delivery
from tests.conftest import StartKafka
from tests.support.delivery_accounts import delivered, rows_of
from tests.support.delivery_faults import Row
from tests.support.delivery_servers import Servers, killing, noted
from tests.support.faults import Note, finished, resets
from tests.support.members import live
from tests.support.random_kills import Orchestra, Production, drawn, perform

RECORDS = int(os.environ.get("KCR_SOAK_RECORDS", "1050000"))
RATE = 4_000
MEMBERS, PARTITIONS = 3, 6
SEED = int(os.environ.get("KCR_SOAK_SEED", "20240517"))
SPEC = """\
batch: {target: 500ms, min_records: 50, max_records: 20000, timeout: 12s}
timeouts: {lease: 4s, renew: 1s, session: 7s, relaunch: 4s, reset: 20s, drain: 15s, commit: 6s, close: 4s}
checkpoint: {every: 5s, grace: 500ms}
"""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600), pytest.mark.postgres]


@pytest.mark.parametrize("delivery", [Delivery.EXACTLY_ONCE, Delivery.AT_LEAST_ONCE])
def test_thirty_random_kills_in_a_million_records(
    kafka_set: StartKafka, servers: Servers, tmp_path: Path, record_property: Note, delivery: Delivery
) -> None:
    kafka, random = kafka_set(1), Random(SEED)
    record_property("seed", SEED)
    name = kafka.group_id("g")
    table = f"out_{name.replace('-', '_')}"
    group = f", delivery: {delivery}, sinks: {{out: {{kind: postgres, url: '{servers.target.url()}', table: {table}}}}}"
    with live(
        kafka,
        servers.store.url(),
        tmp_path,
        members=MEMBERS,
        partitions=PARTITIONS,
        spec=SPEC,
        group=group,
        name=name,
    ) as one:
        services = {fault: killing(fault, servers, kafka) for fault in ("store", "target", "broker")}
        orchestra = Orchestra(
            one=one, random=random, servers={fault: kill for fault, kill in services.items() if kill is not None}
        )
        for index in range(MEMBERS):
            orchestra.start(index)
        one.shared(*range(MEMBERS), within=120)
        production = Production(kafka, one.topic, PARTITIONS, RECORDS, RATE)
        perform(orchestra, production, drawn(random, RECORDS))
        assert not production.failures
        one.until(lambda: orchestra.processed() >= sum(kafka.ends(one.topic).values()), "processed", 600)
        finished(one, 600)
        ends = kafka.ends(one.topic)
        wanted = {(one.topic, n, o) for n, end in ends.items() for o in range(end)}
        assert len(wanted) >= RECORDS
        rows = rows_of(servers.target.url(), table)
        gc.disable()  # it would look again and again through millions of tuples that all stay
        try:
            found = delivered(delivery, one.store.history(one.name), one.written(), rows, wanted)
        finally:
            gc.enable()
        counted = {
            "records": len(wanted),
            "rows": len(rows),
            "batches": sum(1 for _ in one.store.batches(one.name)),
            "ended by themselves": orchestra.ended,
            "resets": dict(Counter(str(body.cause) for body in resets(one))),
            "person": sum(body.cause is ResetCause.PERSON for body in resets(one)),
            **asdict(found),
        }
        record_property("counted", counted)
        noted(
            [Row(delivery=str(delivery), fault=str(dict(orchestra.done)), step=str(counted), found=found)],
            record_property,
        )
