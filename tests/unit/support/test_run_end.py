"""Whole pytest runs, each as a process of its own, and what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import psycopg
import pytest

from airflow_kcr.embedded.processes import happened

# Says where its server listens, then ends as it is told to.
INNER = """
from __future__ import annotations

import os
import pathlib
import time


def test_inner(database_url: str, postgres_server: object, tmp_path: pathlib.Path) -> None:
    told = pathlib.Path(os.environ["KCR_TEST_TELL"])
    run = next(folder for folder in tmp_path.parents if folder.name.startswith("kcr-tests-"))
    told.with_suffix(".draft").write_text(f"{{postgres_server.socket_dir}}\\n{{run}}")
    told.with_suffix(".draft").rename(told)
    {ending}
"""


# A run that was started in the background inherits an ignored SIGINT; what is tested here is Ctrl-C at a terminal.
RUN = (
    "import signal, sys, pytest; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "sys.exit(pytest.main(sys.argv[1:]))"
)


class InnerRun:
    """A pytest run with two workers, ended by the time the `with` block is."""

    def __init__(self, *, ending: str, folder: Path, top: Path, workers: int = 2) -> None:
        test_file = folder / "test_inner.py"
        test_file.write_text(INNER.format(ending=ending))
        self._told = folder / "told"
        options = ["-c", "pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", str(workers)]
        # A run beneath a worker of another run must not take itself for a worker.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", RUN, *options, str(test_file)],
            cwd=top,
            env=inherited | {"KCR_TEST_TELL": str(self._told)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C reaches all of a terminal's foreground processes, the workers too
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def folders(self) -> list[str]:
        """Return where its server listens, and its own folder."""
        happened(lambda: self._told.exists() or self._process.poll() is not None, within=60)
        assert self._told.exists(), "the inner test did not get as far as its database"
        return self._told.read_text().splitlines()

    def press_ctrl_c(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)

    def exit_status(self) -> int:
        self._process.communicate(timeout=500)
        return self._process.returncode


def assert_nothing_is_left_of(folders: list[str]) -> None:
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(host=folders[0], user="postgres", dbname="postgres")
    assert not any(Path(folder).exists() for folder in folders)


@pytest.mark.long
def test_a_run_that_fails_leaves_no_server(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    with InnerRun(ending="raise ValueError", folder=tmp_path, top=pytestconfig.rootpath) as run:
        folders = run.folders()
        assert run.exit_status() == pytest.ExitCode.TESTS_FAILED
    assert_nothing_is_left_of(folders)


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_is_interrupted_leaves_no_server(workers: int, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    with InnerRun(ending="time.sleep(60)", folder=tmp_path, top=pytestconfig.rootpath, workers=workers) as run:
        folders = run.folders()
        psycopg.connect(host=folders[0], user="postgres", dbname="postgres").close()  # it is there until then
        run.press_ctrl_c()
        assert run.exit_status() == pytest.ExitCode.INTERRUPTED
    assert_nothing_is_left_of(folders)
