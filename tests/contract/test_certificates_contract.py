"""Certificates: a history is proved once, then only what is new; one that contradicts the store is found."""

from __future__ import annotations

import json
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, text

from airflow_kcr.api import verdict
from airflow_kcr.api.verdict import Verdict
from airflow_kcr.errors import ProtocolError, RefusedError
from airflow_kcr.protocol.region.rows import ResetCause
from airflow_kcr.protocol.rules import Delivery, RegionRules
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.store.postgres import PostgresTransactions
from tests.contract.conftest import Drive
from tests.support.driver import GROUP, Driver, group_rules
from tests.support.plans import keep_unknown, touched
from tests.support.stores import only_reading, postgres_subject

if TYPE_CHECKING:
    from airflow_kcr.ports import Certificate


def verified(driver: Driver, *, from_start: bool = False) -> Verdict:
    return Verdict.of(driver.name, driver.store.chronicle(driver.name), from_start=from_start)


def certified(driver: Driver) -> Certificate:
    """Verify, and return the certificate of this moment."""
    verdict = verified(driver)
    assert verdict.violations == ()
    assert verdict.certificate is not None
    assert verdict.certificate.horizon.counter == driver.held.counter
    return verdict.certificate


def told(verdict: Verdict) -> str:
    assert {v.invariant for v in verdict.violations} == {"certificate"}
    return " ".join(v.detail for v in verdict.violations)


STEPS = ("process", "begin", "discard", "checkpoint", "crash", "back", "fail", "wait")


def step(driver: Driver, chance: Random, number: int) -> None:
    """Do something that a region goes through."""
    member = driver.member(chance.randrange(2))
    match chance.choice(STEPS):
        case "process":
            driver.process(width=chance.randrange(1, 9))
        case "begin" if not driver.held.running:
            driver.start_batch(member)
        case "discard":
            for batch in [b for b in driver.batches if b.outcome is None]:
                if chance.random() < 0.5:
                    driver.commit_output(batch.batch)
                driver.discard(batch.batch)
                driver.request_reset(batch.member, ResetCause.BATCH_FAILED)
                if chance.random() < 0.5:
                    driver.finish_reset()
        case "checkpoint" if not driver.held.running:
            driver.finish_reset()
            driver.checkpoint(f"n{number}")
        case "crash":
            driver.crash(member)
            driver.recover()
        case "back" if driver.region.offsets and not driver.held.running:
            driver.finish_reset()
            driver.reset(ToCheckpoint(sequence=max(driver.region.offsets)), forced=True, request_id=f"back {number}")
            driver.finish_reset()
        case _:
            driver.finish_reset()


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("seed", range(3))
def test_a_history_proved_piece_by_piece_is_the_one_that_is_proved_at_once(
    drive: Drive, seed: int, delivery: Delivery
) -> None:
    driver, chance = drive(delivery=delivery), Random(seed)
    driver.up()
    made = []
    for number in range(25):
        with suppress(RefusedError, ProtocolError):
            step(driver, chance, number)
        if chance.random() < 0.4:
            made.append(certified(driver))
    last = certified(driver)
    whole = verified(driver, from_start=True)
    assert whole.violations == ()
    assert (whole.checked_events, whole.checked_batches) == (len(driver.events), len(driver.batches))
    assert whole.certificate is not None
    assert whole.certificate.digest == last.digest
    stored = driver.store.chronicle(driver.name).certificates()
    assert [c.number for c in stored] == list(range(1, len(stored) + 1))
    assert {c.digest for c in stored} == {c.digest for c in made} | {last.digest}


def test_a_certificate_says_what_the_history_adds_up_to(drive: Drive) -> None:
    driver = drive()
    driver.up()
    driver.process()
    driver.checkpoint("n")
    driver.process(width=5)
    driver.crash(driver.member(0))
    driver.recover()
    # As any reader of the JSON sees it.
    body = json.loads(json.dumps(certified(driver).body))
    totals = [total for topics in body["partitions"].values() for ps in topics.values() for total in ps.values()]
    accepted = {json.dumps(total["standing"]) for total in totals}
    assert accepted == {"[[0, 10]]"}
    assert {total["undone"] for total in totals} == {5}
    assert body["batches"] == len(driver.batches)
    # The crash left a batch whose end is not known.
    assert body["outcomes"] == {"done": len(driver.batches) - 1, "unknown": 1}
    assert body["region_state"]["epoch"] == driver.held.epoch


