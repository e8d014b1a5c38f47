"""Whatever a spec says: it comes back from the store, and whatever is fed to the reader, it answers in one way."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_kcr.errors import SpecError
from airflow_kcr.protocol.rules import (
    COMMITTED,
    EARLIEST,
    LATEST,
    Assignor,
    Delivery,
    ForeignConsumerPolicy,
    OutOfRangePolicy,
    RetentionRules,
    SinkMode,
    StartPosition,
)
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.spec import (
    FOREVER,
    BatchSpec,
    CheckpointSpec,
    GroupSpec,
    HistorySpec,
    RegionSpec,
    SinkKind,
    SinkSpec,
    differences,
    parse,
    split,
)

NAMES = st.text("abcxyz019._-", min_size=1, max_size=8).filter(lambda text: text not in {".", ".."})
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)


def seconds(least: int, most: int) -> st.SearchStrategy[timedelta]:
    return st.integers(least * 1_000_000, most * 1_000_000).map(lambda number: timedelta(microseconds=number))


SETTINGS = TEXTS.filter(lambda text: "${" not in text)
"""A setting's value: `${` begins a reference there."""

CLUSTERS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(lambda host, user: {"kafka": {"bootstrap.servers": host, "sasl.username": user}}, SETTINGS, SETTINGS),
    st.builds(lambda conn_id: {"kafka_conn_id": conn_id}, TEXTS),
)
STARTS = st.one_of(
    st.sampled_from([EARLIEST, LATEST, COMMITTED]),
    st.builds(
        StartPosition,
        kind=st.just("timestamp"),
        instant=st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    ),
    st.builds(StartPosition, kind=st.just("duration"), back=seconds(0, 10**7)),
)
SUBSCRIPTIONS = st.one_of(
    st.builds(lambda topics: {"topics": tuple(topics)}, st.lists(NAMES, min_size=1, max_size=3, unique=True)),
    st.builds(
        lambda name, excluded: {"pattern": f"^{name}.*", "exclude": tuple(f"{name}{end}" for end in excluded)},
        st.text("abc", max_size=3),
        st.sets(st.sampled_from(["-a", ".b", "c"])),
    ),
)
IDENTIFIERS = st.text("abcxyz_", min_size=1, max_size=8)
SINKS = st.builds(
    lambda name, table, database, writing: SinkSpec(
        name=name, kind=SinkKind.POSTGRES, table=table, **database, **writing
    ),
    IDENTIFIERS,
    st.lists(st.text("abcxyz", min_size=1, max_size=8), min_size=1, max_size=2).map(".".join),
    st.one_of(
        st.sampled_from(["${URL}", "postgresql://etl:${PASSWORD}@db.example:5433/air"]).map(lambda url: {"url": url}),
        TEXTS.map(lambda conn_id: {"conn_id": conn_id}),
    ),
    st.one_of(
        st.just({"mode": SinkMode.APPEND}),
        st.lists(IDENTIFIERS, min_size=1, max_size=2, unique=True).map(
            lambda key: {"mode": SinkMode.UPSERT, "key": tuple(key)}
        ),
    ),
)
DELIVERIES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    SINKS.map(lambda sink: {"delivery": Delivery.EXACTLY_ONCE, "sinks": (sink,)}),
    st.builds(
        lambda delivery, sinks: {"delivery": delivery, "sinks": tuple(sinks)},
        st.sampled_from([one for one in Delivery if one is not Delivery.EXACTLY_ONCE]),
        st.lists(SINKS, max_size=2, unique_by=lambda sink: sink.name),
    ),
)
GROUPS = st.builds(
    lambda group_id, subscription, cluster, members, start, delivery, assignor, static: GroupSpec(
        group_id=group_id,
        pipeline="jobs:process",
        members=members,
        start=start,
        assignor=assignor,
        static_membership=static,
        **delivery,
        **subscription,
        **cluster,
    ),
    TEXTS,
    SUBSCRIPTIONS,
    st.just({}) | CLUSTERS,
    st.integers(1, 5),
    STARTS,
    DELIVERIES,
    st.sampled_from([None, Assignor.RANGE, Assignor.ROUNDROBIN]),
    st.booleans(),
)
CHECKPOINTS = st.one_of(
    st.builds(CheckpointSpec, every=seconds(1, 10**6), grace=seconds(0, 10), catchup=st.booleans()),
    st.builds(
        CheckpointSpec, cron=st.sampled_from(["@daily", "*/5 * * * *"]), timezone=st.sampled_from(["UTC", "Asia/Tokyo"])
    ),
    st.builds(CheckpointSpec, records=st.integers(1, 2**63 - 1), grace=seconds(0, 10)),
    st.just(CheckpointSpec()),
)
SPECS = st.builds(
    lambda cluster, **fields: RegionSpec(**cluster, **fields),
    CLUSTERS,
    region=st.text("abc019_-", min_size=1, max_size=8),
    groups=st.lists(GROUPS, min_size=1, max_size=3, unique_by=lambda group: group.group_id).map(tuple),
    checkpoint=CHECKPOINTS,
    batch=st.builds(BatchSpec, linger=seconds(0, 9), min_records=st.integers(1, 10), timeout=seconds(60, 179)),
    timeouts=st.builds(
        Timeouts, reset=seconds(300, 900), session=st.none() | seconds(121, 299), publish=seconds(1, 10**6)
    ),
    max_failures=st.integers(0, 10),
    foreign_consumers=st.sampled_from(ForeignConsumerPolicy),
    out_of_range=st.sampled_from(OutOfRangePolicy),
    beyond_end=st.sampled_from(OutOfRangePolicy),
    history=st.builds(HistorySpec, keep=st.just(FOREVER) | seconds(1, 10**9)),
    retention=st.builds(RetentionRules, keep=st.integers(1, 99), max_age=st.none() | seconds(1, 10**7)),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["5m", "a", "", "^a", "earliest", "a:b"]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from([
                "region", "groups", "kafka", "checkpoint", "batch", "timeouts", "retention", "history", "group_id",
                "topics",
                "pipeline", "every", "records", "timeout", "drain", "keep", "for", "members", "start",
                "bootstrap.servers", "other",
            ]),
            children,
            max_size=6,
        )
    ),
    max_leaves=15,
)  # fmt: skip


