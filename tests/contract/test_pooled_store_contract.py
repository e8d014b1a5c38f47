"""The contract of the store, once more behind a pooler by transaction that has one connection to the server.

What holds a second connection while it has one would wait for itself here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_members_contract import *  # noqa: F403
from tests.contract.test_regions_contract import *  # noqa: F403
from tests.support.pgbouncer import needs_pgbouncer, pooled
from tests.support.stores import Subject, postgres_subject

pytestmark = [pytest.mark.postgres, needs_pgbouncer]


@pytest.fixture
def subject(database_url: str, tmp_path: Path) -> Iterator[Subject]:
    """A store with nothing in it."""
    with (
        pooled(database_url, tmp_path, "ignore_startup_parameters = options", "default_pool_size = 1") as url,
        postgres_subject(url) as found,
    ):
        yield found
