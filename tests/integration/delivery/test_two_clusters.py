"""One region over two Kafka clusters: two groups with different deliveries and sinks, and each fault in one of them.

Two real brokers, a real store, members of both groups in processes of their own with an engine without Spark. The group
on the one cluster writes at least once, that on the other exactly once into a table. Judged by the invariants over the
history, by counting what was written, and by counting the table's rows.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from airflow_kcr.api import Region, ResetRequest
from airflow_kcr.embedded.servers import new_cluster_id
from airflow_kcr.errors import RegionExists
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.region.commands import DeclareRegion, ReportClusters
from airflow_kcr.protocol.region.rows import Checkpoint, HaltReason, RegionState
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.scopes import Scope
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.protocol.values import ClusterId, GroupId, RegionName
from airflow_kcr.spec import RegionSpec, parse
from tests.conftest import StartKafka
from tests.support.delivery_accounts import rows_of
from tests.support.delivery_servers import Servers
from tests.support.driver import START
from tests.support.faults import Note, checkpoints, finished, held_at, judged, stored, told
from tests.support.kafka import KafkaSet
from tests.support.member_accounts import Place
from tests.support.members import BRISK, Live, live, named, started

pytestmark = pytest.mark.timeout(900)

PARTITIONS = 2
WITHIN = 180.0
"""Seconds that anything may take, on whatever machine."""

OFTEN = "checkpoint: {every: 5s, grace: 2s}\n"
BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}
"""No record comes later into its log than its timestamp says, however long a busy machine takes to send it."""


@dataclass(slots=True, kw_only=True)
class Pair:
    """A region of two groups, `east` at least once and `west` exactly once, each on a cluster of its own."""

    east: Live
    west: Live
    table: str
    servers: Servers
    clusters: Mapping[str, KafkaSet] = field(repr=False)

    @property
    def groups(self) -> tuple[Live, Live]:
        """Both, each as the region is seen from one group."""
        return self.east, self.west

    def fill(self, each: int) -> None:
        """Produce so many records to every partition of both clusters."""
        for one in self.groups:
            one.fill(each)

    def finished(self) -> None:
        """Wait until everything of both clusters is in a checkpoint that Kafka has too."""
        for one in self.groups:
            finished(one, WITHIN)

    def wanted(self, one: Live) -> set[Place]:
        """The records that one cluster has ever stored."""
        return {(one.topic, n, o) for n, end in one.kafka.ends(one.topic).items() for o in range(end)}

    def judge(self, note: Note, lost: frozenset[Place] = frozenset()) -> None:
        """Nothing is lost, replays are where the ledger says, and the table has each record once."""
        rows = [row for one in self.groups for row in one.written()]
        judged(self.east, note, (self.wanted(self.east) | self.wanted(self.west)) - lost, rows)
        shown = Counter(rows_of(self.servers.target.url(), self.table))
        assert shown == Counter(self.wanted(self.west) - lost)


@contextmanager
def paired(
    east: KafkaSet,
    west: KafkaSet,
    servers: Servers,
    folder: Path,
    spec: str = BRISK,
    *,
    hosting: str = "tests.support.member_process",
    pipeline: str = "none:none",
) -> Iterator[Pair]:
    """Lend a started region over two clusters; at the end every process is ended.

    Args:
        east: the cluster of the group that writes at least once.
        west: that of the group that writes exactly once.
        servers: of the store, and of the declared table.
        folder: for what the processes leave.
        spec: further lines of the spec.
        hosting: the module that processes with members run.
        pipeline: of both groups, where their members run on Spark.
    """
    name, url = RegionName(east.group_id()), servers.store.url()
    table = f"out_{name.replace('-', '_')}"
    topics = {"east": east.topic(PARTITIONS, BROKERS_TIME), "west": west.topic(PARTITIONS, BROKERS_TIME)}
    parsed = parse(
        f"region: {name}\n"
        f"kafka: {{bootstrap.servers: '{east.bootstrap_servers}'}}\n"
        "groups:\n"
        f"- {{group_id: {name}-east, topics: [{topics['east']}], pipeline: '{pipeline}', members: 2}}\n"
        f"- {{group_id: {name}-west, topics: [{topics['west']}], pipeline: '{pipeline}', members: 2,\n"
        f"   kafka: {{bootstrap.servers: '{west.bootstrap_servers}'}}, delivery: exactly_once,\n"
        f"   sinks: {{out: {{kind: postgres, url: '{servers.target.url()}', table: {table}}}}}}}\n"
        f"{spec}"
    )
    store, clusters = started(url, parsed), {"east": east, "west": west}
    groups = {
        side: Live(
            kafka=cluster, store=store, url=url, name=name, group=f"{name}-{side}", topic=topics[side],
            folder=folder / side, hosting=hosting,
        )
        for side, cluster in clusters.items()
    }  # fmt: skip
    with groups["east"].ended() as one, groups["west"].ended() as other:
        yield Pair(east=one, west=other, table=table, servers=servers, clusters=clusters)


@pytest.fixture
def pair(kafka_set: StartKafka, servers: Servers, tmp_path: Path) -> Iterator[Pair]:
    """A region whose four members, two of each group, run."""
    with paired(kafka_set(), kafka_set(), servers, tmp_path) as one:
        for group in one.groups:
            group.start(0)
            group.start(1)
        one.east.until_running(WITHIN)
        for group in one.groups:
            group.until(lambda group=group: is_shared(group), "shared by both members", WITHIN)  # type: ignore[misc]
        yield one


def is_shared(one: Live) -> bool:
    claims = one.region().claims.items()
    return {c.owner.index for p, c in claims if p.topic == one.topic and c.owner is not None} == {0, 1}


def aligned(one: Live) -> list[Checkpoint]:
    """The complete checkpoints at a boundary, in order."""
    return [row for row in checkpoints(one) if row.boundary is not None and not row.inexact]


# -- one checkpoint over both ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_one_aligned_checkpoint_divides_the_records_of_both_clusters(
    kafka_set: StartKafka, servers: Servers, tmp_path: Path, record_property: Note
) -> None:
    with paired(kafka_set(), kafka_set(), servers, tmp_path, OFTEN + BRISK) as pair:
        pair.fill(30)
        for one in pair.groups:
            one.start(0, 1)
        pair.east.until_running(WITHIN)
        for number in range(1, 4):
            pair.fill(5)
            pair.east.until(lambda n=number: len(aligned(pair.east)) >= n, f"{number} aligned checkpoints", WITHIN)  # type: ignore[misc]
        pair.finished()
        records = [record for one in pair.groups for record in stored(one.kafka, one.topic)]
        region = pair.east.region()
        for row in aligned(pair.east):
            assert row.boundary is not None
            before = Counter((r.topic, r.partition) for r in records if r.at < row.boundary)
            held = {(p.topic, p.partition): int(o) for p, o in region.offsets[row.sequence].items()}
            assert held == {(one.topic, n): before[one.topic, n] for one in pair.groups for n in range(PARTITIONS)}
        assert {str(g): c for g, c in region.clusters.items()} == {
            pair.east.group: pair.clusters["east"].brokers[0].cluster_id,
            pair.west.group: pair.clusters["west"].brokers[0].cluster_id,
        }
        pair.judge(record_property)


# -- a fault in one of them --------------------------------------------------------------------------------------------


def one_cluster_away(pair: Pair) -> None:
    """The broker of one cluster is killed, the other's records go on; then it is back."""
    broker = pair.clusters["west"].brokers[0]
    broker.kill()
    pair.east.fill(40)
    pair.east.until(pair.east.consumed, "the other cluster's records, all of them", WITHIN)
    broker.start()


