"""What the tests of members in processes of their own use."""

from __future__ import annotations

from functools import partial

import pytest

from airflow_kcr.protocol.rules import GroupProtocol
from tests.support.members import Lend

DYNAMIC = ", static_membership: false"
"""A further field of a group, as its spec has it."""

in_both_protocols = pytest.mark.parametrize(
    "protocol", [GroupProtocol.CLASSIC, pytest.param(GroupProtocol.CONSUMER, marks=pytest.mark.long)]
)
"""Runs a test in groups of either protocol; in the broker's own when it is its turn, as both take twice as long."""


@pytest.fixture
def protocol() -> GroupProtocol:
    """Which one the group of a region has that a test borrows; a test of both parametrizes it."""
    return GroupProtocol.CLASSIC


@pytest.fixture
def lend(lend: Lend, protocol: GroupProtocol) -> Lend:
    """Lends started regions whose groups have this protocol."""
    return partial(lend, protocol=protocol)
