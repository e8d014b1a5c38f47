"""What `spark-submit` is given for an application that hosts members, and the Spark provider's hook that runs it.

The hook differs from the provider's in four ways. The application gets a session of its own, so that a kill of the
task's process group leaves it time to drain. What it needs to know stands in its environment, secrets among it, and
never in the command, where the provider would put it for YARN and Kubernetes. Of its output, what is for people goes to
the task's log; the rest is kept for the case that it fails. And its exit status says whether a retry can help.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException

import airflow_kcr
from airflow_kcr.driver.task import REQUEST_ID, RunningApplication, Sieve, compared_in, process_state
from airflow_kcr.errors import BatchError, ConfigurationError, KcrError, RefusedError, ServiceFailed, ToolMissing
from airflow_kcr.hooks.pods import LABEL, DriverPod, clean, label_of
from airflow_kcr.hooks.yarn import TAG, DriverApplication
from airflow_kcr.settings import is_secret, names_secret, secrets_in
from airflow_kcr.spark.launch import PACKAGES, fetched_alone, submit_environment
from airflow_kcr.spark.session import CONNECTOR, refuse_settings

if TYPE_CHECKING:
    import subprocess


CLUSTER: Final = "cluster"

AM_WAIT: Final = "spark.yarn.am.waitTime"
"""The setting that says how long YARN's application master waits for the driver's Spark."""

_TAGS: Final = "spark.yarn.tags"
_BASH_ENV: Final = "spark.yarn.appMasterEnv.BASH_ENV"
_CONTAINER: Final = Path(airflow_kcr.__file__).with_name("spark") / "yarn_container.sh"
"""What lets a driver drain on YARN; sent to its container, whose folder is the working directory there."""

_ON_YARN: Final = r"(?:(?<=application )|(?<=report for ))application_\d+_\d+"
"""The name of an application where YARN's client says it, and not where a path does."""

_NAMES: Final = re.compile(
    rf"{_ON_YARN}|pod name: .+?-driver$|submission ID \S+?-driver|spark-app-selector -> spark-[a-z0-9]+"
)
_SUBMITTED: Final = re.compile(r"submission ID [^\s:]+:(\S+) into Kubernetes")
"""What Spark calls a driver's pod, after its namespace; the provider reads it for the namespace `spark` alone."""

_STATUS: Final = re.compile(r"[eE]xit code: \d+")
_PAGE: Final = re.compile(r"tracking URL: (https?://\S+)")
"""What YARN's client and Kubernetes' say of an application that the cluster has taken."""

_MISCONFIGURED: Final = re.compile(
    r"(?:Invalid (?:maximum|initial) heap size|Unrecognized (?:VM )?option|Could not parse Master URL).*"
    r"|(?<=SparkException: ).* must be .*"
)
"""What no further try will change."""

_FETCHED: Final = re.compile(r"\d+ artifacts copied, \d+ already retrieved")
"""What Spark says when the jars are there that it has fetched."""

_SPARK_LOG: Final = "Spark: %s"
_KILLED: Final[Mapping[int, str]] = {
    **{-number: f"was ended by {signal.Signals(number).name}" for number in (signal.SIGTERM, signal.SIGKILL)},
    **{128 + number: f"was ended by {signal.Signals(number).name}" for number in (signal.SIGTERM, signal.SIGKILL)},
}


