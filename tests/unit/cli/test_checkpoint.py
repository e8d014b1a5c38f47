from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_kcr.protocol import documents
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import GroupId, Offset
from tests.support.driver import Driver
from tests.support.live_region import SPEC, FakeCluster, live_region
from tests.unit.cli.conftest import Kcr


@pytest.fixture
def checkpoint(driver: Driver) -> Driver:
    """A region with one checkpoint."""
    driver.up()
    driver.process()
    driver.checkpoint("n")
    return driver


def test_a_region_without_a_checkpoint_says_how_to_get_one(kcr: Kcr, driver: Driver) -> None:
    assert kcr.json("checkpoint", "list", "flights") == []
    called = kcr("checkpoint", "list", "flights", "-o", "table")
    assert called.stdout == ""
    assert "kcr region drain flights" in called.stderr


def test_checkpoints_are_listed_and_shown(kcr: Kcr, checkpoint: Driver) -> None:
    [row] = kcr.json("checkpoint", "list", "flights")
    assert (row["sequence"], row["state"], row["kept_because"]) == (2, "published", "it is the restore point")
    shown = kcr.json("checkpoint", "show", "flights", 2)
    assert shown["requested_by"] == {"dag_id": None, "run_id": None}
    place = {"group": "g", "topic": "t", "partition": 3}
    assert shown["offsets"][3] == {**place, "offset": 10, "committed": 10, "position": 10}


def test_a_checkpoint_and_the_plan_of_a_reset_name_the_tables(kcr: Kcr, driver: Driver, cluster: FakeCluster) -> None:
    driver.up()
    delays = TableVersion(
        group=GroupId("g"), sink="out", catalog="lake", table="db.delays", files=2, rows=1_000, version="7311", tag="t"
    )
    sums = replace(delays, sink="sums", catalog="", table="/lake/sums", files=1, rows=3, tag="")
    for request_id in ("n1", "n2"):
        driver.process(width=10)
        driver.request_checkpoint(request_id)
        driver.complete()
        driver.publish((delays, sums))
    sequence = max(driver.region.checkpoints)
    document = documents.write(delays, TableVersion)
    assert document == {
        "group": "g",
        "sink": "out",
        "catalog": "lake",
        "table": "db.delays",
        "files": 2,
        "rows": 1000,
        "version": "7311",
        "tag": "t",
    }
    assert kcr.json("checkpoint", "show", "flights", sequence)["tables"][0] == document
    shown = kcr("checkpoint", "show", "flights", sequence, "-o", "table").stdout
    assert "db.delays at t; /lake/sums at 7311" in shown
    plan = kcr.json("reset", "plan", "flights", "--to-initial")
    assert [(one["table"], one["files"], one["rows"]) for one in plan["tables"]] == [
        ("db.delays", 4, 2_000),
        ("/lake/sums", 2, 6),
    ]
    said = kcr("reset", "plan", "flights", "--to-initial", "-o", "table").stdout
    assert "db.delays (2,000 row(s) in 4 file(s)), /lake/sums (6 row(s) in 2 file(s))" in said
    assert kcr.json("reset", "plan", "flights", "--to-checkpoint", sequence)["tables"] == []


def test_a_long_list_is_shown_page_by_page_and_each_says_how_to_see_the_one_before(
    kcr: Kcr, checkpoint: Driver
) -> None:
    for number in range(4):
        checkpoint.process()
        checkpoint.checkpoint(f"more-{number}")
    called = kcr("checkpoint", "list", "flights", "--last", "2", "-o", "json")
    assert [row["sequence"] for row in json.loads(called.stdout)] == [5, 6]
    assert "older ones: kcr checkpoint list flights --before 5" in called.stderr
    assert [row["sequence"] for row in kcr.json("checkpoint", "list", "flights", "--last", 2, "--before", 5)] == [3, 4]
    last = kcr("checkpoint", "list", "flights", "--last", "2", "--before", "3", "-o", "json")
    assert [row["sequence"] for row in json.loads(last.stdout)] == [2]
    assert "older ones" not in last.stderr
    assert "no checkpoint before 2" in kcr("checkpoint", "list", "flights", "--before", "2", "-o", "table").output


def test_a_checkpoint_is_written_for_other_consumers(kcr: Kcr, checkpoint: Driver) -> None:
    assert kcr("checkpoint", "show", "flights", 2, "-o", "csv").stdout == "t,0,10\nt,1,10\nt,2,10\nt,3,10\n"
    spark = kcr("checkpoint", "show", "flights", 2, "--group", "g", "-o", "spark").stdout
    assert json.loads(spark) == {"t": {"0": 10, "1": 10, "2": 10, "3": 10}}
    for output in ("csv", "spark"):
        why = kcr.refused("checkpoint", "show", "flights", 2, "--group", "h", "-o", output, status=3)
        assert "checkpoint 2 has no offsets of that group" in why


