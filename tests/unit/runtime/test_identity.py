from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, RegionName, Timeline
from airflow_kcr.runtime.identity import CommitNote, Identity, read_note
from tests.support.driver import group_rules
from tests.support.runtime_fakes import FLIGHTS, MEMBER

numbers = st.integers(0, 2**63 - 1)


def start() -> Identity:
    return Identity(region=FLIGHTS, member=MEMBER, group=group_rules(), timeouts=Timeouts())


def test_no_two_batches_have_the_same_id_whichever_start_made_them() -> None:
    one, other = start(), start()
    ids = {who.batch_id(n) for who in (one, other) for n in range(1, 100)}
    assert len(ids) == 198


def test_a_process_tells_people_where_it_runs() -> None:
    assert ", process " in start().label


@given(region=st.text(), timeline=numbers, sequence=numbers, epoch=numbers)
def test_a_note_is_read_as_it_was_written(region: str, timeline: int, sequence: int, epoch: int) -> None:
    note = CommitNote(
        region=RegionName(region), timeline=Timeline(timeline), sequence=CheckpointNumber(sequence), epoch=Epoch(epoch)
    )
    assert read_note(note.text()) == note


def test_a_note_fits_into_what_kafka_allows() -> None:
    biggest = 2**63 - 1
    note = CommitNote(
        region=RegionName("r" * 200),
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
        '{"region":"flights","timeline":"x","sequence":1,"epoch":1}',
        '{"region":"flights","timeline":null,"sequence":1,"epoch":1}',
        '{"region":"flights","timeline":Infinity,"sequence":1,"epoch":1}',
        '{"region":"flights","timeline":NaN,"sequence":1,"epoch":1}',
        "[" * 4_000,
    ],
    ids=lambda metadata: metadata[:40],
)
def test_what_somebody_else_wrote_is_no_note(metadata: str) -> None:
    assert read_note(metadata) is None


@given(st.text())
def test_no_text_of_others_is_an_error(metadata: str) -> None:
    read_note(metadata)
