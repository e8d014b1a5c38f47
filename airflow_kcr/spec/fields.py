"""What the fields of a spec hold, as the file writes it: the types that `model` declares its fields with.

Pydantic reads plain values by these declarations and writes them again. Every sentence about what doesn't fit is our
own, because Pydantic's would quote what was written, which may be a secret in the wrong place.

What is wrong is a finding, with its place in the file: `groups[0].start`, `kafka.bootstrap.servers`. Its text says what
to do; it never holds a value of the Kafka settings.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

from pydantic import BeforeValidator, GetCoreSchemaHandler, PlainSerializer, StrictBool, StrictInt
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol import rules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import format_duration, parse_duration

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Path = tuple[str | int, ...]
"""Where something is in the file: names of fields, and places in lists from 0."""


class Finding(NamedTuple):
    """One thing that is wrong."""

    path: Path
    text: str


def path_text(path: Path) -> str:
    """Return a path as it is shown, `groups[0].start`; the whole file is `spec`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "spec"


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the sentence for an unknown name, with the nearest known one.

    Args:
        name: what was written.
        known: what would have been accepted here.
    """
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"no such field; {hint}known are {', '.join(names)}"


def not_one_of(value: str, accepted: Iterable[str]) -> str:
    """Return the sentence for a word that is not among those accepted."""
    words = list(accepted)
    near = difflib.get_close_matches(value.lower(), words, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{value!r} is not accepted{hint}: use {', '.join(words)}"


OWN_SENTENCE: Final = "kcr"
"""The error type whose message is ours already."""

FOREVER: Final = timedelta.max
"""The age at which nothing of a history is dropped."""

_FOREVER_WORD: Final = "forever"
_E = TypeVar("_E", bound=StrEnum)
_T = TypeVar("_T")


class TakesEffect(StrEnum):
    """When a change of the spec of a running region takes effect."""

    AT_ONCE = "at_once"
    """As soon as the members read the region's row again."""

    NEXT_CHECKPOINT = "next_checkpoint"
    """After the next checkpoint, with a restart of the members."""

    REFUSED = "refused"
    """Never; make another region."""


# -- texts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AsText:
    """A field whose value the file writes as a text."""

    read: Callable[[str], object]
    write: Callable[[Any], str]
    what: str
    """What it has to be, if something other than text was given."""

    shown: str
    """Its type in the reference, as Markdown."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._value, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )

    def _value(self, text: object) -> object:
        if not isinstance(text, str):
            raise refusal(f"must be {self.what}")
        try:
            return self.read(text)
        except ConfigurationError as error:
            raise refusal(error.message) from None


def refusal(text: str) -> PydanticCustomError:
    """Return the error that says `text`, and nothing of what was written but what `text` quotes."""
    return PydanticCustomError(OWN_SENTENCE, "{text}", {"text": text})


def word(words: type[_E], without: frozenset[str] = frozenset()) -> AsText:
    """Return a field for one of a few words.

    Args:
        words: all that are read.
        without: those that `checks` refuses, so that the reference leaves them out.
    """

    def read(value: str) -> _E:
        if value not in list(words):
            raise ConfigurationError(not_one_of(value, [word.value for word in words]))
        return words(value)

    shown = ", ".join(f"`{word}`" for word in words if word not in without)
    return AsText(read, str, f"one of {', '.join(words)}", shown)


def _setting(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _:
            raise refusal("must be a text, a number, true or false")


def _keep(text: str) -> timedelta:
    return FOREVER if text == _FOREVER_WORD else parse_duration(text)


def _kept(keep: timedelta) -> str:
    return _FOREVER_WORD if keep == FOREVER else format_duration(keep)


Number = StrictInt
Truth = StrictBool
Settings = Annotated[Mapping[str, Annotated[str, BeforeValidator(_setting)]], PlainSerializer(dict)]
"""Client settings, whose values may be numbers in the file."""

Duration = Annotated[
    timedelta,
    AsText(parse_duration, format_duration, "a duration with its unit: 5m, 30s or PT5M", "duration"),
]
Keep = Annotated[
    timedelta,
    AsText(_keep, _kept, "a duration with its unit, such as 90d, or forever", "duration or `forever`"),
]
Start = Annotated[
    rules.StartPosition,
    AsText(
        rules.parse_start,
        lambda start: start.text,
        "a text: earliest, latest, committed, timestamp:… or duration:…",
        "text",
    ),
]
DeliveryWord = Annotated[rules.Delivery, word(rules.Delivery)]
AssignorWord = Annotated[rules.Assignor, word(rules.Assignor, without=frozenset({rules.Assignor.STICKY}))]
ProtocolWord = Annotated[rules.GroupProtocol, word(rules.GroupProtocol)]
SinkModeWord = Annotated[rules.SinkMode, word(rules.SinkMode)]
CheckpointModeWord = Annotated[rules.CheckpointMode, word(rules.CheckpointMode)]
ForeignConsumerWord = Annotated[rules.ForeignConsumerPolicy, word(rules.ForeignConsumerPolicy)]
OutOfRangeWord = Annotated[rules.OutOfRangePolicy, word(rules.OutOfRangePolicy)]


# -- what a class declares ---------------------------------------------------------------------------------------------


class Key:
    """Marks the field that the file writes as the key of its mapping."""


class Declared(NamedTuple):
    """A field of a spec."""

    attribute: str
    hint: Any
    default: Any
    """`dataclasses.MISSING` where it has to be given; a value recreated for each spec is made here as well."""

    takes_effect: TakesEffect | None
    """When a change of it counts; None: as that of the section that it is in."""

    section: type[DataclassInstance] | None
    """The class of its value, where that has fields of its own."""


_NAMES: Final[Mapping[type, Mapping[str, str]]] = {
    rules.RetentionRules: {"max_age": "for"},
    Timeouts: {"max_poll": "max_poll_interval"},
}
_READ: Final[Mapping[Any, Any]] = {int: Number, bool: Truth, timedelta: Duration, timedelta | None: Duration | None}
"""How hints of the protocol's classes are read, which know no file."""


