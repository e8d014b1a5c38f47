from __future__ import annotations

import pytest

import airflow_kcr
from airflow_kcr.api import Region, store_url
from airflow_kcr.api.regions import names_for_completion
from airflow_kcr.errors import ConfigurationError, InvalidIdentifier

AWAY = "postgresql://me:s3cret@127.0.0.1:1/kcr"


def test_the_region_is_reached_from_the_top_of_the_package() -> None:
    assert airflow_kcr.Region is Region
    with pytest.raises(AttributeError, match="Nothing"):
        airflow_kcr.Nothing  # noqa: B018 (the access is the test)


def test_an_argument_comes_before_the_environment() -> None:
    environ = {"KCR_STORE_URL": "postgresql://other/kcr"}
    assert store_url("postgresql://host/kcr", environ).host == "host"
    assert store_url(None, environ).host == "other"


@pytest.mark.parametrize("text", ["s3cret", "postgresql://me:s3cret@host:port/kcr", "mysql://me:s3cret@host/kcr"])
def test_a_url_that_is_none_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        store_url(text)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_name_is_checked_before_anything_is_opened() -> None:
    with pytest.raises(InvalidIdentifier):
        Region("Flights!", AWAY)


def test_completing_names_never_fails(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KCR_STORE_URL", raising=False)
    assert names_for_completion() == ()
    assert names_for_completion(AWAY) == ()
    assert names_for_completion("nonsense") == ()
    assert names_for_completion(database_url) == ()
