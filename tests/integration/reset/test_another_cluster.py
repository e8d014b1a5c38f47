"""The page that moves a region to another cluster: two clusters, and a MirrorMaker between them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from airflow_kcr.api.regions import connect, store_url
from airflow_kcr.embedded.processes import Program, happened, last_lines
from airflow_kcr.embedded.servers import java_command
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.spec import parse
from tests.conftest import StartKafka
from tests.support.jar_sets import MIRROR_MAKER
from tests.support.kafka import KafkaSet, Record
from tests.support.kafka_tool import consumer_groups
from tests.support.members import QUICK, Live, named
from tests.support.tied import start_tied
from tests.support.typed_page import Page

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

WITHIN = 120.0
LOST = 20
"""Records of each partition that are deleted before the mirror sees them: the offsets of the two clusters differ."""

OF_ONE_BROKER = """
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
refresh.groups.interval.seconds = 1
"""
"""After the page's settings: what clusters of one broker need, and shorter intervals."""


def produce(kafka: KafkaSet, numbers: range) -> None:
    kafka.produce("orders", [Record(value=f"{p}:{n}".encode(), partition=p) for p in (0, 1) for n in numbers])


def test_a_region_goes_on_at_offsets_that_mirror_maker_has_translated(
    database_url: str, kafka_set: StartKafka, tmp_path: Path
) -> None:
    old, new = kafka_set(1), kafka_set(1)
    old.topic(2, name="orders")
    produce(old, range(LOST))
    old.delete_records("orders", {0: LOST, 1: LOST})
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "KCR_STORE_URL": database_url,
    }
    addresses = {"old.example:9092": old.bootstrap_servers, "new.example:9092": new.bootstrap_servers}
    page = Page("move-to-another-cluster.md", tmp_path, environ, addresses)
    (tmp_path / "mirror.properties").write_text(page.block("properties") + OF_ONE_BROKER)
    (tmp_path / "orders-new.yaml").write_text(page.block("yaml") + QUICK)
    spec = parse(
        (tmp_path / "orders-new.yaml")
        .read_text()
        .replace("region: orders-new", "region: orders")
        .replace(new.bootstrap_servers, old.bootstrap_servers)
    )

    log = tmp_path / "mirror.log"
    with named(old, database_url, spec, tmp_path / "old") as region:
        process = region.start(0)
        command = java_command(
            MIRROR_MAKER,
            "-Xmx256m",
            "org.apache.kafka.connect.mirror.MirrorMaker",
            str(tmp_path / "mirror.properties"),
        )
        mirror = start_tied(Program(name="MirrorMaker", command=command, log=log, env=environ))
        try:
            assert happened(lambda: new.partitions("orders") == 2, within=WITHIN), last_lines(log.read_text())
            produce(old, range(LOST, 120))
            region.until(region.consumed, "all records of the old cluster")
            page.type("kcr region stop")
            process.wait(60)
            stopped_at = old.committed("orders-etl", "orders")
            assert stopped_at == {("orders", 0): 120, ("orders", 1): 120}
            # These are for the region of the new cluster.
            produce(old, range(120, 150))
            assert happened(lambda: new.ends("orders") == {0: 130, 1: 130}, within=WITHIN), last_lines(
                (tmp_path / "mirror.log").read_text()
            )
            assert happened(
                lambda: (
                    all(o > 90 for o in new.committed("orders-etl", "orders").values())
                    and len(new.committed("orders-etl", "orders")) == 2
                ),
                within=WITHIN,
            ), new.committed("orders-etl", "orders")
        finally:
            mirror.stop()
        before = Counter(row.value for row in region.written())
    assert set(before) == {f"{p}:{n}" for p in (0, 1) for n in range(LOST, 120)}

    translated = new.committed("orders-etl", "orders")
    export = ("--reset-offsets", "--all-topics", "--to-current", "--dry-run", "--export")
    exported = consumer_groups(new.bootstrap_servers, "--group", "orders-etl", *export)
    (tmp_path / "offsets.csv").write_text(exported)
    page.type("kcr region apply")
    page.type("kcr reset plan")
    page.type("kcr reset apply")
    page.type("kcr region start")
    moved = Live(
        kafka=new,
        store=connect(store_url(database_url)),
        url=database_url,
        name=RegionName("orders-new"),
        group="orders-etl",
        topic="orders",
        folder=tmp_path / "new",
    )
    with moved.ended():
        moved.start(0)
        moved.until(moved.consumed, "all records of the new cluster")
        moved.checkpoint()
        after = Counter(row.value for row in moved.written())
        # Nothing is left out, and what is processed twice lies between the translated offsets and the exact ones.
        exact = {place: offset - LOST for place, offset in stopped_at.items()}
        repeated = {f"{p}:{o + LOST}" for (_, p), at in exact.items() for o in range(translated["orders", p], at)}
        assert all(translated[place] <= offset for place, offset in exact.items())
        assert after == Counter({f"{p}:{n}" for p in (0, 1) for n in range(120, 150)} | repeated)
        moved.require_sound({("orders", p, o) for (_, p), at in translated.items() for o in range(at, 130)})
