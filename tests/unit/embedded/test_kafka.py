from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_kcr.embedded import servers

if TYPE_CHECKING:
    import pytest


def test_an_id_of_a_cluster_never_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["-" + "A" * 21, "-" * 22, "A-" * 11])
    monkeypatch.setattr("secrets.token_urlsafe", lambda size: next(drawn))
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", servers.new_cluster_id())
    assert list(drawn) == []
