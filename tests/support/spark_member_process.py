"""A process that hosts members on real Spark, with the gates of `member_process` where they can be put up.

Started by `members.Live` where it is told so. Everything but the gates is what `kcr member run` does.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from confluent_kafka.admin import AdminClient

from airflow_kcr.api.regions import store_url
from airflow_kcr.driver import application
from airflow_kcr.driver.application import MemberRun
from airflow_kcr.driver.process import run_members
from airflow_kcr.ports import BatchCall
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, MemberId, RegionName
from airflow_kcr.sinks.delta import table as delta_table
from airflow_kcr.sinks.delta.table import DeltaTable
from airflow_kcr.sinks.files.sink import FileSink
from airflow_kcr.sinks.iceberg import catalogs
from airflow_kcr.sinks.iceberg.table import IcebergTable
from airflow_kcr.sinks.postgres.sink import PostgresSink
from airflow_kcr.sinks.postgres.staging import Staging
from airflow_kcr.spark import session
from airflow_kcr.spark.session import SparkSettings
from airflow_kcr.spec import RegionSpec
from tests.support.member_process import GatedStore, Gates, no_admin_client
from tests.support.spark_gated_pipeline import CONF, DRIVER, GATES, JARS, OUTPUT

P = ParamSpec("P")
A = TypeVar("A")

_CONF: Final = {
    "spark.master": "local[1,3]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.executor.extraJavaOptions": f"-D{DRIVER}={os.getpid()}",
}


def _put_up(gates: Gates) -> None:
    """Hold publications, the start of Spark, its warming up and the resets of files at their gates.

    A publication in Postgres waits between `staged` and `published`, one in a table of a person at `committing`, at
    `writing` when all is ready but the write that makes it count, and at `shown` before the store knows; the others
    before `starting`, `warming` and `resetting`.
    """
    for place, name, gate in (
        (session, "check_connector", "starting"),
        (application, "warm_up", "warming"),
        (FileSink, "reset", "resetting"),
        (IcebergTable, "_commit", "committing"),
        (DeltaTable, "_commit", "committing"),
        (catalogs._TriedOnce, "commit_table", "writing"),
        (delta_table, "append", "writing"),
    ):
        setattr(place, name, _behind(gates, gate, getattr(place, name)))
    publish = FileSink.publish

    def shown(self: FileSink, sequence: CheckpointNumber) -> tuple[TableVersion, ...]:
        tables = publish(self, sequence)
        gates.wait("shown")
        return tables

    FileSink.publish = shown  # type: ignore[method-assign]
    insert = PostgresSink.insert

    def held(self: PostgresSink, call: BatchCall, staged: Staging) -> int:
        gates.wait("staged")
        inserted = insert(self, call, staged)
        gates.wait("published")
        return inserted

    PostgresSink.insert = held  # type: ignore[method-assign]


def _behind(gates: Gates, gate: str, call: Callable[P, A]) -> Callable[P, A]:
    def held(*args: P.args, **kwargs: P.kwargs) -> A:
        gates.wait(gate)
        return call(*args, **kwargs)

    return held


def main(arguments: dict[str, Any]) -> None:
    """Host members until they end."""
    AdminClient.__init__ = no_admin_client  # type: ignore[method-assign]
    gates = Gates(folder=Path(arguments["gates"]))
    os.environ[GATES], os.environ[OUTPUT] = arguments["gates"], arguments["output"]
    _put_up(gates)
    store = GatedStore.connect(store_url(arguments["store"]), lambda text: RegionSpec.from_json(text).rules())
    store.gates = gates
    indexes = tuple(arguments["indexes"])
    settings = SparkSettings(
        app_name=f"kcr {arguments['region']} {indexes}",
        jars=tuple(os.environ[JARS].split(",")),
        conf=_CONF | json.loads(os.environ.get(CONF, "{}")),
    )
    run = MemberRun(
        region=RegionName(arguments["region"]),
        members=tuple(MemberId(GroupId(arguments["group"]), index) for index in indexes),
        takeover=bool(arguments["takeover"]),
        spark=settings,
    )
    run_members(store, run)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(message)s")
    main(json.loads(sys.argv[1]))
