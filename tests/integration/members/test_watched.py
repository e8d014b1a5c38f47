"""What docs/how-to/watch-a-region.md sets up: the alert for a member that is frozen fires, and ends.

A real broker, a real store, members in processes of their own, and `kcr export`'s exporter. The rule is judged by a
Prometheus where there is one, else by its expression over each scrape.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from airflow_kcr.metrics.exporter import Exporter, KeptClusters
from airflow_kcr.metrics.outlets import serve
from tests.support.faults import up
from tests.support.members import Lend
from tests.support.promql import FOLDER, alerts, evaluated
from tests.unit.metrics.test_exporter import free_port

pytestmark = pytest.mark.timeout(180)

ALERT = "KcrMemberMissing"


@pytest.mark.long
def test_a_frozen_member_has_an_alert_fire_until_it_is_back(lend: Lend, tmp_path: Path) -> None:
    with lend() as region, KeptClusters() as clusters:
        frozen, _ = up(region, (0,), (1, 2))
        exporter, port = Exporter(region.store, clusters), free_port()
        end = serve(exporter, port)
        try:
            with judge(port, tmp_path) as fires:

                def is_firing() -> bool:
                    exporter.read()
                    return fires()

                assert not is_firing()
                frozen.freeze()
                region.until(is_firing, f"{ALERT} fires")
                frozen.thaw()
                region.until(lambda: not is_firing(), f"{ALERT} ends")
        finally:
            end()


@contextmanager
def judge(port: int, folder: Path) -> Iterator[Callable[[], bool]]:
    """Lend what says whether the alert fires, of the metrics that are served at a port."""
    if shutil.which("prometheus") is None:
        yield lambda: evaluated(alerts()[ALERT], scraped(f"http://localhost:{port}/metrics")) != {}
        return
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))
    for rule in rules["groups"][0]["rules"]:
        rule.pop("for", None)  # a test doesn't wait for minutes
    (folder / "alerts.yaml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [{"job_name": "kcr", "static_configs": [{"targets": [f"localhost:{port}"]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    own = free_port()
    command = [
        *("prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            yield lambda: ALERT in firing(f"http://127.0.0.1:{own}/api/v1/alerts")
        finally:
            server.terminate()


def scraped(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def firing(url: str) -> set[str]:
    """The alerts that a Prometheus has firing; none before it answers."""
    try:
        found = json.loads(scraped(url))["data"]["alerts"]
    except (URLError, OSError):
        return set()
    return {alert["labels"]["alertname"] for alert in found if alert["state"] == "firing"}
