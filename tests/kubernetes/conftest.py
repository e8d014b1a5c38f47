"""The cluster of a run, and what consumers need beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster, cluster
from tests.kubernetes.installation import reason_against
from tests.kubernetes.services import Services, services


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster, with the manifest of the page."""
    if reason := reason_against():
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("kubernetes")) as one:
        yield one


@pytest.fixture(scope="session")
def beside(kubernetes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Kafka and a store, which pods of the cluster reach."""
    with services(tmp_path_factory.mktemp("services")) as both:
        kubernetes.kubectl("create", "secret", "generic", "kcr", f"--from-literal=store-url={both.store}")
        yield both
