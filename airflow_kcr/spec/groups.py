"""A group of a region's spec: its fields, and what must hold for them, by themselves and together.

The file's shape (names of fields, types) is checked before this, where it is read; these checks are for specs that a
program builds as well. The rules are those of docs/reference/spec.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import SerializerFunctionWrapHandler, model_serializer

from airflow_kcr.protocol.rules import EARLIEST, Assignor, Delivery, GroupProtocol, GroupRules, UpsertSink
from airflow_kcr.protocol.values import GroupId, TopicName, group_id, topic_name
from airflow_kcr.settings import KafkaSettings, broken_references, refusals, secrets_in
from airflow_kcr.spec.fields import (
    AssignorWord,
    DeliveryWord,
    Finding,
    Number,
    Path,
    ProtocolWord,
    Settings,
    Start,
    TakesEffect,
    Truth,
    refused,
    unstorable,
    within,
)
from airflow_kcr.spec.sinks import SinkKind, Sinks, sinks_findings

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PIPELINE: Final = re.compile(rf"(?:{_NAME}(?:\.{_NAME})*|[^:\s][^:]*\.py):{_NAME}")

MOST_MEMBERS: Final = 1000
"""Of a region. Each is a consumer, a lease and a row in every listing; Kafka's groups are far smaller than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """One consumer group of the region. It reads `topics`, or what matches `pattern` but not `exclude`."""

    group_id: Annotated[str, TakesEffect.REFUSED]
    """The consumer group; one group of one cluster is in exactly one region of a store."""

    pipeline: str
    """`module:function` or `path/to/file.py:function`."""

    topics: tuple[str, ...] = ()
    """Topics by name; each must exist."""

    pattern: str | None = None
    """Instead of `topics`: a regular expression that begins with `^` and leaves the name's end open."""

    exclude: tuple[str, ...] = ()
    """With `pattern`: topics by name that match and are not read."""

    members: Number = 1
    """How many members the group has, 1 to 1000 in a region; their indexes count from 0."""

    start: Start = EARLIEST
    """`earliest`, `latest`, `committed`, `timestamp:…` or `duration:…`; resolved once per partition."""

    delivery: DeliveryWord = Delivery.AT_LEAST_ONCE
    """What is promised about each record, and so what an automatic reset replays."""

    protocol: ProtocolWord = GroupProtocol.CLASSIC
    """Who decides which member owns what: `classic`, one of the members; `consumer`, the broker (KIP-848)."""

    assignor: AssignorWord | None = None
    """`range` or `roundrobin`; absent: `range` for one topic, else `roundrobin`. With `protocol: consumer`, `uniform`
    or `range`; absent: `uniform`."""

    kafka: Settings | None = None
    """Client settings if this group is on another cluster; they replace all of the region's."""

    kafka_conn_id: Annotated[str | None, TakesEffect.REFUSED] = None
    """The same, as a connection."""

    static_membership: Truth = True
    """Whether members keep their place in the group over a restart."""

    sinks: Sinks = ()
    """The pipeline's sinks, by their names in its context."""

    def __post_init__(self) -> None:
        for name in ("topics", "exclude"):
            given = getattr(self, name)  # a lone text, as no type checker would allow: else each letter is a topic
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        object.__setattr__(self, "kafka", settings_of(self.kafka))
        object.__setattr__(self, "sinks", tuple(sorted(self.sinks, key=lambda sink: sink.name)))

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the fields as the stored form has them: those that came later only if they say something."""
        unsaid: dict[str, Any] = {"sinks": ({},), "exclude": ((), []), "protocol": (GroupProtocol.CLASSIC,)}
        return {name: value for name, value in write(self).items() if value not in unsaid.get(name, ())}

    @property
    def effective_assignor(self) -> Assignor:
        """How partitions are spread: as asked, else `range`, and `roundrobin` where `range` would pile them up.

        `range` spreads each topic by itself, so the first members get the first partitions of every topic.
        """
        if self.assignor is not None:
            return self.assignor
        if self.protocol is GroupProtocol.CONSUMER:
            return Assignor.UNIFORM
        return Assignor.RANGE if self.pattern is None and len(self.topics) == 1 else Assignor.ROUNDROBIN

    def rules(self) -> GroupRules:
        """Return what the protocol decides by."""
        return GroupRules(
            group_id=GroupId(self.group_id),
            topics=tuple(TopicName(topic) for topic in self.topics),
            pattern=self.pattern,
            exclude=tuple(TopicName(topic) for topic in self.exclude),
            members=self.members,
            delivery=self.delivery,
            start=self.start,
            protocol=self.protocol,
            assignor=self.effective_assignor,
            static_membership=self.static_membership,
            upserts=tuple(
                UpsertSink(GroupId(self.group_id), sink.name, sink.table or "")
                for sink in self.sinks
                if not sink.mode.restorable
            ),
            holds_output=any(sink.kind is SinkKind.CUSTOM for sink in self.sinks),
        )


def settings_of(settings: Mapping[str, str] | None) -> KafkaSettings | None:
    """Return client settings as a spec holds them."""
    return None if settings is None else KafkaSettings(settings)


def group_findings(group: GroupSpec, path: Path) -> Iterator[Finding]:
    """Yield everything that is wrong with a group, but for what depends on its region."""
    yield from refused(group_id, group.group_id, (*path, "group_id"))
    yield from _subscription(group, path)
    if group.members < 1:
        yield Finding((*path, "members"), f"is {group.members}; a group has at least 1 member")
    else:
        yield from within(group.members, 1, MOST_MEMBERS, (*path, "members"))
    yield from unstorable({"pipeline": group.pipeline, "pattern": group.pattern or ""}, path)
    if not _PIPELINE.fullmatch(group.pipeline):
        yield Finding(
            (*path, "pipeline"),
            f"{group.pipeline!r} names no function: write module:function or path/to/file.py:function",
        )
    yield from _classic(group, path) if group.protocol is GroupProtocol.CLASSIC else _by_the_broker(group, path)
    yield from cluster_findings(group.kafka, group.kafka_conn_id, path)
    yield from sinks_findings(group.sinks, group.delivery, path)


def _classic(group: GroupSpec, path: Path) -> Iterator[Finding]:
    if group.assignor is Assignor.STICKY:
        yield Finding(
            (*path, "assignor"),
            "sticky works only in `kcr group assignment`: the client has no eager sticky assignor; use range or "
            "roundrobin",
        )
    if group.assignor is Assignor.UNIFORM:
        yield Finding(
            (*path, "assignor"),
            "uniform is the broker's; use range or roundrobin, or write protocol: consumer",
        )


def _by_the_broker(group: GroupSpec, path: Path) -> Iterator[Finding]:
    if group.assignor not in {None, Assignor.UNIFORM, Assignor.RANGE}:
        yield Finding(
            (*path, "assignor"),
            f"{group.assignor} is the classic protocol's; with protocol: consumer the broker has uniform and range",
        )
    if group.exclude:
        yield Finding(
            (*path, "exclude"),
            "works only with protocol: classic; the broker matches the pattern by itself, so write one that leaves "
            "these topics out",
        )


def _subscription(group: GroupSpec, path: Path) -> Iterator[Finding]:
    if group.topics and group.pattern is not None:
        yield Finding(path, "has both topics and pattern; a group reads one or the other")
    if not group.topics and group.pattern is None:
        yield Finding(path, "reads nothing: write topics or pattern")
    for place, topic in enumerate(group.topics):
        yield from refused(topic_name, topic, (*path, "topics", place))
        if topic in group.topics[:place]:
            yield Finding((*path, "topics", place), f"{topic!r} is there twice")
    yield from _excluded(group, (*path, "exclude"))
    if group.pattern is None:
        return
    if not group.pattern.startswith("^"):
        yield Finding(
            (*path, "pattern"), f"{group.pattern!r} doesn't begin with '^'; the client would take it for a topic's name"
        )
    try:
        re.compile(group.pattern)
    except re.error as error:
        yield Finding((*path, "pattern"), f"{group.pattern!r} is no regular expression: {error}")
        return
    for text in unlike(group.pattern):
        yield Finding((*path, "pattern"), text)


def _excluded(group: GroupSpec, path: Path) -> Iterator[Finding]:
    if group.exclude and group.pattern is None:
        yield Finding(path, "is there without pattern; a group with topics reads these and no others: leave it out")
        return
    for place, topic in enumerate(group.exclude):
        yield from refused(topic_name, topic, (*path, place))
        if topic in group.exclude[:place]:
            yield Finding((*path, place), f"{topic!r} is there twice")
        with suppress(re.error):  # the pattern has a finding of its own
            if re.search(group.pattern or "", topic) is None:
                yield Finding(
                    (*path, place), f"pattern doesn't match {topic!r}, so it is not read anyway; leave it out"
                )


def cluster_findings(kafka: Mapping[str, str] | None, conn_id: str | None, path: Path) -> Iterator[Finding]:
    """Yield what is wrong with how a cluster is reached."""
    if kafka is not None and conn_id is not None:
        yield Finding((*path, "kafka_conn_id"), "is there beside kafka; a cluster is reached by one or the other")
    if conn_id is not None and not conn_id.strip():
        yield Finding((*path, "kafka_conn_id"), "is empty")
    yield from unstorable({"kafka_conn_id": conn_id or ""}, path)
    if kafka is None:
        return
    here = (*path, "kafka")
    yield from unstorable(kafka, here)
    if not kafka.get("bootstrap.servers", "").strip():
        yield Finding((*here, "bootstrap.servers"), "is missing; write host:port, several with commas")
    for name, why in refusals(kafka):
        yield Finding((*here, name), why)
    for name in secrets_in(kafka):
        yield Finding(
            (*here, name),
            "is a secret, and specs are stored and shown: write ${NAME} and set NAME in the environment, or use "
            "kafka_conn_id",
        )
    for name in broken_references(kafka):
        yield Finding((*here, name), "has a '${' that begins no reference; write ${NAME}: letters, digits and '_'")


# Three programs read a pattern of topics: this one, the Kafka client and, in the consumer protocol, the broker. Each
# has its own regular expressions (Python's, POSIX extended, RE2/J). Only what all three read alike may be written: a
# region whose rules expect a topic that its members don't subscribe to would wait for an owner of it for ever.

_TOKEN: Final = re.compile(
    r"""
    (?P<escape>\\.?)
  | (?P<brackets>\[\^?\]?(?:\\.|[^\]\\])*\]?)
  | (?P<extension>\(\?[^)\w]*\w?)
  | (?P<quantifier>(?:[*+?]|\{[^}]*\})[*+?]*)
  | .
    """,
    re.VERBOSE | re.DOTALL,
)
_READ_ALIKE: Final = re.compile(r"\\[][\\^$.|?*+(){}wWbB-]")
_QUANTIFIERS: Final = re.compile(r"[*?]\??|\+|\{\d+(?:,\d*)?\}")
"""A lazy `*?` or `??` matches the same names; a lazy `+?` may match nothing to the client."""

_IN_BRACKETS: Final = re.compile(r"\\[^.]|\[[:.=]")


def unlike(pattern: str) -> Iterator[str]:
    """Yield what the client or the broker reads otherwise than the region does, each with what to write instead."""
    for token in _TOKEN.finditer(pattern):
        text = token.group()
        match token.lastgroup:
            case "escape" if not _READ_ALIKE.fullmatch(text):
                yield f"{text!r} isn't known to the Kafka client; write the characters, such as [0-9]"
            case "brackets" if found := _IN_BRACKETS.search(text, 1):
                yield (
                    f"{found.group()!r} in {text!r} means other characters to the Kafka client; write the characters "
                    "themselves, '-' as the last one"
                )
            case "extension":
                yield f"{text!r} isn't known to the Kafka client; write a plain group, or [Aa] for either case"
            case "quantifier" if not _QUANTIFIERS.fullmatch(text):
                yield f"{text!r} repeats otherwise in the Kafka client; write one of *, +, ?, {{n}}, {{n,}} or {{n,m}}"
