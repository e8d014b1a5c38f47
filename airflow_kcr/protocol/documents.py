"""Values as JSON and back, by their declaration: store rows and events, plans, XComs, triggers, manifests, answers.

One rule for everything, so that a new class needs no code here:

- a dataclass is an object of its fields, those at their default left out;
- a `FullDocument` is for people's programs: an object of all that it shows, in which a partition stands as `group`,
  `topic` and `partition`;
- a union of dataclasses is such an object with the `kind` that each of them declares;
- a class with `from_text` is its `text`;
- whatever is keyed by partition is nested, `{group: {topic: {partition: value}}}`, and a set or ascending tuple of
  partitions is `{group: {topic: [partition, ...]}}`: ten thousand partitions repeat no name;
- a named tuple is the list of its fields;
- what is keyed by member is `{group: {index: value}}`;
- instants are ISO texts in UTC, durations whole microseconds, enumerations their value.

The hint decides how a document is read; nothing in the document names a class, but for that `kind`. What a class can't
be is refused by the class itself, with its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from airflow_kcr.protocol.offsets import OffsetMap, SeekEntry, SeekMap
from airflow_kcr.protocol.values import GroupId, GroupPartition, MemberId, Offset, TopicName, by_group

T = TypeVar("T")

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Codec:
    """How values of one type are written and read."""

    encode: Callable[[Any], object]
    decode: Callable[[Any], Any]


class FullDocument:
    """What people's programs read: a dataclass whose JSON has what it shows, also where that is at its default."""

    __slots__ = ()

    also: ClassVar[tuple[str, ...]] = ()
    """The properties that its JSON has after the fields; they are not read back."""

    def to_json(self) -> dict[str, object]:
        """Return it as the commands write it with `-o json` (docs/reference/cli.md)."""
        return cast("dict[str, object]", write(self, type(self)))


def write(value: object, hint: object) -> object:
    """Return `value`, which is of the type `hint`, as something that `json` writes as it is."""
    return codec_of(hint).encode(value)


def read(document: object, hint: type[T]) -> T:
    """Return the value that `write` has made the document of.

    Raises:
        ValueError: the document is not of that form.
        KcrError: it is, and the class refuses what it says.
    """
    try:
        return cast("T", codec_of(cast("Any", hint)).decode(document))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        name = getattr(hint, "__name__", str(hint))
        raise ValueError(f"a {name} that can't be read ({error}): {document!r:.200}") from error


def storable(text: str) -> str:
    """Return a text as Postgres can hold it: without NUL and lone surrogates, which it refuses."""
    if text.isprintable():  # nearly always, and then neither is in it
        return text
    return text.replace("\0", "�").encode("utf-8", "replace").decode("utf-8")


