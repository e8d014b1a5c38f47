from __future__ import annotations

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol.coordinator import coordinator_partition, java_hash
from airflow_kcr.protocol.values import GroupId


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 97 * 31 + 98),
        ("hello", 99162322),
        ("Hello, World!", 1498789909),
        ("polygenelubricants", -(2**31)),
        ("é", 0xE9),
    ],
)
def test_the_hash_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_a_character_outside_of_the_basic_plane_counts_as_its_two_surrogates() -> None:
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00


def test_a_lone_surrogate_has_a_hash_too() -> None:
    assert java_hash("\ud83d") == 0xD83D


def test_the_hash_wraps_around_at_32_bits() -> None:
    assert java_hash("consistent-region") == _by_hand("consistent-region")
    assert java_hash("z" * 100) == _by_hand("z" * 100)


def test_the_partition_is_the_absolute_hash_modulo_the_partitions() -> None:
    assert coordinator_partition(GroupId("hello")) == 99162322 % 50
    assert coordinator_partition(GroupId("hello"), 3) == 99162322 % 3


def test_a_negative_hash_counts_by_its_absolute_value() -> None:
    # Not by its lower 31 bits, which is another function of Kafka's: that would give 39.
    group = GroupId("flights")
    assert java_hash(group) == -771814909
    assert coordinator_partition(group) == 771814909 % 50 == 9


def test_the_hash_without_an_absolute_value_counts_as_0() -> None:
    assert coordinator_partition(GroupId("polygenelubricants")) == 0


@pytest.mark.parametrize("partitions", [0, -1])
def test_there_is_no_offsets_topic_without_partitions(partitions: int) -> None:
    with pytest.raises(ConfigurationError, match="can't have"):
        coordinator_partition(GroupId("g"), partitions)


def _by_hand(text: str) -> int:
    value = 0
    for character in text:
        value = 31 * value + ord(character)
    return (value + 2**31) % 2**32 - 2**31
