"""What an application finds of a changed spec in a process of its own, and what it tells of one that it can't use.

What its living members make of the answer is in `tests/unit/protocol/region/test_specs.py`; the whole of it, with a
broker and Spark, in `tests/integration/cli/test_changed_spec.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from airflow_kcr.driver import parts
from airflow_kcr.driver.parts import SpecTrial, StartFailures
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import (
    BrokerUnavailable,
    KcrError,
    PipelineUnusable,
    SinkUnavailable,
    StoreUnavailable,
    UnknownMember,
)
from airflow_kcr.protocol.commands import ChangeSpec, Command, DeclareRegion, Register, Renew, StartRegion
from airflow_kcr.protocol.region import specs
from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.values import GroupId, Incarnation, MemberId, RegionName
from airflow_kcr.runtime.metrics import Snapshot
from airflow_kcr.spec import RegionSpec, parse
from airflow_kcr.store.regions import RegionStore
from tests.support.runtime_fakes import SharedTransactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@dataclass(slots=True)
class Seen:
    """A member, as far as a trial looks at it."""

    member: MemberId
    incarnation: Incarnation


@dataclass(slots=True)
class Living:
    """The members of this process: they see what waits in the store."""

    store: RegionStore

    def proposed_spec(self) -> str:
        waiting = self.store.read(FLIGHTS)[0].next_spec
        return "" if waiting is None else waiting.digest

    def snapshots(self) -> tuple[Snapshot, ...]:
        return cast("tuple[Snapshot, ...]", (Seen(MEMBER, Incarnation(1)),))


@pytest.fixture
def store() -> RegionStore:
    made = SharedTransactions()
    made.handle(FLIGHTS, DeclareRegion(spec=stored(spec("flights:first"), 1)))
    made.handle(FLIGHTS, StartRegion())
    made.handle(FLIGHTS, Register(member=MEMBER, token="one"))
    # It is not renewed while a process is started, which takes a busy machine longer than a lease.
    made.handle(FLIGHTS, Renew(member=MEMBER, incarnation=Incarnation(1), lease=timedelta(hours=1)))
    return made


@contextmanager
def trial(store: RegionStore) -> Iterator[None]:
    running = SpecTrial(store, FLIGHTS, GROUP, Living(store), cast("SparkSession", None))
    running.start()
    try:
        yield
    finally:
        running.end()


def refusal(store: RegionStore, file: Path, code: str) -> str:
    """Propose a spec whose pipeline is this code, and return why it was refused."""
    file.write_text(f"{code}\ndef process(batch, context): ...\n")
    with trial(store):
        update = ChangeSpec(at_once=store.read(FLIGHTS)[0].spec, later=stored(spec(f"{file}:process"), 2))
        store.handle(FLIGHTS, update)
        assert happened(lambda: bool(specs.refused(store.read(FLIGHTS)[0])), within=parts.WITHIN + 60)
    region = store.read(FLIGHTS)[0]
    assert (region.spec.revision, region.next_spec) == (1, None)
    ((found,),) = (specs.refused(region),)
    return found.refusal


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "print('no answer'); raise ImportError('a library that is nowhere')",
            "ImportError: a library that is nowhere",
        ),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; os._exit(7)", "importing its code ended the process that tried it (status 7)"),
    ],
    ids=["fails", "exits", "ends its process"],
)
def test_code_that_can_not_be_imported_is_refused_and_harms_nobody(
    store: RegionStore, tmp_path: Path, code: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "WITHIN", 300)
    assert why in refusal(store, tmp_path / "tried_pipeline.py", code)


def test_code_whose_import_does_not_end_is_refused_in_time(
    store: RegionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "WITHIN", 0.5)
    found = refusal(store, tmp_path / "tried_pipeline.py", "import threading; threading.Event().wait()")
    assert found == "importing its code and asking its sinks was not done within 0.5 s"


def test_the_same_spec_is_tried_again_once_what_was_wrong_is_put_right(
    store: RegionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(("it lacks a column", "", ""))
    monkeypatch.setattr(SpecTrial, "_refusal", lambda trial, spec: next(answers))

    def propose() -> None:
        update = ChangeSpec(at_once=store.read(FLIGHTS)[0].spec, later=stored(spec("flights:second"), 2))
        store.handle(FLIGHTS, update)

    def is_accepted() -> bool:
        region, now = store.read(FLIGHTS)
        return specs.is_accepted(region, now)

    with trial(store):
        propose()
        assert happened(lambda: store.read(FLIGHTS)[0].next_spec is None, within=30)
        propose()
        assert happened(is_accepted, within=30)
        # Another group's members may refuse it: then those who had accepted it are asked again.
        store.handle(FLIGHTS, ChangeSpec(at_once=store.read(FLIGHTS)[0].spec))
        propose()
        assert happened(is_accepted, within=30)
    assert next(answers, None) is None


def test_a_file_whose_modules_name_is_taken_in_this_process_is_refused(store: RegionStore, tmp_path: Path) -> None:
    assert "another module named 'json' is imported already" in refusal(store, tmp_path / "json.py", "")


def test_who_can_not_start_tells_the_store_in_one_line_that_it_can_keep(store: RegionStore) -> None:
    with pytest.raises(PipelineUnusable), StartFailures(store, FLIGHTS, [other()]).told(1, digest(store)):
        raise PipelineUnusable("there is no module '\0\ud800'. Looked in\n  /one\n  /two")
    region, now = store.read(FLIGHTS)
    assert [(c.member, c.refusal) for c in specs.start_failures(region, now)] == [
        (other(), "there is no module '??'. Looked in /one /two")
    ]


def test_what_the_spec_has_no_part_in_is_not_told(store: RegionStore) -> None:
    with pytest.raises(UnknownMember), StartFailures(store, FLIGHTS, [other()]).told(1, digest(store)):
        raise UnknownMember("index 1 is not one of them")
    assert store.read(FLIGHTS)[0].spec_checks == ()


def test_what_is_away_is_told_once_however_often_it_is_tried_in_other_words(store: RegionStore) -> None:
    def told(error: KcrError) -> str:
        with suppress(KcrError), failures.told(1, digest(store)):
            raise error
        region, now = store.read(FLIGHTS)
        return specs.start_failures(region, now)[0].refusal

    failures = StartFailures(store, FLIGHTS, [other()])
    assert told(BrokerUnavailable("no answer after 1 s")) == "no answer after 1 s"
    counter = store.read(FLIGHTS)[0].counter
    assert told(BrokerUnavailable("no answer after 2 s")) == "no answer after 1 s"
    assert store.read(FLIGHTS)[0].counter == counter
    # Another reason, and again of another start.
    assert told(SinkUnavailable("nothing listens")) == "nothing listens"
    assert told(PipelineUnusable("it is gone")) == "it is gone"
    failures = StartFailures(store, FLIGHTS, [other()])
    assert told(BrokerUnavailable("no answer after 3 s")) == "no answer after 3 s"


def test_a_store_that_is_away_does_not_hide_why_members_do_not_start(caplog: pytest.LogCaptureFixture) -> None:
    class Away:
        def handle(self, name: RegionName, command: Command[Region]) -> Region:
            raise StoreUnavailable("no answer")

    caplog.set_level(logging.WARNING)
    away = cast("RegionStore", Away())
    with pytest.raises(PipelineUnusable, match="nowhere"), StartFailures(away, FLIGHTS, [MEMBER]).told(1, ""):
        raise PipelineUnusable("there is no module 'nowhere'")
    assert "the store could not be told why its members don't start" in caplog.text


def other() -> MemberId:
    return MemberId(GROUP, 1)


def digest(store: RegionStore) -> str:
    return store.read(FLIGHTS)[0].spec.digest