@cache
def codec_of(hint: object) -> Codec:
    """Return how values of the type `hint` are written and read.

    Raises:
        TypeError: no rule for the type; it is a mistake in the code, found by the first test that meets it.
    """
    known = _KNOWN.get(hint)
    if known is not None:
        return known
    if isinstance(hint, NewType):
        return codec_of(hint.__supertype__)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Codec(lambda value: value.value, hint)
    if isinstance(hint, type) and hasattr(hint, "from_text"):
        return Codec(lambda value: value.text, lambda document: hint.from_text(_text(document)))
    if isinstance(hint, type) and issubclass(hint, FullDocument):
        return _of_full(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _of_dataclass(hint)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return _of_named_tuple(hint)
    return _of_generic(hint)


def _of_generic(hint: object) -> Codec:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return _of_union(hint, arguments)
    if origin in {Mapping, dict}:
        return _of_mapping(arguments[0], codec_of(arguments[1]))
    if origin is frozenset and arguments == (GroupPartition,):
        return Codec(by_group, lambda document: frozenset(_ungrouped(document)))
    if origin is tuple and arguments == (GroupPartition, ...):
        return Codec(_encode_partitions, _decode_partitions)
    if origin is tuple and arguments[1:] == (...,):
        item = codec_of(arguments[0])
        return Codec(
            lambda value: [item.encode(v) for v in value],
            lambda document: tuple(item.decode(v) for v in _list(document)),
        )
    if origin in {list, set, frozenset}:
        item = codec_of(arguments[0])
        return Codec(
            lambda value: [item.encode(v) for v in (value if origin is list else sorted(value))],
            lambda document: origin(item.decode(v) for v in _list(document)),
        )
    raise TypeError(f"no codec is declared for {hint}")


def _of_named_tuple(cls: type) -> Codec:
    hints = get_type_hints(cls)
    parts = [codec_of(hint) for hint in hints.values()]

    def decode(document: list[object]) -> object:
        return cls(*(codec.decode(value) for codec, value in zip(parts, document, strict=True)))

    return Codec(lambda value: [codec.encode(held) for codec, held in zip(parts, value, strict=True)], decode)


def _of_union(hint: object, arguments: tuple[object, ...]) -> Codec:
    alternatives = [a for a in arguments if a is not NoneType]
    if len(alternatives) == 1:
        inner = codec_of(alternatives[0])
    elif all(hasattr(kind, "kind") for kind in alternatives):
        inner = _of_kinds({cast("Any", kind).kind: codec_of(kind) for kind in alternatives})
    else:
        raise TypeError(f"no codec is declared for {hint}")
    if len(alternatives) == len(arguments):
        return inner
    return Codec(
        lambda value: None if value is None else inner.encode(value),
        lambda document: None if document is None else inner.decode(document),
    )


def _of_kinds(codecs: Mapping[str, Codec]) -> Codec:
    def encode(value: Any) -> dict[str, object]:  # noqa: ANN401 (one of the kinds)
        return {"kind": value.kind, **cast("dict[str, object]", codecs[value.kind].encode(value))}

    def decode(document: Mapping[str, object]) -> object:
        return codecs[cast("str", document["kind"])].decode({n: v for n, v in document.items() if n != "kind"})

    return Codec(encode, decode)


def _of_dataclass(cls: type) -> Codec:
    hints = get_type_hints(cls)
    parts = [(f.name, codec_of(hints[f.name]), _default(f)) for f in fields(cls)]
    required = {name for name, _, default in parts if default is MISSING}
    by_name = {name: codec for name, codec, _ in parts}

    writers = [(name, codec.encode, default) for name, codec, default in parts]

    def encode(value: object) -> dict[str, object]:
        document: dict[str, object] = {}
        for name, write, default in writers:
            held = getattr(value, name)
            if held != default:
                document[name] = write(held)
        return document

    def decode(document: Mapping[str, object]) -> object:
        if not required <= document.keys():
            raise ValueError(f"{', '.join(sorted(required - document.keys()))} missing")
        return cls(**{name: by_name[name].decode(value) for name, value in document.items()})

    return Codec(encode, decode)


def _of_full(cls: type[FullDocument]) -> Codec:
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cast("Any", cls))]
    parts = [*((name, hints[name]) for name in names), *((name, _returned(cls, name)) for name in cls.also)]
    codecs = [(name, None if hint is GroupPartition else codec_of(hint)) for name, hint in parts]

    def encode(value: object) -> dict[str, object]:
        document: dict[str, object] = {}
        for name, codec in codecs:
            held = getattr(value, name)
            document |= held._asdict() if codec is None else {name: codec.encode(held)}
        return document

    def decode(document: Mapping[str, object]) -> object:
        read = {
            name: _partition(document) if codec is None else codec.decode(document[name])
            for name, codec in codecs
            if name in names and name in document
        }
        return cls(**read)

    return Codec(encode, decode)


def _returned(cls: type, name: str) -> object:
    """Return the type of a property."""
    return get_type_hints(getattr(cls, name).fget)["return"]


def _partition(document: Mapping[str, object]) -> GroupPartition:
    group, topic = _text(document["group"]), _text(document["topic"])
    return GroupPartition(GroupId(group), TopicName(topic), _whole(document["partition"]))


def _default(field: Any) -> object:  # noqa: ANN401 (dataclasses.Field is generic over the field's type)
    return field.default if field.default_factory is MISSING else field.default_factory()


def _of_mapping(key: object, value: Codec) -> Codec:
    if key is GroupPartition:
        return Codec(lambda held: _nested(held, value.encode), lambda document: dict(_flat(document, value.decode)))
    if key is MemberId:
        return Codec(lambda held: _by_member(held, value.encode), lambda document: _members(document, value.decode))
    keys = codec_of(key)
    if keys is _KNOWN[int]:
        return Codec(
            lambda held: {str(k): value.encode(v) for k, v in held.items()},
            lambda document: {int(k): value.decode(v) for k, v in document.items()},
        )
    if keys is not _TEXT:
        raise TypeError(f"no codec is declared for mappings by {key}")
    return Codec(
        lambda held: {keys.encode(k): value.encode(v) for k, v in held.items()},
        lambda document: {keys.decode(k): value.decode(v) for k, v in document.items()},
    )


