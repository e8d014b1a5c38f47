from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_kcr.protocol.values import GroupId, GroupPartition, TopicName
from tests.support.driver import Driver
from tests.support.live_region import SPEC, FakeCluster, live_region
from tests.unit.cli.conftest import Kcr, Meanwhile


@pytest.fixture
def fresh(database_url: str) -> Iterator[Driver]:
    """A region that has never run, with one group that reads `t`."""
    with live_region(database_url, SPEC) as driver:
        yield driver


@pytest.fixture
def query(tmp_path: Path) -> Path:
    """A query of `t`: batch 4 is committed, batch 5 was planned."""
    for folder, number, text in (
        ("commits", 4, "{}"),
        ("offsets", 4, '{}\n{"t":{"0":100,"1":200,"2":300},"u":{"0":1}}'),
        ("offsets", 5, '{}\n{"t":{"0":100,"1":250,"2":300},"u":{"0":1}}'),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / str(number)).write_text(f"v1\n{text}")
    return tmp_path


def committed(cluster: FakeCluster, *offsets: int, group: str = "legacy") -> None:
    cluster.held = {GroupPartition(GroupId(group), TopicName("t"), n): o for n, o in enumerate(offsets)}


def test_a_query_is_compared_with_the_logs_and_taken_over(
    kcr: Kcr, fresh: Driver, cluster: FakeCluster, query: Path, tmp_path: Path
) -> None:
    cluster.starts, before = {0: 130}, sorted((p, p.stat().st_mtime_ns) for p in query.rglob("*"))
    plan = tmp_path / "plan.json"
    called = kcr("adopt", "--spark-checkpoint", query, "--region", "flights", "--save", plan, "-o", "json")
    assert called.exit_code == 0, called.stderr
    found = json.loads(called.stdout)
    assert [(p["offset"], p["to_read"], p["may_repeat"], p["left_out"]) for p in found["partitions"]] == [
        (130, 870, 0, 30),
        (200, 800, 50, 0),
        (300, 700, 0, 0),
        (0, 1000, 0, 0),
    ]
    assert [p["note"] for p in found["partitions"]] == [
        "retention has deleted offsets 100 to 130",
        "started up to 250 and not finished",
        "",
        "nothing of it was finished, so it is read from its beginning",
    ]
    assert "batch 5 was planned and not committed" in called.stderr
    assert "left out: u, which the region does not read" in called.stderr
    assert sorted((p, p.stat().st_mtime_ns) for p in query.rglob("*") if p != plan) == before
    assert (cluster.held, len(fresh.events)) == ({}, 1), "nothing is changed"

    kcr.json("reset", "apply", plan, "--reason", "taken over from the query")
    assert [o for _, o in sorted(fresh.region.initial_offsets().items())] == [130, 200, 300, 0]
    [reset] = kcr.json("reset", "list", "flights")
    assert reset["reason"] == "taken over from the query"


def test_without_a_region_a_query_is_shown(kcr: Kcr, query: Path) -> None:
    found = kcr.json("adopt", "--spark-checkpoint", query)
    assert found["offsets"][1] == {"topic": "t", "partition": 1, "offset": 200}
    assert found["started"] == [{"topic": "t", "partition": 1, "offset": 250}]
    assert "(batch 4)" in kcr("adopt", "--spark-checkpoint", query, "-o", "table").stdout


def test_a_group_is_taken_over_by_the_region_that_has_it_or_another(
    kcr: Kcr, fresh: Driver, cluster: FakeCluster
) -> None:
    committed(cluster, 10, 20, 30, 40, group="g")
    called = kcr("adopt", "--group", "g", "-o", "csv")
    assert called.stdout == "t,0,10\nt,1,20\nt,2,30\nt,3,40\n"
    committed(cluster, 10, 20)
    found = kcr.json("adopt", "--group", "legacy", "--region", "flights")
    assert [p["offset"] for p in found["partitions"]] == [10, 20, 0, 0]
    assert "no region of the store has group legacy" in kcr.refused("adopt", "--group", "legacy", status=2)
    table = kcr("adopt", "--group", "legacy", "--region", "flights", "-o", "table")
    assert "nothing was changed; to apply it" in table.stderr


