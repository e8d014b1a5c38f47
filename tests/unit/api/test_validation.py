"""A look at a region's groups, with a cluster that says what a test wants: what is read, told and raised."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from airflow_kcr import errors
from airflow_kcr.api import group_watch
from airflow_kcr.api.described import described
from airflow_kcr.api.group_watch import GroupWatch, substance
from airflow_kcr.api.preflight import preflight
from airflow_kcr.api.validation import Validation, gather, report, validate
from airflow_kcr.kafka import settings as kafka_names
from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol import values
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.observations import (
    SHARE_OR_STREAMS,
    ForeignConsumer,
    GroupSeen,
    LogBounds,
    MemberSeen,
    TimeAnswer,
)
from airflow_kcr.protocol.region.commands import DeclareRegion
from airflow_kcr.protocol.region.liveness import LogEnd
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.timeouts import BrokerTimes, ConsumerProtocolTimes
from airflow_kcr.protocol.validation import Check, Question
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, GroupId, GroupPartition, MemberId, Offset, TopicName
from airflow_kcr.runtime.leases import CommitNote
from airflow_kcr.spec import RegionSpec, parse
from airflow_kcr.store.regions import RegionStore
from tests.support.driver import BEGINNING, START, Clock, Driver
from tests.support.live_region import FakeCluster, live_region
from tests.support.memory import MemoryTransactions
from tests.support.scripts import running

NAME = values.RegionName("flights")
G, H = GroupId("g"), GroupId("h")
STRANGER = MemberSeen(member_id="x-1", client_id="console", host="/10.0.0.1")
FOREIGN_CONSUMER = ForeignConsumer(group=G, client_id="console", host="/10.0.0.1")
SPEC = """\
region: flights
kafka: {bootstrap.servers: 'localhost:9092'}
groups:
  - {group_id: g, topics: [t], members: 2, pipeline: 'jobs:process'}
  - {group_id: h, pattern: '^u', pipeline: 'jobs:process'}
