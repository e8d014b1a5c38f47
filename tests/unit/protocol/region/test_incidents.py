"""Which incidents a region has, and that people are notified of each once, and once of its end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_kcr.api import incidents as watching
from airflow_kcr.protocol.region import incidents
from airflow_kcr.protocol.region.commands import ReportGroups
from airflow_kcr.protocol.region.incidents import (
    CLAIM,
    Incident,
    IncidentKey,
    IncidentKind,
    IncidentNotice,
    Tolerance,
    WatcherMemory,
    settle,
    take,
)
from airflow_kcr.protocol.region.lag import NO_SAMPLE, LagFinding, LagVerdict
from airflow_kcr.protocol.region.liveness import Liveness, patience
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.rules import ForeignConsumerPolicy, RegionRules
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import CheckpointNumber
from tests.support.driver import BEGINNING, GROUP, PAUSE, START, STOP, Driver, group_rules
from tests.support.judging import halt_of
from tests.support.scripts import HOUR, checkpoints_of_ten, hourly, running

HALTED = Incident(key=IncidentKey(IncidentKind.HALTED, ""), what="so", since=None)
RESET = Incident(key=IncidentKey(IncidentKind.RESET, "plan"), what="ada reset it", since=BEGINNING)


def looked(driver: Driver, watcher: str = "w", *, sends: bool = True) -> list[str]:
    """Look, notify people, and return of what."""
    found = watching.look(driver.store, driver.name, watcher, Tolerance())
    sent = {notice.incident.key: sends for notice in found.notices}
    watching.settle(driver.store, driver.name, watcher, sent)
    return [notice.text(found.region) for notice in found.notices]


def kinds(driver: Driver) -> set[str]:
    return {one.key.kind.value for one in watching.look(driver.store, driver.name, "kinds", Tolerance()).incidents}


# What is an incident


def test_a_region_at_work_has_none() -> None:
    driver = running()
    driver.process()
    assert looked(driver) == []


def test_a_halt_is_one_with_the_choices_of_a_person() -> None:
    driver = running()
    driver.find_stranger()
    halt = halt_of(driver)
    assert looked(driver) == [f"region flights: halted: {halt.text}; choices: {'; '.join(halt.choices)}"]


def test_a_region_without_members_is_stalled_and_each_group_misses_its_members() -> None:
    driver = running()
    for member in driver.all_members():
        driver.vanish(member)
    driver.wait(60)
    assert looked(driver) == []
    driver.wait(patience(driver.region).total_seconds())
    stall, missing = looked(driver)
    assert stall.startswith(
        "region flights: stalled since 2026-01-01T00:00:10Z: members: no member lives; start them; "
    )
    assert missing == (
        "region flights: member missing since 2026-01-01T00:00:10Z: g[0] is not there (no lease); "
        "g[1] is not there (no lease)"
    )
    assert looked(driver) == []


def test_after_a_stall_people_are_notified_that_it_runs_again() -> None:
    driver = running()
    for member in driver.all_members():
        driver.vanish(member)
    driver.wait(60 + patience(driver.region).total_seconds())
    assert len(looked(driver)) == 2
    driver.recover()
    at = driver.clock.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    first, second = looked(driver)
    assert first.startswith(
        f"region flights runs again since {at}; it was stalled since 2026-01-01T00:00:10Z: members: "
    )
    assert second.startswith(f"region flights: over since {at}: member missing since 2026-01-01T00:00:10Z: g[0]")
    assert looked(driver) == []


def test_a_member_that_is_away_for_as_long_as_it_may_is_none() -> None:
    driver = running()
    driver.vanish(driver.member(1))
    driver.wait(60)
    assert kinds(driver) == set()
    driver.wait(patience(driver.region).total_seconds() + 60)
    assert "member_missing" in kinds(driver)


def test_members_of_a_region_that_was_stopped_long_before_are_none_when_it_starts_again() -> None:
    driver = running()
    for member in driver.all_members():
        driver.leave(member)
    driver.handle(STOP)
    driver.wait(3600)
    driver.handle(START)
    assert kinds(driver) == set()


def test_a_stopped_or_paused_region_is_no_incident() -> None:
    assert kinds(Driver()) == set()
    driver = running()
    driver.handle(PAUSE)
    region, now = driver.store.read(driver.name)
    stopped = LagFinding(verdict=LagVerdict.STOPPED, what="it is paused", to_do="resume it")
    assert not [*incidents.find(region, now, Liveness(waits=(), now=now), stopped, None, Tolerance())]


def test_no_progress_by_the_verdict_is_a_stall() -> None:
    region, now = running().region, BEGINNING
    standing = LagFinding(verdict=LagVerdict.STALLED, what="the position stays at 7", since=now, to_do="look")
    (found,) = incidents.find(region, now, Liveness(waits=(), now=now), standing, None, Tolerance())
    assert (found.key, found.what, found.since) == (
        IncidentKey(IncidentKind.STALLED, ""),
        "the position stays at 7; look",
        now,
    )


def test_a_foreign_consumer_is_one_while_it_is_there_if_the_region_goes_on() -> None:
    driver = Driver(
        rules=RegionRules(groups={GROUP: group_rules()}, foreign_consumers=ForeignConsumerPolicy.WARN), partitions=2
    )
    driver.up()
    driver.find_stranger()
    assert looked(driver) == [
        "region flights: foreign consumer: consumer stranger on host host in group g; end it, or give it another group"
    ]
    driver.handle(ReportGroups(seen={GROUP: ()}))
    (over,) = looked(driver)
    assert "over since 2026-01-01T00:00:00Z: foreign consumer: consumer stranger" in over


def test_a_checkpoint_is_late_when_its_boundary_passed_as_long_ago_as_is_tolerated() -> None:
    driver = hourly()
    late = timedelta(minutes=15)
    region, boundary = driver.region, driver.region.next_boundary
    assert boundary is not None

    def late_at(now: datetime) -> list[Incident]:
        found = incidents.find(region, now, Liveness(waits=(), now=now), NO_SAMPLE, None, Tolerance())
        return [one for one in found if one.key.kind is IncidentKind.CHECKPOINT_LATE]

    assert late_at(boundary + late - timedelta(seconds=1)) == []
    (found,) = late_at(boundary + late)
    assert found.since == boundary


@pytest.mark.parametrize(
    ("hours", "said"), [(6, None), (3, "leave by 2026-01-01T03:00:00Z retention"), (0, "have left retention")]
)
def test_retention_that_comes_close_to_the_restore_point_is_one(hours: int, said: str | None) -> None:
    region, now = running().region, BEGINNING
    found = [*incidents.find(region, now, Liveness(waits=(), now=now), NO_SAMPLE, now + hours * HOUR, Tolerance())]
    assert [one.key.kind for one in found] == [IncidentKind.RETENTION] * (said is not None)
    assert said is None or said in found[0].what


def test_an_estimate_of_retention_that_goes_up_and_down_is_one_incident() -> None:
    region, now, memory = running().region, BEGINNING, WatcherMemory(since=BEGINNING)
    waits = Liveness(waits=(), now=now)
    said: list[list[bool]] = []
    named: set[tuple[str, ...]] = set()
    for hours in (4.5, 3.9, 4.5, 3.8, 4.9, 5.1, 4.5, 3.9):
        found = [*incidents.find(region, now, waits, NO_SAMPLE, now + hours * HOUR, Tolerance())]
        named.add(watching.names(found))
        memory, claimed = at(memory, found, now)
        said.append([notice.over_at is None for notice in claimed])
        memory = settle(memory, {notice.incident.key: True for notice in claimed})
    assert said == [[], [True], [], [], [], [False], [], [True]]
    assert named == {(), ("retention",), ("retention recedes",)}  # a trigger looks again when they change


def test_a_reset_of_a_person_is_notified_once_and_has_no_end() -> None:
    driver = running()
    checkpoints_of_ten(driver, 2)
    assert looked(driver) == []
    driver.wait(5)
    driver.reset(ToCheckpoint(sequence=CheckpointNumber(2)), request_id="flights/plan")
    driver.complete()
    driver.finish_reset()
    (said,) = looked(driver)
    assert said == "region flights: reset since 2026-01-01T00:00:05Z: somebody reset it, to-checkpoint 2"
    assert looked(driver) == []
    assert looked(driver, "new") == []  # it happened before this one's first look
    for member in driver.all_members():
        driver.vanish(member)
    driver.recover()
    assert [said for said in looked(driver) if "reset" in said] == []


# Once


def at(memory: WatcherMemory, found: list[Incident], now: datetime) -> tuple[WatcherMemory, tuple[IncidentNotice, ...]]:
    """What a look takes that reads the region and the memory at one moment."""
    return take(memory, found, now, now)


def test_a_second_look_finds_what_is_claimed_and_leaves_it() -> None:
    first, claimed = at(WatcherMemory(since=BEGINNING), [HALTED], BEGINNING)
    assert [notice.incident for notice in claimed] == [HALTED]
    half = BEGINNING + CLAIM / 2
    assert at(first, [HALTED], half) == (replace(first, looked_at=half), ())
    assert at(first, [], half) == (replace(first, looked_at=half), ())


def test_a_look_that_another_has_overtaken_says_nothing_of_what_is_over_meanwhile() -> None:
    known = WatcherMemory(since=BEGINNING, notices=(IncidentNotice(incident=HALTED, is_sent=True),))
    over, claimed = at(known, [], BEGINNING + HOUR)
    after = settle(over, {notice.incident.key: True for notice in claimed})
    assert take(after, [HALTED], BEGINNING, BEGINNING + HOUR) == (after, ())


def test_a_claim_that_ran_out_is_taken_over() -> None:
    first, _ = at(WatcherMemory(since=BEGINNING), [HALTED], BEGINNING)
    assert len(at(first, [HALTED], BEGINNING + CLAIM)[1]) == 1


def test_what_could_not_be_sent_is_sent_by_the_next_look() -> None:
    driver = running()
    driver.find_stranger()
    assert len(looked(driver, sends=False)) == 1
    assert len(looked(driver)) == 1
    assert looked(driver) == []


def test_of_what_is_over_before_it_was_sent_people_hear_nothing() -> None:
    first, claimed = at(WatcherMemory(since=BEGINNING), [HALTED], BEGINNING)
    failed = settle(first, {notice.incident.key: False for notice in claimed})
    assert at(failed, [], BEGINNING) == (WatcherMemory(since=BEGINNING, looked_at=BEGINNING), ())


def test_an_end_that_could_not_be_sent_is_sent_later_with_its_time() -> None:
    known = WatcherMemory(since=BEGINNING, notices=(IncidentNotice(incident=HALTED, is_sent=True),))
    over, claimed = at(known, [], BEGINNING + HOUR)
    failed = settle(over, {notice.incident.key: False for notice in claimed})
    again, (notice,) = at(failed, [], BEGINNING + 2 * HOUR)
    assert notice.over_at == BEGINNING + HOUR
    assert settle(again, {HALTED.key: True}).notices == ()


def test_an_incident_that_is_back_before_people_heard_of_its_end_goes_on() -> None:
    known = WatcherMemory(since=BEGINNING, notices=(IncidentNotice(incident=HALTED, is_sent=True),))
    over, _ = at(known, [], BEGINNING)
    back, claimed = at(settle(over, {HALTED.key: False}), [HALTED], BEGINNING + HOUR)
    assert (back.notices, claimed) == (known.notices, ())


def test_each_watcher_notifies_its_own_people() -> None:
    driver = running()
    driver.find_stranger()
    assert len(looked(driver, "mail")) == len(looked(driver, "chat")) == 1
    assert looked(driver, "mail") == looked(driver, "chat") == []


def test_the_end_of_a_stall_by_a_stop_does_not_say_that_it_runs() -> None:
    region = replace(running().region, state=RegionState.STOPPED)
    stalled = replace(HALTED, key=IncidentKey(IncidentKind.STALLED, ""))
    assert IncidentNotice(incident=stalled, over_at=BEGINNING).text(region) == (
        "region flights: over since 2026-01-01T00:00:00Z: stalled: so"
    )
