"""What Prometheus gets of a store: every declared metric, what is known of it, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from airflow_kcr.api import Lag, Region, RegionLag
from airflow_kcr.errors import ConfigurationError, StoreUnavailable
from airflow_kcr.metrics import declared, exporter
from airflow_kcr.metrics.declared import METRICS, RegionFacts
from airflow_kcr.metrics.exporter import OLD, Exporter, KeptClusters
from airflow_kcr.metrics.outlets import serve
from airflow_kcr.protocol.observations import TimeAnswer
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.liveness import NEVER
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.values import ClusterId, GroupId, GroupPartition, Offset, TopicName
from airflow_kcr.spec import parse
from tests.support.driver import Driver
from tests.support.live_region import SPEC, FakeCluster
from tests.support.scripts import running

if TYPE_CHECKING:
    from airflow_kcr.store.regions import RegionStore


class Seconds:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def subject(driver: Driver, cluster: FakeCluster, clock: Seconds) -> Exporter:
    return Exporter(driver.store, cluster.clusters, clock=clock)


Served = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(subject: Exporter) -> str:
    """What a scrape is answered with."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(subject)
    return generate_latest(registry).decode()


def served(subject: Exporter) -> Served:
    """What Prometheus reads of a scrape, by name and labels."""
    families = text_string_to_metric_families(scraped(subject))
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def values(found: Served, name: str) -> list[float]:
    return [value for (of, _), value in found.items() if of == name]


def test_every_metric_has_the_values_that_are_known(driver: Driver, cluster: FakeCluster, subject: Exporter) -> None:
    driver.up()
    driver.process()
    driver.checkpoint("a")
    driver.process()
    driver.grow(driver.partition(1), start=1, end=1_000)
    driver.checkpoint("b")
    cluster.ends = {0: 120, 1: 20, 2: 20, 3: 70}
    cluster.held = {driver.partition(0): 10}
    came = driver.store.read(driver.name)[1] - timedelta(minutes=3)
    cluster.firsts = {n: TimeAnswer(offset=Offset(20), found=came) for n in range(4)}
    subject.read()
    found = served(subject)
    assert {name for name, _ in found} == {metric.name for metric in METRICS}
    of_0 = (("cluster_name", ""), ("group", "g"), ("partition", "0"), ("topic", "t"))
    assert found["kafka_consumergroup_group_lag", of_0] == 100
    assert 180 <= found["kafka_consumergroup_group_lag_seconds", of_0] < 240
    assert found["kafka_consumergroup_group_offset", of_0] == 10
    assert found["kafka_partition_latest_offset", of_0] == 120
    assert values(found, "kafka_consumergroup_group_offset") == [10]
    assert values(found, "kafka_consumergroup_group_sum_lag") == [150]
    assert values(found, "kafka_consumergroup_group_max_lag") == [100]
    assert found["kcr_lag_verdict", (("group", "g"), ("region", "flights"), ("verdict", "ok"))] == 1
    assert sum(values(found, "kcr_lag_verdict")) == sum(values(found, "kcr_region_state")) == 1
    assert found["kcr_region_state", (("region", "flights"), ("state", "running"))] == 1
    assert values(found, "kcr_members_expected") == values(found, "kcr_members_present") == [2]
    assert 0 <= values(found, "kcr_checkpoint_age_seconds")[0] < 60
    assert values(found, "kcr_region_kafka_up") == [1]
    assert values(found, "kcr_restore_point_retention_seconds")[0] >= 0
    assert {labels[0][1] for name, labels in found if name == "kcr_checkpoint_duration_seconds"} == {"drain", "publish"}
    assert values(found, "kcr_region_stalled") == values(found, "kcr_checkpoint_overdue_seconds") == [0]


def test_a_stopped_region_has_a_lag_and_its_samples_are_kept(driver: Driver, subject: Exporter) -> None:
    subject.read()
    assert values(served(subject), "kcr_members_present") == [0]
    (kept,) = driver.store.lag_since(driver.name, NEVER)
    assert len(kept.points) == 4


