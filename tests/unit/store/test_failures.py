"""Connections that were never made, of which libpq says nothing but a sentence; the others have real servers."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy.engine import make_url

from airflow_kcr.errors import StoreRefused, StoreUnavailable
from airflow_kcr.store.postgres.failures import address_of, before_commit

ADDRESS = address_of(make_url("postgresql://kcr:hunter2@db.example.com/kcr"))
AT = 'connection failed: connection to server at "10.0.0.1", port 5432 failed: '


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (AT + 'FATAL:  password authentication failed for user "kcr"', "refused the login; check user and password"),
        (AT + "fe_sendauth: no password supplied", "refused the login; check user and password"),
        (AT + 'FATAL:  role "kcr" is not permitted to log in', "refused the login; check user and password"),
        (AT + 'FATAL:  no pg_hba.conf entry for host "10.0.0.2", user "kcr", no encryption', "sslmode"),
        (AT + 'FATAL:  permission denied for database "kcr"', "may not use the database"),
    ],
)
def test_what_no_further_try_can_help_is_a_refusal(text: str, why: str) -> None:
    found = before_commit(psycopg.OperationalError(text), ADDRESS, 0.1)
    assert isinstance(found, StoreRefused)
    assert why in found.message
    assert found.message.startswith("the store at kcr@db.example.com/kcr can't be used: ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("connection timeout expired", " (no answer in time)"),
        (
            "failed to resolve host 'db.example.com': [Errno -2] Name or service not known",
            " (the host's name is not known)",
        ),
        (
            AT + "server does not support SSL, but SSL was required",
            " (no encryption that both sides accept; check sslmode)",
        ),
        (AT + "FATAL:  sorry, too many clients already", " (the server has no connection left)"),
        (AT + "FATAL:  the database system is starting up", " (the server does not take connections now)"),
        ("consuming input failed: SSL connection has been closed unexpectedly", ""),
        (
            AT + "FATAL:  die maximale Anzahl Verbindungen ist erreicht\n\tconnection to server …",
            " (the server says: die maximale Anzahl Verbindungen ist erreicht)",
        ),
    ],
)
def test_what_may_be_well_later_is_unavailable(text: str, why: str) -> None:
    found = before_commit(psycopg.OperationalError(text), ADDRESS, 0.1)
    assert type(found) is StoreUnavailable
    assert found.message == (
        f"the store at kcr@db.example.com/kcr can't be reached{why}; tried for 0.1 s, nothing was changed"
    )
