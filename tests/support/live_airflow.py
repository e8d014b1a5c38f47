"""A real Airflow of a test session: its own store, the run's broker, real users, and a folder for the DAGs of tests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_kcr.api import Region
from airflow_kcr.embedded.airflow import ROLES, Airflow, AirflowPlan, Component, copy_examples, start_examples_at
from airflow_kcr.embedded.airflow_client import ASKS, UNMAPPED, AirflowClient, HumanQuestion, part, run_path
from airflow_kcr.embedded.flights.data import BOOTSTRAP_VARIABLE
from airflow_kcr.embedded.flights.pipeline import OUTPUT_VARIABLE
from airflow_kcr.embedded.processes import happened
from airflow_kcr.schedules import Every
from airflow_kcr.store.schema_upgrade import upgrade
from tests.support.kafka import Kafka
from tests.support.tied import start_airflow, start_postgres

OWNER = "owner"
"""The user who may see the DAG `OWN` and what belongs to it, and no other DAG."""

OWN = "own_dag"
OWN_DAGS = "tests.support.own_dags.OwnDags"
"""The auth manager; imported by Airflow alone, as its libraries are those of a web server."""

TOP = Path(__file__).parents[2]
"""Of the repository, where `tests` can be imported from."""

EVERY = timedelta(seconds=20)
"""The time between two checkpoints of the example DAGs here."""

ASKED_WITHIN = 240.0
POLL_PERIOD = 0.5


class TestersClient(AirflowClient):
    """A client that does what only tests do."""

    def next_interval(self, dag: str) -> datetime | None:
        """Return the start of the data interval of a DAG's next run; None: it has no interval, or there is none."""
        text = self.request("GET", f"dags/{part(dag)}")["next_dagrun_data_interval_start"]
        return None if text is None else datetime.fromisoformat(text)

    def mark(self, dag: str, run_id: str, task: str, state: str, *, map_index: int | None = None) -> None:
        """Mark a task as `success` or `failed`, also one that runs."""
        mapped = "" if map_index is None else f"/{map_index}"
        self.request("PATCH", f"{run_path(dag, run_id)}/taskInstances/{part(task)}{mapped}", {"new_state": state})

    def log(self, dag: str, run_id: str, task: str, *, map_index: int = UNMAPPED) -> str:
        """Return the log of a task's newest try, with what it failed of."""
        found = self.task(dag, run_id, task, map_index)
        attempt = 1 if found is None else found.try_number
        path = f"{run_path(dag, run_id)}/taskInstances/{part(task)}/logs/{attempt}"
        content: list[Any] = self.request("GET", path, map_index=map_index, full_content=True)["content"]
        return "\n".join(text for line in content for text in _log_lines(line))