def test_what_only_kafka_knows_is_absent_while_it_is_away(
    driver: Driver, cluster: FakeCluster, subject: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    driver.up()
    subject.read()
    cluster.is_away = True
    subject.read()
    found = served(subject)
    assert not any(name.startswith("kafka_") for name, _ in found)
    assert values(found, "kcr_region_kafka_up") == [0]
    assert values(found, "kcr_lag_verdict") == []
    assert values(found, "kcr_members_present") == [2]
    assert "the lag of region flights is not known now: no broker of broker.invalid" in caplog.text
    cluster.is_away = False
    subject.read()
    assert values(served(subject), "kafka_consumergroup_group_sum_lag") == [4_000]


def test_a_store_that_is_away_is_said_and_its_readings_grow_old(
    driver: Driver,
    subject: Exporter,
    clock: Seconds,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject.read()

    def away(self: RegionStore) -> None:
        raise StoreUnavailable("the store at x does not answer")

    monkeypatch.setattr(type(driver.store), "names", away, raising=False)
    clock.now = OLD - 1
    subject.read()
    assert values(served(subject), "kcr_region_kafka_up") == [1]
    clock.now = OLD
    assert served(subject) == {}
    assert "the store can't be read now; its regions have no metrics: the store at x" in caplog.text


def test_a_region_that_is_deleted_has_no_metrics_any_more(driver: Driver, subject: Exporter) -> None:
    subject.read()
    driver.store.delete(driver.name, lambda region, now: None)
    subject.read()
    assert served(subject) == {}


def test_of_many_partitions_there_are_no_series_of_single_ones(
    driver: Driver, cluster: FakeCluster, subject: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.up()
    driver.process()
    cluster.counts = {TopicName("t"): 5}
    single = {metric.name for metric in METRICS if "partition" in metric.labels}
    assert len(single) == 4
    for most, is_shown in ((5, True), (4, False)):
        monkeypatch.setattr(declared, "MOST_PARTITIONS", most)
        subject.read()
        assert ("kafka_consumergroup_group_lag" in {name for name, _ in served(subject)}) is is_shown
    assert values(served(subject), "kafka_consumergroup_group_max_lag") == [1_000]
    monkeypatch.undo()
    without = Exporter(driver.store, cluster.clusters, with_partitions=False)
    without.read()
    assert not single & {name for name, _ in served(without)}


def test_names_with_quotes_newlines_and_of_all_lengths_stay_labels() -> None:
    """Newlines are in no name that a spec may have; a cluster's own id is Kafka's."""
    driver = running()
    group, topic, cluster = GroupId('a "quoted" \\ group {x="y"} ☃'), TopicName("t" * 249), ClusterId('c"\n\\d')
    region = replace(driver.region, clusters={group: cluster})
    row = Lag(partition=GroupPartition(group, topic, 0), position=3, committed=3, log_start=0, log_end=7, member=None)
    lag = RegionLag(region=region, now=driver.clock.now, partitions=(row,), groups=(), samples=())
    waits = liveness.judge(region, driver.clock.now)
    subject = Exporter(driver.store, FakeCluster().clusters, clock=lambda: 0.0)
    subject._read = {driver.name: (0.0, RegionFacts(region=region, now=driver.clock.now, liveness=waits, lag=lag))}
    labels = (("cluster_name", cluster), ("group", group), ("partition", "0"), ("topic", topic))
    assert served(subject)["kafka_consumergroup_group_lag", labels] == 4


def test_a_scrape_is_answered_over_http_until_the_end(driver: Driver, subject: Exporter) -> None:
    subject.read()
    port = free_port()
    end = serve(subject, port)
    try:
        with urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
            assert b"kafka_consumergroup_group_lag" in answer.read()
    finally:
        end()
    serve(subject, port)()


def test_a_port_that_is_taken_is_named(subject: Exporter) -> None:
    with taken() as port, pytest.raises(ConfigurationError, match=f"port {port} can't be served: .*; choose another"):
        serve(subject, port)


def free_port() -> int:
    with taken() as port:
        return port


@contextmanager
def taken() -> Iterator[int]:
    with socket.socket() as one:
        one.bind(("0.0.0.0", 0))
        one.listen()
        yield one.getsockname()[1]


def test_what_resets_had_processed_again_only_grows(driver: Driver, subject: Exporter) -> None:
    driver.up()
    driver.process(width=10)
    subject.read()
    assert values(served(subject), "kcr_reset_replayed_records_total") == [0]
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    driver.finish_reset()
    driver.process(width=4)
    subject.read()
    assert values(served(subject), "kcr_reset_replayed_records_total") == [16]
    assert values(served(subject), "kcr_resets_total") == [driver.region.epoch]


def test_of_the_resets_of_years_only_the_newest_are_kept_and_all_are_counted(
    driver: Driver, subject: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "RESETS", 2)
    driver.up()
    resets = Region(driver.name, driver.store).resets
    for _ in range(5):
        driver.process(width=10)
        driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
        driver.finish_reset()
        driver.process(width=4)
        subject.read()
        all_of_them = sum(one.counted.replayed for one in resets.list() if one.counted is not None)
        assert values(served(subject), "kcr_reset_replayed_records_total") == [all_of_them]
        assert len(subject._replayed[driver.name].newest) <= 2


def test_a_cluster_that_no_region_has_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    is_open: set[str] = set()

    @contextmanager
    def reader(settings: Mapping[str, str]) -> Iterator[FakeCluster]:
        is_open.add(settings["bootstrap.servers"])
        yield FakeCluster()
        is_open.remove(settings["bootstrap.servers"])

    monkeypatch.setattr(exporter, "reader_with", reader)
    specs = [parse(SPEC.replace("broker.invalid", host)) for host in ("one", "two")]
    with KeptClusters() as clusters:
        for spec in (*specs, *specs):
            clusters(spec, GroupId("g"))
        clusters.close_unused()
        assert is_open == {"one:9092", "two:9092"}
        clusters(specs[0], GroupId("g"))
        clusters.close_unused()
        assert is_open == {"one:9092"}
    assert is_open == set()
