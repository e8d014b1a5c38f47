"""Admin clients are let go in a thread of ours, never in one of the client library.

The library ends the whole process when a client is destroyed in that client's own thread. It calls back there with the
answers to what was asked, which is Python; so Python may collect its garbage there, and in the garbage may be the very
client: one that was dropped with a question open, by somebody whose exception still holds a traceback.
"""

from __future__ import annotations

import queue
import threading
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_DROPPED: Final[queue.SimpleQueue[AdminClient]] = queue.SimpleQueue()
_lock: Final = threading.Lock()
_threads: Final[list[threading.Thread]] = []
"""The thread that lets go, once it is needed; one that did not survive a fork is replaced."""


def in_our_thread(owner: object, client: AdminClient) -> weakref.finalize[[AdminClient], object]:
    """Keep a client until its owner is gone, and destroy it in a thread of ours then.

    Args:
        owner: holds the client; nobody else may, not even for the time of a call that can raise.
        client: the client.

    Returns:
        What to `detach` before the owner lets the client go itself.
    """
    with _lock:
        if not _threads or not _threads[-1].is_alive():
            thread = threading.Thread(target=_let_go, name="Kafka admin clients", daemon=True)
            thread.start()
            _threads[:] = [thread]
    kept = weakref.finalize(owner, _DROPPED.put, client)
    # A process that ends takes its clients with it.
    kept.atexit = False
    return kept


def _let_go() -> None:
    while True:
        # Bound to no name: it is gone before the next one is waited for.
        _DROPPED.get()
