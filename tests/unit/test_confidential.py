from __future__ import annotations

import ctypes
import ctypes.util
import re
from pathlib import Path

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kcr.settings import NAMES, is_secret, names_secret, secrets_in

JAVA = (
    *("sasl.jaas.config", "ssl.key.password", "ssl.keystore.password", "ssl.keystore.key"),
    *("ssl.keystore.certificate.chain", "ssl.truststore.password", "ssl.truststore.certificates"),
    *("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.assertion.private.key.passphrase"),
)
"""Settings of type PASSWORD of Kafka's Java clients; `tests/integration/spark` asks the client itself."""

LIBRDKAFKA = (
    *("sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"),
    *("sasl.oauthbearer.config", "sasl.oauthbearer.assertion.private.key.pem"),
    *("sasl.oauthbearer.assertion.private.key.passphrase", "sasl.oauthbearer.client.credentials.client.secret"),
    "ssl_key",
)
OTHERS = (
    *("spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "spark.ssl.keyPassword"),
    *("spark.hadoop.fs.azure.account.key.x.blob", "spark.authenticate.secret", "KCR_API_TOKEN", "DB_PASSWD"),
    *("sslpassword", "oauth_client_secret", "scram_client_key"),
)
NONE = (
    *("bootstrap.servers", "sasl.username", "sasl.mechanism", "ssl.key.location", "ssl.keystore.location"),
    *("ssl.keystore.type", "ssl.ca.pem", "ssl.certificate.pem", "sasl.oauthbearer.token.endpoint.url"),
    *("sasl.oauthbearer.assertion.private.key.file", "sasl.kerberos.keytab", "key.deserializer", "max.poll.records"),
    *("spark.security.credentials.hive.enabled", "spark.authenticate.secretBitLength", "passfile", "sslkey"),
    *("spark.kubernetes.authenticate.driver.oauthTokenFile", "spark.authenticate.secret.file"),
    *("spark.kubernetes.driver.secretKeyRef.KCR_STORE_URL", "spark.kubernetes.driver.secrets.kcr"),
)

TOLD_OPENLY = frozenset(
    {
        *("oauthbearer_token_refresh_cb", "sasl.oauthbearer.client.credentials.client.id"),
        *("enable.sasl.oauthbearer.unsecure.jwt", "https.ca.pem", "ssl.ca.pem", "ssl.certificate.pem"),
        *("sasl.kerberos.keytab", "ssl.key.location", "ssl.keystore.location"),
        *(f"sasl.oauthbearer.assertion.{name}" for name in ("algorithm", "file", "jwt.template.file")),
        *(f"sasl.oauthbearer.assertion.claim.{name}" for name in ("aud", "exp.seconds", "iss", "jti.include")),
        *(f"sasl.oauthbearer.assertion.claim.{name}" for name in ("nbf.seconds", "sub")),
        *("sasl.oauthbearer.assertion.private.key.file", "sasl.oauthbearer.metadata.authentication.type"),
        *(f"sasl.oauthbearer.{name}" for name in ("client.id", "extensions", "grant.type", "method", "scope")),
        *("sasl.oauthbearer.sub.claim.name", "sasl.oauthbearer.token.endpoint.url"),
    }
)
"""Settings of the client that sound like secrets and are none."""

SECRETS = sorted({*JAVA, *LIBRDKAFKA, *OTHERS})


@given(
    name=st.sampled_from(SECRETS),
    value=st.text(min_size=1).filter(lambda text: "${" not in text),
    prefix=st.sampled_from(["", "kafka.", "spark.x."]),
)
def test_a_secret_s_name_is_known_whatever_its_value_and_prefix(name: str, value: str, prefix: str) -> None:
    assert secrets_in({prefix + name: value, "bootstrap.servers": "b:9092"}) == (prefix + name,)
    assert secrets_in({prefix + name.upper(): value}) == (prefix + name.upper(),)


@pytest.mark.parametrize("name", SECRETS)
def test_a_reference_and_nothing_are_no_secrets(name: str) -> None:
    assert secrets_in({name: "${PASSWORD}"}) == secrets_in({name: ""}) == ()


@pytest.mark.parametrize("name", NONE)
def test_what_only_leads_to_a_secret_is_none(name: str) -> None:
    assert not names_secret(name)
    assert secrets_in({name: "/etc/x", "kafka." + name: "x"}) == ()


@pytest.mark.parametrize(
    "value",
    [
        "postgresql://me:hidden@host/db",
        "https://:hidden@proxy:1/",
        "host=h password=hidden",
        "-Djavax.net.ssl.trustStorePassword=hidden -Xmx1g",
        'org.x.PlainLoginModule required username="u";',
        '{"client_secret": "hidden"}',
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMII",
        "DefaultEndpointsProtocol=https;AccountKey=hidden",
    ],
)
def test_a_secret_in_a_value_is_seen_under_any_name(value: str) -> None:
    assert is_secret(value)
    assert secrets_in({"x.y": value}) == ("x.y",)


@pytest.mark.parametrize(
    "value",
    [
        *("b-1:9092,b-2:9092", "postgresql://me@host/db", "https://host:8080/a@b", "postgresql://me:${PW}@host/db"),
        *("-----BEGIN CERTIFICATE-----\nMII", "-Xmx1g -Da=b", "kafka.max.poll.records=7", "local[2]", ""),
    ],
)
def test_a_value_without_a_secret_is_let_through(value: str) -> None:
    assert not is_secret(value)


def test_every_setting_of_the_client_that_sounds_like_a_secret_is_judged() -> None:
    """A new version of the client may bring another one: it is found here, and is a secret or told openly."""
    sounding = {name for name in librdkafka_settings() if re.search(r"pass|secret|key|token|cred|pem|jaas|oauth", name)}
    assert sounding >= set(LIBRDKAFKA)
    assert {name for name in sounding if not names_secret(name)} <= TOLD_OPENLY
    assert {name for name in sounding if names_secret(name)} <= set(LIBRDKAFKA)


def librdkafka_settings() -> set[str]:
    """Return the names of all settings, as the library lists them itself."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    (path,) = folder.glob("librdkafka-*.so*")
    library, libc = ctypes.CDLL(str(path)), ctypes.CDLL(ctypes.util.find_library("c"))
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    file = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    library.rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    rows = (line.partition("|")[0].strip() for line in (text.value or b"").decode().splitlines() if "|" in line)
    return {row for row in rows if re.fullmatch(r"[a-z][a-z0-9._]+", row)}


def test_the_names_are_a_pattern_for_java_too() -> None:
    # What Spark redacts by; look-behind of variable length and Python's named groups would be none.
    assert not re.search(r"\(\?(?!:)", NAMES)
