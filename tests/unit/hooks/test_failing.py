from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_kcr import errors
from airflow_kcr.hooks.kcr import translated


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigurationError("the spec is wrong"),
        errors.UnknownRegion(),
        errors.RegionInState("it is stopped"),
        errors.StaleEpoch(),
        errors.SchemaMissing(),
        errors.SchemaTooOld("old"),
        errors.SchemaTooNew("new"),
        errors.StoreRefused("the login is refused"),
        errors.StoreRestored(),
    ],
)
def test_what_a_retry_can_not_help_ends_the_task_at_once(error: errors.KcrError) -> None:
    with pytest.raises(AirflowFailException) as raised, translated():
        raise error
    assert str(raised.value) == error.message
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        errors.StoreUnavailable("db:5432 did not answer"),
        errors.StoreBusy(),
        errors.OutcomeUnknown(),
        errors.BrokerUnavailable("no broker"),
        errors.TimedOut("gave up"),
        errors.BatchFailed("a task failed"),
    ],
)
def test_what_may_be_well_the_next_time_may_be_retried(error: errors.KcrError) -> None:
    with pytest.raises(AirflowException) as raised, translated():
        raise error
    assert not isinstance(raised.value, AirflowFailException)
    assert str(raised.value) == error.message
    assert raised.value.__cause__ is error


def test_errors_of_others_pass() -> None:
    with pytest.raises(ZeroDivisionError), translated():
        raise ZeroDivisionError
