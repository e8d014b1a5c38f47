from __future__ import annotations

import asyncio
import importlib
import json
from typing import Any

import pytest

from airflow_kcr.goals import MembersEnded, RequestPublished
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.values import GroupId, RequestId
from airflow_kcr.triggers.payloads import Status, TriggerAnswer
from airflow_kcr.triggers.waits import RegionTrigger
from tests.support.driver import Driver
from tests.unit.triggers.conftest import running, until

pytestmark = pytest.mark.usefixtures("quick")


def trigger(**changed: object) -> RegionTrigger:
    arguments: dict[str, Any] = {
        "kcr_conn_id": "kcr_default",
        "region": "flights",
        "waiting_for": RequestPublished(request_id=RequestId("n")).to_json(),
        "deadline": 60.0,
        "asked_at": "",
    }
    return RegionTrigger(**{**arguments, **changed})


async def answer(made: RegionTrigger) -> TriggerAnswer:
    events = [TriggerAnswer.from_json(event.payload) async for event in made.run()]
    assert len(events) == 1
    return events[0]


def test_it_is_made_anew_from_what_it_is_stored_as() -> None:
    made = trigger(asked_at="2026-01-01T00:00:00Z", deadline=12.5)
    path, arguments = json.loads(json.dumps(made.serialize()))
    module, _, name = path.rpartition(".")
    again = getattr(importlib.import_module(module), name)(**arguments)
    assert again.serialize() == made.serialize()


def test_no_secret_is_stored_with_it(store_connection: str) -> None:
    assert "postgres" not in repr(trigger().serialize())


def test_it_waits_and_says_once_that_it_is_reached(driver: Driver) -> None:
    driver.request_checkpoint("n")

    async def main() -> None:
        task = asyncio.create_task(answer(trigger()))
        await asyncio.sleep(0.2)
        assert not task.done()
        driver.complete()
        driver.publish()
        assert await task == TriggerAnswer(status=Status.REACHED)

    running(main)


def test_two_of_it_say_the_same_and_change_nothing(driver: Driver) -> None:
    driver.checkpoint("n")
    before = driver.region.counter

    async def main() -> None:
        answers = await asyncio.gather(answer(trigger()), answer(trigger()))
        assert list(answers) == [TriggerAnswer(status=Status.REACHED)] * 2

    running(main)
    assert driver.region.counter == before


def test_a_request_outlives_the_trigger_that_waited_for_it(driver: Driver) -> None:
    driver.request_checkpoint("n")

    async def main() -> None:
        made = trigger()
        task = asyncio.create_task(answer(made))
        await until(lambda: len(asyncio.all_tasks()) > 2)
        task.cancel()
        await asyncio.wait([task])
        await made.on_kill()
        await made.cleanup()
        driver.complete()
        driver.publish()
        assert await answer(trigger()) == TriggerAnswer(status=Status.REACHED)

    running(main)


def waits_for_an_application(driver: Driver) -> RegionTrigger:
    waiting_for = MembersEnded(
        group=GroupId("g"), indexes=(0, 1), before=(0, 0), last_request="dag/run/consume/0/try 1"
    )
    return trigger(waiting_for=waiting_for.to_json())


def test_a_killed_task_has_its_application_in_a_cluster_asked_to_end(driver: Driver) -> None:
    made = waits_for_an_application(driver)
    driver.process(driver.member(0), width=10)
    running(made.on_kill)
    request = driver.region.requests[RequestId("dag/run/consume/0/try 1")]
    assert (request.purpose, request.requester.reason) == ("drain", "the task was killed")


def test_an_application_that_can_not_be_told_to_end_is_named_in_the_log(
    driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.handle(KillRegion())
    running(waits_for_an_application(driver).on_kill)
    assert "was not told to end: region flights is stopped" in capsys.readouterr().out
    assert not driver.region.requests


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kcr_conn_id": "nowhere"}, "no Airflow connection 'nowhere'"),
        ({"region": "Flights!"}, "a-z"),
        ({"waiting_for": {"kind": "moon"}}, "clear the task"),
        ({"asked_at": "yesterday"}, "not a time"),
        ({"waiting_for": {"kind": "checkpoint_exists", "boundary": "yesterday"}}, "another version"),
        ({"waiting_for": {"kind": "checkpoint_committed", "sequence": 77}}, "no checkpoint 77"),
        ({"waiting_for": {"kind": "reset_done", "request_id": "p"}}, "'p'"),
        ({"waiting_for": {"kind": "checkpoint_published", "request_id": "never"}}, "request with the id 'never'"),
        ({"waiting_for": {"kind": "region_reaches", "state": "stopped"}}, "desired state running"),
    ],
    ids=str,
)
def test_what_can_not_be_waited_for_is_refused_at_once(driver: Driver, changed: dict[str, Any], said: str) -> None:
    async def main() -> None:
        found = await answer(trigger(**changed))
        assert found.status is Status.REFUSED
        assert said in found.detail

    running(main)


def test_a_store_without_a_schema_is_refused_with_what_to_do(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.airflow_home import connection_json

    monkeypatch.setenv("AIRFLOW_CONN_KCR_DEFAULT", connection_json(empty_database_url))

    async def main() -> None:
        found = await answer(trigger())
        assert found.status is Status.REFUSED
        assert "kcr store upgrade" in found.detail

    running(main)
