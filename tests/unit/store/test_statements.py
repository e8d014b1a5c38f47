"""Statements under their names: what the driver is given of them, and that each is asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_kcr import store
from airflow_kcr.protocol.region import archive as past
from airflow_kcr.store import regions, schema_upgrade
from airflow_kcr.store.postgres import archive, history, lag, leases, ledger, region_reads, watchers
from airflow_kcr.store.postgres.statements import Statement

ROOM = Path(store.__file__).parent

SUBJECTS = {
    "archive": archive.SQL,
    "events": history.SQL,
    "lag": lag.SQL,
    "leases": leases.SQL,
    "ledger": ledger.SQL,
    "region": region_reads.SQL,
    "regions": regions.SQL,
    "upgrade": schema_upgrade.SQL,
    "watchers": watchers.SQL,
}


def test_a_parameter_is_numbered_once_and_a_cast_is_none() -> None:
    statement = Statement("SELECT :b, '1'::bit(1), :a WHERE x = :b")
    assert statement.numbered == b"SELECT $1, '1'::bit(1), $2 WHERE x = $1"
    assert statement.bound({"a": 1, "b": ["x", None], "c": 3}) == ['{"x",NULL}', 1]


def test_every_subject_is_loaded() -> None:
    assert {file.stem for file in (ROOM / "sql").iterdir()} == {*SUBJECTS, "parts"}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_nothing_of_a_subject_is_left_over_or_unfilled(subject: str) -> None:
    code = "".join(file.read_text() for file in [*ROOM.rglob("*.py"), Path(past.__file__)])
    text = (ROOM / "sql" / f"{subject}.sql").read_text()
    for name, statement in SUBJECTS[subject].items():
        assert not re.search(r"[{}]|--", statement.sql), name
        is_asked = f'"{name}"' in code or (name.startswith("forget_") and f'"{name.removeprefix("forget_")}"' in code)
        assert is_asked or f"{{{name}}}" in text, name
