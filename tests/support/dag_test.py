"""A process that runs DAGs of a folder with `dag.test()`, one after the other, and answers what they ask a person.

Started by tests, since Airflow reads its settings when it is imported. On standard input it is given a list of `Order`
as JSON, when all else is ready, and it writes what has come of each into a file. A person answers over the API of an
Airflow with the same metadata database; here it is in this process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_kcr.embedded.airflow_client import ASKS

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from fastapi.testclient import TestClient

POLL_PERIOD = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One DAG to run."""

    dag: str
    logical_date: str | None = None
    """With an offset; None: the run has no data interval."""

    environment: dict[str, str] = field(default_factory=dict)
    """What is different while it runs, for instance an Airflow connection."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By task, what a person answers: `options` and `fields`; a value of None in `fields` is left as it was shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerer:
    """A user of Airflow's API who answers the questions of one run, each as soon as it waits."""

    dag: str
    answers: dict[str, dict[str, Any]]
    ended: threading.Event = field(default_factory=threading.Event)
    shown: dict[str, Any] = field(default_factory=dict)
    """The questions that were answered, by task."""

    def run(self) -> None:
        """Answer until the run has ended; who can't ends the process, since `dag.test()` would wait for ever."""
        try:
            self._answer()
        except Exception:  # noqa: BLE001 (whatever it is)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(3)

    def _answer(self) -> None:
        client = _api()
        open_ones = dict(self.answers)
        while open_ones and not self.ended.wait(POLL_PERIOD):
            with suppress(KeyError):
                found = client.get(f"dags/{self.dag}/dagRuns/~/taskInstances").json()
                for task in found["task_instances"]:
                    answer = open_ones.get(task["task_id"])
                    if answer is None or task["state"] not in ASKS:
                        continue
                    place = (
                        f"dags/{self.dag}/dagRuns/{task['dag_run_id']}/taskInstances/{task['task_id']}/-1/hitlDetails"
                    )
                    question = client.get(place).json()
                    self.shown[task["task_id"]] = question
                    shown = {name: question["params"][name]["value"] for name in answer["fields"]}
                    fields = {name: shown[name] if value is None else value for name, value in answer["fields"].items()}
                    told = {"chosen_options": answer["options"], "params_input": fields}
                    if client.patch(place, json=told).is_success:
                        del open_ones[task["task_id"]]


def main(output: Path) -> None:
    """Make the metadata, read the DAGs, run what standard input then says, and write what came of it."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.utils.db import upgradedb

    upgradedb()
    bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    if bag.import_errors:
        raise SystemExit(str(bag.import_errors))
    orders = [Order(**one) for one in json.load(sys.stdin)]
    found = {order.dag: _ran(order, bag.dags[order.dag]) for order in orders}
    output.write_text(json.dumps(found, default=str))


@lru_cache(maxsize=1)
def _api() -> TestClient:
    """Airflow's API, with an administrator logged in."""
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    client = TestClient(create_app(apps="core"), base_url="http://test/api/v2/")
    client.headers["Authorization"] = f"Bearer {client.get('http://test/auth/token').json()['access_token']}"
    return client


def _ran(order: Order, dag: Any) -> dict[str, Any]:  # noqa: ANN401 (Airflow's own)
    os.environ |= order.environment
    answerer = Answerer(dag=order.dag, answers=order.answers)
    thread = threading.Thread(target=answerer.run, daemon=True)
    if order.answers:
        thread.start()
    moment = None if order.logical_date is None else datetime.fromisoformat(order.logical_date)
    try:
        run = dag.test(logical_date=moment)
    finally:
        answerer.ended.set()
        if order.answers:
            thread.join(30)
    return {"state": str(run.state), "shown": answerer.shown, **_tasks(run)}


def _tasks(run: DagRun) -> dict[str, Any]:
    found = sorted(run.get_task_instances(), key=lambda one: (one.task_id, one.map_index))
    return {
        "tasks": [(one.task_id, one.map_index, str(one.state)) for one in found],
        "results": {one.task_id: one.xcom_pull(one.task_id) for one in found if one.map_index < 0},
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