@cache
def declared(kind: type[DataclassInstance]) -> Mapping[str, Declared]:
    """Return the fields of a class of the spec by what the file calls them, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    names = _NAMES.get(kind, {})
    return {
        names.get(field.name, field.name): _declared(field, hints[field.name])
        for field in fields(kind)
        if Key not in _metadata(hints[field.name])
    }


def _declared(field: Field[Any], hint: Any) -> Declared:  # noqa: ANN401 (a hint is anything)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    effects = [each for each in _metadata(hint) if isinstance(each, TakesEffect)]
    parts = list(parts_of(hint))
    written = any(isinstance(each, AsText) for each in parts)
    sections = [each for each in parts if isinstance(each, type) and is_dataclass(each) and not written]
    return Declared(
        attribute=field.name,
        hint=_READ.get(hint, hint),
        default=default,
        takes_effect=effects[0] if effects else None,
        section=sections[0] if sections else None,
    )


def _metadata(hint: object) -> tuple[object, ...]:
    return getattr(hint, "__metadata__", ())


def parts_of(hint: object) -> Iterator[Any]:
    """Yield a hint and all that it is made of."""
    yield hint
    for part in get_args(hint):
        yield from parts_of(part)


def mapping_of(kind: type[DataclassInstance], handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the mapping that the file writes for a class of the spec: its fields by their names in the file."""
    return core_schema.typed_dict_schema(
        {
            name: core_schema.typed_dict_field(handler.generate_schema(field.hint), required=field.default is MISSING)
            for name, field in declared(kind).items()
        },
        extra_behavior="forbid",
    )


@dataclass(frozen=True)
class Section:
    """A section of which the protocol declares the fields."""

    elsewhere: frozenset[str] = frozenset()
    """Fields that are written in another section."""

    def __get_pydantic_core_schema__(
        self, source: type[DataclassInstance], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        names = {name: field.attribute for name, field in declared(source).items()}
        shape = mapping_of(source, handler)
        return core_schema.no_info_after_validator_function(
            lambda given: source(**{names[name]: value for name, value in given.items()}),
            shape,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda section: {n: getattr(section, a) for n, a in names.items() if n not in self.elsewhere},
                return_schema=shape,
            ),
        )


# What a value may be

MOST_RECORDS: Final = 2**63 - 1
"""Of anything that is counted: what Postgres can hold."""

_SHOWN_DIGITS: Final = 25


def within(number: int, least: int, most: int, path: Path, why: str = "") -> Iterator[Finding]:
    """Yield a finding if a number is too small or too large."""
    digits = str(number)
    shown = digits if len(digits) <= _SHOWN_DIGITS else f"a number of {len(digits)} digits"
    if number < least:
        yield Finding(path, f"is {shown}; it must be {least} or more{why}")
    elif number > most:
        yield Finding(path, f"is {shown}; it must be at most {most}")


def unstorable(texts: Mapping[str, str], path: Path) -> Iterator[Finding]:
    """Yield a finding for each text that the store can't hold."""
    for name, text in texts.items():
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in name + text):
            # Not the name as it is: it may be the part that can't be shown.
            shown = name.encode("ascii", "backslashreplace").decode().replace("\0", "\\0")
            yield Finding((*path, shown), "has a NUL or half of a character, which Postgres can't store")


def refused(make: Callable[[_T], object], value: _T, path: Path) -> Iterator[Finding]:
    """Yield a finding if a value is refused where it is made."""
    try:
        make(value)
    except ConfigurationError as error:
        yield Finding(path, error.message)
