"""The REST catalog that Apache Iceberg tries its own clients with: its servlet over a database, in a process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_kcr.embedded import jars
from airflow_kcr.embedded.processes import free_port
from tests.support.maven import fetched
from tests.support.server_process import listening

VERSION: Final = "1.10.1"
MAIN: Final = "org.apache.iceberg.rest.RESTCatalogServer"

_TESTS: Final = (
    f"org/apache/iceberg/iceberg-open-api/{VERSION}/iceberg-open-api-{VERSION}-test-fixtures.jar",
    f"org/apache/iceberg/iceberg-core/{VERSION}/iceberg-core-{VERSION}-tests.jar",
)
"""What has the server, beside the jars of `_libraries`: jars with a classifier, which those can't name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestServer:
    """A catalog that runs."""

    uri: str
    process: subprocess.Popen[bytes]


@contextmanager
def rest_catalog(folder: Path) -> Iterator[RestServer]:
    """Lend a catalog whose tables and whose database are in a folder."""
    port = free_port()
    settings = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": f"{folder.as_uri()}/warehouse",
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
    }
    servers = fetched(f"iceberg-rest-tests-{VERSION}", _TESTS)
    path = ":".join(map(str, (*jars.resolve(_libraries()), *servers, f"{jars.pyspark_jars()}/*")))
    command = [str(jars.java()), *jars.QUICK_START, "-Xmx256m", "-cp", path, MAIN]
    with listening(command, port, folder / "rest.log", settings) as process:
        yield RestServer(uri=f"http://127.0.0.1:{port}", process=process)


def _libraries() -> jars.JarSet:
    return jars.JarSet(
        name="iceberg-rest",
        coordinates=(
            f"org.apache.iceberg:iceberg-core:{VERSION},org.eclipse.jetty:jetty-servlet:11.0.26,"
            "org.xerial:sqlite-jdbc:3.50.3.0"
        ),
        variable="KCR_ICEBERG_REST_JARS",
        without=jars.shipped(),
    )
