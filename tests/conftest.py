"""What every test may use: the Hypothesis profiles, databases, brokers, and the markers of the tests that use them."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import typer.testing
from hypothesis import settings

from airflow_kcr.embedded.jars import resolve, spark_connector
from tests.support import airflow_home, postgres, quick_spark
from tests.support import kafka as kafka_support
from tests.support.jar_sets import delta, iceberg
from tests.support.kafka_cluster import KafkaCluster, start_cluster
from tests.support.turns import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xdist.workermanage import WorkerController

    from tests.support.hive_metastore import Metastore
    from tests.support.object_store import ObjectStore
    from tests.support.rest_catalog import RestServer

# A deadline would fail a test because the machine was busy; a failure must be reproducible from what CI prints.
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=False, print_blob=True)
settings.register_profile(
    "long", max_examples=5_000, stateful_step_count=200, deadline=None, derandomize=False, print_blob=True
)
settings.load_profile(os.environ.get("KCR_HYPOTHESIS_PROFILE", "ci"))

# A test that uses one of these fixtures gets the marker.
MARKERS = {
    "postgres": {"postgres_server", "database_url", "empty_database_url"},
    "kafka": {"kafka", "kafka_set"},
    "airflow": {"airflow"},
    "browser": {"browser"},
}

LONG = "long"
"""The marker of tests that take turns where `--turn` is given; see `tests.support.turns`."""

RUN_DIR = pytest.StashKey[Path]()
OWNED_RUN = pytest.StashKey[postgres.Run]()


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "of the tests marked long, run SIZE that KEY decides on, a commit's id for instance; without it all are run"
    # A text, because xdist hands the options to its workers.
    parser.addoption("--turn", metavar="SIZE:KEY", help=told)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what runs in its background so, and every child inherits it: no test of Ctrl-C would end.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    if workerinput is None:
        run = postgres.Run.open()
        config.stash[OWNED_RUN] = run
        config.stash[RUN_DIR] = run.path
        if config.option.basetemp is None:
            # pytest's own folder is one for all runs of a user, and each run closes it to other users as it starts:
            # a server of another run, which as root has a user of its own, could not reach its data any more.
            config.option.basetemp = str(run.path / "tmp")
        quick_spark.prepare()  # the workers inherit it
    else:
        config.stash[RUN_DIR] = Path(workerinput["kcr_run_dir"])
    airflow_home.prepare(config.stash[RUN_DIR])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    # The hook of xdist that hands something to a worker before it starts.
    node.workerinput["kcr_run_dir"] = str(node.config.stash[RUN_DIR])


def pytest_unconfigure(config: pytest.Config) -> None:
    # After the workers are gone, and on Ctrl-C too.
    if OWNED_RUN in config.stash:
        config.stash[OWNED_RUN].close()
        del config.stash[OWNED_RUN]


# First, so that the markers set here are seen by the deselection of `-m`.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for marker, fixtures in MARKERS.items():
            if used & fixtures:
                item.add_marker(marker)
        if item.get_closest_marker("soak"):
            item.add_marker(LONG)  # so that `-m "not long"` leaves it out too
    told: str | None = config.getoption("--turn")
    if told is not None:
        turn = Turn.of(told)
        # A soak test is not one that CI would run if it were its turn.
        long = [item for item in items if item.get_closest_marker(LONG) and not item.get_closest_marker("soak")]
        chosen = turn.chosen(item.nodeid for item in long)
        left_out = {item for item in long if item.nodeid not in chosen}
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # A test that passes when it is run again has failed all the same, and nothing else would say how.
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"{report.nodeid} was run again", sep="_")
        terminalreporter.line(report.longreprtext)


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Typer's runner builds all commands of `kcr` anew for each call of one, which takes most of the call's time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> postgres.Server:
    """The Postgres of this run; `pytest_unconfigure` stops it."""
    return postgres.start_server(pytestconfig.stash[RUN_DIR])


@pytest.fixture(scope="session")
def database_template(postgres_server: postgres.Server) -> str:
    """The name of the database that has the newest schema and nothing in it."""
    return postgres_server.ensure_template()


@pytest.fixture
def database_url(postgres_server: postgres.Server, database_template: str) -> Iterator[str]:
    """A fresh database with the newest schema, for this test alone."""
    with postgres_server.database(template=database_template) as url:
        yield url


@pytest.fixture
def other_database_url(postgres_server: postgres.Server, database_template: str) -> Iterator[str]:
    """Another fresh database with the newest schema, to compare with."""
    with postgres_server.database(template=database_template) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres_server: postgres.Server) -> Iterator[str]:
    """A fresh database with nothing in it, for this test alone."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def store_connection(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a fresh store, which Airflow's connection `kcr_default` leads to."""
    monkeypatch.setenv("AIRFLOW_CONN_KCR_DEFAULT", airflow_home.connection_json(database_url))
    return database_url


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> kafka_support.Kafka:
    """The broker of this run, shared by all its tests; `pytest_unconfigure` stops it."""
    return kafka_support.start_server(pytestconfig.stash[RUN_DIR])


class StartKafka(Protocol):
    """What the fixture `kafka_set` gives."""

    def __call__(
        self,
        brokers: int = 1,
        *,
        settings: Mapping[str, str] | None = None,
        sasl_users: Mapping[str, str] | None = None,
    ) -> kafka_support.KafkaSet:
        """Start a cluster for this test alone."""
        ...


@pytest.fixture
def kafka_set(tmp_path: Path) -> Iterator[StartKafka]:
    """Starts clusters of one to three brokers that this test may stop, kill and suspend."""
    started: list[KafkaCluster] = []

    def start(
        brokers: int = 1,
        *,
        settings: Mapping[str, str] | None = None,
        sasl_users: Mapping[str, str] | None = None,
    ) -> kafka_support.KafkaSet:
        folder = tmp_path / f"kafka-{len(started) + 1}"
        cluster = start_cluster(folder, brokers=brokers, settings=settings, sasl_users=sasl_users)
        started.append(cluster)
        return kafka_support.KafkaSet(cluster)

    yield start
    for cluster in started:
        cluster.stop()


@pytest.fixture(scope="session")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    """A REST catalog of Iceberg."""
    from tests.support.rest_catalog import rest_catalog

    with rest_catalog(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture(scope="session")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    """A metastore of Hive."""
    from tests.support.hive_metastore import hive_metastore

    with hive_metastore(tmp_path_factory.mktemp("hive")) as server:
        yield server


@pytest.fixture(scope="session")
def store_of_objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """S3 and Glue, as moto has them."""
    from tests.support.object_store import object_store

    with object_store(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture(scope="session")
def connector_jars() -> tuple[Path, ...]:
    """The jars that let Spark read Kafka, for `spark.jars`."""
    quick_spark.ensure_archive()
    return resolve(spark_connector())


@pytest.fixture(scope="session")
def delta_jars() -> tuple[Path, ...]:
    """The jars that let Spark write Delta tables, for `spark.jars`."""
    return resolve(delta())


@pytest.fixture(scope="session")
def iceberg_jars() -> tuple[Path, ...]:
    """The jars that let Spark maintain Iceberg tables, for `spark.jars`; none where there are none for this Spark."""
    found = iceberg()
    return () if found is None else resolve(found)
