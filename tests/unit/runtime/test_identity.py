from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kcr.ports import CommittedOffset
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, GroupPartition, Offset, RegionId, RegionName, Timeline
from airflow_kcr.runtime.leases import CommitNote, Identity, later_note, read_note
from tests.support.driver import Driver, group_rules
from tests.support.runtime_fakes import FLIGHTS, MEMBER, REGION_ID, p

numbers = st.integers(0, 2**63 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
"""Documents replace NUL, which Postgres keeps in no text."""


def start() -> Identity:
    return Identity(region=FLIGHTS, region_id=REGION_ID, member=MEMBER, group=group_rules(), timeouts=Timeouts())


def test_no_two_batches_have_the_same_id_whichever_start_made_them() -> None:
    one, other = start(), start()
    ids = {who.batch_id(n) for who in (one, other) for n in range(1, 100)}
    assert len(ids) == 198


def test_a_process_tells_people_where_it_runs() -> None:
    assert ", process " in start().label


@given(region=names, timeline=numbers, sequence=numbers, epoch=numbers)
def test_a_note_is_read_as_it_was_written(region: str, timeline: int, sequence: int, epoch: int) -> None:
    note = CommitNote(
        region=RegionName(region),
        region_id=RegionId(region),
        timeline=Timeline(timeline),
        sequence=CheckpointNumber(sequence),
        epoch=Epoch(epoch),
    )
    assert read_note(note.text()) == note


def test_a_note_fits_into_what_kafka_allows() -> None:
    biggest = 2**63 - 1
    note = CommitNote(
        region=RegionName("r" * 200),
        region_id=RegionId("0" * 32),
        timeline=Timeline(biggest),
        sequence=CheckpointNumber(biggest),
        epoch=Epoch(biggest),
    )
    assert len(note.text().encode()) < 4096


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "checkpoint 7",
        "7",
        "null",
        "[]",
        '"text"',
        "{}",
        '{"region":"flights"}',
        '{"region":"flights","timeline":1,"sequence":1,"epoch":1}',
        '{"region":"flights","region_id":"f","timeline":"x","sequence":1,"epoch":1}',
        '{"region":"flights","region_id":"f","timeline":null,"sequence":1,"epoch":1}',
        '{"region":"flights","region_id":"f","timeline":Infinity,"sequence":1,"epoch":1}',
        '{"region":"flights","region_id":"f","timeline":NaN,"sequence":1,"epoch":1}',
        "[" * 4_000,
    ],
    ids=lambda metadata: metadata[:60],
)
def test_what_somebody_else_wrote_is_no_note(metadata: str) -> None:
    assert read_note(metadata) is None


@given(st.text())
def test_no_text_of_others_is_an_error(metadata: str) -> None:
    read_note(metadata)


# -- a restored store ----------------------------------------------------------------------------------------------


def held(sequence: int, region_id: RegionId) -> dict[GroupPartition, CommittedOffset]:
    note = CommitNote(
        region=FLIGHTS,
        region_id=region_id,
        timeline=Timeline(1),
        sequence=CheckpointNumber(sequence),
        epoch=Epoch(9),
    )
    return {p(0): CommittedOffset(offset=Offset(5), metadata=note.text())}


def test_a_store_that_knows_less_than_kafka_remembers_is_told_and_halts() -> None:
    driver = Driver(members=1)
    driver.up()
    before, who = driver.region, driver.member(0)
    command = later_note(before.region_id, who, held(3, before.region_id), CheckpointNumber(2))
    assert command is not None
    region = driver.handle(command)
    assert region.state is RegionState.HALTED
    assert (region.next_sequence, region.epoch) == (before.next_sequence, before.epoch)
    assert region.halt is not None
    assert region.halt.noted is not None
    assert (region.halt.noted.sequence, region.halt.noted.epoch) == (3, 9)


@pytest.mark.parametrize(("sequence", "region_id"), [(2, "this"), (1, "this"), (99, "an earlier one of this name")])
def test_what_kafka_remembers_of_older_checkpoints_or_of_other_regions_is_not_told(
    sequence: int, region_id: str
) -> None:
    assert later_note(RegionId("this"), MEMBER, held(sequence, RegionId(region_id)), CheckpointNumber(2)) is None


def test_offsets_that_somebody_else_committed_are_not_told() -> None:
    offsets = {p(0): CommittedOffset(offset=Offset(5), metadata="by hand")}
    assert later_note(RegionId("this"), MEMBER, offsets, CheckpointNumber(2)) is None
