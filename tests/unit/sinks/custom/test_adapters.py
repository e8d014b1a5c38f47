from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from airflow_kcr.errors import CheckpointNotUsable, ConfigurationError, PipelineUnusable, SinkError, SpecError
from airflow_kcr.protocol import values
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.rules import Delivery
from airflow_kcr.protocol.values import (
    UNDECLARED,
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    Offset,
    RegionId,
    Timeline,
)
from airflow_kcr.sinks.custom import AcceptedBatch, CheckpointId, CompleteCheckpoint, CustomSink, Reset, SinkOwner
from airflow_kcr.sinks.custom.adapters import MemberCustomSink
from airflow_kcr.sinks.files.contents import CheckpointContents, RegionLedger
from airflow_kcr.sinks.group import GroupSinks, checked_sinks, opened_sinks
from airflow_kcr.sinks.kinds.custom import DeclaredCustom
from airflow_kcr.spec import RegionSpec, SinkKind, SinkSpec
from tests.support.runtime_fakes import CALL, p
from tests.unit.spec.examples import group, small

MODULE = """
from airflow_kcr.sinks.custom import CustomSink

class Told(CustomSink):
    def __init__(self, options): self.options = dict(options)
    def check(self, owner):
        if self.options.get("broken"): raise RuntimeError("no target")
    def write(self, rows, batch): pass
    def prepare(self, sequence): pass
    def publish(self, checkpoint): pass
    def rollback(self, reset): pass

def make(options, spark): return Told(options)
def nothing(options, spark): return None
def fails(options, spark): raise ValueError("no such bucket")
def wrong(options): return None
"""


@dataclass
class Told(CustomSink):
    """A sink that keeps what it was told, and may fail."""

    failure: Exception | None = None
    told: list[object] = field(default_factory=list)

    def _note(self, what: object) -> None:
        self.told.append(what)
        if self.failure is not None:
            raise self.failure

    def check(self, owner: SinkOwner) -> None:
        self._note(owner)

    def write(self, rows: object, batch: object) -> None:
        self._note("write")

    def prepare(self, sequence: CheckpointNumber) -> None:
        self._note(sequence)

    def publish(self, checkpoint: CompleteCheckpoint) -> None:
        self._note(checkpoint)

    def rollback(self, reset: Reset) -> None:
        self._note(reset)


@dataclass
class Ledger(RegionLedger):
    """What is accepted."""

    found: CheckpointContents
    gone: Mapping[CheckpointId, Timeline] = field(default_factory=dict)

    def contents(self, sequence: CheckpointNumber, group: GroupId) -> CheckpointContents:
        return self.found

    def undone(self) -> Mapping[CheckpointId, Timeline]:
        return self.gone


def contents(undone_by: int | None = None) -> CheckpointContents:
    return CheckpointContents(
        id=CheckpointId(Timeline(1), CheckpointNumber(2)),
        epoch=Epoch(1),
        digest="d",
        boundary=None,
        previous=CheckpointId(Timeline(1), CheckpointNumber(1)),
        undone_by=None if undone_by is None else Timeline(undone_by),
        batches=(),
    )


OWNER = SinkOwner(region=values.RegionName("flights"), region_id=RegionId("one"), group=GroupId("g"), sink="out")


def spec(factory: str = "own_sink:make", options: Mapping[str, str] | None = None) -> RegionSpec:
    sink = SinkSpec(name="out", kind=SinkKind.CUSTOM, factory=factory, options=options)
    return small(group(sinks=(sink,)), group("h"), region="flights")


@pytest.fixture
def own_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "own_sink.py"
    path.write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_sink", raising=False)
    return path


