"""What a member does with the sinks of its group before it consumes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from sqlalchemy import URL, make_url

from airflow_kcr.cli.endings import exit_status
from airflow_kcr.errors import ConfigurationError, SinkError, SinkRefused
from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.protocol.values import UNDECLARED, GroupId, RegionId
from airflow_kcr.sinks.contract import DeclaredSink
from airflow_kcr.sinks.group import GroupSinks, checked_sinks
from airflow_kcr.sinks.kinds.postgres import DeclaredTable
from airflow_kcr.sinks.postgres.sink import PostgresSink
from airflow_kcr.spec import GroupSpec, RegionSpec, SinkKind, SinkSpec
from tests.support.breaking_proxy import breaking_proxy
from tests.support.sink_tables import Table

G = GroupId("g")


def spec(*sinks: SinkSpec, delivery: Delivery = Delivery.AT_LEAST_ONCE) -> RegionSpec:
    group = GroupSpec(group_id=G, pipeline="jobs:process", topics=("t",), sinks=sinks, delivery=delivery)
    return RegionSpec(region="r", kafka={"bootstrap.servers": "localhost:9092"}, groups=(group,))


def sink(name: str = "x", table: str = "out", mode: SinkMode = SinkMode.APPEND, key: tuple[str, ...] = ()) -> SinkSpec:
    return SinkSpec(name=name, kind=SinkKind.POSTGRES, table=table, url="${DB}", mode=mode, key=key)


def opened(sinks: Iterable[DeclaredSink]) -> GroupSinks:
    """Return sinks as a member has them, without Spark."""
    return GroupSinks(own={one.spec.name: one.sink for one in sinks if isinstance(one, DeclaredTable)})


@pytest.fixture
def environ(empty_database_url: str) -> Iterator[dict[str, str]]:
    """An environment in which the database is reached as executors reach it."""
    with breaking_proxy(empty_database_url) as (_, through):
        yield {"DB": through.render_as_string(hide_password=False)}


def test_sinks_are_found_in_order_and_fenced(environ: dict[str, str], empty_database_url: str) -> None:
    region = spec(sink(), sink("y", "other", SinkMode.UPSERT, ("value",)))
    sinks = opened(checked_sinks(region, G, environ, region_id=RegionId("r")))
    found = [sink.target for sink in sinks.own.values() if isinstance(sink, PostgresSink)]
    assert [(target.owner.sink, target.table, target.mode, target.key) for target in found] == [
        ("x", "out", SinkMode.APPEND, ()),
        ("y", "other", SinkMode.UPSERT, ("value",)),
    ]
    assert Table(url=empty_database_url).ask("SELECT region, group_id, sink FROM kcr_fence ORDER BY 3") == [
        ("r", "g", "x"),
        ("r", "g", "y"),
    ]
    assert sinks.fenced


def test_a_group_without_sinks_writes_where_it_likes() -> None:
    assert checked_sinks(spec(), G, {}, region_id=UNDECLARED) == ()
    assert not GroupSinks(own={}).fenced
    assert GroupSinks(own={}).writers(Table(url="").call({0: (0, 1)})) == {}


def test_a_table_that_does_not_fit_is_refused_before_anything_is_consumed(
    environ: dict[str, str], empty_database_url: str
) -> None:
    Table(url=empty_database_url).ask("CREATE TABLE out (value text)")
    with pytest.raises(ConfigurationError, match="ADD COLUMN kcr_source integer"):
        checked_sinks(spec(sink()), G, environ, region_id=UNDECLARED)


def test_a_database_that_is_away_is_said_to_be(environ: dict[str, str]) -> None:
    with pytest.raises(SinkError, match=r"can't be reached \(nothing listens there\)"):
        checked_sinks(spec(sink()), G, {"DB": "postgresql://kcr:hunter2@127.0.0.1:1/d"}, region_id=UNDECLARED)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda url: url.set(database="nowhere"), "no database of that name"),
        (lambda url: url.set(username="nobody"), "refused the login; check user and password"),
    ],
    ids=["database", "user"],
)
def test_a_server_that_refuses_an_address_says_what_is_wrong_with_it(
    environ: dict[str, str], wrong: Callable[[URL], URL], why: str
) -> None:
    url = wrong(make_url(environ["DB"])).render_as_string(hide_password=False)
    with pytest.raises(SinkRefused, match=why) as caught:
        checked_sinks(spec(sink()), G, {"DB": url}, region_id=UNDECLARED)
    assert exit_status(caught.value) == 2


def test_a_socket_is_refused_as_executors_can_not_use_it(empty_database_url: str) -> None:
    with pytest.raises(ConfigurationError, match="executors write by TCP"):
        checked_sinks(spec(sink()), G, {"DB": empty_database_url}, region_id=UNDECLARED)


def test_what_is_not_set_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"sinks\.x\.url needs DB"):
        checked_sinks(spec(sink()), G, {}, region_id=UNDECLARED)


def test_each_batch_has_writers_of_its_own(environ: dict[str, str]) -> None:
    make = opened(checked_sinks(spec(sink()), G, environ, region_id=UNDECLARED)).writers
    call = Table(url=environ["DB"]).call({0: (0, 1)})
    one, other = make(call), make(call)
    assert one.keys() == {"x"}
    assert one["x"] is not other["x"]


def test_a_word_that_executors_can_not_heed_is_refused_before_any_connection() -> None:
    url = "postgresql://kcr:hunter2@127.0.0.1:1/d?sslcrl=x.crl&target_session_attrs=standby"
    with pytest.raises(ConfigurationError, match=r"sink x .* JDBC.*sslcrl .*; target_session_attrs ") as raised:
        checked_sinks(spec(sink()), G, {"DB": url}, region_id=UNDECLARED)
    assert "hunter2" not in str(raised.value)
