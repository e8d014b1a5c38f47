"""Nothing of a region is forgotten on its way into columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import UNDECLARED, RegionName
from airflow_kcr.store.postgres import layouts
from airflow_kcr.store.postgres.layouts import HEAD_COLUMNS, head_values
from airflow_kcr.store.postgres.row_layout import TableLayout
from tests.support.catalogue import SNAPSHOT, tables_in

TABLES = {found.name: found for found in vars(layouts).values() if isinstance(found, TableLayout)}
ELSEWHERE = {
    "region",
    "batch_range",
    "event",
    "event_position",
    "history_start",
    "lag_sample",
    "sink_place",
    "watcher",
}
"""Written and read by statements of their own."""


def test_a_layout_has_every_column_of_its_table_and_every_table_one() -> None:
    known = tables_in(SNAPSHOT.read_text())
    own = {name: {"region_id", *found.columns, *found.derived} - {"ranges"} for name, found in TABLES.items()}
    assert own == {name: {*columns} for name, (columns, _) in known.items() if name not in ELSEWHERE}
    keys = {name: {"region_id", *found.key} for name, found in TABLES.items() if name != "batch"}
    assert keys == {name: {*key} for name, (_, key) in known.items() if name not in {*ELSEWHERE, "batch"}}


def test_every_plain_field_of_a_region_is_in_its_own_row() -> None:
    region = Region(name=RegionName("r"), region_id=UNDECLARED, spec=Spec(text="{}", rules=RegionRules(groups={})))
    elsewhere = {"name", "region_id", "events", "ledger", "archive"}
    plain = {f.name for f in fields(Region) if not isinstance(getattr(region, f.name), Mapping)} - elsewhere
    assert (
        plain | {"uid", "spec_revision", "next_spec_revision", "unserved", "restore_point_epoch"}
        == set(HEAD_COLUMNS)
        == head_values(region).keys()
    )
    assert {"id", "name", *HEAD_COLUMNS} == {*tables_in(SNAPSHOT.read_text())["region"][0]}
