"""A mail server that keeps what it is sent, or refuses every recipient."""

from __future__ import annotations

import socketserver
from email import message_from_string
from email.message import Message
from email.policy import default

from tests.support.endpoint import Served


class MailServer(Served, socketserver.ThreadingTCPServer):
    """Speaks as much SMTP as a client needs that sends one message at a time, on a free port of this machine.

    Args:
        refuses: whether no recipient is known here.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Dialogue)
        self.refuses = refuses
        self.received: list[Message] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])


class _Dialogue(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self._say("220 ready")
        for line in iter(self.rfile.readline, b""):
            match line.decode().split(maxsplit=1)[0].upper():
                case "RCPT" if self.server.refuses:
                    self._say("550 no such user here")
                case "DATA":
                    self._say("354 go on")
                    self._receive()
                    self._say("250 kept")
                case "QUIT":
                    self._say("221 bye")
                    return
                case _:
                    self._say("250 well")

    def _receive(self) -> None:
        lines = iter(lambda: self.rfile.readline().decode(), ".\r\n")
        self.server.received.append(message_from_string("".join(lines), policy=default))

    def _say(self, answer: str) -> None:
        self.wfile.write(f"{answer}\r\n".encode())
