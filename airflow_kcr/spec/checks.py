"""What must hold between the fields of a spec, and for each of them; everything that doesn't is found at once.

The file's shape (names of fields, types) is checked before this, where it is read; these checks are for specs that a
program builds as well. The rules are those of docs/reference/spec.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.rules import Assignor, CheckpointMode, GroupProtocol
from airflow_kcr.protocol.timeouts import check
from airflow_kcr.protocol.values import group_id, region_name, topic_name
from airflow_kcr.schedules import CronSchedule, Every
from airflow_kcr.settings import BROKERS_OWN, broken_references, refusals, secrets_in
from airflow_kcr.spec.fields import Finding, Path
from airflow_kcr.spec.sinks import sinks_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_kcr.spec.model import BatchSpec, CheckpointSpec, GroupSpec, HistorySpec, RegionSpec


_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PIPELINE: Final = re.compile(rf"(?:{_NAME}(?:\.{_NAME})*|[^:\s][^:]*\.py):{_NAME}")
_T = TypeVar("_T")
_ZERO: Final = timedelta(0)
MOST_RECORDS: Final = 2**63 - 1
MOST_MEMBERS: Final = 1000
"""Of a region. Each is a consumer, a lease and a row in every listing; Kafka's groups are far smaller than that."""

_SHOWN_DIGITS: Final = 25


def findings_of(spec: RegionSpec) -> Iterator[Finding]:
    """Yield everything that is wrong with `spec`, in the order of its fields."""
    yield from _refused(region_name, spec.region, ("region",))
    yield from _cluster(spec.kafka, spec.kafka_conn_id, ())
    yield from _groups(spec)
    yield from _checkpoint(spec.checkpoint)
    yield from _batch(spec.batch)
    yield from _timeouts(spec)
    yield from _within(spec.max_failures, 0, MOST_RECORDS, ("max_failures",))
    yield from _within(
        spec.retention.keep, 1, MOST_RECORDS, ("retention", "keep"), ": the restore point is always kept"
    )
    if spec.retention.max_age is not None and spec.retention.max_age <= _ZERO:
        yield Finding(("retention", "for"), "must be longer than 0; leave it out to retire nothing by age")
    yield from _history(spec.history)


def _history(history: HistorySpec) -> Iterator[Finding]:
    if history.keep <= _ZERO:
        yield Finding(("history", "keep"), "must be longer than 0, or forever")
    archive = history.archive
    if archive is None:
        return
    if "\0" in archive or not PurePosixPath(archive).is_absolute():
        yield Finding(("history", "archive"), "must be the absolute path of a folder: /srv/kcr-archive")
    elif ".." in PurePosixPath(archive).parts:
        yield Finding(("history", "archive"), "must not have `..` in it; write the folder's own path")


def _within(number: int, least: int, most: int, path: Path, why: str = "") -> Iterator[Finding]:
    digits = str(number)
    shown = digits if len(digits) <= _SHOWN_DIGITS else f"a number of {len(digits)} digits"
    if number < least:
        yield Finding(path, f"is {shown}; it must be {least} or more{why}")
    elif number > most:
        yield Finding(path, f"is {shown}; it must be at most {most}")


def _groups(spec: RegionSpec) -> Iterator[Finding]:
    if not spec.groups:
        yield Finding(("groups",), "is empty; a region has at least one group")
    members = sum(group.members for group in spec.groups if 1 <= group.members <= MOST_MEMBERS)
    if members > MOST_MEMBERS:
        yield Finding(("groups",), f"have {members} members together; a region has at most {MOST_MEMBERS}")
    first: dict[str, int] = {}
    folders: set[str] = set()
    for index, group in enumerate(spec.groups):
        path: Path = ("groups", index)
        if group.group_id in first:
            yield Finding(
                (*path, "group_id"),
                f"{group.group_id!r} is that of groups[{first[group.group_id]}] too; each group of a region has its "
                "own id, also on another cluster",
            )
        first.setdefault(group.group_id, index)
        yield from _group(group, path)
        yield from _brokers_settings(spec, group, path)
        for sink in group.sinks:
            folder = "" if sink.path is None else sink.path.rstrip("/")
            if folder and folder in folders:
                yield Finding(
                    (*path, "sinks", sink.name, "path"), "is another sink's too; each has a folder of its own"
                )
            folders.add(folder)
        if (spec.kafka, spec.kafka_conn_id, group.kafka, group.kafka_conn_id) == (None, None, None, None):
            yield Finding(path, "has no cluster: write kafka or kafka_conn_id, for the region or for this group")


def _group(group: GroupSpec, path: Path) -> Iterator[Finding]:
    yield from _refused(group_id, group.group_id, (*path, "group_id"))
    yield from _subscription(group, path)
    if group.members < 1:
        yield Finding((*path, "members"), f"is {group.members}; a group has at least 1 member")
    else:
        yield from _within(group.members, 1, MOST_MEMBERS, (*path, "members"))
    yield from _unstorable({"pipeline": group.pipeline, "pattern": group.pattern or ""}, path)
    if not _PIPELINE.fullmatch(group.pipeline):
        yield Finding(
            (*path, "pipeline"),
            f"{group.pipeline!r} names no function: write module:function or path/to/file.py:function",
        )
    yield from _classic(group, path) if group.protocol is GroupProtocol.CLASSIC else _by_the_broker(group, path)
    yield from _cluster(group.kafka, group.kafka_conn_id, path)
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


