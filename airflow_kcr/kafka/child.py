"""A long-lived child process that answers JSON lines: started when needed, again if it died, gone with its owner.

No wait is without a deadline, whatever state the child is in: one that is stopped (SIGSTOP) reads nothing, so a request
beyond the 64 KiB of a pipe would keep its writer for ever.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import IO, Any, Final

from airflow_kcr.errors import BrokerUnavailable, ServiceFailed

START_WITHIN: Final = 20.0
"""Seconds until the child answers its first line: an interpreter and the client library on a busy machine."""

END_WITHIN: Final = 2.0
"""Seconds that the child has to end by itself; then it is killed, and has as many again."""

_TAIL: Final = 300
_PIECE: Final = 65_536


class ChildDied(BrokerUnavailable):
    """The child ended before it answered; what it was doing may have been done."""


class Child:
    """One child process; used by one thread at a time.

    Args:
        module: run as `python -m`.
        first: the first line, where secrets belong: arguments and environment are seen by others.
    """

    def __init__(self, module: str, first: dict[str, Any]) -> None:
        self._module = module
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the child
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # The package may be on the path of this process only (a zip file that was submitted with it).
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            # Ctrl-C at a terminal is for its owner, who then closes it.
            start_new_session=True,
            # Unbuffered: what a buffer still holds would be written by `close`, without a deadline.
            bufsize=0,
        )
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        self._read = b""
        try:
            reply = self.ask(first, START_WITHIN)
            if "ready" not in reply:
                raise ServiceFailed(f"the process for group calls does not start: {reply.get('message', reply)}")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send one line and return the answer to it.

        Args:
            message: the line, of any length.
            seconds: for sending it and for the answer, together.

        Raises:
            ChildDied: it ended, by itself or because it did not read or answer in time.
        """
        until = time.monotonic() + seconds
        try:
            self._send(json.dumps(message).encode() + b"\n", until)
            line = self._line(until)
        except TimeoutError:
            self._process.kill()
            raise ChildDied(f"the process for group calls did not answer within {seconds:.1f} s") from None
        except (BrokenPipeError, ValueError):
            line = b""
        if not line:
            raise ChildDied(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it: first by the end of its input, then by force; one that does not go even then is left behind."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_WITHIN)
        self._errors.close()

    def _send(self, line: bytes, until: float) -> None:
        """Write all of a line.

        Raises:
            TimeoutError: the child did not read it in time.
            BrokenPipeError, ValueError: the child, or this end of the pipe, is closed.
        """
        pipe = _pipe(self._process.stdin)
        left = memoryview(line)
        while left:
            _wait(pipe, selectors.EVENT_WRITE, until)
            with suppress(BlockingIOError):
                left = left[os.write(pipe.fileno(), left[:_PIECE]) :]

    def _line(self, until: float) -> bytes:
        """Return the next line; empty where the child ended.

        Raises:
            TimeoutError: there was none in time.
        """
        pipe = _pipe(self._process.stdout)
        while b"\n" not in self._read:
            _wait(pipe, selectors.EVENT_READ, until)
            more = os.read(pipe.fileno(), _PIECE)
            if not more:
                return b""
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _last_words(self) -> str:
        try:
            status = self._process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            return "the process for group calls has closed its pipes"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL))
        said = self._errors.read().decode(errors="replace").strip()
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"the process for group calls ended {how}" + (f": {said}" if said else "")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise BrokenPipeError
    return pipe


def _wait(pipe: IO[bytes], event: int, until: float) -> None:
    """Return when the pipe can be read or written.

    Raises:
        TimeoutError: it could not, until then.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        if not selector.select(max(0.0, until - time.monotonic())):
            raise TimeoutError
