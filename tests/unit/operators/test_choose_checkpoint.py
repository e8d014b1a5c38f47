from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.operators.reset import KcrApproveResetOperator, KcrChooseCheckpointOperator
from airflow_kcr.protocol.region.commands import PinCheckpoint
from airflow_kcr.protocol.region.rows import CheckpointPurpose, Requester
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import CheckpointNumber, Offset
from tests.support.airflow_tasks import FakeTask, task_context
from tests.support.driver import Driver
from tests.support.live_region import live_region
from tests.support.reset_tasks import World, answer, asked, with_two_checkpoints
from tests.support.scripts import boundary, located, rewind
from tests.support.words import values_in


@pytest.fixture
def driver(driver: Driver) -> Driver:
    with_two_checkpoints(driver)
    return driver


def choose(newest: int = 20) -> KcrChooseCheckpointOperator:
    return KcrChooseCheckpointOperator(task_id="choose", region="flights", newest=newest)


CONTEXT = task_context(FakeTask(task_id="choose"))


def test_the_list_is_made_when_the_task_runs(driver: Driver, world: World) -> None:
    driver.handle(PinCheckpoint(sequence=CheckpointNumber(2), label="before-upgrade", reason=""))
    asked(choose(), CONTEXT)
    assert world.shown["subject"] == "Reset region flights: to which checkpoint?"
    assert world.shown["options"] == ["Choose", "Cancel"]
    assert world.shown["defaults"] is None
    form = world.shown["params"]["checkpoint"]
    assert (form["value"], form["schema"]["enum"]) == (3, [3, 2])
    labels = form["schema"]["values_display"]
    assert labels["2"].endswith("· monday · 800 records again · pinned as before-upgrade")
    assert labels["3"].endswith(" UTC · 400 records again")
    assert world.shown["params"]["reason"]["schema"]["type"] == ["null", "string"]
    rows = world.shown["body"].splitlines()
    assert rows[0] == "| Checkpoint | Boundary | DAG runs answered | Records again | Made at | Pinned as |"
    assert [row.split(" | ")[:4] for row in rows[2:]] == [
        ["| 3", "", "none", "400"],
        ["| 2", "", "flights_checkpoint / monday", "800"],
    ]


def test_a_checkpoint_of_the_region_s_own_is_shown_with_its_boundary_and_the_runs_that_it_answered_later(
    store_connection: str, world: World
) -> None:
    with live_region(store_connection) as driver:
        driver.up()
        driver.process(width=10)
        located(driver, boundary(1), 10)
        driver.request_checkpoint(
            f"boundary:{boundary(1).isoformat()}", boundary=boundary(1), purpose=CheckpointPurpose.SCHEDULE
        )
        sequence = driver.complete()
        driver.publish()
        for run in ("monday", "again", "third", "fourth"):
            requester = Requester(dag_id="flights_checkpoint", run_id=run)
            assert driver.request_checkpoint(run, boundary=boundary(1), requester=requester).sequence == sequence
        asked(choose(), CONTEXT)
        at = f"{boundary(1):%Y-%m-%d %H:%M:%S} UTC"
        labels = world.shown["params"]["checkpoint"]["schema"]["values_display"]
        assert labels[str(sequence)] == f"{sequence} · boundary {at} · monday and 3 more · moves nothing"
        (row,) = (line for line in world.shown["body"].splitlines() if line.startswith(f"| {sequence} "))
        runs = "flights_checkpoint / monday, flights_checkpoint / again, flights_checkpoint / third and 1 more"
        assert row.split(" | ")[1:4] == [at, runs, "moves nothing"]
        assert values_in(world.shown["body"]) == []


def test_the_newest_checkpoint_that_would_move_something_is_proposed(driver: Driver, world: World) -> None:
    idle = [driver.checkpoint(request_id) for request_id in ("third", "fourth")]
    asked(choose(), CONTEXT)
    form = world.shown["params"]["checkpoint"]
    assert form["schema"]["enum"][:2] == idle[::-1]
    assert form["value"] == 3
    assert form["schema"]["values_display"][str(idle[0])].endswith("· moves nothing")
    assert "moves no partition" not in world.shown["body"]


def test_where_no_checkpoint_would_move_anything_the_question_says_so(driver: Driver, world: World) -> None:
    newest = [driver.checkpoint(request_id) for request_id in ("third", "fourth")][-1]
    asked(choose(newest=2), CONTEXT)
    form = world.shown["params"]["checkpoint"]
    assert (form["value"], len(form["schema"]["enum"])) == (newest, 2), "only so many are shown"
    assert world.shown["body"].startswith("Nothing has been processed since any of these checkpoints")


def test_what_retention_has_overtaken_is_not_in_the_list(driver: Driver, world: World) -> None:
    driver.grow(driver.partition(1), start=150, end=1_000)
    driver.checkpoint("third")
    asked(choose(), CONTEXT)
    assert world.shown["params"]["checkpoint"]["schema"]["enum"] == [4, 3]


