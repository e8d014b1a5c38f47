from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import (
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    Range,
    RegionId,
    RegionName,
    Timeline,
    TopicName,
)
from airflow_kcr.spark import reads
from airflow_kcr.spark.reads import (
    DEFAULTS,
    FIRST_FETCH,
    LARGEST_FETCH,
    SMALLEST_FETCH,
    WAITS,
    Reader,
    Source,
    fetch_of,
    fetch_within,
    first_fetch,
    held,
    offset_options,
    tasks_for,
)

ONE = Timeline(1)
KAFKA = {"bootstrap.servers": "127.0.0.1:9092"}


def source(
    kafka: Mapping[str, str] = KAFKA, options: Mapping[str, str] | None = None, index: int = 0, region_id: str = "1"
) -> Source:
    return Source(
        region=RegionName("flights"),
        region_id=RegionId(region_id),
        member=MemberId(GroupId("etl"), index),
        kafka=kafka,
        options=options or {},
    )


def ranges(*widths: int, topic: str = "t") -> dict[GroupPartition, Range]:
    return {
        GroupPartition(GroupId("etl"), TopicName(topic), number): Range(Offset(10), Offset(10 + width))
        for number, width in enumerate(widths)
    }


def test_the_options_name_each_range_and_nothing_else() -> None:
    options = offset_options({**ranges(5, 7, topic="b"), **ranges(1, topic="a")})
    assert options.keys() == {"assign", "startingOffsets", "endingOffsets"}
    assert json.loads(options["assign"]) == {"a": [0], "b": [0, 1]}
    assert json.loads(options["startingOffsets"]) == {"a": {"0": 10}, "b": {"0": 10, "1": 10}}
    assert json.loads(options["endingOffsets"]) == {"a": {"0": 11}, "b": {"0": 15, "1": 17}}


def test_a_read_is_exact_whatever_the_user_says() -> None:
    options = source(options={"FAILONDATALOSS": "TRUE", "kafka.isolation.level": "read_committed"}).settings(ONE)
    assert options["failOnDataLoss"] == "true"
    assert options["kafka.isolation.level"] == "read_committed"
    assert len({name.lower() for name in options}) == len(options)


@pytest.mark.parametrize("reset", [20, 80, 300])
def test_a_cancelled_batch_waits_for_its_broker_for_less_time_than_its_process_has_to_end(reset: int) -> None:
    limit = Timeouts(reset=timedelta(seconds=reset)).process_end_limit
    settings = replace(source(), ends_within=limit).settings(ONE)
    request, call, poll = (timedelta(milliseconds=int(settings[name])) for name in WAITS)
    assert request <= call  # an admin client takes no others
    assert call + poll < limit


def test_with_the_times_of_the_project_the_waits_are_those_that_the_page_shows() -> None:
    settings = replace(source(), ends_within=Timeouts().process_end_limit).settings(ONE)
    assert {name: settings[name] for name in WAITS} == {name: DEFAULTS[name] for name in WAITS}


def test_the_settings_of_the_project_can_be_overridden_in_any_case() -> None:
    options = source(options={"KAFKA.max.poll.records": "7", "kafkaconsumer.polltimeoutms": "3000"}).settings(ONE)
    values = {name.lower(): value for name, value in options.items()}
    assert values["kafka.max.poll.records"] == "7"
    assert values["kafkaconsumer.polltimeoutms"] == "3000"
    assert values["kafka.fetch.max.bytes"] == DEFAULTS["kafka.fetch.max.bytes"]


@pytest.mark.parametrize(
    ("memory", "partitions", "fetch"),
    [
        (1 << 30, 0, LARGEST_FETCH),
        (1 << 30, 12, LARGEST_FETCH),
        (512 << 20, 12, 4_097_213),
        (1 << 30, 64, 990_321),
        (8 << 30, 64, LARGEST_FETCH),
        (1 << 30, 1_000, 256 << 10),
    ],
)
def test_fetches_leave_an_executor_two_thirds_of_its_memory_as_far_as_they_can(
    memory: int, partitions: int, fetch: int
) -> None:
    assert fetch_within(memory, partitions) == fetch
    assert held(partitions, fetch) <= memory / 3 or fetch == 256 << 10
    settings = replace(source(), fetch=fetch).settings(ONE)
    assert settings["kafka.max.partition.fetch.bytes"] == str(fetch)


