"""The JSON of the reference, exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.api import CheckpointRequestView, Region, RegionSummary, RegionView
from airflow_kcr.api.checkpoints import CheckpointView
from airflow_kcr.api.views import span
from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, UnknownCheckpoint
from airflow_kcr.goals import RequestPublished
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.rows import Claim, Requester, ResetCause
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import CheckpointNumber, GroupPartition, Offset, RequestId
from tests.support.driver import PAUSE, START, Driver
from tests.support.scripts import boundary, hourly, located, rewind, running


def region_of(driver: Driver) -> Region:
    return Region(driver.name, driver.store)


def test_a_region_is_shown_with_its_checkpoints_its_next_boundary_and_what_each_member_has() -> None:
    driver = hourly(partitions=2, members=2)
    driver.process()
    driver.checkpoint("n")
    shown = region_of(driver).show().to_json()
    assert (shown["state"], shown["desired_state"], shown["progress"]) == ("running", "running", "progressing")
    assert (shown["epoch"], shown["timeline"], shown["next_sequence"]) == (1, 1, 3)
    assert (shown["restore_point"], shown["last_complete"]) == (2, 2)
    assert (shown["next_boundary"], shown["overdue_seconds"]) == ("2026-01-01T01:00:00Z", None)
    assert (shown["note"], shown["waits"], shown["foreign_consumers"], shown["unowned"]) == ("", [], [], [])
    (group,) = region_of(driver).show().groups
    assert (group.group_id, str(group.protocol), str(group.assignor)) == ("g", "classic", "range")
    assert [(str(m.member), str(m.state), m.alive, m.incarnation) for m in group.members] == [
        ("g[0]", "processing", True, 1),
        ("g[1]", "processing", True, 1),
    ]
    assert [[p.partition for p in m.partitions] for m in group.members] == [[0], [1]]


def test_a_run_whose_last_try_has_failed_is_shown_with_what_to_do() -> None:
    driver = Driver()
    driver.clock.advance(7200)
    driver.handle(commands.Run(request_id=RequestId("hours/one"), boundary=boundary(1)))
    driver.join(driver.member(0))
    assert region_of(driver).show().note == ""
    driver.crash(driver.member(0))
    driver.wait(300)
    note = region_of(driver).show().note
    assert note.startswith("no process works for the run hours/one up to 2026-01-01T01:00:00Z: ")
    assert note.endswith("to give it up, kcr region stop flights")
    region_of(driver).stop()
    assert (str(driver.region.state), region_of(driver).show().note) == ("stopped", "")
    # The next run has the records of both.
    driver.handle(commands.Run(request_id=RequestId("hours/two"), boundary=boundary(2)))
    assert driver.region.is_in_run


def test_a_stalled_region_is_shown_with_the_rule_that_waits_and_since_when() -> None:
    driver = running(partitions=1, members=1)
    driver.crash(driver.member(0))
    driver.wait(300)
    shown = region_of(driver).show()
    assert (shown.to_json()["progress"], shown.to_json()["waits"]) == (
        "stalled",
        [
            {
                "rule": "members",
                "since": "2026-01-01T00:00:10Z",
                "stalled_from": "2026-01-01T00:02:20Z",
                "what": "no member lives; start them",
            }
        ],
    )
    assert shown.liveness.text() == "stalled: members since 2026-01-01T00:00:10Z: no member lives; start them"
    assert shown.trouble == "no member lives; start them"


def test_a_region_that_never_started_shows_the_members_it_will_have() -> None:
    shown = region_of(Driver()).show()
    found = shown.to_json()
    assert (found["state"], found["next_boundary"]) == ("stopped", None)
    assert (found["restore_point"], found["last_complete"]) == (None, None)
    member = shown.groups[0].members[1]
    assert (str(member.member), member.incarnation, str(member.state), member.alive) == ("g[1]", 0, "closed", False)
    assert member.partitions == ()


def states(driver: Driver) -> list[str]:
    return [str(member.state) for group in region_of(driver).show().groups for member in group.members]


def test_a_member_is_followed_from_joining_to_its_end() -> None:
    driver = Driver()
    driver.handle(START)
    seen = [states(driver)]
    for step in (
        lambda: [driver.join(m) for m in driver.all_members()],
        driver.spread,
        driver.finish_reset,
        lambda: driver.handle(PAUSE),
        lambda: driver.leave(driver.member(1)),
    ):
        step()
        seen.append(states(driver))
    assert [s[1] for s in seen] == ["closed", "joining", "ready", "processing", "holding", "closed"]


def test_a_member_whose_lease_is_over_is_not_alive_and_still_has_its_claims() -> None:
    driver = running()
    driver.crash(driver.member(1))
    driver.wait(60)
    member = region_of(driver).show().groups[0].members[1]
    assert (member.alive, member.state, len(member.partitions)) == (False, "closed", 2)


def test_a_member_that_the_spec_has_no_place_for_is_shown_while_it_lives() -> None:
    driver = running()
    region, now = driver.store.read(driver.name)
    fewer = replace(region.rules.groups[driver.member(0).group], members=1)
    rules = replace(region.rules, groups={fewer.group_id: fewer})
    view = RegionView.of(replace(region, spec=replace(region.spec, rules=rules)), now)
    assert [m.member.index for m in view.groups[0].members] == [0, 1]


def test_a_halted_region_says_why_and_what_can_be_done() -> None:
    driver = running()
    driver.find_stranger()
    view = region_of(driver).show()
    assert "stranger on host host" in view.halted
    assert "remove the foreign consumer" in view.halted
    assert "stranger on host host" in view.trouble
    assert region_of(running()).show().trouble == ""


def test_a_region_whose_batches_fail_says_how_often_and_how_long_it_waits() -> None:
    driver = running()
    assert RegionView.of(driver.region, driver.clock.now).note == ""
    for _ in range(3):
        driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED, "it broke")
        driver.finish_reset()
    assert RegionView.of(driver.region, driver.clock.now).note == (
        "3 failures in succession, the last answered by a reset and a wait of 4 s; more than 5 halt the region"
    )


def test_a_region_in_a_reset_says_what_that_waits_for_once() -> None:
    driver = running()
    driver.request_reset(driver.member(0), ResetCause.LEASE_LOST, "it was away")
    shown = RegionView.of(driver.region, driver.clock.now)
    assert (shown.note, shown.liveness.text()) == (
        "",
        "waiting: reset since 2026-01-01T00:00:00Z: lease_lost: g:t-0 is not covered (last owner: g[0]), "
        "g:t-1 is not covered (last owner: g[0]), g:t-2 is not covered (last owner: g[1]) and 3 more",
    )


def test_a_region_with_a_partition_that_no_member_owns_says_so_with_since_when() -> None:
    driver = running()
    fresh, member = driver.partition(99), driver.member(0)
    driver.grow(fresh, end=500)
    there = frozenset(driver.logs)
    driver.handle(
        commands.ReportPartitions(member=member, incarnation=driver.processes[member].incarnation, partitions=there),
    )
    shown = RegionView.of(driver.region, driver.clock.now)
    assert shown.to_json()["unowned"] == [
        {"group": "g", "topic": "t", "partition": 99, "since": "2026-01-01T00:00:00Z"}
    ]
    assert shown.liveness.text() == (
        "waiting: partitions since 2026-01-01T00:00:00Z: no member owns g:t-99: their records are not read; "
        "a member joins its group anew for them"
    )
    driver.wait(driver.region.rules.timeouts.rejoin_after.total_seconds())
    driver.request_checkpoint("n")
    missing = list(RequestPublished(request_id=RequestId("n")).missing(driver.region, driver.clock.now))
    assert [wait.what for wait in missing] == ["g:t-99 is on the brokers and no member owns it yet"]


def test_a_region_says_what_the_brokers_do_not_have_and_when_it_goes_on_without() -> None:
    driver = running()
    driver.logs = {p: log for p, log in driver.logs.items() if p.partition < 2}
    member = driver.member(0)

    def report() -> None:
        incarnation = driver.processes[member].incarnation
        inventory = commands.ReportPartitions(member=member, incarnation=incarnation, partitions=frozenset(driver.logs))
        driver.handle(inventory)

    report()
    since = "the brokers have not had it since 2026-01-01T00:00:00Z"
    shown = RegionView.of(driver.region, driver.clock.now)
    assert f"g:t-2, g:t-3: {since}; once that has lasted 20 s the region goes on without it" in shown.note
    driver.wait(driver.region.rules.timeouts.rejoin_after.total_seconds())
    report()
    shown = RegionView.of(driver.region, driver.clock.now)
    assert f"g:t-2, g:t-3: {since}; it is no part of the region any more" in shown.note
    assert shown.to_json()["note"] == shown.note
    document = shown.to_json()["absent"]
    assert isinstance(document, list)
    assert document[0] == {"group": "g", "topic": "t", "partition": 2, "since": "2026-01-01T00:00:00Z", "gone": True}


def test_a_checkpoint_is_shown_as_promised() -> None:
    driver = hourly(partitions=2, members=1)
    driver.wait(3_601)
    located(driver, boundary(1), 20)
    requester = Requester(dag_id="checkpoint_flights", run_id="scheduled__2026-01-01T00:00:00Z")
    driver.request_checkpoint("n", boundary=boundary(1), requester=requester)
    driver.process(width=20)
    driver.handle(commands.Reconcile())
    driver.complete()
    driver.publish()
    driver.read_back(
        driver.member(0), {driver.partition(0): driver.region.offsets[CheckpointNumber(2)][driver.partition(0)]}
    )
    shown = region_of(driver).checkpoints.show(2).to_json()
    assert (shown["timeline"], shown["sequence"], shown["state"]) == (1, 2, "published")
    assert (shown["boundary"], shown["inexact"]) == ("2026-01-01T01:00:00Z", False)
    assert shown["requested_by"] == {"dag_id": requester.dag_id, "run_id": requester.run_id}
    assert [(row["offset"], row["committed"]) for row in shown["offsets"]] == [(20, 20), (20, None)]  # type: ignore[attr-defined]


def test_an_inexact_checkpoint_says_so_and_why() -> None:
    driver = hourly(partitions=1, members=1)
    driver.wait(3_601)
    located(driver, boundary(1), 20, inexact="a record of the future")
    driver.request_checkpoint("n", boundary=boundary(1))
    driver.process(width=20)
    driver.handle(commands.Reconcile())
    view = region_of(driver).checkpoints.show(driver.complete())
    assert view.to_json()["inexact"] is True
    assert view.checkpoint.inexact[driver.partition(0)] == "a record of the future"


def test_a_checkpoint_that_is_open_shows_what_was_contributed_and_who_is_missing() -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n")
    driver.contribute(driver.member(0))
    view = region_of(driver).checkpoints.show(2)
    assert (str(view.checkpoint.state), [p.partition for p in view.offsets]) == ("draining", [0, 1])
    assert "g[1] has not contributed" in view.lacking


def test_an_unknown_checkpoint_is_refused_with_those_that_there_are() -> None:
    driver = running()
    with pytest.raises(UnknownCheckpoint, match="it has none yet"):
        region_of(driver).checkpoints.show(7)
    driver.checkpoint("n")
    checkpoints = region_of(driver).checkpoints
    for look in (checkpoints.show, checkpoints.pin, checkpoints.unpin):
        with pytest.raises(UnknownCheckpoint, match="has no checkpoint 7; its newest are 2"):
            look(7)


def test_checkpoints_are_listed_with_why_they_are_kept() -> None:
    driver = running()
    for n in range(3):
        driver.process()
        driver.checkpoint(f"n{n}")
    region = region_of(driver)
    region.checkpoints.pin(2, "before-upgrade", "to be sure")
    rows = [summary.to_json() for summary in region.checkpoints.list()]
    assert [row["kept_because"] for row in rows] == [
        "it is pinned as before-upgrade",
        "the restore point 4 was built from it",
        "it is the restore point",
    ]
    assert {key: rows[0][key] for key in ("sequence", "state", "committed", "current", "pinned_as", "inexact")} == {
        "sequence": 2,
        "state": "published",
        "committed": "yes",
        "current": True,
        "pinned_as": "before-upgrade",
        "inexact": False,
    }
    region.checkpoints.unpin(2)
    assert region.checkpoints.list()[0].kept == ""


def test_a_checkpoint_that_never_was_complete_is_neither_on_the_path_nor_undone() -> None:
    driver = running()
    driver.process()
    undone = driver.checkpoint("undone")
    driver.process()
    driver.request_checkpoint("aborted")
    aborted = driver.region.open_checkpoint
    assert aborted is not None
    region = region_of(driver)
    assert list(standing(region).values()) == [("published", True, None), ("draining", None, None)]
    driver.request_reset(driver.member(0), ResetCause.BATCH_REFUSED, "a test")
    driver.finish_reset()
    driver.complete()  # the request is tried again
    driver.publish()
    rewind(driver, ToOffset(offset=Offset(0)))
    rows = standing(region)
    assert rows[aborted] == ("aborted", None, None)
    assert rows[undone] == ("published", False, driver.region.timeline)


def standing(region: Region) -> dict[object, tuple[object, ...]]:
    """The state of each checkpoint, whether it is current to the restore point, and what undid it."""
    rows = [summary.to_json() for summary in region.checkpoints.list()]
    return {row["sequence"]: (row["state"], row["current"], row["undone_by"]) for row in rows}


def test_a_boundary_that_has_passed_is_told_with_how_long_ago_until_its_checkpoint_is_made() -> None:
    driver = hourly(partitions=1, members=1)
    driver.wait(3_602)
    view = RegionView.of(driver.region, driver.clock.now)
    assert (view.overdue, view.to_json()["overdue_seconds"]) == (None, None)
    driver.wait(7_502)
    for read in (RegionView, RegionSummary):
        late = read.of(driver.region, driver.clock.now)
        assert late.overdue == timedelta(seconds=7_504)
        assert late.to_json()["overdue_seconds"] == 7_504
    located(driver, boundary(1), 20)
    driver.request_checkpoint("n", boundary=boundary(1))
    driver.process(width=20)
    driver.handle(commands.Reconcile())
    driver.complete()
    assert driver.region.next_boundary == boundary(2)
    driver.handle(commands.KillRegion())
    driver.wait(86_400)
    assert RegionView.of(driver.region, driver.clock.now).overdue is None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (372, "6 min 12 s"),
        (7_504, "2 h 5 min"),
        (90_061, "1 d 1 h"),
    ],
)
def test_how_long_something_took_is_said_in_its_two_largest_units(seconds: float, said: str) -> None:
    assert span(timedelta(seconds=seconds)) == said


def test_a_pin_needs_a_label_and_offsets_to_keep() -> None:
    driver = running()
    driver.request_checkpoint("n")
    with pytest.raises(CheckpointNotUsable):
        region_of(driver).checkpoints.pin(2)
    with pytest.raises(ConfigurationError, match="label"):
        region_of(driver).checkpoints.pin(2, "")


def test_a_request_for_a_checkpoint_is_shown_with_its_checkpoint() -> None:
    driver = running()
    region = region_of(driver)
    asked = region.drain(request_id="n").to_json()
    assert (asked["request_id"], asked["state"], asked["sequence"], asked["checkpoint"]) == ("n", "open", 2, "draining")
    assert (asked["boundary"], asked["inexact"], asked["why"]) == (None, False, None)
    driver.complete()
    assert region.drain(request_id="n").to_json() == {**asked, "state": "answered", "checkpoint": "complete"}
    assert CheckpointRequestView.of(driver.region, RequestId("n")).request.purpose == "drain"


def test_two_drains_without_a_request_id_are_two_checkpoints() -> None:
    driver = running()
    region = region_of(driver)
    first = region.drain().request.request_id
    driver.complete()
    driver.publish()
    assert region.drain().request.request_id != first
    assert driver.region.open_checkpoint == 3


def test_an_aborted_checkpoint_has_no_offsets_to_show() -> None:
    driver = running()
    driver.process()
    driver.request_checkpoint("n")
    driver.wait(timedelta(minutes=4).total_seconds())
    view = CheckpointView.of(driver.region, CheckpointNumber(2))
    assert (str(view.checkpoint.state), dict(view.offsets)) == ("aborted", {})


def test_a_large_region_is_shown_by_one_look_at_its_claims() -> None:
    """Counted, not timed: a look at every claim for every member is what made it slow."""
    driver = Driver(partitions=200, members=100)
    driver.up()
    region, now = driver.store.read(driver.name)
    counted = Counted(region.claims)
    view = RegionView.of(replace(region, claims=counted), now)
    assert sum(len(m.partitions) for g in view.groups for m in g.members) == 200
    assert counted.walks <= 5


class Counted(Mapping[GroupPartition, Claim]):
    """Claims that count how often all of them are gone through."""

    def __init__(self, claims: Mapping[GroupPartition, Claim]) -> None:
        self.claims, self.walks = claims, 0

    def __getitem__(self, partition: GroupPartition) -> Claim:
        return self.claims[partition]

    def __iter__(self) -> Iterator[GroupPartition]:
        self.walks += 1
        return iter(self.claims)

    def __len__(self) -> int:
        return len(self.claims)


def test_members_that_run_different_versions_of_the_package_are_told_of() -> None:
    driver = running()
    for index, version in enumerate(("0.1.0", "0.2.0")):
        member = driver.member(index)
        arrival = commands.Register(member=member, token=f"again {index}", version=version, takeover=True)
        driver.handle(arrival)
    shown = region_of(driver).show()
    assert [member.version for group in shown.groups for member in group.members] == ["0.1.0", "0.2.0"]
    assert shown.note == "its members run different versions of airflow-kcr: 0.1.0: g[0]; 0.2.0: g[1]"