# -- in the spec ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sink", "path"),
    [
        (SinkSpec(name="out", kind=SinkKind.CUSTOM), "factory"),
        (SinkSpec(name="out", kind=SinkKind.CUSTOM, factory="own_sink"), "factory"),
        (SinkSpec(name="out", kind=SinkKind.CUSTOM, factory="m:f", table="t"), "table"),
        (SinkSpec(name="out", kind=SinkKind.CUSTOM, factory="m:f", key=("a",)), "key"),
        (SinkSpec(name="out", kind=SinkKind.CUSTOM, factory="m:f", options={"a": "${"}), "options.a"),
        (
            SinkSpec(name="out", kind=SinkKind.CUSTOM, factory="m:f", options={"password": "hunter2"}),
            "options.password",
        ),
        (SinkSpec(name="out", kind=SinkKind.FILES, path="/x", factory="m:f"), "factory"),
        (SinkSpec(name="out", kind=SinkKind.POSTGRES, url="${DB}", table="t", options={"a": "b"}), "options"),
    ],
)
def test_what_is_wrong_with_it_is_said_at_its_place(sink: SinkSpec, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        small(group(sinks=(sink,)))
    assert [where for where, _ in caught.value.findings] == [f"groups[0].sinks.out.{path}"]
    assert "hunter" not in str(caught.value)


def test_exactly_once_is_not_to_be_had() -> None:
    sink = SinkSpec(name="out", kind=SinkKind.CUSTOM, factory="m:f")
    with pytest.raises(SpecError, match="custom can't be trusted with delivery exactly_once"):
        small(group(sinks=(sink,), delivery=Delivery.EXACTLY_ONCE))


def declared(spec: RegionSpec, environ: Mapping[str, str] = MappingProxyType({})) -> DeclaredCustom:
    """Return the sink of a spec, as far as that needs no Spark."""
    (one,) = checked_sinks(spec, GroupId("g"), environ, region_id=UNDECLARED)
    assert isinstance(one, DeclaredCustom)
    return one


def taken(one: DeclaredCustom) -> MemberCustomSink:
    """Return a sink as a member of its group has it."""
    made = one.made(None, Ledger(contents()))  # type: ignore[arg-type]
    made.check()
    return made


# -- made ----------------------------------------------------------------------------------------------------------


def test_it_is_made_by_its_function_with_the_references_filled_in(own_sink: Path) -> None:
    one = declared(spec(options={"path": "/lake", "token": "${TOKEN}"}), {"TOKEN": "hunter2"})
    assert "hunter2" not in repr(one)
    made = taken(one)
    assert made.sink.options == {"path": "/lake", "token": "hunter2"}  # type: ignore[attr-defined]


def test_its_file_may_be_named(own_sink: Path) -> None:
    assert isinstance(taken(declared(spec(f"{own_sink}:make"))).sink, CustomSink)


def test_a_variable_that_is_not_set_is_named(own_sink: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"sinks\.out\.options\.token needs TOKEN"):
        declared(spec(options={"token": "${TOKEN}"}))


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        ("no_such_module:make", "the factory of a sink 'no_such_module:make' can't be loaded"),
        ("own_sink:other", "has no 'other'"),
        ("own_sink:wrong", "can't be called with options and a Spark session"),
    ],
)
def test_a_function_that_is_none_is_refused(own_sink: Path, factory: str, told: str) -> None:
    with pytest.raises(PipelineUnusable, match=told):
        declared(spec(factory))


@pytest.mark.parametrize(
    ("factory", "options", "told"),
    [
        ("own_sink:nothing", {}, "made a NoneType, no CustomSink"),
        ("own_sink:fails", {}, "sink out of group g can't be made: ValueError: no such bucket"),
        ("own_sink:make", {"broken": "yes"}, "sink out of group g can't be made: RuntimeError: no target"),
    ],
)
def test_one_that_can_not_be_made_or_does_not_work_is_refused(
    own_sink: Path, factory: str, options: dict[str, str], told: str
) -> None:
    one = declared(spec(factory, options))
    with pytest.raises(ConfigurationError, match=told):
        taken(one)


def test_it_is_told_whose_output_it_writes() -> None:
    sink = Told()
    MemberCustomSink(OWNER, sink, Ledger(contents())).check()
    assert sink.told == [OWNER]


def test_only_the_groups_own_is_checked(own_sink: Path) -> None:
    one = declared(spec(options={"broken": "yes"}))
    sinks = opened_sinks([one], GroupId("h"), None, None)  # type: ignore[arg-type]
    assert len(sinks.of_others) == 1


# -- told ----------------------------------------------------------------------------------------------------------


def member(sink: Told, own_sink: Path, ledger: Ledger | None = None) -> MemberCustomSink:
    return MemberCustomSink(OWNER, sink, ledger or Ledger(contents()))


def order() -> ResetSinks:
    resume = OffsetMap({p(0): Offset(5)})
    return ResetSinks(epoch=Epoch(3), timeline=Timeline(2), resume=resume, open={}, target=None, skips={})