def _brokers_settings(spec: RegionSpec, group: GroupSpec, path: Path) -> Iterator[Finding]:
    """Find client settings that the client refuses where the broker decides."""
    if group.protocol is GroupProtocol.CLASSIC:
        return
    where: Path = ("kafka",) if group.kafka is None else (*path, "kafka")
    given = (spec.kafka if group.kafka_conn_id is None else {}) if group.kafka is None else group.kafka
    for name, there in BROKERS_OWN.items():
        if name in (given or {}):
            yield Finding(
                (*where, name),
                f"is the broker's with protocol: consumer ({group.group_id}); set {there} of the group or of the "
                "broker instead",
            )


def _subscription(group: GroupSpec, path: Path) -> Iterator[Finding]:
    if group.topics and group.pattern is not None:
        yield Finding(path, "has both topics and pattern; a group reads one or the other")
    if not group.topics and group.pattern is None:
        yield Finding(path, "reads nothing: write topics or pattern")
    for place, topic in enumerate(group.topics):
        yield from _refused(topic_name, topic, (*path, "topics", place))
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
        yield from _refused(topic_name, topic, (*path, place))
        if topic in group.exclude[:place]:
            yield Finding((*path, place), f"{topic!r} is there twice")
        with suppress(re.error):  # the pattern has a finding of its own
            if re.search(group.pattern or "", topic) is None:
                yield Finding(
                    (*path, place), f"pattern doesn't match {topic!r}, so it is not read anyway; leave it out"
                )


def _cluster(kafka: Mapping[str, str] | None, conn_id: str | None, path: Path) -> Iterator[Finding]:
    if kafka is not None and conn_id is not None:
        yield Finding((*path, "kafka_conn_id"), "is there beside kafka; a cluster is reached by one or the other")
    if conn_id is not None and not conn_id.strip():
        yield Finding((*path, "kafka_conn_id"), "is empty")
    yield from _unstorable({"kafka_conn_id": conn_id or ""}, path)
    if kafka is None:
        return
    here = (*path, "kafka")
    yield from _unstorable(kafka, here)
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


def _checkpoint(checkpoint: CheckpointSpec) -> Iterator[Finding]:
    given = [name for name in ("every", "cron", "records") if getattr(checkpoint, name) is not None]
    if len(given) > 1:
        yield Finding(("checkpoint",), f"has {' and '.join(given)}; at most one of every, cron and records")
    if checkpoint.request is CheckpointMode.DAG_RUN and checkpoint.every is None and checkpoint.cron is None:
        yield Finding(
            ("checkpoint", "request"),
            "dag_run waits at scheduled boundaries, and there are none; write every or cron, or auto",
        )
    yield from _schedule(checkpoint)
    if checkpoint.records is not None:
        yield from _within(checkpoint.records, 1, MOST_RECORDS, ("checkpoint", "records"))
    if checkpoint.grace < _ZERO:
        yield Finding(("checkpoint", "grace"), "must not be negative")


def _schedule(checkpoint: CheckpointSpec) -> Iterator[Finding]:
    if checkpoint.every is not None:
        yield from _refused(Every, checkpoint.every, ("checkpoint", "every"))
    yield from _refused(lambda zone: CronSchedule("@daily", zone), checkpoint.timezone, ("checkpoint", "timezone"))
    if checkpoint.cron is not None:
        yield from _refused(CronSchedule, checkpoint.cron, ("checkpoint", "cron"))
    elif checkpoint.timezone != "UTC":
        yield Finding(
            ("checkpoint", "timezone"),
            f"{checkpoint.timezone!r} has no effect without cron; `every` is aligned in UTC. Leave it out",
        )


def _batch(batch: BatchSpec) -> Iterator[Finding]:
    if batch.target <= _ZERO:
        yield Finding(("batch", "target"), "must be longer than 0")
    if batch.target >= batch.timeout:
        yield Finding(
            ("batch", "target"),
            f"is {batch.target.total_seconds():g} s and batch.timeout is {batch.timeout.total_seconds():g} s; a batch "
            "that takes as long as it should would already count as hung",
        )
    if batch.linger < _ZERO:
        yield Finding(("batch", "linger"), "must not be negative; 0s takes at once whatever there is")
    yield from _within(batch.min_records, 1, MOST_RECORDS, ("batch", "min_records"))
    yield from _within(batch.max_records, 1, MOST_RECORDS, ("batch", "max_records"))
    if 1 <= batch.max_records < batch.min_records <= MOST_RECORDS:
        yield Finding(
            ("batch", "min_records"), f"is {batch.min_records}, above max_records, which is {batch.max_records}"
        )


def _timeouts(spec: RegionSpec) -> Iterator[Finding]:
    # Both kinds of membership may be in one region, and most clashes are the same for both.
    kinds = sorted({group.static_membership for group in spec.groups}, reverse=True) or [True]
    clashes = dict.fromkeys(clash for static in kinds for clash in check(spec.timeouts, static=static))
    for clash in clashes:
        section, dot, name = clash.setting.partition(".")
        path: Path = (section, name) if dot and section in {"timeouts", "batch"} else ("timeouts",)
        yield Finding(path, str(clash))


def _unstorable(texts: Mapping[str, str], path: Path) -> Iterator[Finding]:
    for name, text in texts.items():
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in name + text):
            # Not the name as it is: it may be the part that can't be shown.
            shown = name.encode("ascii", "backslashreplace").decode().replace("\0", "\\0")
            yield Finding((*path, shown), "has a NUL or half of a character, which Postgres can't store")


def _refused(make: Callable[[_T], object], value: _T, path: Path) -> Iterator[Finding]:
    try:
        make(value)
    except ConfigurationError as error:
        yield Finding(path, error.message)


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
