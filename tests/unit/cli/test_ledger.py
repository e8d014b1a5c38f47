"""`kcr ledger`: who has processed a record, and what was started more than once, and why."""

from __future__ import annotations

import pytest

from airflow_kcr.api import Region
from airflow_kcr.protocol.region.rows import Requester, ResetCause
from tests.support.driver import Driver
from tests.unit.cli.conftest import Kcr

RUN = Requester(dag_id="checkpoints", run_id="scheduled__2026-01-01T00:00:00+00:00")
WHY = "a record can't be processed"


@pytest.fixture
def played(driver: Driver) -> Driver:
    """A region with a checkpoint that a DAG run asked for, and a batch that failed and was processed again."""
    driver.up()
    driver.process(driver.member(0), width=10)
    driver.checkpoint("n1", requester=RUN)
    failed = driver.start_batch(driver.member(0), width=5)
    driver.discard(failed)
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, WHY)
    driver.finish_reset()
    driver.process(driver.member(0), width=5)
    return driver


def test_a_record_in_a_checkpoint_has_its_batch_its_member_and_its_dag_run(kcr: Kcr, played: Driver) -> None:
    (found,) = kcr.json("ledger", "record", "flights", "t:0:3")
    assert (found["group"], found["topic"], found["partition"], found["offset"]) == ("g", "t", 0, 3)
    assert found["fate"] == "processed"
    (start,) = found["starts"]
    batch = played.batches[0]
    assert (start["batch"], start["member_id"], start["epoch"]) == (batch.batch, "g[0]", batch.epoch)
    assert (start["outcome"], start["cause"], start["checkpoint"]) == ("done", None, batch.sequence)
    assert start["runs"] == [{"dag_id": RUN.dag_id, "run_id": RUN.run_id}]
    line = kcr("ledger", "record", "flights", "t:0:3", "-o", "csv").stdout.splitlines()[1]
    assert line.endswith(f",{batch.sequence},0,checkpoints/scheduled__2026-01-01T00:00:00+00:00")


def test_a_record_that_was_begun_again_says_why(kcr: Kcr, played: Driver) -> None:
    (found,) = kcr.json("ledger", "record", "flights", "t:0:12", "--group", "g")
    assert [(b["outcome"], b["cause"], b["checkpoint"]) for b in found["starts"]] == [
        ("discarded", None, None),
        ("done", "batch_failed", None),
    ]
    assert found["fate"] == "processed"


def test_a_record_that_runs_is_not_said_to_be_processed(kcr: Kcr, played: Driver) -> None:
    played.start_batch(played.member(0), width=5)
    (found,) = kcr.json("ledger", "record", "flights", "t:0:15")
    assert (found["fate"], [b["outcome"] for b in found["starts"]]) == ("running", [None])


def test_a_record_that_nobody_has_begun_has_no_batch(kcr: Kcr, played: Driver) -> None:
    (found,) = kcr.json("ledger", "record", "flights", "t:0:999")
    assert (found["offset"], found["fate"], found["starts"]) == (999, "not_started", [])
    assert "not_started" in kcr("ledger", "record", "flights", "t:0:999", "-o", "table").stdout


def test_what_was_begun_again_is_listed_with_the_reset_that_went_back(kcr: Kcr, played: Driver) -> None:
    found = kcr.json("ledger", "repeated", "flights")
    assert [(r["topic"], r["partition"], r["from_offset"], r["to_offset"], r["cause"]) for r in found] == [
        ("t", 0, 10, 15, "batch_failed"),
        ("t", 1, 10, 15, "batch_failed"),
    ]
    assert (found[0]["offsets"], found[0]["detail"]) == (5, f"g[0]: {WHY}")
    assert found[0]["earlier"] == [played.batches[1].batch]
    assert found[0]["batch"] == played.batches[2].batch
    shown = " ".join(kcr("ledger", "repeated", "flights", "-o", "table").stdout.split())
    assert "batch_failed 10 offsets started again" in shown


def test_nothing_twice_is_said(kcr: Kcr, driver: Driver) -> None:
    driver.up()
    driver.process()
    assert kcr.json("ledger", "repeated", "flights") == []
    assert "has started nothing twice" in kcr("ledger", "repeated", "flights", "-o", "table").stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("record", "flights", "t:0"), "'t:0' is not one record: write TOPIC:PARTITION:OFFSET"),
        (("record", "flights", "t:9:1"), "region flights has no partition t:9"),
        (("record", "flights", "t:0:1", "-g", "x"), "region flights has no group x; it has: g"),
        (("repeated", "flights", "-g", "x"), "region flights has no group x; it has: g"),
    ],
)
def test_what_the_region_does_not_have_is_refused(
    kcr: Kcr, played: Driver, arguments: tuple[str, ...], said: str
) -> None:
    assert said in kcr.refused("ledger", *arguments, status=2)


def test_the_same_from_python(database_url: str, played: Driver) -> None:
    with Region("flights", database_url) as region:
        (found,) = region.record("t:0:3")
        assert found.starts[0].runs == (RUN,)
        assert sum(one.offsets for one in region.repeated()) == 10
