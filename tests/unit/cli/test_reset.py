from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import Offset
from tests.support.driver import Driver
from tests.support.live_region import SPEC, FakeCluster, live_region
from tests.support.scripts import rewind
from tests.unit.cli.conftest import Kcr, Meanwhile

UPSERTING = SPEC.replace(
    "pipeline: 'jobs.flights:process'}",
    "pipeline: 'jobs.flights:process', sinks: {rates: {kind: postgres, url: '${URL}', table: rates, mode: upsert, "
    "key: [day]}}}",
)


@pytest.fixture
def checkpoint(driver: Driver, cluster: FakeCluster) -> Driver:
    """A region with one checkpoint, at 10, and positions at 20."""
    driver.up()
    driver.process()
    driver.checkpoint("n")
    driver.process()
    return driver


# -- plan ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_shown_as_json(kcr: Kcr, checkpoint: Driver) -> None:
    plan = kcr.json("reset", "plan", "flights", "--to-checkpoint", 2, "--topic", "t:0,1")
    assert (plan["region"], plan["epoch"]) == ("flights", 1)
    assert (plan["target"], plan["scope"]) == ("to-checkpoint 2", "--topic t:0,1")
    entry = plan["entries"][0]
    assert (entry["partition"], entry["current"], entry["target"], entry["source"]) == (0, 20, 10, "merged")
    assert (entry["replay"], entry["skip"], entry["log_start"], entry["log_end"]) == (10, 0, 0, 1000)
    assert [entry[word] for word in ("clamped", "unreachable", "recreated", "in_scope")] == [False, False, False, True]
    assert plan["totals"] == {"partitions": 4, "moved": 2, "replay": 20, "skip": 0, "clamped": 0, "unreachable": 0}


