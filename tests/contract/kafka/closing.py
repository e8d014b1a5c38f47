"""A seat that is closed while its assignment waits to be taken, in a process of its own: it may hang whoever does that.

Arguments: bootstrap servers, group, topic. Closes when it is told to on standard input, and says what became of it.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from airflow_kcr.kafka.seat import Seat
from airflow_kcr.kafka.settings import member_settings
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.values import GroupId, MemberId, RegionName, TopicName
from tests.contract.kafka.members import SHORT


def main() -> None:
    servers, group, topic = sys.argv[1:]
    rules = GroupRules(group_id=GroupId(group), topics=(TopicName(topic),), members=1)
    settings = member_settings(
        {"bootstrap.servers": servers},
        region=RegionName("r"),
        member=MemberId(rules.group_id, 0),
        rules=rules,
        timeouts=SHORT,
    )
    seat = Seat(settings, rules.group_id)
    seat.subscribe([topic])
    sys.stdout.write("subscribed\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(f"closed: {seat.close(timedelta(seconds=10))}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
