"""A long-lived child process that answers JSON lines: started when needed, again if it died, gone with its owner."""

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
_TAIL: Final = 300


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
        )
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

        Raises:
            ChildDied: it ended, by itself or because it did not answer in time.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise ChildDied(f"{self._module} has no pipes")
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
            line = self._line(stdout, time.monotonic() + seconds)
        except (BrokenPipeError, ValueError):
            line = b""
        if not line:
            raise ChildDied(self._last_words(seconds))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it: first by the end of its input, then by force."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _line(self, stdout: IO[bytes], until: float) -> bytes:
        """Return the next line; empty where the child ended, or the time for it is over, which ends the child."""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(0.0, until - time.monotonic())):
                    self._process.kill()
                    return b""
                more = os.read(stdout.fileno(), 65_536)
                if not more:
                    return b""
                self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _last_words(self, seconds: float) -> str:
        try:
            status = self._process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            return f"the process for group calls did not answer within {seconds:.1f} s"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL))
        said = self._errors.read().decode(errors="replace").strip()
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"the process for group calls ended {how}" + (f": {said}" if said else "")
