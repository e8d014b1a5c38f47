"""This project's errors as Airflow's: those that a retry can't help end the task at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_kcr.errors import (
    ConfigurationError,
    KcrError,
    RefusedError,
    ResetFailed,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    SinkRefused,
    StoreRefused,
    StoreRestored,
)

FINAL: Final = (
    ConfigurationError,
    RefusedError,
    ResetFailed,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    SinkRefused,
    StoreRefused,
    StoreRestored,
)
"""Asking again gets the same answer until a person has done something."""


@contextmanager
def translated() -> Iterator[None]:
    """Run the body; what it raises of this project becomes an error of Airflow, with the same sentence and its cause.

    Raises:
        AirflowFailException: a retry can't help: the configuration, or the region's state, forbids it.
        AirflowException: it may be well the next time: the store or a broker was away, something was not in time.
    """
    try:
        yield
    except FINAL as error:
        raise AirflowFailException(error.message) from error
    except KcrError as error:
        raise AirflowException(error.message) from error
