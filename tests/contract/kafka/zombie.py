"""A member in a process of its own, to be stopped and continued: commands on standard input, news on standard output.

Arguments: bootstrap servers, group, topic, index, protocol.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from airflow_kcr.protocol.rules import GroupProtocol
from tests.contract.kafka.members import Member, Members


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    servers, group, topic, index, protocol = sys.argv[1:]
    members = Members({"bootstrap.servers": servers}, GroupProtocol(protocol))
    member: Member = members.make(group, int(index), topic=topic).joined()
    say(f"assigned {len(member.heard.holds)}")
    held = member.heard.holds
    for line in sys.stdin:
        if line.strip() == "commit":
            before = member.heard.count("assigned")
            answer = member.commit(dict.fromkeys(held, 99), timeout=timedelta(seconds=20))
            again = member.heard.count("assigned") - before
            say(f"{'done' if not answer.failure else 'failed'} {again} {member.heard.count('fenced')} {answer.failure}")
    members.end()


if __name__ == "__main__":
    main()
