"""What a COMMIT that failed means: whether it counts is open, or nothing was changed."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from airflow_kcr import libpq


class Failing(libpq.Connection):
    """A connection whose COMMIT fails."""

    def __init__(self, error: psycopg.Error, *, is_closed: bool) -> None:
        self._error = error
        self._is_closed = is_closed

    def __del__(self, _warn: object = None) -> None:
        """Say nothing: there never was a server."""

    @property
    def closed(self) -> bool:
        return self._is_closed

    def commit(self) -> None:
        raise self._error


def _of(state: str) -> psycopg.Error:
    return errors.lookup(state)()


@pytest.mark.parametrize(
    ("error", "is_closed"),
    [
        pytest.param(psycopg.OperationalError("server closed the connection"), True, id="no answer"),
        pytest.param(_of("57P01"), True, id="ended"),
        pytest.param(_of("08006"), False, id="a pooler lost its server"),
        pytest.param(_of("XX000"), True, id="the server gave up as it answered"),
    ],
)
def test_a_commit_whose_answer_is_lost_leaves_it_open(error: psycopg.Error, is_closed: bool) -> None:
    with pytest.raises(libpq.CommitLost) as lost:
        Failing(error, is_closed=is_closed).settle()
    assert lost.value.__cause__ is error


@pytest.mark.parametrize(
    ("error", "is_closed"),
    [
        pytest.param(_of("40001"), False, id="not serialised"),
        pytest.param(_of("25P03"), True, id="ended as it idled, so before COMMIT came"),
        pytest.param(_of("23505"), False, id="a constraint that is checked last"),
    ],
)
def test_a_commit_that_the_server_refuses_changed_nothing(error: psycopg.Error, is_closed: bool) -> None:
    with pytest.raises(type(error)):
        Failing(error, is_closed=is_closed).settle()
