"""Applications that start at the same moment, on a machine that has none of the jars yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kcr.spark.session import POSTGRES_DRIVER

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

START = f"""
import sys
from airflow_kcr.spark.session import SparkSettings, open_session
conf = {{
    "spark.jars.ivy": sys.argv[1],
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
}}
open_session(SparkSettings(app_name="kcr", master="local[1,1]", packages=("{POSTGRES_DRIVER}",), conf=conf)).stop()
print("started")
"""


def test_two_applications_that_start_together_on_an_empty_cache_both_come_up(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", START, str(tmp_path / "ivy")],
            cwd=pytestconfig.rootpath,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    told = [process.communicate(timeout=500)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], told
    assert all(one.rstrip().endswith("started") for one in told), told
