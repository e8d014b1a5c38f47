"""What an application makes of a spec that was changed under it, whichever it sees first: the change or its lease."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

import pytest

from airflow_kcr.api import Region
from airflow_kcr.driver.application import MemberRun, Prepared, fetch_for, follow, source_of
from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.driver.parts import Parts
from airflow_kcr.protocol.region.commands import DeclareRegion
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.rules import CheckpointRules
from airflow_kcr.protocol.values import GroupId, MemberId, RegionId, RegionName, Timeline
from airflow_kcr.runtime.leases import StoreClock
from airflow_kcr.runtime.planner import Limits
from airflow_kcr.spark.session import SparkSettings
from airflow_kcr.spec import RegionSpec, parse
from tests.support.members import QUICK
from tests.support.runtime_fakes import SharedTransactions

if TYPE_CHECKING:
    from airflow_kcr.api.clusters import Cluster

FLIGHTS = RegionName("flights")


GROUP = GroupId("flights")


@dataclass(slots=True)
class Watched:
    """A member pool whose members have seen specs in force; it notes which it is told to follow."""

    seen: set[str]
    adopted: list[tuple[str, int]] = field(default_factory=list)
    limits: Limits | None = None

    def spec_digests(self) -> set[str]:
        return self.seen

    def adopt(self, checkpoint: CheckpointRules, limits: Limits, digest: str) -> None:
        self.adopted.append((digest, limits.most))
        self.limits = limits


def spec(pipeline: str = "flights:first", more: str = "") -> RegionSpec:
    return parse(
        "region: flights\n"
        "kafka: {bootstrap.servers: 'broker:9092'}\n"
        "groups:\n"
        f"  - {{group_id: flights, topics: [flights], members: 1, pipeline: '{pipeline}'}}\n"
        f"{more}"
    )


LARGER = spec(more="batch: {min_records: 10, max_records: 10}\n")


def prepared(of: RegionSpec) -> Prepared:
    """Return what an application is built from, at revision 1."""
    return Prepared(
        region_id=RegionId("r"),
        run=MemberRun(region=FLIGHTS, members=(MemberId(GROUP, 0),), spark=SparkSettings(app_name="flights")),
        spec=of,
        revision=1,
        digest=stored(of).digest,
        parts={GROUP: Parts(kafka={"bootstrap.servers": "broker:9092"}, pipeline=lambda batch, context: None)},
        clusters={GROUP: cast("Cluster", None)},
        store_clock=StoreClock(lambda: 0.0, datetime.now(UTC)),
    )


def stored(of: RegionSpec, revision: int = 1) -> Spec:
    return Spec(text=of.to_json_text(), rules=of.rules(), revision=revision)


def followed(in_force: RegionSpec, *, seen: RegionSpec, revision: int = 2) -> tuple[Watched, Prepared, Prepared]:
    """Let an application that was built from revision 1 look at a region in which another spec is in force."""
    store = SharedTransactions()
    store.handle(FLIGHTS, DeclareRegion(spec=stored(in_force, revision)))
    member_pool = Watched({stored(seen).digest})
    before = prepared(spec())
    return member_pool, before, follow(store, before, cast("MemberPool", member_pool))


def test_what_counts_at_once_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    member_pool, _, after = followed(LARGER, seen=LARGER)
    assert member_pool.adopted == [(stored(LARGER).digest, 10)]
    assert (after.revision, after.digest, after.spec.batch.max_records) == (2, stored(LARGER).digest, 10)
    assert "region flights: its spec has changed, the members follow" in caplog.text


def test_another_spec_by_the_same_revision_is_followed() -> None:
    """A store that was restored gives revisions away a second time."""
    member_pool, _, after = followed(LARGER, seen=LARGER, revision=1)
    assert member_pool.adopted == [(stored(LARGER).digest, 10)]
    assert after.spec.batch.max_records == 10


# Told the newer spec, members that have to be built anew would be let in again once their leases have ended, with the
# pipeline of the former.
ANEW = spec("flights:second", "batch: {min_records: 10, max_records: 10}\n")


@pytest.mark.parametrize(
    ("in_force", "seen", "revision"),
    [
        pytest.param(ANEW, ANEW, 2, id="the store refuses members by it, which have to be built anew"),
        pytest.param(LARGER, spec(), 2, id="no member has seen it"),
        pytest.param(spec(), LARGER, 1, id="one member sees late what was followed already"),
    ],
)
def test_a_spec_is_not_followed(in_force: RegionSpec, seen: RegionSpec, revision: int) -> None:
    member_pool, before, after = followed(in_force, seen=seen, revision=revision)
    assert member_pool.adopted == []
    assert after is before


def test_batches_of_a_run_have_no_target_of_their_own() -> None:
    of = spec(more="batch: {target: 1s, timeout: 40s}\n")
    resident = prepared(of).run
    with Region(FLIGHTS, SharedTransactions()) as region:
        run = replace(resident, region_run=region.prepared_run(None, request_id="one"))
    assert (resident.limits(of).target, resident.limits(of).longest) == (timedelta(seconds=1), timedelta(seconds=10))
    assert run.limits(of) == replace(resident.limits(of), target=timedelta(seconds=10))


def test_a_member_whose_process_has_less_time_to_end_waits_less_for_its_broker() -> None:
    quick = prepared(spec(more=QUICK.replace("reset: 40s", "reset: 80s")))
    source = source_of(quick, MemberId(GROUP, 0))
    assert source.ends_within == quick.spec.rules().timeouts.process_end_limit == timedelta(seconds=20)


def test_an_executor_with_hardly_room_for_its_consumers_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert fetch_for("group flights", 12, 1 << 30) == 4 << 20
    assert not caplog.messages
    assert fetch_for("group flights", 400, 1 << 30) == 256 << 10
    (told,) = caplog.messages
    assert "400 partitions" in told
    assert "1300 MiB of its 1024 MiB" in told
    assert "spark.executor.memory" in told


def test_the_size_of_fetches_reaches_the_connector() -> None:
    source = source_of(replace(prepared(spec()), fetch=300_000), MemberId(GROUP, 0))
    assert source.settings(Timeline(1))["kafka.max.partition.fetch.bytes"] == "300000"