@pytest.mark.parametrize(
    ("option", "goes_to"),
    [
        (["--to-checkpoint", 2], 10),
        (["--to-initial"], 0),
        (["--to-current"], 20),
        (["--to-earliest"], 0),
        (["--to-latest"], 1000),
        (["--to-datetime", "2026-01-01T00:00:00Z"], 15),
        (["--to-datetime", "2026-01-01T00:00:00", "--timezone", "Europe/Zurich"], 15),
        (["--by-duration", "6h"], 15),
        (["--shift-by", "-5"], 15),
        (["--to-offset", 12], 12),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else str(value),
)
def test_every_target_is_an_option(
    kcr: Kcr, checkpoint: Driver, cluster: FakeCluster, option: list[object], goes_to: int
) -> None:
    cluster.found = dict.fromkeys(range(4), 15)
    plan = kcr.json("reset", "plan", "flights", *option)
    assert {(entry["current"], entry["target"]) for entry in plan["entries"]} == {(20, goes_to)}
    moved = 4 * (20 - goes_to)
    assert (plan["totals"]["replay"], plan["totals"]["skip"]) == (max(moved, 0), max(-moved, 0))


@pytest.mark.parametrize("option", [["--to-datetime", "2026-01-01T00:00:00Z"], ["--by-duration", "6h"]])
def test_a_partition_without_a_record_since_a_time_is_told_from_one_that_has_one(
    kcr: Kcr, checkpoint: Driver, cluster: FakeCluster, option: list[str]
) -> None:
    cluster.found = {0: 15}
    rows = kcr("reset", "plan", "flights", *option, "-o", "table").stdout.splitlines()[-4:]
    assert [" ".join(row.split()[4:]) for row in rows] == [
        "15 explicit 5 0",
        *["1000 explicit 0 980 no record since then, the log's end"] * 3,
    ]


def test_the_end_of_a_log_that_was_asked_for_needs_no_note(kcr: Kcr, checkpoint: Driver) -> None:
    assert "no record" not in kcr("reset", "plan", "flights", "--to-latest", "-o", "table").stdout


def test_kafkas_csv_is_written_and_read(kcr: Kcr, checkpoint: Driver, tmp_path: Path) -> None:
    written = kcr("reset", "plan", "flights", "--to-offset", 12, "--topic", "t:1", "-o", "csv")
    assert written.stdout == "t,1,12\n"
    file = tmp_path / "offsets.csv"
    file.write_text(written.stdout)
    plan = kcr.json("reset", "plan", "flights", "--from-file", file)
    assert [entry["target"] for entry in plan["entries"]] == [20, 12, 20, 20]
    from_input = kcr("reset", "plan", "flights", "--from-file", "-", "-o", "csv", text="t,3,7\n")
    assert from_input.stdout == "t,0,20\nt,1,20\nt,2,20\nt,3,7\n"


def test_the_table_has_the_sums_and_every_partition(kcr: Kcr, checkpoint: Driver) -> None:
    called = kcr("reset", "plan", "flights", "--to-checkpoint", 2, "--topic", "t:0", "-o", "table")
    lines = called.stdout.splitlines()
    assert "moves                    1 of 4 partition(s)" in lines
    assert "records processed again  10" in lines
    assert lines[-4].split() == ["g", "t", "0", "20", "10", "merged", "10", "0"]
    assert lines[-1].endswith("out of scope")
    assert "nothing was changed" in called.stderr


def test_a_plan_that_moves_nothing_says_so(kcr: Kcr, checkpoint: Driver) -> None:
    newest = checkpoint.checkpoint("nothing since")
    called = kcr("reset", "plan", "flights", "--to-checkpoint", newest, "-o", "table")
    lines = called.stdout.splitlines()
    assert "moves                    nothing: all 4 partition(s) are at their targets already" in lines


def test_an_unreachable_checkpoint_is_planned_with_a_warning_and_not_applied(
    kcr: Kcr, checkpoint: Driver, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.starts = {0: 11}
    file = tmp_path / "plan.json"
    called = kcr("reset", "plan", "flights", "--to-checkpoint", 2, "--save", file, "-o", "table")
    assert called.exit_code == 0
    assert "unreachable, the log has 11 to 1000" in called.stdout
    assert "this plan is refused" in called.stderr
    assert "the log does not have it" in kcr.refused("reset", "apply", file, "--reason", "r", status=3)


def test_what_is_only_had_by_name_has_a_word_for_it(kcr: Kcr, checkpoint: Driver, cluster: FakeCluster) -> None:
    rewind(checkpoint, ToOffset(offset=Offset(5)))
    assert "--forward" in kcr.refused("reset", "plan", "flights", "--to-checkpoint", 2, status=3)
    plan = kcr.json("reset", "plan", "flights", "--to-checkpoint", 2, "--forward")
    assert {entry["target"] for entry in plan["entries"]} == {10}
    checkpoint.request_checkpoint("later")
    aborted = checkpoint.region.open_checkpoint
    checkpoint.contribute(checkpoint.member(0))
    checkpoint.request_reset(checkpoint.member(0), ResetCause.CLAIM, "a test")
    checkpoint.finish_reset()
    said = kcr.refused("reset", "plan", "flights", "--to-checkpoint", aborted, status=3)
    assert "not complete; allow_partial" in said
    plan = kcr.json("reset", "plan", "flights", "--to-checkpoint", aborted, "--allow-partial")
    assert [entry["source"] for entry in plan["entries"]][:2] == ["merged", "merged"]


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "what"),
    [
        ([], 2, "name a target: one of --to-checkpoint"),
        (["--to-earliest", "--to-latest"], 2, "--to-earliest, --to-latest exclude each other"),
        (["--to-checkpoint", "newest"], 2, "--to-checkpoint needs a whole number"),
        (["--to-checkpoint", "7"], 3, "no checkpoint 7"),
        (["--to-run", "daily/scheduled__2026"], 3, "the run scheduled__2026 of DAG daily"),
        (
            ["--to-datetime", "2026-01-01"],
            2,
            "has no zone; add one, such as Z or +01:00, or name a time zone beside it",
        ),
        (["--to-earliest", "--timezone", "UTC"], 2, "--timezone"),
        (["--by-duration", "soon"], 2, "--by-duration"),
        (["--to-offset", "-1"], 2, "--to-offset needs an offset between 0"),
        (["--to-earliest", "--topic", "other"], 2, "topic other: there is none in scope"),
        (["--to-earliest", "--topic", "t:0,9"], 2, "partition t:9: there is none in scope"),
        (["--to-earliest", "--topic", "t:x"], 2, "write topic:0,1,2"),
        (["--to-earliest", "--group", "nobody"], 2, "group nobody: there is none in scope"),
        (["--from-file", "no-such-file.csv"], 2, "no-such-file.csv can't be read"),
        (["--from-file", "-"], 2, "no line with an offset"),
        (["--to-current", "--skip", "t:0:5000"], 2, "no record to skip in the log"),
    ],
)
def test_bad_input_is_refused(kcr: Kcr, checkpoint: Driver, arguments: list[str], status: int, what: str) -> None:
    before = checkpoint.region.counter
    assert what in kcr.refused("reset", "plan", "flights", *arguments, status=status)
    assert checkpoint.region.counter == before


