"""A member of a streams group (KIP-1071), which Kafka 4.1 has behind two switches: one heartbeat, byte by byte.

Neither the Kafka client nor Kafka's console tools can join one, and a program of Kafka Streams would bring a database.
"""

from __future__ import annotations

import socket
from typing import Final

from airflow_kcr.embedded.processes import happened

SETTINGS: Final = {
    "group.coordinator.rebalance.protocols": "classic,consumer,streams",
    "unstable.api.versions.enable": "true",
    "unstable.feature.versions.enable": "true",
}
"""Of brokers that have such groups, once the feature is switched on too."""

FEATURE: Final = "streams.version=1"
WITHIN: Final = 30.0
_HEARTBEAT: Final = 88
_RECEIVED: Final = 4096
_NONE, _EMPTY, _NO_TAGS = b"\x00", b"\x01", b"\x00"
_NO_STRUCT: Final = b"\xff"
_ZERO: Final = bytes(4)


def join_streams_group(bootstrap_servers: str, group: str, topic: str) -> None:
    """Have a member join a streams group that reads a topic, and say nothing more; the group stays.

    Args:
        bootstrap_servers: of one broker, which coordinates every group.
        group: its id.
        topic: which its one subtopology reads.
    """
    subtopology = _text("0") + b"\x02" + _text(topic) + _EMPTY * 5 + _NO_TAGS
    body = (
        _text(group)
        + _text("a-member")
        + _ZERO  # its epoch: it joins
        + _ZERO
        + _NONE * 2  # no static id, no rack
        + (60_000).to_bytes(4)
        + b"\x01"  # a topology: its epoch and one subtopology
        + _ZERO
        + b"\x02"
        + subtopology
        + _NO_TAGS
        + _EMPTY * 3  # no tasks of any kind
        + _text("a-process")
        + _NO_STRUCT
        + _NONE * 3
        + b"\x00"  # no shutdown
        + _NO_TAGS
    )
    header = _HEARTBEAT.to_bytes(2) + bytes(2) + (1).to_bytes(4) + b"\xff\xff" + _NO_TAGS
    # A new broker refuses until it has loaded its groups.
    seen: list[int] = []

    def is_in() -> bool:
        seen.append(_error_of(bootstrap_servers, header + body))
        return seen[-1] == 0

    if not happened(is_in, within=WITHIN):
        raise TimeoutError(f"no streams group was made within {WITHIN:g} s; the last error was {seen[-1:]}")


def _error_of(bootstrap_servers: str, request: bytes) -> int:
    host, _, port = bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WITHIN) as broker:
        broker.sendall(len(request).to_bytes(4) + request)
        answer = broker.recv(_RECEIVED)
    # Behind length, correlation id, tags and throttle time.
    return int.from_bytes(answer[13:15], signed=True) if answer else -1


def _text(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()
