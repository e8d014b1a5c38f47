from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_kcr.errors import InvalidTarget
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.scopes import EVERYTHING, Scope, parse_scope
from airflow_kcr.protocol.values import GroupId, GroupPartition, TopicName

ETL, AUDIT = GroupId("etl"), GroupId("audit")
FLIGHTS, WEATHER = TopicName("flights"), TopicName("weather")
E0, E1, E2 = (GroupPartition(ETL, FLIGHTS, number) for number in range(3))
A0, W5 = GroupPartition(AUDIT, FLIGHTS, 0), GroupPartition(ETL, WEATHER, 5)
REGION = (A0, E0, E1, E2, W5)


def test_nothing_named_means_everything() -> None:
    assert parse_scope() == EVERYTHING
    assert EVERYTHING.select(REGION) == set(REGION)


@pytest.mark.parametrize(
    ("groups", "topics", "selected"),
    [
        (["etl"], [], {E0, E1, E2, W5}),
        (["etl", "audit"], [], set(REGION)),
        ([], ["flights"], {A0, E0, E1, E2}),
        (["etl"], ["flights"], {E0, E1, E2}),
        (["etl"], ["flights:0,2"], {E0, E2}),
        ([], ["flights:0"], {A0, E0}),
        ([], ["flights:1", "weather"], {E1, W5}),
        (["etl"], ["flights:0", "flights:1"], {E0, E1}),
        (["etl"], ["flights:0", "flights"], {E0, E1, E2}),
        (["etl"], ["flights", "flights:0"], {E0, E1, E2}),
    ],
)
def test_groups_and_topics_narrow_down_independently(
    groups: list[str], topics: list[str], selected: set[GroupPartition]
) -> None:
    scope = parse_scope(groups, topics)
    assert scope.select(REGION) == selected
    assert {partition for partition in REGION if partition in scope} == selected


@pytest.mark.parametrize(
    ("groups", "topics", "named"),
    [
        (["typo"], [], "group typo:"),
        ([], ["typo"], "topic typo:"),
        (["etl"], ["flights", "typo"], "topic typo:"),
        ([], ["flights:0,7,8"], "partition flights:7, partition flights:8:"),
        (["audit"], ["flights:1"], "partition flights:1:"),
        (["etl", "audit"], ["weather"], "--topic weather in group audit:"),
        (["typo"], ["typo"], "group typo, topic typo:"),
        (["audit"], ["weather"], "topic weather of group audit:"),
    ],
)
def test_every_part_that_matches_nothing_is_named_with_what_exists(
    groups: list[str], topics: list[str], named: str
) -> None:
    with pytest.raises(InvalidTarget) as caught:
        parse_scope(groups, topics).select(REGION)
    assert caught.value.message.startswith(named)
    assert "audit: flights:0; etl: flights:0-2, weather:5" in caught.value.message


def test_a_region_without_partitions_has_nothing_to_select() -> None:
    with pytest.raises(InvalidTarget, match="has no partitions yet"):
        EVERYTHING.select(())


@pytest.mark.parametrize(
    "topic",
    [
        "t:",
        "t:a",
        "t:0,",
        "t:,0",
        "t:-1",
        "t:0:1",
        "t:0-2",
        "t: 0",
        "t:\N{ARABIC-INDIC DIGIT FIVE}",
        "t:2147483648",
        "t:99999999999",
        ":0",
        "",
    ],
)
def test_what_is_no_topic_with_partitions_is_refused(topic: str) -> None:
    with pytest.raises(InvalidTarget):
        parse_scope(topics=[topic])


def test_a_name_that_kafka_would_not_take_is_refused() -> None:
    with pytest.raises(InvalidTarget, match="not a usable group id"):
        parse_scope(groups=["etl\n"])


def test_a_scope_is_written_as_its_options() -> None:
    assert str(parse_scope(["etl", "audit"], ["weather", "flights:2,0"])) == (
        "--group audit --group etl --topic flights:0,2 --topic weather"
    )
    assert str(EVERYTHING) == "everything"


def test_limited_to_what_was_planned_it_has_no_partition_that_came_later() -> None:
    scope = replace(parse_scope(["etl"], ["flights"]), planned=frozenset({E0, E1, A0, W5}))
    assert scope.select(REGION) == {E0, E1}
    assert {partition for partition in REGION if partition in scope} == {E0, E1}
    assert str(scope) == "--group etl --topic flights"
    assert scope != scope.as_asked == parse_scope(["etl"], ["flights"])
    assert hash(scope) == hash(replace(scope, planned=frozenset({A0, W5, E1, E0})))


def test_a_scope_does_not_change_with_the_mapping_it_was_made_of() -> None:
    topics: dict[TopicName, frozenset[int] | None] = {FLIGHTS: None}
    scope = Scope(topics=topics)
    topics[WEATHER] = None
    assert W5 not in scope
    assert hash(scope) == hash(Scope(topics={FLIGHTS: None}))


@pytest.mark.parametrize(
    ("groups", "topics"), [([], []), (["etl"], []), (["etl", "g,1"], ["flights:0,2", "weather", "big:2147483647"])]
)
def test_what_is_stored_is_read_back(groups: list[str], topics: list[str]) -> None:
    scope = parse_scope(groups, topics)
    assert documents.read(json.loads(json.dumps(documents.write(scope, Scope))), Scope) == scope


@pytest.mark.parametrize("planned", [frozenset(), frozenset({E0, E2, A0, W5})])
def test_so_is_what_was_planned(planned: frozenset[GroupPartition]) -> None:
    scope = replace(parse_scope(["etl"], ["flights"]), planned=planned)
    assert documents.read(json.loads(json.dumps(documents.write(scope, Scope))), Scope) == scope


def test_the_stored_form_is_plain() -> None:
    assert documents.write(replace(EVERYTHING, planned=frozenset({E2, E0, A0})), Scope) == {
        "planned": {"audit": {"flights": [0]}, "etl": {"flights": [0, 2]}},
    }
    assert documents.write(parse_scope(["etl"], ["flights:2,0", "weather"]), Scope) == {
        "groups": ["etl"],
        "topics": {"flights": [0, 2], "weather": None},
    }


@pytest.mark.parametrize(
    "document",
    [
        None,
        {"groups": [], "topics": {}, "more": 1},
        {"groups": [1], "topics": {}},
        {"groups": "etl", "topics": {}},
        {"groups": [], "topics": {"t": []}},
        {"groups": [], "topics": {"t": 0}},
        {"groups": [], "topics": {"t": [-1]}},
        {"groups": [], "topics": {"t": [True]}},
        {"groups": [], "topics": {"t": ["0,1"]}},
        {"groups": [], "topics": {"t:0": None}},
        {"groups": [], "topics": {}, "planned": {}, "more": 1},
        {"groups": [], "topics": {}, "planned": {"g": []}},
        {"groups": [], "topics": {}, "planned": {"g": {"t": None}}},
    ],
)
def test_what_was_not_stored_by_us_is_refused(document: object) -> None:
    with pytest.raises((InvalidTarget, ValueError)):
        documents.read(document, Scope)