# -- apply ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan(kcr: Kcr, checkpoint: Driver, tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    kcr("reset", "plan", "flights", "--to-checkpoint", 2, "--save", file)
    return file


def test_a_plan_is_applied_and_waited_for(kcr: Kcr, checkpoint: Driver, plan: Path, meanwhile: Meanwhile) -> None:
    meanwhile(checkpoint.complete, checkpoint.finish_reset)
    done = kcr.json("reset", "apply", plan, "--reason", "  wrong rates ", "--wait")
    assert (done["state"], done["reason"], done["target"]) == ("done", "wrong rates", "to-checkpoint 2")
    assert [claim.position for claim in checkpoint.region.claims.values()] == [10] * 4


def test_a_plan_may_come_through_a_pipe(kcr: Kcr, checkpoint: Driver, plan: Path) -> None:
    called = kcr("reset", "apply", "-", "--reason", "r", "-o", "json", text=plan.read_text())
    assert json.loads(called.stdout)["state"] == "draining"


def test_a_plan_whose_reset_has_failed_says_so_when_it_is_applied_once_more(
    kcr: Kcr, checkpoint: Driver, plan: Path
) -> None:
    assert kcr.json("reset", "apply", plan, "--reason", "r")["state"] == "draining"
    checkpoint.request_reset(checkpoint.member(0), ResetCause.CLAIM, "a test")
    checkpoint.finish_reset()
    said = kcr.refused("reset", "apply", plan, "--reason", "r", status=1)
    assert "its drain was aborted: a reset began (claim)" in said
    assert "plan again to try again" in said


def test_a_plan_without_a_reason_is_wrong_usage(kcr: Kcr, plan: Path) -> None:
    assert "--reason" in kcr.refused("reset", "apply", plan, status=2)
    assert "needs a reason" in kcr.refused("reset", "apply", plan, "--reason", " ", status=2)


