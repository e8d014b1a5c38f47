"""Run mutants of modules against tests, and list those that survive.

    python -m tests.mutation MODULE... --tests PATH... [-k EXPRESSION] [--every N] [--all FILE | --without FILE]

A test that calls none of a module's functions costs nothing, so whole folders can be given. Ends with 1 where a mutant
survives. With the names of tests that may go, it lists the mutants that only these kill.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.mutation.killing import Killing, Verdict, without_parameters
from tests.mutation.mutants import mutants_of


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="+", type=Path, metavar="MODULE", help="a file, or a folder of them")
    parser.add_argument("--tests", nargs="+", required=True, metavar="PATH", help="the tests that may kill them")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="of these tests, as pytest chooses them")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th mutant")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--all", type=Path, metavar="FILE", help="run all tests of a mutant; write which kill it")
    parser.add_argument("--without", type=Path, metavar="FILE", help="names of tests that may go, one a line")
    asked = parser.parse_args()
    files = [f.resolve() for m in asked.modules for f in (sorted(m.rglob("*.py")) if m.is_dir() else [m])]
    mutants = list(islice((m for f in files for m in mutants_of(f)), 0, None, asked.every))
    verdicts: list[Verdict] = []
    going = frozenset(asked.without.read_text(encoding="utf-8").split() if asked.without else ())

    def survives(verdict: Verdict) -> bool:
        only = {without_parameters(test) for test in verdict.killers} <= going
        return bool(verdict.killers) and only if going else verdict.survives

    def tell(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if survives(verdict):
            killed_by = f"only {', '.join(verdict.killers)}" if going else f"{verdict.tests} tests"
            sys.stdout.write(f"{_name(verdict)} ({killed_by})\n")
            sys.stdout.flush()

    plugin = Killing(
        mutants,
        root=Path(os.path.commonpath(files)),
        at_once=asked.at_once,
        finds_all=bool(asked.all),
        tell=tell,
        going=going,
    )
    options = ["-qq", "-n", "0", "-p", "no:cacheprovider", *(["-k", asked.k] if asked.k else [])]
    if status := pytest.main([*options, *asked.tests], plugins=[plugin]):
        return int(status)
    if asked.all:
        asked.all.write_text(json.dumps({_name(v): v.killers for v in verdicts}, indent=0), encoding="utf-8")
    survivors = sum(survives(v) for v in verdicts)
    sys.stdout.write(f"{len(verdicts)} mutants, {survivors} survive, {sum(v.is_over for v in verdicts)} ran too long\n")
    return 1 if survivors else 0


def _name(verdict: Verdict) -> str:
    mutant = verdict.mutant
    return f"{os.path.relpath(mutant.file)}:{mutant.line}: {mutant.function}: {mutant.change}"


if __name__ == "__main__":
    sys.exit(main())
