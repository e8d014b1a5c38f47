"""The mutation run on a module and tests of its own: what it changes, and which changes it lists."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.mutants import mutants_of

MODULE = """
from __future__ import annotations
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Row:
    a: int = 0
    b: int = 0

    def raised(self, by: int) -> Row:
        if by < 0 or by > 9:
            raise ValueError(by)
        return replace(self, a=self.a + by, b=by)
"""

TESTS = """
import sys
sys.path.insert(0, {folder!r})
import pytest
from module import Row


def test_it_is_raised():
    assert Row(1, 2).raised(3) == Row(4, 3)


def test_no_more_than_nine():
    with pytest.raises(ValueError):
        Row().raised(10)
    Row().raised(9)
"""
ROOT = Path(__file__).parents[2]


def changes(folder: Path, text: str) -> list[str]:
    file = folder / "module.py"
    file.write_text(text, encoding="utf-8")
    return [f"{mutant.function}:{mutant.line}: {mutant.change}" for mutant in mutants_of(file)]


def test_conditions_comparisons_arithmetic_and_replaced_fields_are_changed(tmp_path: Path) -> None:
    assert sorted(changes(tmp_path, MODULE)) == [
        "Row.raised:12: `by < 0 or by > 9` becomes `by < 0 or by < 0`",
        "Row.raised:12: `by < 0 or by > 9` becomes `by > 9 or by > 9`",
        "Row.raised:12: `by < 0 or by > 9` is always False",
        "Row.raised:12: `by < 0 or by > 9` is always True",
        "Row.raised:12: `by < 0` becomes `by <= 0`",
        "Row.raised:12: `by > 9` becomes `by >= 9`",
        "Row.raised:14: `a` is not replaced",
        "Row.raised:14: `b` is not replaced",
        "Row.raised:14: `self.a + by` becomes `self.a - by`",
    ]


@pytest.mark.parametrize(
    ("body", "change"),
    [
        ("return [x for x in xs if x]", "without the filter `x`"),
        ("xs.sort()", "without `xs.sort()`"),
        ("return max(xs, ys)", "`max(xs, ys)` becomes `min(xs, ys)`"),
        ("while xs.pop(): ...", "`xs.pop()` is always False"),
    ],
)
def test_filters_calls_and_loops_are_changed(tmp_path: Path, body: str, change: str) -> None:
    assert changes(tmp_path, f"def f(xs, ys):\n    {body}\n") == [f"f:2: {change}"]


def run(folder: Path, *more: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the mutants of the module against its tests; return how that ended, and the mutants that it lists."""
    (folder / "module.py").write_text(MODULE, encoding="utf-8")
    (folder / "test_module.py").write_text(TESTS.format(folder=str(folder)), encoding="utf-8")
    asked = [str(folder / "module.py"), "--tests", str(folder / "test_module.py"), *more]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.mutation", *asked],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    listed = [line.partition("module.py:")[2] for line in ended.stdout.splitlines() if "module.py:" in line]
    return ended, sorted(listed)


def test_a_change_that_no_test_notices_is_listed(tmp_path: Path) -> None:
    ended, listed = run(tmp_path, "--all", str(tmp_path / "killers"))
    assert listed == [
        "12: Row.raised: `by < 0 or by > 9` becomes `by > 9 or by > 9` (2 tests)",
        "12: Row.raised: `by < 0` becomes `by <= 0` (2 tests)",
    ], ended.stdout + ended.stderr
    assert "9 mutants, 2 survive, 0 ran too long" in ended.stdout
    killers = json.loads((tmp_path / "killers").read_text(encoding="utf-8")).values()
    assert {len(tests) for tests in killers} == {0, 1, 2}
    assert ended.returncode == 1


def test_a_change_that_only_tests_notice_that_may_go_is_listed_with_them(tmp_path: Path) -> None:
    killers, going = tmp_path / "killers", tmp_path / "going"
    run(tmp_path, "--all", str(killers))
    # How pytest names a test depends on where the project is.
    names = {name for killed_by in json.loads(killers.read_text(encoding="utf-8")).values() for name in killed_by}
    (name,) = (name for name in names if name.endswith("::test_it_is_raised"))
    going.write_text(f"{name}\n", encoding="utf-8")
    ended, listed = run(tmp_path, "--without", str(going))
    assert [line.partition(" (")[0] for line in listed] == [
        "14: Row.raised: `a` is not replaced",
        "14: Row.raised: `b` is not replaced",
        "14: Row.raised: `self.a + by` becomes `self.a - by`",
    ], ended.stdout + ended.stderr
    assert all("only" in line and line.endswith("::test_it_is_raised)") for line in listed)
