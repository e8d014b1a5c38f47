"""`kcr doctor`: examines the environment, the store and, of a region spec, whatever its members would meet.

A group is judged in Kafka as `kcr group validate` judges it; an undeclared region is judged as if it were declared.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from typing import Final

from airflow_kcr import airflow_features
from airflow_kcr.api.clusters import client_settings, real_reader
from airflow_kcr.api.regions import connect, store_url
from airflow_kcr.api.validation import Readable, validate
from airflow_kcr.driver.logins import log_in
from airflow_kcr.errors import KcrError, ToolMissing
from airflow_kcr.kafka.logins import Login, Mechanism, mechanism_of
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.region.commands import DeclareRegion
from airflow_kcr.protocol.region.lifecycle import declare
from airflow_kcr.protocol.region.liveness import NEVER, Seen
from airflow_kcr.protocol.region.state import Region, Spec
from airflow_kcr.protocol.rules import GroupRules
from airflow_kcr.protocol.values import UNDECLARED, GroupId, RegionName, region_name
from airflow_kcr.settings import AUTH
from airflow_kcr.sinks.group import checked_sinks
from airflow_kcr.spark.launch import require_pyspark, sound_java
from airflow_kcr.spark.pipelines import load_pipeline
from airflow_kcr.spark.session import SparkSettings
from airflow_kcr.spec import RegionSpec
from airflow_kcr.store.postgres.connections import Server, server_at

SPARK: Final = SparkSettings(app_name="kcr doctor", master="local[1]")
"""With which Spark is started where its own login is tried."""

SKEW: Final = timedelta(seconds=2)
"""How far the clocks of this machine and of the store may differ: leases use the store's clock, but a record's time is
set by its producer, and boundaries are compared with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One line: what was checked, and the result."""

    group: str
    """Empty: it is of this machine, not of a group."""

    check: str
    verdict: CheckVerdict
    detail: str


def examine(
    spec: RegionSpec | None,
    given_store: str | None,
    environ: Mapping[str, str] = os.environ,
    spark: SparkSettings = SPARK,
) -> Iterator[Diagnosis]:
    """Yield what is found, one line after the other; nothing is changed anywhere.

    Args:
        spec: of the region whose members are to run; None: only the environment is checked.
        given_store: the store's URL; None: there is no store to check.
        environ: where Java is found, and the variables that the spec names.
        spark: with which Spark is started where its own login is tried.
    """
    yield _of_machine("python", lambda: (CheckVerdict.OK, platform.python_version()))
    yield _of_machine("spark", _spark)
    yield _of_machine("java", lambda: _java(environ))
    yield _of_machine("airflow", _airflow)
    store = None if given_store is None else _of_machine("store", lambda: _store(given_store))
    if store is not None:
        yield store
    if spec is None:
        return
    reachable = given_store if store is not None and store.verdict is not CheckVerdict.FAILED else None
    for group in spec.groups:
        yield from _of_group(spec, GroupId(group.group_id), reachable, environ)
        yield from _logins(spec, GroupId(group.group_id), environ, spark)


def _of_machine(check: str, probe: Callable[[], tuple[CheckVerdict, str]]) -> Diagnosis:
    return _diagnosis("", check, probe)


def _diagnosis(group: str, check: str, probe: Callable[[], tuple[CheckVerdict, str]]) -> Diagnosis:
    try:
        verdict, detail = probe()
    except KcrError as error:
        verdict, detail = CheckVerdict.FAILED, error.message
    return Diagnosis(group=group, check=check, verdict=verdict, detail=detail)


# -- the machine -----------------------------------------------------------------------------------------------------


def _spark() -> tuple[CheckVerdict, str]:
    try:
        version = require_pyspark()
    except ToolMissing as missing:
        absent = _version_of("pyspark") is None
        return (
            (CheckVerdict.WARNING, f"{missing.message}; without it no member runs here") if absent else _failed(missing)
        )
    client = _version_of("pyspark-client")
    beside = f", beside pyspark-client {client}" if client else ""
    return CheckVerdict.OK, f"PySpark {version}{beside}"


def _java(environ: Mapping[str, str]) -> tuple[CheckVerdict, str]:
    program, version = sound_java(environ)
    return CheckVerdict.OK, f"Java {version}, {program}"


def _airflow() -> tuple[CheckVerdict, str]:
    version = _version_of("apache-airflow")
    if version is None:
        return CheckVerdict.OK, "not installed here; only machines that run DAGs need it"
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if numbers < airflow_features.OLDEST:
        needed = airflow_features.dotted(airflow_features.OLDEST)
        return CheckVerdict.FAILED, f"Airflow {version}; install {needed} or newer: pip install 'airflow-kcr[airflow]'"
    lacking = "; ".join(one.missing for one in airflow_features.missing(numbers))
    return CheckVerdict.OK, f"Airflow {version}{f'; {lacking}' if lacking else ''}"


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _failed(error: KcrError) -> tuple[CheckVerdict, str]:
    return CheckVerdict.FAILED, error.message


# -- the store -------------------------------------------------------------------------------------------------------


def _store(given: str) -> tuple[CheckVerdict, str]:
    url = store_url(given)
    server = server_at(url)
    with connect(url) as store:
        store.names()  # the schema is this program's, and this user may read it
    before = datetime.now(UTC)
    again, now = server_at(url), datetime.now(UTC)
    described = f"Postgres {server.version}{' behind a pooler' if server.is_pooled else ''}"
    if server.is_standby:
        return CheckVerdict.FAILED, f"{described}, a standby, which takes no changes; give the address of the primary"
    if skew := _skew(again, before, now):
        return CheckVerdict.WARNING, (
            f"{described}; the clocks of this machine and of the store differ by {skew.total_seconds():.1f} s: have "
            "both follow a time server, or boundaries divide records by another time than you see"
        )
    return CheckVerdict.OK, f"{described}, its schema is current"


def _skew(server: Server, before: datetime, after: datetime) -> timedelta:
    """Return by how much the server's clock is off, as far as the time of the way to it does not explain it."""
    off = max(before - server.now, server.now - after, timedelta())
    return off if off > SKEW else timedelta()