def test_the_choice_is_returned_with_who_and_why(driver: Driver, world: World) -> None:
    bare = choose().execute_complete(CONTEXT, answer("Choose", by=None, checkpoint=2, reason=None))
    assert (bare["by"], bare["reason"]) == ("", "")
    found = choose().execute_complete(CONTEXT, answer("Choose", checkpoint=2, reason="wrong rates"))
    assert found == {
        "region": "flights",
        "target": "to-checkpoint",
        "value": "2",
        "by": "ada",
        "reason": "wrong rates",
    }


def test_a_target_that_the_run_names_is_asked_of_nobody(driver: Driver, world: World) -> None:
    named = KcrChooseCheckpointOperator(
        task_id="choose", region="flights", target="to-offset", values={"offset": 7}, reason="wrong rates"
    )
    assert named.execute(task_context(FakeTask(task_id="choose"), user="ada")) == {
        "region": "flights",
        "target": "to-offset",
        "value": "7",
        "by": "ada",
        "reason": "wrong rates",
    }
    assert world.shown == {}


@pytest.mark.parametrize(
    ("target", "value", "said"),
    [("to-offset", "6h", "needs a whole number, got '6h'"), ("to-latest", 6, "to-latest does not take offset")],
)
def test_a_value_that_is_none_of_its_target_fails_for_good_before_the_store_is_asked(
    world: World, target: str, value: object, said: str
) -> None:
    named = KcrChooseCheckpointOperator(task_id="choose", region="nowhere", target=target, values={"offset": value})
    with pytest.raises(AirflowFailException, match=said):
        named.execute(CONTEXT)


def test_a_target_without_its_value_is_asked_for_the_value_alone(driver: Driver, world: World) -> None:
    def named() -> KcrChooseCheckpointOperator:
        return KcrChooseCheckpointOperator(
            task_id="choose", region="flights", target="to-offset", values={"offset": None}
        )

    asked(named(), CONTEXT)
    assert world.shown["subject"] == "Reset region flights: to-offset needs a value"
    assert world.shown["params"].keys() == {"offset", "reason"}
    assert world.shown["params"]["offset"]["schema"]["type"] == "integer", "it has to be filled in"
    chosen = named().execute_complete(CONTEXT, answer("Choose", offset=120, reason="wrong rates"))
    assert (chosen["target"], chosen["value"], chosen["by"]) == ("to-offset", "120", "ada")
    assert driver.region.reset_answers[-1].who == "ada"
    with pytest.raises(AirflowFailException, match=r"needs a value.*with an offset"):
        named().execute_complete(CONTEXT, answer("Choose", offset=None, reason=None))


def test_the_reason_of_the_run_is_proposed(driver: Driver, world: World) -> None:
    asked(KcrChooseCheckpointOperator(task_id="choose", region="flights", reason="wrong rates"), CONTEXT)
    assert world.shown["params"]["reason"]["value"] == "wrong rates"


def test_times_are_in_the_zone_of_airflow(driver: Driver, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DEFAULT_TIMEZONE", "Asia/Tokyo")
    asked(choose(), CONTEXT)
    assert " JST · 400 records again" in world.shown["params"]["checkpoint"]["schema"]["values_display"]["3"]
    assert " JST |" in world.shown["body"]


@pytest.mark.parametrize("checkpoint", [77, "two", None, True, -2])
def test_an_answer_that_was_not_in_the_list_is_refused(driver: Driver, world: World, checkpoint: object) -> None:
    with pytest.raises(AirflowFailException) as refused:
        choose().execute_complete(CONTEXT, answer("Choose", checkpoint=checkpoint))
    assert "clear" not in str(refused.value)


def test_what_was_undone_meanwhile_is_refused(driver: Driver, world: World) -> None:
    rewind(driver, ToOffset(offset=Offset(150)))
    with pytest.raises(
        AirflowFailException, match=r"checkpoint 3 is not on the current timeline any more\. Nothing was reset; trigger"
    ):
        choose().execute_complete(CONTEXT, answer("Choose", checkpoint=3))


def test_cancelled_it_is_skipped(driver: Driver, world: World) -> None:
    with pytest.raises(AirflowSkipException, match="ada cancelled"):
        choose().execute_complete(CONTEXT, answer("Cancel", checkpoint=2))


def test_a_region_without_a_checkpoint_has_nothing_to_choose(store_connection: str, world: World) -> None:
    with live_region(store_connection) as driver:
        driver.up()
        with pytest.raises(AirflowFailException, match="no complete checkpoint"):
            choose().execute(CONTEXT)


def test_nobody_answering_is_a_failure(driver: Driver, world: World) -> None:
    with pytest.raises(AirflowFailException, match="no answer within"):
        choose().execute_complete(CONTEXT, {"error": "The timeout has passed", "error_type": "timeout"})


def test_a_question_that_airflow_lost_is_asked_again() -> None:
    assert choose().retries == 2
    assert KcrChooseCheckpointOperator(task_id="choose", region="flights", retries=0).retries == 0


@pytest.mark.parametrize("asks", [KcrChooseCheckpointOperator, KcrApproveResetOperator])
def test_a_default_answer_is_refused(
    asks: type[KcrChooseCheckpointOperator] | type[KcrApproveResetOperator],
) -> None:
    with pytest.raises(ConfigurationError, match="takes no defaults"):
        asks(task_id="ask", region="flights", defaults="Approve")
