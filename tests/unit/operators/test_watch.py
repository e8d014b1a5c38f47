"""The task that watches a region: whom it notifies of what, how often, and what it makes of what is away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred
from airflow.providers.slack.notifications.slack import SlackNotifier
from airflow.providers.slack.notifications.slack_webhook import SlackWebhookNotifier
from airflow.providers.smtp.notifications.smtp import SmtpNotifier

from airflow_kcr.dags import watch_dag
from airflow_kcr.errors import ConfigurationError, StoreUnavailable
from airflow_kcr.hooks.kcr import KcrHook
from airflow_kcr.operators.watch import AGAIN, KcrWatchOperator
from airflow_kcr.protocol.region.commands import KillRegion
from airflow_kcr.protocol.values import RegionName, parse_instant
from airflow_kcr.triggers.payloads import Status, TriggerAnswer, waiting_for_from_json
from airflow_kcr.triggers.probes import StoreProbes
from tests.support.airflow_tasks import FakeTask, deferred, resumed, task_context
from tests.support.driver import Driver
from tests.support.endpoint import Receiver
from tests.support.judging import halt_of
from tests.support.mail import MailServer
from tests.support.notifiers import Broken, Pager

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier, Context

HOST = "http://127.0.0.1"
TEXT = "{{ kcr.text }}"


@pytest.fixture
def driver(driver: Driver) -> Driver:
    driver.up()
    return driver


def watch(*notifiers: BaseNotifier, **changed: Any) -> KcrWatchOperator:  # noqa: ANN401
    return KcrWatchOperator(**{"task_id": "watch", "region": "flights", "notifiers": notifiers, **changed})


def looked(operator: KcrWatchOperator, context: Context | None = None) -> TaskDeferred:
    """Have a run look once, and return how it waits for the next change."""
    return deferred(operator, context)


def wanted(waits: TaskDeferred) -> Any:  # noqa: ANN401
    """What a waiting task waits for, as Airflow hands it to a triggerer."""
    return waiting_for_from_json(json.loads(json.dumps(waits.trigger.serialize()[1]["waiting_for"])))


def reasons(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The warnings of the task's log."""
    lines = capsys.readouterr().out.splitlines()
    return [line.partition("[warning  ] ")[2].partition(" [airflow.")[0] for line in lines if "[warning  ]" in line]


def end_halt(driver: Driver) -> None:
    driver.handle(KillRegion())


# Once


def test_people_are_notified_once_when_an_incident_begins_and_once_when_it_is_over(driver: Driver) -> None:
    pager = Pager()
    looked(watch(pager))
    assert pager.said == []
    driver.find_stranger()
    halt = halt_of(driver)
    looked(watch(pager))
    looked(watch(pager))
    begun = f"region flights: halted: {halt.text}; choices: {'; '.join(halt.choices)}"
    assert pager.said == [begun]
    end_halt(driver)
    looked(watch(pager))
    looked(watch(pager))
    assert pager.said[0] == begun
    assert [said[:23] for said in pager.said[1:]] == ["region flights: over si"]


def test_of_two_tasks_that_share_a_name_one_notifies_people_and_of_others_each(driver: Driver) -> None:
    driver.find_stranger()
    pagers = [Pager() for _ in range(4)]
    other = task_context(FakeTask(task_id="watch", dag_id="other"))
    looked(watch(pagers[0]))
    looked(watch(pagers[1]))
    looked(watch(pagers[2]), other)
    looked(watch(pagers[3], watcher="mine"), other)
    assert [len(pager.said) for pager in pagers] == [1, 0, 1, 1]


def test_the_templates_have_every_part_and_are_rendered_again_for_each_incident(driver: Driver) -> None:
    names = ("region", "standing", "incident", "detail", "since", "over_at")
    pager = Pager("|".join(f"{{{{ kcr.{name} }}}}" for name in names))
    operator = watch(pager)
    driver.find_stranger()
    looked(operator)
    end_halt(driver)
    looked(operator)
    begun, over = pager.said
    detail = begun.split("|")[3]
    assert begun == f"flights|halted|halted|{detail}||"
    assert detail.startswith("consumer stranger on host host in group g; choices: ")
    assert over.startswith(f"flights|stopped|halted|{detail}||")
    assert parse_instant(over.split("|")[5]) <= driver.store.read(driver.name)[1]


