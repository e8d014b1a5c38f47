"""A proxy in front of a server that a test can break for those who use it, while all others still reach the server.

It knows nothing of Postgres' protocol but where a COMMIT is in the bytes.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

from sqlalchemy.engine import URL, make_url

from tests.support.endpoint import Relay, shut


class Break(Enum):
    """Where the next COMMIT is lost."""

    BEFORE = "before the server got it"
    AFTER = "after the server got it"


class BreakingProxy(Relay):
    """Passes connections on to a server.

    Args:
        target: the server's port of the loopback address, or the path of its Unix socket.
        port: where it listens; 0: anywhere.
    """

    def __init__(self, target: int | str, port: int = 0) -> None:
        self._target = target
        self._passes = threading.Event()
        self._passes.set()
        self._refuses = False
        self._next: Break | None = None
        self.breaks = 0
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(port)

    def break_next(self, broken: Break) -> None:
        """Lose the next COMMIT, of whichever connection."""
        self._next = broken

    def freeze(self) -> None:
        """Keep connections open and pass nothing on, as a firewall that drops packets; answer no new one."""
        self._passes.clear()

    def sever(self) -> None:
        """End all connections, and every new one at once, as a server that is gone."""
        self._refuses = True
        self._end_all()

    def mend(self) -> None:
        """Pass everything on again, also what was held."""
        self._refuses = False
        self._passes.set()

    def close(self) -> None:
        """Close everything; no client is let in any more."""
        super().close()
        self._passes.set()
        self._end_all()

    def _end_all(self) -> None:
        with self._lock:
            for end in self._ends:
                shut(end)
            self._ends.clear()

    def _serve(self, client: socket.socket) -> None:
        self._passes.wait()
        with client, suppress(OSError):
            if self._refuses:
                return
            with socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET) as server:
                server.connect(self._target if isinstance(self._target, str) else ("127.0.0.1", self._target))
                with self._lock:
                    self._ends |= {client, server}
                back = threading.Thread(target=self._answers, args=(server, client), daemon=True)
                back.start()
                self._requests(client, server)
                back.join()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self._passes.wait()
                if b"COMMIT\0" in data and (broken := self._next) is not None:
                    self._next = None
                    self.breaks += 1
                    # First no client hears the answer any more, then it may be given.
                    client.shutdown(socket.SHUT_RDWR)
                    if broken is Break.AFTER:
                        server.sendall(data)
                        _drain(server)
                    break
                server.sendall(data)
        shut(server)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self._passes.wait()
                client.sendall(data)
        shut(client)


def _drain(server: socket.socket) -> None:
    """Wait until the server has done what it was sent: it closes when it hears that the client is gone."""
    with suppress(OSError):
        server.sendall(b"X\0\0\0\4")
        while server.recv(65536):
            pass


class Way:
    """The way to a database, which can be barred for a while: a store that is away, and comes back where it was.

    Args:
        url: of the database, over a Unix socket.
    """

    def __init__(self, url: str) -> None:
        target = make_url(url)
        self._socket = f"{target.query['host']}/.s.PGSQL.5432"
        self._proxy = BreakingProxy(self._socket)
        self.port = self._proxy.port
        self.url = through(target, self.port)

    def bar(self) -> None:
        """Let no client through, and cut off those that are."""
        self._proxy.close()

    def open(self) -> None:
        """Let every client through again."""
        self._proxy = BreakingProxy(self._socket, self.port)


def through(target: URL, port: int) -> URL:
    """Return a database's URL by way of a proxy."""
    return target.set(host="127.0.0.1", port=port, query={"sslmode": "disable", "gssencmode": "disable"})


@contextmanager
def breaking_proxy(url: str) -> Iterator[tuple[BreakingProxy, URL]]:
    """A proxy in front of a database that is reached over a Unix socket, and the URL that goes through it."""
    target = make_url(url)
    proxy = BreakingProxy(f"{target.query['host']}/.s.PGSQL.5432")
    try:
        yield proxy, through(target, proxy.port)
    finally:
        proxy.close()


@contextmanager
def wire_to(port: int) -> Iterator[BreakingProxy]:
    """Lend a proxy to a port of the loopback address."""
    proxy = BreakingProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
