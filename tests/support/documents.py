"""Documents of every kind that leaves the process, made of fixed values; `tests/unit/golden` has each to the byte.

A change to `answers.jsonl` is one that programs which read the commands' JSON have to follow. Where a change is meant,
`python -m tests.support.documents` writes the files anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, NewType, Protocol, Union, get_args, get_origin, get_type_hints
from zlib import crc32

from airflow_kcr.api.checkpoints import CheckpointRequestView, CheckpointSummary, CheckpointView
from airflow_kcr.api.ledger import RecordView, Repetition, event_to_json
from airflow_kcr.api.partitions import Comparison, Lag
from airflow_kcr.api.reset_views import ResetView
from airflow_kcr.api.specs import Applied
from airflow_kcr.api.verdict import Verdict
from airflow_kcr.api.views import MemberView, RegionSummary, RegionView
from airflow_kcr.goals import (
    CheckpointCommitted,
    CheckpointExists,
    MembersEnded,
    RecomputationDone,
    RegionReaches,
    RequestPublished,
    ResetFinished,
    RunEnded,
)
from airflow_kcr.hooks.checkpoints import PublishedCheckpoint
from airflow_kcr.protocol import documents, targets
from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap, SeekSource
from airflow_kcr.protocol.region import rows
from airflow_kcr.protocol.region.events import BODIES, Event
from airflow_kcr.protocol.region.plans import Plan
from airflow_kcr.protocol.scopes import EVERYTHING, Scope, parse_scope
from airflow_kcr.protocol.values import (
    CheckpointNumber,
    Epoch,
    EventNumber,
    GroupId,
    GroupPartition,
    MemberId,
    Offset,
    Timeline,
    TopicId,
    TopicName,
)
from airflow_kcr.runtime.leases import CommitNote
from airflow_kcr.sinks.files.layout import BatchList, ColumnType, Manifest, Marker, Retired, Timelines
from airflow_kcr.triggers.payloads import LagBelow, MembershipHealthy, Progresses, Status, TriggerAnswer


class Document(Protocol):
    def to_json(self) -> Mapping[str, object]: ...


P2: Final = GroupPartition(GroupId("flights-etl"), TopicName("flights"), 2)
MEMBER: Final = MemberId(P2.group, 1)
SIX: Final = datetime(2026, 1, 1, 7, tzinfo=timezone(timedelta(hours=1)))
"""Written in UTC, whatever its zone."""

OFFSETS: Final = OffsetMap({P2: Offset(9), P2._replace(partition=3): Offset(2**63 - 1)})
ENTRY: Final = SeekEntry(
    offset=Offset(7),
    source=SeekSource.EXPLICIT,
    current=Offset(9),
    clamped_from=-3,
    recreated=TopicId("old"),
)
SCOPES: Final = (
    EVERYTHING,
    parse_scope(["b", "a"], ["flights:2,0", "weather"]),
    replace(EVERYTHING, planned=frozenset(OFFSETS)),
)
ANSWERS: Final[tuple[type[Document], ...]] = (
    Applied,
    MemberView,
    RegionSummary,
    RegionView,
    CheckpointSummary,
    CheckpointView,
    CheckpointRequestView,
    Lag,
    Comparison,
    RecordView,
    Repetition,
    Verdict,
    Plan,
    ResetView,
)
ROWS: Final = (
    rows.PersonReset,
    rows.Checkpoint,
    rows.ResetAttempt,
    rows.CheckpointRequest,
    rows.Halt,
    rows.StartFailure,
)
WAITS: Final = (
    RequestPublished,
    CheckpointCommitted,
    RegionReaches,
    Progresses,
    ResetFinished,
    MembersEnded,
    RunEnded,
    RecomputationDone,
    MembershipHealthy,
    LagBelow,
)
FILES: Final = (Marker, ColumnType, BatchList, Manifest, Timelines, Retired)


def sample(hint: object, name: str = "") -> Any:  # noqa: ANN401 (of the type that the hint names)
    """Return one value of a type, the same each time, with no field at its default.

    Args:
        hint: the type.
        name: of the field that it is for; texts, numbers and times follow from it, so that each field has its own.
    """
    plain = hint.__supertype__ if isinstance(hint, NewType) else hint
    number = crc32(name.encode()) % 10_000
    known: dict[object, object] = {
        str: name,
        int: number,
        bool: True,
        datetime: SIX + timedelta(seconds=number),
        timedelta: timedelta(seconds=number),
        OffsetMap: OFFSETS,
        SeekMap: SeekMap({P2: ENTRY}),
        GroupPartition: P2,
        MemberId: MEMBER,
        Scope: SCOPES[1],
        targets.Target: targets.ToCheckpoint(sequence=CheckpointNumber(12)),
    }
    if plain in known:
        return known[plain]
    arguments = [a for a in get_args(plain) if a not in {NoneType, ...}]
    match get_origin(plain):
        case None:
            pass
        case origin if origin in {Union, UnionType}:
            return sample(arguments[0], name)
        case origin if origin is Mapping:
            return {sample(arguments[0], name): sample(arguments[1], name)}
        case origin:
            return origin([sample(each, name) for each in arguments])
    if isinstance(plain, type) and issubclass(plain, Enum):
        return list(plain)[-1]
    kind: Any = plain
    # What a module imports for its annotations alone is not there otherwise.
    hints = get_type_hints(kind, localns={"datetime": datetime, "timedelta": timedelta})
    named = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
    return kind(**{each: sample(hints[each], each) for each in named})


def _lines() -> Iterator[tuple[str, str, object]]:
    """Yield documents, each with the name of its file and of its class."""
    yield from _stored()
    for answer in ANSWERS:
        yield "answers", answer.__name__, sample(answer).to_json()
    for kind in WAITS:
        yield "triggers", kind.__name__, sample(kind).to_json()
    for wait in (CheckpointExists(boundary=SIX), CheckpointExists(sequence=CheckpointNumber(7)), MembershipHealthy()):
        yield "triggers", type(wait).__name__, wait.to_json()
    for status in Status:
        yield "triggers", "TriggerAnswer", TriggerAnswer(status=status, detail="g[1] is late").to_json()
    plan: Plan = sample(Plan)
    for one in (plan, replace(plan, requester=rows.Requester(who="me"))):
        yield "xcom", "Plan", one.summary() | {"digest": one.digest}
    yield "xcom", "PublishedCheckpoint", sample(PublishedCheckpoint).to_json()
    for file in FILES:
        yield "files", file.__name__, sample(file).text()
    yield "note", "CommitNote", sample(CommitNote).text()


def _stored() -> Iterator[tuple[str, str, object]]:
    for kind, body in sorted(BODIES.items()):
        event = Event(number=EventNumber(1), at=SIX, epoch=Epoch(3), timeline=Timeline(1), body=sample(body))
        yield "events", kind, documents.write(event.body, body)
        yield "shown_events", kind, event_to_json(event)
    for row in ROWS:
        yield "rows", row.__name__, documents.write(sample(row), row)
    for target in targets.TARGETS:
        yield "targets", target.__name__, documents.write(sample(target), targets.Target)
    for scope in SCOPES:
        yield "targets", "Scope", documents.write(scope, Scope)


def golden() -> dict[str, str]:
    """Return the text of each file, a line for each document: its class and its JSON."""
    texts: dict[str, str] = {}
    for file, name, document in _lines():
        texts[file] = texts.get(file, "") + json.dumps({name: document}, ensure_ascii=False) + "\n"
    return texts


GOLDEN: Final = Path(__file__).parents[1] / "unit" / "golden"

if __name__ == "__main__":
    for name, text in golden().items():
        (GOLDEN / f"{name}.jsonl").write_text(text, encoding="utf-8")
