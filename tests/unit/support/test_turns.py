"""Long tests take turns."""

from __future__ import annotations

import pytest

from tests.support.turns import Turn

NAMES = [f"test_{number}" for number in range(12)]


def test_a_turn_is_of_so_many_and_the_same_in_any_order() -> None:
    chosen = Turn(4, "abc").chosen(NAMES)
    assert len(chosen) == 4
    assert chosen == Turn(4, "abc").chosen(reversed(NAMES))


def test_every_test_comes_round() -> None:
    seen = {name for commit in range(60) for name in Turn(4, str(commit)).chosen(NAMES)}
    assert seen == set(NAMES)


def test_a_turn_larger_than_all_is_all() -> None:
    assert Turn(100, "abc").chosen(NAMES) == set(NAMES)


def test_is_read_from_the_command_line() -> None:
    assert Turn.of("4:3f2a9c1") == Turn(4, "3f2a9c1")


@pytest.mark.parametrize("text", ["", "4", "4:", ":abc", "four:abc", "-1:abc"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write how many and of which commit"):
        Turn.of(text)
