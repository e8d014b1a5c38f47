"""A group consumer that is closed while its assignment waits to be taken, in a process of its own.

It may hang the calling process.

Arguments: bootstrap servers, group, topic, protocol. Closes when it is told to on standard input, and says what became
of it.
Where the hang would be is seen without it: whether the client asked for the assignment to be taken while it closed.
"""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_kcr.kafka.group_consumer import GroupConsumer
from airflow_kcr.kafka.settings import member_settings
from airflow_kcr.protocol.rules import GroupProtocol, GroupRules
from airflow_kcr.protocol.values import GroupId, MemberId, RegionName, TopicName
from tests.contract.kafka.members import SHORT

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition


class Watched(GroupConsumer):
    """A group consumer that remembers which thread each of its assignments was taken in."""

    def _on_assign(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        sys.stdout.write(f"taken in {threading.current_thread().name}\n")
        super()._on_assign(client, partitions)


def main() -> None:
    servers, group, topic, protocol = sys.argv[1:]
    rules = GroupRules(group_id=GroupId(group), topics=(TopicName(topic),), members=1, protocol=GroupProtocol(protocol))
    settings = member_settings(
        {"bootstrap.servers": servers},
        region=RegionName("r"),
        member=MemberId(rules.group_id, 0),
        rules=rules,
        timeouts=SHORT,
    )
    group_consumer = Watched(settings, rules.group_id)
    group_consumer.subscribe([topic])
    sys.stdout.write("subscribed\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(f"closed: {group_consumer.close(timedelta(seconds=10))}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
