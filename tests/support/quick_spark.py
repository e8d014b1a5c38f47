"""Spark's defaults for tests: JVMs that live for seconds compile little, and find their classes in an archive.

The first halves the processor time of a JVM that reads a batch or two, and the second what is left of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from airflow_kcr.embedded.jars import QUICK_START, pyspark_jars
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.spark.launch import require_java

DRIVERS: Final = "SPARK_SUBMIT_OPTS"
"""What `spark-submit` hands to a driver's JVM, before what an application says."""

LAUNCHERS: Final = "SPARK_LAUNCHER_OPTS"
"""The same for the JVM that finds out how to start the driver's."""

WITHIN: Final = 180.0

_LIVES = """
import sys
from pyspark.sql import SparkSession, functions as F
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
folder = sys.argv[1] + "/rows"
rows = session.range(0, 100, 1, 2).withColumn("text", F.col("id").cast("string"))
rows.groupBy((F.col("id") % 7).alias("key")).agg(F.count("*"), F.max("text")).collect()
rows.write.parquet(folder)
session.read.parquet(folder).where("id > 3").orderBy("text").collect()
session.createDataFrame([(1, "a")], "id int, text string").join(rows, "id").collect()
rows.mapInPandas(lambda frames: frames, rows.schema).collect()
process = session.sparkContext._gateway.proc
session.stop()
process.stdin.close()
process.wait()
"""
"""What the JVM of the archive does in its life: the classes that this needs are in it."""


def options() -> str:
    """Return the options of a JVM, also for the executors of an application."""
    return " ".join((*QUICK_START, shlex.quote(f"-XX:SharedArchiveFile={archive()}"), "-Xlog:disable"))


def prepare() -> None:
    """Let every Spark that this process and its children start be quick; what a test itself sets wins."""
    with suppress(ConfigurationError):  # where there is no Spark, no test has one
        os.environ[DRIVERS] = options()
        os.environ[LAUNCHERS] = " ".join(QUICK_START)


@lru_cache
def archive() -> Path:
    """Return the place of the archive, which a JVM does without as long as it isn't there.

    It stays with this environment of Python, as it is good for the jars at their place only, and this very Java.
    """
    made_of = [require_java(os.environ).resolve(), *sorted(pyspark_jars().iterdir())]
    known = "\n".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in made_of)
    return Path(sys.prefix) / "kcr-tests" / f"spark-{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"


def ensure_archive() -> None:
    """Make the archive where there is none.

    Another process that makes it isn't waited for, and where it can't be made Spark starts without.
    """
    made = archive()
    with suppress(OSError, subprocess.SubprocessError):
        made.parent.mkdir(exist_ok=True)
        with (made.parent / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not made.exists():
                for other in made.parent.glob("spark-*"):
                    other.unlink()  # of other jars, or not finished
                _make(made)


def _make(made: Path) -> None:
    draft = made.with_suffix(".draft")
    dumps = (*QUICK_START, shlex.quote(f"-XX:ArchiveClassesAtExit={draft}"), "-Xlog:disable")
    with TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _LIVES, folder],
            env={**os.environ, DRIVERS: " ".join(dumps), "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=WITHIN,
        )
    draft.rename(made)


@contextmanager
def left_out() -> Iterator[None]:
    """Start Spark as its users do: a benchmark's JVM compiles all it can."""
    told = {name: os.environ.pop(name) for name in (DRIVERS, LAUNCHERS) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(told)
