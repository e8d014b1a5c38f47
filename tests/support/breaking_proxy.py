"""A proxy in front of Postgres that can break one connection at its next COMMIT: before the server got it, or after.

It knows nothing of the protocol but where a COMMIT is in the bytes. Everything else passes unchanged.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

from sqlalchemy.engine import URL, make_url


class Break(Enum):
    """Where the next COMMIT is lost."""

    BEFORE = "before the server got it"
    AFTER = "after the server got it"


class BreakingProxy:
    """Passes connections on to a Unix socket.

    Args:
        target: the path of the server's socket.
        port: where it listens; 0: anywhere.
    """

    def __init__(self, target: str, port: int = 0) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._next: Break | None = None
        self.breaks = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def break_next(self, broken: Break) -> None:
        """Lose the next COMMIT, of whichever connection."""
        self._next = broken

    def close(self) -> None:
        """Close everything; no client is let in any more."""
        _shut(self._listener)  # closed alone, it would take one more: who waits in accept keeps it open
        for held in self._sockets:
            _shut(held)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._sockets += [client, server]
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=_pass_on, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
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
        _shut(server)


def _drain(server: socket.socket) -> None:
    """Wait until the server has done what it was sent: it closes when it hears that the client is gone."""
    with suppress(OSError):
        server.sendall(b"X\0\0\0\4")
        while server.recv(65536):
            pass


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    _shut(target)


def _shut(held: socket.socket) -> None:
    with suppress(OSError):
        held.shutdown(socket.SHUT_RDWR)
    held.close()


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
        self.url = target.set(host="127.0.0.1", port=self.port, query={"sslmode": "disable", "gssencmode": "disable"})

    def bar(self) -> None:
        """Let no client through, and cut off those that are."""
        self._proxy.close()

    def open(self) -> None:
        """Let every client through again."""
        self._proxy = BreakingProxy(self._socket, self.port)


@contextmanager
def breaking_proxy(url: str) -> Iterator[tuple[BreakingProxy, URL]]:
    """A proxy in front of a database that is reached over a Unix socket, and the URL that goes through it."""
    target = make_url(url)
    folder = target.query["host"]
    if not isinstance(folder, str):
        raise TypeError(folder)
    proxy = BreakingProxy(f"{folder}/.s.PGSQL.5432")
    through = target.set(host="127.0.0.1", port=proxy.port, query={"sslmode": "disable", "gssencmode": "disable"})
    try:
        yield proxy, through
    finally:
        proxy.close()
