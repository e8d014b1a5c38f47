"""Airflow's home for tests: in the folder of the run, so that a user's own Airflow is neither read nor changed.

Airflow reads its environment when it is imported, so this has to be there before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from sqlalchemy.engine import make_url


def prepare(run_dir: Path) -> None:
    """Let whatever imports Airflow from now on, in this process and those that it starts, find a home of the run."""
    home = run_dir / "airflow"
    home.mkdir(exist_ok=True)
    for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
        del os.environ[name]
    os.environ["AIRFLOW_HOME"] = str(home)
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{home / 'airflow.db'}"


def connection_json(store_url: str) -> str:
    """Return the value of `AIRFLOW_CONN_…` for the store at a URL."""
    url = make_url(store_url)
    fields = {"host": url.host or url.query.get("host"), "schema": url.database, "login": url.username}
    optional = {"port": url.port, "password": url.password}
    return json.dumps({"conn_type": "kcr", **fields, **{name: value for name, value in optional.items() if value}})