def test_a_query_goes_on_where_one_group_stands(kcr: Kcr, database_url: str) -> None:
    group = SPEC.splitlines()[3]
    two = f"{group}\n{group.replace('id: g', 'id: h')}"
    with live_region(database_url, SPEC.replace(group, two), partitions=2) as driver:
        driver.up()
        driver.process()
        driver.checkpoint("n")
        assert "name it: g, h" in kcr.refused("checkpoint", "show", "flights", 2, "-o", "spark", status=2)
        one = kcr("checkpoint", "show", "flights", 2, "--group", "h", "-o", "spark")
        assert json.loads(one.stdout) == {"t": {"0": 10, "1": 10}}
        csv = kcr("checkpoint", "show", "flights", 2, "-o", "csv").stdout
        assert csv == "g,t,0,10\ng,t,1,10\nh,t,0,10\nh,t,1,10\n"


def test_a_checkpoint_that_is_not_complete_is_no_place_for_other_consumers(kcr: Kcr, checkpoint: Driver) -> None:
    checkpoint.process()
    checkpoint.request_checkpoint("more")
    checkpoint.contribute(checkpoint.member(0))
    for output in ("csv", "spark"):
        why = kcr.refused("checkpoint", "show", "flights", 3, "-o", output, status=3)
        assert "another consumer can't go on there" in why


def test_a_checkpoint_is_pinned_and_unpinned(kcr: Kcr, checkpoint: Driver) -> None:
    kcr.json("checkpoint", "pin", "flights", 2, "--label", "keep", "--reason", "to be sure")
    assert kcr.json("checkpoint", "list", "flights")[0]["pinned_as"] == "keep"
    kcr.json("checkpoint", "unpin", "flights", 2)
    assert kcr.json("checkpoint", "list", "flights")[0]["pinned_as"] is None


@pytest.mark.parametrize("verb", ["show", "pin", "unpin", "compare", "repair"])
def test_an_unknown_checkpoint_is_refused(kcr: Kcr, checkpoint: Driver, cluster: FakeCluster, verb: str) -> None:
    assert "has no checkpoint 7" in kcr.refused("checkpoint", verb, "flights", 7, status=3)


def test_a_sequence_is_a_positive_number(kcr: Kcr, checkpoint: Driver) -> None:
    assert kcr("checkpoint", "show", "flights", "0").exit_code == 2
    assert kcr("checkpoint", "show", "flights", "newest").exit_code == 2


def test_retirement_answers_with_what_it_forgot(kcr: Kcr, checkpoint: Driver) -> None:
    assert kcr.json("checkpoint", "retire", "flights") == {"region": "flights", "retired": []}


def test_a_checkpoint_is_held_against_kafka(kcr: Kcr, checkpoint: Driver, cluster: FakeCluster) -> None:
    cluster.held = {checkpoint.partition(n): 10 for n in range(4)}
    assert {row["finding"] for row in kcr.json("checkpoint", "compare", "flights", 2)} == {"equal"}
    table = kcr("checkpoint", "compare", "flights", 2, "-o", "table").stdout.splitlines()
    assert table[0].split() == ["group", "topic", "partition", "offset", "committed", "log_start", "log_end", "finding"]
    assert table[1].split() == ["g", "t", "0", "10", "10", "0", "1000", "equal"]


# -- repair -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def unheld(driver: Driver) -> int:
    """The sequence of a restore point of which Kafka holds something else."""
    driver.up()
    driver.process()
    driver.request_checkpoint("n")
    sequence = driver.complete()
    driver.publish()
    driver.read_back(driver.member(0), dict.fromkeys(driver.claims(driver.member(0)), Offset(3)))
    return sequence


def test_the_restore_point_is_repaired_and_what_kafka_holds_then_is_shown(
    kcr: Kcr, unheld: int, cluster: FakeCluster
) -> None:
    shown = kcr.json("checkpoint", "repair", "flights", unheld)
    assert {row["committed"] for row in shown["offsets"]} == {row["offset"] for row in shown["offsets"]} == {10}
    assert set(cluster.held.values()) == {10}
    assert "committed  yes" in kcr("checkpoint", "repair", "flights", unheld, "-o", "table").stdout


def test_with_members_in_the_group_nothing_is_repaired(kcr: Kcr, unheld: int, cluster: FakeCluster) -> None:
    cluster.inside = "somebody"
    assert "somebody" in kcr.refused("checkpoint", "repair", "flights", unheld, status=3)
    assert cluster.held == {}
    assert [row["committed"] for row in kcr.json("checkpoint", "list", "flights")] == ["no"]


def test_only_the_restore_point_is_repaired(kcr: Kcr, driver: Driver, unheld: int, cluster: FakeCluster) -> None:
    driver.process()
    driver.checkpoint("later")
    assert "not the restore point" in kcr.refused("checkpoint", "repair", "flights", unheld, status=3)
    assert cluster.held == {}


def test_of_a_restore_point_that_is_a_reset_it_says_who_tells_kafka(
    kcr: Kcr, driver: Driver, cluster: FakeCluster
) -> None:
    driver.up()
    said = kcr.refused("checkpoint", "repair", "flights", driver.region.restore_sequence, status=3)
    assert "is a reset and no checkpoint; Kafka is told its offsets when" in said
    assert cluster.held == {}
