"""The Spark session of an application that hosts members (docs/explanation/decisions/consuming.md).

What the user sets, by `spark-submit`, in `spark-defaults.conf` or in the call, stays as it is; what is missing is set
here. A few settings would break what a region promises, and are refused by name.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from glob import glob
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from airflow_kcr.errors import ConfigurationError
from airflow_kcr.settings import NAMES, is_secret, secrets_in
from airflow_kcr.spark import jvm
from airflow_kcr.spark.launch import launch, line_of, require_pyspark

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_BUILDS: Final[Mapping[str, str]] = {"4.0": "4.0.0", "4.1": "4.1.1", "4.2": "4.2.0"}
"""The build of Spark's Kafka connector for each line of Spark: the one that can be had with all that it needs."""

_DEFAULT: Final = "4.2"
"""The line that is meant where no PySpark is installed: the one that airflow-kcr[spark] installs."""


def connector_for(spark: str) -> str:
    """Return the Maven coordinate of the Kafka connector for a version of Spark; of an unknown line, its own version.

    Args:
        spark: such as `4.1.4`.
    """
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_BUILDS.get(line_of(spark), spark)}"


def _installed() -> str:
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # a host that only submits, or reads DAGs
        return _BUILDS[_DEFAULT]


CONNECTOR: Final = connector_for(_installed())
"""Spark's Kafka connector, as the installed PySpark needs it."""

POSTGRES_DRIVER: Final = "org.postgresql:postgresql:42.7.7"
"""The driver that executors write to a Postgres sink with, if no other source of it is named."""

logger = logging.getLogger(__name__)

STOP_TIMEOUT: Final = 5.0
"""Seconds that Spark has to stop; its JVM ends with this process in any case."""

_CONNECTOR_CLASS: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_V1_SOURCES: Final = "spark.sql.sources.useV1SourceList"
_V1_DEFAULT: Final = "avro,csv,json,kafka,orc,parquet,text"
_REDACTION: Final = "spark.redaction.regex"
_REDACTION_DEFAULT: Final = "(?i)secret|password|token|access[.]?key"
_OWN_REDACTION: Final = rf"(?i:{NAMES}|ssl\.(keystore|truststore)\.|ssl\.key|oauthbearer)"

_DAEMON_MODULE: Final = "spark.python.daemon.module"
_DAEMON: Final = "airflow_kcr.spark.kcr_python_daemon"
_DAEMON_FILE: Final = Path(__file__).with_name("kcr_python_daemon.py")
_CONSOLE: Final = "spark.ui.showConsoleProgress"
_MASTER: Final = "local[*,4]"
_MASTER_OF_NOBODY: Final = "local[*]"
_NAME_OF_NOBODY: Final = "pyspark-shell"

_DEFAULTS: Final[Mapping[str, str]] = {
    # A batch of few records of one member must not wait for a big one of another.
    "spark.scheduler.mode": "FAIR",
    # What the driver remembers of finished work: enough to read a batch's scans, whatever the members number; at
    # Spark's own sizes an application that runs for months holds thousands of plans.
    "spark.sql.ui.retainedExecutions": "200",
    "spark.ui.retainedJobs": "500",
    "spark.ui.retainedStages": "500",
    "spark.ui.retainedTasks": "5000",
    "spark.ui.dagGraph.retainedRootRDDs": "50",
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.python.task.killTimeout": "200ms",
    # A timeline's consumers are asked for nothing once it is over, and hold what they have fetched. Spark's own five
    # minutes are long enough for a handful of resets to fill an executor's memory. Under a quota a consumer waits as
    # long as a batch takes for its next range, and what it has fetched may have cost seconds.
    "spark.kafka.consumer.cache.timeout": "60s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "60s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
    # Standard error is for our own progress.
    _CONSOLE: "false",
}

_CONNECT: Final = "a Spark Connect session can't be cancelled by job group"

