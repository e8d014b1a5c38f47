"""What the tests of members in processes of their own use."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.kafka import Kafka
from tests.support.members import BRISK, Live, live


class Lend(Protocol):
    """What the fixture `lend` gives."""

    def __call__(
        self, *, members: int = 3, partitions: int = 6, spec: str = BRISK, group: str = ""
    ) -> AbstractContextManager[Live]:
        """Start a region over a new topic; at the end of the block every process is ended."""
        ...


@pytest.fixture
def lend(kafka: Kafka, database_url: str, tmp_path: Path) -> Lend:
    """Lends started regions of the run's broker."""

    def lent(
        *, members: int = 3, partitions: int = 6, spec: str = BRISK, group: str = ""
    ) -> AbstractContextManager[Live]:
        return live(kafka, database_url, tmp_path, members=members, partitions=partitions, spec=spec, group=group)

    return lent
