"""Client settings, made from what a region's spec says of a group.

Three layers, the later one wins: our defaults, where the client's own would be slow to notice things; the user's; and
what the region decides alone, which the user is refused by name (`kafka_settings.REFUSED`).

A static member's `group.instance.id` and every member's `client.id` name region, group and index, and stay the same
over restarts: by them a coordinator's list of members is compared with the participants.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from airflow_kcr.confidential import is_secret, names_secret
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.kafka_settings import KafkaSettings, refusals
from airflow_kcr.protocol.rules import Assignor, GroupRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import MemberId, RegionName

PREFIX: Final = "kcr"
LONGEST_ID: Final = 249
"""Kafka's limit for a `group.instance.id`, which obeys the rules of topic names."""

HEARTBEAT: Final = timedelta(seconds=1)
"""The others of a group hear of a rebalance with their next heartbeat; the client's own 3 s would be its latency."""

_ALIASES: Final = ("bootstrap.servers", "metadata.broker.list")
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")

_EAGER: Final = (Assignor.RANGE, Assignor.ROUNDROBIN)
"""The client's assignors that revoke everything before they assign; they may be mixed in a group."""

_QUICK: Final[Mapping[str, str]] = {
    "reconnect.backoff.ms": "100",
    "reconnect.backoff.max.ms": "2000",
    "socket.connection.setup.timeout.ms": "10000",
    "socket.keepalive.enable": "true",
}
"""For every client: a broker that is back is found within two seconds."""

_PAUSED: Final[Mapping[str, str]] = {"queued.min.messages": "1", "queued.max.messages.kbytes": "1024"}
"""The control consumer never fetches; should it do so all the same, not much."""

_OURS: Final[Mapping[str, str]] = {
    "group.protocol": "classic",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": "false",
    "allow.auto.create.topics": "false",
}


def member_settings(
    user: Mapping[str, str], *, region: RegionName, member: MemberId, rules: GroupRules, timeouts: Timeouts
) -> KafkaSettings:
    """Return the settings of a member's control consumer.

    Args:
        user: the spec's, every reference resolved; passed through untouched, security settings among them.
        region: names the client, with `member`.
        member: its group is `group.id`.
        rules: of that group.
        timeouts: the region's, found sound (`protocol.timeout_checks`).

    Raises:
        ConfigurationError: with every setting that is refused; or the assignor is one that the client doesn't have.
    """
    _check(user)
    if rules.assignor is Assignor.STICKY:
        raise ConfigurationError(
            f"group {member.group}: the Kafka client has no eager {rules.assignor} assignor; "
            "write assignor: range or roundrobin"
        )
    session = timeouts.session_timeout(static=rules.static_membership)
    own = {
        "group.id": member.group,
        "client.id": client_id(region, member, user.get("client.id", PREFIX)),
        "partition.assignment.strategy": _strategy(rules.assignor),
        "session.timeout.ms": _ms(session),
        "max.poll.interval.ms": _ms(timeouts.max_poll_interval),
        "topic.metadata.refresh.interval.ms": _ms(timeouts.metadata_refresh),
    }
    if rules.static_membership:
        own["group.instance.id"] = instance_id(region, member)
    defaults = {"heartbeat.interval.ms": _ms(min(HEARTBEAT, session / 3))}
    return KafkaSettings({**_QUICK, **_PAUSED, **defaults, **user, **_OURS, **own})


def admin_settings(user: Mapping[str, str], *, client: str = PREFIX) -> KafkaSettings:
    """Return the settings of an admin client.

    Args:
        user: the spec's, every reference resolved.
        client: names it to the brokers, unless the user does.

    Raises:
        ConfigurationError: with every setting that is refused.
    """
    _check(user)
    # Its log would go to standard error whatever Python's logging says; what matters comes as an error, too.
    return KafkaSettings({**_QUICK, "client.id": client, "log_level": "0", **user})


def producer_settings(user: Mapping[str, str], *, client: str = PREFIX) -> KafkaSettings:
    """Return the settings of a producer, for examples and tests: idempotent, compressed.

    Args:
        user: the spec's, every reference resolved.
        client: names it to the brokers, unless the user does.

    Raises:
        ConfigurationError: with every setting that is refused.
    """
    _check(user)
    defaults = {"client.id": client, "enable.idempotence": "true", "compression.type": "lz4", "linger.ms": "20"}
    return KafkaSettings({**_QUICK, **defaults, **user})


def subscription(rules: GroupRules) -> tuple[str, ...]:
    """Return what the client subscribes to: topics by name, or one pattern, which begins with `^`."""
    return (rules.pattern,) if rules.pattern is not None else rules.topics


def instance_id(region: RegionName, member: MemberId) -> str:
    """Return the `group.instance.id` of a static member: the same after every restart, unique in its group."""
    return _named(PREFIX, region, member)


def client_id(region: RegionName, member: MemberId, prefix: str = PREFIX) -> str:
    """Return the `client.id` of a member.

    Args:
        region: the member's.
        member: whose.
        prefix: the user's own `client.id`, by which quotas and logs may know the application.
    """
    return _named(prefix, region, member)


def participants(region: RegionName, rules: GroupRules) -> dict[str, MemberId]:
    """Return which instance ids a group of this region consists of; empty where its members are dynamic."""
    if not rules.static_membership:
        return {}
    members = [MemberId(rules.group_id, index) for index in range(rules.members)]
    return {instance_id(region, member): member for member in members}


def bootstrap_servers(settings: Mapping[str, str]) -> str:
    """Return the addresses that a client tries first."""
    return next((settings[name] for name in _ALIASES if settings.get(name)), "")


def without_secrets(text: str, settings: Mapping[str, str]) -> str:
    """Return `text` with every secret of `settings` blotted out; the client never shows one that we know of."""
    for name, value in settings.items():
        if value and (names_secret(name) or is_secret(value)):
            text = text.replace(value, "…")
    return text


def _strategy(assignor: Assignor) -> str:
    """Return the assignors that a member offers, the spec's first.

    A group uses one that all its members offer, and Kafka counts a static member that is down. One that offered the
    new assignor of a changed spec alone would be refused until the sessions of those that left the old one are over.
    """
    return ",".join((assignor, *(other for other in _EAGER if other is not assignor)))


def _check(user: Mapping[str, str]) -> None:
    refused = refusals(user)
    if refused:
        raise ConfigurationError("Kafka settings: " + "; ".join(f"{name} {why}" for name, why in refused))
    if not bootstrap_servers(user):
        raise ConfigurationError("Kafka settings: bootstrap.servers is missing; write host:port of a broker or two")


def _named(prefix: str, region: RegionName, member: MemberId) -> str:
    """Name a member by Kafka's rules for topics, which not every group id obeys; a digest then tells two apart."""
    tail = f".{member.index:04}"
    name = f"{prefix}.{region}.{member.group}{tail}"
    if len(name) <= LONGEST_ID and not _ILLEGAL.search(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    legal = _ILLEGAL.sub("_", f"{prefix}.{region}.{member.group}")
    return f"{legal[: LONGEST_ID - len(tail) - len(digest) - 1]}-{digest}{tail}"


def _ms(duration: timedelta) -> str:
    return str(duration // timedelta(milliseconds=1))
