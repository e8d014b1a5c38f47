from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_kcr.api.clusters import postgres_variable
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import UNDECLARED, GroupId
from airflow_kcr.sinks.kinds.postgres import DeclaredTable
from airflow_kcr.spec import SinkKind, SinkSpec
from tests.unit.spec.examples import group, small


def sink_url(environ: Mapping[str, str], url: str | None = None, conn_id: str | None = None) -> str:
    sink = SinkSpec(name="x", kind=SinkKind.POSTGRES, table="t", url=url, conn_id=conn_id)
    region = small(group(sinks=(sink,)))
    return DeclaredTable(region=region, region_id=UNDECLARED, group=GroupId("g"), spec=sink, environ=environ).url()


def test_references_are_filled_in_and_what_they_stand_for_is_not_looked_at_again() -> None:
    found = sink_url({"P": "${H}", "H": "h"}, "postgresql://u:${P}@${H}/d")
    assert found == "postgresql://u:${H}@h/d"


def test_a_connection_is_a_variable_outside_of_airflow() -> None:
    assert postgres_variable("my-warehouse") == "KCR_POSTGRES_MY_WAREHOUSE"
    assert sink_url({"KCR_POSTGRES_MY_WAREHOUSE": "postgresql://h/d"}, conn_id="my-warehouse") == "postgresql://h/d"


def test_a_connection_whose_variable_is_not_set_is_named_with_it() -> None:
    with pytest.raises(ConfigurationError, match="set KCR_POSTGRES_WAREHOUSE to its URL"):
        sink_url({}, conn_id="warehouse")