def _nested(held: Mapping[GroupPartition, Any], encode: Callable[[Any], object]) -> dict[str, object]:
    groups: dict[str, dict[str, dict[str, object]]] = {}
    topics: dict[str, dict[str, object]] = {}
    partitions: dict[str, object] = {}
    last: tuple[str, str] | None = None
    for (group, topic, partition), value in held.items():
        if last is None or topic != last[1] or group != last[0]:  # neighbours are nearly always of one topic
            topics = groups.setdefault(group, {})
            partitions, last = topics.setdefault(topic, {}), (group, topic)
        partitions[str(partition)] = encode(value)
    return {**groups}


def _flat(
    document: Mapping[str, Mapping[str, Mapping[str, object]]], decode: Callable[[Any], Any]
) -> Iterable[tuple[GroupPartition, Any]]:
    for group, topics in document.items():
        for topic, partitions in topics.items():
            for partition, value in partitions.items():
                yield GroupPartition(GroupId(group), TopicName(topic), int(partition)), decode(value)


def _by_member(held: Mapping[MemberId, Any], encode: Callable[[Any], object]) -> dict[str, object]:
    groups: dict[str, dict[str, object]] = {}
    for member, value in held.items():
        groups.setdefault(member.group, {})[str(member.index)] = encode(value)
    return {**groups}


def _members(document: Mapping[str, Mapping[str, object]], decode: Callable[[Any], Any]) -> dict[MemberId, Any]:
    return {
        MemberId(GroupId(group), int(index)): decode(value)
        for group, indexes in document.items()
        for index, value in indexes.items()
    }


def _ungrouped(document: Mapping[str, Mapping[str, list[int]]]) -> Iterable[GroupPartition]:
    for group, topics in document.items():
        for topic, partitions in topics.items():
            for partition in partitions:
                yield GroupPartition(GroupId(group), TopicName(topic), _whole(partition))


def _encode_partitions(partitions: tuple[GroupPartition, ...]) -> object:
    if tuple(sorted(set(partitions))) == partitions:
        return by_group(partitions)
    return [list(p) for p in partitions]  # an order of its own has to be kept


def _decode_partitions(document: Any) -> tuple[GroupPartition, ...]:  # noqa: ANN401 (JSON)
    if isinstance(document, list):
        return tuple(GroupPartition(GroupId(g), TopicName(t), _whole(p)) for g, t, p in document)
    # JSONB keeps no order of its keys; the order of the values is the one that was stored.
    return tuple(sorted(_ungrouped(document)))


def _whole(document: object) -> int:
    if isinstance(document, bool) or not isinstance(document, int):
        raise ValueError(f"{document!r} is not a whole number")
    return document


def _text(document: object) -> str:
    if not isinstance(document, str):
        raise ValueError(f"{document!r} is not a text")
    return document


def _list(document: object) -> list[object]:
    if not isinstance(document, list):
        raise ValueError(f"{document!r} is not a list")
    return document


def _truth(document: object) -> bool:
    if not isinstance(document, bool):
        raise ValueError(f"{document!r} is not a truth value")
    return document


def _written_instant(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _instant(document: str) -> datetime:
    instant = datetime.fromisoformat(document)
    if instant.tzinfo is None:
        raise ValueError(f"{document} has no zone")
    return instant


_TEXT: Final = Codec(storable, _text)

_KNOWN: Final[dict[object, Codec]] = {
    str: _TEXT,
    int: Codec(int, _whole),
    bool: Codec(bool, _truth),
    datetime: Codec(_written_instant, _instant),
    timedelta: Codec(lambda span: span // _MICROSECOND, lambda document: timedelta(microseconds=_whole(document))),
    OffsetMap: Codec(
        lambda held: _nested(held, int),
        lambda document: OffsetMap((p, Offset(o)) for p, o in _flat(document, _whole)),
    ),
    SeekMap: Codec(
        lambda held: _nested(held, codec_of(SeekEntry).encode),
        lambda document: SeekMap(dict(_flat(document, codec_of(SeekEntry).decode))),
    ),
}
