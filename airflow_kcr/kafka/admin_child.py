"""The child process that makes admin calls, and nothing else (`admin_process` is its other end).

Its standard input is a socket. The first message has the client settings, which therefore are never seen in arguments
or the environment; every other one is a question (`questions`), answered by one message with its number. Questions are
answered side by side, each as soon as it can be. The end of the input ends the child.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Final, TypeAlias, cast

from airflow_kcr.errors import KcrError
from airflow_kcr.kafka.admin_process import Answer, Request
from airflow_kcr.kafka.calls import AdminCalls
from airflow_kcr.settings import KafkaSettings

Question: TypeAlias = Callable[[AdminCalls, timedelta], object]

AT_ONCE: Final = 256
"""Questions that are answered at the same time; a process has far fewer threads that ask."""


def serve(connection: Connection[Answer, Request]) -> None:
    """Answer questions until there are no more, and all are answered."""
    first, settings, _ = connection.recv()
    try:
        calls = AdminCalls(cast("KafkaSettings", settings))
    except KcrError as error:
        connection.send((first, None, error))
        return
    connection.send((first, None, None))
    turn = threading.Lock()

    def answer(number: int, question: Question, within: timedelta) -> None:
        found = _answer(number, question, calls, within)
        with turn:
            connection.send(found)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        while True:
            try:
                number, question, seconds = connection.recv()
            except EOFError:
                return
            pool.submit(answer, number, cast("Question", question), timedelta(seconds=seconds))


def _answer(number: int, question: Question, calls: AdminCalls, within: timedelta) -> Answer:
    try:
        return number, question(calls, within), None
    except KcrError as error:
        return number, None, error
    except Exception as error:  # noqa: BLE001 - whatever it is, a thread waits for the answer
        # By its kind only: the text might repeat a setting.
        return number, None, KcrError(f"an admin call could not be made ({type(error).__name__})")


def main() -> None:
    """Serve standard input."""
    # If the library aborts, a core file would hold the settings.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(Connection(0))


if __name__ == "__main__":
    main()
