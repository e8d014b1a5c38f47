"""Waiting on the command line: shows what is missing on standard error; Ctrl-C ends the wait, not the region."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import typer

from airflow_kcr.cli.options import TEN_MINUTES
from airflow_kcr.cli.results import note
from airflow_kcr.protocol.values import few

if TYPE_CHECKING:
    from airflow_kcr.api import Progress
    from airflow_kcr.api.waiting import OnProgress

INTERRUPTED: Final = 130
"""The exit status of a command that Ctrl-C ended, as shells have it."""

_AGAIN: Final = timedelta(seconds=5)
"""How often a log, rather than a terminal, shows progress that only counts on."""

_SHOWN: Final = 8


def require_wait(wait: bool, timeout: timedelta) -> None:
    """Refuse a timeout without --wait."""
    if timeout != TEN_MINUTES and not wait:
        raise typer.BadParameter("needs --wait", param_hint="--timeout")


@contextmanager
def progress(region: str) -> Iterator[OnProgress]:
    """Lend a listener that shows progress on standard error while the body waits for a region."""
    try:
        if sys.stderr.isatty():
            with _on_terminal() as shown:
                yield shown
        else:
            yield _Log()
    except KeyboardInterrupt:
        note(
            f"the wait ended, region {region} goes on: your request still takes effect. "
            f"`kcr region show {region}` shows its progress"
        )
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _on_terminal() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)

    def lines(seen: Progress) -> Text:
        state = f" ({seen.state})" if seen.state else ""
        text = Text(f"waiting for {seen.what}{state}, {seen.waited.total_seconds():.0f} s so far")
        if seen.missing:
            text.append("\n    " + few(seen.missing, _SHOWN, "\n    "))
        return text

    with console.status(Text("waiting")) as status:
        yield lambda seen: status.update(lines(seen))


class _Log:
    """Writes a line when what is missing has changed, numbers that only count on not too often."""

    def __init__(self) -> None:
        self._said = ""
        self._at = -_AGAIN

    def __call__(self, seen: Progress) -> None:
        text = str(seen)
        if text != self._said and seen.waited - self._at >= _AGAIN:
            note(text)
            self._said, self._at = text, seen.waited
