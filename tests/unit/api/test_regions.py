from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta

import pytest

from airflow_kcr import errors, goals
from airflow_kcr.api import Change, Cluster, Region
from airflow_kcr.protocol.region.commands import Register
from airflow_kcr.protocol.region.events import SpecChanged
from airflow_kcr.protocol.values import ClusterId, GroupId, MemberId
from airflow_kcr.spec import RegionSpec, parse
from airflow_kcr.store.regions import RegionStore
from tests.support.driver import Clock
from tests.support.live_region import FakeCluster
from tests.support.memory import MemoryTransactions
from tests.support.start_failures import say

MEMBER = MemberId(GroupId("g"), 0)


def spec_of(
    *, name: str = "flights", group: str = "g", members: int = 2, more: str = "", at: str = "localhost:9092"
) -> RegionSpec:
    return parse(
        f"region: {name}\nkafka: {{bootstrap.servers: '{at}'}}\n"
        f"groups: [{{group_id: {group}, topics: [t], members: {members}, pipeline: 'jobs:process'}}]\n{more}"
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> RegionStore:
    return MemoryTransactions(clock)


class Network:
    """The clusters that addresses lead to; a test may move them. Nothing answers at any other address."""

    def __init__(self, **clusters: str) -> None:
        self.clusters = clusters
        self.asked: list[str] = []

    def __call__(self, spec: RegionSpec, group: GroupId) -> AbstractContextManager[Cluster]:
        address = (spec.cluster_of(group)[0] or {})["bootstrap.servers"]
        self.asked.append(address)
        host = address.partition(":")[0]
        found = FakeCluster(cluster=ClusterId(self.clusters.get(host, "")), is_away=host not in self.clusters)
        return found.clusters(spec, group)


@pytest.fixture
def network() -> Network:
    return Network(east="E", east2="E", west="W")


@pytest.fixture
def region(store: RegionStore, network: Network) -> Region:
    return Region("flights", store, clusters=network)


def seats(store: RegionStore, network: Network) -> Region:
    return Region("seats", store, clusters=network)


def attended(region: Region, store: RegionStore) -> Region:
    """Declare the region and start it with a living member."""
    region.apply(spec_of())
    region.start()
    store.handle(region.name, Register(member=MEMBER, token="one"))
    return region


def fields(region: Region, spec: RegionSpec) -> dict[str, str]:
    return {d.path: str(d.takes_effect) for d in region.compare_spec(spec).differences}


def test_a_region_is_created_once_and_stopped(region: Region) -> None:
    assert region.apply(spec_of()).to_json() == {"region": "flights", "change": "created", "differences": []}
    assert region.show().state == "stopped"
    assert region.apply(spec_of()).change is Change.UNCHANGED


def test_comparing_changes_nothing(region: Region, store: RegionStore) -> None:
    assert region.compare_spec(spec_of()).change is Change.CREATED
    assert store.names() == ()
    region.apply(spec_of())
    assert region.compare_spec(spec_of(more="max_failures: 2")).change is Change.CHANGED
    assert region.spec().max_failures == 5


def test_a_region_with_members_takes_the_rest_at_the_next_checkpoint(region: Region, store: RegionStore) -> None:
    attended(region, store)
    changed = spec_of(members=3, more="max_failures: 2")
    assert fields(region, changed) == {"groups[g].members": "next_checkpoint", "max_failures": "at_once"}
    assert region.apply(changed).change is Change.CHANGED
    assert region.spec() == spec_of(more="max_failures: 2")
    assert "at the next checkpoint" in region.show().note


def test_the_same_again_is_told_as_what_waits_already(region: Region, store: RegionStore) -> None:
    attended(region, store)
    region.apply(spec_of(members=3))
    again = region.apply(spec_of(members=3))
    assert again.change is Change.WAITING
    assert [d.path for d in again.differences] == ["groups[g].members"]


def test_what_waits_can_be_taken_back(region: Region, store: RegionStore) -> None:
    attended(region, store)
    region.apply(spec_of(members=3))
    assert region.apply(spec_of()).to_json() == {"region": "flights", "change": "withdrawn", "differences": []}
    assert "at the next checkpoint" not in region.show().note
    assert region.apply(spec_of()).change is Change.UNCHANGED


def test_a_revision_is_never_used_twice(region: Region, store: RegionStore) -> None:
    attended(region, store)
    for members, failures in ((2, 2), (2, 3), (3, 4), (4, 4), (4, 5)):
        region.apply(spec_of(members=members, more=f"max_failures: {failures}"))
    region.kill()
    region.start()
    revisions = [e.body.revision for e in region.events() if isinstance(e.body, SpecChanged)]
    assert len(revisions) == 5
    assert [1, *revisions] == sorted({1, *revisions})


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        (spec_of(group="h"), r"groups\[h\]\.group_id"),
        (
            parse(spec_of().to_json_text().replace("localhost:9092", "elsewhere:9092")),
            r"kafka\.bootstrap\.servers",
        ),
    ],
    ids=["group id", "cluster"],
)
def test_a_group_id_and_a_cluster_never_change(region: Region, changed: RegionSpec, field: str) -> None:
    region.apply(spec_of())
    with pytest.raises(errors.RegionExists, match=f"{field}.*make another region"):
        region.apply(changed)
    assert region.spec() == spec_of()


