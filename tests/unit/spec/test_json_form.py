from __future__ import annotations

import pytest

from airflow_kcr.errors import SpecError
from airflow_kcr.protocol.rules import SinkMode
from airflow_kcr.spec import RegionSpec, SinkKind, SinkSpec, parse
from tests.unit.spec.examples import FULL, group, small


def refused(text: str) -> list[str]:
    with pytest.raises(SpecError) as raised:
        RegionSpec.from_json(text)
    return [path for path, _ in raised.value.findings]


def test_the_json_of_the_example_is_this() -> None:
    assert parse(FULL).to_json() == {
        "region": "flights",
        "kafka": {"bootstrap.servers": "127.0.0.1:9092"},
        "groups": [
            {
                "group_id": "flights-etl",
                "pipeline": "jobs.flights:process",
                "topics": ["flights"],
                "members": 3,
                "start": "earliest",
                "delivery": "at_least_once",
                "assignor": "range",
                "static_membership": True,
            }
        ],
        "checkpoint": {"every": "PT5M", "timezone": "UTC", "request": "auto", "grace": "PT2S", "catchup": False},
        "batch": {"target": "PT2S", "linger": "PT0S", "min_records": 1000, "max_records": 2_000_000, "timeout": "PT2M"},
        "timeouts": {
            "lease": "PT10S",
            "renew": "PT2S",
            "reset": "PT5M",
            "drain": "PT3M",
            "publish": "PT5M",
            "commit": "PT30S",
            "close": "PT10S",
            "retry": "PT1S",
            "relaunch": "PT1M40S",
            "metadata_refresh": "PT1S",
            "accept_aborted_drain": False,
        },
        "max_failures": 5,
        "foreign_consumers": "fail",
        "out_of_range": "fail",
        "beyond_end": "fail",
        "retention": {"keep": 20, "for": "P7D"},
        "history": {"keep": "P90D"},
    }


def test_the_json_of_sinks_is_this() -> None:
    sinks = (
        SinkSpec(name="c", kind=SinkKind.CUSTOM, factory="m:f", options={"a": "b"}),
        SinkSpec(name="d", kind=SinkKind.DELTA, table="/t", options={"AWS_REGION": "x"}),
        SinkSpec(name="f", kind=SinkKind.FILES, path="/x", file_size_mib=0),
        SinkSpec(name="o", kind=SinkKind.FILES, path="/y"),
        SinkSpec(name="p", kind=SinkKind.POSTGRES, table="t", url="${DB}", mode=SinkMode.UPSERT, key=("a",)),
        SinkSpec(name="q", kind=SinkKind.POSTGRES, table="t", conn_id="warehouse"),
    )
    spec = small(group(sinks=sinks))
    assert RegionSpec.from_json(spec.to_json_text()) == spec
    assert spec.to_json()["groups"][0]["sinks"] == {
        "c": {"kind": "custom", "factory": "m:f", "options": {"a": "b"}},
        "d": {"kind": "delta", "table": "/t", "options": {"AWS_REGION": "x"}},
        "f": {"kind": "files", "path": "/x", "file_size_mib": 0},
        "o": {"kind": "files", "path": "/y"},
        "p": {"kind": "postgres", "table": "t", "url": "${DB}", "mode": "upsert", "key": ["a"]},
        "q": {"kind": "postgres", "table": "t", "conn_id": "warehouse", "mode": "append"},
    }
    assert "sinks" not in small(group()).to_json()["groups"][0]


def test_findings_have_paths_but_no_lines() -> None:
    with pytest.raises(SpecError) as raised:
        RegionSpec.from_json({**small().to_json(), "max_failures": -1, "x": 1})
    assert dict(raised.value.findings)["max_failures"] == "is -1; it must be 0 or more"
    assert len(raised.value.findings) == 2


def test_what_is_not_json_is_refused_with_its_place() -> None:
    assert refused('{"region": "r",\n x}') == ["line 2, column 2"]
    assert refused("") == ["line 1, column 1"]
    assert refused('{"region": "a", "region": "b"}') == ["region", "groups"]
    assert refused('{"a": {"b": 1, "b": 2}}')[0] == "b"
    assert refused(100_000 * "[") == ["spec"]
    assert refused("1" + 5_000 * "0") == ["spec"]
    assert refused("[]") == ["spec"]
    assert refused("null") == ["spec"]
