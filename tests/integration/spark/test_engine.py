"""A member's batches on a real Spark: they end, fail or are cancelled, and nothing of them runs afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors.exceptions.captured import PythonException
from pyspark.sql import DataFrame, SparkSession

from airflow_kcr.errors import BatchCancelled, BatchFailed
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.spark import engine as engine_module
from airflow_kcr.spark import jvm
from airflow_kcr.spark.causes import essential_line
from airflow_kcr.spark.context import BatchContext
from airflow_kcr.spark.engine import JobGroup
from airflow_kcr.spark.pipelines import Pipeline
from airflow_kcr.spark.reads import WAITS
from tests.conftest import StartKafka
from tests.integration.spark.batches import WITHIN, Bench, call, noop, started, wait_until
from tests.support.kafka import Kafka

RECORDS = 20_000
QUESTIONS = 40
"""Of one batch to the JVM."""


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    name = kafka.topic(2)
    kafka.fill(name, {0: RECORDS, 1: RECORDS}, size=100)
    return name


ALL = {0: (0, RECORDS), 1: (0, RECORDS)}
FEW = {0: (0, 10), 1: (0, 10)}
SMALL_POLLS = {"kafka.max.poll.records": "50", "kafka.max.partition.fetch.bytes": "2000"}
IMPATIENT = dict.fromkeys(WAITS, "3000")
"""As long as it can't be interrupted; by the members' own settings as long as a test of them says."""


def running_tasks(spark: SparkSession) -> int:
    return int(jvm.scala_context(spark.sparkContext).taskScheduler().taskIdToTaskSetManager().size())


def marks(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def stays(path: Path) -> bool:
    """Whether nothing is written any more: a negative, so it takes a moment to believe."""
    before = marks(path)
    threading.Event().wait(1.5)
    return marks(path) == before


def slow_rdd(out: Path) -> Pipeline:
    def each(rows: Iterator[object]) -> None:
        for _ in rows:
            mark(out, 0.005)

    return lambda batch, context: batch.foreachPartition(each)


def slow_udf(out: Path) -> Pipeline:
    def process(batch: DataFrame, context: BatchContext) -> None:
        from pyspark.sql.functions import udf

        one = udf(lambda offset: mark(out, 0.005), "int")
        batch.select(one("offset")).write.format("noop").mode("overwrite").save()

    return process


def stuck_udf(out: Path) -> Pipeline:
    def process(batch: DataFrame, context: BatchContext) -> None:
        from pyspark.sql.functions import udf

        one = udf(lambda offset: mark(out, 3.0), "int")
        batch.select(one("offset")).write.format("noop").mode("overwrite").save()

    return process


def mark(out: Path, pause: float) -> int:
    import time

    with out.open("ab") as file:
        file.write(b"x")
    time.sleep(pause)
    return 1


def slow_scan(out: Path) -> Pipeline:
    """A scan and a write inside the JVM, held up there."""

    def process(batch: DataFrame, context: BatchContext) -> None:
        mark(out, 0)
        held = batch.selectExpr("offset", "java_method('java.lang.Thread', 'sleep', offset - offset + 5L) as held")
        held.write.mode("overwrite").csv(str(out.with_name(f"{context.batch_id}.csv")))

    return process


@pytest.mark.parametrize(
    "pipeline",
    [
        pytest.param(slow_rdd, id="rdd"),
        pytest.param(slow_udf, id="udf", marks=pytest.mark.long),
        pytest.param(stuck_udf, id="stuck", marks=pytest.mark.long),
    ],
)
def test_nothing_of_a_cancelled_batch_runs_after_run_has_raised(
    bench: Bench, topic: str, tmp_path: Path, pipeline: Callable[[Path], Pipeline]
) -> None:
    out = tmp_path / "marks"
    engine, batch = bench.engine(pipeline(out)), call(topic, ALL)
    run = started(engine, batch)
    wait_until(lambda: marks(out) >= 2, "both tasks at work")
    engine.cancel(batch.batch)
    with pytest.raises(BatchCancelled):
        run.result(WITHIN)
    assert running_tasks(bench.spark) == 0
    assert stays(out)
    assert marks(out) < 2 * RECORDS
    bench.engine(noop).run(call(topic, FEW))


def test_a_scan_inside_the_jvm_is_cancelled_in_its_middle(bench: Bench, topic: str, tmp_path: Path) -> None:
    engine, batch = bench.engine(slow_scan(tmp_path / "marks")), call(topic, ALL)
    run = started(engine, batch)
    wait_until(lambda: running_tasks(bench.spark) == 2, "both tasks at work")
    engine.cancel(batch.batch)
    with pytest.raises(BatchCancelled):
        run.result(WITHIN)
    assert running_tasks(bench.spark) == 0
    assert not list(tmp_path.glob("*.csv/part*"))


@pytest.mark.long
@pytest.mark.parametrize("is_reading", [False, True], ids=["as it begins", "in its middle"])
def test_a_batch_whose_broker_is_away_is_cancelled_before_its_process_would_end_itself(
    spark: SparkSession, kafka_set: StartKafka, tmp_path: Path, is_reading: bool
) -> None:
    kafka, out, called = kafka_set(1), tmp_path / "marks", threading.Event()
    topic = kafka.topic(2)
    # More than fits into the pipe to Python: the tasks' readers would be through otherwise before the broker is away.
    kafka.fill(topic, {0: RECORDS, 1: RECORDS}, size=1000)

    def process(batch: DataFrame, context: BatchContext) -> None:
        called.set()
        slow_rdd(out)(batch, context)

    bench = Bench(spark, kafka)
    engine, batch = bench.engine(process, options=SMALL_POLLS | IMPATIENT), call(topic, ALL)
    # As members do at their start, so that only waits for the broker are left of what a batch takes.
    bench.engine(noop).run(call(topic, FEW))
    if not is_reading:
        kafka.broker(1).suspend()
    run = started(engine, batch)
    assert called.wait(WITHIN)
    if is_reading:
        wait_until(lambda: marks(out) >= 2, "both tasks at work")
        kafka.broker(1).suspend()
        wait_until(lambda: stays(out), "both tasks wait for the broker")
    engine.cancel(batch.batch)
    # Its own wait for the broker may be over first.
    with pytest.raises((BatchCancelled, BatchFailed)):
        run.result(Timeouts().process_end_limit.total_seconds())
    assert running_tasks(spark) == 0


def test_a_call_that_waits_again_after_an_interruption_is_interrupted_again(bench: Bench, topic: str) -> None:
    first = threading.Event()

    def process(batch: DataFrame, context: BatchContext) -> None:
        thread = jvm.virtual_machine(bench.spark.sparkContext).java.lang.Thread
        first.set()
        with suppress(Py4JJavaError):
            thread.sleep(int(2_000 * WITHIN))
        thread.sleep(int(2_000 * WITHIN))

    engine, batch = bench.engine(process), call(topic, FEW)
    run = started(engine, batch)
    assert first.wait(WITHIN)
    engine.cancel(batch.batch)
    with pytest.raises(BatchCancelled):
        run.result(WITHIN)
    bench.engine(noop).run(call(topic, FEW))


def test_a_batch_cancelled_before_it_began_never_runs(bench: Bench, topic: str) -> None:
    called = []
    engine, batch = bench.engine(lambda *_: called.append(1)), call(topic, FEW)
    engine.cancel(batch.batch)
    with pytest.raises(BatchCancelled, match="before it began"):
        engine.run(batch)
    assert not called
    bench.engine(noop).run(call(topic, FEW))


@pytest.mark.parametrize("hides", [False, True])
def test_a_batch_cancelled_before_its_first_job_runs_none_though_its_pipeline_hides_it(
    bench: Bench, topic: str, hides: bool
) -> None:
    begun, go = threading.Event(), threading.Event()

    def process(batch: DataFrame, context: BatchContext) -> None:
        begun.set()
        go.wait(WITHIN)
        with suppress(Exception) if hides else nullcontext():
            noop(batch, context)

    engine, batch = bench.engine(process), call(topic, FEW)
    run = started(engine, batch)
    assert begun.wait(WITHIN)
    engine.cancel(batch.batch)
    go.set()
    with pytest.raises(BatchCancelled):
        run.result(WITHIN)


def test_a_batch_that_has_ended_can_be_cancelled_without_effect(bench: Bench, topic: str) -> None:
    engine, batch = bench.engine(noop), call(topic, FEW)
    engine.run(batch)
    engine.cancel(batch.batch)
    engine.run(call(topic, FEW))


def test_cancelling_one_member_leaves_the_other(bench: Bench, topic: str, tmp_path: Path) -> None:
    out = tmp_path / "marks"
    slow, batch = bench.engine(slow_rdd(out)), call(topic, ALL)
    go = threading.Event()

    def steady(frame: DataFrame, context: BatchContext) -> None:
        while not go.is_set():
            frame.count()

    other = bench.engine(steady, index=1)
    run, beside = started(slow, batch), started(other, call(topic, FEW, index=1))
    wait_until(lambda: marks(out) >= 2, "both tasks of the slow one at work")
    slow.cancel(batch.batch)
    with pytest.raises(BatchCancelled):
        run.result(WITHIN)
    assert not beside.done()
    go.set()
    assert beside.result(WITHIN).scans is not None


def test_members_have_their_own_pools_and_spark_shows_who_runs_what(bench: Bench, topic: str) -> None:
    batch = call(topic, FEW, index=3)
    bench.engine(noop, index=3).run(batch)
    context = jvm.scala_context(bench.spark.sparkContext)
    context.listenerBus().waitUntilEmpty(10_000)
    job = next(
        one
        for one in jvm.scala_items(context.statusStore().jobsList(None))
        if one.jobGroup().isDefined() and batch.batch in one.jobGroup().get().split("/")
    )
    assert job.description().get() == f"region group[3] batch {batch.batch}: 20 offset(s) of 2 partition(s)"
    stage = context.statusStore().lastStageAttempt(job.stageIds().apply(0))
    assert stage.schedulingPool() == "group[3]"


def test_views_of_one_member_are_not_seen_by_another(bench: Bench, topic: str) -> None:
    counts: dict[int, int] = {}

    def process(batch: DataFrame, context: BatchContext) -> None:
        batch.createOrReplaceTempView("batch")
        both.wait()
        counts[context.index] = batch.sparkSession.sql("select max(offset) from batch").first()[0]  # type: ignore[index]

    both = threading.Barrier(2, timeout=WITHIN)
    runs = [
        started(bench.engine(process, index=index), call(topic, {0: (0, 10 * (index + 1))}, index=index))
        for index in (0, 1)
    ]
    for run in runs:
        run.result(WITHIN)
    assert counts == {0: 9, 1: 19}


# -- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["", "\nSQLSTATE: 38000"], ids=["4.0", "4.2"])
def test_an_error_of_a_user_s_function_is_told_without_the_state_of_spark_s(spark: SparkSession, state: str) -> None:
    said = f'Traceback (most recent call last):\n  File "job.py", line 3, in check\nKeyError: 7\n{state}'
    assert essential_line(PythonException(desc=said, stackTrace="")) == "KeyError (job.py, line 3)"


def test_why_an_executor_is_not_let_in_is_told(spark: SparkSession) -> None:
    error = RuntimeError("what Py4J raises")
    words = 'org.apache.kafka.common.KafkaException: java.io.IOException: response 401: {"invalid_client"}'
    thrown = jvm.virtual_machine(spark.sparkContext).javax.security.auth.login.LoginException(words)
    error.java_exception = thrown  # type: ignore[attr-defined]
    assert essential_line(error) == 'LoginException: response 401: {"invalid_client"}'


def test_a_cancellation_by_somebody_else_is_a_failure(bench: Bench, topic: str, tmp_path: Path) -> None:
    out = tmp_path / "marks"
    run = started(bench.engine(slow_rdd(out)), call(topic, ALL))
    wait_until(lambda: marks(out) >= 2, "both tasks at work")
    bench.spark.sparkContext.cancelAllJobs()
    with pytest.raises(BatchFailed, match="cancelled by someone else"):
        run.result(WITHIN)
    assert stays(out)


def test_what_a_failed_pipeline_left_running_has_ended(bench: Bench, topic: str, tmp_path: Path) -> None:
    from pyspark import InheritableThread

    out = tmp_path / "marks"

    def process(batch: DataFrame, context: BatchContext) -> None:
        thread = InheritableThread(target=lambda: ignore(lambda: slow_rdd(out)(batch, context)))
        thread.start()
        wait_until(lambda: marks(out) >= 2, "both tasks at work")
        raise RuntimeError("gave up")

    with pytest.raises(BatchFailed, match="failed: RuntimeError"):
        bench.engine(process).run(call(topic, ALL))
    assert stays(out)


def ignore(work: Callable[[], None]) -> None:
    try:
        work()
    except Py4JJavaError:
        return


def test_a_failed_task_is_tried_again_and_its_records_are_right(bench: Bench, topic: str, tmp_path: Path) -> None:
    first = tmp_path / "first"
    got: list[int] = []

    def process(batch: DataFrame, context: BatchContext) -> None:
        from pyspark.sql.functions import udf

        def fail_once(offset: int) -> int:
            if offset == 500 and not first.exists():
                first.touch()
                raise ValueError("only once")
            return offset

        rows = batch.select(udf(fail_once, "long")("offset").alias("offset")).collect()
        got.extend(row.offset for row in rows)

    bench.engine(process).run(call(topic, {0: (0, 1000)}))
    assert first.exists()
    assert got == list(range(1000))


# -- what a batch did ----------------------------------------------------------------------------------------------


def test_a_pipeline_without_any_job_has_processed_nothing(bench: Bench, topic: str) -> None:
    with pytest.raises(BatchFailed, match="processed nothing"):
        bench.engine(lambda batch, context: None).run(call(topic, FEW))


def test_jobs_of_a_plain_thread_are_not_the_batch_s(bench: Bench, topic: str) -> None:
    def process(batch: DataFrame, context: BatchContext) -> None:
        thread = threading.Thread(target=noop, args=(batch, context))
        thread.start()
        thread.join()

    with pytest.raises(BatchFailed, match="InheritableThread"):
        bench.engine(process).run(call(topic, FEW))


def count_and_write(batch: DataFrame, context: BatchContext) -> None:
    batch.count()
    noop(batch, context)


def look_and_write(batch: DataFrame, context: BatchContext) -> None:
    if not batch.isEmpty():
        noop(batch, context)


def keep_and_write(batch: DataFrame, context: BatchContext) -> None:
    kept = batch.persist()
    kept.count()
    noop(kept, context)
    kept.unpersist(blocking=True)


def join_itself(batch: DataFrame, context: BatchContext) -> None:
    noop(batch.select("offset").union(batch.select("offset")), context)


@pytest.mark.parametrize(
    ("pipeline", "scans"),
    [(noop, 1), (count_and_write, 2), (look_and_write, 1), (keep_and_write, 1), (join_itself, 2)],
    ids=["once", "twice", "looked", "kept", "union"],
)
def test_it_is_told_how_often_a_batch_was_read(bench: Bench, topic: str, pipeline: Pipeline, scans: int) -> None:
    report = bench.engine(pipeline).run(call(topic, {0: (0, 3000), 1: (0, 3000)}))
    assert report.scans == scans
    assert bool(report.warnings) == (scans > 1)


def test_how_often_a_pipeline_reads_is_counted_at_first_and_then_now_and_again(
    bench: Bench, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_ALWAYS_COUNTED", 2)
    monkeypatch.setattr(engine_module, "_COUNTED_EVERY", 4)
    engine = bench.engine(noop)
    assert [engine.run(call(topic, FEW)).scans for _ in range(6)] == [1, 1, None, None, 1, None]


def test_a_read_through_an_rdd_is_not_counted(bench: Bench, topic: str) -> None:
    report = bench.engine(lambda batch, context: batch.foreachPartition(lambda rows: None)).run(call(topic, FEW))
    assert report.scans is None


def test_scans_that_can_not_be_counted_are_no_reason_to_fail(
    bench: Bench, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(spark: SparkSession) -> object:
        raise TypeError("this Spark has no such store")

    monkeypatch.setattr(jvm, "status_store", gone)
    engine = bench.engine(noop)
    for _ in range(2):
        assert engine.run(call(topic, FEW)).scans is None
    assert sum("no such store" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.long
def test_jobs_that_a_pipeline_left_are_waited_for_and_told(bench: Bench, topic: str, tmp_path: Path) -> None:
    from pyspark import InheritableThread

    out = tmp_path / "marks"

    def process(batch: DataFrame, context: BatchContext) -> None:
        InheritableThread(target=lambda: slow_rdd(out)(batch, context)).start()
        wait_until(lambda: marks(out) >= 2, "both tasks at work")

    report = bench.engine(process).run(call(topic, {0: (0, 300), 1: (0, 300)}))
    assert marks(out) == 600
    assert "returned while 1 of its jobs ran" in report.warnings[0]


def test_a_thread_belongs_to_no_batch_afterwards(bench: Bench, topic: str) -> None:
    bench.engine(noop).run(call(topic, FEW))
    context = bench.spark.sparkContext
    for name in ("spark.jobGroup.id", "spark.job.description", "spark.scheduler.pool"):
        assert context.getLocalProperty(name) is None


def test_a_group_that_was_cancelled_refuses_the_probe_and_is_settled(spark: SparkSession) -> None:
    group = JobGroup(spark, "settled")
    group.enter("settled", "pool")
    group.cancel()
    group.settle()
    group.leave()
    assert group.is_quiesced()


def test_the_python_side_keeps_no_records(bench: Bench, topic: str) -> None:
    engine = bench.engine(noop)
    engine.run(call(topic, ALL))
    before = resident_kib()
    for _ in range(10):
        engine.run(call(topic, ALL))
    assert resident_kib() - before < 20_000


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def test_a_batch_asks_the_jvm_few_questions(bench: Bench, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes Python a tenth of a millisecond or more, and small batches are hardly more than their questions."""
    from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]

    engine, asked, me = bench.engine(noop), [], threading.get_ident()
    send = ClientServerConnection.send_command

    def counted(self: ClientServerConnection, command: str) -> str:
        if threading.get_ident() == me:
            asked.append(command)
        return str(send(self, command))

    for _ in range(engine_module._ALWAYS_COUNTED):
        engine.run(call(topic, FEW))
    monkeypatch.setattr(ClientServerConnection, "send_command", counted)
    engine.run(call(topic, FEW))
    assert 0 < len(asked) <= QUESTIONS, "\n".join(command.replace("\n", " ") for command in asked)
