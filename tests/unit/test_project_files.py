from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
ALLOWED_AT_THE_TOP = {"LICENSE", "README.md", "airflow_kcr", "dags_example", "docs", "pyproject.toml", "tests"}


def readme_test_command() -> str:
    readme = (TOP / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^## Tests$.*?^```(?:console|shell|bash|sh)\n(.+?)\n```$", readme, re.MULTILINE | re.DOTALL)
    assert found, "README.md has no section 'Tests' with a command"
    return found[1]


def test_ci_runs_the_readmes_test_command() -> None:
    command = readme_test_command()
    assert "\n" not in command, "one command, not several"
    assert command in (TOP / ".ci" / "run").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", ["run", "check"])
def test_ci_scripts_can_be_started(name: str) -> None:
    assert os.access(TOP / ".ci" / name, os.X_OK)


def test_the_top_level_stays_small() -> None:
    if shutil.which("git") is None or not (TOP / ".git").exists():
        pytest.skip("not a git checkout, so what belongs to the project is not known")
    # Tracked files and new ones, but not what .gitignore names.
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=TOP,
        check=True,
        capture_output=True,
        text=True,
    )
    names = {line.partition("/")[0] for line in listing.stdout.splitlines()}
    assert {name for name in names if not name.startswith(".")} <= ALLOWED_AT_THE_TOP