def test_a_batch_that_ends_after_a_certificate_without_an_event_between_counts_for_the_next_one(drive: Drive) -> None:
    driver = drive()
    driver.up()
    batch = driver.start_batch(driver.member(0))
    first = certified(driver)
    assert first.body["open"] == [batch]
    assert first.body["outcomes"] == {}
    driver.finish_batch(batch)
    second = certified(driver)
    assert second.horizon == first.horizon
    assert (second.body["open"], second.body["outcomes"]) == ([], {"done": 1})
    driver.process()
    driver.checkpoint("n")
    last = certified(driver)
    whole = verified(driver, from_start=True)
    assert (whole.violations, whole.certificate and whole.certificate.digest) == ((), last.digest)


def test_a_batch_that_a_sink_proves_done_after_a_certificate_counts_for_the_next_one(drive: Drive) -> None:
    driver = drive(delivery=Delivery.EXACTLY_ONCE, members=1)
    driver.up()
    lost = driver.start_batch(driver.member(0))
    driver.commit_output(lost)
    driver.discard(lost)
    driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
    assert certified(driver).body["open"] == [lost]
    driver.finish_reset()
    last = certified(driver)
    assert (last.body["open"], last.body["outcomes"]) == ([], {"done": 1})
    whole = verified(driver, from_start=True)
    assert (whole.violations, whole.certificate and whole.certificate.digest) == ((), last.digest)


def test_a_second_proof_of_the_same_certifies_nothing(drive: Drive) -> None:
    driver = drive()
    driver.up()
    first = certified(driver)
    again = verified(driver)
    assert (again.checked_events, again.checked_batches) == (0, 0)
    assert again.certificate is not None
    assert again.certificate.digest == first.digest
    chronicle = driver.store.chronicle(driver.name)
    assert not chronicle.certify(first)
    assert len(chronicle.certificates()) == 1


def test_what_is_wrong_is_not_certified(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive()
    driver.up()
    driver.process()
    driver.checkpoint("n")
    chronicle = driver.store.chronicle(driver.name)
    batches = chronicle.batches
    monkeypatch.setattr(chronicle, "batches", lambda after, upto: iter(list(batches(after, upto))[1:]))
    verdict = Verdict.of(driver.name, chronicle)
    assert "R1a" in {v.invariant for v in verdict.violations}
    assert verdict.certificate is None
    assert chronicle.certificates() == ()


# -- against Postgres -------------------------------------------------------------------------------------------------

on_postgres = pytest.mark.parametrize("subject", ["postgres"], indirect=True)


@pytest.fixture
def driver(drive: Drive, database_url: str) -> Driver:
    keep_unknown(database_url)
    driver = drive()
    driver.up()
    for number in range(3):
        driver.process()
        driver.checkpoint(f"n{number}")
        certified(driver)
    driver.process()
    return driver


def execute(url: str, statement: str, **values: object) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement), values)
    engine.dispose()


@on_postgres
def test_a_further_proof_reads_only_what_is_new(driver: Driver) -> None:
    for number in range(30):
        driver.process()
        driver.checkpoint(f"many {number}")
    certified(driver)
    costs = []
    for _ in range(2):
        driver.process()
        with touched() as rows:
            assert verified(driver).violations == ()
        costs.append(sum(rows.values()))
    with touched() as rows:
        verified(driver, from_start=True)
    assert costs[0] <= 60, rows
    assert costs[1] <= costs[0] + 10
    assert sum(rows.values()) > 5 * costs[0]


