"""`kcr export`: serves what it reads, keeps samples, and says what it can't do."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING
from urllib.request import urlopen

from airflow_kcr import lineage
from airflow_kcr.cli import export
from airflow_kcr.metrics import exporter
from airflow_kcr.protocol.region.liveness import NEVER
from tests.support.driver import Driver
from tests.support.lineage_receiver import LineageReceiver
from tests.support.live_region import FakeCluster
from tests.unit.cli.conftest import Kcr
from tests.unit.metrics.test_exporter import free_port

if TYPE_CHECKING:
    import pytest


def test_it_serves_each_reading_until_it_is_interrupted(
    kcr: Kcr, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.up()
    opened, closed = list[Mapping[str, str]](), list[Mapping[str, str]]()
    served: list[str] = []
    cluster, port = FakeCluster(), free_port()

    @contextmanager
    def reader(settings: Mapping[str, str]) -> Iterator[FakeCluster]:
        opened.append(settings)
        yield cluster
        closed.append(settings)

    def pause(seconds: float) -> None:
        assert seconds == exporter.PERIOD
        with urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
            served.append(answer.read().decode())
        if len(served) == 2:
            assert len(driver.store.lag_since(driver.name, NEVER)) >= 1
            driver.store.delete(driver.name, lambda region, now: None)
        if len(served) == 3:
            raise KeyboardInterrupt
        cluster.ends = {0: 2_000}
        assert closed == []

    monkeypatch.setattr(exporter, "reader_with", reader)
    monkeypatch.setattr(export, "sleep", pause)
    called = kcr("export", "--port", port, "--no-partitions")
    assert f"http://localhost:{port}/metrics" in called.stderr
    lag = 'kafka_consumergroup_group_sum_lag{cluster_name="",group="g"}'
    assert f"{lag} 4000.0" in served[0]
    assert f"{lag} 5000.0" in served[1]
    assert "kafka_consumergroup_group_lag{" not in served[0]
    # One process for each cluster, however often it is read, until no region has it any more.
    assert len(opened) == len(closed) == 1
    assert "{" not in served[2]


def test_a_port_that_is_taken_is_wrong_usage(kcr: Kcr, driver: Driver) -> None:
    with socket.socket() as one:
        one.bind(("0.0.0.0", 0))
        one.listen()
        port = one.getsockname()[1]
        assert f"port {port} can't be served" in kcr.refused("export", "--port", port, status=2)


def test_without_the_library_it_says_how_to_get_it(kcr: Kcr, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    called = kcr("export")
    assert "pip install 'airflow-kcr[metrics]'" in called.stderr


def test_it_sends_the_lineage_of_all_regions_and_waits_for_no_end_point(
    kcr: Kcr, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "DEADLINE", 0.1)
    driver.up()
    sequence = driver.checkpoint("a")
    port, reached = free_port(), threading.Event()
    served: list[bytes] = []

    def pause(_: float) -> None:
        assert reached.wait(20)
        with urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
            served.append(answer.read())
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter, "reader_with", lambda _: nullcontext(FakeCluster()))
    monkeypatch.setattr(export, "sleep", pause)
    with LineageReceiver(hangs=True) as receiver:
        receiver.reached = reached
        monkeypatch.setenv("OPENLINEAGE_URL", receiver.url)
        kcr("export", "--port", port)
    assert b'kcr_region_kafka_up{region="flights"} 1.0' in served[0]
    reached.clear()
    with LineageReceiver() as receiver:
        receiver.reached = reached
        monkeypatch.setenv("OPENLINEAGE_URL", receiver.url)
        kcr("export", "--port", port)
    assert [one["run"]["facets"]["kcr_checkpoint"]["sequence"] for one in receiver.received] == [sequence]