"""


@dataclass
class GroupCluster(FakeCluster):
    """One cluster for every group, which says who is in them and fails as a test wants."""

    counts: dict[TopicName, int] = field(default_factory=lambda: {TopicName("t"): 2, TopicName("u1"): 1})
    ends: dict[int, int] = field(default_factory=lambda: {0: 9, 1: 9})
    members: dict[GroupId, tuple[MemberSeen, ...]] = field(default_factory=dict)
    fails: dict[str, Exception] = field(default_factory=dict)
    opened: list[GroupId] = field(default_factory=list)
    type: str = "classic"
    set_times: BrokerTimes = field(default_factory=BrokerTimes)
    may_not_read: tuple[str, ...] = ()

    def _fail(self, call: str) -> None:
        if call in self.fails:
            raise self.fails[call]

    def topics(self, names: Collection[TopicName] = ()) -> Mapping[TopicName, int]:
        self._fail("topics")
        return super().topics(names)

    def bounds(self, partitions: object) -> dict[GroupPartition, LogBounds]:
        self._fail("bounds")
        return super().bounds(partitions)

    def describe(self, group: GroupId) -> GroupSeen:
        self._fail("describe")
        members = self.members.get(group, ())
        state = "stable" if members else "empty"
        return GroupSeen(group=group, type=self.type, state=state, assignor="range", members=members)

    def times(self, seen: GroupSeen) -> BrokerTimes:
        self._fail("times")
        return self.set_times

    def unreadable(self, group: GroupId, topics: Collection[TopicName]) -> tuple[str, ...]:
        self._fail("unreadable")
        return self.may_not_read

    def first_records(self, places: Mapping[GroupPartition, Offset]) -> dict[GroupPartition, TimeAnswer]:
        raise AssertionError("validation reads no record")

    def committed(self, group: GroupId, partitions: object) -> Mapping[GroupPartition, CommittedOffset]:
        self._fail("committed")
        return super().committed(group, partitions)

    @contextmanager
    def __call__(self, spec: RegionSpec, group: GroupId) -> Iterator[GroupCluster]:
        self.opened.append(group)
        yield self


def store_of(policy: str = "fail", spec_text: str = SPEC) -> RegionStore:
    spec = parse(f"{spec_text}foreign_consumers: {policy}\n")
    store = MemoryTransactions(Clock())
    store.handle(NAME, DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules())))
    return store


def look(store: RegionStore, cluster: GroupCluster, *groups: GroupId) -> Validation:
    return validate(store, NAME, cluster, groups or None)


def verdicts(checks: Collection[Check], question: Question) -> dict[GroupId, CheckVerdict]:
    return {c.group: c.verdict for c in checks if c.question is question}


# -- validate ---------------------------------------------------------------------------------------------------------


def test_every_group_is_asked_every_question_and_a_clean_region_is_all_right() -> None:
    cluster = GroupCluster()
    found = look(store_of(), cluster)
    assert cluster.asked == [], "no time is looked up"
    assert [(c.group, c.question) for c in found.checks] == [(g, q) for g in (G, H) for q in Question]
    assert found.is_all_right
    assert found.foreign_consumers == {G: (), H: ()}


def test_only_the_groups_that_are_asked_for_are_read() -> None:
    cluster = GroupCluster()
    found = look(store_of(), cluster, H)
    assert (cluster.opened, {c.group for c in found.checks}) == ([H], {H})
    with pytest.raises(errors.ConfigurationError, match="region flights has no group x; it has: g, h"):
        look(store_of(), cluster, GroupId("x"))


def test_what_is_behind_is_looked_up_by_time_where_nobody_works() -> None:
    class Timed(GroupCluster):
        def first_at_or_after(self, instants: Mapping[GroupPartition, datetime]) -> dict[GroupPartition, TimeAnswer]:
            return {p: TimeAnswer(offset=Offset(4) if p.partition == 0 else None) for p in instants}

    driver, spec = running(partitions=2, members=1), parse(SPEC)
    before = BEGINNING - timedelta(minutes=5)
    found = gather(driver.region, driver.clock.now, spec, G, Timed(), before)
    ends = {driver.partition(0): LogEnd(Offset(4), before), driver.partition(1): LogEnd(Offset(9), before)}
    assert found.earlier_ends == ends
    assert gather(driver.region, driver.clock.now, spec, G, GroupCluster()).earlier_ends == {}
    driver.process(width=9)
    assert gather(driver.region, driver.clock.now, spec, G, GroupCluster(), before).earlier_ends == {}


def test_what_was_committed_is_in_the_log_though_it_grows_while_it_is_looked_at() -> None:
    class Growing(GroupCluster):
        end = 0

        def _grown(self) -> Offset:
            self.end += 10
            return Offset(self.end)

        def committed(self, group: GroupId, partitions: object) -> Mapping[GroupPartition, CommittedOffset]:
            end = self._grown()
            return {p: CommittedOffset(offset=end) for p in self._partitions(partitions)}

        def bounds(self, partitions: object) -> dict[GroupPartition, LogBounds]:
            end = self._grown()
            return {p: LogBounds(start=Offset(0), end=end) for p in self._partitions(partitions)}

    driver = running(partitions=2, members=1)
    evidence = gather(driver.region, driver.clock.now, parse(SPEC), G, Growing())
    assert evidence.committed is not None
    assert evidence.bounds is not None
    assert all(evidence.committed[p] <= log.end for p, log in evidence.bounds.items())


def test_members_are_known_by_the_names_that_their_clients_have() -> None:
    mine = MemberSeen(
        member_id="1", client_id="any", host="/h", instance_id=kafka_names.instance_id(NAME, MemberId(G, 1))
    )
    cluster = GroupCluster(members={G: (mine, STRANGER)})
    found = look(store_of(), cluster)
    assert found.foreign_consumers == {G: (FOREIGN_CONSUMER,), H: ()}
    assert not found.is_all_right


@pytest.mark.parametrize("client", [None, "quota-7"])
def test_dynamic_members_are_known_by_the_client_id_that_the_user_has_prefixed(client: str | None) -> None:
    spec = parse(SPEC.replace("topics: [t],", "topics: [t], static_membership: false,"))
    store = MemoryTransactions(Clock())
    store.handle(NAME, DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules())))
    named = kafka_names.client_id(NAME, MemberId(G, 1), *([client] if client else []))
    members = (MemberSeen(member_id="1", client_id=named, host="/h"), STRANGER)
    cluster = GroupCluster(members={G: members}, client=client)
    assert look(store, cluster).foreign_consumers[G] == (FOREIGN_CONSUMER,)


@pytest.mark.parametrize("call", ["describe", "unreadable", "bounds", "committed"])
def test_a_call_that_is_not_allowed_is_a_right_that_is_missing_and_the_others_go_on(call: str) -> None:
    found = look(store_of(), GroupCluster(fails={call: errors.CredentialsRefused("not authorised")}), G)
    assert verdicts(found.checks, Question.RIGHTS) == {G: CheckVerdict.FAILED}
    assert verdicts(found.checks, Question.TOPICS) == {G: CheckVerdict.OK}


def test_credentials_that_may_not_read_are_enough_to_look_and_no_member_starts_with_them() -> None:
    cluster = GroupCluster(may_not_read=("group g", "topic t"))
    found = look(store_of(), cluster, G)
    assert verdicts(found.checks, Question.RIGHTS) == {G: CheckVerdict.WARNING}
    assert found.is_all_right
    with pytest.raises(errors.CredentialsRefused, match=r"no right to read group g, topic t.*grant READ"):
        fly(store_of(), cluster)


def test_a_group_that_can_not_be_described_is_unknown_and_nothing_is_told_of_it() -> None:
    found = look(store_of(), GroupCluster(fails={"describe": errors.BrokerUnavailable("no coordinator")}))
    assert verdicts(found.checks, Question.FOREIGN_CONSUMERS) == {G: CheckVerdict.UNKNOWN, H: CheckVerdict.UNKNOWN}
    assert found.foreign_consumers == {}
    assert not found.is_all_right


@pytest.mark.parametrize("error", [errors.BrokerUnavailable("no answer"), errors.CredentialsRefused("wrong password")])
def test_a_cluster_that_can_not_be_used_at_all_is_an_error(error: Exception) -> None:
    with pytest.raises(type(error)):
        look(store_of(), GroupCluster(fails={"topics": error}))


def test_a_look_changes_nothing_and_a_report_does() -> None:
    store = store_of()
    store.handle(NAME, START)
    counter = store.read(NAME)[0].counter
    found = look(store, GroupCluster(members={G: (STRANGER,)}))
    assert store.read(NAME)[0].counter == counter
    assert report(store, NAME, found).state is RegionState.HALTED


# -- described -------------------------------------------------------------------------------------------------------


def test_a_group_is_described_with_whom_of_the_region_each_member_is() -> None:
    owned = frozenset({values.TopicPartition(TopicName("t"), 1), values.TopicPartition(TopicName("t"), 0)})
    mine = MemberSeen(
        member_id="1",
        client_id="any",
        host="/h",
        instance_id=kafka_names.instance_id(NAME, MemberId(G, 1)),
        partitions=owned,
        target=frozenset(),
    )
    first, second = described(store_of(), NAME, GroupCluster(members={G: (mine, STRANGER)}))
    assert (first.seen.group, first.seen.type, first.seen.assignor, second.members) == (G, "classic", "range", ())
    assert [m.member for m in first.members] == [MemberId(G, 1), None]
    assert first.to_json()["members"] == [
        {
            "member": "g[1]",
            "member_id": "1",
            "client_id": "any",
            "host": "h",
            "instance_id": mine.instance_id,
            "partitions": [["t", 0], ["t", 1]],
            "target": [],
        },
        {
            "member": None,
            "member_id": "x-1",
            "client_id": "console",
            "host": "10.0.0.1",
            "instance_id": None,
            "partitions": [],
            "target": None,
        },
    ]
    (only,) = described(store_of(), NAME, GroupCluster(), [H])
    assert only.seen.group == H


# -- preflight --------------------------------------------------------------------------------------------------------


def fly(store: RegionStore, cluster: GroupCluster, *members: MemberId) -> Validation:
    return preflight(store, NAME, members or (MemberId(G, 0),), cluster)


def test_a_member_that_may_join_gets_what_was_found_in_its_group() -> None:
    cluster = GroupCluster()
    found = fly(store_of(), cluster)
    assert {c.group for c in found.checks} == {G}
    assert cluster.opened == [G]


def test_an_unknown_region_and_a_member_that_the_spec_has_no_place_for_are_refused_before_kafka_is_asked() -> None:
    cluster = GroupCluster()
    with pytest.raises(errors.UnknownMember, match="index 2"):
        fly(store_of(), cluster, MemberId(G, 0), MemberId(G, 2))
    with pytest.raises(errors.UnknownRegion):
        fly(MemoryTransactions(Clock()), cluster)
    assert cluster.opened == []


def test_a_topic_that_does_not_exist_is_named() -> None:
    with pytest.raises(errors.UnknownTopics, match="group g: topic t does not exist"):
        fly(store_of(), GroupCluster(counts={}))
    waits = fly(store_of(), GroupCluster(counts={}), MemberId(H, 0))
    assert verdicts(waits.checks, Question.TOPICS) == {H: CheckVerdict.WARNING}


def test_brokers_that_do_not_speak_the_protocol_and_times_that_contradict_theirs_are_refused() -> None:
    store = store_of(spec_text=SPEC.replace("group_id: g,", "group_id: g, protocol: consumer,"))
    old = GroupCluster(set_times=BrokerTimes(protocols=frozenset({"classic"})))
    with pytest.raises(
        errors.ConfigurationError, match=r"group g: the brokers speak classic .* write protocol: classic"
    ):
        fly(store, old)
    assert fly(store, old, MemberId(H, 0)).checks
    long = BrokerTimes(consumer=ConsumerProtocolTimes(session=timedelta(minutes=6)))
    with pytest.raises(errors.ConfigurationError, match=r"consumer\.session\.timeout\.ms.* timeouts\.reset"):
        fly(store, GroupCluster(set_times=long))
    assert fly(store_of(), old).checks


def test_a_session_that_is_shorter_than_the_groups_is_refused_with_both_settings() -> None:
    spec = SPEC.replace("group_id: g,", "group_id: g, protocol: consumer,")
    store = store_of(spec_text=f"{spec}timeouts: {{session: 30s, relaunch: 20s}}\n")
    kafkas = GroupCluster(set_times=BrokerTimes(consumer=ConsumerProtocolTimes()))
    with pytest.raises(errors.ConfigurationError, match=r"session is 30 s and consumer\.session\.timeout\.ms is 45 s"):
        fly(store, kafkas)


def test_a_missing_right_is_named() -> None:
    with pytest.raises(errors.CredentialsRefused, match="describe group g: not authorised"):
        fly(store_of(), GroupCluster(fails={"describe": errors.CredentialsRefused("not authorised")}))


def test_a_foreign_consumer_refuses_the_start_and_halts_a_region_that_runs_by_policy_fail() -> None:
    store, cluster = store_of(), GroupCluster(members={G: (STRANGER,)})
    with pytest.raises(errors.ForeignConsumerInGroup, match=r"consumer console on host 10\.0\.0\.1 in group g"):
        fly(store, cluster)
    assert store.read(NAME)[0].state is RegionState.STOPPED
    store.handle(NAME, START)
    with pytest.raises(errors.ForeignConsumerInGroup):
        fly(store, cluster)
    assert store.read(NAME)[0].state is RegionState.HALTED


@pytest.mark.parametrize("policy", ["fail", "warn"])
def test_a_group_that_lets_no_consumer_in_refuses_the_start_by_any_policy(policy: str) -> None:
    with pytest.raises(
        errors.ForeignConsumerInGroup, match="share or streams group in group g, which no member can join"
    ):
        fly(store_of(policy), GroupCluster(type=SHARE_OR_STREAMS))


def test_by_policy_warn_the_member_starts_and_the_region_knows() -> None:
    store = store_of("warn")
    fly(store, GroupCluster(members={G: (replace(STRANGER),)}))
    assert store.read(NAME)[0].foreign_consumers == (FOREIGN_CONSUMER,)
    fly(store, GroupCluster())
    assert store.read(NAME)[0].foreign_consumers == ()


# -- work that goes on while Kafka is asked ---------------------------------------------------------------------------


@dataclass
class BusyCluster(GroupCluster):
    """A cluster in front of a region that goes on while each answer is under way: batches, and a checkpoint."""

    driver: Driver = field(default_factory=Driver)

    def bounds(self, partitions: object) -> dict[GroupPartition, LogBounds]:
        claims = self.driver.region.claims
        found = {
            p: LogBounds(start=Offset(0), end=claims[p].position or Offset(0)) for p in self._partitions(partitions)
        }
        self.driver.process()
        return found

    def committed(self, group: GroupId, partitions: object) -> Mapping[GroupPartition, CommittedOffset]:
        found = {p: CommittedOffset(offset=offset) for p, offset in self.driver.region.restore_point_offsets().items()}
        self.driver.process()
        self.driver.checkpoint("meanwhile")
        return found

    def first_at_or_after(self, instants: Mapping[GroupPartition, datetime]) -> dict[GroupPartition, TimeAnswer]:
        return {}


def test_a_region_that_works_while_kafka_is_asked_is_not_out_of_its_logs(database_url: str) -> None:
    with live_region(database_url) as driver:
        driver.up()
        driver.process()
        driver.checkpoint("before")
        cluster = BusyCluster(counts={TopicName("t"): 4}, driver=driver)
        found = validate(driver.store, driver.name, cluster)
        details = {c.question: c.detail for c in found.checks}
        assert details[Question.OFFSETS] == "4 log(s): positions, restore point and committed offsets are inside"


def test_partitions_and_members_that_came_while_kafka_was_asked_are_not_missed(database_url: str) -> None:
    class GrowingCluster(BusyCluster):
        def times(self, seen: GroupSeen) -> BrokerTimes:
            self.driver.up()
            return super().times(seen)

        def bounds(self, partitions: object) -> dict[GroupPartition, LogBounds]:
            return {}

    with live_region(database_url) as driver:
        cluster = GrowingCluster(driver=driver, counts={TopicName("t"): 3})
        found = validate(driver.store, driver.name, cluster)
        details = {c.question: c.detail for c in found.checks}
        assert details[Question.CLAIMS] == "4 partition(s), each claimed once"
        assert details[Question.PARTICIPANTS] == "2 of 2 member(s) run, and Kafka lists the same"


# -- an earlier region of the name -------------------------------------------------------------------------------------


@dataclass
class Inheriting(GroupCluster):
    """A cluster whose group has offsets that an earlier region of the name has committed."""

    def committed(self, group: GroupId, partitions: object) -> Mapping[GroupPartition, CommittedOffset]:
        note = CommitNote(
            region=NAME,
            region_id=values.RegionId("the first"),
            timeline=values.Timeline(1),
            sequence=CheckpointNumber(7),
            epoch=Epoch(1),
        )
        return {p: CommittedOffset(offset=Offset(5), metadata=note.text()) for p in self._partitions(partitions)}


def test_members_that_begin_where_an_earlier_region_has_committed_are_told_so_before_they_join() -> None:
    store = store_of(spec_text=SPEC.replace("members: 2", "members: 2, start: committed"))
    found = preflight(store, NAME, [MemberId(G, 0)], Inheriting())
    (check,) = [c for c in found.checks if c.question is Question.OFFSETS]
    assert check.verdict is CheckVerdict.WARNING
    assert "begins where region flights (id the first) has committed, g:t-0 at 5, g:t-1 at 5" in check.detail


# -- the watch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            "stalled: records since 2026-01-01T00:00:10Z: 1,000 of g:t-3 can be read, and no batch reads them",
            "stalled: records since 2026-01-01T00:00:20.5Z: 12 of g:t-3 can be read, and no batch reads them",
            True,
        ),
        ("12 of g:t-3 can be read", "12 of g:t-4 can be read", False),
        ("g[0] is not there (no lease)", "g[1] is not there (no lease)", False),
        ("a batch of g[0] has been running for 61 s", "a batch of g[0] has been running for 71 s", True),
        ("stalled: records since 2026-01-01T00:00:10Z: …", "stalled: members since 2026-01-01T00:00:10Z: …", False),
    ],
)
def test_the_substance_of_a_finding_is_all_but_the_numbers_that_move(one: str, other: str, same: bool) -> None:
    assert (substance(one) == substance(other)) is same


def watched(monkeypatch: pytest.MonkeyPatch, found: Callable[..., Validation], over: threading.Event) -> None:
    """Watch a group, whose checks find what is told, until it is over."""
    for name in ("DEBOUNCE", "PERIOD", "_POLL_PERIOD"):
        monkeypatch.setattr(group_watch, name, 0.001)
    monkeypatch.setattr(group_watch, "validate", found)
    watch = GroupWatch(store_of(), NAME, [G], GroupCluster(), lambda: CheckpointNumber(0))
    watch.start()
    assert over.wait(10)
    watch.end()


def test_what_lasts_is_said_once_though_since_when_moves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lasting = [f"stalled: records since 2026-01-01T00:00:{n:02}Z: {9 - n} of g:t-0 can be read" for n in range(3)]
    details, over = iter([*lasting, "", lasting[0]]), threading.Event()

    def found(*_: object) -> Validation:
        detail = next(details, None)
        if detail is None:
            over.set()
            raise errors.BrokerUnavailable("no more")
        verdict = CheckVerdict.FAILED if detail else CheckVerdict.OK
        check = Check(group=G, question=Question.PROGRESS, verdict=verdict, detail=detail)
        return Validation(checks=(check,), foreign_consumers={}, is_news=False)

    watched(monkeypatch, found, over)
    said = [record.getMessage() for record in caplog.records if "stalled" in record.getMessage()]
    assert said == [f"group g: {lasting[0]}"] * 2, "once, and once more after it was over"


def test_a_check_that_fails_in_no_way_that_we_know_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries, over = iter((ValueError("a broker of another kind"), KeyError("t"))), threading.Event()

    def found(*_: object) -> Validation:
        if (error := next(tries, None)) is not None:
            raise error
        over.set()
        return Validation(checks=(), foreign_consumers={}, is_news=False)

    watched(monkeypatch, found, over)
    assert "a broker of another kind" in caplog.text


@pytest.mark.parametrize(("period", "times"), [(60.0, 1), (0.0, 4)])
def test_lag_is_kept_at_the_first_poll_and_again_after_its_period_whatever_becomes_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, period: float, times: int
) -> None:
    polls, over = iter(range(4)), threading.Event()
    kept: list[frozenset[GroupId]] = []

    def found(*_: object) -> Validation:
        if next(polls, None) is None:
            over.set()
            raise errors.BrokerUnavailable("no more")
        return Validation(checks=(), foreign_consumers={}, is_news=False)

    def take(store: RegionStore, name: values.RegionName, readers: object, groups: frozenset[GroupId]) -> None:
        kept.append(groups)
        raise errors.BrokerUnavailable("away") if len(kept) % 2 else KeyError("t")

    monkeypatch.setattr(group_watch, "take", take)
    monkeypatch.setattr(group_watch, "SAMPLE_PERIOD", period)
    # Its own leaves out what other tests have said a moment ago.
    monkeypatch.setattr(group_watch, "_AGAIN", logging.getLogger(__name__))
    watched(monkeypatch, found, over)
    assert kept[:times] == [{G}] * times
    assert len(kept) == 1 or period == 0.0
    assert "the lag of region flights is not kept now: away" in caplog.text
