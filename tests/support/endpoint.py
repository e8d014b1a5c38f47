"""Servers on free ports of this machine, each with a thread of its own for as long as its context lasts."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import NamedTuple, Self


class Served(BaseServer):
    """A server that serves while its context lasts."""

    def __enter__(self) -> Self:
        self._serving = threading.Thread(target=self.serve_forever, daemon=True)
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._serving.join()


class Request(NamedTuple):
    """What a client sends."""

    method: str
    path: str
    headers: Message
    body: bytes


class Answer(NamedTuple):
    """What it gets."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"


class Endpoint(Served, ThreadingHTTPServer):
    """Answers requests over HTTP.

    Args:
        answer: makes an answer, in a thread of the request; None: there never is one.
    """

    daemon_threads = True

    def __init__(self, answer: Callable[[Request], Answer | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        """Where requests go to."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        super().__exit__()


class Receiver(Endpoint):
    """Keeps what it is sent.

    Args:
        status: of its answers; None: it never answers.
        body: of its answers.
    """

    def __init__(self, status: int | None = 200, body: bytes = b"ok") -> None:
        super().__init__(self._take)
        self.received: list[bytes] = []
        self._answer = None if status is None else Answer(status, body)

    def _take(self, request: Request) -> Answer | None:
        self.received.append(request.body)
        return self._answer


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        answer = self.server.answer(Request(self.command, self.path, self.headers, body))
        if answer is None:
            self.server.is_over.wait()
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _do

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Relay(ABC):
    """Takes connections at a port of the loopback address, each in a thread of its own, until it is closed.

    Args:
        port: where it listens; 0: anywhere.
    """

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @abstractmethod
    def _serve(self, client: socket.socket) -> None:
        """Talk with a client."""

    def close(self) -> None:
        """Let no client in any more."""
        shut(self._listener)  # closed alone, it would take one more: who waits in accept keeps it open
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()


def shut(held: socket.socket) -> None:
    """End a connection for both ends; who waits for it hears that."""
    with suppress(OSError):
        held.shutdown(socket.SHUT_RDWR)
