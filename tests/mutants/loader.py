"""A plugin of pytest that imports one module as a mutant.

    KCR_MUTANT=NAME PYTHONPATH=. pytest -p tests.mutants.loader ...

The files stay as they are. Pytest loads it before any test, and so before the package is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from tests.mutants.catalogue import MUTANTS, Mutant

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

VARIABLE = "KCR_MUTANT"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.imported_as:
            return None
        place = self._mutant.path
        folder = [str(place.parent)] if place.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(fullname, place, loader=self, submodule_search_locations=folder)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The text is this repository's own, with what the catalogue puts into it.
        exec(compile(self._mutant.source(), str(self._mutant.path), "exec"), vars(module))


def _install(name: str) -> None:
    found = [mutant for mutant in MUTANTS if mutant.name == name]
    if not found:
        raise LookupError(f"{VARIABLE}={name}: the catalogue has no such mutant")
    if found[0].imported_as in sys.modules:
        raise RuntimeError(f"{found[0].imported_as} was imported before its mutant could be")
    sys.meta_path.insert(0, _Finder(found[0]))


if name := os.environ.get(VARIABLE):
    _install(name)