# -- a group ---------------------------------------------------------------------------------------------------------


def _of_group(
    spec: RegionSpec, group: GroupId, given_store: str | None, environ: Mapping[str, str]
) -> Iterator[Diagnosis]:
    yield _diagnosis(group, "pipeline", lambda: _pipeline(spec, group))
    yield _diagnosis(group, "sinks", lambda: _sinks(spec, group, environ))
    try:
        client_settings(spec, group, environ)
        if given_store is None:
            yield from _checks(Undeclared(spec), spec, group)
            return
        with connect(store_url(given_store)) as store:
            is_declared = region_name(spec.region) in store.names()
            yield from _checks(store if is_declared else Undeclared(spec), spec, group)
    except KcrError as error:
        yield Diagnosis(group=group, check="kafka", verdict=CheckVerdict.FAILED, detail=error.message)


def _pipeline(spec: RegionSpec, group: GroupId) -> tuple[CheckVerdict, str]:
    name = spec.group(group).pipeline
    load_pipeline(name)
    return CheckVerdict.OK, name


def _sinks(spec: RegionSpec, group: GroupId, environ: Mapping[str, str]) -> tuple[CheckVerdict, str]:
    checked_sinks(spec, group, environ, region_id=UNDECLARED)
    return CheckVerdict.OK, ", ".join(
        f"{sink.name} ({sink.kind})" for sink in spec.group(group).sinks
    ) or "none declared"


def _logins(spec: RegionSpec, group: GroupId, environ: Mapping[str, str], spark: SparkSettings) -> Iterator[Diagnosis]:
    """Yield how each of the two clients gets in by a named login; where there is none, both have what is written."""
    try:
        kafka = client_settings(spec, group, environ)
    except KcrError:
        return  # said already
    mechanism = mechanism_of(kafka)
    if mechanism is not None:
        yield _diagnosis(group, "login", lambda: _of_librdkafka(mechanism, kafka))
        yield _diagnosis(group, "spark_login", lambda: _of_spark(spark, kafka, spec.rules().groups[group]))


def _of_librdkafka(mechanism: Mechanism, kafka: Mapping[str, str]) -> tuple[CheckVerdict, str]:
    _, until, who = Login(mechanism, kafka)("")
    left = until - datetime.now(UTC).timestamp()
    whose = f" of {who}" if who else ""
    return CheckVerdict.OK, f"auth: {mechanism.name}: librdkafka has a token{whose} for {left:.0f} s"


def _of_spark(spark: SparkSettings, kafka: Mapping[str, str], rules: GroupRules) -> tuple[CheckVerdict, str]:
    found = log_in(spark, kafka, rules)
    return CheckVerdict.OK, f"auth: {kafka[AUTH]}: Kafka's Java client, in Spark here, sees {found} partition(s)"


def _checks(store: Readable, spec: RegionSpec, group: GroupId) -> Iterator[Diagnosis]:
    for check in validate(store, region_name(spec.region), real_reader, [group]).checks:
        yield Diagnosis(
            group=check.group, check=str(check.question), verdict=check.verdict, detail=check.detail.strip()
        )


class Undeclared:
    """The region of a spec that no store has, as it would be when it is declared.

    Args:
        spec: the region's.
    """

    def __init__(self, spec: RegionSpec) -> None:
        self._spec = spec

    def read(self, name: RegionName) -> tuple[Region, datetime]:
        """Return the region, stopped, and the time."""
        now = datetime.now(UTC)
        spec = Spec(text=self._spec.to_json_text(), rules=self._spec.rules())
        return declare(name, now, DeclareRegion(spec=spec, region_id=UNDECLARED)), now

    def seen(self, name: RegionName) -> Seen:
        """Return that it never worked."""
        return Seen(worked_at=NEVER)