@pytest.mark.parametrize(
    ("widths", "record", "most", "fetch"),
    [
        ([1, 1], 1_000, LARGEST_FETCH, SMALLEST_FETCH),
        ([262, 3], 1_000, LARGEST_FETCH, FIRST_FETCH),
        ([263], 1_000, LARGEST_FETCH, LARGEST_FETCH),
        ([80], 100, LARGEST_FETCH, SMALLEST_FETCH),
        ([132], 10_000, LARGEST_FETCH, LARGEST_FETCH),
        ([10_000_000], 1_000, LARGEST_FETCH, LARGEST_FETCH),
        ([1], 1_000, 990_321, 990_321),  # no memory for consumers of two sizes
    ],
)
def test_a_fetch_is_about_half_of_a_range(widths: list[int], record: int, most: int, fetch: int) -> None:
    assert fetch_of(ranges(*widths).values(), record, most, before=1_000_000) == fetch


@pytest.mark.parametrize(
    ("before", "fetch"),
    [(0, SMALLEST_FETCH), (524, SMALLEST_FETCH), (525, FIRST_FETCH), (16_777, FIRST_FETCH), (16_778, LARGEST_FETCH)],
)
def test_fetches_grow_only_where_two_of_the_larger_ones_have_been_read_of_each_partition(
    before: int, fetch: int
) -> None:
    wide = ranges(100_000, 100_000).values()
    assert fetch_of(wide, 1_000, LARGEST_FETCH, before, first=SMALLEST_FETCH) == fetch
    assert fetch_of(wide, 1_000, LARGEST_FETCH, before) == max(fetch, FIRST_FETCH)


class Connector:
    """Spark, as far as a reader of Kafka asks for it: notes the sizes of fetches of which readers were made."""

    def __init__(self) -> None:
        self.fetches: list[int] = []
        self.read = self
        self.sparkContext = SimpleNamespace(defaultParallelism=2)

    def format(self, name: str) -> Connector:
        """Return itself."""
        return self

    def options(self, **options: str) -> Connector:
        """Note the size."""
        if "kafka.max.partition.fetch.bytes" in options:
            self.fetches.append(int(options["kafka.max.partition.fetch.bytes"]))
        return self

    def load(self) -> Connector:
        """Return itself."""
        return self


def test_fetches_grow_with_the_batches_of_a_timeline_and_never_shrink_in_it() -> None:
    spark = Connector()
    reader = Reader(spark, source())  # type: ignore[arg-type]
    for width in (1, 300, 1, 100, 1, 100):
        reader.read(ranges(width), ONE)
    assert spark.fetches == [SMALLEST_FETCH, FIRST_FETCH]
    reader.read(ranges(1), Timeline(2))
    assert spark.fetches[2:] == [SMALLEST_FETCH]


def test_a_wide_range_is_read_by_large_fetches_from_the_first_batch_on() -> None:
    spark = Connector()
    Reader(spark, source()).read(ranges(600_000), ONE)  # type: ignore[arg-type]
    assert spark.fetches == [LARGEST_FETCH]


