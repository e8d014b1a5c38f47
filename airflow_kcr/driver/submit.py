"""The arguments of `spark-submit` for an application that hosts members; without any secret in them.

Every user of the machine can read a command line, and Spark's own UI shows it. So the store's address goes through the
environment (`KCR_STORE_URL`), and client settings come from the region's spec; anything that may be a secret is
refused.
The settings that members need are not among the arguments: the application sets what is missing as it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_kcr.confidential import is_secret, names_secret, secrets_in
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.spark.session import CONNECTOR, refuse_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One application, as passed to `spark-submit` and Airflow's Spark provider.

    Args:
        application: path of the Python file that is the entry point.
        arguments: the entry point's own.
        name: as Spark's UI shows it.
        master: None: as Spark's own files say.
        conf: the user's settings; they win.
        jars: paths of the connector's jar and of those that it needs; without them, it is had by its coordinate.
        connector: the connector's Maven coordinate.
        packages: further coordinates.
        py_files: Python files and archives for driver and executors.

    Raises:
        ConfigurationError: a setting would break exactness, or may be a secret.
    """

    application: str
    arguments: tuple[str, ...] = ()
    name: str
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    jars: tuple[str, ...] = ()
    connector: str = CONNECTOR
    packages: tuple[str, ...] = ()
    py_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse_settings(self.conf)
        seen = sorted(secrets_in(self.conf))
        seen += [_argument(place, value) for place, value in enumerate(self.arguments) if _shows(value)]
        texts = {"master": (self.master or "",), "jars": self.jars, "connector": (self.connector,)}
        texts |= {"packages": self.packages, "py_files": self.py_files}
        seen += [name for name, values in texts.items() if any(map(is_secret, values))]
        if seen:
            raise ConfigurationError(
                f"a secret would stand in the command line of spark-submit: {', '.join(seen)}; hand the store's "
                "address over as KCR_STORE_URL, and other secrets in the environment or in Spark's own files"
            )

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The Maven coordinates to be resolved."""
        return self.packages if self.jars else (self.connector, *self.packages)

    def command(self, spark_submit: str = "spark-submit") -> tuple[str, ...]:
        """Return the command as a list, ready for a process.

        Args:
            spark_submit: the program.
        """
        options: list[str] = [spark_submit, "--name", self.name]
        if self.master is not None:
            options += ["--master", self.master]
        for option, values in (("--packages", self.coordinates), ("--jars", self.jars), ("--py-files", self.py_files)):
            if values:
                options += [option, ",".join(values)]
        for name, value in sorted(self.conf.items()):
            options += ["--conf", f"{name}={value}"]
        return (*options, self.application, *self.arguments)


def _shows(argument: str) -> bool:
    """Whether an argument, or one of the form NAME=VALUE, holds a secret."""
    name, _, value = argument.partition("=")
    return is_secret(argument) or bool(secrets_in({name: value}))


def _argument(place: int, text: str) -> str:
    """Name an argument; with what stands before its `=`, where that is a name and no secret itself."""
    name, equals, _ = text.partition("=")
    return f"argument {place + 1}" + (f" ({name})" if equals and names_secret(name) and not is_secret(name) else "")
