"""How fast the simulated runs were and how many schedules they tried: one line at the end of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

FIGURES = ("simulated_seeds", "simulated_seconds")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Reports of xdist's workers come with their properties, so the sums are those of the whole session.
    totals = dict.fromkeys(FIGURES, 0.0)
    explored: list[str] = []
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in getattr(report, "user_properties", ()):
            if name in totals:
                totals[name] += float(value)
            elif name == "explored":
                explored.append(str(value))
    seeds, seconds = totals["simulated_seeds"], totals["simulated_seconds"]
    if seeds:
        rate = seeds / seconds if seconds else 0.0
        terminalreporter.write_line(f"simulation: {seeds:.0f} seeds, {rate:.1f} a second and process")
    for line in sorted(explored):
        terminalreporter.write_line(f"exploration: {line}")
