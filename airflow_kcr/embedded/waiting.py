"""Waiting for a condition, and ports that are free."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable

PAUSE = 0.02

# Below the ports that systems hand to outgoing connections. A client that reconnects to a stopped server could
# otherwise be given that server's own port, and the server could not come back.
FIRST_PORT = 20_000
PORTS = 10_000

_given: set[int] = set()


def happened(condition: Callable[[], bool], *, within: float, pause: float = PAUSE) -> bool:
    """Wait until the condition holds, at most `within` seconds; return whether it came to hold.

    Args:
        condition: asked again and again.
        within: seconds.
        pause: seconds between two questions, longer where each costs somebody else something.
    """
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
    return True


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on, another one at each call."""
    while True:
        port = FIRST_PORT + random.SystemRandom().randrange(PORTS)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do it: connections of a former server that are still closing don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def accepts(port: int) -> bool:
    """Return whether somebody accepts connections on this port of the loopback address."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