@given(SPECS)
def test_a_spec_comes_back_from_its_json(spec: RegionSpec) -> None:
    text = spec.to_json_text()
    assert RegionSpec.from_json(spec.to_json()) == spec
    assert RegionSpec.from_json(text) == spec
    assert RegionSpec.from_json(text).to_json_text() == text
    assert RegionSpec.from_json(text).rules() == spec.rules()


@given(SPECS)
def test_the_json_of_a_spec_is_a_file_that_says_the_same(spec: RegionSpec) -> None:
    assert parse(json.dumps(spec.to_json(), ensure_ascii=False)) == spec


@given(SPECS, SPECS)
def test_specs_have_one_text_exactly_if_they_are_equal(one: RegionSpec, other: RegionSpec) -> None:
    assert (one == other) == (one.to_json_text() == other.to_json_text())


@given(SPECS, SPECS, st.booleans())
def test_what_waits_and_what_does_not_are_the_whole_change(old: RegionSpec, other: RegionSpec, restart: bool) -> None:
    groups = tuple(replace(group, members=group.members + restart) for group in old.groups)
    new = replace(other, region=old.region, groups=groups, kafka=old.kafka, kafka_conn_id=old.kafka_conn_id)
    at_once, later = split(old, new)
    assert (at_once if later is None else later) == new
    assert at_once.groups == old.groups
    assert replace(at_once, groups=groups) == new
    assert set(differences(old, at_once)) <= set(differences(old, new))
    assert later is not None or not restart


@given(PLAIN)
def test_plain_values_are_a_spec_or_findings(value: object) -> None:
    found: tuple[tuple[str, str], ...] = (("spec", "none"),)
    try:
        RegionSpec.from_json(json.dumps(value))
    except SpecError as error:
        found = error.findings
    assert found
    assert all(path and text for path, text in found)
