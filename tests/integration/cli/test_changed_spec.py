"""A spec that changes while its members live: some of it is followed at once, the rest by members built anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from airflow_kcr import goals
from airflow_kcr.api import Region
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import SpecRefused, StoreBusy
from airflow_kcr.spec import parse
from tests.support.kafka import Kafka
from tests.unit.metrics.test_exporter import free_port, taken

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PIPELINE = """
from pathlib import Path

def _note(batch, context, name):
    with Path({output!r}).open("a") as out:
        out.write(f"{{name}} {{batch.count()}}\\n")

def first(batch, context):
    _note(batch, context, "first")

def second(batch, context):
    _note(batch, context, "second")
"""


def counts(output: Path) -> list[tuple[str, int]]:
    """The pipeline of each batch that was processed, and its records."""
    lines = output.read_text().splitlines() if output.exists() else []
    return [(pipeline, int(count)) for pipeline, count in (line.split() for line in lines)]


def processed(folder: Path, upto: int, within: float = 240) -> None:
    """Wait until so many records are processed."""
    done = happened(lambda: sum(count for _, count in counts(folder / "output.txt")) == upto, within=within)
    assert done, (folder / "member.log").read_text()[-6000:]


def spec_text(region: str, topic: str, servers: str, pipeline: str, more: str = "") -> str:
    return f"""
region: {region}
kafka: {{bootstrap.servers: '{servers}'}}
groups:
  - {{group_id: {region}, topics: [{topic}], members: 1, pipeline: '{pipeline}'}}
{more}
"""


@contextmanager
def hosted(
    region: str, url: str, folder: Path, jars: tuple[Path, ...], *more: str
) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "member.log").open("wb") as out:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "airflow_kcr", "member", "run", region),
                *("--group", region, "--index", "0", "--master", "local[1]"),
                *("--jars", ",".join(map(str, jars)), "--conf", "spark.driver.host=127.0.0.1"),
                *more,
            ],
            env={**os.environ, "KCR_STORE_URL": url, "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def test_members_follow_a_changed_spec_and_are_built_anew_where_they_have_to_be(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    name, output, log = kafka.group_id("changed"), tmp_path / "output.txt", tmp_path / "member.log"
    topic = kafka.topic(1)
    port = free_port()
    (tmp_path / "pipes.py").write_text(PIPELINE.format(output=str(output)))
    first, second = (f"{tmp_path}/pipes.py:{pipeline}" for pipeline in ("first", "second"))

    with (
        Region(name, database_url) as region,
        hosted_region(region, spec_text(name, topic, kafka.bootstrap_servers, first)),
        hosted(name, database_url, tmp_path, connector_jars, "--metrics-port", str(port)) as process,
    ):
        kafka.fill(topic, {0: 100})
        processed(tmp_path, 100)
        assert happened(lambda: counted(port, name) == 100, within=30)
        smaller = spec_text(name, topic, kafka.bootstrap_servers, first, "batch: {min_records: 10, max_records: 10}")
        applied(region, smaller)
        assert happened(lambda: "its spec has changed, the members follow" in log.read_text(), within=30)
        kafka.fill(topic, {0: 50})
        processed(tmp_path, 150, 60)
        assert max(count for _, count in counts(output)[-5:]) == 10
        other = spec_text(name, topic, kafka.bootstrap_servers, second, "batch: {min_records: 10, max_records: 10}")
        applied(region, other)
        region.wait_for_checkpoint(region.drain().request.request_id)
        region.wait_for(goals.SPEC_IN_FORCE)
        kafka.fill(topic, {0: 20})
        processed(tmp_path, 170)
        assert [pipeline for pipeline, _ in counts(output)[-2:]] == ["second", "second"]
        # Built anew, they serve at the same port, and count from then on.
        assert happened(lambda: counted(port, name) == 20, within=30)
        region.stop()
        assert process.wait(60) == 0, log.read_text()[-6000:]
        assert region.verify().violations == ()


def test_a_group_changes_its_rebalance_protocol_while_its_region_runs_and_back(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    name, output, log = kafka.group_id("converted"), tmp_path / "output.txt", tmp_path / "member.log"
    topic = kafka.topic(2)
    (tmp_path / "pipes.py").write_text(PIPELINE.format(output=str(output)))
    classic = spec_text(name, topic, kafka.bootstrap_servers, f"{tmp_path}/pipes.py:first")
    broker = classic.replace("members: 1", "members: 1, protocol: consumer")

    with (
        Region(name, database_url) as region,
        hosted_region(region, classic),
        taken() as port,
        hosted(name, database_url, tmp_path, connector_jars, "--metrics-port", str(port)) as process,
    ):
        kafka.fill(topic, {0: 50, 1: 50})
        processed(tmp_path, 100)
        for upto, (text, kind) in zip((140, 180), ((broker, "CONSUMER"), (classic, "CLASSIC")), strict=True):
            applied(region, text)
            region.wait_for_checkpoint(region.drain().request.request_id)
            kafka.fill(topic, {0: 20, 1: 20})
            processed(tmp_path, upto, 180)
            assert kafka.group(name).type.name == kind
        region.stop()
        assert process.wait(60) == 0, log.read_text()[-6000:]
        assert region.verify().violations == ()
        assert {reset.counted and reset.counted.rewound for reset in region.resets.list()} == {0}
        assert sum(count for _, count in counts(output)) == 180
        # Each time that they were built, in one line.
        assert log.read_text().count("no metrics by this way, the members go on") == 3


def counted(port: int, region: str) -> float | None:
    """The offsets of accepted batches that the members of a process serve; None: it doesn't serve now."""
    try:
        with urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(s.value for s in samples if s.name == "kcr_batch_records_total" and s.labels["region"] == region)


