"""What `kcr demo` says before it starts anything."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

from typer.testing import CliRunner

from airflow_kcr.api.waiting import OnProgress, Progress
from airflow_kcr.cli import app
from airflow_kcr.embedded.demo.play import Play


def test_the_readme_and_the_help_name_the_same_memory() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    said = CliRunner().invoke(app, ["demo", "--help"]).stdout
    memory = re.compile(r"\d+ to \d+\s+GiB|\d+\s+GiB")
    named = {" ".join(found.split()) for text in (readme, said) for found in memory.findall(text)}
    assert named == {"4 to 5 GiB"}


def test_the_screen_names_who_is_missing_in_words() -> None:
    told: list[str] = []
    progress = Progress(
        what="flights to be running",
        waited=timedelta(0),
        state="starting",
        missing=("flights-etl[0] is not there (no lease)", "flights-etl[1] is not there (no lease)"),
    )

    class Scene:
        """Kafka, Airflow and a region that wait for nothing."""

        def wait_for(self, goal: object, timeout: timedelta, on_progress: OnProgress) -> None:
            on_progress(progress)
            on_progress(replace(progress, missing=()))

        def wait_for_dags(self, dags: object, *, within: float) -> None:
            pass

        def unpause(self, dag: str) -> None:
            pass

        trigger = unpause

        def tell(self, done: float, total: float | None = None, text: str = "") -> None:
            told.append(text)

    scene = Scene()
    Play.start_consumers(SimpleNamespace(region=scene, editor=scene), scene.tell)  # type: ignore[arg-type]
    assert told == ["flights-etl[0] is not there (no lease)", ""]


def test_a_folder_that_has_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")
    done = CliRunner().invoke(app, ["demo", "--folder", str(tmp_path)])
    assert done.exit_code == 2
    assert "is not an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_without_java_it_says_what_to_install_and_leaves_nothing(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        ["demo", "--folder", str(tmp_path / "demo")],
        env={"PATH": str(tmp_path), "JAVA_HOME": "", "KCR_HOME": str(tmp_path / "home")},
    )
    assert done.exit_code == 2
    assert "install a Java runtime, version 17 or newer" in done.stderr
    assert not (tmp_path / "demo").exists()