# Waiting


def test_between_two_looks_it_waits_without_a_slot_for_other_incidents(driver: Driver) -> None:
    waits = looked(watch(Pager()))
    with connect_probes() as probe:
        assert probe(waits).answer is None
        driver.find_stranger()
        found = probe(waits).answer
    assert found == TriggerAnswer(status=Status.REACHED)
    pager = Pager()
    with pytest.raises(TaskDeferred) as again:
        resumed(watch(pager), waits)
    assert len(pager.said) == 1
    assert wanted(again.value).known == ("halted",)
    with connect_probes() as probe:
        assert probe(again.value).answer is None


class connect_probes:
    """Asks what a trigger asks."""

    def __enter__(self) -> Any:  # noqa: ANN401
        self.probes = StoreProbes(KcrHook().store_url())

        def probe(waits: TaskDeferred) -> Any:  # noqa: ANN401
            what = wanted(waits)
            return self.probes.probe_all({RegionName("flights"): {what: KcrHook()}})[RegionName("flights"), what]

        return probe

    def __exit__(self, *_: object) -> None:
        self.probes.close()


def test_a_run_ends_when_it_has_watched_for_as_long_as_it_is_to(driver: Driver) -> None:
    waits = looked(watch(Pager(), watch_for=timedelta(hours=2)))
    assert timedelta(hours=1, minutes=59) < timedelta(seconds=waits.trigger.deadline) <= timedelta(hours=2)
    began = parse_instant(str((waits.kwargs or {})["began"]))
    assert datetime.now(UTC) - began < timedelta(minutes=1)
    pager = Pager()
    driver.find_stranger()
    assert resumed(watch(pager, watch_for=timedelta(0)), waits, event=TIMED_OUT) is None
    assert len(pager.said) == 1


TIMED_OUT: Mapping[str, object] = TriggerAnswer(status=Status.TIMED_OUT, detail="so").to_json()


# What fails


