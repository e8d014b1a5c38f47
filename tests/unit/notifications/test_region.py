from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from airflow.providers.slack.hooks.slack_webhook import SlackWebhookHook
from airflow.providers.slack.notifications.slack_webhook import SlackWebhookNotifier
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from slack_sdk.webhook import WebhookResponse

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.notifications.region import KcrRegionNotifier
from airflow_kcr.protocol.region import liveness
from airflow_kcr.protocol.region.liveness import Liveness
from airflow_kcr.protocol.region.waits import Rule, Wait
from tests.support.airflow_tasks import task_context
from tests.support.driver import Driver
from tests.support.judging import halt_of
from tests.support.mail import MailServer
from tests.support.notifiers import Broken, Pager

TEXT = "{{ kcr.region }} is {{ kcr.standing }}: {{ kcr.detail }}"


def failed(text: str = "") -> Any:  # noqa: ANN401 (Airflow's context)
    """The context of a task that has failed."""
    return {**task_context(), "exception": AirflowException(text)}


def test_of_a_halted_region_is_said_why_and_what_a_person_can_do(driver: Driver) -> None:
    driver.find_stranger()
    pager = Pager(TEXT)
    KcrRegionNotifier(region="flights", notifiers=pager)(failed())
    halt = halt_of(driver)
    assert pager.said == [f"flights is halted: {halt.text}; choices: {'; '.join(halt.choices)}"]


def test_of_a_stalled_region_is_said_what_waits_and_since_when(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    now = driver.store.read(driver.name)[1]
    wait = Wait(rule=Rule.BOUNDARY, since=now - timedelta(hours=1), what="no member makes it", until=now)
    monkeypatch.setattr(liveness, "judge", lambda *_: Liveness(waits=(wait,), now=now))
    pager = Pager(TEXT)
    KcrRegionNotifier(region="flights", notifiers=[pager])(failed("not in time"))
    assert pager.said == [f"flights is stalled: {wait.text()}"]


def test_of_another_region_is_said_what_the_task_failed_of(driver: Driver) -> None:
    pager = Pager(TEXT)
    KcrRegionNotifier(region="flights", notifiers=[pager])(failed("no records"))
    assert pager.said == ["flights is running: no records"]


def test_where_the_region_can_not_be_read_people_are_told_all_the_same(driver: Driver) -> None:
    pager = Pager(TEXT)
    KcrRegionNotifier(region="nowhere", notifiers=[pager])(failed("the store was away"))
    (said,) = pager.said
    assert said.startswith("nowhere is unknown: the store was away; ")
    assert "nowhere" in said.partition("away; ")[2]


def test_a_notifier_that_fails_is_named_by_its_kind_of_error_and_keeps_none_from_being_called(driver: Driver) -> None:
    first, last = Pager(TEXT), Pager(TEXT)
    made = KcrRegionNotifier(region="flights", notifiers=[first, Broken(), last])
    with pytest.raises(AirflowException) as reported:
        made(failed("no records"))
    assert len(first.said) == len(last.said) == 1
    assert str(reported.value) == (
        "1 of 3 notifiers failed to tell that region flights is running: Broken (ConnectionError); "
        "the log has each error"
    )


def mail(monkeypatch: pytest.MonkeyPatch, port: int) -> SmtpNotifier:
    """Airflow's notifier by mail, as the how-to has it."""
    connection = {
        "conn_type": "smtp",
        "host": "127.0.0.1",
        "port": port,
        "extra": {"from_email": "airflow@example.com", "disable_ssl": True, "disable_tls": True, "retry_limit": 1},
    }
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
    return SmtpNotifier(
        to="on-call@example.com",
        subject="Region {{ kcr.region }} is {{ kcr.standing }}",
        html_content="{{ kcr.detail }}",
    )


def test_airflows_notifier_by_mail_sends_what_is_wrong(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.find_stranger()
    with MailServer() as server:
        KcrRegionNotifier(region="flights", notifiers=mail(monkeypatch, server.port))(failed())
    (received,) = server.received
    assert (received["To"], received["Subject"]) == ("on-call@example.com", "Region flights is halted")
    (html,) = [part for part in received.walk() if part.get_content_type() == "text/html"]
    assert "stranger on host host in group g; choices: remove" in html.get_payload(decode=True).decode()  # type: ignore[union-attr]


def test_slacks_notifier_sends_what_is_wrong(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.find_stranger()
    posted: list[str | None] = []

    def send(_: SlackWebhookHook, *, text: str | None = None, **__: object) -> WebhookResponse:
        posted.append(text)
        return WebhookResponse(url="https://hooks.example.com", status_code=200, body="ok", headers={})

    monkeypatch.setattr(SlackWebhookHook, "send", send)
    slack = SlackWebhookNotifier(text="{{ kcr.region }} is {{ kcr.standing }}: {{ kcr.detail }}")
    KcrRegionNotifier(region="flights", notifiers=slack)(failed())
    (text,) = posted
    assert text is not None
    assert text.startswith("flights is halted: consumer stranger on host host in group g")


def test_a_mail_server_that_refuses_is_reported_and_changes_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.find_stranger()
    before, pager = driver.region, Pager(TEXT)
    with MailServer(refuses=True) as server, pytest.raises(AirflowException) as reported:
        KcrRegionNotifier(region="flights", notifiers=[mail(monkeypatch, server.port), pager])(failed())
    assert "1 of 2 notifiers failed to tell that region flights is halted: SmtpNotifier (" in str(reported.value)
    assert (len(pager.said), server.received, driver.region) == (1, [], before)


@pytest.mark.parametrize("notifiers", [[], [print], "pager"], ids=str)
def test_what_is_no_notifier_is_refused_when_the_dag_is_parsed(notifiers: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigurationError, match="notifiers are Airflow's, such as SmtpNotifier, at least one"):
        KcrRegionNotifier(region="flights", notifiers=notifiers)


def test_the_region_and_the_connection_may_be_templates(driver: Driver) -> None:
    pager = Pager("{{ kcr.region }}")
    KcrRegionNotifier(region="{{ params.region }}", notifiers=[pager])({**failed(), "params": {"region": "flights"}})
    assert pager.said == ["flights"]
