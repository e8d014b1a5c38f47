from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kcr.errors import CheckpointNotUsable, UnknownCheckpoint
from airflow_kcr.protocol.region import events, retirement
from airflow_kcr.protocol.region.rows import CheckpointState, PersonResetState, Requester, RequestState
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import RetentionRules
from airflow_kcr.protocol.targets import ToCheckpoint, ToCurrent, ToInitial, ToRun
from airflow_kcr.protocol.values import Nonce, Sequence
from tests.support.driver import Driver
from tests.support.judging import happened, judge, open_cut
from tests.support.scripts import cuts_of_ten, hourly, rewind, running

HOUR = timedelta(hours=1)


def keeping(driver: Driver, keep: int = 1, max_age: timedelta | None = None) -> Region:
    """Return the driver's region with other retention rules."""
    region = driver.held
    rules = replace(region.rules, retention=RetentionRules(keep=keep, max_age=max_age))
    return replace(region, spec=replace(region.spec, rules=rules))


def due(driver: Driver, keep: int = 1, max_age: timedelta | None = None) -> tuple[Sequence, ...]:
    after = retirement.retire(keeping(driver, keep, max_age), driver.clock.now)
    found = [event.body for event in after.events if isinstance(event.body, events.CheckpointsRetired)]
    return found[0].sequences if found else ()


# -- by count and age -------------------------------------------------------------------------------------------------


def test_the_oldest_beyond_the_count_go() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 5)
    assert due(driver, keep=3) == tuple(cuts[:2])
    assert due(driver, keep=5) == due(driver, keep=50) == ()


def test_whatever_the_count_the_base_and_what_it_was_built_from_stay() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 4)
    assert due(driver, keep=1) == tuple(cuts[:2])
    kept = retirement.protected(driver.region)
    assert kept[cuts[-1]] == "it is the base"
    assert kept[cuts[-2]] == f"the base {cuts[-1]} was built from it"


def test_what_is_older_than_the_age_goes() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 2)
    driver.wait(3_600)
    cuts += [driver.cut(f"later-{n}") for n in range(2)]
    assert due(driver, keep=50, max_age=HOUR / 2) == tuple(cuts[:2])
    assert due(driver, keep=50, max_age=2 * HOUR) == ()


def test_an_aborted_cut_goes_when_enough_newer_complete_ones_are_there_or_by_age() -> None:
    driver = running()
    driver.request_cut("aborted")
    aborted = open_cut(driver)
    driver.wait(181)
    assert due(driver, keep=1) == ()
    assert due(driver, keep=50, max_age=timedelta(0)) == ()
    driver.clock.advance(1)
    assert due(driver, keep=50, max_age=timedelta(0)) == (aborted,)
    driver.beat()
    cuts_of_ten(driver, 2)
    assert aborted in due(driver, keep=2)
    assert aborted not in due(driver, keep=3)


def test_a_region_without_a_checkpoint_retires_nothing() -> None:
    assert due(running()) == ()
    assert retirement.protected(Driver().region) == {}


# -- what must stay ---------------------------------------------------------------------------------------------------


def test_the_newest_usable_one_stays_even_where_the_base_is_a_reset() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 3)
    rewind(driver, ToCurrent())
    newest = driver.region.checkpoints[max(driver.region.offsets)].sequence
    assert newest not in cuts
    assert retirement.protected(driver.region)[newest] == "it is the newest usable one"


def test_what_is_open_or_not_published_stays() -> None:
    driver = running()
    driver.process()
    driver.request_cut("n")
    sequence = open_cut(driver)
    assert sequence is not None
    assert retirement.protected(driver.region)[sequence] == "it is open"
    driver.complete()
    unpublished = replace(driver.region, base=Sequence(1))
    assert retirement.protected(unpublished)[sequence] == "it is not published yet"


def test_a_pinned_one_stays_and_counts() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 4)
    driver.store.pin(driver.name, cuts[0], "golden", "audited")
    assert retirement.protected(driver.region)[cuts[0]] == "it is pinned as golden"
    assert due(driver, keep=1) == (cuts[1],)
    assert due(driver, keep=4) == ()
    driver.store.pin(driver.name, cuts[0], "", "")
    assert due(driver, keep=1) == tuple(cuts[:2])


