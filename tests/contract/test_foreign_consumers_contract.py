"""Foreign consumers are kept and told once, and a region that is only to warn of them works on."""

from __future__ import annotations

from airflow_kcr.protocol.observations import ForeignConsumer
from airflow_kcr.protocol.region.commands import ReportGroups
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.rules import ForeignConsumerPolicy, RegionRules
from tests.contract.conftest import Drive
from tests.support.driver import GROUP, Driver, group_rules

STRANGERS = (
    ForeignConsumer(group=GROUP, client_id="console", host="/10.0.0.1"),
    ForeignConsumer(
        group=GROUP, client_id="čtenář 'x' \"y\"", host="/10.0.0.2", instance_id="copy-0", what="share group"
    ),
)


def rules(policy: ForeignConsumerPolicy) -> RegionRules:
    return RegionRules(groups={GROUP: group_rules()}, foreign_consumers=policy)


def known(driver: Driver) -> tuple[ForeignConsumer, ...]:
    return driver.held.foreign_consumers


def test_foreign_consumers_are_kept_until_the_group_is_clean(drive: Drive) -> None:
    driver = drive(rules=rules(ForeignConsumerPolicy.WARN))
    driver.up()
    driver.handle(ReportGroups(seen={GROUP: STRANGERS}))
    assert known(driver) == STRANGERS
    driver.process()
    driver.handle(ReportGroups(seen={GROUP: ()}))
    assert known(driver) == ()


def test_what_is_told_twice_is_one_event(drive: Drive) -> None:
    driver = drive(rules=rules(ForeignConsumerPolicy.FAIL))
    driver.up()
    for _ in range(3):
        driver.handle(ReportGroups(seen={GROUP: STRANGERS}))
    assert driver.held.state is RegionState.HALTED
    assert [sum(e.kind == kind for e in driver.events) for kind in ("ForeignConsumersChanged", "Halted")] == [1, 1]
