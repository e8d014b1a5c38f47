"""Run every mutant against its test, and say which survive.

    python -m tests.mutants [--only TEXT]

Without `--only`, the tests first run together on the package as it is: a test that fails anyway proves nothing.
Ends with 1 where a mutant survives.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.loader import VARIABLE

ROOT = Path(__file__).parents[2]
WITHIN = 600.0
"""Seconds that one run of pytest may take."""

PASSED, FAILED = 0, 1
"""How pytest ends over tests that it has run; anything else says that it could not run them."""


def failures(tests: set[str], mutant: Mutant | None = None) -> list[str]:
    """Return which tests fail, on a mutant or on the package as it is; what goes wrong in a fixture is no failure.

    Raises:
        RuntimeError: pytest could not run them.
        subprocess.TimeoutExpired: they did not end in time.
    """
    # Not the options of the pytest run that calls this, nor its place in it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT)} | ({} if mutant is None else {VARIABLE: mutant.name})
    options = ["-q", "-x", "-n", "0", "--tb=no", "-rf", "-p", "no:cacheprovider", "-p", "tests.mutants.loader"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *sorted(tests)],
        check=False,  # which failed is in what it says
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN,
    )
    if done.returncode not in {PASSED, FAILED}:
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)


def survivors(mutants: Iterable[Mutant]) -> list[str]:
    """Return the names of the mutants that their tests pass on."""
    return [mutant.name for mutant in mutants if not failures({mutant.killed_by}, mutant)]


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="those whose name has this text")
    only = parser.parse_args(arguments).only
    if not only and (failing := failures({mutant.killed_by for mutant in MUTANTS})):
        sys.stderr.write(f"fails on the package as it is: {failing[0]}\n")
        return 1
    survived = 0
    for mutant in MUTANTS:
        if only in mutant.name:
            alive = bool(survivors((mutant,)))
            survived += alive
            sys.stdout.write(f"{'survives' if alive else 'killed'}: {mutant.name} ({mutant.killed_by})\n")
            sys.stdout.flush()
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
