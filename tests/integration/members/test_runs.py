"""A run of an interval is killed at each place where it can be, and its next try, or the next run, goes on.

Real broker, real store, members in processes of their own with an engine without Spark. More records come while it is
down: they are of the next run, whose checkpoint has them and no others.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_kcr.protocol.region.rows import RegionState
from tests.conftest import StartKafka
from tests.support import faults
from tests.support.breaking_proxy import breaking_proxy
from tests.support.driver import STOP
from tests.support.faults import Note, checkpoints
from tests.support.kafka import Record
from tests.support.members import BRISK, Lend, Live, Process

pytestmark = pytest.mark.timeout(180)

EACH, LATER = 60, 20
"""Records of each partition, of the run that is killed and of the one after it."""

ALL = (0, 1, 2)


def rested(region: Live) -> Live:
    """Return the region at rest, with records that no run has had."""
    region.handle(STOP)
    region.until(lambda: region.region().state is RegionState.STOPPED, "stopped")
    region.fill(EACH)
    return region


def ended(region: Live, *processes: Process) -> None:
    """Wait until processes have ended well, and the region rests."""
    for one in processes:
        assert one.wait(90) == 0, one.said()[-3000:]
    assert region.region().state is RegionState.STOPPED


def left(region: Live) -> bool:
    """Whether no member has a lease that the next run would wait for."""
    found, now = region.store.read(region.name)
    return found.live_members(now) == ()


def made(region: Live) -> list[set[int]]:
    """The offsets of each current checkpoint that a run has made; of all partitions they are the same."""
    now = region.region()
    runs = (row for row in checkpoints(region) if row.is_current and row.request_id in {"one", "two"})
    return [{int(offset) for offset in now.offsets[row.sequence].values()} for row in runs]


def settled(region: Live, note: Note, fault: str) -> None:
    """Judge: nothing lost, nothing twice but what a reset accounts for, and Kafka has all of it."""
    note("fault", fault)
    faults.judged(region, note)
    ends = region.kafka.ends(region.topic)
    assert region.kafka.committed(region.group) == {(region.topic, n): end for n, end in ends.items()}


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param("asked", id="started, no member there", marks=pytest.mark.long),
        pytest.param("claimed", id="joining", marks=pytest.mark.long),
        pytest.param("recorded", id="a batch begun", marks=pytest.mark.long),
        pytest.param("processing", id="a batch processed", marks=pytest.mark.long),
        pytest.param("ended", id="a batch accepted", marks=pytest.mark.long),
        pytest.param("contributing", id="draining", marks=pytest.mark.long),
        pytest.param("committing", id="published, not committed"),
        pytest.param("committed", id="committed, not said"),
        pytest.param("told", id="over, not left", marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_killed_goes_on_with_its_next_try_wherever_it_was(
    lend: Lend, record_property: Note, gate: str
) -> None:
    with lend(spec=BRISK) as region:
        killed = rested(region).start(*ALL, run="one", gates=(gate,))
        region.until(lambda: killed.reached(gate), f"at {gate}")
        killed.kill()
        region.fill(LATER)
        ended(region, region.start(*ALL, run="one", takeover=True))
        ended(region, region.start(*ALL, run="two"))
        assert left(region)
        assert made(region) == [{EACH}, {EACH + LATER}]
        settled(region, record_property, f"kill -9 of a run at {gate}")


PLACES = pytest.mark.parametrize(
    "gate", ["claimed", "recorded", "processing", "ended", "contributing", "committing", "committed", "told"]
)


@pytest.mark.long
@PLACES
def test_a_run_whose_store_is_away_ends_well_or_its_next_try_does_wherever_it_was(
    lend: Lend, database_url: str, record_property: Note, gate: str
) -> None:
    with breaking_proxy(database_url) as (wire, through), lend(spec=BRISK) as region:
        address = through.render_as_string(hide_password=False)
        run = rested(region).start(*ALL, run="one", gates=(gate,), store=address)
        region.until(lambda: run.reached(gate), f"at {gate}")
        wire.sever()
        run.open(gate)
        region.until(faults.passed(6), "away for longer than a lease")
        wire.mend()
        run.wait(90)  # well, or for its next try to go on
        ended(region, region.start(*ALL, run="one"))
        assert made(region) == [{EACH}]
        settled(region, record_property, f"store away at {gate}")


@pytest.mark.long
@PLACES
def test_a_run_whose_broker_is_away_ends_well_or_its_next_try_does_wherever_it_was(
    lend: Lend, kafka_set: StartKafka, record_property: Note, gate: str
) -> None:
    kafka = kafka_set(1)
    with lend(kafka=kafka, spec=BRISK) as region:
        run = rested(region).start(*ALL, run="one", gates=(gate,))
        region.until(lambda: run.reached(gate), f"at {gate}")
        kafka.broker(1).kill()
        run.open(gate)
        region.until(faults.passed(5), "away")
        kafka.broker(1).start()
        run.wait(90)  # well, or for its next try to go on, once its members' session is over
        region.until(lambda: faults.group_size(kafka, region.group) == 0, "all have left")
        ended(region, region.start(*ALL, run="one"))
        assert made(region) == [{EACH}]
        settled(region, record_property, f"broker away at {gate}")


@pytest.mark.long
def test_a_run_right_after_one_that_was_killed_waits_for_no_more_than_its_leases_and_makes_both_checkpoints(
    lend: Lend, record_property: Note
) -> None:
    with lend(spec=BRISK) as region:
        killed = rested(region).start(*ALL, run="one", gates=("processing",))
        region.until(lambda: killed.reached("processing"), "processing")
        killed.kill()
        region.fill(LATER)
        ended(region, region.start(*ALL, run="two"))
        assert left(region)
        assert made(region) == [{EACH}, {EACH + LATER}]
        settled(region, record_property, "kill -9 of a run, the next one at once")


@pytest.mark.long
def test_a_second_run_beside_a_live_one_is_refused_and_comes_after_it(lend: Lend, record_property: Note) -> None:
    with lend(spec=BRISK) as region:
        first = rested(region).start(*ALL, run="one", gates=("processing",))
        region.until(lambda: first.reached("processing"), "processing")
        refused = region.start(*ALL, run="two")
        assert refused.wait(60) != 0
        assert "a run of region" in refused.said()
        first.open("processing")
        ended(region, first)
        region.fill(LATER)
        ended(region, region.start(*ALL, run="two"))
        assert left(region)
        assert made(region) == [{EACH}, {EACH + LATER}]
        settled(region, record_property, "two runs at once")


@pytest.mark.long
def test_the_first_run_is_bounded_by_where_the_spec_starts(lend: Lend) -> None:
    since = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    with lend(spec=BRISK, group=f", start: 'timestamp:{since.isoformat()}'") as region:
        old = [Record(value=b"old", partition=n, timestamp=since - timedelta(hours=1)) for n in range(6)]
        region.kafka.produce(region.topic, old)
        ended(region, rested(region).start(*ALL, run="one"))
        assert left(region)
        assert made(region) == [{EACH + 1}]
        assert {row.value for row in region.written()} != set()
        assert not any(row.value == "old" for row in region.written())
