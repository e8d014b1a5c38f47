"""What a person does in Airflow's pages, done over its REST interface: for the demo and the tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Self
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import RefusedError, ServiceFailed, TimedOut

if TYPE_CHECKING:
    import httpx

ANSWER_WITHIN: Final = 60.0
"""Seconds; the first request after a start takes ten and more on a small machine."""

RUN_ENDS: Final = frozenset({"success", "failed"})
TASK_ENDS: Final = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
ASKS: Final = frozenset({"awaiting_input", "deferred"})
"""The states of a task that asks a person: the second one before Airflow 3.3, where a trigger waits for the answer."""

UNMAPPED: Final = -1
"""The index of a task that is not mapped."""

_PAGE: Final = 100
_PAUSE: Final = 0.5
"""Seconds between two questions of one that waits: an answer costs the API server tens of milliseconds."""
_REFUSED: Final = frozenset({401, 403})
"""What Airflow answers to who may not: to a wrong password, and to one who lacks a right."""


@dataclass(slots=True)
class AirflowClient:
    """Acts as one user.

    Args:
        url: of Airflow.
        user: who logs in.
        password: with which.
    """

    url: str
    user: str
    password: str = field(repr=False)
    _client: httpx.Client | None = field(default=None, init=False, repr=False)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    # -- DAGs ----------------------------------------------------------------------------------------------------

    def dag_ids(self) -> frozenset[str]:
        """Return the DAGs that Airflow knows and has parsed."""
        return frozenset(one["dag_id"] for one in self._pages("dags", "dags"))

    def import_errors(self) -> dict[str, str]:
        """Return what is wrong with DAG files, by their names."""
        return {one["filename"]: one["stack_trace"] for one in self._pages("importErrors", "import_errors")}

    def wait_for_dags(self, dags: Collection[str], *, within: float = ANSWER_WITHIN) -> None:
        """Wait until Airflow knows DAGs.

        Raises:
            TimedOut: it does not; the message has what is wrong with their files.
        """
        if not happened(lambda: set(dags) <= self.dag_ids(), within=within, pause=_PAUSE):
            errors = "\n".join(f"{name}:\n{trace}" for name, trace in self.import_errors().items())
            missing = ", ".join(sorted(set(dags) - self.dag_ids()))
            raise TimedOut(f"Airflow does not know {missing} after {within:g} s. {errors or 'No import error.'}")

    def unpause(self, dag: str) -> None:
        """Let a DAG be scheduled."""
        self.request("PATCH", f"dags/{part(dag)}", {"is_paused": False})

    def pause(self, dag: str) -> None:
        """Let a DAG be scheduled no more; what runs continues."""
        self.request("PATCH", f"dags/{part(dag)}", {"is_paused": True})

    # -- runs ----------------------------------------------------------------------------------------------------

    def trigger(
        self, dag: str, conf: Mapping[str, object] | None = None, *, logical_date: datetime | None = None
    ) -> AirflowRun:
        """Start a run; without a logical date it has no data interval.

        Raises:
            RefusedError: this user may not.
        """
        date = None if logical_date is None else logical_date.isoformat()
        told = {"logical_date": date, "conf": dict(conf or {})}
        return AirflowRun.model_validate(self.request("POST", f"dags/{part(dag)}/dagRuns", told))

    def run(self, dag: str, run_id: str) -> AirflowRun:
        """Return a run as it is now."""
        return AirflowRun.model_validate(self.request("GET", run_path(dag, run_id)))

    def runs(self, dag: str) -> tuple[AirflowRun, ...]:
        """Return the runs of a DAG, oldest first."""
        found = self._pages(f"dags/{part(dag)}/dagRuns", "dag_runs", order_by="id")
        return tuple(AirflowRun.model_validate(one) for one in found)

    def wait_for_run(
        self, dag: str, run_id: str, states: Collection[str] = RUN_ENDS, *, within: float = 300.0
    ) -> AirflowRun:
        """Wait until a run is in one of some states, and return it.

        Raises:
            TimedOut: it is not; the message has the states of its tasks.
        """
        if not happened(lambda: self.run(dag, run_id).state in states, within=within, pause=_PAUSE):
            now = ", ".join(f"{one.task_id}[{one.map_index}]: {one.state}" for one in self.tasks(dag, run_id))
            raise TimedOut(f"run {run_id} of {dag} is not {' or '.join(sorted(states))} after {within:g} s; {now}")
        return self.run(dag, run_id)

    # -- tasks ---------------------------------------------------------------------------------------------------

    def tasks(self, dag: str, run_id: str) -> tuple[TaskInstance, ...]:
        """Return the tasks of a run, mapped ones one by one."""
        found = self._pages(f"{run_path(dag, run_id)}/taskInstances", "task_instances")
        return tuple(TaskInstance.model_validate(one) for one in found)

    def task(self, dag: str, run_id: str, task: str, map_index: int = UNMAPPED) -> TaskInstance | None:
        """Return a task of a run, None if it is not there (yet)."""
        wanted = (task, map_index)
        return next((one for one in self.tasks(dag, run_id) if (one.task_id, one.map_index) == wanted), None)

    def wait_for_task(
        self, dag: str, run_id: str, task: str, states: Collection[str] = TASK_ENDS, *, within: float = 120.0
    ) -> TaskInstance:
        """Wait until a task is in one of some states, and return it.

        Raises:
            TimedOut: it is not; the message has its state.
        """
        found: TaskInstance | None = None

        def is_there() -> bool:
            nonlocal found
            found = self.task(dag, run_id, task)
            return found is not None and found.state in states

        if not happened(is_there, within=within, pause=_PAUSE) or found is None:
            raise TimedOut(
                f"task {task} of {run_id} of {dag} is not {' or '.join(sorted(states))} after "
                f"{within:g} s, but {found.state if found else 'not there'}"
            )
        return found

    def clear(self, dag: str, run_id: str, tasks: Sequence[str | tuple[str, int]]) -> None:
        """Clear tasks of a run, whatever their states, so that they run again; a pair names one that is mapped."""
        told = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [one if isinstance(one, str) else list(one) for one in tasks],
            "only_failed": False,
        }
        self.request("POST", f"dags/{part(dag)}/clearTaskInstances", told)

    def result(self, dag: str, run_id: str, task: str) -> object:
        """Return what a task has returned (its XCom)."""
        path = f"{run_path(dag, run_id)}/taskInstances/{part(task)}/xcomEntries/return_value"
        found: object = self.request("GET", path, map_index=UNMAPPED, deserialize=True)["value"]
        return found

    # -- questions to a person -----------------------------------------------------------------------------------

    def question(self, dag: str, run_id: str, task: str) -> HumanQuestion:
        """Return what a task asks.

        Raises:
            ServiceFailed: it asks nothing (yet).
        """
        return HumanQuestion.model_validate(self.request("GET", _question_path(dag, run_id, task)))

    def answer(
        self, dag: str, run_id: str, task: str, options: Sequence[str], fields: Mapping[str, object] | None = None
    ) -> None:
        """Answer a task as this user: the buttons that are pressed, and the fields of the form.

        A field that is not given has the value that the form shows.

        Raises:
            RefusedError: this user may not.
        """
        shown = {name: field["value"] for name, field in self.question(dag, run_id, task).params.items()}
        told = {"chosen_options": list(options), "params_input": {**shown, **(fields or {})}}
        self.request("PATCH", _question_path(dag, run_id, task), told)

    # ------------------------------------------------------------------------------------------------------------

    def _pages(self, path: str, name: str, **query: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        while True:
            page = self.request("GET", path, None, limit=_PAGE, offset=len(found), **query)
            found += page[name]
            if len(found) >= page["total_entries"] or not page[name]:
                return found

    def request(
        self, method: str, path: str, told: Mapping[str, object] | None = None, **query: str | int | bool
    ) -> Mapping[str, Any]:
        """Return what the REST interface answers.

        Raises:
            RefusedError: this user may not.
            ServiceFailed: Airflow does not answer, or refuses for another reason.
        """
        import httpx

        if self._client is None:
            self._client = httpx.Client(base_url=self.url, timeout=ANSWER_WITHIN)
        try:
            if "Authorization" not in self._client.headers:
                login = {"username": self.user, "password": self.password}
                token = self._client.post("/auth/token", json=login).raise_for_status().json()["access_token"]
                self._client.headers["Authorization"] = f"Bearer {token}"
            answer = self._client.request(method, f"/api/v2/{path}", json=told, params=query)
            answer.raise_for_status()
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            refusal = RefusedError if status in _REFUSED else ServiceFailed
            raise refusal(f"Airflow refuses {self.user} {method} {path}: {status} {error.response.text}") from error
        except httpx.HTTPError as error:
            raise ServiceFailed(f"Airflow at {self.url} does not answer: {error}") from error
        found: Mapping[str, Any] = answer.json() if answer.content else {}
        return found


def heartbeats(url: str) -> dict[str, datetime]:
    """Return when each healthy component was last heard of, by its name in the health page; nothing: no answer."""
    import httpx

    try:
        answer = httpx.get(f"{url}/api/v2/monitor/health", timeout=ANSWER_WITHIN).raise_for_status()
    except httpx.HTTPError:
        return {}
    heartbeats = {name: (one or {}).get(f"latest_{name}_heartbeat") for name, one in answer.json().items()}
    heard = {name: datetime.fromisoformat(heartbeat) for name, heartbeat in heartbeats.items() if heartbeat}
    return {"api_server": datetime.now(UTC), **heard}


def part(text: str) -> str:
    """Return an id as a part of a path."""
    return quote(text, safe="")


def run_path(dag: str, run_id: str) -> str:
    """Return where a run is."""
    return f"dags/{part(dag)}/dagRuns/{part(run_id)}"


def _question_path(dag: str, run_id: str, task: str) -> str:
    return f"{run_path(dag, run_id)}/taskInstances/{part(task)}/{UNMAPPED}/hitlDetails"


# Runs, tasks and questions of Airflow, as its REST interface shows them.

_READ: Final = ConfigDict(frozen=True, extra="ignore")


class AirflowRun(BaseModel):
    """A run of a DAG."""

    model_config = _READ

    run_id: str = Field(alias="dag_run_id")
    state: str
    interval_end: datetime | None = Field(alias="data_interval_end")
    ended: datetime | None = Field(alias="end_date")
    partition_key: str | None = None


class TaskInstance(BaseModel):
    """A task of a run; `map_index` is -1 if it is not mapped, `state` None before it is read.

    `id` is another one for each try.
    """

    model_config = _READ

    id: str
    task_id: str
    map_index: int
    state: str | None
    try_number: int


class HumanQuestion(BaseModel):
    """What a task asks a person."""

    model_config = _READ

    subject: str
    body: Annotated[str, BeforeValidator(lambda told: told or "")]
    options: tuple[str, ...]
    params: Mapping[str, Mapping[str, Any]]
    """The fields of its form by their names, each with its `value` and its `schema`."""

    response_received: bool
    """Whether it was answered; before Airflow 3.3 the task stays deferred for a while then."""
