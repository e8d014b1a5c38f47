"""An index that a live process holds is found out before Spark starts; a dead one's lease refuses no newcomer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from airflow_kcr.driver.application import MemberRun, preparing, refuse_held
from airflow_kcr.driver.parts import StartFailures
from airflow_kcr.errors import MemberInUse
from airflow_kcr.protocol.region.commands import DeclareRegion, Leave, Register, Renew
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import Incarnation, MemberId
from airflow_kcr.spark.session import SparkSettings
from airflow_kcr.store.regions import RegionStore
from tests.support.driver import START, group_rules
from tests.support.runtime_fakes import FLIGHTS, GROUP, SharedTransactions

TIMES = Timeouts(lease=timedelta(seconds=30), renew=timedelta(seconds=0.5))
MEMBER = MemberId(GROUP, 0)


@pytest.fixture
def store() -> RegionStore:
    store = SharedTransactions()
    store.handle(
        FLIGHTS,
        DeclareRegion(spec=Spec(text="{}", rules=RegionRules(groups={GROUP: group_rules(members=2)}, timeouts=TIMES))),
    )
    store.handle(FLIGHTS, START)
    return store


def run(*indexes: int, takeover: bool = False) -> MemberRun:
    return MemberRun(
        region=FLIGHTS,
        members=tuple(MemberId(GROUP, index) for index in indexes),
        takeover=takeover,
        spark=SparkSettings(app_name="flights"),
    )


def held(store: RegionStore) -> Incarnation:
    return store.handle(FLIGHTS, Register(member=MEMBER, token="one", label="laptop, process 7"))


@contextmanager
def living(store: RegionStore) -> Iterator[None]:
    """Let a process hold the index, and renew its lease until the block ends."""
    incarnation, over = held(store), threading.Event()

    def heartbeat() -> None:
        while not over.wait(0.05):
            store.handle(FLIGHTS, Renew(member=MEMBER, incarnation=incarnation, lease=TIMES.lease))

    beating = threading.Thread(target=heartbeat)
    beating.start()
    try:
        yield
    finally:
        over.set()
        beating.join()


def test_an_index_that_a_live_process_holds_is_refused_with_its_holder_and_another_is_free(store: RegionStore) -> None:
    with living(store):
        with pytest.raises(MemberInUse, match=r"g\[0\] is held by laptop, process 7, which lives"):
            refuse_held(store, run(0, 1))
        refuse_held(store, run(1))


def test_nothing_else_is_looked_at_before(store: RegionStore) -> None:
    # Its spec can't even be read.
    failures = StartFailures(store, FLIGHTS, [MEMBER])
    with living(store), pytest.raises(MemberInUse), preparing(store, run(0), failures):
        pass


def test_the_lease_of_a_process_that_is_dead_refuses_nobody(store: RegionStore) -> None:
    held(store)
    refuse_held(store, run(0))


def test_a_member_that_has_left_is_not_waited_for(store: RegionStore) -> None:
    store.handle(FLIGHTS, Leave(member=MEMBER, incarnation=held(store)))
    refuse_held(store, run(0))