def test_only_the_groups_that_are_named_take_over(kcr: Kcr, database_url: str, cluster: FakeCluster) -> None:
    group = SPEC.splitlines()[3]
    with live_region(database_url, SPEC.replace(group, f"{group}\n{group.replace('id: g', 'id: h')}")):
        committed(cluster, 10, 20, 30, 40)
        called = kcr("adopt", "--group", "legacy", "--region", "flights", "--into", "h", "-o", "json")
        found = json.loads(called.stdout)
        assert [(p["group"], p["offset"]) for p in found["partitions"]] == [("h", 10), ("h", 20), ("h", 30), ("h", 40)]
        assert [p["target"] for p in found["plan"]["entries"]] == [0, 0, 0, 0, 10, 20, 30, 40]
        assert "other partitions, of t, begin where the spec's start says" in called.stderr
        assert "has no group i" in kcr.refused(
            "adopt", "--group", "legacy", "--region", "flights", "--into", "i", status=2
        )


def test_a_region_that_has_run_takes_over_as_by_any_reset(
    kcr: Kcr, driver: Driver, cluster: FakeCluster, query: Path, tmp_path: Path, meanwhile: Meanwhile
) -> None:
    driver.up()
    driver.process()
    plan = tmp_path / "plan.json"
    found = json.loads(
        kcr("adopt", "--spark-checkpoint", query, "--region", "flights", "--save", plan, "-o", "json").stdout
    )
    assert [(p["current"], p["target"]) for p in found["plan"]["entries"]] == [(10, 100), (10, 200), (10, 300), (10, 0)]


@pytest.mark.parametrize(
    ("offsets", "inside", "status", "why"),
    [
        ((10, 2000), "", 3, "stands beyond the end of 1 log(s): g:t-1 at 2000, where the log ends at 1000"),
        ((1, 2, 3, 4, 5), "", 2, "has offsets of t-4, which region flights does not have"),
        ((), "", 2, "group legacy has no committed offset"),
        ((1,), "etl-7 on 10.0.0.7", 3, "group legacy is stable, with 1 member(s): etl-7 on 10.0.0.7"),
    ],
)
def test_what_can_not_be_taken_over_is_refused(
    kcr: Kcr, fresh: Driver, cluster: FakeCluster, offsets: tuple[int, ...], inside: str, status: int, why: str
) -> None:
    committed(cluster, *offsets)
    cluster.inside = inside
    assert why in kcr.refused("adopt", "--group", "legacy", "--region", "flights", status=status)


def test_a_group_may_be_on_any_of_several_clusters(kcr: Kcr, database_url: str, cluster: FakeCluster) -> None:
    group = SPEC.splitlines()[3]
    other = group.replace("id: g", "id: h").replace(
        "members: 2", "members: 2, kafka: {bootstrap.servers: 'b.invalid:1'}"
    )
    with live_region(database_url, SPEC.replace(group, f"{group}\n{other}")):
        committed(cluster, 10, 20)
        why = kcr.refused("adopt", "--group", "legacy", "--region", "flights", status=2)
        assert "are on several clusters, and legacy may be on any of them" in why
        committed(cluster, 10, 20, group="h")
        found = kcr.json("adopt", "--group", "h", "--into", "h")
        assert [p["offset"] for p in found["partitions"]] == [10, 20, 0, 0]


def test_a_query_of_other_topics_is_refused(kcr: Kcr, fresh: Driver, cluster: FakeCluster, query: Path) -> None:
    cluster.counts = {TopicName("v"): 1}
    why = kcr.refused("adopt", "--spark-checkpoint", query, "--region", "flights", status=2)
    assert "reads t, u, of which region flights reads none" in why


def test_either_a_query_or_a_group_is_named(kcr: Kcr, query: Path) -> None:
    assert "name either" in kcr.refused("adopt", "--region", "flights", status=2)
    assert "name either" in kcr.refused("adopt", "--group", "g", "--spark-checkpoint", query, status=2)