def test_what_was_kept_goes_later_out_of_order_and_only_once() -> None:
    driver = hourly(keep=2)
    cuts = cuts_of_ten(driver, 2)
    driver.store.pin(driver.name, cuts[0], "golden", "audited")
    cuts += [driver.cut(f"later-{n}") for n in range(2)]

    def retired() -> list[tuple[Sequence, ...]]:
        driver.store.retire(driver.name)
        return [event.sequences for event in happened(driver, events.CheckpointsRetired)]

    assert retired() == [(cuts[1],)], "the middle one first"
    driver.store.pin(driver.name, cuts[0], "", "")
    assert retired() == [(cuts[1],), (cuts[0],)], "then the older one"
    assert retired() == [(cuts[1],), (cuts[0],)]
    with pytest.raises(CheckpointNotUsable, match="is retired"):
        driver.reset(ToCheckpoint(sequence=cuts[0]))
    judge(driver)


def test_one_that_is_being_restored_stays_and_so_does_what_the_base_was_built_from() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 4)
    driver.reset(ToCheckpoint(sequence=cuts[0]), nonce="r")
    assert retirement.protected(driver.region)[cuts[0]] == "reset r goes to it"
    driver.complete()
    driver.settle_reset()
    assert driver.region.person_resets[Nonce("r")].state is PersonResetState.DONE
    base = driver.region.base
    assert retirement.protected(driver.region)[cuts[0]] == f"the base, reset {base}, was built from it"
    assert cuts[0] not in due(driver, keep=1)
    judge(driver)


def test_whatever_a_run_may_mean_stays_until_its_reset_is_done() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 3)
    driver.process()
    driver.request_cut("r1", requester=Requester(dag_id="cut", run_id="r1"))
    cuts.append(driver.complete())
    driver.publish()
    assert cuts[0] in due(driver)
    driver.reset(ToRun(dag_id="cut", run_id="r1"), nonce="r")
    assert due(driver) == ()
    driver.complete()
    driver.settle_reset()
    assert cuts[0] in due(driver)


def test_a_reset_to_no_checkpoint_keeps_none() -> None:
    driver = running()
    cuts = cuts_of_ten(driver, 3)
    driver.reset(ToInitial())
    assert cuts[0] not in retirement.protected(driver.region)


# -- what goes --------------------------------------------------------------------------------------------------------


def test_offsets_and_contributions_go_the_digest_and_the_answer_stay() -> None:
    driver = hourly(keep=2)
    cuts = cuts_of_ten(driver, 1)
    digest = driver.region.checkpoints[cuts[0]].digest
    cuts += [driver.cut(f"later-{n}") for n in range(3)]
    region = driver.region
    assert [region.checkpoints[c].state for c in cuts[:2]] == [CheckpointState.RETIRED] * 2
    assert region.checkpoints[cuts[0]].digest == digest
    for table in (region.offsets, region.frozen, {s for s, _ in region.contributions}):
        assert not set(cuts[:2]) & set(table)
        assert set(cuts[2:]) <= set(table)
    assert region.requests[Nonce("n0")].state is RequestState.ANSWERED
    assert happened(driver, events.CheckpointsRetired) == [events.CheckpointsRetired(sequences=(c,)) for c in cuts[:2]]
    judge(driver)


def test_retiring_when_nothing_is_due_changes_nothing() -> None:
    driver = hourly(keep=2)
    cuts_of_ten(driver, 4)
    before = driver.events
    driver.store.retire(driver.name)
    assert driver.events == before


# -- by itself --------------------------------------------------------------------------------------------------------


def held(driver: Driver) -> list[Sequence]:
    return [s for s, row in sorted(driver.region.checkpoints.items()) if row.is_complete]


def keep_fewer(driver: Driver, keep: int) -> None:
    """Change the region's retention, as a changed spec does at once; nobody does yet what follows from it."""
    rules = keeping(driver, keep).rules
    driver.store._transactions.decide(
        driver.name, lambda region, now: replace(region, spec=replace(region.spec, rules=rules), retire_at=now)
    )


def test_a_running_region_keeps_as_many_as_its_spec_says_and_nobody_asks_for_it() -> None:
    driver = hourly(keep=3)
    cuts: list[Sequence] = []
    for number in range(8):
        driver.process()
        cuts.append(driver.cut(f"n{number}"))
        assert held(driver) == cuts[-3:]
    assert driver.region.due_at is None or driver.region.due_at > driver.clock.now + timedelta(seconds=1)
    judge(driver)


