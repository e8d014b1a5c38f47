"""What a benchmark found: tables and goals, shown and kept as JSON, and asserted only on request.

A goal is a ratio of two medians of one run, whose rounds took turns; a machine's absolute times are shown, never
judged. `KCR_BENCHMARK_ASSERT=1` makes a missed goal a failure; `KCR_BENCHMARK_RESULTS` says where the JSON goes.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from rich.console import Console
from rich.table import Table as RichTable

T = TypeVar("T")

RESULTS_VARIABLE: Final = "KCR_BENCHMARK_RESULTS"
ASSERT_VARIABLE: Final = "KCR_BENCHMARK_ASSERT"
SCALE_VARIABLE: Final = "KCR_BENCHMARK_SCALE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured."""

    name: str
    rounds: int
    share: float
    """Of the records that the full size has."""

    def of(self, records: int, multiple: int) -> int:
        """Return that share of this many records, as a multiple of a number, and at least that."""
        return max(round(records * self.share) // multiple, 1) * multiple


FULL: Final = Scale(name="full", rounds=5, share=1.0)
SMALL: Final = Scale(name="small", rounds=1, share=0.05)
"""Shows that the benchmarks run, and nothing else: its figures mean nothing."""


def chosen_scale() -> Scale:
    """Return the scale that the environment names, the full one where it names none."""
    return {"small": SMALL, "full": FULL}[os.environ.get(SCALE_VARIABLE, "full")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A ratio that the project wants of itself."""

    text: str
    ratio: float
    boundary: float
    at_least: bool
    """Whether the boundary is a floor; else it is a ceiling."""

    @property
    def met(self) -> bool:
        """Whether it is met."""
        return self.ratio >= self.boundary if self.at_least else self.ratio <= self.boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, as it is shown and as the page has it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(slots=True)
class Report:
    """What one benchmark found.

    Args:
        name: of the JSON file, and of the block of the page.
        scale: how much was measured.
    """

    name: str
    scale: Scale
    tables: list[Table] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    load: list[float] = field(default_factory=lambda: [os.getloadavg()[0]])

    def table(self, title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add a table; numbers are rounded to three digits."""
        texts = tuple(tuple(shown(cell) for cell in row) for row in rows)
        self.tables.append(Table(title=title, header=tuple(header), rows=texts))

    def medians(self, title: str, what: str, values: Mapping[str, Sequence[float]]) -> None:
        """Add a table of what was measured again and again, by name."""
        rows = [(name, median(one), spread(one)) for name, one in values.items()]
        self.table(title, (what, "median", "smallest to largest"), rows)

    def at_least(self, text: str, ratio: float, boundary: float) -> None:
        """Add a ratio that should not be below a boundary."""
        self.goals.append(Goal(text=text, ratio=ratio, boundary=boundary, at_least=True))

    def at_most(self, text: str, ratio: float, boundary: float) -> None:
        """Add a ratio that should not be above a boundary."""
        self.goals.append(Goal(text=text, ratio=ratio, boundary=boundary, at_least=False))

    def close(self, folder: Path) -> None:
        """Show everything, keep it, and fail for a missed goal where that was asked for."""
        self.load.append(os.getloadavg()[0])
        self._show()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(json.dumps(self._as_json(), indent=1) + "\n", encoding="utf-8")
        missed = [goal.text for goal in self.goals if not goal.met]
        if os.environ.get(ASSERT_VARIABLE) == "1" and missed:
            raise AssertionError(f"missed: {missed}")

    def _show(self) -> None:
        console = Console(width=150)
        for table in self.tables:
            drawn = RichTable(*table.header, title=table.title, title_justify="left")
            for row in table.rows:
                drawn.add_row(*row)
            console.print(drawn)
        for goal in self.goals:
            sign, met = (">=" if goal.at_least else "<="), ("met" if goal.met else "MISSED")
            console.print(f"  {met:6} {goal.text}: {goal.ratio:.2f} ({sign} {goal.boundary:g})", highlight=False)

    def _as_json(self) -> Mapping[str, object]:
        return {
            "name": self.name,
            "scale": self.scale.name,
            "rounds": self.scale.rounds,
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": self.load,
            "tables": [asdict(table) for table in self.tables],
            "goals": [{**asdict(goal), "met": goal.met} for goal in self.goals],
        }


def shown(cell: object) -> str:
    """Return a cell's text: numbers with three digits that say something, thousands apart."""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def spread(values: Sequence[float]) -> str:
    """Return the smallest and the largest of some values, as text."""
    return f"{shown(min(values))} to {shown(max(values))}"


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the ratio of two medians."""
    return median(over) / median(under)


def in_turns(what: Mapping[str, Callable[[], T]], rounds: int, *, warm_up: int = 1) -> dict[str, list[T]]:
    """Do everything once in every round, each round beginning with another; what comes to warm up does not count."""
    found: dict[str, list[T]] = {name: [] for name in what}
    names = list(what)
    for number in range(-warm_up, rounds):
        at = max(number, 0) % len(names)
        for name in names[at:] + names[:at]:
            done = what[name]()
            if number >= 0:
                found[name].append(done)
    return found
