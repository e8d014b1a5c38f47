"""A wire to a server that a test can break for those who use it, while all others still reach the server.

`freeze` keeps connections open and passes nothing, as a firewall that begins to drop packets; `sever` ends them and
refuses new ones, as a server that is gone. `mend` lets everything through again, also what was held.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Wire:
    """Passes TCP connections on to a port of the loopback address."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._passes = threading.Event()
        self._passes.set()
        self._refuses = False
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Pass nothing on; who connects is not answered either."""
        self._passes.clear()

    def sever(self) -> None:
        """End all connections, and every new one at once."""
        self._refuses = True
        self._end_all()

    def mend(self) -> None:
        """Pass everything on."""
        self._refuses = False
        self._passes.set()

    def close(self) -> None:
        """End everything."""
        self._listener.close()
        self._passes.set()
        self._end_all()

    def _end_all(self) -> None:
        with self._lock:
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._ends.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._passes.wait()
        with client, suppress(OSError):
            if self._refuses:
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                with self._lock:
                    self._ends |= {client, server}
                back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
                back.start()
                self._pass_on(client, server)
                back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    """Lend a wire to a port of the loopback address."""
    wire = Wire(port)
    try:
        yield wire
    finally:
        wire.close()
