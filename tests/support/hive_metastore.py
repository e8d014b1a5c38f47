"""The metastore of Hive, as PySpark ships it, over a database of Derby, in a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway  # type: ignore[import-untyped]

from airflow_kcr.embedded import jars
from airflow_kcr.embedded.processes import free_port
from tests.support.maven import fetched
from tests.support.server_process import ENDS_WITHIN, listening, write_hadoop_settings

MAIN: Final = "org.apache.hadoop.hive.metastore.HiveMetaStore"

_UNFENCED: Final = (
    "org/apache/hive/hive-metastore/2.3.9/hive-metastore-2.3.9.jar",
    "org/apache/hive/shims/hive-shims-common/2.3.9/hive-shims-common-2.3.9.jar",
    "org/apache/thrift/libthrift/0.9.3/libthrift-0.9.3.jar",
)
"""The last one of Hive 2.3 that does not look at what a change expects, with what it differs in."""

_OPENED: Final = ("java.lang", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")
"""Packages of Java that it reaches into."""

_LOGGED: Final = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metastore:
    """A metastore that runs."""

    uri: str
    folder: Path
    """Where its tables are."""


@contextmanager
def hive_metastore(folder: Path, *, is_fenced: bool = True) -> Iterator[Metastore]:
    """Lend a metastore whose tables and whose database are in a folder.

    Args:
        folder: an empty one.
        is_fenced: whether it looks at what a change expects.
    """
    _write_settings(folder)
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    options = [*opened, *jars.QUICK_START, "-Xmx256m", "-Dhive.async.log.enabled=false"]
    options.append(f"-Dderby.stream.error.file={folder}/derby.log")
    older = [] if is_fenced else fetched("hive-metastore-2.3.9", _UNFENCED)
    path = ":".join(map(str, (folder, *older, f"{jars.pyspark_jars()}/*")))
    _make_tables_of_locks(path, options, folder / "locks.log")
    port = free_port()
    command = [str(jars.java()), *options, "-cp", path, MAIN, "-p", str(port)]
    with listening(command, port, folder / "metastore.log"):
        yield Metastore(uri=f"thrift://127.0.0.1:{port}", folder=folder / "warehouse")


def _write_settings(folder: Path) -> None:
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "datanucleus.connectionPoolingType": "none",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.disallow.incompatible.col.type.changes": "false",
        "hive.metastore.warehouse.dir": f"{folder}/warehouse",
    }
    write_hadoop_settings(folder / "hive-site.xml", settings)
    (folder / "hive-log4j2.properties").write_text(_LOGGED)


def _make_tables_of_locks(path: str, options: list[str], log: Path) -> None:
    """Make what the metastore itself makes only where it is tried out by Hive's tests, which refuse other clients."""
    bridge = next(jars.pyspark_jars().glob("py4j-*.jar"))
    with log.open("wb") as out:
        port, process = launch_gateway(
            jarpath=str(bridge),
            classpath=path,
            javaopts=options,
            java_path=str(jars.java()),
            die_on_exit=True,
            redirect_stdout=out,
            redirect_stderr=out,
            return_proc=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        try:
            hive = gateway.jvm.org.apache.hadoop.hive
            hive.metastore.txn.TxnDbUtil.prepDb(hive.conf.HiveConf())
        finally:
            # It ends with its input, and only then does the database take another process.
            gateway.shutdown()
            process.stdin.close()
            process.wait(ENDS_WITHIN)