@pytest.mark.parametrize(("text", "what"), [("no", "is not JSON"), ("{}", "not a plan"), ("[1]", "not a plan")])
def test_what_is_no_plan_is_refused(kcr: Kcr, checkpoint: Driver, tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    assert what in kcr.refused("reset", "apply", file, "--reason", "r", status=2)


def test_a_plan_of_another_epoch_is_refused(kcr: Kcr, checkpoint: Driver, plan: Path) -> None:
    checkpoint.request_reset(checkpoint.member(0), ResetCause.CLAIM, "a test")
    assert "plan again" in kcr.refused("reset", "apply", plan, "--reason", "r", status=3)


def test_a_halted_region_needs_force(kcr: Kcr, checkpoint: Driver, tmp_path: Path) -> None:
    for _ in range(6):
        checkpoint.request_reset(checkpoint.member(0), ResetCause.BATCH_FAILED, "a poison record")
        checkpoint.finish_reset()
    file = tmp_path / "plan.json"
    kcr("reset", "plan", "flights", "--to-current", "--skip", "t:0:10", "--save", file)
    assert "forced" in kcr.refused("reset", "apply", file, "--reason", "r", status=3)
    forced = kcr.json("reset", "apply", file, "--reason", "r", "--force")
    assert (forced["state"], forced["forced"], forced["skip"]) == ("started", True, [["g", "t", 0, 10]])


def test_a_table_that_can_not_be_restored_needs_consent(
    kcr: Kcr, database_url: str, cluster: FakeCluster, tmp_path: Path
) -> None:
    with live_region(database_url, UPSERTING) as driver:
        driver.up()
        driver.process()
        file = tmp_path / "plan.json"
        planned = kcr("reset", "plan", "flights", "--to-offset", 5, "--save", file, "-o", "table")
        assert (
            "not restored, as mode upsert keeps no history  sink rates of group g (table rates)"
            in planned.stdout.splitlines()
        )
        assert "consent with --consent-upsert" in " ".join(planned.stderr.split())
        assert json.loads(file.read_text())["upserts"] == [{"group": "g", "name": "rates", "table": "rates"}]
        said = kcr.refused("reset", "apply", file, "--reason", "r", status=3)
        assert "sink rates of group g (table rates): mode upsert keeps no history" in said
        assert driver.region.person_resets == {}
        done = kcr.json("reset", "apply", file, "--reason", "r", "--consent-upsert")
        assert (done["state"], done["consent_upsert"]) == ("draining", True)
        driver.complete()
        driver.finish_reset()
        again = kcr.json("reset", "apply", file, "--reason", "r")
        assert again["state"] == "done", "one that is applied is not asked for consent again"


# -- list and show -------------------------------------------------------------------------------------------------


def test_resets_are_listed_and_shown(kcr: Kcr, checkpoint: Driver, plan: Path) -> None:
    kcr.json("reset", "apply", plan, "--reason", "wrong rates")
    checkpoint.complete()
    checkpoint.finish_reset()
    checkpoint.process(width=5)
    start, reset = kcr.json("reset", "list", "flights")
    assert (start["id"], start["cause"], start["attempts"][0]["sequence"]) == ("flights/1", "start", 1)
    assert (reset["id"], reset["reason"], reset["replayed"], reset["undone"]) == ("flights/4", "wrong rates", 20, [3])
    assert kcr.json("reset", "show", "flights/4") == reset
    assert kcr.json("reset", "show", reset["plan"]) == reset
    table = kcr("reset", "list", "flights", "-o", "table").stdout.splitlines()
    assert table[0].split()[:3] == ["id", "state", "cause"]
    shown = kcr("reset", "show", "flights/4", "-o", "table").stdout
    assert "wrong rates" in shown
    rows = kcr("reset", "list", "flights", "-o", "csv").stdout.splitlines()
    assert len(rows) == 3


def test_resets_are_listed_page_by_page(kcr: Kcr, checkpoint: Driver, plan: Path) -> None:
    kcr.json("reset", "apply", plan, "--reason", "wrong rates")
    checkpoint.complete()
    checkpoint.finish_reset()
    whole = kcr.json("reset", "list", "flights")
    newest = kcr("reset", "list", "flights", "--last", "1", "-o", "json")
    assert (newest.exit_code, json.loads(newest.stdout)) == (0, whole[1:])
    assert "older ones: kcr reset list flights --before 4" in newest.stderr
    older = kcr("reset", "list", "flights", "--before", "4", "-o", "json")
    assert (json.loads(older.stdout), older.stderr) == (whole[:1], "")
    none = kcr("reset", "list", "flights", "--before", "1", "-o", "table")
    assert "no reset before 1" in none.stderr


def test_a_region_that_never_ran_was_never_reset(kcr: Kcr, driver: Driver) -> None:
    called = kcr("reset", "list", "flights", "-o", "table")
    assert (called.exit_code, called.stdout) == (0, "")
    assert "never reset" in called.stderr


def test_an_unknown_reset_is_refused(kcr: Kcr, checkpoint: Driver) -> None:
    assert "has no reset" in kcr.refused("reset", "show", "flights/77", status=3)
    assert "REGION/SEQUENCE" in kcr.refused("reset", "show", "77", status=2)
