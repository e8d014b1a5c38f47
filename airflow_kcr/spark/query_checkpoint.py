"""Where a Structured Streaming query stands, from its checkpoint, which is only read; no Spark is needed for that.

Spark writes `offsets/N` before batch N, with the offsets at which it ends, and `commits/N` once its sink has it. So a
query stands at the offsets of its last committed batch, and what lies between these and the newest offsets was planned:
started perhaps, and in the sink perhaps. Before the first commit it stands at `sources/ID/0`, where each source began.

Both logs have a version in their first line. The second line of the offsets holds the batch's settings; the others have
an offset for each source, or `-`: in version 1 in the order of the sources, in version 2 with their names before a
colon. The offset of a Kafka source is JSON: `{"topic": {"0": 120}}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from airflow_kcr.api.adoption import ConsumerOffsets
from airflow_kcr.errors import ConfigurationError, NumberOutOfRange
from airflow_kcr.protocol.values import Offset, TopicName, TopicPartition, checked, few

VERSIONS: Final = ("v1", "v2")
NO_OFFSET: Final = "-"

Offsets = Mapping[TopicPartition, Offset]


class CheckpointFiles(Protocol):
    """The folder of a checkpoint, wherever it is."""

    @property
    def uri(self) -> str:
        """As the user has written it."""
        ...

    def names(self, path: str) -> Collection[str]:
        """Return the names of what is in a folder; none if there is no such folder."""
        ...

    def read(self, path: str) -> str | None:
        """Return a text; None: there is none."""
        ...


class LocalCheckpoint:
    """A checkpoint on a disk of this machine.

    Args:
        path: the query's `checkpointLocation`.
    """

    def __init__(self, path: str) -> None:
        self.uri = path.removeprefix("file://")

    def names(self, path: str) -> Collection[str]:
        """See `CheckpointFiles`."""
        try:
            return [one.name for one in (Path(self.uri) / path).iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigurationError(f"{self.uri}/{path} can't be read: {error.strerror}") from error

    def read(self, path: str) -> str | None:
        """See `CheckpointFiles`."""
        try:
            return (Path(self.uri) / path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"{self.uri}/{path} can't be read: {error.strerror}") from error


def query_offsets(files: CheckpointFiles) -> ConsumerOffsets:
    """Return where a query stands, by its checkpoint.

    Raises:
        ConfigurationError: it is no checkpoint, of a version that is not known, damaged, or none of its sources is
            Kafka's.
    """
    planned, committed = _numbers(files, "offsets"), _numbers(files, "commits")
    if not planned:
        raise ConfigurationError(
            f"{files.uri} has no offsets of a Structured Streaming query; give its checkpointLocation, the folder with "
            "offsets, commits and sources in it"
        )
    newest, done = max(planned), max(committed, default=None)
    if done is not None and done not in planned:
        raise ConfigurationError(f"{files.uri}: batch {done} is committed, and offsets/{done} is missing")
    ends = _batch(files, newest)
    if done is None:
        finished = {source: _began(files, source) for source in ends}
        last = "no batch committed"
    else:
        _require_version(files, f"commits/{done}")
        finished = _batch(files, done)
        last = f"batch {done}"
    kafka = {source for source in ends if any(_is_kafka(one.get(source, NO_OFFSET)) for one in (ends, finished))}
    if not kafka:
        raise ConfigurationError(f"{files.uri}: none of the query's {len(ends)} source(s) reads Kafka")
    starts, goals = _of(finished, kafka), _of(ends, kafka)
    stands, started = _combined(starts, min), _combined((*starts, *goals), max)
    return ConsumerOffsets(
        consumer=f"the Structured Streaming query of {files.uri} ({last})",
        offsets=stands,
        topics=frozenset(p.topic for part in (*starts, *goals) for p in part),
        started={p: o for p, o in started.items() if o != stands.get(p)},
        notes=tuple(_notes(files, done=done, newest=newest, others=sorted(ends.keys() - kafka), starts=starts)),
    )


def _notes(
    files: CheckpointFiles, *, done: int | None, newest: int, others: Collection[str], starts: Iterable[Offsets]
) -> Iterable[str]:
    if done is None or newest > done:
        yield (
            f"batch {newest} was planned and not committed: its sink may have all of it, a part or nothing. To finish "
            "it first, run the query once more with trigger(availableNow=True), and plan again"
        )
    known = list(starts)
    several = {p for part in known for p, o in part.items() if any(p in one and one[p] != o for one in known)}
    if several:
        yield f"several sources read {few(sorted(map(str, several)))}; the lower offset counts, the others' is repeated"
    if others:
        yield f"source {few(others)} of the query is not Kafka's, and the region does not read it"
    if files.names("state"):
        yield "the query keeps state (windows, joins, duplicates), which stays behind"


def _numbers(files: CheckpointFiles, folder: str) -> set[int]:
    # Beside the batches there are checksums and files that were never renamed.
    return {int(name) for name in files.names(folder) if name.isascii() and name.isdigit()}


def _batch(files: CheckpointFiles, number: int) -> dict[str, str]:
    """Return the offset of each source, as it is written."""
    path = f"offsets/{number}"
    version, _, *lines = _require_version(files, path)
    if version == "v1":
        return {str(source): line for source, line in enumerate(lines)}
    named = [line.partition(":") for line in lines]
    if not all(colon for _, colon, _ in named):
        raise ConfigurationError(f"{files.uri}/{path} is damaged: a line of version 2 has no source")
    return {source: offset for source, _, offset in named}


def _began(files: CheckpointFiles, source: str) -> str:
    """Return where a source began; a source that never said so has no offset."""
    text = files.read(f"sources/{source}/0")
    # The first line has the version, which is 1 in every Spark, behind a zero byte for readers of Spark 2.1.0.
    return NO_OFFSET if text is None else text.partition("\n")[2].strip() or NO_OFFSET


def _require_version(files: CheckpointFiles, path: str) -> list[str]:
    lines = (files.read(path) or "").splitlines()
    if len(lines) < 2:
        raise ConfigurationError(f"{files.uri}/{path} is missing or damaged")
    if lines[0] not in VERSIONS:
        known = " and ".join(VERSIONS)
        raise ConfigurationError(f"{files.uri}/{path} is of version {lines[0]:.20}; this reads {known}")
    return lines


def _of(batch: Mapping[str, str], kafka: Collection[str]) -> tuple[Offsets, ...]:
    return tuple(_kafka_offsets(text) for source, text in sorted(batch.items()) if source in kafka)


def _is_kafka(text: str) -> bool:
    return bool(_kafka_offsets(text))


def _kafka_offsets(text: str) -> Offsets:
    """Return the offsets of a Kafka source; of another source, or one without an offset, none."""
    try:
        document = json.loads(text)
        return {
            TopicPartition(TopicName(topic), int(number)): Offset(checked(offset, f"the offset of {topic}-{number}"))
            for topic, numbers in document.items()
            for number, offset in numbers.items()
        }
    except (ValueError, AttributeError, TypeError, NumberOutOfRange):
        return {}


def _combined(parts: Iterable[Offsets], choose: Callable[[Offset, Offset], Offset]) -> dict[TopicPartition, Offset]:
    found: dict[TopicPartition, Offset] = {}
    for part in parts:
        for partition, offset in part.items():
            found[partition] = choose(offset, found.get(partition, offset))
    return found
