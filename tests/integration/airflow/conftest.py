"""A real Airflow for the tests of this folder, started once for each process that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from airflow_kcr.embedded.flights.data import BOOTSTRAP_VARIABLE
from tests.support import browsing
from tests.support.browser import Person
from tests.support.kafka import Kafka
from tests.support.live_airflow import LiveAirflow, live_airflow

__all__ = ["browsing"]
"""Loaded first: Airflow's API server loads the same library, and warns of it."""


@pytest.fixture(scope="session")
def airflow(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveAirflow]:
    """Airflow with the example DAGs, on the run's broker; a test that stops a part of it starts it again."""
    with pytest.MonkeyPatch.context() as patched:
        # The spec of the examples takes the broker's address from there, in this process as well.
        patched.setenv(BOOTSTRAP_VARIABLE, kafka.bootstrap_servers)
        with live_airflow(tmp_path_factory.mktemp("live"), kafka) as live:
            yield live


@pytest.fixture
def browser(airflow: LiveAirflow) -> Iterator[Callable[[str], Person]]:
    """A user at Airflow's pages, logged in under that name."""
    from tests.support.browser import person_at  # its library is for these tests alone

    with ExitStack() as stack:

        def opened(name: str) -> Person:
            (user,) = [one for one in airflow.airflow.known.users if one.name == name]
            person = stack.enter_context(person_at(airflow.airflow.known.url))
            person.logs_in(user.name, user.password)
            return person

        yield opened
