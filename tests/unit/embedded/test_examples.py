"""The example DAGs: they stand alone, and a copy has its own times."""

from __future__ import annotations

import ast
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_kcr.embedded import airflow
from airflow_kcr.embedded.airflow import FLIGHTS_SPEC, copy_examples, example_dags
from airflow_kcr.errors import ServiceFailed
from airflow_kcr.spec import load

SINCE = datetime(2026, 3, 1, 10, 0, 7, tzinfo=UTC)


def test_no_example_imports_what_is_there_for_the_demo() -> None:
    for file in example_dags().glob("*.py"):
        imported = [
            node.module or "" for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)
        ]
        assert [name for name in imported if name.startswith("airflow_kcr.embedded")] == [], file.name


def test_a_copy_has_its_own_times_and_replaces_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "old.py").touch()
    copy_examples(folder, every=timedelta(seconds=20), since=SINCE)
    assert {file.name for file in folder.iterdir()} == {
        file.name for file in example_dags().iterdir() if file.name != "__pycache__"
    }
    assert load(folder / FLIGHTS_SPEC).checkpoint.every == timedelta(seconds=20)
    for name in ("minimal.py", "flights_checkpoint.py"):
        assert "LIVE_SINCE = datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)" in (folder / name).read_text()


def test_examples_without_a_place_for_a_time_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "changed"
    copy_examples(changed, every=timedelta(seconds=20), since=SINCE)
    (changed / "minimal.py").write_text("")
    monkeypatch.setattr(airflow, "example_dags", lambda: changed)
    with pytest.raises(ServiceFailed, match=r"minimal\.py of the example DAGs has no line"):
        copy_examples(tmp_path / "dags", every=timedelta(seconds=20), since=SINCE)
    assert not (tmp_path / "dags").exists()