def test_a_notifier_that_fails_is_a_line_and_the_others_are_called(
    driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.find_stranger()
    pager = Pager()
    looked(watch(Broken(), pager))
    assert len(pager.said) == 1
    assert "1 of 2 notifiers failed: Broken (ConnectionError)" in reasons(capsys)
    looked(watch(Broken(), pager))
    assert len(pager.said) == 1


def test_if_all_fail_it_is_tried_again_after_a_minute(driver: Driver) -> None:
    driver.find_stranger()
    waits = looked(watch(Broken()))
    assert 0 < waits.trigger.deadline <= AGAIN.total_seconds()
    pager = Pager()
    with pytest.raises(TaskDeferred) as again:
        resumed(watch(pager), waits, event=TIMED_OUT)
    assert len(pager.said) == 1
    assert again.value.trigger.deadline > AGAIN.total_seconds()


def test_a_store_that_is_away_is_a_line_and_the_watch_goes_on(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.find_stranger()
    operator, pager = watch(Pager()), Pager()

    def away(*_: object) -> None:
        raise StoreUnavailable("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(KcrHook, "opened", away)
        waits = looked(operator)
    line = "Region flights can't be watched now, it is looked at again: the store does not answer"
    assert reasons(capsys).count(line) == 1
    with connect_probes() as probe:
        assert probe(waits).answer == TriggerAnswer(status=Status.REACHED)
    with pytest.raises(TaskDeferred):
        resumed(watch(pager), waits)
    assert len(pager.said) == 1


def test_a_region_that_is_not_declared_yet_is_tried_again_as_often_as_airflow_is_told_to(driver: Driver) -> None:
    with pytest.raises(AirflowException, match="there is no region 'later' in this store") as raised:
        watch(Pager(), region="later").execute(task_context())
    assert type(raised.value) is AirflowException  # AirflowFailException would not be retried


@pytest.mark.parametrize("notifiers", [[], [print], "pager"], ids=str)
def test_what_is_no_notifier_is_refused_when_the_dag_is_parsed(notifiers: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigurationError, match="notifiers are Airflow's, such as SmtpNotifier, at least one"):
        KcrWatchOperator(task_id="watch", region="flights", notifiers=notifiers)


# The notifiers of Airflow's providers


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    """Connect both of Slack's notifiers with an address."""

    def connect_to(url: str) -> list[BaseNotifier]:
        for name, kind, password in (
            ("SLACK_DEFAULT", "slackwebhook", f"{url}/hook"),
            ("SLACK_API_DEFAULT", "slack", "x"),
        ):
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": kind, "password": password}))
        return [
            SlackWebhookNotifier(slack_webhook_conn_id="slack_default", text=f":rotating_light: {TEXT}", timeout=1),
            SlackNotifier(text=TEXT, channel="#{{ kcr.region }}", base_url=f"{url}/", timeout=1),
        ]

    return connect_to


def test_slacks_notifiers_post_when_it_begins_and_when_it_is_over(driver: Driver, slack: Any) -> None:  # noqa: ANN401
    with Receiver() as receiver:
        operator = watch(slack(receiver.url)[0])
        driver.find_stranger()
        looked(operator)
        end_halt(driver)
        looked(operator)
    begun, over = (json.loads(body)["text"] for body in receiver.received)
    assert begun.startswith(":rotating_light: region flights: halted: consumer stranger on host host in group g")
    assert over.startswith(":rotating_light: region flights: over since ")


def test_slacks_api_is_sent_to_the_regions_channel(driver: Driver, slack: Any) -> None:  # noqa: ANN401
    driver.find_stranger()
    with Receiver(body=b'{"ok": true}') as receiver:
        looked(watch(slack(receiver.url)[1]))
    (posted,) = map(json.loads, receiver.received)
    assert (posted["channel"], posted["text"][:23]) == ("#flights", "region flights: halted:")


@pytest.mark.parametrize("answers", [500, None], ids=["refuses", "hangs"])
def test_an_end_point_that_hangs_or_refuses_is_a_line_and_costs_the_region_nothing(
    driver: Driver,
    slack: Any,  # noqa: ANN401
    capsys: pytest.CaptureFixture[str],
    answers: int | None,
) -> None:
    driver.find_stranger()
    before, pager = driver.region, Pager()
    with Receiver(answers) as receiver:
        looked(watch(slack(receiver.url)[0], pager))
    assert len(pager.said) == len(receiver.received) == 1
    (line,) = [line for line in reasons(capsys) if "notifiers failed" in line]
    assert line.startswith("1 of 2 notifiers failed: SlackWebhookNotifier (")
    assert driver.region == before


def test_a_mail_is_sent_when_it_begins_and_when_it_is_over(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.find_stranger()
    with MailServer() as server:
        connection = {
            "conn_type": "smtp",
            "host": "127.0.0.1",
            "port": server.port,
            "extra": {"from_email": "airflow@example.com", "disable_ssl": True, "disable_tls": True, "retry_limit": 1},
        }
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
        subject = "{{ kcr.region }}: {{ kcr.incident }}{{ ' is over' if kcr.over_at }}"
        operator = watch(SmtpNotifier(to="on-call@example.com", subject=subject, html_content=TEXT))
        looked(operator)
        end_halt(driver)
        looked(operator)
    assert [mail["Subject"] for mail in server.received] == ["flights: halted", "flights: halted is over"]


# The DAG


def test_the_dag_watches_all_the_time() -> None:
    dag = watch_dag(
        "flights",
        notifiers=Pager(),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        watch={"late": timedelta(hours=1)},
        dag_args={"tags": ["mine"]},
    )
    (task,) = dag.tasks
    assert isinstance(task, KcrWatchOperator)
    assert (dag.dag_id, dag.max_active_runs, dag.tags) == ("flights_watch", 1, {"kcr", "flights", "mine"})
    assert type(dag.timetable).__name__ == "ContinuousTimetable"
    assert (task.late, task.retries, task.region) == (timedelta(hours=1), 5, "flights")
