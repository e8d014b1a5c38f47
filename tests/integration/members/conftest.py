"""What the tests of members in processes of their own use."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from airflow_kcr.protocol.rules import GroupProtocol
from tests.support.kafka import Kafka
from tests.support.members import BRISK, Live, live

in_both_protocols = pytest.mark.parametrize(
    "protocol", [GroupProtocol.CLASSIC, pytest.param(GroupProtocol.CONSUMER, marks=pytest.mark.long)]
)
"""Runs a test in groups of either protocol; in the broker's own when it is its turn, as both take twice as long."""


class Lend(Protocol):
    """What the fixture `lend` gives."""

    def __call__(
        self, *, members: int = 3, partitions: int = 6, spec: str = BRISK, group: str = ""
    ) -> AbstractContextManager[Live]:
        """Start a region over a new topic; at the end of the block every process is ended."""
        ...


@pytest.fixture
def protocol() -> GroupProtocol:
    """Which one the group of a region has that a test borrows; a test of both parametrizes it."""
    return GroupProtocol.CLASSIC


@pytest.fixture
def spoken(protocol: GroupProtocol) -> str:
    """The same as a further field of the group; nothing where it is the default."""
    return "" if protocol is GroupProtocol.CLASSIC else f", protocol: {protocol}"


@pytest.fixture
def lend(kafka: Kafka, database_url: str, tmp_path: Path, spoken: str) -> Lend:
    """Lends started regions of the run's broker."""

    def lent(
        *, members: int = 3, partitions: int = 6, spec: str = BRISK, group: str = ""
    ) -> AbstractContextManager[Live]:
        return live(
            kafka, database_url, tmp_path, members=members, partitions=partitions, spec=spec, group=group + spoken
        )

    return lent