_REFUSED: Final[Mapping[str, tuple[Callable[[str], bool], str]]] = {
    "spark.speculation": (
        lambda value: value.strip().lower() == "true",
        "two copies of one task would write the same records; leave it out",
    ),
    _V1_SOURCES: (
        lambda value: "kafka" in {name.strip().lower() for name in value.split(",")},
        "through V1 a cancelled read runs on to the end of its range; take kafka out of the list",
    ),
    "spark.remote": (bool, f"{_CONNECT}; use a master"),
    "spark.api.mode": (lambda value: value.lower() == "connect", "members need the classic mode; leave it out"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """How to get a session.

    Args:
        app_name: as Spark's UI shows it.
        master: None: as `spark-submit` or Spark's own files say, else all cores of this machine.
        conf: settings by name; they win over all others.
        connector: Maven coordinate of Spark's Kafka connector, used if no other source of it is named.
        packages: further Maven coordinates, fetched where `connector` is.
        jars: paths of jars instead, which hold the connector and what it needs.
        consumers: how many partitions all members hosted here may read; executors keep that many Kafka consumers.
        log_level: of the JVM. At WARN, a cancelled batch fills the screen.

    Raises:
        ConfigurationError: with the names of what holds a secret: it would stand in the command line of Spark's JVM.
    """

    app_name: str
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    connector: str = CONNECTOR
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    consumers: int = 0
    log_level: str = "ERROR"

    def __post_init__(self) -> None:
        texts = {"jars": self.jars, "connector": (self.connector,), "packages": self.packages}
        seen = [*secrets_in(self.conf), *(name for name, values in texts.items() if any(map(is_secret, values)))]
        if seen:
            raise ConfigurationError(
                f"a secret would stand in the command line of Spark's JVM: {', '.join(seen)}; write it into "
                "spark-defaults.conf (SPARK_CONF_DIR), or hand it over in the environment"
            )


def open_session(settings: SparkSettings) -> SparkSession:
    """Return the session of this process, started with what is missing in its settings.

    Raises:
        ConfigurationError: a setting would break exactness, a jar is not there, or the connector is not on the class
            path.
        ToolMissing: there is no PySpark or no Java.
        ServiceFailed: Spark's JVM did not start; the message has its own words.
    """
    require_pyspark()
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    _refuse_environment(os.environ)
    refuse_settings(dict(settings.conf))
    require_jars(settings.jars)
    launch(_at_launch(settings))
    conf = SparkConf()
    for name, value in settings.conf.items():
        conf.set(name, value)
    refuse_settings(dict(conf.getAll()))
    if (settings.master or conf.get("spark.master", _MASTER) or "").startswith("local"):
        # On this machine, functions run in the Python that this process runs in; Spark would take python3 of the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in missing_settings(dict(conf.getAll()), settings).items():
        if value != _DAEMON or _own_python(os.environ):
            conf.set(name, value)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    spark.sparkContext.setLogLevel(settings.log_level)
    if spark.sparkContext.getConf().get(_DAEMON_MODULE) == _DAEMON_FILE.stem:
        spark.sparkContext.addPyFile(str(_DAEMON_FILE))
    check_connector(spark, settings)
    return spark


def executor_memory(spark: SparkSession) -> int:
    """Return the heap of one executor, in bytes; of an application that has none, its driver's."""
    context = spark.sparkContext
    if (context.master or "").startswith("local"):
        return int(jvm.virtual_machine(context).java.lang.Runtime.getRuntime().maxMemory())
    return int(jvm.scala_context(context).executorMemory()) << 20


def require_jars(jars: Iterable[str]) -> None:
    """Refuse jars that are named and not there, as far as this machine can tell: Spark continues without them.

    Args:
        jars: their paths or addresses, as Spark takes them, patterns among them.

    Raises:
        ConfigurationError: with each that is missing.
    """
    missing = [jar for jar in jars if not _is_there(jar)]
    if missing:
        raise ConfigurationError(
            "there is no jar at\n" + "".join(f"  {jar}\n" for jar in missing) + "correct the path, or leave it out: "
            "without jars the connector is fetched by its coordinate"
        )


def _is_there(jar: str) -> bool:
    address = urlsplit(jar.strip())
    if address.scheme not in {"", "file"}:
        return True  # another machine's, or an executor's
    return bool(glob(address.path)) or Path(address.path).is_file()


def member_session(spark: SparkSession) -> SparkSession:
    """Return a session of its own for one member: temporary views and SQL settings are not shared with other members.

    The pipeline has it as `batch.sparkSession`.

    Raises:
        ConfigurationError: the application's settings would break exactness.
    """
    refuse_settings(dict(spark.sparkContext.getConf().getAll()))
    own = spark.newSession()
    sources = own.conf.get(_V1_SOURCES, _V1_DEFAULT) or ""
    own.conf.set(_V1_SOURCES, _without_kafka(sources))
    return own


def stop_session(spark: SparkSession) -> None:
    """Stop Spark; where its JVM is gone already, as Ctrl-C may end both at once, there is nothing left to stop."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    def stop() -> None:
        try:
            spark.stop()
        except (Py4JError, OSError) as error:
            logger.info("Spark could not be told to stop, its JVM is gone: %s", error)

    stopping = threading.Thread(target=stop, name="stop Spark", daemon=True)
    stopping.start()
    stopping.join(STOP_TIMEOUT)


def check_connector(spark: SparkSession, settings: SparkSettings) -> None:
    """Refuse a session that can't read Kafka.

    Raises:
        ConfigurationError: Spark's Kafka connector is not on the class path, or a jar that may have it is not there.
    """
    if not jvm.has_class(spark.sparkContext, _CONNECTOR_CLASS):
        require_jars(_listed(spark.sparkContext.getConf().get("spark.jars")))
        raise ConfigurationError(
            f"Spark's Kafka connector is not on the class path of {spark.sparkContext.appName!r}; add\n"
            f"  --packages {settings.connector}\n"
            "to spark-submit, or --jars with its jar and those that it needs (kafka-clients, commons-pool2, "
            "spark-token-provider-kafka)"
        )


def missing_settings(given: Mapping[str, str], settings: SparkSettings) -> dict[str, str]:
    """Return what has to be set beside what is given: the settings of this project, nothing that is set already.

    Args:
        given: the settings that Spark has.
        settings: the application's.
    """
    wanted = {
        **_DEFAULTS,
        "spark.master": _MASTER,
        # A soft limit on each executor, which may get to read every partition of every member.
        "spark.kafka.consumer.cache.capacity": str(max(64, 2 * settings.consumers)),
        _V1_SOURCES: _without_kafka(_V1_DEFAULT),
    }
    missing = {name: value for name, value in wanted.items() if name not in given}
    if settings.master is not None:
        missing["spark.master"] = settings.master
    elif given.get("spark.master") == _MASTER_OF_NOBODY:
        # What Spark uses by default; without retries, the first lost task would be a failed batch.
        missing["spark.master"] = _MASTER
    if given.get("spark.app.name", _NAME_OF_NOBODY).endswith((_NAME_OF_NOBODY, ".py")):
        missing["spark.app.name"] = settings.app_name
    redaction = given.get(_REDACTION, _REDACTION_DEFAULT)
    if _OWN_REDACTION not in redaction:
        missing[_REDACTION] = f"{redaction}|{_OWN_REDACTION}"
    if _DAEMON_MODULE not in given:
        local = missing.get("spark.master", given.get("spark.master", "")).startswith("local")
        missing[_DAEMON_MODULE] = _DAEMON if local else _DAEMON_FILE.stem
    return missing


def _at_launch(settings: SparkSettings) -> SparkConf:
    """Return what the JVM must know as it starts; it stands in the command line, so it is only what has to be there."""
    from pyspark import SparkConf

    conf = SparkConf(loadDefaults=False)
    # Spark's default is true before the JVM starts.
    conf.set(_CONSOLE, "false")
    for name, value in settings.conf.items():
        conf.set(name, value)
    if settings.jars:
        conf.set("spark.jars", ",".join((*_listed(settings.conf.get("spark.jars")), *settings.jars)))
    elif not names_library(settings.conf, "spark-sql-kafka"):
        packages = (*_listed(settings.conf.get("spark.jars.packages")), settings.connector, *settings.packages)
        conf.set("spark.jars.packages", ",".join(packages))
    return conf


def _own_python(environ: Mapping[str, str]) -> bool:
    """Whether Python workers on this machine run where this package is installed, so that they can import from it."""
    chosen = environ.get("PYSPARK_PYTHON")
    return chosen is None or shutil.which(chosen) == shutil.which(sys.executable)


def names_library(conf: Mapping[str, str], artifact: str) -> bool:
    """Whether settings say where a library comes from.

    Args:
        conf: the settings.
        artifact: how its jar's name begins.
    """
    places = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
    return any(artifact in conf.get(place, "") for place in places)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part for part in (text or "").split(",") if part)


def _without_kafka(sources: str) -> str:
    return ",".join(name for name in sources.split(",") if name.strip().lower() != "kafka")


def refuse_settings(conf: Mapping[str, str]) -> None:
    """Refuse settings that break what a region promises.

    Raises:
        ConfigurationError: with each of them, and why.
    """
    refused = [
        f"  {name}={conf[name]}: {why}"
        for name, (unsafe, why) in _REFUSED.items()
        if name in conf and unsafe(conf[name])
    ]
    if refused:
        raise ConfigurationError("members can't run on Spark with these settings:\n" + "\n".join(refused))


def _refuse_environment(environ: Mapping[str, str]) -> None:
    if environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        raise ConfigurationError(
            "PYSPARK_PIN_THREAD is not true: jobs would not belong to the member that starts them, and could not be "
            "cancelled; leave it out"
        )
    if environ.get("SPARK_REMOTE") or environ.get("SPARK_CONNECT_MODE_ENABLED"):
        raise ConfigurationError(f"SPARK_REMOTE is set: {_CONNECT}; leave it out, and name a master")
