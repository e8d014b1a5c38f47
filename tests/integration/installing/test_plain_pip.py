"""The wheel, installed with plain pip in a fresh environment, as the README says: Spark works, whatever came first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

# Hundreds of packages are fetched and compiled.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

COUNT = """
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.types import LongType

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
twice = F.udf(lambda n: 2 * n, LongType())
print("counted", spark.range(1000).select(twice("id").alias("n")).agg(F.sum("n")).first()[0])
spark.stop()
"""


class Environment:
    """A fresh virtual environment with plain pip."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ran([sys.executable, "-m", "venv", str(folder)])

    def pip(self, *arguments: str) -> str:
        return ran([self.program("python"), "-m", "pip", "--disable-pip-version-check", *arguments])

    def program(self, name: str) -> str:
        return str(self._folder / "bin" / name)

    def python(self, code: str) -> str:
        return ran([self.program("python"), "-c", code], cwd=self._folder)


def ran(command: Sequence[str], cwd: Path | None = None) -> str:
    """Run a program outside of this project's environment; one that fails is an AssertionError with what it said."""
    own = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    environ = {name: value for name, value in os.environ.items() if name not in own}
    # As after its activation: Spark's workers run the python3 that comes first, and need what the driver has.
    environ["PATH"] = os.pathsep.join([str(Path(command[0]).parent), environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def fresh(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "venv")


@pytest.fixture
def wheel(fresh: Environment, tmp_path: Path, pytestconfig: pytest.Config) -> str:
    """The project's wheel, built by pip."""
    fresh.pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path / "wheels"), str(pytestconfig.rootpath))
    (found,) = (tmp_path / "wheels").glob("*.whl")
    return str(found)


@pytest.mark.parametrize(
    "extras",
    [("airflow,spark",), ("demo",), ("airflow", "spark"), ("spark", "airflow")],
    ids=" then ".join,
)
def test_spark_and_airflow_work_in_what_pip_installs(
    fresh: Environment, wheel: str, tmp_path: Path, extras: tuple[str, ...]
) -> None:
    for extra in extras:
        fresh.pip("install", "--quiet", f"{wheel}[{extra}]")
    assert "Usage: kcr" in ran([fresh.program("kcr"), "--help"])
    assert "counted 999000" in fresh.python(COUNT)
    assert "kcr" in ran([fresh.program("airflow"), "plugins"])
    if extras != ("demo",):
        return
    # What overwrites half of PySpark afterwards is told with the command that mends it, and it does.
    fresh.pip("install", "--quiet", "--no-deps", "pyspark-client==4.1.*")
    told = fresh.python(
        "from airflow_kcr.errors import ToolMissing\n"
        "from airflow_kcr.spark.session import SparkSettings, open_session\n"
        "try:\n    open_session(SparkSettings(app_name='x'))\n"
        "except ToolMissing as error:\n    print(error.message)\n"
    )
    assert "another package has overwritten a part of PySpark" in told
    # The operator's driver has the copy of PySpark that spark-submit puts first, which is whole.
    program = tmp_path / "count.py"
    program.write_text(COUNT)
    assert "counted 999000" in ran([fresh.program("spark-submit"), "--master", "local[1]", str(program)])
    fresh.pip("install", "--quiet", *told.partition("pip install ")[2].split("`")[0].replace("'", "").split())
    assert "counted 999000" in fresh.python(COUNT)
