"""What the demo shows while it works: a bar for each phase on a terminal, else a line when one begins and ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from airflow_kcr.cli.output import note

if TYPE_CHECKING:
    from airflow_kcr.embedded.demo.audience import Audience, Phase


@contextmanager
def screen() -> Iterator[Audience]:
    """Lend whom the demo is shown to: standard error, as it is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[told]}", style="dim"), console=console) as progress:
        yield _Bars(progress)


@dataclass(slots=True)
class _Bars:
    """Bars on a terminal."""

    progress: Progress

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        task = self.progress.add_task(name, total=None, told="")
        yield _Bar(self.progress, task)
        self.progress.update(task, total=1, completed=1, told="")
        self.progress.stop_task(task)


@dataclass(slots=True)
class _Bar:
    progress: Progress
    task: TaskID

    def tell(self, done: float, total: float | None = None, text: str = "") -> None:
        self.progress.update(self.task, completed=done, total=total, told=text)


class _Lines:
    """Lines where there is no terminal."""

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        note(f"{name} …")
        begun = time.monotonic()
        yield _Silent()
        note(f"{name}: done in {time.monotonic() - begun:.1f} s")


class _Silent:
    def tell(self, done: float, total: float | None = None, text: str = "") -> None:
        """Say nothing: lines that are repeated twice a second help nobody."""
