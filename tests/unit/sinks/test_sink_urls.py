from __future__ import annotations

import pytest

from airflow_kcr.api.regions import postgres_variable
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.sinks.group import sink_url
from airflow_kcr.spec import SinkKind, SinkSpec


def sink(url: str | None = None, conn_id: str | None = None) -> SinkSpec:
    return SinkSpec(name="x", kind=SinkKind.POSTGRES, table="t", url=url, conn_id=conn_id)


def test_references_are_filled_in_and_what_they_stand_for_is_not_looked_at_again() -> None:
    found = sink_url(sink("postgresql://u:${P}@${H}/d"), {"P": "${H}", "H": "h"})
    assert found == "postgresql://u:${H}@h/d"


def test_a_reference_that_is_not_set_is_named_with_its_field() -> None:
    with pytest.raises(ConfigurationError, match=r"sinks\.x\.url needs P"):
        sink_url(sink("postgresql://u:${P}@h/d"), {})


def test_a_connection_is_a_variable_outside_of_airflow() -> None:
    assert postgres_variable("my-warehouse") == "KCR_POSTGRES_MY_WAREHOUSE"
    assert (
        sink_url(sink(conn_id="my-warehouse"), {"KCR_POSTGRES_MY_WAREHOUSE": "postgresql://h/d"}) == "postgresql://h/d"
    )


def test_a_connection_whose_variable_is_not_set_is_named_with_it() -> None:
    with pytest.raises(ConfigurationError, match="set KCR_POSTGRES_WAREHOUSE to its URL"):
        sink_url(sink(conn_id="warehouse"), {})
