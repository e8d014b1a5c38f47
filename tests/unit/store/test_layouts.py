"""Nothing of a region is forgotten on its way into columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import pytest

from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import UNDECLARED, RegionName
from airflow_kcr.store.postgres import layouts, tables
from airflow_kcr.store.postgres.layouts import HEAD_COLUMNS, head_values
from airflow_kcr.store.postgres.row_layout import Layout, MapLayout
from airflow_kcr.store.postgres.statements import array

LAYOUTS = {name: found for name, found in vars(layouts).items() if isinstance(found, Layout)}
MAPS = {name: found for name, found in vars(layouts).items() if isinstance(found, MapLayout)}


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_a_layout_has_every_column_of_its_table(name: str) -> None:
    layout: Layout[object, object] = LAYOUTS[name]
    assert {"region_id", *layout.columns} == set(layout.table.c.keys())
    assert set(layout.table.primary_key.columns.keys()) == {"region_id", *layout.key}


@pytest.mark.parametrize("name", sorted(MAPS))
def test_a_map_has_every_column_of_its_table(name: str) -> None:
    layout = MAPS[name]
    derived = [name for name, _ in layout.derived]
    columns = {"region_id", layout.number, "group_id", "topic", "partition", *layout.values, *derived}
    assert columns == set(layout.table.c.keys())


def test_every_plain_field_of_a_region_is_in_its_own_row() -> None:
    region = Region(name=RegionName("r"), region_id=UNDECLARED, spec=Spec(text="{}", rules=RegionRules(groups={})))
    elsewhere = {"name", "region_id", "events", "ledger", "archive"}
    plain = {f.name for f in fields(Region) if not isinstance(getattr(region, f.name), Mapping)} - elsewhere
    assert (
        plain | {"uid", "spec_revision", "next_spec_revision", "unowned", "restore_point_epoch"}
        == set(HEAD_COLUMNS)
        == head_values(region).keys()
    )
    assert {"id", "name", *HEAD_COLUMNS} == set(tables.region.c.keys())


def test_arrays_are_texts_that_postgres_reads() -> None:
    assert array([1, None, -2]) == "{1,NULL,-2}"
    assert array(['a"b', "c\\d", "e,f", "", "NULL", None]) == r'{"a\"b","c\\d","e,f","","NULL",NULL}'
    assert array([]) == "{}"
    assert array([True, None]) == [True, None]
