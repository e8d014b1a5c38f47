"""Client settings, made from what a region's spec says of a group.

Three layers, the later one wins: our defaults, where the client's own would be slow to notice things; the user's; and
what the region decides alone, which the user is refused by name (`airflow_kcr.settings`).

A static member's `group.instance.id` and every member's `client.id` name region, group and index, and stay the same
over restarts: by them a coordinator's list of members is compared with the participants.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, TypeAlias, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition, libversion

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.floods import unflooded
from airflow_kcr.kafka import logins
from airflow_kcr.kafka.logins import OnError
from airflow_kcr.protocol.rules import Assignor, GroupProtocol, GroupRules
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import MemberId, RegionName
from airflow_kcr.settings import BROKERS_OWN, KafkaSettings, is_secret, names_secret, refusals

OnCommit: TypeAlias = Callable[[KafkaError | None, list[TopicPartition]], None]
T = TypeVar("T")

_log = unflooded("airflow_kcr.kafka.librdkafka")
"""The client's own log; its records are made in the thread that polls."""


FIRST_OF_THE_BROKERS_PROTOCOL: Final = (2, 12)
"""The first librdkafka whose consumer protocol is no preview (its changelog)."""


def make_consumer(settings: KafkaSettings, on_error: OnError, on_commit: OnCommit) -> Consumer:
    """Return a consumer that has not subscribed to anything.

    Args:
        settings: from `settings.member_settings`.
        on_error: hears of connections and authentication; called in the thread that polls.
        on_commit: hears the answers to asynchronous commits; called in the thread that polls.

    Raises:
        ConfigurationError: the client doesn't take the settings, or its named login gets no token.
        BrokerUnavailable: who gives tokens does not answer.
    """
    return made(lambda whole: Consumer({**whole, "on_commit": on_commit}, logger=_log), settings, on_error)


def made(make: Callable[[dict[str, object]], T], settings: KafkaSettings, on_error: OnError) -> T:
    """Return the client that is made.

    Args:
        make: makes it, of the client's own settings.
        settings: from here; their values stay out of the message.
        on_error: hears of connections and authentication.

    Raises:
        ConfigurationError: the client doesn't take the settings, or its named login gets no token.
        BrokerUnavailable: who gives tokens does not answer.
    """
    whole = logins.client_settings(settings, on_error)
    try:
        return make(whole)
    except (KafkaException, TypeError, ValueError) as error:
        # The client's exception is no cause to be shown: it may repeat a value.
        why = without_secrets(str(error), settings)
    raise ConfigurationError(f"the Kafka client does not take its settings: {why}")


PREFIX: Final = "kcr"
LONGEST_ID: Final = 249
"""Kafka's limit for a `group.instance.id`, which obeys the rules of topic names."""

HEARTBEAT: Final = timedelta(seconds=1)
"""The others of a group hear of a rebalance with their next heartbeat; the client's own 3 s would be its latency."""

_ALIASES: Final = ("bootstrap.servers", "metadata.broker.list")
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")

_EAGER: Final = (Assignor.RANGE, Assignor.ROUNDROBIN)
"""The client's assignors that revoke everything before they assign; they may be mixed in a group."""

_BROKERS: Final = (Assignor.UNIFORM, Assignor.RANGE)
"""The broker's own assignors, by the names that it has for them."""

_IDLE: Final = "connections.max.idle.ms"

_FORGOTTEN: Final[Mapping[str, str]] = {_IDLE: "180000"}
"""For every client, librdkafka's and Java's: it closes an idle connection itself, before a load balancer or a NAT
gateway drops it. Azure drops it after 4 minutes, AWS after 350 s, often without a word to either end; the next request
on it then gets no answer at all. librdkafka's own default is not to close any, Java's is 9 minutes."""

_QUICK: Final[Mapping[str, str]] = {
    **_FORGOTTEN,
    "reconnect.backoff.ms": "100",
    "reconnect.backoff.max.ms": "2000",
    "socket.connection.setup.timeout.ms": "10000",
    "socket.keepalive.enable": "true",
}
"""For every client: a broker that is back is found within two seconds."""

_PAUSED: Final[Mapping[str, str]] = {"queued.min.messages": "1", "queued.max.messages.kbytes": "1024"}
"""The control consumer never fetches; should it do so all the same, not much."""