def _log_lines(line: object) -> list[str]:
    """Return what a line of a log says: its event, and each error that it tells of."""
    if not isinstance(line, dict):
        return [str(line)]
    errors = line.get("error_detail") or []
    return [str(line.get("event", "")), *(f"{one.get('exc_type')}: {one.get('exc_value')}" for one in errors)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAirflow:
    """Airflow, running, with what its DAGs work on."""

    airflow: Airflow
    editor: TestersClient
    viewer: TestersClient
    store_url: str
    kafka: Kafka
    dags: Path
    """A test may write its own DAG files here; the example DAGs are here too."""

    def add_dags(self, name: str, text: str, *dag_ids: str) -> None:
        """Write a DAG file, and wait until Airflow knows its DAGs."""
        (self.dags / f"{name}.py").write_text(text, encoding="utf-8")
        self.editor.wait_for_dags(dag_ids, within=120)
        for dag in dag_ids:
            self.editor.unpause(dag)

    def restart(self, component: Component) -> None:
        """Stop a component in good order, if it runs, start it again, and wait until it is well."""
        if component in self.airflow.children:
            self.airflow.children[component].stop(within=15)
        self.airflow.begin(component)
        self.airflow.await_health(component)

    @contextmanager
    def configured(self, environment: Mapping[str, str]) -> Iterator[None]:
        """Have the scheduler, and the tasks that it starts, run with further variables until the end of the block."""
        as_it_was = self.airflow.environment
        try:
            self.airflow.environment = {**as_it_was, **environment}
            self.restart(Component.SCHEDULER)
            yield
        finally:
            self.airflow.environment = as_it_was
            self.restart(Component.SCHEDULER)

    def kill(self, component: Component) -> None:
        """End a component at once, with everything that it has started and still knows as its own (SIGKILL)."""
        self.airflow.children[component].kill()

    def start_examples(self) -> None:
        """Have the first interval of the example DAGs begin now, so that none from before is made up for."""
        boundary = Every(EVERY).at_or_before(datetime.now(UTC))
        start_examples_at(boundary, self.dags)

        def is_read() -> bool:
            first = self.editor.next_interval("flights_checkpoint")
            return first is not None and first >= boundary

        assert happened(is_read, within=120, pause=POLL_PERIOD), "Airflow did not read the changed examples"

    def question(self, dag: str, run_id: str, task: str, *, after: int = 0) -> HumanQuestion:
        """Wait until a task asks a person, in a try after this one, and return what it asks.

        Airflow takes a task that is answered for lost until its scheduler has heard that the asking process ended,
        which is over before people have read a question. So that is waited for too.
        """
        client, failed = self.editor, {"upstream_failed", "failed"}

        def is_tried() -> bool:
            found = client.task(dag, run_id, task)
            return found is not None and (found.try_number > after or found.state in failed)

        assert happened(is_tried, within=ASKED_WITHIN, pause=POLL_PERIOD), f"{task} was not tried again"
        found = client.wait_for_task(dag, run_id, task, {*ASKS, *failed}, within=ASKED_WITHIN)
        if found.state not in ASKS:
            lost = [one for one in client.tasks(dag, run_id) if one.state == "failed"]
            raise AssertionError("\n".join(client.log(dag, run_id, one.task_id) for one in lost))
        log = self.airflow.folder / f"{Component.SCHEDULER}.log"
        heard = f"task_id='{task}', run_id='{run_id}', try_number={found.try_number}, map_index={found.map_index})"

        def is_heard() -> bool:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            return any(heard in line for line in lines if "Received executor event" in line)

        assert happened(is_heard, within=ASKED_WITHIN, pause=POLL_PERIOD), f"the scheduler did not hear of {task}"
        return client.question(dag, run_id, task)

    def owner(self) -> AirflowClient:
        """Return a client of the user who has rights to one DAG only; the caller closes it."""
        # Airflow makes a password for users without one.
        known = json.loads((self.airflow.folder / "passwords.json").read_text(encoding="utf-8"))
        return AirflowClient(url=self.airflow.known.url, user=OWNER, password=known[OWNER])

    def region(self, name: str) -> Region:
        """Return a region of the store; the caller closes it."""
        return Region(name, self.store_url)


@contextmanager
def live_airflow(folder: Path, kafka: Kafka) -> Iterator[LiveAirflow]:
    """Lend a running Airflow; it stops at the end, with everything that its tasks have started.

    Args:
        folder: where everything is kept.
        kafka: the broker that its DAGs use.
    """
    dags = folder / "dags"
    copy_examples(dags, every=EVERY, since=datetime.now(UTC))
    with ExitStack() as stack:
        postgres = stack.enter_context(start_postgres(folder / "postgres"))
        metadata, store_url = postgres.ensure_database("airflow"), postgres.ensure_database("kcr")
        upgrade(store_url)
        plan = AirflowPlan(
            folder=folder / "airflow",
            database_url=metadata,
            store_url=store_url,
            dags=dags,
            environment={
                BOOTSTRAP_VARIABLE: kafka.bootstrap_servers,
                OUTPUT_VARIABLE: str(folder / "output"),
                # For the auth manager, which is one of the tests' own.
                "KCR_TEST_OWNER": OWNER,
                "KCR_TEST_OWN_DAG": OWN,
                "PYTHONPATH": os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            },
            settings={
                "CORE__AUTH_MANAGER": OWN_DAGS,
                "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                    f"{name}:{role}" for name, role in {**ROLES, OWNER: "viewer"}.items()
                ),
            },
        )
        airflow = start_airflow(plan)
        stack.callback(airflow.stop)
        viewer, editor = (
            stack.enter_context(TestersClient(url=airflow.known.url, user=user.name, password=user.password))
            for user in airflow.known.users[:2]
        )
        yield LiveAirflow(
            airflow=airflow,
            editor=editor,
            viewer=viewer,
            store_url=store_url,
            kafka=kafka,
            dags=dags,
        )