def test_many_go_in_pieces_each_in_a_transaction_of_its_own_and_the_next_is_due_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retirement, "PIECE", 12)  # three checkpoints of four partitions
    driver = hourly(keep=50)
    cuts = cuts_of_ten(driver, 12)
    keep_fewer(driver, 2)
    rounds = []
    for _ in range(4):
        driver.store.settle(driver.name)
        rounds.append(held(driver)[0])
        if len(rounds) < 4:
            assert driver.region.due_at == driver.clock.now + timedelta(milliseconds=100)
    assert rounds == [cuts[3], cuts[6], cuts[9], cuts[10]]
    assert [len(e.sequences) for e in happened(driver, events.CheckpointsRetired)] == [3, 3, 3, 1]
    driver.store.settle(driver.name)
    assert driver.region.due_at is None or driver.region.due_at > driver.clock.now + timedelta(seconds=1)
    judge(driver)


def test_who_asks_for_it_gets_all_of_it_now() -> None:
    driver = hourly(keep=50)
    cuts = cuts_of_ten(driver, 12)
    keep_fewer(driver, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retirement, "PIECE", 1)
        driver.store.retire(driver.name)
    assert held(driver) == cuts[-2:]


def test_while_a_reset_goes_to_a_run_nothing_is_due_and_nobody_asks_again_and_again() -> None:
    driver = hourly(keep=50)
    cuts = cuts_of_ten(driver, 4)
    driver.process()
    driver.request_cut("r1", requester=Requester(dag_id="cut", run_id="r1"))
    driver.complete()
    driver.reset(ToRun(dag_id="cut", run_id="r1"), nonce="r")  # it waits for the publication
    keep_fewer(driver, 1)
    driver.store.settle(driver.name)
    assert cuts[0] in held(driver)
    assert driver.region.due_at is None or driver.region.due_at > driver.clock.now + timedelta(seconds=1)


def test_a_region_that_does_not_run_keeps_what_there_was_until_somebody_asks() -> None:
    driver = hourly(keep=50)
    cuts = cuts_of_ten(driver, 4)
    driver.store.kill(driver.name)
    keep_fewer(driver, 2)
    driver.store.settle(driver.name)
    assert held(driver) == cuts
    driver.store.retire(driver.name)
    assert held(driver) == cuts[-2:]


# -- pins -------------------------------------------------------------------------------------------------------------


def test_a_pin_has_a_name_and_a_reason_and_is_an_event() -> None:
    driver = running()
    cut = cuts_of_ten(driver, 1)[0]
    for _ in range(2):
        driver.store.pin(driver.name, cut, "golden", "audited")
    row = driver.region.checkpoints[cut]
    assert (row.pinned_as, row.pin_reason) == ("golden", "audited")
    assert happened(driver, events.CheckpointPinned) == [
        events.CheckpointPinned(sequence=cut, name="golden", reason="audited")
    ]


def test_only_what_has_offsets_is_pinned() -> None:
    driver = hourly(keep=1)
    cuts = cuts_of_ten(driver, 3)
    driver.store.retire(driver.name)
    with pytest.raises(UnknownCheckpoint, match="no checkpoint 99"):
        driver.store.pin(driver.name, Sequence(99), "x", "")
    with pytest.raises(CheckpointNotUsable, match="is retired; only a complete one can be pinned"):
        driver.store.pin(driver.name, cuts[0], "x", "")
    driver.request_cut("n")
    with pytest.raises(CheckpointNotUsable, match="is open"):
        driver.store.pin(driver.name, driver.region.open_cut or Sequence(0), "x", "")


def test_aborted_cuts_before_undone_ones_hold_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retirement, "PIECE", 8)  # two checkpoints of four partitions
    driver = hourly(keep=50)
    for number in range(5):
        driver.request_cut(f"late-{number}")
        driver.wait(driver.held.rules.timeouts.drain.total_seconds() + 1)
    aborted = [s for s, row in driver.region.checkpoints.items() if row.state is CheckpointState.ABORTED]
    cuts = cuts_of_ten(driver, 4)
    driver.reset(ToInitial())
    last = driver.complete()
    driver.settle_reset()
    driver.process()
    newest = driver.cut("after")
    assert len(aborted) == 5
    assert {row.undone_by is None for s, row in driver.region.checkpoints.items() if s in cuts} == {False}
    keep_fewer(driver, 3)
    driver.store.retire(driver.name)
    assert held(driver) == [cuts[-1], last, newest]
    assert {driver.region.checkpoints[s].state for s in aborted} == {CheckpointState.RETIRED}
    pieces = happened(driver, events.CheckpointsRetired)
    assert [len(piece.sequences) for piece in pieces] == [2, 2, 2, 2]
    judge(driver)