_OURS: Final[Mapping[str, str]] = {
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
        timeouts: the region's, found sound (`protocol.timeouts.check`).

    Raises:
        ConfigurationError: with every setting that is refused; or the assignor is one that the protocol doesn't have;
            or the client is too old for the protocol.
    """
    _check(user)
    agreed = _classic if rules.protocol is GroupProtocol.CLASSIC else _by_the_broker
    own = {
        "group.id": member.group,
        "client.id": client_id(region, member, user.get("client.id", PREFIX)),
        "max.poll.interval.ms": _ms(timeouts.max_poll_interval),
        "topic.metadata.refresh.interval.ms": _ms(timeouts.metadata_refresh),
        **agreed(user, rules, timeouts),
    }
    if rules.exclude:
        own["topic.blacklist"] = ",".join(f"^{topic.replace('.', '[.]')}$" for topic in rules.exclude)
    if rules.static_membership:
        own["group.instance.id"] = instance_id(region, member)
    return KafkaSettings({**_QUICK, **_PAUSED, **user, **_OURS, **own})


def _classic(user: Mapping[str, str], rules: GroupRules, timeouts: Timeouts) -> dict[str, str]:
    if rules.assignor not in _EAGER:
        raise ConfigurationError(
            f"group {rules.group_id}: the Kafka client has no eager {rules.assignor} assignor; "
            "write assignor: range or roundrobin"
        )
    session = timeouts.session_timeout(static=rules.static_membership)
    return {
        "group.protocol": GroupProtocol.CLASSIC,
        "partition.assignment.strategy": _strategy(rules.assignor),
        "session.timeout.ms": _ms(session),
        "heartbeat.interval.ms": user.get("heartbeat.interval.ms", _ms(min(HEARTBEAT, session / 3))),
    }


def _by_the_broker(user: Mapping[str, str], rules: GroupRules, _timeouts: Timeouts) -> dict[str, str]:
    client, _ = libversion()
    if tuple(map(int, client.split(".")[:2])) < FIRST_OF_THE_BROKERS_PROTOCOL:
        raise ConfigurationError(
            f"group {rules.group_id}: the Kafka client, librdkafka {client}, is too old for protocol: consumer, which "
            f"needs {'.'.join(map(str, FIRST_OF_THE_BROKERS_PROTOCOL))}; install the confluent-kafka that airflow_kcr "
            "asks for, or write protocol: classic"
        )
    if rules.assignor not in _BROKERS:
        raise ConfigurationError(
            f"group {rules.group_id}: the broker has no {rules.assignor} assignor; write assignor: uniform or range"
        )
    if rules.exclude:
        raise ConfigurationError(
            f"group {rules.group_id}: the broker matches the pattern itself and knows nothing of exclude; write a "
            "pattern that leaves these topics out, or protocol: classic"
        )
    refused = [f"{name} (the group's {there} decides)" for name, there in BROKERS_OWN.items() if name in user]
    refused += ["group.protocol (the spec says consumer)"] if "group.protocol" in user else []
    if refused:
        raise ConfigurationError(
            f"Kafka settings of group {rules.group_id} that no client may have with protocol: consumer: "
            f"{', '.join(refused)}; leave them out"
        )
    return {"group.protocol": GroupProtocol.CONSUMER, "group.remote.assignor": rules.assignor}


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


def one_record_settings(user: Mapping[str, str]) -> KafkaSettings:
    """Return the settings of a consumer that reads a record of each log, in no group; the argument is as before.

    The client wants the name of a group all the same. This one never has a member.
    """
    light = {"enable.partition.eof": "true", "queued.min.messages": "1", "fetch.message.max.bytes": "65536"}
    return KafkaSettings({**admin_settings(user), **_OURS, **light, "group.id": f"{PREFIX}-first-records"})


def subscription(rules: GroupRules) -> tuple[str, ...]:
    """Return what the client subscribes to: topics by name, or one pattern, which begins with `^`.

    What a pattern matches and the group doesn't read is among the client's settings.
    """
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


# Client settings of librdkafka as options for Spark's Kafka connector, whose client is Kafka's own, in Java.
#
# Only what says where the brokers are and how to get in is translated; how Spark fetches is not the control
# consumer's business. Settings without a meaning in Java are left out; those that have one, but none that could be
# written here, are refused by name. Files (`ssl.ca.location`, `ssl.keystore.location`, a keytab) are named, not read:
# executors need them at the same path, while certificates and keys given as text (`ssl.ca.pem` …) travel with the
# options.

_SAME: Final[Mapping[str, str]] = {
    "bootstrap.servers": "bootstrap.servers",
    "metadata.broker.list": "bootstrap.servers",
    "client.rack": "client.rack",
    _IDLE: _IDLE,
    "sasl.kerberos.service.name": "sasl.kerberos.service.name",
    "sasl.kerberos.kinit.cmd": "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin": "sasl.kerberos.min.time.before.relogin",
    "ssl.key.password": "ssl.key.password",
}
"""Settings of the same meaning and form."""

_UNTRANSLATED: Final[Mapping[str, str]] = {
    "ssl.certificate.location": "Java takes no certificate in a file of its own; write its text as ssl.certificate.pem",
    "ssl.key.location": "Java takes no key in a file of its own; write its text as ssl.key.pem",
    "ssl.crl.location": "Java takes no list of revoked certificates; leave it out",
    "ssl.engine.location": "Java has no OpenSSL engines; write ssl.key.pem",
    "ssl.providers": "Java has no OpenSSL providers; leave it out",
    "sasl.oauthbearer.config": "its tokens are unsecured; write sasl.oauthbearer.method: oidc and its settings",
    "sasl.oauthbearer.assertion.private.key.file": "write sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.assertion.private.key.pem": "write sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.assertion.jwt.template.file": "write sasl.oauthbearer.client.secret",
}
"""Settings that matter for getting in, and can't be said in Java; what to write instead."""

_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_OAUTH_CALLBACK: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_KERBEROS: Final = "com.sun.security.auth.module.Krb5LoginModule"
_PKCS8: Final = re.compile(r"-----BEGIN (ENCRYPTED )?PRIVATE KEY-----")


def spark_options(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the options, each with the connector's prefix `kafka.`.

    They hold secrets where the settings do: they are for the reader of a batch, never for a log or a message.

    Args:
        settings: librdkafka's names, references resolved.

    Raises:
        ConfigurationError: with every setting that matters and can't be translated, and what to write instead.
    """
    refused = [f"{name}: {_UNTRANSLATED[name]}" for name in settings if name in _UNTRANSLATED and settings[name]]
    if refused:
        raise ConfigurationError("Kafka settings that Spark's client can't be given: " + "; ".join(sorted(refused)))
    java = {**_FORGOTTEN, **{_SAME[name]: value for name, value in settings.items() if name in _SAME}}
    if java[_IDLE] == "0":
        java[_IDLE] = "-1"  # what turns it off in Java
    named = logins.mechanism_of(settings)
    security = settings.get("security.protocol", "plaintext" if named is None else "sasl_ssl").upper()
    java["security.protocol"] = security
    if named is not None:
        java |= _named_login(named, settings)
    elif security.startswith("SASL_"):
        java |= _sasl(settings)
    if security.endswith("SSL"):
        java |= _ssl(settings)
    else:
        java.pop("ssl.key.password", None)
    return {f"kafka.{name}": value for name, value in sorted(java.items())}


def _sasl(settings: Mapping[str, str]) -> dict[str, str]:
    mechanism = settings.get("sasl.mechanisms", settings.get("sasl.mechanism", "GSSAPI")).upper()
    known: Mapping[str, Callable[[Mapping[str, str]], dict[str, str]]] = {
        "PLAIN": lambda s: _password(s, _PLAIN),
        "SCRAM-SHA-256": lambda s: _password(s, _SCRAM),
        "SCRAM-SHA-512": lambda s: _password(s, _SCRAM),
        "OAUTHBEARER": _oauth,
        "GSSAPI": _kerberos,
    }
    if mechanism not in known:
        raise ConfigurationError(
            f"Kafka settings that Spark's client can't be given: sasl.mechanism {mechanism}; "
            f"write one of {', '.join(sorted(known))}"
        )
    return {"sasl.mechanism": mechanism, **known[mechanism](settings)}


def _named_login(mechanism: logins.Mechanism, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": _jaas(_OAUTH, mechanism.jaas(settings)),
        "sasl.login.callback.handler.class": mechanism.callback,
    }


def _password(settings: Mapping[str, str], module: str) -> dict[str, str]:
    missing = [name for name in ("sasl.username", "sasl.password") if name not in settings]
    if missing:
        raise ConfigurationError(f"Kafka settings: {' and '.join(missing)} missing for this sasl.mechanism")
    return {
        "sasl.jaas.config": _jaas(
            module, {"username": settings["sasl.username"], "password": settings["sasl.password"]}
        )
    }


def _kerberos(settings: Mapping[str, str]) -> dict[str, str]:
    options = {"useTicketCache": "true"}
    if settings.get("sasl.kerberos.keytab"):
        options = {"useKeyTab": "true", "storeKey": "true", "keyTab": settings["sasl.kerberos.keytab"]}
    if settings.get("sasl.kerberos.principal"):
        options["principal"] = settings["sasl.kerberos.principal"]
    return {"sasl.jaas.config": _jaas(_KERBEROS, options)}


def _oauth(settings: Mapping[str, str]) -> dict[str, str]:
    """By client credentials (`oidc`) only: any other token comes from a callback, which is code."""
    if settings.get("sasl.oauthbearer.method", "default").lower() != "oidc":
        raise ConfigurationError(
            "Kafka settings that Spark's client can't be given: sasl.mechanism OAUTHBEARER with tokens from "
            "a callback; write sasl.oauthbearer.method: oidc with client id, client secret and token endpoint, or auth "
            "for Amazon MSK (msk_iam) and Google's Managed Kafka (google)"
        )
    needed = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.token.endpoint.url")
    missing = [name for name in needed if not settings.get(name)]
    if missing:
        raise ConfigurationError(f"Kafka settings: {', '.join(missing)} missing for sasl.oauthbearer.method: oidc")
    options = {"clientId": settings[needed[0]], "clientSecret": settings[needed[1]]}
    if settings.get("sasl.oauthbearer.scope"):
        options["scope"] = settings["sasl.oauthbearer.scope"]
    extensions = [pair for pair in settings.get("sasl.oauthbearer.extensions", "").split(",") if "=" in pair]
    options |= {f"extension_{name.strip()}": value for name, _, value in (pair.partition("=") for pair in extensions)}
    return {
        "sasl.jaas.config": _jaas(_OAUTH, options),
        "sasl.login.callback.handler.class": _OAUTH_CALLBACK,
        "sasl.oauthbearer.token.endpoint.url": settings[needed[2]],
    }


def _ssl(settings: Mapping[str, str]) -> dict[str, str]:
    if settings.get("enable.ssl.certificate.verification", "true").lower() == "false":
        raise ConfigurationError(
            "Kafka settings that Spark's client can't be given: enable.ssl.certificate.verification false; "
            "write the broker's certificate as ssl.ca.pem instead"
        )
    java: dict[str, str] = {}
    if settings.get("ssl.ca.pem"):
        java = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": settings["ssl.ca.pem"]}
    elif settings.get("ssl.ca.location"):
        java = {"ssl.truststore.type": "PEM", "ssl.truststore.location": settings["ssl.ca.location"]}
    check = settings.get("ssl.endpoint.identification.algorithm", "https").lower()
    java["ssl.endpoint.identification.algorithm"] = "" if check == "none" else check
    return java | _own_certificate(settings)


def _own_certificate(settings: Mapping[str, str]) -> dict[str, str]:
    certificate, key = settings.get("ssl.certificate.pem"), settings.get("ssl.key.pem")
    if settings.get("ssl.keystore.location"):
        store = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": settings["ssl.keystore.location"]}
        return store | {"ssl.keystore.password": settings.get("ssl.keystore.password", "")}
    if not certificate and not key:
        return {}
    if not certificate or not key:
        raise ConfigurationError("Kafka settings: ssl.certificate.pem and ssl.key.pem belong together")
    if not _PKCS8.search(key):
        raise ConfigurationError(
            "Kafka settings that Spark's client can't be given: ssl.key.pem: Java takes PKCS #8 only "
            "(-----BEGIN PRIVATE KEY-----); convert it with openssl pkcs8 -topk8"
        )
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}


def _jaas(module: str, options: Mapping[str, str]) -> str:
    """Return one line of a login configuration, read by Java's StreamTokenizer: quoted text with its escapes."""
    return " ".join([module, "required", *(f"{name}={_quoted(value)}" for name, value in options.items())]) + ";"


def _quoted(text: str) -> str:
    special = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(special.get(character, character) for character in text) + '"'
