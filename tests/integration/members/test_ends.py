"""How processes with members end, and whom the store has no place for (docs/reference/states.md)."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from airflow_kcr.api import Region
from airflow_kcr.protocol.region import events
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.spec import RegionSpec
from tests.integration.members.conftest import DYNAMIC
from tests.support.breaking_proxy import breaking_proxy
from tests.support.faults import Note, finished, held_at, judged, told, up
from tests.support.members import PATIENT, Lend, Live, Process

pytestmark = pytest.mark.timeout(180)

CLOSE = 4.0
"""The close time of `BRISK`."""

MARGIN = 6.0
"""What a busy machine needs beside: for the interpreter to end, and for threads that wait for a processor."""


def settled(region: Live, record_property: Note, fault: str) -> None:
    """Wait until everything is processed and a checkpoint holds it, and judge."""
    record_property("fault", fault)
    finished(region, 90)
    judged(region, record_property)


def heard_of(region: Live, after: int) -> set[int]:
    """Whose claims or leaves the store has had since an event."""
    kinds = (events.Claimed, events.MemberLeft, events.MemberRegistered)
    return {e.body.member.index for e in region.events(after) if isinstance(e.body, kinds)}


def ended(one: Process) -> int:
    """Return the exit status of a process that ends within its close time, with all that it has started."""
    status = one.wait(CLOSE + MARGIN)
    assert one.left_behind() == []
    return status


# -- asked to end ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_static_member_that_is_terminated_while_idle_keeps_its_slot_and_the_others_hear_nothing(
    lend: Lend, record_property: Note
) -> None:
    with lend(spec=PATIENT) as region:
        one, _ = up(region, (0,), (1, 2))
        before, owners = region.region(), region.owners()
        assert one.left_behind() == [one.process.pid]
        one.terminate()
        assert ended(one) == 0
        assert region.owners() == owners
        assert heard_of(region, before.counter) == {0}
        region.fill(60)
        region.start(0)
        settled(region, record_property, "SIGTERM while idle, static")
        assert region.owners() == owners
        assert heard_of(region, before.counter) == {0}
        assert region.region().epoch == before.epoch


@pytest.mark.long
@pytest.mark.parametrize("group", ["", pytest.param(DYNAMIC, marks=pytest.mark.soak)], ids=["static", "dynamic"])
def test_ctrl_c_in_a_batch_cancels_it_within_the_close_time_and_it_is_processed_again(
    lend: Lend, record_property: Note, group: str
) -> None:
    with lend(group=group) as region:
        one, _ = up(region, (0,), (1, 2))
        held_at(region, "processing", one)
        one.interrupt()
        assert ended(one) == 0
        region.start(0)
        settled(region, record_property, f"Ctrl-C in a batch, {'dynamic' if group else 'static'}")


@pytest.mark.long
@pytest.mark.parametrize("gate", ["", pytest.param("processing", marks=pytest.mark.soak)], ids=["idle", "in a batch"])
def test_a_process_that_is_terminated_while_the_store_is_away_ends_all_the_same(
    lend: Lend, database_url: str, record_property: Note, gate: str
) -> None:
    with breaking_proxy(database_url) as (proxy, through), lend() as region:
        one, _ = up(region, (0,), (1, 2), stores=[through.render_as_string(hide_password=False)])
        if gate:
            held_at(region, gate, one)
        proxy.close()
        region.until(lambda: "the store does not answer" in one.said(), "the store is missed")
        one.terminate()
        one.wait(CLOSE + MARGIN)
        assert one.left_behind() == []
        region.fill(60)
        region.start(0)
        settled(region, record_property, f"SIGTERM {'in a batch' if gate else 'while idle'}, the store away")


# -- no place ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_second_process_of_an_index_waits_two_leases_and_is_refused_with_nothing_consumed(
    lend: Lend, record_property: Note
) -> None:
    with lend(members=2) as region:
        up(region, (0,), (1,))
        before, since = region.region(), time.monotonic()
        second = region.start(0)
        region.fill(60)
        assert second.wait(60) == 3
        assert time.monotonic() - since >= 2 * before.rules.timeouts.lease.total_seconds()
        assert "is held by" in second.said()
        assert not second.output.exists()
        assert heard_of(region, before.counter) == set()
        settled(region, record_property, "two processes claim one index")


@pytest.mark.long
@pytest.mark.parametrize("gate", ["processing", pytest.param("", marks=pytest.mark.soak)], ids=["in a batch", "idle"])
def test_a_takeover_fences_the_first_process_and_nothing_is_accepted_twice(
    lend: Lend, record_property: Note, gate: str
) -> None:
    with lend(members=2) as region:
        first, _ = up(region, (0,), (1,))
        before = region.region()
        if gate:
            held_at(region, gate, first)
        region.start(0, takeover=True)
        assert first.wait(60) == 3
        arrivals = told(region, events.MemberRegistered, before.counter)
        assert [(body.member.index, body.took_over) for body in arrivals] == [(0, True)]
        region.fill(60)
        settled(region, record_property, f"takeover, {'the first in a batch' if gate else 'idle'}")


def test_an_index_beyond_the_members_is_refused_with_the_indexes_that_there_are(lend: Lend) -> None:
    with lend(members=2) as region:
        before = region.region()
        beyond = region.start(2)
        assert beyond.wait(30) == 3
        assert "indexes 0 to 1" in beyond.said()
        assert region.region().counter == before.counter


@pytest.mark.long
def test_a_member_that_a_changed_spec_has_no_place_for_leaves_at_the_next_checkpoint_and_is_refused_later(
    lend: Lend, record_property: Note
) -> None:
    with lend() as region:
        stay, go = region.start(0, 1), region.start(2)
        region.shared(0, 1, 2)
        region.fill(60)
        changed_to(region, members=2)
        region.checkpoint()
        region.until(lambda: region.region().rules.groups[GroupId(region.group)].members == 2, "changed")
        assert go.wait(60) in {0, 3}  # what it hears first: that it is out, or that its lease is not renewed
        region.fill(60)
        region.shared(0, 1)
        assert region.start(2).wait(60) == 3

        changed_to(region, members=3)
        region.checkpoint()
        region.start(2)
        region.shared(0, 1, 2)
        region.fill(60)
        settled(region, record_property, "members 3, 2, 3 by the spec")
        assert stay.running


def changed_to(region: Live, *, members: int) -> None:
    """Change the number of members in the region's spec."""
    spec = RegionSpec.from_json(region.region().spec.text)
    fewer = replace(spec, groups=(replace(spec.groups[0], members=members),))
    with Region(region.name, region.store) as one:
        one.apply(fewer)
