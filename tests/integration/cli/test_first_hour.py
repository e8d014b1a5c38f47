"""The page that takes a newcomer to a running region: its files and commands as they stand there, up to Airflow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kcr.embedded.processes import happened
from tests.conftest import StartKafka
from tests.support.docs_pages import DOCS

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PAGE = (DOCS / "tutorial" / "your-own-kafka.md").read_text(encoding="utf-8").partition("## Run it from Airflow")[0]
RECORDS = {0: 480, 1: 520, 2: 480, 3: 520}
"""As in what the page shows of the region's lag."""

WITHIN = 300
"""Seconds for Spark's start, its fetching of the connector, and a checkpoint each minute."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = (line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines())
    return [line for line in lines if line.startswith("kcr ")]


def test_the_commands_of_the_page_lead_to_a_running_region(
    empty_database_url: str, kafka_set: StartKafka, tmp_path: Path
) -> None:
    upgrade, doctor, apply, consume, lag, checkpoints, stop = commands()
    kafka = kafka_set(1)
    kafka.fill(kafka.topic(4, name="sales"), RECORDS)
    (pipeline,), (spec,) = blocks("python"), blocks("yaml")
    (tmp_path / "sales_pipeline.py").write_text(pipeline)
    (tmp_path / "sales.yaml").write_text(spec.replace("127.0.0.1:9092", kafka.bootstrap_servers))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "KCR_STORE_URL": empty_database_url}

    def typed(command: str) -> str:
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    typed(upgrade)
    examined = typed(doctor)
    assert re.search(r"sales-etl +topics +ok +1 topic\(s\) with 4 partition\(s\): sales", examined)
    typed(apply)
    with (tmp_path / "members.log").open("w") as told:
        members = subprocess.Popen(
            ["bash", "-c", f"exec {consume}"], cwd=tmp_path, env=environ, stdout=told, stderr=told
        )
    try:
        committed = {("sales", partition): count for partition, count in RECORDS.items()}
        assert happened(lambda: members.poll() is not None or kafka.committed("sales-etl") == committed, within=WITHIN)
        assert members.poll() is None, (tmp_path / "members.log").read_text()[-3000:]
        shown = typed(lag)
        assert all(f"sales-etl[{member}]" in shown for member in (0, 1))
        # Kafka has a checkpoint's offsets before the store is told so.
        assert happened(lambda: any(row.endswith(",yes") for row in typed(checkpoints).splitlines()), within=WITHIN)
        typed(stop)
        assert members.wait(WITHIN) == 0, (tmp_path / "members.log").read_text()[-3000:]
    finally:
        members.kill()
        members.wait()
