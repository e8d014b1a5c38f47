"""A group is a name on one cluster: what is reserved, who is refused, and the way out, in both stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kcr.errors import GroupInOtherRegion, OtherCluster
from airflow_kcr.protocol.region import commands, events
from airflow_kcr.protocol.region.rows import HaltReason, RegionState
from airflow_kcr.protocol.rules import OutOfRangePolicy, RegionRules
from airflow_kcr.protocol.values import NO_CLUSTER, AssignmentId, ClusterId, EventNumber, GroupId, RegionName, TopicId
from airflow_kcr.store.regions import RegionStore
from tests.contract.conftest import Drive
from tests.support.driver import START, Driver, group_rules
from tests.support.judging import halt_of
from tests.support.stores import Subject
from tests.support.twin import plain

FLIGHTS, SEATS = RegionName("flights"), RegionName("seats")
G, H = GroupId("g"), GroupId("h")
EAST, WEST = ClusterId("east"), ClusterId("west")


def rules_of(*groups: str) -> RegionRules:
    return RegionRules(groups={GroupId(g): group_rules(g) for g in groups})


def declare(subject: Subject, name: RegionName, *groups: str, on: ClusterId = NO_CLUSTER) -> RegionStore:
    store = subject.transactions
    known = dict.fromkeys(map(GroupId, groups), on) if on else {}
    store.handle(name, commands.DeclareRegion(spec=subject.specs.spec(rules_of(*groups)), clusters=known))
    return store


def claim(driver: Driver, cluster: ClusterId) -> None:
    """Have member 0 claim what it has, as read in a cluster."""
    member = driver.member(0)
    process = driver.processes[member]
    process.assignments += 1
    driver.handle(
        commands.ClaimPartitions(
            member=member,
            incarnation=process.incarnation,
            assignment=AssignmentId(process.assignments),
            partitions={p: commands.AssignedPartition(bounds=driver.logs[p]) for p in process.assigned},
            cluster=cluster,
        )
    )


def found(driver: Driver) -> list[tuple[GroupId, ClusterId]]:
    bodies = [e.body for e in driver.store.events(driver.name, EventNumber(0), 10_000)]
    return [(b.group, b.cluster) for b in bodies if isinstance(b, events.ClusterFound)]


# -- what is reserved --------------------------------------------------------------------------------------------------


def test_one_name_on_two_clusters_is_two_groups(subject: Subject) -> None:
    declare(subject, FLIGHTS, "g", on=EAST)
    store = declare(subject, SEATS, "g", on=WEST)
    assert [store.read(name)[0].clusters for name in (FLIGHTS, SEATS)] == [{G: EAST}, {G: WEST}]


def test_a_group_of_a_cluster_is_declared_in_one_region(subject: Subject) -> None:
    store = declare(subject, FLIGHTS, "g", on=EAST)
    with pytest.raises(GroupInOtherRegion, match=r"group g belongs to region flights, by either address.*cluster east"):
        declare(subject, SEATS, "g", on=EAST)
    assert store.names() == (FLIGHTS,)


def test_regions_are_found_by_the_names_of_their_groups(subject: Subject) -> None:
    declare(subject, FLIGHTS, "g", "h", on=EAST)
    store = declare(subject, SEATS, "g", on=WEST)
    assert store.names_with([G]) == (FLIGHTS, SEATS)
    assert store.names_with([H, GroupId("other")]) == (FLIGHTS,)
    assert (store.names_with([GroupId("other")]), store.names_with([])) == ((), ())


def test_a_declared_region_reads_back_with_its_clusters(subject: Subject) -> None:
    store = subject.transactions
    spec = subject.specs.spec(rules_of("g", "h"))
    made = store.handle(FLIGHTS, commands.DeclareRegion(spec=spec, clusters={H: EAST}))
    assert plain(store.read(FLIGHTS)[0]) == plain(made)


def test_who_tells_first_reserves_and_the_other_region_is_refused(subject: Subject) -> None:
    declare(subject, FLIGHTS, "g")
    store = declare(subject, SEATS, "g", on=EAST)  # as the cluster of flights was not known yet
    with pytest.raises(GroupInOtherRegion, match="group g belongs to region seats"):
        store.handle(FLIGHTS, commands.ReportClusters(found={G: EAST}))
    assert store.read(FLIGHTS)[0].clusters == {}
    store.handle(FLIGHTS, commands.ReportClusters(found={G: WEST}))
    assert store.read(FLIGHTS)[0].clusters == {G: WEST}


def test_a_report_is_recorded_once_and_says_nothing_of_other_groups(subject: Subject) -> None:
    store = declare(subject, FLIGHTS, "g")
    for _ in range(2):
        store.handle(FLIGHTS, commands.ReportClusters(found={G: EAST, H: WEST}))
    assert store.read(FLIGHTS)[0].clusters == {G: EAST}
    told = [e.body for e in store.events(FLIGHTS, EventNumber(0), 100) if isinstance(e.body, events.ClusterFound)]
    assert told == [events.ClusterFound(group=G, cluster=EAST)]


def test_a_report_of_another_cluster_is_refused_with_the_way_out(subject: Subject) -> None:
    store = declare(subject, FLIGHTS, "g", on=EAST)
    with pytest.raises(OtherCluster, match=r"leads to Kafka cluster west.*from cluster east.*delete it and declare"):
        store.handle(FLIGHTS, commands.ReportClusters(found={G: WEST}))
    assert store.read(FLIGHTS)[0].clusters == {G: EAST}


def test_a_deleted_region_gives_its_groups_free(subject: Subject) -> None:
    store = declare(subject, FLIGHTS, "g", on=EAST)
    store.handle(FLIGHTS, commands.DeleteRegion())
    declare(subject, SEATS, "g", on=EAST)


def test_a_group_that_a_changed_spec_takes_out_is_free_and_forgets_its_cluster(subject: Subject) -> None:
    store = declare(subject, FLIGHTS, "g", "h", on=EAST)
    left = store.handle(FLIGHTS, commands.ChangeSpec(at_once=subject.specs.spec(rules_of("g"), revision=2)))
    assert left.clusters == store.read(FLIGHTS)[0].clusters == {G: EAST}
    declare(subject, SEATS, "h", on=EAST)


def test_a_changed_spec_says_where_its_new_groups_are(subject: Subject) -> None:
    declare(subject, SEATS, "h", on=EAST)
    store = declare(subject, FLIGHTS, "g")
    spec = subject.specs.spec(rules_of("g", "h"), revision=2)
    with pytest.raises(GroupInOtherRegion, match="group h belongs to region seats"):
        store.handle(FLIGHTS, commands.ChangeSpec(at_once=spec, clusters={H: EAST}))
    store.handle(FLIGHTS, commands.ChangeSpec(at_once=spec, clusters={H: WEST}))
    assert store.read(FLIGHTS)[0].clusters == {H: WEST}


# -- members -----------------------------------------------------------------------------------------------------------


def test_the_first_claim_tells_the_cluster(drive: Drive) -> None:
    driver = drive()
    driver.up()
    claim(driver, EAST)
    claim(driver, EAST)
    claim(driver, NO_CLUSTER)
    assert found(driver) == [(driver.member(0).group, EAST)]
    assert driver.held.state is RegionState.RUNNING


def test_a_claim_in_another_cluster_halts_the_region_and_moves_nothing(drive: Drive) -> None:
    driver = drive()
    driver.up()
    claim(driver, EAST)
    before = driver.held.claims
    claim(driver, WEST)
    assert (driver.held.state, halt_of(driver).reason) == (RegionState.HALTED, HaltReason.OTHER_CLUSTER)
    assert driver.held.claims == before
    assert driver.held.clusters == {driver.member(0).group: EAST}
    assert found(driver) == [(driver.member(0).group, EAST)]


def test_a_claim_of_a_group_that_another_region_has_is_refused(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    group = driver.member(0).group
    driver.store.handle(SEATS, commands.DeclareRegion(spec=subject.specs.spec(rules_of(group)), clusters={group: EAST}))
    with pytest.raises(GroupInOtherRegion, match=f"group {group} belongs to region seats"):
        claim(driver, EAST)
    claim(driver, WEST)
    assert driver.held.state is RegionState.RUNNING


def test_back_at_its_cluster_a_halted_region_goes_on_and_where_it_was(drive: Drive) -> None:
    driver = drive()
    driver.up()
    claim(driver, EAST)
    claim(driver, WEST)
    driver.handle(START)
    claim(driver, WEST)  # the address still leads there
    halted = driver.held.state
    driver.handle(START)
    claim(driver, EAST)
    driver.finish_reset()
    assert (halted, driver.held.state) == (RegionState.HALTED, RegionState.RUNNING)


def test_declared_anew_a_region_consumes_from_the_other_cluster(subject: Subject, drive: Drive) -> None:
    driver = drive()
    driver.up()
    claim(driver, EAST)
    claim(driver, WEST)
    driver.handle(commands.KillRegion())
    for member in driver.all_members():
        driver.leave(member)
    group = driver.member(0).group
    driver.handle(commands.DeleteRegion())
    spec = subject.specs.spec(rules_of(group))
    region = driver.store.handle(driver.name, commands.DeclareRegion(spec=spec, clusters={group: WEST}))
    assert region.clusters == {group: WEST}


@pytest.mark.parametrize("policy", [OutOfRangePolicy.EARLIEST, OutOfRangePolicy.FAIL])
def test_no_policy_decides_about_logs_of_another_cluster(drive: Drive, policy: OutOfRangePolicy) -> None:
    driver = drive(rules=replace(rules_of("g"), out_of_range=policy, beyond_end=policy))
    driver.up()
    claim(driver, EAST)
    other = {p: replace(log, topic_id=TopicId("of the other cluster")) for p, log in driver.logs.items()}
    report = commands.ReportOutOfRange(caller=driver.caller(driver.member(0)), observed=other, cluster=WEST)
    driver.handle(report)
    assert halt_of(driver).reason is HaltReason.OTHER_CLUSTER
