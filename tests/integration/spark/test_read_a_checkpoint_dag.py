"""The DAG of the page about reading checkpoints, with `dag.test()`.

The checkpoint of its event, the same again, a stale one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_kcr.hooks.checkpoints import PublishedCheckpoint
from airflow_kcr.protocol.targets import ToCheckpoint
from airflow_kcr.sinks import read_checkpoint
from tests.support.airflow_home import connection_json
from tests.support.dag_test import Order
from tests.support.docs_pages import DOCS
from tests.support.lake import PATIENT, Lake, reset_order
from tests.support.live_region import live_region
from tests.support.postgres import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_kcr.protocol.values import CheckpointNumber

pytestmark = [
    # CI runs the same code as a function (`test_docs_pages`).
    pytest.mark.soak,
    pytest.mark.timeout(600),
]

TOP = Path(__file__).parents[3]
DAG = re.compile(r"^```python run\n(?P<body>from airflow\.sdk.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, database_url: str) -> Iterator[Lake]:
    """A region in a store on Postgres, with a sink."""
    with live_region(database_url, PATIENT) as driver:
        yield Lake(spark, tmp_path / "out", driver=driver)


def written_as_dag(lake: Lake, folder: Path) -> None:
    """Write the page's DAG into a folder, with other addresses."""
    found = DAG.search((DOCS / "how-to" / "read-a-checkpoint.md").read_text("utf-8"))
    assert found is not None
    code = found["body"].replace("s3a://lake/delays", lake.root.as_uri())
    folder.mkdir()
    (folder / "flights_delays.py").write_text(
        code.replace("s3a://lake/reports", (lake.root.parent / "reports").as_uri())
    )


def event(lake: Lake, sequence: CheckpointNumber) -> dict[str, Any]:
    """The event of a checkpoint, as a checkpoint DAG emits it."""
    row = lake.driver.region.checkpoints[sequence]
    told = PublishedCheckpoint(
        region=lake.driver.name,
        region_id=lake.driver.region.region_id,
        timeline=row.timeline,
        sequence=sequence,
        boundary=None,
        digest=row.digest,
    )
    return dict(told.to_json())


def contents(lake: Lake, sequence: CheckpointNumber) -> dict[str, str]:
    """The files of a checkpoint, with their bytes' hashes."""
    names = read_checkpoint(lake.spark, lake.root.as_uri(), sequence=sequence).inputFiles()
    return {name: sha256(Path(name.removeprefix("file://")).read_bytes()).hexdigest() for name in names}


def test_a_run_reads_the_checkpoint_of_its_event_the_same_one_again_and_skips_a_stale_one(
    lake: Lake, database_url: str, postgres_server: Server, tmp_path: Path
) -> None:
    def batch(index: int) -> None:
        lake.batch(index, carrier="'UA'", delay="CAST(offset AS INT)")

    batch(0)
    first = lake.checkpoint("n1")
    batch(1)
    stale = lake.checkpoint("n2")
    told = {name: event(lake, sequence) for name, sequence in (("first", first), ("stale", stale))}
    lake.driver.reset(ToCheckpoint(sequence=first))
    lake.driver.complete()
    lake.sink.reset(reset_order(lake.driver))
    lake.driver.finish_reset()
    batch(1)
    told["newest"] = event(lake, lake.checkpoint("n3"))
    before = contents(lake, first)
    written_as_dag(lake, tmp_path / "dags")
    runs = {"first": "first", "newest": "newest", "again": "first", "stale": "stale"}
    with postgres_server.database() as metadata:
        ran = run_dags(
            [Order(dag="flights_delays", name=run, events=[told[name]]) for run, name in runs.items()],
            {
                **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
                "AIRFLOW_HOME": str(tmp_path / "home"),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata,
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": metadata,
                "AIRFLOW_CONN_KCR_DEFAULT": connection_json(database_url),
            },
            tmp_path,
        )
    states = {run: [state for _, _, state in found["tasks"]] for run, found in ran.items()}
    assert states == {"first": ["success"], "newest": ["success"], "again": ["success"], "stale": ["skipped"]}
    assert f"a reset has undone checkpoint {stale}" in (tmp_path / "said").read_text()
    assert ran["first"]["results"] == ran["again"]["results"]
    assert ran["first"]["results"] != ran["newest"]["results"]
    assert contents(lake, first) == before
    reports = sorted(path.name for path in (tmp_path / "reports").iterdir())
    assert reports == sorted(ran[run]["results"]["build"]["checkpoint"] for run in ("first", "newest"))
    read = lake.spark.read.parquet(f"{tmp_path}/reports/{ran['first']['results']['build']['checkpoint']}").collect()
    assert [tuple(row) for row in read] == [("UA", 90)]


def run_dags(orders: list[Order], environment: dict[str, str], folder: Path) -> dict[str, Any]:
    """Run DAGs in a process of its own, and return what came of each order."""
    with (folder / "said").open("wb") as said:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.support.dag_test", str(folder / "result.json")],
            cwd=TOP,
            env=environment,
            input=json.dumps([asdict(order) for order in orders]).encode(),
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=400,
        )
    assert ran.returncode == 0, (folder / "said").read_text()[-5_000:]
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    shutil.rmtree(folder / "home", ignore_errors=True)
    return found
