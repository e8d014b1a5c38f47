from __future__ import annotations

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.kafka.settings import spark_options

SERVERS = {"bootstrap.servers": "a:1"}
SASL = {**SERVERS, "security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
KEY = "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----"
CERT = "-----BEGIN CERTIFICATE-----\ny\n-----END CERTIFICATE-----"


def test_brokers_alone_are_enough() -> None:
    assert spark_options(SERVERS) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.connections.max.idle.ms": "180000",
        "kafka.security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize(("written", "java"), [("5000", "5000"), ("0", "-1")])
def test_when_an_idle_connection_is_closed_is_the_users_to_say(written: str, java: str) -> None:
    assert spark_options({**SERVERS, "connections.max.idle.ms": written})["kafka.connections.max.idle.ms"] == java


def test_settings_without_a_meaning_in_java_are_left_out() -> None:
    assert spark_options({**SERVERS, "reconnect.backoff.max.ms": "1", "debug": "all", "client.id": "x"}) == (
        spark_options(SERVERS)
    )


@pytest.mark.parametrize(
    ("password", "quoted"),
    [
        ("simple", '"simple"'),
        ('a"b', '"a\\"b"'),
        ("a\\b", '"a\\\\b"'),
        ('\\"', '"\\\\\\""'),
        ("semi;colon 'x' = ", "\"semi;colon 'x' = \""),
        ("line\nend", '"line\\nend"'),
        ("ünï", '"ünï"'),
    ],
)
def test_a_password_is_quoted_as_javas_login_configuration_reads_it(password: str, quoted: str) -> None:
    # Read back by Kafka's own JaasContext while this was written; its rules are those of Java's StreamTokenizer.
    options = spark_options({**SASL, "sasl.password": password})
    assert options["kafka.sasl.jaas.config"] == (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password={quoted};'
    )
    assert options["kafka.sasl.mechanism"] == "PLAIN"
    assert options["kafka.security.protocol"] == "SASL_SSL"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_scram_has_a_module_of_its_own(mechanism: str, name: str) -> None:
    settings = {**SERVERS, "security.protocol": "SASL_SSL", name: mechanism}
    options = spark_options({**settings, "sasl.username": "me", "sasl.password": "p"})
    assert options["kafka.sasl.mechanism"] == mechanism
    assert "scram.ScramLoginModule required" in options["kafka.sasl.jaas.config"]


def test_without_a_password_nothing_can_be_built() -> None:
    with pytest.raises(ConfigurationError, match=r"sasl\.password missing"):
        spark_options(SASL)


def test_oauth_by_client_credentials_is_translated() -> None:
    settings = {
        **SERVERS,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "p",
        "sasl.oauthbearer.token.endpoint.url": "https://x/token",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "a=1,b=2",
    }
    options = spark_options(settings)
    assert options["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://x/token"
    assert options["kafka.sasl.jaas.config"].endswith(
        'required clientId="me" clientSecret="p" scope="kafka" extension_a="1" extension_b="2";'
    )


def test_tokens_from_a_callback_are_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match=r"write sasl\.oauthbearer\.method: oidc"):
        spark_options({**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"})


def test_kerberos_uses_the_keytab_or_the_ticket_cache() -> None:
    settings = {**SERVERS, "security.protocol": "SASL_PLAINTEXT", "sasl.kerberos.service.name": "kafka"}
    assert 'useTicketCache="true"' in spark_options(settings)["kafka.sasl.jaas.config"]
    options = spark_options({**settings, "sasl.kerberos.keytab": "/k", "sasl.kerberos.principal": "p@R"})
    assert 'useKeyTab="true" storeKey="true" keyTab="/k" principal="p@R"' in options["kafka.sasl.jaas.config"]
    assert options["kafka.sasl.kerberos.service.name"] == "kafka"


def test_pem_texts_travel_with_the_options() -> None:
    settings = {
        **SERVERS,
        "security.protocol": "ssl",
        "ssl.ca.pem": CERT,
        "ssl.certificate.pem": CERT,
        "ssl.key.pem": KEY,
        "ssl.key.password": "k",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert spark_options(settings) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.connections.max.idle.ms": "180000",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": CERT,
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": CERT,
        "kafka.ssl.keystore.key": KEY,
        "kafka.ssl.key.password": "k",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }


def test_files_are_named() -> None:
    settings = {**SERVERS, "security.protocol": "SSL", "ssl.ca.location": "/ca.pem"}
    options = spark_options({**settings, "ssl.keystore.location": "/k.p12", "ssl.keystore.password": "s"})
    assert options["kafka.ssl.truststore.location"] == "/ca.pem"
    assert options["kafka.ssl.truststore.type"] == "PEM"
    assert options["kafka.ssl.keystore.location"] == "/k.p12"
    assert options["kafka.ssl.keystore.password"] == "s"
    assert options["kafka.ssl.endpoint.identification.algorithm"] == "https"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"ssl.key.location": "/secret-path"}, "ssl.key.location: .*write its text as ssl.key.pem"),
        ({"ssl.certificate.location": "/secret-path"}, "ssl.certificate.location"),
        ({"enable.ssl.certificate.verification": "false"}, "enable.ssl.certificate.verification false"),
        ({"ssl.key.pem": KEY}, "belong together"),
        ({"ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----", "ssl.certificate.pem": CERT}, "openssl pkcs8 -topk8"),
    ],
)
def test_what_java_can_not_be_told_is_refused_by_name(settings: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as refused:
        spark_options({**SERVERS, "security.protocol": "SSL", **settings})
    assert "secret-path" not in str(refused.value)


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"sasl\.mechanism NOPE; write one of GSSAPI, OAUTHBEARER"):
        spark_options({**SASL, "sasl.mechanism": "NOPE"})


def test_a_named_login_is_the_vendor_s_class_with_a_role_where_one_is_assumed() -> None:
    role = "arn:aws:iam::1:role/flights"
    msk = {**SERVERS, "auth": "msk_iam", "auth.region": "eu-west-1"}
    assert spark_options({**msk, "auth.role.arn": role}) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.connections.max.idle.ms": "180000",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'awsRoleArn="{role}" awsStsRegion="eu-west-1";',
        "kafka.sasl.login.callback.handler.class": "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.endpoint.identification.algorithm": "https",
    }
    assert spark_options(msk)["kafka.sasl.jaas.config"].endswith("OAuthBearerLoginModule required;")
    assert spark_options({**msk, "security.protocol": "SASL_PLAINTEXT"})["kafka.security.protocol"] == "SASL_PLAINTEXT"