def test_it_is_told_what_counts_and_what_is_void(own_sink: Path) -> None:
    sink = Told()
    one = member(sink, own_sink, Ledger(contents(), {CheckpointId(Timeline(1), CheckpointNumber(7)): Timeline(2)}))
    one.prepare(CheckpointNumber(2))
    one.publish(CheckpointNumber(2))
    assert one.reset(order()) == {}
    place = values.TopicPartition(p(0).topic, 0)
    assert sink.told == [
        2,
        contents(),
        Reset(
            epoch=Epoch(3),
            timeline=Timeline(2),
            undone={CheckpointId(timeline=Timeline(1), sequence=CheckpointNumber(7)): Timeline(2)},
            resume={place: Offset(5)},
        ),
    ]


def test_a_checkpoint_that_a_reset_has_undone_meanwhile_is_not_published(own_sink: Path) -> None:
    sink = Told()
    member(sink, own_sink, Ledger(contents(undone_by=2))).publish(CheckpointNumber(2))
    assert sink.told == []


def test_what_its_code_raises_is_tried_again(own_sink: Path) -> None:
    one = member(Told(failure=OSError(28, "disk full")), own_sink)
    for call, what in (
        (lambda: one.prepare(CheckpointNumber(2)), "prepare checkpoint 2"),
        (lambda: one.publish(CheckpointNumber(2)), "publish checkpoint 2"),
        (lambda: one.reset(order()), "roll back"),
    ):
        with pytest.raises(SinkError, match=f"sink out of group g could not {what}: OSError: No space left on device "):
            call()
    own = member(Told(failure=SinkError("the lake is frozen")), own_sink)
    with pytest.raises(SinkError, match=r"^the lake is frozen$"):
        own.prepare(CheckpointNumber(2))


def test_a_member_of_its_group_writes_and_is_asked_one_of_another_only_publishes(own_sink: Path) -> None:
    sink = Told()
    one = member(sink, own_sink)
    own, other = GroupSinks(own={"out": one}), GroupSinks(own={}, of_others=(one,))
    assert not own.fenced
    own.prepare(CheckpointNumber(2))
    other.prepare(CheckpointNumber(2))
    other.publish(CheckpointNumber(2))
    other.reset(order())
    assert [type(told).__name__ for told in sink.told] == ["int", "CheckpointContents"]
    sink.fenced = True
    assert own.fenced


# -- recomputed ----------------------------------------------------------------------------------------------------


@dataclass
class Replacing(Told):
    """A sink that can replace output."""

    def replace(self, old: CompleteCheckpoint, new: CompleteCheckpoint) -> None:
        self._note((old, new))


ROWS = SimpleNamespace(
    columns=["topic", "partition", "offset"],
    schema=SimpleNamespace(simpleString=lambda: "…"),
    toDF=lambda *names: None,
)


def wanted() -> None:
    """It is."""


def test_one_without_the_method_for_that_is_refused_by_its_name(own_sink: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"sink out of group g can't be .*: Told has no method replace\(old, "):
        member(Told(), own_sink).revised(contents(), EventNumber(7))


def test_it_is_told_which_batches_take_the_place_of_others(own_sink: Path) -> None:
    sink, old = Replacing(), contents()
    revision = member(sink, own_sink).revised(old, EventNumber(7))
    rest = revision.write(ROWS, CALL)  # type: ignore[arg-type]
    revision.write(ROWS, replace(CALL, batch=values.BatchId("failed later")))  # type: ignore[arg-type]
    rest()
    asked: list[object] = []
    revision.replace(lambda: asked.append(list(sink.told)))
    # It is asked whether that is wanted once everything was written, and right before.
    assert asked == [["write", "write"]]
    batch = AcceptedBatch(
        batch_id=CALL.batch,
        epoch=CALL.epoch,
        checkpoint=old.id,
        ranges={place.topic_partition: range_ for place, range_ in CALL.ranges.items()},
        is_whole=True,
    )
    assert sink.told[2:] == [(old, replace(old, batches=(batch,), recomputation=7))]


def test_what_is_not_wanted_any_more_does_not_reach_it(own_sink: Path) -> None:
    sink = Replacing()

    def refused() -> None:
        raise CheckpointNotUsable("a reset has undone it")

    with pytest.raises(CheckpointNotUsable):
        member(sink, own_sink).revised(contents(), EventNumber(7)).replace(refused)
    assert sink.told == []


def test_what_its_code_raises_at_a_replacement_is_told_as_that(own_sink: Path) -> None:
    revision = member(Replacing(failure=OSError(28, "disk full")), own_sink).revised(contents(), EventNumber(7))
    with pytest.raises(SinkError, match="could not replace the output of checkpoint 2: OSError: No space left on"):
        revision.replace(wanted)