def late_answers(pair: Pair) -> None:
    """The broker of one cluster answers nothing while the other group goes on, then all at once."""
    broker = pair.clusters["east"].brokers[0]
    broker.suspend()
    try:
        pair.west.fill(40)
        pair.west.until(pair.west.consumed, "the other cluster's records, all of them", WITHIN)
    finally:
        broker.resume()


def reset_of_one_group(pair: Pair) -> None:
    """A person resets the scope of one group to the first checkpoint; the other group goes on where it is."""
    target = checkpoints(pair.west)[0].sequence
    with Region(pair.west.name, pair.west.store) as region:
        scope = Scope(groups=frozenset({GroupId(pair.west.group)}))
        plan = region.resets.plan(ResetRequest(target=ToCheckpoint(sequence=target), scope=scope))
        region.resets.apply(plan, "to see")
        region.resets.wait_for(plan.plan, timedelta(seconds=WITHIN))
    begun = next(e for e in told(pair.west, events.ResetBegun) if e.person is not None)
    back = {p.group for p, entry in begun.seek.items() if entry.offset is not None and entry.current != entry.offset}
    assert back == {GroupId(pair.west.group)}


def retention_and_growth(pair: Pair) -> None:
    """Retention takes what one cluster's group has processed, and its topic grows."""
    kafka, topic = pair.east.kafka, pair.east.topic
    kafka.delete_records(topic, {n: end // 2 for n, end in kafka.ends(topic).items()})
    kafka.add_partitions(topic, PARTITIONS + 1)
    kafka.fill(topic, {PARTITIONS: 20})


def sink_away(pair: Pair) -> None:
    """The database of one group's sink is killed: the whole region resets, again and again, until it is back."""
    before = len(told(pair.west, events.ResetBegun))
    pair.servers.target.kill()
    pair.fill(40)
    pair.west.until(lambda: len(told(pair.west, events.ResetBegun)) > before + 1, "a second attempt", WITHIN)
    pair.servers.target.start()


def suffered(pair: Pair, fault: Callable[[], None], note: Note) -> None:
    """Have a fault strike a region that has a checkpoint and works, and judge what became of the records."""
    pair.fill(30)
    pair.finished()
    pair.fill(20)
    fault()
    pair.fill(20)
    pair.finished()
    pair.judge(note)


@pytest.mark.long
@pytest.mark.parametrize("fault", [sink_away, one_cluster_away, late_answers, reset_of_one_group, retention_and_growth])
def test_no_fault_of_one_cluster_group_or_sink_loses_or_doubles_a_record(
    pair: Pair, record_property: Note, fault: Callable[[Pair], None]
) -> None:
    suffered(pair, partial(fault, pair), record_property)


PHASES = ("processing", "contributing", "committing", "resetting", "claimed")
"""Of a member: in a batch, in a checkpoint's drain and its commit, in a reset, and as it starts again from there."""

KILLS = [*product(("east", "west"), PHASES), ("west", "staged"), ("west", "published")]
"""One group's member is killed in each phase; the one that writes a table, in two more of a batch."""


@pytest.mark.long
@pytest.mark.parametrize(("side", "phase"), KILLS)
def test_a_member_of_one_group_that_is_killed_in_any_phase_loses_or_doubles_no_record(
    pair: Pair, record_property: Note, side: str, phase: str
) -> None:
    one = {"east": pair.east, "west": pair.west}[side]

    def killed() -> None:
        victim = one.processes[0]
        held_at(one, phase, victim, each=20, within=WITHIN)
        victim.kill()
        one.start(0, takeover=True)

    suffered(pair, killed, record_property)


# -- another cluster at the same address -------------------------------------------------------------------------------


def replaced(kafka: KafkaSet, topic: str) -> None:
    """Put a new cluster in the place of one of a single broker, at its address, with an empty topic; keep its data."""
    (broker,) = kafka.brokers
    broker.stop()
    shutil.move(broker.folder / "data", broker.folder / "kept")
    broker.cluster_id = new_cluster_id()
    broker.start()
    kafka.topic(PARTITIONS, name=topic)


@pytest.mark.long
def test_a_cluster_that_was_replaced_behind_its_address_is_noticed(pair: Pair, record_property: Note) -> None:
    pair.fill(30)
    pair.finished()
    broker = pair.clusters["east"].brokers[0]
    old, before = broker.cluster_id, pair.east.region().claims
    replaced(pair.clusters["east"], pair.east.topic)
    pair.east.fill(200)  # more than before: every position is inside the logs of the new cluster
    pair.east.until(lambda: pair.east.region().state is RegionState.HALTED, "halted", WITHIN)
    halt = pair.east.region().halt
    assert halt is not None
    assert halt.reason is HaltReason.OTHER_CLUSTER
    assert (old in halt.text, broker.cluster_id in halt.text) == (True, True)
    claims = pair.east.region().claims
    assert {p: c.position for p, c in claims.items()} == {p: c.position for p, c in before.items()}
    # The way out: the old cluster is back at its address, and a person starts the region.
    broker.stop()
    shutil.rmtree(broker.folder / "data")
    shutil.move(broker.folder / "kept", broker.folder / "data")
    broker.cluster_id = old
    broker.start()
    pair.east.handle(START)
    pair.east.until_running(WITHIN)
    pair.fill(20)
    pair.finished()
    pair.judge(record_property)


@pytest.mark.long
def test_a_group_that_a_spec_moves_to_another_cluster_is_refused_and_the_way_out_works(
    kafka_set: StartKafka, servers: Servers, tmp_path: Path, record_property: Note
) -> None:
    old, new = kafka_set(), kafka_set()
    url = servers.store.url()
    with (
        live(old, url, tmp_path / "old", members=2, partitions=PARTITIONS, spec=BRISK) as one,
        Region(one.name, one.store) as region,
    ):
        one.fill(30)
        one.start(0, 1)
        finished(one, WITHIN)
        new.topic(PARTITIONS, name=one.topic)
        spec = region.spec()
        moved = replace(spec, kafka={"bootstrap.servers": new.bootstrap_servers})
        ids = f"from Kafka cluster {old.brokers[0].cluster_id} to {new.brokers[0].cluster_id}"
        with pytest.raises(RegionExists, match=f"{ids}.* make another region, with a name and groups of its own"):
            region.apply(moved)
        assert region.spec() == spec
        one.fill(20)
        finished(one, WITHIN)
        judged(one, record_property)
        own = f"{one.name}-new"
        other = replace(moved, region=own, groups=(replace(spec.groups[0], group_id=own),))
        with named(new, url, other, tmp_path / "new") as there:
            there.fill(40)
            there.start(0, 1)
            finished(there, WITHIN)
            assert there.region().clusters == {own: new.brokers[0].cluster_id}
            judged(there, record_property)


@pytest.mark.long
def test_a_region_that_is_declared_anew_consumes_the_cluster_that_took_the_place_of_its_own(
    kafka_set: StartKafka, servers: Servers, tmp_path: Path, record_property: Note
) -> None:
    kafka, url = kafka_set(), servers.store.url()
    with (
        live(kafka, url, tmp_path / "old", members=2, partitions=PARTITIONS, spec=BRISK) as one,
        Region(one.name, one.store) as region,
    ):
        one.fill(30)
        one.start(0, 1)
        finished(one, WITHIN)
        replaced(kafka, one.topic)
        one.fill(50)
        one.until(lambda: one.region().state is RegionState.HALTED, "halted", WITHIN)
        assert "stop the region, delete it and declare it anew" in region.show().halted
        spec = region.spec()
        region.stop()
        assert one.processes[-1].wait(WITHIN) == 0
        region.delete()
        with named(kafka, url, spec, tmp_path / "new") as anew:
            anew.start(0, 1)
            finished(anew, WITHIN)
            judged(anew, record_property)


# -- as `kcr member run` does it ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_members_are_not_started_where_another_cluster_answers(
    kafka_set: StartKafka, servers: Servers, tmp_path: Path, on_spark: dict[str, str]
) -> None:
    kafka = kafka_set()
    with paired(kafka, kafka, servers, tmp_path, **on_spark) as pair:
        east = GroupId(pair.east.group)
        pair.east.handle(ReportClusters(found={east: ClusterId("another")}))
        process = pair.east.start(0)
        assert process.wait(WITHIN) != 0
        assert f"leads to Kafka cluster {kafka.brokers[0].cluster_id}" in process.said()
        assert kafka.group(east).members == []
        region = pair.east.region()
        assert region.clusters == {east: "another"}
        # `kcr region show` says so.
        (failure,) = region.start_failures
        assert "has consumed it from cluster another" in failure.refusal


@pytest.mark.long
def test_members_of_two_regions_do_not_meet_in_one_group_by_two_addresses(
    kafka_set: StartKafka, servers: Servers, tmp_path: Path, on_spark: dict[str, str]
) -> None:
    kafka = kafka_set()
    with paired(kafka, kafka, servers, tmp_path, **on_spark) as pair:
        east = GroupId(pair.east.group)
        cluster = ClusterId(kafka.brokers[0].cluster_id)
        # Another region has told that the group is its own there, after this one was declared.
        text = pair.east.region().spec.text.replace("127.0.0.1:", "localhost:")
        spec = replace(RegionSpec.from_json(text), region="seats")
        pair.east.store.handle(
            RegionName(spec.region),
            DeclareRegion(
                spec=Spec(text=spec.to_json_text(), rules=spec.rules()),
                clusters={GroupId(one.group): cluster for one in pair.groups},
            ),
        )
        process = pair.east.start(0)
        assert process.wait(WITHIN) != 0
        assert f"group {east} belongs to region {spec.region}, by either address" in process.said()
        assert kafka.group(east).members == []
