"""An HTTP endpoint that keeps what it is sent, refuses it, or never answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class HttpReceiver(ThreadingHTTPServer):
    """Takes posts, on a free port of this machine.

    Args:
        answers: with which status; None: it takes what is sent, and never answers.
        body: of the answers.
    """

    daemon_threads = True

    def __init__(self, answers: int | None, body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.answers, self.body = answers, body
        self.received: list[bytes] = []
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        """Where posts go to."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Request(BaseHTTPRequestHandler):
    server: HttpReceiver

    def do_POST(self) -> None:
        """Take a post."""
        self.server.received.append(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.answers is None:
            self.server.is_over.wait()
            return
        self.send_response(self.server.answers)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as the original)
        """Say nothing."""


@contextmanager
def http_receiver(answers: int | None = 200, body: bytes = b"ok") -> Iterator[HttpReceiver]:
    """Lend a running endpoint."""
    server = HttpReceiver(answers, body)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()
