"""What `kcr demo` says before it starts anything."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from airflow_kcr.cli import app


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
