from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks.spark_submit import Submission
from airflow_kcr.spark.session import CONNECTOR


def submission(
    conf: Mapping[str, str] | None = None, arguments: tuple[str, ...] = (), jars: tuple[str, ...] = ()
) -> Submission:
    return Submission(application="app.py", name="kcr", conf=conf or {}, arguments=arguments, jars=jars)


def test_jars_stand_in_for_the_connector_s_coordinate() -> None:
    assert submission().coordinates == (CONNECTOR,)
    assert submission(jars=("a.jar", "b.jar")).coordinates == ()


@pytest.mark.parametrize(
    ("conf", "arguments"),
    [
        ({"spark.ssl.keyPassword": "x"}, ()),
        ({}, ("--store", "postgresql://me:hidden@host/db")),
        ({}, ("--read-option", "kafka.sasl.jaas.config=hidden")),
    ],
)
def test_a_secret_never_gets_into_the_command(conf: Mapping[str, str], arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="KCR_STORE_URL") as caught:
        submission(conf, arguments)
    assert "hidden" not in caught.value.message


def test_an_address_without_a_password_may_stand_in_the_command() -> None:
    submission(arguments=("--store", "postgresql://me@host/db", "--url", "http://host:8080/a@b"))


def test_a_setting_that_breaks_exactness_is_refused_before_anything_is_submitted() -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.speculation"):
        submission({"spark.speculation": "true"})
