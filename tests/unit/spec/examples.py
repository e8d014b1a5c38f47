"""Specs that the tests of this folder begin with."""

from __future__ import annotations

from typing import Any

from airflow_kcr.errors import SpecError
from airflow_kcr.spec import GroupSpec, RegionSpec, parse

FULL = r"""
region: flights                      # [a-z0-9_-], at most 100
kafka:                               # librdkafka settings (${ENV} is filled in at use), or kafka_conn_id: kafka_default
  bootstrap.servers: 127.0.0.1:9092
groups:
  - group_id: flights-etl
    topics: [flights]                # or pattern: '^flights\.'
    members: 3
    start: earliest                  # latest | committed | timestamp:2026-01-01T00:00:00Z | duration:PT6H
    pipeline: jobs.flights:process   # module:function or path/to/file.py:function
    delivery: at_least_once          # at_most_once | almost_once | exactly_once
    assignor: range                  # roundrobin
    # kafka: {…}                     # where this group's cluster is another one
    static_membership: true
checkpoint:
  every: 5m                          # or cron: '0 * * * *'; or records: 100000; absent: only on request
  timezone: UTC
  request: auto                      # or dag_run
  grace: 2s
  catchup: false                     # true: every boundary missed during an outage gets its own checkpoint
batch: {target: 2s, min_records: 1000, max_records: 2000000, timeout: 2m}
timeouts: {drain: 180s, reset: 300s, publish: 300s, commit: 30s}
max_failures: 5
foreign_consumers: fail                      # hold | warn
out_of_range: fail                   # earliest | latest; beyond_end: fail | earliest | latest
retention: {keep: 20, for: 7d}
"""
"""The example of the reference, to the letter."""

SMALL = """
region: r
kafka: {bootstrap.servers: 'localhost:9092'}
groups:
  - {group_id: g, topics: [t], pipeline: 'jobs:process'}
"""
"""The least that a region can be."""


def small(*groups: GroupSpec, **fields: Any) -> RegionSpec:  # noqa: ANN401 (each field has its own type)
    """A region of one group, or of those given, with other fields as given."""
    spec: dict[str, Any] = {"region": "r", "kafka": {"bootstrap.servers": "localhost:9092"}, **fields}
    return RegionSpec(groups=groups or (group(),), **spec)


def group(group_id: str = "g", **fields: Any) -> GroupSpec:  # noqa: ANN401 (as above)
    """A group that reads one topic, with other fields as given."""
    return GroupSpec(**{"group_id": group_id, "pipeline": "jobs:process", "topics": ("t",), **fields})


def findings(text: str) -> dict[str, str]:
    """Everything that is wrong with a spec, by path; nothing where it can be used."""
    found: tuple[tuple[str, str], ...] = ()
    try:
        parse(text)
    except SpecError as error:
        found = error.findings
    assert len(dict(found)) == len(found), "two findings at one place; compare them one by one"
    return dict(found)
