"""One suite, two stores: whatever a test says here holds for both, the real one first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from airflow_kcr.protocol.rules import Delivery, RegionRules
from airflow_kcr.store.regions import RegionStore
from tests.support.driver import GROUP, Clock, Driver, group_rules
from tests.support.stores import Specs, Subject, database_clock, memory_subject, postgres_store, postgres_subject
from tests.support.twin import Twin


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """Makes drivers over a store under test."""

    specs: Specs
    transactions: RegionStore
    clock: Clock

    def __call__(
        self,
        *,
        partitions: int = 4,
        members: int = 2,
        delivery: Delivery = Delivery.AT_LEAST_ONCE,
        rules: RegionRules | None = None,
    ) -> Driver:
        rules = rules or RegionRules(groups={GROUP: group_rules(members=members, delivery=delivery)})
        return Driver(
            partitions=partitions,
            rules=self.specs.note(rules),
            transactions=self.transactions,
            clock=self.clock,
        )


@pytest.fixture(params=[pytest.param("postgres", marks=pytest.mark.postgres), "memory"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """A store with nothing in it."""
    if request.param == "memory":
        with memory_subject() as memory:
            yield memory
    else:
        with postgres_subject(request.getfixturevalue("database_url")) as postgres:
            yield postgres


@pytest.fixture
def drive(subject: Subject) -> Drive:
    """A driver over the store under test."""
    return Drive(specs=subject.specs, transactions=subject.transactions, clock=subject.clock)


@pytest.fixture
def drive_twins(database_url: str) -> Iterator[Drive]:
    """A driver over both stores at once, compared as a whole after every call."""
    specs = Specs()
    with (
        postgres_store(database_url, specs.read) as store,
        Twin(store._engine, specs.read) as twin,
        database_clock(database_url) as clock,
    ):
        yield Drive(specs=specs, transactions=twin, clock=clock)
