"""The first record at or beyond a place in a log, with its timestamp: what a lag is made of.

Offsets alone don't say it: the last ones of a log may be markers of transactions, records of aborted ones, or gaps that
compaction left. So a consumer reads one record of each log. It assigns itself the partitions, joins no group and
commits nothing; what is in a record is not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from airflow_kcr.kafka.settings import make_consumer, one_record_settings
from airflow_kcr.protocol.observations import TimeAnswer
from airflow_kcr.protocol.values import GroupPartition, Offset

WITHIN: Final = timedelta(seconds=5)
"""How long all of it may take; what is not answered then is not known."""

MOST: Final = 200
"""How many logs are read."""

_POLL: Final = 0.2
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def first_records(
    user: Mapping[str, str], places: Mapping[GroupPartition, Offset], within: timedelta = WITHIN
) -> dict[GroupPartition, TimeAnswer]:
    """Return the first record at or beyond each place, as transactions are committed.

    A log that has none up to its last stable offset is answered with no offset. One of which that is not known is
    absent: beyond the first `MOST`, not answered in time, not there, or not to be read with these rights.

    Args:
        user: the client settings of the cluster, secrets filled in.
        places: from where on; the order says which come first.
        within: how long it may take.

    Raises:
        ConfigurationError: the client doesn't take the settings.
    """
    chosen = dict(list(places.items())[:MOST])
    if not chosen:
        return {}
    open_: dict[tuple[str, int], GroupPartition] = {(str(p.topic), p.partition): p for p in chosen}
    found: dict[GroupPartition, TimeAnswer] = {}
    consumer = make_consumer(one_record_settings(user), lambda _: None, lambda *_: None)
    until = time.monotonic() + within.total_seconds()
    try:
        consumer.assign([TopicPartition(*log, chosen[p]) for log, p in open_.items()])
        while open_ and time.monotonic() < until:
            found |= _answers(consumer, consumer.consume(MOST, _POLL), open_)
    except KafkaException:
        pass  # what was not answered is absent
    finally:
        consumer.close()
    return found


def _answers(
    consumer: Consumer, messages: Collection[Message], open_: dict[tuple[str, int], GroupPartition]
) -> dict[GroupPartition, TimeAnswer]:
    """Return what messages say of logs that are still open, and close those."""
    found: dict[GroupPartition, TimeAnswer] = {}
    for message in messages:
        log, error = (str(message.topic()), int(message.partition() or 0)), message.error()
        if log not in open_:
            continue
        if error is None:
            found[open_[log]] = TimeAnswer(offset=Offset(int(message.offset() or 0)), found=_time_of(message))
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (the library's own name for it)
            found[open_[log]] = TimeAnswer(offset=None)
        del open_[log]
        # Its other records are not read: they would keep those of other logs waiting.
        consumer.pause([TopicPartition(*log)])
    return found


def _time_of(message: Message) -> datetime | None:
    kind, milliseconds = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else _EPOCH + timedelta(milliseconds=milliseconds)