@pytest.mark.parametrize(
    ("widths", "record", "cores", "fetch"),
    [
        ([10_000] * 6, 1_000, 2, 375_000),
        ([10_000] * 6, 1_000, 100, FIRST_FETCH),
        ([200_000] * 6, 100, 2, 750_000),
        ([1], 1_000, 2, FIRST_FETCH),
        ([2_000, 200_000], 1_000, 2, 1_262_500),
    ],
)
def test_a_core_reads_its_share_of_a_first_batch_in_eighty_fetches_at_least(
    widths: list[int], record: int, cores: int, fetch: int
) -> None:
    first = first_fetch(ranges(*widths).values(), record, cores)
    assert first == fetch
    assert fetch_of(ranges(*widths).values(), record, LARGEST_FETCH, 0, first) == min(
        first, max(record * max(widths) // 2, SMALLEST_FETCH)
    )


def test_only_the_first_batch_has_fetches_that_nothing_was_brought_for() -> None:
    spark = Connector()
    reader = Reader(spark, source())  # type: ignore[arg-type]
    reader.read(ranges(1), ONE)
    reader.read(ranges(600_000), ONE)
    assert spark.fetches == [SMALLEST_FETCH, FIRST_FETCH]


def test_fetches_are_as_large_as_the_records_that_were_seen_want_them() -> None:
    spark = Connector()
    reader = Reader(spark, replace(source(), record=lambda: 10_000))  # type: ignore[arg-type]
    reader.read(ranges(1_000), ONE)
    reader.read(ranges(100), ONE)
    assert spark.fetches == [FIRST_FETCH, LARGEST_FETCH]


def test_fetches_do_not_grow_for_a_while_after_kafka_was_seen_to_throttle(monkeypatch: pytest.MonkeyPatch) -> None:
    spark, now, throttled = Connector(), 100.0, 0.0
    monkeypatch.setattr(reads, "throttle_time", lambda *_: throttled)
    monkeypatch.setattr("time.monotonic", lambda: now)
    reader = Reader(spark, source())  # type: ignore[arg-type]
    reader.read(ranges(10_000), ONE)
    assert reader.throttled(ranges(0, 1), ONE) == 0.0
    throttled = 1.5
    assert reader.throttled(ranges(0, 1), ONE) == 1.5
    reader.read(ranges(3_000), ONE)
    assert spark.fetches == [FIRST_FETCH]
    reader.read(ranges(3_000), Timeline(2))
    assert spark.fetches == [FIRST_FETCH, SMALLEST_FETCH]
    now = 161.0
    reader.read(ranges(3_000), Timeline(2))
    assert spark.fetches == [FIRST_FETCH, SMALLEST_FETCH, FIRST_FETCH]


def test_a_poll_waits_longer_than_a_broker_counts_for_a_quota() -> None:
    settings = replace(source(), ends_within=Timeouts().process_end_limit).settings(ONE)
    assert int(settings["kafkaConsumer.pollTimeoutMs"]) > 11_000


def test_what_a_user_says_of_fetches_counts() -> None:
    small = replace(source({**KAFKA, "max.partition.fetch.bytes": "7"}), fetch=8)
    assert small.settings(ONE)["kafka.max.partition.fetch.bytes"] == "7"
    small = replace(source(options={"kafka.max.partition.fetch.bytes": "9"}), fetch=8)
    assert small.settings(ONE)["kafka.max.partition.fetch.bytes"] == "9"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("assign", "{}"),
        ("subscribe", "t"),
        ("subscribePattern", "t.*"),
        ("startingOffsets", "earliest"),
        ("endingOffsets", "latest"),
        ("startingTimestamp", "0"),
        ("endingOffsetsByTimestamp", "{}"),
        ("failOnDataLoss", "false"),
        ("kafka.isolation.level", "read_uncommitted"),
        ("kafka.group.id", "etl"),
        ("groupIdPrefix", "x"),
        ("kafka.auto.offset.reset", "latest"),
        ("kafka.enable.auto.commit", "true"),
        ("kafka.value.deserializer", "x"),
        ("kafka.interceptor.classes", "x"),
    ],
)
def test_an_option_that_would_break_exactness_is_refused_by_its_name(name: str, value: str) -> None:
    for spelling in (name, name.upper()):
        with pytest.raises(ConfigurationError, match=spelling):
            source(options={spelling: value})


def test_all_refused_settings_are_named_at_once_and_no_secret() -> None:
    with pytest.raises(ConfigurationError) as caught:
        source({**KAFKA, "group.id": "etl", "sasl.jaas.config": "hidden"}, {"subscribe": "t"})
    assert "kafka.group.id" in caught.value.message
    assert "subscribe" in caught.value.message
    assert "hidden" not in caught.value.message


def test_a_source_without_servers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        source({})


def test_a_source_shows_none_of_its_settings() -> None:
    assert "hidden" not in repr(source({**KAFKA, "ssl.key.password": "hidden"}, {"kafka.client.rack": "hidden"}))


@pytest.mark.parametrize("name", ["kafka.sasl.jaas.config", "kafka.ssl.keystore.key", "kafka.x"])
def test_an_option_that_holds_a_secret_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}: is refused: it holds a secret.*\$\{{NAME\}}") as caught:
        source(options={name: "https://me:hidden@host"})
    assert "hidden" not in caught.value.message


def test_the_group_of_the_executors_is_stable_and_changes_with_region_member_settings_and_timeline() -> None:
    group = source().executor_group(ONE)
    assert group == source().executor_group(ONE)
    assert group.startswith("kcr-flights-etl-0-")
    others = {
        source(index=1).executor_group(ONE),
        source(region_id="another of the name").executor_group(ONE),
        source(options={"kafka.max.poll.records": "7"}).executor_group(ONE),
        source({**KAFKA, "client.rack": "a"}).executor_group(ONE),
    }
    assert len({group, *others, source().executor_group(Timeline(2))}) == 6


@pytest.mark.parametrize(
    ("widths", "cores", "tasks"),
    [
        ([1] * 6, 2, 6),  # of four tasks, two would have two ranges and two would have one
        ([1] * 8, 2, 4),
        ([1] * 50, 2, 5),
        ([1] * 3, 2, 3),
        ([1] * 200, 2, 4),
        ([1] * 200, 64, 200),
        ([1] * 300, 64, 150),
        ([10_000] * 200, 2, 100),
        ([1_000_000] * 6, 2, 6),
    ],
)
def test_many_small_ranges_share_tasks_and_big_ones_have_their_own(widths: list[int], cores: int, tasks: int) -> None:
    assert tasks_for(ranges(*widths), cores) == tasks
