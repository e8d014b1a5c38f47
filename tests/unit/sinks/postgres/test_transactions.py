"""What a transaction on a target says of an error of the driver."""

from __future__ import annotations

import psycopg
import pytest

from airflow_kcr.errors import SinkError
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.sinks.postgres.database import Database


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (psycopg.OperationalError("FATAL:  no more of hunter2"), r"can't be reached; nothing was changed$"),
        (psycopg.OperationalError("FATAL:  the database system is hunter2"), r"does not take connections now\)"),
        (psycopg.DataError("hunter2 has NUL"), r"can't be run \(DataError\)"),
        (psycopg.errors.UniqueViolation("Key (a)=(hunter2) already exists"), "with these unique values exists already"),
        (psycopg.errors.RaiseException("hunter2"), "SQLSTATE P0001"),
    ],
    ids=["lost", "away", "driver", "unique", "raised"],
)
def test_no_words_of_the_server_s_are_told(error: psycopg.Error, told: str) -> None:
    database = Database("postgresql://u@h/d", timeouts=Timeouts(), who="sink out")
    with pytest.raises(SinkError, match=told) as raised, database._translated():
        raise error
    assert "hunter2" not in str(raised.value)
    assert raised.value.__suppress_context__
