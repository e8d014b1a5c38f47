"""Puts the figures of a full run into the annex about benchmarks.

KCR_BENCHMARK_RESULTS=DIR pytest -m benchmark -n 0 tests/benchmarks
python -m tests.benchmarks.page DIR
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).parents[1] / "annex" / "benchmarks.md"
BLOCK: Final = re.compile(r"(<!-- measured: (?P<name>[a-z0-9-]+) -->\n).*?(<!-- end of measured -->)", re.DOTALL)


def filled(text: str, folder: Path) -> str:
    """Return the page with every block that the folder has figures for.

    Args:
        text: the page as it is.
        folder: where a run has left its JSON.
    """

    def block(match: re.Match[str]) -> str:
        path = folder / f"{match['name']}.json"
        if not path.exists():
            return match[0]
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["scale"] != "full":
            raise SystemExit(f"{path} is of a {found['scale']} run, whose figures mean nothing")
        return f"{match[1]}\n{_shown(found)}\n\n{match[3]}"

    return BLOCK.sub(block, text)


def _shown(found: Mapping[str, Any]) -> str:
    parts = []
    for table in found["tables"]:
        parts += [_sentence(table["title"]), _table(table["header"], table["rows"])]
    if found["goals"]:
        rows = [
            (
                goal["text"],
                f"{goal['ratio']:.2f}",
                f"{'>=' if goal['at_least'] else '<='} {goal['boundary']:g}",
                "met" if goal["met"] else "**missed**",
            )
            for goal in found["goals"]
        ]
        parts.append(_table(("goal", "ratio", "wanted", ""), rows))
    loads = " to ".join(f"{load:.1f}" for load in found["load"])
    parts.append(f"{found['cores']} cores, {found['rounds']} rounds, load average {loads}.")
    return "\n\n".join(parts)


def _sentence(title: str) -> str:
    return textwrap.fill(f"{title[0].upper()}{title[1:]}.", 120)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(header), "|".join(["---"] * len(header)), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line.strip()} |" if "---" not in line else f"|{line}|" for line in lines)


def main(folder: str) -> None:
    """Fill the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
