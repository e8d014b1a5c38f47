from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import UUID

from airflow_kcr.embedded import servers

if TYPE_CHECKING:
    import pytest


def test_an_id_of_a_cluster_never_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([UUID(int=0xF8 << 120), UUID(int=0xFB << 120), UUID(int=1)])
    monkeypatch.setattr(servers, "uuid4", lambda: next(drawn))
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", servers.new_cluster_id())
    assert list(drawn) == []
