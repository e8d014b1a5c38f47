"""Every way out that a halt names, carried out: the region goes on, and its history holds.

What leads out through Kafka itself (notes of other programs, a foreign consumer that leaves) is tried on a real broker,
in `integration/members`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pytest

from airflow_kcr.errors import NotClaimed
from airflow_kcr.protocol.observations import LogBounds
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import RegionState, ResetCause
from airflow_kcr.protocol.rules import ForeignConsumerPolicy, OutOfRangePolicy, RegionRules
from airflow_kcr.protocol.targets import ToCurrent, ToEarliest, ToInitial
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, EventNumber, Offset, TopicId
from tests.contract.conftest import Drive
from tests.support.driver import GROUP, START, Driver, group_rules
from tests.support.stores import Specs, Subject
from tests.support.verifying import verify

Way = Callable[[Driver, Specs], object]
RULES: Final = RegionRules(groups={GROUP: group_rules(members=2)}, max_failures=0)

# -- halts -------------------------------------------------------------------------------------------------------------


def in_the_log(driver: Driver, start: int, end: int, topic_id: str = "id-1") -> None:
    """Have the first partition's log be like this, and the member that owns it say so."""
    place = driver.partition(0)
    driver.logs[place] = LogBounds(start=Offset(start), end=Offset(end), topic_id=TopicId(topic_id))
    member = next(m for m in driver.all_members() if place in driver.claims(m))
    driver.handle(commands.ReportOutOfRange(caller=driver.caller(member), observed={place: driver.logs[place]}))


def failed(driver: Driver, specs: Specs) -> None:
    caller = driver.caller(driver.member(0))
    driver.handle(commands.RequestReset(caller=caller, cause=ResetCause.BATCH_FAILED, detail="it broke"))


def overtaken(driver: Driver, specs: Specs) -> None:
    in_the_log(driver, 25, 100)


def truncated(driver: Driver, specs: Specs) -> None:
    in_the_log(driver, 0, 5)


def made_anew(driver: Driver, specs: Specs) -> None:
    in_the_log(driver, 0, 100, "id-2")


def restored(driver: Driver, specs: Specs) -> None:
    region, member = driver.region, driver.member(0)
    seen = commands.ReportLater(
        member=member,
        epoch=Epoch(region.epoch + 3),
        incarnation=region.members[member].incarnation,
        sequence=CheckpointNumber(region.next_sequence + 3),
        counter=EventNumber(region.counter + 3),
    )
    driver.handle(seen)


def joined_by_another(driver: Driver, specs: Specs) -> None:
    driver.find_stranger()


# -- ways out ----------------------------------------------------------------------------------------------------------


def resume(driver: Driver, specs: Specs) -> None:
    driver.handle(START)


def force(driver: Driver, specs: Specs) -> None:
    driver.reset(ToInitial(), forced=True)


def force_into_the_log(driver: Driver, specs: Specs) -> None:
    driver.reset(ToEarliest(), forced=True)


def skip(driver: Driver, specs: Specs) -> None:
    driver.reset(ToCurrent(), forced=True, skip={driver.partition(0): Offset(20)})


def change(driver: Driver, specs: Specs, rules: RegionRules) -> None:
    changed = specs.spec(rules, driver.held.spec.revision + 1)
    driver.handle(commands.ChangeSpec(at_once=changed))
    driver.handle(START)


def read_what_is_there(driver: Driver, specs: Specs) -> None:
    change(driver, specs, replace(RULES, out_of_range=OutOfRangePolicy.EARLIEST, beyond_end=OutOfRangePolicy.LATEST))
    with suppress(NotClaimed):  # the first claim finds the log as it is, and a further reset begins
        driver.finish_reset()


def begin_anew(driver: Driver, specs: Specs) -> None:
    driver.handle(commands.KillRegion())
    for member in driver.all_members():
        driver.leave(member)
    spec = driver.held.spec
    driver.handle(commands.DeleteRegion())
    driver.handle(commands.DeclareRegion(spec=spec))
    driver.up()


IN_THE_LOG: Final[Mapping[str, Way]] = {
    "set out_of_range (retention) or beyond_end (truncated or recreated) to earliest or latest, then resume": (
        read_what_is_there
    ),
    "apply a forced reset to a place that is in the log": force_into_the_log,
    "for a recreated topic, stop the region, delete it and declare it anew": begin_anew,
}
WAYS: Final[Mapping[Way, Mapping[str, Way]]] = {
    failed: {
        "repair the pipeline or sink, then resume the region: it goes back to the restore point": resume,
        "apply a forced reset to another place": force,
        "skip the named offset, if one record is the cause": skip,
    },
    overtaken: IN_THE_LOG,
    truncated: IN_THE_LOG,
    made_anew: IN_THE_LOG,
    restored: {
        "compare the newest checkpoint with Kafka's committed offsets and the sinks": resume,
        "resume: every record since the restored restore point is processed again": resume,
        "apply a forced reset to the place that the sinks agree on": force,
    },
    joined_by_another: {
        "remove the foreign consumer, then resume": resume,
        "set foreign_consumers to warn, then resume": lambda driver, specs: change(
            driver, specs, replace(RULES, foreign_consumers=ForeignConsumerPolicy.WARN)
        ),
    },
}


@pytest.mark.parametrize(
    ("halt", "way"),
    [pytest.param(halt, way, id=f"{halt.__name__}: {way[:40]}") for halt, ways in WAYS.items() for way in ways],
)
def test_every_way_out_that_a_halt_names_leads_out(drive: Drive, subject: Subject, halt: Way, way: str) -> None:
    driver = drive(rules=RULES)
    driver.up()
    driver.process()
    driver.checkpoint("before")
    driver.process()
    halt(driver, subject.specs)
    region = driver.region
    assert region.state is RegionState.HALTED
    assert region.halt is not None
    assert set(region.halt.choices) == set(WAYS[halt])

    WAYS[halt][way](driver, subject.specs)
    driver.finish_reset()
    assert driver.held.state is RegionState.RUNNING
    driver.process()
    sequence = driver.checkpoint("after")
    assert driver.held.restore_sequence == sequence
    assert verify(driver.store.history(driver.name)) == ()
