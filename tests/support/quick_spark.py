"""Spark's defaults for tests: JVMs that live for seconds compile little, which halves the processor time of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_kcr.embedded.jars import QUICK_START

_FOLDER = "SPARK_CONF_DIR"


def prepare(run_dir: Path) -> None:
    """Let every Spark that this process and its children start have these defaults; what a test itself sets wins."""
    folder = run_dir / "spark-conf"
    folder.mkdir()
    options = " ".join(QUICK_START)
    lines = [f"spark.{side}.extraJavaOptions {options}\n" for side in ("driver", "executor")]
    (folder / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    os.environ[_FOLDER] = str(folder)


@contextmanager
def left_out() -> Iterator[None]:
    """Start Spark as its users do: a benchmark's JVM compiles all it can."""
    folder = os.environ.pop(_FOLDER, None)
    try:
        yield
    finally:
        if folder is not None:
            os.environ[_FOLDER] = folder
