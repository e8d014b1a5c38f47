"""Client settings of librdkafka as options for Spark's Kafka connector, whose client is Kafka's own, in Java.

Only what says where the brokers are and how to get in is translated; how Spark fetches is not the control consumer's
business. Settings without a meaning in Java are left out; those that have one, but none that could be written here, are
refused by name. Files (`ssl.ca.location`, `ssl.keystore.location`, a keytab) are named, not read: executors need them
at the same path, while certificates and keys given as text (`ssl.ca.pem` …) travel with the options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from airflow_kcr.errors import ConfigurationError

_SAME: Final[Mapping[str, str]] = {
    "bootstrap.servers": "bootstrap.servers",
    "metadata.broker.list": "bootstrap.servers",
    "client.rack": "client.rack",
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
    java = {_SAME[name]: value for name, value in settings.items() if name in _SAME}
    security = settings.get("security.protocol", "plaintext").upper()
    java["security.protocol"] = security
    if security.startswith("SASL_"):
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
            "a callback; write sasl.oauthbearer.method: oidc with client id, client secret and token endpoint"
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
    return f"{module} required " + " ".join(f"{name}={_quoted(value)}" for name, value in options.items()) + ";"


def _quoted(text: str) -> str:
    special = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(special.get(character, character) for character in text) + '"'
