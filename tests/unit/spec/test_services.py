"""The specs that pages show for services that speak Kafka's protocol."""

from __future__ import annotations

import re
from textwrap import dedent

from airflow_kcr.kafka.logins import MECHANISMS, aws_region
from airflow_kcr.kafka.settings import admin_settings, spark_options
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.settings import AUTHS, resolve_environment
from airflow_kcr.spec import parse
from tests.support.docs_pages import DOCS


def test_both_clients_get_the_connection_string_of_event_hubs_as_it_stands() -> None:
    page = (DOCS / "how-to" / "connect-to-a-secured-kafka.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(region: .*?)^```$", page, re.MULTILINE | re.DOTALL)
    settings, _ = parse(block).cluster_of(GroupId("orders-etl"))
    assert settings is not None
    secret = 'Endpoint=sb://name.servicebus.windows.net/;SharedAccessKeyName=kcr;SharedAccessKey=a/b+c="'
    resolved = resolve_environment(settings, {"EVENT_HUBS_CONNECTION": secret})
    admin = admin_settings(resolved)
    assert (admin["sasl.username"], admin["sasl.password"]) == ("$ConnectionString", secret)
    jaas = spark_options(resolved)["kafka.sasl.jaas.config"]
    assert 'username="$ConnectionString"' in jaas
    assert 'SharedAccessKey=a/b+c=\\"' in jaas


def test_both_clients_get_what_a_managed_service_is_logged_in_with() -> None:
    page = (DOCS / "how-to" / "connect-to-a-managed-kafka.md").read_text(encoding="utf-8")
    # Within a list, a block is indented as its text is.
    blocks = re.findall(r"^ +```yaml\n(.*?)^ +```$", page, re.MULTILINE | re.DOTALL)
    found = {}
    for block in blocks:
        settings, _ = parse(dedent(block)).cluster_of(GroupId("orders-etl"))
        assert settings is not None
        assert admin_settings(settings)["auth"] == settings["auth"]
        found[settings["auth"]] = settings
    assert found.keys() == MECHANISMS.keys() == AUTHS.keys()
    for auth, settings in found.items():
        java = spark_options(settings)
        assert java["kafka.security.protocol"] == "SASL_SSL"
        assert java["kafka.sasl.mechanism"] == "OAUTHBEARER"
        assert java["kafka.sasl.login.callback.handler.class"] == MECHANISMS[auth].callback
        assert MECHANISMS[auth].package in page
    assert aws_region(found["msk_iam"]) == "eu-west-1"
