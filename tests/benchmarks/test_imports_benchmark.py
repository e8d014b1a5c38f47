"""What importing operators, sensors and triggers, and parsing the example DAGs, adds to what Airflow takes anyway.

Each figure is of a process of its own, forked from one that has imported `airflow.sdk`, as Airflow forks its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import pytest

import airflow_kcr
from airflow_kcr.embedded.airflow import example_dags
from airflow_kcr.embedded.flights.data import BOOTSTRAP_VARIABLE
from tests.benchmarks.figures import SMALL, Report, Scale, in_turns, spread

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

TOP = Path(__file__).parents[2]
MOST = 100.0
"""Milliseconds over `airflow.sdk`, at most."""

PARENTS = {
    "consume": "airflow.providers.apache.spark.operators.spark_submit",
    "reset": "airflow.providers.standard.operators.hitl",
    "reset_form": "airflow.providers.standard.operators.hitl",
}
"""The modules of other providers whose operators ours are built on; users of those pay for them too."""

FIRST_POLL = "airflow_kcr.triggers.probes"
"""What a trigger imports when it first polls a store, in a thread: the store and its database driver. Importing an
operator or a trigger doesn't wait for it."""

SDK = """\
import gc, json, os, sys
from airflow.sdk import DAG, BaseHook, BaseOperator, BaseOperatorLink, BaseSensorOperator, Param, task

gc.freeze()
for line in sys.stdin:
    program, argument = json.loads(line)
    child = os.fork()
    if not child:
        sys.argv[1:] = [argument]
        try:
            exec(program, {"__name__": "measured"})
            sys.stdout.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"this could not be measured: {argument}")
"""
"""Imports Airflow's SDK once, and runs each program that it is told of in a fork of that, frozen as Airflow's local
executor freezes itself before it forks: else a collection of garbage copies all that was imported before."""

IMPORT = """\
import importlib, json, sys, time
told = json.loads(sys.argv[1])
began = time.perf_counter()
for name in told["parents"]:
    importlib.import_module(name)
parents = time.perf_counter()
for name in told["modules"]:
    importlib.import_module(name)
print(json.dumps({"parents": parents - began, "own": time.perf_counter() - parents}))
"""

PARSE = """\
import importlib.util, json, sys, time
def parse(number):
    began = time.perf_counter()
    spec = importlib.util.spec_from_file_location(f"dag_{number}", sys.argv[1])
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return time.perf_counter() - began
print(json.dumps({"first": parse(1), "again": min(parse(n) for n in range(2, 7))}))
"""


def modules(package: str) -> list[str]:
    """The modules of a package of ours that Airflow, or one of them, imports at once, by their full names."""
    folder = Path(airflow_kcr.__file__).parent / package
    names = [f"airflow_kcr.{package}.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]
    return [name for name in names if name != FIRST_POLL]


@contextmanager
def forks(home: Path) -> Iterator[Callable[[str, str], Mapping[str, float]]]:
    """Lend what runs a program, with its argument, in a new fork and returns its figures in milliseconds."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
    environment |= {"AIRFLOW_HOME": str(home), BOOTSTRAP_VARIABLE: "broker.example:9092"}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SDK],
        cwd=TOP,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        told, answers = parent.stdin, parent.stdout

        def measured(program: str, argument: str) -> Mapping[str, float]:
            told.write(json.dumps([program, argument]) + "\n")
            answer = answers.readline()
            while answer and not answer.startswith("{"):
                answer = answers.readline()
            found: dict[str, float] = json.loads(answer)
            return {name: 1_000 * seconds for name, seconds in found.items()}

        yield measured
        told.close()


def measured(what: Mapping[str, tuple[str, str]], rounds: int, home: Path) -> dict[str, list[Mapping[str, float]]]:
    """Run each program once a round."""
    with forks(home) as run:
        return in_turns({name: partial(run, *one) for name, one in what.items()}, rounds)


def of(figures: Sequence[Mapping[str, float]], *names: str) -> list[float]:
    """The sums of some figures of each round."""
    return [sum(one[name] for name in names) for one in figures]


def imported(*names: str) -> tuple[str, str]:
    """The program that imports modules, after those of other providers that they are built on."""
    parents = sorted({PARENTS[short] for name in names if (short := name.rpartition(".")[2]) in PARENTS})
    return IMPORT, json.dumps({"parents": parents, "modules": names})


def test_importing_operators_costs_little_and_parsing_the_examples_too(
    scale: Scale, report: Callable[[str], Report], tmp_path: Path
) -> None:
    found = report("imports")
    packages = {package: modules(package) for package in ("operators", "sensors", "triggers")}
    assert PARENTS.keys() <= {name.rpartition(".")[2] for name in packages["operators"]}
    single = packages if scale is not SMALL else {name: listed[:1] for name, listed in packages.items()}
    everything = {f"all of airflow_kcr.{package}": imported(*listed) for package, listed in packages.items()}
    each = {name: imported(name) for listed in single.values() for name in listed}
    later = {f"{FIRST_POLL} (at the first poll)": imported(FIRST_POLL)}
    figures = measured({**everything, **each, **later}, scale.rounds, tmp_path)
    found.table(
        "Importing a module where `airflow.sdk` is imported already: ms, what it is built on of other providers apart",
        ("module", "other providers", "ours", "smallest to largest"),
        [
            (name, median(of(rounds, "parents")), median(of(rounds, "own")), spread(of(rounds, "own")))
            for name, rounds in figures.items()
        ],
    )
    files = {path.name: (PARSE, str(path)) for path in sorted(example_dags().glob("*.py"))}
    parsed = measured(files, scale.rounds, tmp_path)
    found.table(
        "Parsing an example DAG file: ms, in a new process with all its imports, and once more in the same one",
        ("file", "first", "smallest to largest", "once more"),
        [
            (name, median(of(rounds, "first")), spread(of(rounds, "first")), median(of(rounds, "again")))
            for name, rounds in parsed.items()
        ],
    )
    for name in everything:
        found.at_most(f"{name}, of {MOST:g} ms", median(of(figures[name], "own")) / MOST, 1)
