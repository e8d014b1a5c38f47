"""Airflow's API server alone, with the console's regions: its pages as users see them, without anything that runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_kcr.embedded.airflow import MIGRATED_WITHIN, Airflow, AirflowPlan, Component, environment, kept
from tests.support import tied

TOP = Path(__file__).parents[2]


@contextmanager
def console_server(folder: Path, database_url: str, store_url: str, dags: str) -> Iterator[Airflow]:
    """Lend a server that has read a file of DAGs once; it ends at the end.

    Args:
        folder: of its secrets and logs.
        database_url: of its metadata, an empty database.
        store_url: of the regions' store.
        dags: the text of the file.
    """
    (folder / "dags").mkdir(parents=True)
    (folder / "dags" / "dags.py").write_text(dags, encoding="utf-8")
    plan = AirflowPlan(
        folder=folder / "airflow",
        database_url=database_url,
        store_url=store_url,
        dags=folder / "dags",
        settings={"API__AUTO_REFRESH_INTERVAL": "1"},
    )
    known = kept(plan.folder)
    airflow = Airflow(folder=plan.folder, known=known, environment=environment(plan, known), launch=tied.start_tied)
    for words in (("db", "migrate"), ("dags", "reserialize")):
        subprocess.run(
            [sys.executable, "-m", "airflow", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=dict(airflow.environment),
            check=True,
            timeout=MIGRATED_WITHIN,
        )
    try:
        airflow.begin(Component.API_SERVER)
        airflow.await_health(Component.API_SERVER)
        yield airflow
    finally:
        airflow.stop()
