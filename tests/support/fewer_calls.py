"""A broker that announces fewer calls, and older versions of them, as a service does that speaks Kafka's protocol.

A proxy in front of a real broker rewrites what that answers to `ApiVersions`; clients then make no other calls. All
else passes as it is.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from airflow_kcr.embedded.processes import free_port
from airflow_kcr.embedded.servers import new_cluster_id, start_broker
from tests.support.endpoint import Relay, shut
from tests.support.kafka import Kafka
from tests.support.tied import start_tied

EVENT_HUBS: Final[Mapping[int, int]] = {
    **{0: 5, 1: 6, 2: 2, 3: 5},  # Produce, Fetch, ListOffsets, Metadata
    **{8: 3, 9: 3, 10: 1},  # OffsetCommit, OffsetFetch, FindCoordinator
    **{
        11: 2,
        12: 1,
        13: 1,
        14: 1,
        15: 1,
        16: 1,
    },  # JoinGroup, Heartbeat, LeaveGroup, SyncGroup, Describe- and ListGroups
    **{18: 4, 23: 0},  # ApiVersions, OffsetForLeaderEpoch
}
"""The calls that Azure Event Hubs has announced, with the newest version of each, as users have shown its answer."""

OF_THE_TEST: Final[Mapping[int, int]] = {19: 7, 22: 5}
"""What a test makes topics and records with: CreateTopics, InitProducerId."""

_API_VERSIONS: Final = 18
_FLEXIBLE: Final = 3
"""The first version of that call whose answer has tags."""

_ENTRY: Final = struct.Struct(">hhh")


class _Proxy(Relay):
    """Passes connections on to a broker of the loopback address."""

    def __init__(self, calls: Mapping[int, int], target: int) -> None:
        self._calls, self._target = calls, target
        super().__init__()

    def _serve(self, client: socket.socket) -> None:
        asked: dict[int, int] = {}
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as broker:
            threading.Thread(target=self._requests, args=(client, broker, asked), daemon=True).start()
            while True:
                answer = _frame(broker)
                (number,) = struct.unpack_from(">i", answer)
                if number in asked:
                    answer = answer[:4] + self._fewer(answer[4:], asked.pop(number))
                _send(client, answer)

    def _requests(self, client: socket.socket, broker: socket.socket, asked: dict[int, int]) -> None:
        with suppress(OSError):
            while True:
                request = _frame(client)
                call, version, number = struct.unpack_from(">hhi", request)
                if call == _API_VERSIONS:
                    asked[number] = version
                _send(broker, request)
        shut(broker)

    def _fewer(self, body: bytes, version: int) -> bytes:
        """Return the answer to `ApiVersions` without what is not announced: error, calls, throttle time, tags."""
        is_flexible = version >= _FLEXIBLE
        count, at = _unsigned(body, 2) if is_flexible else (struct.unpack_from(">i", body, 2)[0] + 1, 6)
        kept: list[bytes] = []
        for _ in range(count - 1):
            call, oldest, newest = _ENTRY.unpack_from(body, at)
            at += _ENTRY.size + is_flexible
            if call in self._calls:
                kept.append(_ENTRY.pack(call, oldest, min(newest, self._calls[call])) + b"\0" * is_flexible)
        if is_flexible:
            # Fewer than 127 calls fit into one byte; tags tell features of a real broker.
            return body[:2] + bytes([len(kept) + 1]) + b"".join(kept) + body[at : at + 4] + b"\0"
        return body[:2] + struct.pack(">i", len(kept)) + b"".join(kept) + body[at:]


def _frame(source: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _bytes(source, 4))
    return _bytes(source, size)


def _bytes(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = source.recv(size - len(found))
        if not more:
            raise OSError
        found += more
    return found


def _send(to: socket.socket, frame: bytes) -> None:
    to.sendall(struct.pack(">i", len(frame)) + frame)


def _unsigned(body: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    number = shift = 0
    while True:
        byte = body[at]
        number, at, shift = number | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return number, at


@contextmanager
def broker_with(calls: Mapping[int, int], folder: Path) -> Iterator[Kafka]:
    """Lend a broker that announces these calls, and those of the test.

    Args:
        calls: the newest version of each.
        folder: for its data.
    """
    port = free_port()
    proxy = _Proxy({**calls, **OF_THE_TEST}, port)
    folder.mkdir(parents=True)
    plan = {"port": port, "controller_port": free_port(), "cluster_id": new_cluster_id()}
    (folder / "broker.json").write_text(json.dumps(plan))
    # Clients go on where the broker says that it is, and that is the proxy.
    advertised = {"advertised.listeners": f"BROKER://127.0.0.1:{proxy.port}"}
    broker = start_broker(folder, launch=start_tied, settings=advertised)
    try:
        yield Kafka(f"127.0.0.1:{proxy.port}")
    finally:
        broker.stop()
        proxy.close()
