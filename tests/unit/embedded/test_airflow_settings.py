"""What an embedded Airflow is told, and what its folder keeps."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from airflow_kcr.embedded.airflow import MARKER, AirflowPlan, environment, kept


def plan(folder: Path, store_url: str = "postgresql://keeper:hush@db.example:5433/store") -> AirflowPlan:
    return AirflowPlan(
        folder=folder,
        database_url="postgresql://postgres@127.0.0.1:5432/airflow",
        store_url=store_url,
        dags=folder / "dags",
        environment={"KCR_FLIGHTS_EVERY": "20s"},
        settings={"WORKERS__MAX_FAILED_HEARTBEATS": "3"},
    )


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_kcr.embedded.airflow.resolve", lambda jars: (Path("/jars/connector.jar"),))


def test_a_folder_keeps_its_ports_its_keys_and_its_passwords(tmp_path: Path) -> None:
    first = kept(tmp_path)
    again = kept(tmp_path)
    assert first == again
    assert len(set(first.ports.values())) == 3
    assert [(user.name, user.role) for user in first.users] == [
        ("viewer", "viewer"),
        ("editor", "user"),
        ("admin", "admin"),
    ]
    assert len({user.password for user in first.users}) == 3


def test_nobody_else_may_read_them_and_they_are_not_shown(tmp_path: Path) -> None:
    known = kept(tmp_path)
    environment(plan(tmp_path), known)
    for name in ("airflow.json", "passwords.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert known.users[0].password not in repr(known)
    assert known.keys["jwt"] not in repr(known)


def test_the_users_log_in_with_the_passwords_of_the_folder_and_nobody_is_admin_without_one(tmp_path: Path) -> None:
    known = kept(tmp_path)
    told = environment(plan(tmp_path), known)
    assert told["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "viewer:viewer,editor:user,admin:admin"
    assert told["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] == "False"
    passwords = json.loads(Path(told["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]).read_text())
    assert passwords == {user.name: user.password for user in known.users}


def test_airflow_has_each_setting(tmp_path: Path) -> None:
    from airflow.configuration import retrieve_configuration_description  # reads Airflow's settings when imported

    known = retrieve_configuration_description()
    names = [name.lower().split("__", 2)[1:] for name in environment(plan(tmp_path), kept(tmp_path))]
    told = [name for name in names if len(name) == 2]
    assert len(told) > 20
    assert [name for name in told if name[1] not in known[name[0]]["options"]] == []


def test_the_store_is_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import Connection  # reads Airflow's settings when imported

    told = environment(plan(tmp_path), kept(tmp_path))
    found = Connection.from_uri(told["AIRFLOW_CONN_KCR_DEFAULT"], conn_id="kcr_default")
    assert (found.conn_type, found.host, found.port, found.schema) == ("kcr", "db.example", 5433, "store")
    assert (found.login, found.password) == ("keeper", "hush")
    assert json.loads(told["AIRFLOW_CONN_SPARK_DEFAULT"])["host"] == "local[*]"


def test_its_processes_write_down_what_they_have_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in environment(plan(tmp_path), kept(tmp_path))


def test_what_the_user_has_set_for_another_airflow_does_not_get_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "True")
    monkeypatch.setenv("AIRFLOW_HOME", "/elsewhere")
    told = environment(plan(tmp_path), kept(tmp_path))
    assert told["AIRFLOW__CORE__LOAD_EXAMPLES"] == "False"
    assert told["AIRFLOW_HOME"] == str(tmp_path / "home")
    assert told[MARKER] == str(tmp_path)


def test_what_the_plan_says_wins_and_tasks_see_its_variables(tmp_path: Path) -> None:
    told = environment(plan(tmp_path), kept(tmp_path))
    assert told["AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS"] == "3"
    assert told["KCR_FLIGHTS_EVERY"] == "20s"
    assert told["KCR_SPARK_JARS"] == "/jars/connector.jar"
