from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.values import UNDECLARED, GroupId
from airflow_kcr.sinks.files.layout import FileTarget
from airflow_kcr.sinks.group import checked_sinks
from airflow_kcr.sinks.kinds.files import DeclaredFolder
from airflow_kcr.spec import RegionSpec, SinkKind, SinkSpec
from tests.unit.spec.examples import group, small

G, H = GroupId("g"), GroupId("h")
MIB = 1024 * 1024


def spec(size: int | None = None) -> RegionSpec:
    sink = SinkSpec(name="out", kind=SinkKind.FILES, path="${LAKE}/out", file_size_mib=size)
    return small(group(G, sinks=(sink,)), group(H))


def file_targets(spec: RegionSpec, environ: Mapping[str, str]) -> list[FileTarget]:
    """Return the file sinks that an application of the group without any opens."""
    return [
        one.target for one in checked_sinks(spec, H, environ, region_id=UNDECLARED) if isinstance(one, DeclaredFolder)
    ]


def test_the_file_sinks_of_all_groups_are_found() -> None:
    (target,) = file_targets(spec(size=2), {"LAKE": "s3a://lake"})
    assert (target.path, target.owner.group, target.owner.sink, target.file_size) == (
        "s3a://lake/out",
        G,
        "out",
        2 * MIB,
    )
    assert file_targets(spec(), {"LAKE": ""})[0].file_size == 128 * MIB
    assert file_targets(spec(size=0), {"LAKE": ""})[0].file_size == 0


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"sinks\.out\.path needs LAKE"):
        file_targets(spec(), {})
