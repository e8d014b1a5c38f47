from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

import pytest

from airflow_kcr.errors import BrokerUnavailable, UnknownTopics
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.offsets import SeekEntry, SeekSource
from airflow_kcr.protocol.rules import COMMITTED, EARLIEST, LATEST, StartPosition
from airflow_kcr.protocol.targets import ByDuration, ToDatetime, ToEarliest, ToLatest
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import GroupPartition, Offset
from airflow_kcr.runtime.effects import Grouping
from airflow_kcr.runtime.leases import Identity, StoreClock
from airflow_kcr.runtime.metrics import Metrics
from airflow_kcr.runtime.positions import Places
from tests.support.driver import group_rules
from tests.support.runtime_fakes import FLIGHTS, MEMBER, NOON, REGION_ID, FakeLogs, FakeMembership, Hands, p
from tests.support.simulation.broker import Log

HOUR = timedelta(hours=1)


class Desk:
    """Two logs of ten records, one an hour, the last at NOON; the first three are gone. The store's clock says NOON."""

    def __init__(self, start: StartPosition = EARLIEST) -> None:
        stamps = [NOON - hours * HOUR for hours in range(9, -1, -1)]
        self.logs = FakeLogs({p(n): Log(stamps=list(stamps), start=3) for n in range(2)})
        who = Identity(
            region=FLIGHTS,
            region_id=REGION_ID,
            member=MEMBER,
            group=replace(group_rules(), start=start),
            timeouts=Timeouts(),
        )
        self.membership = cast(
            "FakeMembership", Grouping(who, FakeMembership, lambda _: None, lambda _: None, Metrics()).membership
        )
        self.places = Places(self.logs, self.membership, who.group, StoreClock(Hands(), NOON))

    def starts(self, *partitions: int, initialised: bool = False) -> dict[GroupPartition, int | None]:
        asked = self.places.assigned(frozenset(p(n) for n in partitions), initialised=initialised)
        return {k: a.initial.offset if a.initial else None for k, a in asked.items()}


@pytest.mark.parametrize(
    ("start", "offset"),
    [
        (EARLIEST, 3),
        (LATEST, 10),
        (COMMITTED, 3),
        (StartPosition(kind="timestamp", instant=NOON - 2 * HOUR), 7),
        (StartPosition(kind="timestamp", instant=NOON + HOUR), 10),
        (StartPosition(kind="duration", back=4 * HOUR), 5),
    ],
)
def test_a_claim_proposes_the_start_position_of_partitions_that_nobody_has_read(
    start: StartPosition, offset: int
) -> None:
    assert Desk(start).starts(0, 1) == {p(0): offset, p(1): offset}


def test_what_kafka_has_committed_is_a_start_position_and_clamped_into_the_log() -> None:
    desk = Desk(COMMITTED)
    desk.membership.held = {p(0): CommittedOffset(offset=Offset(6)), p(1): CommittedOffset(offset=Offset(1))}
    assert desk.starts(0, 1) == {p(0): 6, p(1): 3}


@pytest.mark.parametrize("start", [LATEST, COMMITTED, StartPosition(kind="duration", back=HOUR)])
def test_a_partition_found_later_begins_at_its_start_whatever_the_start_position_is(start: StartPosition) -> None:
    desk = Desk(start)
    desk.membership.held = {p(0): CommittedOffset(offset=Offset(6))}
    assert desk.starts(0, initialised=True) == {p(0): 3}
    assert desk.logs.asked == ["bounds"]


def test_the_logs_are_read_before_the_time_index_is_asked() -> None:
    desk = Desk(StartPosition(kind="duration", back=HOUR))
    desk.starts(0)
    assert desk.logs.asked == ["bounds", "times"]


# -- a log that grows between two reads --------------------------------------------------------------------------------


def test_what_another_application_commits_meanwhile_is_not_beyond_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(COMMITTED)
    log = desk.logs.logs[p(0)]

    def committed(*_: object) -> dict[GroupPartition, CommittedOffset]:
        log.stamps += [NOON] * 5
        return {p(0): CommittedOffset(offset=Offset(len(log.stamps)))}

    monkeypatch.setattr(FakeMembership, "committed", committed)
    initial = desk.places.assigned(frozenset({p(0)}), initialised=False)[p(0)].initial
    assert initial is not None
    assert (initial.offset, initial.clamped_from) == (15, None)


@pytest.mark.parametrize(
    ("came", "offset"),
    [
        pytest.param([NOON - HOUR] * 2 + [NOON + HOUR] * 3, 12, id="the record itself, and older ones before it"),
        pytest.param([NOON - HOUR] * 2, 10, id="older ones alone"),
    ],
)
def test_a_record_that_came_after_the_logs_were_read_is_where_its_time_begins(
    came: list[datetime], offset: int
) -> None:
    desk = Desk(StartPosition(kind="timestamp", instant=NOON + HOUR))
    desk.logs.in_between = lambda: desk.logs.logs[p(0)].stamps.extend(came)
    assigned = desk.places.assigned(frozenset({p(0)}), initialised=False)[p(0)]
    assert assigned.initial is not None
    assert (assigned.initial.offset, assigned.initial.clamped_from) == (offset, None)
    assert offset in assigned.bounds


def test_an_empty_assignment_asks_nobody() -> None:
    desk = Desk(COMMITTED)
    assert desk.starts() == {}
    assert desk.places.committed(frozenset()) == {}
    assert desk.logs.asked == []


def test_a_claim_tells_the_boundaries_of_every_log() -> None:
    desk = Desk()
    assigned = desk.places.assigned(frozenset({p(0), p(1)}), initialised=True)
    assert {k: a.bounds for k, a in assigned.items()} == {k: log.bounds() for k, log in desk.logs.logs.items()}


def test_a_topic_that_is_gone_is_named() -> None:
    with pytest.raises(UnknownTopics, match="t-7"):
        Desk().starts(0, 7)


def test_brokers_that_do_not_answer_are_the_callers_to_know() -> None:
    desk = Desk(COMMITTED)
    desk.membership.failures.append(BrokerUnavailable("no coordinator"))
    with pytest.raises(BrokerUnavailable):
        desk.starts(0)


def entry(source: SeekSource, fallback: int | None = None) -> SeekEntry:
    return SeekEntry(offset=None, source=source, current=None if fallback is None else Offset(fallback))


def test_a_persons_target_is_answered_from_the_logs() -> None:
    desk = Desk()
    open_ = {p(0): entry(SeekSource.EXPLICIT)}
    assert desk.places.found(open_, ToEarliest())[p(0)].offset == 3
    assert desk.places.found(open_, ToLatest())[p(0)].offset == 10
    assert desk.places.found(open_, ToDatetime(instant=NOON - HOUR))[p(0)].offset == 8
    assert desk.places.found(open_, ByDuration(back=2 * HOUR))[p(0)].offset == 7


def test_an_open_entry_of_a_new_partition_is_answered_with_its_start_position() -> None:
    desk = Desk(LATEST)
    open_ = {p(0): entry(SeekSource.EXPLICIT), p(1): entry(SeekSource.START_POSITION)}
    found = desk.places.found(open_, ToEarliest())
    assert {k: f.offset for k, f in found.items()} == {p(0): 3, p(1): 10}


def test_nothing_open_asks_nobody() -> None:
    desk = Desk()
    assert desk.places.found({}, None) == {}
    assert desk.logs.asked == []
