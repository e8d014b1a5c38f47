"""What the tests of delivery use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.delivery_servers import Servers, two_servers


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Two servers of this test alone, the store's with its schema."""
    with two_servers(tmp_path) as both:
        yield both