def test_a_group_is_in_one_region(region: Region, store: RegionStore) -> None:
    region.apply(spec_of())
    with pytest.raises(errors.GroupInOtherRegion, match="group g belongs to region flights"):
        Region("seats", store).apply(spec_of(name="seats"))


def test_nobody_is_asked_where_the_files_tell(region: Region, store: RegionStore, network: Network) -> None:
    region.apply(spec_of())
    region.apply(spec_of(at="localhost:9092,other:9092"))
    with pytest.raises(errors.GroupInOtherRegion, match="group g belongs to region flights"):
        seats(store, network).apply(spec_of(name="seats"))
    assert network.asked == []


def test_one_group_by_two_addresses_is_one(region: Region, store: RegionStore, network: Network) -> None:
    region.apply(spec_of(at="east:9092"))
    with pytest.raises(
        errors.GroupInOtherRegion, match=r"group g belongs to region flights, by either address.*cluster E"
    ):
        seats(store, network).apply(spec_of(name="seats", at="east2:9092"))
    assert store.names() == ("flights",)


@pytest.mark.parametrize("away", ["east", "west"])
def test_a_name_is_not_shared_while_a_cluster_does_not_answer(
    region: Region, store: RegionStore, network: Network, away: str
) -> None:
    region.apply(spec_of(at="east:9092"))
    there = network.clusters.pop(away)
    with pytest.raises(errors.GroupInOtherRegion, match="apply the spec while both clusters answer"):
        seats(store, network).apply(spec_of(name="seats", at="west:9092"))
    network.clusters[away] = there
    assert seats(store, network).apply(spec_of(name="seats", at="west:9092")).change is Change.CREATED


def test_a_group_that_is_added_later_is_looked_at_too(region: Region, store: RegionStore, network: Network) -> None:
    region.apply(spec_of(at="east:9092"))
    other = seats(store, network)
    other.apply(spec_of(name="seats", group="h", at="east2:9092"))
    groups = "groups: [{group_id: h, topics: [t], pipeline: 'p:q'}, {group_id: g, topics: [t], pipeline: 'p:q'}]"
    added = parse(f"region: seats\nkafka: {{bootstrap.servers: 'east2:9092'}}\n{groups}")
    with pytest.raises(errors.GroupInOtherRegion, match="group g belongs to region flights"):
        other.apply(added)
    assert [*other.spec().rules().groups] == ["h"]


def test_a_new_address_of_the_same_cluster_is_taken(region: Region, store: RegionStore) -> None:
    region.apply(spec_of(at="east:9092"))
    assert fields(region, spec_of(at="east2:9092")) == {"kafka.bootstrap.servers": "at_once"}  # as no member lives
    region.apply(spec_of(at="east2:9092"))
    assert region.spec() == spec_of(at="east2:9092")
    assert store.read(region.name)[0].clusters == {"g": "E"}


def test_a_group_is_not_moved_to_another_cluster(region: Region) -> None:
    region.apply(spec_of(at="east:9092"))
    with pytest.raises(errors.RegionExists, match=r"would move from Kafka cluster E to W.*make another region"):
        region.apply(spec_of(at="west:9092"))
    with pytest.raises(errors.RegionExists, match=r"kafka\.bootstrap\.servers can't change"):
        region.apply(spec_of(at="nowhere:9092"))
    assert region.spec() == spec_of(at="east:9092")


def test_a_spec_of_another_region_is_not_taken(region: Region) -> None:
    with pytest.raises(errors.ConfigurationError, match="region seats, this is flights"):
        region.apply(spec_of(name="seats"))


def test_waiting_for_a_changed_spec_ends_when_members_can_not_start_with_it(region: Region, store: RegionStore) -> None:
    attended(region, store)
    region.apply(spec_of(members=3))
    with pytest.raises(errors.TimedOut, match="a changed spec takes effect at the next checkpoint"):
        region.wait_for(goals.SPEC_IN_FORCE, timedelta(0))
    assert region.apply(spec_of()).change is Change.WITHDRAWN
    region.kill()
    region.apply(spec_of(members=3))
    region.start()
    say(store, region.name, [MEMBER], "there is no module 'nowhere'")
    with pytest.raises(
        errors.SpecRefused, match=r"g\[0\] could not start .*there is no module 'nowhere'; put that right, or"
    ):
        region.wait_for(goals.SPEC_IN_FORCE)


def test_what_is_said_of_a_member_that_can_not_start_is_true(region: Region, store: RegionStore) -> None:
    region.apply(spec_of())
    region.start()
    say(store, region.name, [MEMBER], "there is no module 'nowhere'")
    way_out = "apply a corrected spec, which counts at once, as no member lives, and start the member again"
    with pytest.raises(errors.TimedOut, match=rf"g\[0\] could not start with revision 1 .*{way_out}"):
        region.wait_for(goals.RUNNING, timedelta(0))
    assert way_out in region.show().note
    region.apply(spec_of(more="max_failures: 2"))
    assert region.show().note.count("could not start") == 0
    assert store.handle(region.name, Register(member=MEMBER, token="one")) == 1


def test_what_a_refused_drain_names_works(region: Region, store: RegionStore) -> None:
    region.apply(spec_of())
    region.start()
    with pytest.raises(errors.CheckpointRefused, match="start its members, or stop it, which needs none"):
        region.drain()
    assert region.stop().state == "stopped"
    region.start()
    for index in (0, 1):
        store.handle(region.name, Register(member=MemberId(GroupId("g"), index), token="one"))
    region.drain()
