"""What stands between clients and a broker on other people's networks: a box that forgets idle connections, and names.

Kafka's clients go where the broker says that it is, so a broker here says that it is behind the box, or has a name.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from tests.support.endpoint import Relay, shut
from tests.support.kafka_cluster import ClusterBroker

LOOKS_EVERY: Final = 0.1


class Forgetting(Enum):
    """What happens to a connection that was idle for too long."""

    CLOSED = "both ends hear that it is closed"
    SILENT = "what is sent is taken, and lost, and no end hears of it"


@dataclass(slots=True)
class _Connection:
    client: socket.socket
    server: socket.socket
    used: float = field(default_factory=time.monotonic)
    forgotten: bool = False
    closed: bool = False

    def pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.forgotten:
                    continue
                self.used = time.monotonic()
                target.sendall(data)
        self.close()

    def close(self) -> None:
        self.closed = True
        for end in (self.client, self.server):
            shut(end)
            end.close()


class Box(Relay):
    """Passes connections on, and forgets each that was idle for too long, as load balancers and NAT gateways do.

    Args:
        target: the port that it passes on to.
        forgetting: how.
        idle: seconds.
    """

    def __init__(self, target: int, forgetting: Forgetting, idle: float) -> None:
        self._target, self._forgetting, self._idle = target, forgetting, idle
        self.forgot = 0
        self._connections: list[_Connection] = []
        self._over = threading.Event()
        super().__init__()
        threading.Thread(target=self._forget, daemon=True).start()

    @property
    def passing(self) -> int:
        """How many connections are open at both ends."""
        return sum(not one.closed for one in self._connections)

    def close(self) -> None:
        """Let no client through any more."""
        self._over.set()
        super().close()
        for one in self._connections:
            one.close()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        one = _Connection(client, server)
        self._connections.append(one)
        threading.Thread(target=one.pass_on, args=(server, client), daemon=True).start()
        one.pass_on(client, server)

    def _forget(self) -> None:
        while not self._over.wait(LOOKS_EVERY):
            for one in self._connections:
                if not (one.forgotten or one.closed) and time.monotonic() - one.used > self._idle:
                    one.forgotten = True
                    self.forgot += 1
                    if self._forgetting is Forgetting.CLOSED:
                        one.close()


@contextmanager
def box_before(broker: ClusterBroker, forgetting: Forgetting, idle: float) -> Iterator[Box]:
    """Lend a box before the second listener of a broker, which is started anew for that."""
    box = Box(broker.sasl_port, forgetting, idle)
    try:
        advertise(broker, SASL=f"127.0.0.1:{box.port}")
        yield box
    finally:
        box.close()


def advertise(broker: ClusterBroker, **listeners: str) -> None:
    """Have a broker tell clients that it is at other addresses, host and port by listener; it is started anew."""
    rewrite(
        broker,
        {
            "advertised.listeners": ",".join(
                f"{name}://{address}" for name, address in ({"BROKER": broker.address} | listeners).items()
            )
        },
    )


def settings_of(broker: ClusterBroker) -> Path:
    """Return the file of a broker's settings."""
    return broker.folder / "server.properties"


def rewrite(broker: ClusterBroker, settings: Mapping[str, str]) -> None:
    """Start a broker anew with other settings."""
    broker.stop()
    path = settings_of(broker)
    kept = [line for line in path.read_text().splitlines() if line.split("=", 1)[0] not in settings]
    path.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in settings.items())]) + "\n")
    broker.start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of hosts as processes see them that are started so: a file of hosts of their own.

    Args:
        file: the file.
    """

    file: Path

    @property
    def command(self) -> tuple[str, ...]:
        """What is written before a command, so that it sees these names. Needs the right to mount."""
        mounted = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return ("unshare", "--mount", "sh", "-c", mounted, str(self.file))

    def move(self, name: str, address: str) -> None:
        """Have a name mean this address, and no other, from now on."""
        self.file.write_text(f"127.0.0.1 localhost\n{address} {name}\n")
