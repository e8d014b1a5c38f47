"""The file's shape: which fields there are, and of which type, with the texts of durations and the like read.

Nothing here compares fields; `checks` does. Every sentence is our own, because Pydantic's would quote what was written,
which may be a secret in the wrong place.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.delivery import Delivery, FileFormat, SinkMode
from airflow_kcr.protocol.durations import parse_duration
from airflow_kcr.protocol.rules import Assignor, CheckpointMode, ForeignConsumerPolicy, OutOfRangePolicy
from airflow_kcr.protocol.start_positions import parse_start
from airflow_kcr.spec.findings import not_one_of
from airflow_kcr.spec.sinks import SinkKind

OWN_SENTENCE = "kcr"
"""The error type whose message is ours already."""

FOREVER_WORD = "forever"
"""In place of a duration: `model.FOREVER`."""

_E = TypeVar("_E", bound=StrEnum)
_T = TypeVar("_T")


def refusal(text: str) -> PydanticCustomError:
    """Return the error that says `text`, and nothing of what was written but what `text` quotes."""
    return PydanticCustomError(OWN_SENTENCE, "{text}", {"text": text})


def _read(parse: Callable[[str], _T], what: str) -> Callable[[object], _T]:
    """Return a validator for a text that `parse` reads."""

    def validate(value: object) -> _T:
        if not isinstance(value, str):
            raise refusal(f"must be {what}")
        try:
            return parse(value)
        except ConfigurationError as error:
            raise refusal(error.message) from None

    return validate


def _word(words: type[_E]) -> Callable[[object], _E]:
    """Return a validator for one of a few words."""

    def parse(value: str) -> _E:
        if value not in list(words):
            raise ConfigurationError(not_one_of(value, [word.value for word in words]))
        return words(value)

    return _read(parse, f"one of {', '.join(words)}")


def _setting(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _:
            raise refusal("must be a text, a number, true or false")


def _keep(text: str) -> timedelta:
    return timedelta.max if text == FOREVER_WORD else parse_duration(text)


Duration = Annotated[timedelta, BeforeValidator(_read(parse_duration, "a duration with its unit: 5m, 30s or PT5M"))]
Keep = Annotated[timedelta, BeforeValidator(_read(_keep, "a duration with its unit, such as 90d, or forever"))]
# Any: Pydantic would look into the start positions' dataclasses, whose types it can't resolve.
Start = Annotated[
    Any,
    BeforeValidator(_read(parse_start, "a text: earliest, latest, committed, timestamp:… or duration:…")),
]
Setting = Annotated[str, BeforeValidator(_setting)]
DeliveryWord = Annotated[Delivery, BeforeValidator(_word(Delivery))]
AssignorWord = Annotated[Assignor, BeforeValidator(_word(Assignor))]
SinkKindWord = Annotated[SinkKind, BeforeValidator(_word(SinkKind))]
FileFormatWord = Annotated[FileFormat, BeforeValidator(_word(FileFormat))]
SinkModeWord = Annotated[SinkMode, BeforeValidator(_word(SinkMode))]
CheckpointModeWord = Annotated[CheckpointMode, BeforeValidator(_word(CheckpointMode))]
ForeignConsumerWord = Annotated[ForeignConsumerPolicy, BeforeValidator(_word(ForeignConsumerPolicy))]
OutOfRangeWord = Annotated[OutOfRangePolicy, BeforeValidator(_word(OutOfRangePolicy))]


class _Document(BaseModel):
    """Strict: a number is no text, a text is no number, and a field that nobody knows is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    def given(self) -> dict[str, Any]:
        """The fields that the file has, by name; those that it leaves out have their defaults in the model."""
        return {name: getattr(self, name) for name in self.model_fields_set if getattr(self, name) is not None}


class SinkDocument(_Document):
    """A value of `sinks`; its name is the key."""

    kind: SinkKindWord
    table: str | None = None
    url: str | None = None
    conn_id: str | None = None
    mode: SinkModeWord | None = None
    key: list[str] | None = None
    path: str | None = None
    format: FileFormatWord | None = None
    file_size_mib: int | None = None
    factory: str | None = None
    options: dict[str, str] | None = None


class GroupDocument(_Document):
    """An element of `groups`."""

    group_id: str
    pipeline: str
    topics: list[str] | None = None
    pattern: str | None = None
    members: int | None = None
    start: Start | None = None
    delivery: DeliveryWord | None = None
    assignor: AssignorWord | None = None
    kafka: dict[str, Setting] | None = None
    kafka_conn_id: str | None = None
    static_membership: bool | None = None
    sinks: dict[str, SinkDocument] | None = None


class CheckpointDocument(_Document):
    """The section `checkpoint`."""

    every: Duration | None = None
    cron: str | None = None
    records: int | None = None
    timezone: str | None = None
    request: CheckpointModeWord | None = None
    grace: Duration | None = None
    catchup: bool | None = None


class BatchDocument(_Document):
    """The section `batch`."""

    target: Duration | None = None
    linger: Duration | None = None
    min_records: int | None = None
    max_records: int | None = None
    timeout: Duration | None = None


class TimeoutsDocument(_Document):
    """The section `timeouts`: every field of `Timeouts`, under the names that `setting_name` gives them."""

    lease: Duration | None = None
    renew: Duration | None = None
    reset: Duration | None = None
    drain: Duration | None = None
    publish: Duration | None = None
    commit: Duration | None = None
    close: Duration | None = None
    batch: Duration | None = None
    """Better written as `batch.timeout`, which is the same."""

    retry: Duration | None = None
    relaunch: Duration | None = None
    session: Duration | None = None
    max_poll_interval: Duration | None = None
    metadata_refresh: Duration | None = None
    accept_aborted_drain: bool | None = None


class RetentionDocument(_Document):
    """The section `retention`."""

    keep: int | None = None
    max_age: Annotated[Duration | None, Field(alias="for")] = None


class HistoryDocument(_Document):
    """The section `history`."""

    keep: Keep | None = None
    archive: str | None = None


class RegionDocument(_Document):
    """The whole file."""

    region: str
    groups: list[GroupDocument]
    kafka: dict[str, Setting] | None = None
    kafka_conn_id: str | None = None
    checkpoint: CheckpointDocument = CheckpointDocument()
    batch: BatchDocument = BatchDocument()
    timeouts: TimeoutsDocument = TimeoutsDocument()
    max_failures: int | None = None
    foreign_consumers: ForeignConsumerWord | None = None
    out_of_range: OutOfRangeWord | None = None
    beyond_end: OutOfRangeWord | None = None
    retention: RetentionDocument = RetentionDocument()
    history: HistoryDocument = HistoryDocument()
