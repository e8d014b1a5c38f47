"""The catalogue of mutants against the code: each guard is there, and the test named for it kills the mutant."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.mutants.__main__ import ROOT, failures, survivors
from tests.mutants.catalogue import MUTANTS, Mutant

FEWEST = 60
AT_ONCE = 5
SOME = [MUTANTS[n : n + AT_ONCE] for n in range(0, len(MUTANTS), AT_ONCE)]

each = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@cache
def defined_in(file: str) -> frozenset[str]:
    found = set[str]()
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return frozenset(found)


def test_there_are_enough_of_them_and_their_names_differ() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= FEWEST


@each
def test_its_guard_stands_once_and_what_is_left_is_a_module(mutant: Mutant) -> None:
    compile(mutant.source(), str(mutant.path), "exec")


@each
def test_its_test_is_an_ordinary_one(mutant: Mutant) -> None:
    file, _, name = mutant.killed_by.partition("::")
    assert name in defined_in(file)
    assert not file.startswith("tests/mutants/")


@pytest.mark.parametrize(("guard", "times"), [("no such text", 0), ("class KcrError", 1), ("KcrError", 2)])
def test_a_guard_that_is_not_there_once_is_told(guard: str, times: int) -> None:
    mutant = Mutant(what="nothing is lost", module="errors", guard=guard, without="", killed_by="")
    if times == 1:
        assert guard not in mutant.source()
    else:
        with pytest.raises(LookupError, match=r"errors: nothing is lost: the guard stands \d+ times"):
            mutant.source()


@pytest.mark.long
@pytest.mark.parametrize("some", SOME, ids=lambda some: f"{some[0].name} and on")
def test_each_is_killed_by_its_test(some: tuple[Mutant, ...]) -> None:
    assert survivors(some) == []


@pytest.mark.long
def test_a_mutant_in_which_nothing_is_missing_survives() -> None:
    assert failures({MUTANTS[0].killed_by}) == []
