"""What an application tells of a spec that its members can't start with.

What the region makes of it is in `tests/unit/protocol/region/test_specs.py`; the whole of it, with a broker and Spark,
in `tests/integration/cli/test_changed_spec.py`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta
from typing import cast

import pytest

from airflow_kcr import errors
from airflow_kcr.driver.parts import StartFailures
from airflow_kcr.protocol.region import specs
from airflow_kcr.protocol.region.commands import Command, DeclareRegion, Register, Renew
from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.values import GroupId, Incarnation, MemberId, RegionName
from airflow_kcr.spec import RegionSpec, parse
from airflow_kcr.store.regions import RegionStore
from tests.support.driver import START
from tests.support.runtime_fakes import SharedTransactions

FLIGHTS, GROUP = RegionName("flights"), GroupId("flights")
MEMBER = MemberId(GROUP, 0)


def spec(pipeline: str) -> RegionSpec:
    return parse(
        "region: flights\n"
        "kafka: {bootstrap.servers: 'broker.invalid:9092'}\n"
        f"groups: [{{group_id: flights, topics: [flights], pipeline: '{pipeline}'}}]\n"
    )


def stored(found: RegionSpec, revision: int) -> Spec:
    return Spec(text=found.to_json_text(), rules=found.rules(), revision=revision)


@pytest.fixture
def store() -> RegionStore:
    made = SharedTransactions()
    made.handle(FLIGHTS, DeclareRegion(spec=stored(spec("flights:first"), 1)))
    made.handle(FLIGHTS, START)
    made.handle(FLIGHTS, Register(member=MEMBER, token="one"))
    # It is not renewed while a process is started, which takes a busy machine longer than a lease.
    made.handle(FLIGHTS, Renew(member=MEMBER, incarnation=Incarnation(1), lease=timedelta(hours=1)))
    return made


def test_who_can_not_start_tells_the_store_in_one_line_that_it_can_keep(store: RegionStore) -> None:
    with pytest.raises(errors.PipelineUnusable), StartFailures(store, FLIGHTS, [other()]).reported(1, digest(store)):
        raise errors.PipelineUnusable("there is no module '\0\ud800'. Looked in\n  /one\n  /two")
    region, now = store.read(FLIGHTS)
    assert [(c.member, c.refusal) for c in specs.start_failures(region, now)] == [
        (other(), "there is no module '??'. Looked in /one /two")
    ]


def test_what_the_spec_has_no_part_in_is_not_told(store: RegionStore) -> None:
    with pytest.raises(errors.UnknownMember), StartFailures(store, FLIGHTS, [other()]).reported(1, digest(store)):
        raise errors.UnknownMember("index 1 is not one of them")
    assert store.read(FLIGHTS)[0].start_failures == ()


def test_what_is_away_is_told_once_however_often_it_is_tried_in_other_words(store: RegionStore) -> None:
    def told(error: errors.KcrError) -> str:
        with suppress(errors.KcrError), failures.reported(1, digest(store)):
            raise error
        region, now = store.read(FLIGHTS)
        return specs.start_failures(region, now)[0].refusal

    failures = StartFailures(store, FLIGHTS, [other()])
    assert told(errors.BrokerUnavailable("no answer after 1 s")) == "no answer after 1 s"
    counter = store.read(FLIGHTS)[0].counter
    assert told(errors.BrokerUnavailable("no answer after 2 s")) == "no answer after 1 s"
    assert store.read(FLIGHTS)[0].counter == counter
    # Another reason, and again of another start.
    assert told(errors.SinkUnavailable("nothing listens")) == "nothing listens"
    assert told(errors.PipelineUnusable("it is gone")) == "it is gone"
    failures = StartFailures(store, FLIGHTS, [other()])
    assert told(errors.BrokerUnavailable("no answer after 3 s")) == "no answer after 3 s"


def test_a_store_that_is_away_does_not_hide_why_members_do_not_start(caplog: pytest.LogCaptureFixture) -> None:
    class Away:
        def handle(self, name: RegionName, command: Command[Region]) -> Region:
            raise errors.StoreUnavailable("no answer")

    caplog.set_level(logging.WARNING)
    away = cast("RegionStore", Away())
    with (
        pytest.raises(errors.PipelineUnusable, match="nowhere"),
        StartFailures(away, FLIGHTS, [MEMBER]).reported(1, ""),
    ):
        raise errors.PipelineUnusable("there is no module 'nowhere'")
    assert "the store could not be told why its members don't start" in caplog.text


def other() -> MemberId:
    return MemberId(GROUP, 1)


def digest(store: RegionStore) -> str:
    return store.read(FLIGHTS)[0].spec.digest