class KcrSparkSubmitHook(SparkSubmitHook):
    """Starts an application that hosts members, and listens to it.

    Args:
        environment: what the driver finds in its environment, over that of this process; it may hold secrets.
        heard: told of the application, each time that it tells of itself.
        options: those of the Spark provider's hook.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        heard: Callable[[RunningApplication], None],
        **options: Any,  # noqa: ANN401
    ) -> None:
        try:
            super().__init__(**options)
        except (NameError, RuntimeError) as error:  # the provider misses what it did not find when it was imported
            raise ToolMissing(
                "Spark on Kubernetes needs a further provider; install apache-airflow-providers-cncf-kubernetes"
            ) from error
        self.environment, self._heard = dict(environment), heard
        self._sieve = Sieve()
        self._fetching = ExitStack()
        """Held while Spark fetches jars."""

        self.application: RunningApplication | None = None
        self.compared: list[dict[str, object]] | None = None
        """Comparisons of output, once the application has told of them."""

        """What the driver has said of itself; where it runs in a cluster, what the cluster's client has."""

        if self.is_cluster:
            self._let_go()

    def _let_go(self) -> None:
        """Have spark-submit end as soon as the cluster has the application; the region says what becomes of it.

        The driver has nothing of this process's environment there; what it must know of its task is an argument.
        """
        if last_request := self.environment[REQUEST_ID]:
            self._application_args = [*(self._application_args or ()), "--until-request", last_request]
        master = self._connection["master"]
        if self._is_yarn:
            # A driver checks everything and may wait for a predecessor's lease before it starts Spark; by default its
            # application master gives it up after 100 s.
            ours = {AM_WAIT: "600s", _BASH_ENV: _CONTAINER.name}
            self._files = ",".join(filter(None, (self._files, str(_CONTAINER))))
            tags = ",".join(filter(None, (self._conf.get(_TAGS), TAG)))
            self._conf = {**ours, **self._conf, _TAGS: tags, "spark.yarn.submit.waitAppCompletion": "false"}
        elif self._is_kubernetes:
            self._track_driver_via_k8s_api = True
            self._conf = {**self._conf, f"spark.kubernetes.driver.label.{LABEL}": label_of(self._name)}
        else:
            raise ConfigurationError(
                f"{master} runs no Python driver in the cluster; use YARN or Kubernetes, or deploy mode client"
            )

    @property
    def is_cluster(self) -> bool:
        """Whether the driver runs in the cluster, and not beside this process."""
        return bool(self._connection["deploy_mode"] == CLUSTER)

    @property
    def accepted(self) -> str:
        """How the cluster calls an application that it has taken; empty where it did not say."""
        return self._yarn_application_id or self._kubernetes_driver_pod or ""

    @property
    def driver(self) -> DriverPod | DriverApplication | None:
        """Where a driver is that the cluster has taken; None: it is in no cluster, or the cluster did not say it."""
        if not (self.is_cluster and self.accepted):
            return None
        if self._is_kubernetes:
            return self._pod(self.accepted)
        return DriverApplication.of(self.application.ui, self.accepted) if self.application else None

    def _pod(self, name: str) -> DriverPod:
        return DriverPod.of(self._connection["master"], self._connection["namespace"], name, self._name)

    def _resolve_connection(self) -> dict[str, Any]:
        # The provider's takes YARN for a connection that is not there.
        try:
            self.get_connection(self._conn_id)
        except AirflowNotFoundException:
            raise ConfigurationError(
                f"there is no Airflow connection {self._conn_id!r}; add one of type spark, whose host is the master "
                f"(local[2], spark://HOST:PORT), or set AIRFLOW_CONN_{self._conn_id.upper()}"
            ) from None
        try:
            found: dict[str, Any] = super()._resolve_connection()
        except ValueError as error:
            raise ConfigurationError(f"Airflow connection {self._conn_id}: {error}") from error
        return found

    def _build_spark_common_args(self) -> list[str]:
        arguments: list[str] = super()._build_spark_common_args()
        # Only now: what is in `env_vars` is the provider's, and stands in the command on YARN and Kubernetes.
        self._env = {**(self._env or {}), **self.environment}
        return arguments

    def run(self, application: str) -> None:
        """Start the application and wait for its end; in a cluster, for its being accepted.

        Args:
            application: path of the program.

        Raises:
            ToolMissing, ConfigurationError: Spark or Java is not where it is expected, or the application's settings
            can't work.
            RefusedError: the region does not let its members be.
            ServiceFailed, BatchError: it ended otherwise than by itself; or another process fetches jars for too long.
        """
        program = str(self._connection["spark_binary"])
        given = {name: str(value) for name, value in (self._env_vars or {}).items()}
        found = submit_environment({**os.environ, **given}, program)
        if self.is_cluster:
            # Spark has the driver's Python from here, and this machine's path leads nowhere there.
            found.pop("PYSPARK_DRIVER_PYTHON", None)
        self.environment = {**found, **self.environment}
        if self.is_cluster and self._is_kubernetes:
            clean(self._pod(""), self.log.warning)
        try:
            with ExitStack() as fetching:
                self._fetching = fetching
                fetching.enter_context(fetched_alone({**self._conf, PACKAGES: self._packages or ""}))
                self.submit(self._where_it_runs(application), start_new_session=True)
        except OSError as error:
            raise ToolMissing(f"{program} could not be started: {error.strerror}") from error
        except AirflowException as error:
            if self._submit_sp is None:
                raise ConfigurationError(f"spark-submit can't be called as asked: {error}") from error
            raise self._failure() from error
        finally:
            if self._submit_sp is not None and self._submit_sp.stdout is not None:
                self._submit_sp.stdout.close()

    def _where_it_runs(self, application: str) -> str:
        """Return the program as the driver finds it; Kubernetes is sent no file, so it is one of the image."""
        is_sent = not (self.is_cluster and self._is_kubernetes) or ":/" in application
        return application if is_sent else f"local://{application}"

    def _failure(self) -> KcrError:
        """Return why the application failed; where it did not say that itself, Spark's last words are shown."""
        process: subprocess.Popen[str] | None = self._submit_sp
        status = None if process is None else process.returncode
        verdict = self._sieve.verdict
        for line in () if verdict else self._sieve.hidden:
            self.log.warning(_SPARK_LOG, self._mask_cmd(line))
        if wrong := self._misconfigured():
            return ConfigurationError(f"Spark can't be started as configured: {wrong}; check conf and the connection")
        match status:
            case 2:
                return ConfigurationError(verdict or "the application found its configuration unusable; see above")
            case 3:
                return RefusedError(verdict or "the region refused the application; see above")
            case int() if status in _KILLED:
                return ServiceFailed(f"the application {_KILLED[status]} ({status})")
            case _:
                return BatchError(verdict or f"the application ended with status {status}; its last words are above")

    def _misconfigured(self) -> str:
        """Return what Java or Spark finds impossible in the settings, before an application runs; empty: nothing."""
        if self.application is not None:
            return ""
        found = (match[0] for line in self._sieve.hidden if (match := _MISCONFIGURED.search(line)))
        return self._mask_cmd(next(found, ""))

    def _process_spark_submit_log(self, itr: Iterable[str]) -> None:
        if self.is_cluster:
            super()._process_spark_submit_log(self._of_cluster(itr))
            return
        # What the provider's does with the output of a client on Kubernetes, whose status is that of the process.
        self._spark_exit_code = 0
        for line in itr:
            if _FETCHED.search(line):
                self._fetching.close()
            application, compared = RunningApplication.read(line), compared_in(line)
            if application is not None:
                self.application = application
                self._heard(application)
            elif compared is not None:
                self.compared = compared
            else:
                self._show(line)

    def _show(self, line: str) -> None:
        """Log what of a line is for people."""
        if (found := self._sieve.take(line)) is not None:
            level, text = found
            self.log.log(max(level, logging.INFO), "%s", text)

    def _of_cluster(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines that the provider reads the application's names and status from, each name once."""
        seen: set[str] = set()
        for line in lines:
            if page := _PAGE.search(line):
                self.application = RunningApplication(application=self.accepted, ui=page[1])
                self._heard(self.application)
            if pod := _SUBMITTED.search(line):
                self._kubernetes_driver_pod = pod[1]
            names = set(_NAMES.findall(line))
            if names - seen or _STATUS.search(line):
                seen |= names
                # The provider takes the first word that begins as a name does; a path on the same line may have one.
                on_yarn = re.search(_ON_YARN, line)
                yield line if on_yarn is None else on_yarn[0]
            else:
                self._show(line)

    def tell_to_drain(self) -> None:
        """Tell a driver on this machine that its task is about to go, seconds before it could see that itself.

        One that is on its way to a cluster is not sent any more; one that is there finds its last checkpoint requested.
        """
        if self.is_cluster:
            if self._submit_sp is not None and self._submit_sp.poll() is None:
                self._submit_sp.terminate()
            return
        application = self.application
        state = None if application is None else process_state(application.pid)
        if application is None or state is None or state.started != application.started:
            return
        try:
            os.kill(application.pid, signal.SIGUSR1)
        except (ProcessLookupError, PermissionError):
            return


# Every user of the machine can read a command line, and Spark's own UI shows it. So the store's address goes through
# the environment (`KCR_STORE_URL`), and client settings come from the region's spec; anything that may be a secret is
# refused. The settings that members need are not among the arguments: the application sets what is missing as it
# starts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One application, as passed to `spark-submit` and Airflow's Spark provider.

    Args:
        application: path of the Python file that is the entry point.
        arguments: the entry point's own.
        name: as Spark's UI shows it.
        conf: the user's settings; they win.
        jars: paths of the connector's jar and of those that it needs; without them, it is had by its coordinate.
        connector: the connector's Maven coordinate.
        packages: further coordinates.

    Raises:
        ConfigurationError: a setting would break exactness, or may be a secret.
    """

    application: str
    arguments: tuple[str, ...] = ()
    name: str
    conf: Mapping[str, str] = field(default_factory=dict)
    jars: tuple[str, ...] = ()
    connector: str = CONNECTOR
    packages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse_settings(self.conf)
        seen = sorted(secrets_in(self.conf))
        seen += [_argument(place, value) for place, value in enumerate(self.arguments) if _shows(value)]
        texts = {"jars": self.jars, "connector": (self.connector,), "packages": self.packages}
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


def _shows(argument: str) -> bool:
    """Whether an argument, or one of the form NAME=VALUE, holds a secret."""
    name, _, value = argument.partition("=")
    return is_secret(argument) or bool(secrets_in({name: value}))


def _argument(place: int, text: str) -> str:
    """Name an argument; with what stands before its `=`, where that is a name and no secret itself."""
    name, equals, _ = text.partition("=")
    return f"argument {place + 1}" + (f" ({name})" if equals and names_secret(name) and not is_secret(name) else "")