@on_postgres
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE kcr.certificate SET body = jsonb_set(body, '{batches}', '99') WHERE number = 3", "was changed"),
        ("UPDATE kcr.certificate SET digest = repeat('0', 64) WHERE number = 3", "was changed"),
        ("UPDATE kcr.certificate SET counter = counter - 1 WHERE number = 3", "stands in the row"),
        ('UPDATE kcr.event SET body = body || \'{"why": "x"}\' WHERE number = :last', "another one of that number"),
        ("DELETE FROM kcr.event WHERE number = :last", "which the store does not have"),
        ("DELETE FROM kcr.batch WHERE number = :batch", "at place"),
    ],
)
def test_a_certificate_that_contradicts_the_store_is_told(
    driver: Driver, database_url: str, change: str, says: str
) -> None:
    newest = driver.store.chronicle(driver.name).newest_certificate()
    assert newest is not None
    values = {"last": newest.horizon.counter, "batch": newest.horizon.ledger}
    execute(database_url, change, **{k: v for k, v in values.items() if f":{k}" in change})
    for from_start in (False, True):
        verdict = verified(driver, from_start=from_start)
        assert "certificate" in {v.invariant for v in verdict.violations}
        assert verdict.certificate is None
    assert says in told(verified(driver))
    assert len(driver.store.chronicle(driver.name).certificates()) == 3


@on_postgres
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE kcr.event SET at = at + interval '1 second' WHERE number = 5",
        "UPDATE kcr.batch SET started_at = now() WHERE number = (SELECT min(number) FROM kcr.batch)",
        "UPDATE kcr.certificate SET body = jsonb_set(body, '{previous}', '\"\"') WHERE number = 2",
        "DELETE FROM kcr.certificate WHERE number = 2",
    ],
)
def test_what_was_altered_after_it_was_certified_is_found_from_the_start(
    driver: Driver, database_url: str, change: str
) -> None:
    execute(database_url, change)
    assert verified(driver).violations == ()
    assert "certificate" in told(verified(driver, from_start=True))


@on_postgres
def test_a_range_that_was_widened_after_it_was_certified_is_told_with_its_partition(
    driver: Driver, database_url: str
) -> None:
    execute(
        database_url,
        "UPDATE kcr.batch_range SET to_offset = to_offset - 1 WHERE partition = 0 "
        "AND batch_number = (SELECT min(number) FROM kcr.batch)",
    )
    assert verified(driver).violations == ()
    found = verified(driver, from_start=True).violations
    assert {"R1a", "certificate"} <= {v.invariant for v in found}
    assert "says of g:t-0" in " ".join(v.detail for v in found)


@on_postgres
def test_only_the_newest_certificate_can_be_gone_on_from(driver: Driver) -> None:
    chronicle = driver.store.chronicle(driver.name)
    newest = chronicle.newest_certificate()
    assert newest is not None
    assert newest.resume is not None
    assert verdict.resumed(newest).moment.number == newest.horizon.counter
    assert [c.resume for c in chronicle.certificates()] == [None] * 3


# -- who may only read ---------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_who_may_only_read_verifies_and_is_told_that_nothing_was_certified(database_url: str) -> None:
    with postgres_subject(database_url) as subject, only_reading(database_url) as reader:
        rules = subject.specs.note(RegionRules(groups={GROUP: group_rules(members=2)}))
        driver = Driver(partitions=4, rules=rules, transactions=subject.transactions, clock=subject.clock)
        driver.up()
        driver.process()
        first = certified(driver)
        driver.process()
        driver.checkpoint("n")
        with PostgresTransactions.connect(reader, subject.specs.read) as store:
            verdict = Verdict.of(driver.name, store.chronicle(driver.name))
            assert (verdict.violations, verdict.certificate) == ((), first)
            assert verdict.checked_events > 0
            assert verdict.not_certified == f"user {reader.username} may not write to kcr.certificate"
            assert Verdict.of(driver.name, store.chronicle(driver.name), from_start=True).violations == ()
        second = verified(driver)
        assert second.not_certified == ""
        assert second.certificate is not None
        assert second.certificate.number == first.number + 1
