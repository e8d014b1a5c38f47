from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kcr.api.validation import Validation
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.validation import Check, Question
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.sensors.region import KcrMembershipSensor
from airflow_kcr.triggers import probes
from airflow_kcr.triggers.payloads import MembershipHealthy
from tests.support.airflow_tasks import task_context
from tests.support.driver import Driver
from tests.unit.sensors.conftest import deferral, waited_for

Say = Callable[[CheckVerdict], None]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Lets the checks come to a verdict."""

    def said(verdict: CheckVerdict) -> None:
        check = Check(group=GroupId("g"), question=next(iter(Question)), verdict=verdict, detail="somebody@host")

        def validated(*arguments: object) -> Validation:
            groups = arguments[-1]
            assert groups is None or isinstance(groups, Collection)
            return Validation(checks=(check,), foreign_consumers={})

        monkeypatch.setattr(probes, "validate", validated)

    return said


@pytest.mark.parametrize("verdict", [CheckVerdict.OK, CheckVerdict.WARNING])
def test_a_group_that_is_all_right_is_healthy(driver: Driver, say: Say, verdict: CheckVerdict) -> None:
    say(verdict)
    KcrMembershipSensor(task_id="wait", region="flights").execute(task_context())


@pytest.mark.parametrize("verdict", [CheckVerdict.FAILED, CheckVerdict.UNKNOWN])
def test_a_check_that_failed_or_could_not_be_made_is_waited_for(
    driver: Driver, say: Say, verdict: CheckVerdict
) -> None:
    say(verdict)
    made = KcrMembershipSensor(task_id="wait", region="flights", groups=["g"])
    assert waited_for(deferral(made)) == MembershipHealthy(groups=("g",))


def test_a_member_that_is_not_there_is_waited_for_whatever_kafka_says(driver: Driver, say: Say) -> None:
    say(CheckVerdict.OK)
    driver.leave(driver.member(1))
    deferral(KcrMembershipSensor(task_id="wait", region="flights"))


def test_a_group_that_the_region_does_not_have_is_not_retried(driver: Driver) -> None:
    made = KcrMembershipSensor(task_id="wait", region="flights", groups=["other"])
    with pytest.raises(AirflowFailException, match="has no group other"):
        made.execute(task_context())
