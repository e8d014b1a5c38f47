from __future__ import annotations

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.settings import (
    REFUSED,
    KafkaSettings,
    broken_references,
    connection_settings,
    refusals,
    resolve_environment,
)


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("enable.auto.commit", "true"),
            ("auto.commit.interval.ms", "1000"),
            ("enable.auto.offset.store", "true"),
            ("group.id", "g"),
            ("group.instance.id", "i"),
            ("group.protocol", "consumer"),
            ("partition.assignment.strategy", "cooperative-sticky"),
            ("partition.assignment.strategy", "range"),
            ("auto.offset.reset", "earliest"),
            ("isolation.level", "read_uncommitted"),
            ("session.timeout.ms", "6000"),
            ("max.poll.interval.ms", "1"),
            ("enable.auto.commit", "${AUTO}"),
        ],
    )
    def test_name_the_setting(self, name: str, value: str) -> None:
        ((refused, why),) = refusals({"bootstrap.servers": "x", name: value})
        assert refused == name
        assert why.startswith("is refused: ")

    @pytest.mark.parametrize(
        ("name", "value"),
        [(name, ours) for name, (ours, _) in REFUSED.items() if ours is not None] + [("enable.auto.commit", "False")],
    )
    def test_leave_a_value_alone_that_is_ours_anyway(self, name: str, value: str) -> None:
        assert refusals({name: value}) == ()

    def test_are_all_there_at_once_and_hold_no_value(self) -> None:
        found = refusals({"group.id": "hunter2", "group.instance.id": "hunter2"})
        assert [name for name, _ in found] == ["group.id", "group.instance.id"]
        assert "hunter2" not in str(found)


class TestSecrets:
    def test_are_not_in_the_representation(self) -> None:
        settings = KafkaSettings({"bootstrap.servers": "b:9092", "sasl.password": "hunter2", "x.y": "hunter2"})
        assert repr(settings) == "KafkaSettings({'bootstrap.servers': 'b:9092', 'sasl.password': …, 'x.y': …})"

    def test_references_are_shown(self) -> None:
        assert repr(KafkaSettings({"sasl.password": "${P}"})) == "KafkaSettings({'sasl.password': '${P}'})"
        assert "…" in repr(KafkaSettings({"sasl.password": "hunter2${P}"}))


class TestReferences:
    def test_are_filled_in_wherever_they_are(self) -> None:
        settings = {"bootstrap.servers": "${HOST}:${PORT}", "sasl.password": "${P}", "client.id": "kcr"}
        assert resolve_environment(settings, {"HOST": "h", "PORT": "1", "P": "p", "Q": "q"}) == {
            "bootstrap.servers": "h:1",
            "sasl.password": "p",
            "client.id": "kcr",
        }

    def test_what_is_filled_in_is_not_looked_at_again(self) -> None:
        assert resolve_environment({"sasl.password": "${P}"}, {"P": r"a${P}\1"}) == {"sasl.password": r"a${P}\1"}

    def test_that_are_not_set_are_all_named_without_any_value(self) -> None:
        settings = {"bootstrap.servers": "${HOST}", "sasl.password": "hunter2${P}${R}"}
        with pytest.raises(ConfigurationError) as raised:
            resolve_environment(settings, {"R": "hunter3"})
        assert "bootstrap.servers needs HOST; sasl.password needs P" in raised.value.message
        assert "hunter" not in raised.value.message

    def test_an_empty_variable_is_set(self) -> None:
        assert resolve_environment({"a": "${B}"}, {"B": ""}) == {"a": ""}

    def test_that_are_broken_are_found(self) -> None:
        settings = {"a": "${B", "b": "${}", "c": "${A-B}", "d": "$B", "e": "${B}", "f": "${B}${"}
        assert broken_references(settings) == ("a", "b", "c", "f")


class TestSettings:
    def test_are_a_mapping_that_does_not_change(self) -> None:
        given = {"b": "1", "a": "2"}
        settings = KafkaSettings(given)
        given["b"] = "3"
        assert dict(settings) == {"a": "2", "b": "1"}
        assert list(settings) == ["a", "b"]

    def test_are_equal_and_hash_alike_whatever_the_order(self) -> None:
        one, other = KafkaSettings({"a": "1", "b": "2"}), KafkaSettings({"b": "2", "a": "1"})
        assert one == other
        assert hash(one) == hash(other)
        assert one != KafkaSettings({"a": "1"})
        assert one != {"a": "1", "b": "2"}


class TestOfAConnection:
    def test_are_text_as_the_client_takes_it(self) -> None:
        given = {"bootstrap.servers": "b:9092", "socket.timeout.ms": 5000, "log.queue": True, "sasl.password": "${P"}
        assert connection_settings(given, "connection k") == {
            "bootstrap.servers": "b:9092",
            "socket.timeout.ms": "5000",
            "log.queue": "true",
            "sasl.password": "${P",
        }

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("group.id", "hunter2"),
            ("enable.auto.commit", True),
            ("oauth_cb", "hunter2"),
            ("error_cb", "hunter2"),
            ("on_commit", "hunter2"),
            ("logger", "hunter2"),
            ("plugin.library.paths", "hunter2"),
            ("ssl.engine.location", "hunter2"),
            ("sasl.kerberos.kinit.cmd", "hunter2"),
            ("sasl.password", {"of": "hunter2"}),
            ("sasl.password", ["hunter2"]),
            ("sasl.password", None),
        ],
    )
    def test_that_can_not_be_used_are_named_with_their_connection_and_without_their_value(
        self, name: str, value: object
    ) -> None:
        with pytest.raises(ConfigurationError, match=rf"connection k: .*{name} is refused") as raised:
            connection_settings({"bootstrap.servers": "b:9092", name: value}, "connection k")
        assert "hunter2" not in raised.value.message

    def test_that_are_ours_anyway_are_no_clash(self) -> None:
        assert connection_settings({"enable.auto.commit": False}, "connection k") == {"enable.auto.commit": "false"}


@pytest.mark.parametrize(
    ("given", "name", "why"),
    [
        ({"auth": "azure"}, "auth", "no such login; write one of msk_iam, google"),
        ({"auth": "google", "auth.region": "eu-west-1"}, "auth.region", "auth: google does not have it"),
        ({"auth.role.arn": "arn"}, "auth.role.arn", "no auth is given"),
        ({"auth": "msk_iam", "sasl.mechanism": "PLAIN"}, "sasl.mechanism", "says how both clients log in"),
        ({"auth": "msk_iam", "security.protocol": "SSL"}, "security.protocol", "logs in by SASL"),
    ],
)
def test_what_contradicts_a_named_login_is_refused(given: dict[str, str], name: str, why: str) -> None:
    ((refused, said),) = refusals({"bootstrap.servers": "b:9098", **given})
    assert refused == name
    assert why in said


def test_a_named_login_is_shown_with_its_settings() -> None:
    shown = {"auth": "msk_iam", "auth.region": "eu-west-1", "auth.role.arn": "arn:aws:iam::1:role/flights"}
    assert refusals(shown) == ()
    assert all(value in repr(KafkaSettings(shown)) for value in shown.values())
