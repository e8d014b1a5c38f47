"""What every test may use: the Hypothesis profiles, the databases and the marker of the tests that use them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.support import postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.workermanage import WorkerController

# A deadline would fail a test because the machine was busy; a failure must be reproducible from what CI prints.
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=False, print_blob=True)
settings.register_profile(
    "long", max_examples=5_000, stateful_step_count=200, deadline=None, derandomize=False, print_blob=True
)
settings.load_profile(os.environ.get("KCR_HYPOTHESIS_PROFILE", "ci"))

DATABASE_FIXTURES = {"postgres_server", "database_url", "empty_database_url"}

RUN_DIR = pytest.StashKey[Path]()
OWNED_RUN = pytest.StashKey[postgres.Run]()


def pytest_configure(config: pytest.Config) -> None:
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    if workerinput is None:
        run = postgres.Run.open()
        config.stash[OWNED_RUN] = run
        config.stash[RUN_DIR] = run.path
    else:
        config.stash[RUN_DIR] = Path(workerinput["kcr_run_dir"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    # The hook of xdist that hands something to a worker before it starts.
    node.workerinput["kcr_run_dir"] = str(node.config.stash[RUN_DIR])


def pytest_unconfigure(config: pytest.Config) -> None:
    # After the workers are gone, and on Ctrl-C too.
    if OWNED_RUN in config.stash:
        config.stash[OWNED_RUN].close()
        del config.stash[OWNED_RUN]


# First, so that the markers set here are seen by the deselection of `-m`.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if DATABASE_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("postgres")


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> postgres.Server:
    """The Postgres of this run; `pytest_unconfigure` stops it."""
    return postgres.start_server(pytestconfig.stash[RUN_DIR])


@pytest.fixture(scope="session")
def database_template(postgres_server: postgres.Server) -> str:
    """The name of the database that has the newest schema and nothing in it."""
    return postgres_server.ensure_template()


@pytest.fixture
def database_url(postgres_server: postgres.Server, database_template: str) -> Iterator[str]:
    """A fresh database with the newest schema, for this test alone."""
    with postgres_server.database(template=database_template) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres_server: postgres.Server) -> Iterator[str]:
    """A fresh database with nothing in it, for this test alone."""
    with postgres_server.database() as url:
        yield url