BROKEN = """
raise ImportError("a library that is nowhere")
"""


def test_a_spec_that_members_can_not_start_with_is_named_and_the_next_one_corrects_it(
    kafka: Kafka, database_url: str, tmp_path: Path, connector_jars: tuple[Path, ...]
) -> None:
    name, output, log = kafka.group_id("refused"), tmp_path / "output.txt", tmp_path / "member.log"
    topic = kafka.topic(1)
    (tmp_path / "pipes.py").write_text(PIPELINE.format(output=str(output)))
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pipes.py").write_text(PIPELINE.format(output=str(output)))
    good = spec_text(name, topic, kafka.bootstrap_servers, f"{tmp_path}/pipes.py:first")
    sink = f"{{kind: postgres, table: kcr_nowhere.rows, url: '{database_url.replace('+psycopg', '')}'}}"
    refusals = {
        "a library that is nowhere": spec_text(name, topic, kafka.bootstrap_servers, f"{tmp_path}/broken.py:first"),
        "another module named 'pipes'": spec_text(
            name, topic, kafka.bootstrap_servers, f"{tmp_path}/other/pipes.py:first"
        ),
        "it names a socket of this machine": good.replace(":first'}", f":first', sinks: {{rows: {sink}}}}}"),
    }

    with Region(name, database_url) as region, hosted_region(region, good):
        for turn, (why, text) in enumerate(refusals.items(), start=1):
            with hosted(name, database_url, tmp_path, connector_jars) as process:
                kafka.fill(topic, {0: 100})
                processed(tmp_path, 100 * turn)
                applied(region, text)
                region.drain()  # to a checkpoint that brings the spec in force, and that the next members publish
                assert process.wait(120) == 2, log.read_text()[-6000:]
            with pytest.raises(SpecRefused, match=why):
                region.wait_for(goals.SPEC_IN_FORCE)
            note = region.show().note
            assert f"{name}[0] could not start with revision" in note
            assert why in note
            assert "apply a corrected spec, which counts at once, as no member lives, and start the member" in note
            # What that names helps, whatever was tried before.
            for vain in (region.resume, region.pause, region.resume):
                vain()
            applied(region, good)
        with hosted(name, database_url, tmp_path, connector_jars) as process:
            kafka.fill(topic, {0: 10})
            processed(tmp_path, 310)
            region.wait_for(goals.RUNNING)
            assert "could not start" not in region.show().note
            region.stop()
            assert process.wait(60) == 0, log.read_text()[-6000:]
            assert region.verify().violations == ()


def applied(region: Region, text: str) -> None:
    """Apply a spec; where this process was kept from going on within its transaction, ask again, as the error says."""

    def is_done() -> bool:
        with suppress(StoreBusy):
            region.apply(parse(text))
            return True
        return False

    assert happened(is_done, within=120)


@contextmanager
def hosted_region(region: Region, text: str) -> Iterator[None]:
    """Declare a region; whatever happens, nothing of it goes on."""
    applied(region, text)
    try:
        yield
    finally:
        if region.show().state != "stopped":
            region.kill()
