"""The pipeline on real ranges of a real topic, and what of its output counts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from airflow_kcr.embedded.flights import data, pipeline, result
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.region.rows import Outcome
from airflow_kcr.protocol.values import TopicName
from airflow_kcr.spark import jvm
from airflow_kcr.spark.engine import JobGroup, count_scans
from tests.integration.flights.conftest import FLIGHTS, Run, halves, is_sound, nowhere
from tests.support.kafka import Kafka

# PySpark leaves the socket of each `collect` to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


HOUR = ("year", "month", "day", "hour")


def rows_of(run: Run) -> list[Row]:
    return sorted(result.read_output(run.spark, str(run.output)).collect(), key=str)


@pytest.mark.long
def test_the_output_has_each_flight_with_its_batch(run: Run) -> None:
    written = result.read_output(run.spark, str(run.output)).where("batch_id = 'token-1'")
    wanted = {
        (place.topic, place.partition, offset)
        for place, range_ in run.rows[0].ranges.items()
        for offset in range(range_.from_, range_.to)
    }
    found = written.where("kind = 'flight'").select(*pipeline.RECORD).collect()
    assert {tuple(row) for row in found} == wanted
    assert len(found) == len(wanted)


@pytest.mark.long
def test_the_result_equals_the_direct_computation_from_topic_and_source(run: Run) -> None:
    found = run.judged(first=FLIGHTS)
    assert is_sound(found)
    assert found.groups > 1_000
    assert (found.unlike_topic, found.unlike_source) == (0, 0)
    assert found.in_topic == found.accepted == FLIGHTS
    assert (found.malformed, found.duplicates, found.stray) == (0, 0, 0)
    carriers = by_carrier(run)
    assert sum(one.flights for one in carriers) == FLIGHTS
    cancelled = sum(row["dep_time"] == "NA" for row in data.flights(FLIGHTS))
    assert sum(one.cancelled for one in carriers) == cancelled > 0
    assert all(one.airline for one in carriers)


@pytest.mark.long
def test_a_few_numbers_are_those_that_plain_python_finds(run: Run) -> None:
    wet = {
        (row["origin"], *(int(row[name]) for name in HOUR))
        for row in data.rows("weather.csv")
        if row["precip"] not in {"NA", "0"}
    }
    delays, rainy = 0, 0
    for row in data.flights(FLIGHTS):
        if row["carrier"] == "UA":
            delays += 0 if row["dep_delay"] == "NA" else int(row["dep_delay"])
            rainy += (row["origin"], *(int(row[name]) for name in HOUR)) in wet
    (united,) = (one for one in by_carrier(run) if one.carrier == "UA")
    assert (united.airline, united.dep_delay_sum, united.with_precipitation) == ("United Air Lines Inc.", delays, rainy)


def by_carrier(run: Run) -> list[Row]:
    sums = [F.sum(name).alias(name) for name in ("flights", "cancelled", "dep_delay_sum", "with_precipitation")]
    found = result.fold(result.read_output(run.spark, str(run.output)))
    return found.groupBy("carrier", "airline").agg(*sums).collect()


@pytest.mark.long
def test_a_batch_that_runs_again_replaces_its_output(run: Run) -> None:
    before = rows_of(run)
    run.work(run.rows[0])
    assert rows_of(run) == before


def test_a_batch_is_read_once(kafka: Kafka, empty_run: partial[Run]) -> None:
    topic = kafka.topic(1)
    kafka.produce(topic, 10 * [json.dumps(FLIGHT).encode()])
    run = empty_run(topic=TopicName(topic), kafka=kafka.settings, ends=kafka.ends(topic))
    group = JobGroup(run.spark, "one batch of flights")
    since = jvm.virtual_machine(run.spark.sparkContext).java.lang.System.currentTimeMillis()
    group.enter("flights", "default")
    try:
        run.batch(nowhere(run.ends), run.ends)
    finally:
        group.leave()
    jobs = run.spark.sparkContext.statusTracker().getJobIdsForGroup(group.name)
    jvm.scala_context(run.spark.sparkContext).listenerBus().waitUntilEmpty(10_000)
    assert len(jobs) > 0
    assert count_scans(run.spark, jobs, since) == 1


@pytest.mark.long
def test_output_that_was_tampered_with_is_noticed(run: Run) -> None:
    folder = run.folder(run.rows[0])
    changed = run.spark.read.parquet(str(folder)).withColumn(
        "arr_delay", F.col("arr_delay") + F.when(F.col("carrier") == "HA", 1).otherwise(0)
    )
    rows, schema = changed.collect(), changed.schema
    run.spark.createDataFrame(rows, schema).write.mode("overwrite").partitionBy("kind").parquet(str(folder))
    found = run.judged()
    assert (found.missing, found.surplus) == (0, 0), "every record is still there"
    assert not is_sound(found)
    assert 0 < found.unlike_topic < found.groups


@pytest.mark.long
def test_a_batch_whose_output_is_lost_is_missing(run: Run) -> None:
    lost = run.rows[1]
    run.folder(lost).rename(run.output / "elsewhere")
    found = run.judged()
    assert found.missing == sum(range_.width for range_ in lost.ranges.values())
    assert not is_sound(found)
    assert found.unlike_topic > 0


@pytest.mark.long
def test_a_batch_that_the_ledger_lacks_is_missing_and_its_output_stray(run: Run) -> None:
    lost = run.rows.pop()
    found = run.judged()
    width = sum(range_.width for range_ in lost.ranges.values())
    assert (found.missing, found.stray) == (width, width)
    assert not is_sound(found)


@pytest.mark.long
def test_a_batch_accepted_twice_is_surplus(run: Run) -> None:
    run.batch(nowhere(run.ends), halves(run.ends))
    found = run.judged()
    assert found.surplus == sum(halves(run.ends).values())
    assert not is_sound(found)


@pytest.mark.long
@pytest.mark.parametrize("outcome", [Outcome.DISCARDED, Outcome.UNKNOWN, Outcome.UNDONE])
def test_what_was_not_accepted_is_no_part_of_the_result_and_counted(run: Run, outcome: Outcome) -> None:
    run.batch(nowhere(run.ends), halves(run.ends), outcome=outcome)
    found = run.judged()
    assert found.duplicates == sum(halves(run.ends).values())
    assert is_sound(found)


@pytest.mark.long
def test_what_a_reset_undid_within_a_range_does_not_count(run: Run) -> None:
    first = run.rows.pop(0)
    run.folder(first).rename(run.output / "elsewhere")
    quarters = {number: end // 4 for number, end in run.ends.items()}
    run.batch(nowhere(run.ends), halves(run.ends), undone_from=quarters)
    run.batch(quarters, halves(run.ends))
    found = run.judged()
    assert is_sound(found)
    assert found.duplicates == sum(halves(run.ends).values()) - sum(quarters.values())


@pytest.mark.long
def test_a_checkpoint_before_the_end_has_only_its_part(run: Run) -> None:
    quarters = {number: end // 4 for number, end in run.ends.items()}
    for checkpoint in (halves(run.ends), quarters):
        found = run.judged(checkpoint)
        assert is_sound(found)
        assert found.accepted == sum(checkpoint.values())
        assert found.duplicates == 0, "what is of a later checkpoint was not processed twice"


MALFORMED = [
    b"no JSON at all",
    b'{"carrier":"UA","origin":"EWR"',
    b"{}",
    b"[]",
    b"",
    b"null",
    b"\xff\xfe\x00",
    b'{"carrier":"UA","origin":"EWR","year":2013,"month":1,"day":1,"hour":"five","scheduled":"2013-01-01T05:15:00-05:00"}',
]
FLIGHT = {
    "carrier": "XX",
    "origin": "EWR",
    "year": 2013,
    "month": 11,
    "day": 3,
    "hour": 1,  # that night it happens twice, so there is weather of both
    "scheduled": "2013-11-03T01:15:00-05:00",
    "dep_delay": -3,
    "arr_delay": None,
}


@pytest.mark.long
def test_malformed_records_are_in_an_output_of_their_own(kafka: Kafka, empty_run: partial[Run]) -> None:
    topic = kafka.topic(1)
    flight = json.dumps(FLIGHT).encode()
    two_in_one = b"[" + flight + b"," + flight + b"]"
    kafka.produce(topic, [flight, *MALFORMED, two_in_one, flight])
    run = empty_run(topic=TopicName(topic), kafka=kafka.settings, ends=kafka.ends(topic))
    row = run.batch(nowhere(run.ends), run.ends)

    assert (run.folder(row) / "kind=malformed").is_dir()
    written = result.read_output(run.spark, str(run.output))
    bad = written.where("kind = 'malformed'").collect()
    assert sorted(row.offset for row in bad) == list(range(1, len(MALFORMED) + 2))
    assert {row.carrier for row in bad} == {None}
    good = written.where("kind = 'flight'").collect()
    assert [(row.carrier, row.airline, row.dep_delay) for row in good] == [("XX", None, -3)] * 2

    found = run.judged()
    assert is_sound(found)
    assert found.malformed == len(MALFORMED) + 1
    assert found.accepted == found.in_topic == len(MALFORMED) + 3


@pytest.mark.long
def test_without_a_place_for_the_output_nothing_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pipeline.OUTPUT_VARIABLE)
    with pytest.raises(ConfigurationError, match=r"KCR_FLIGHTS_OUTPUT .* or spark\.kcr\.flights\.output"):
        run.work(run.rows[0])


@pytest.mark.long
def test_sparks_setting_for_the_output_wins(run: Run, tmp_path: Path) -> None:
    run.spark.conf.set(pipeline.OUTPUT_SETTING, f"{tmp_path}/set/")
    try:
        assert pipeline.output_folder(run.spark) == f"{tmp_path}/set"
    finally:
        run.spark.conf.unset(pipeline.OUTPUT_SETTING)
