from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

from airflow_kcr.api import verdict
from airflow_kcr.api.verdict import DroppedHistory, HistoryKeeper
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    import pytest


def test_a_time_that_fails_in_no_way_that_we_know_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries, over = iter((ValueError("a row of another kind"), KeyError("t"))), threading.Event()

    def drop(*_: object) -> DroppedHistory:
        if (error := next(tries, None)) is not None:
            raise error
        over.set()
        return DroppedHistory()

    for name, found in {"FIRST": 0.001, "PERIOD": 0.001, "keep_of": lambda *_: None, "drop_old": drop}.items():
        monkeypatch.setattr(verdict, name, found)
    keeper = HistoryKeeper(cast("RegionStore", None), RegionName("r"))
    keeper.start()
    assert over.wait(10)
    keeper.end()
    assert "a row of another kind" in caplog.text
