"""A task that starts a Spark application which hosts members of a region."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

import airflow_kcr
from airflow_kcr.driver.task import RunningApplication, Task
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.hooks.compat import not_durable
from airflow_kcr.hooks.kcr import RegionTask
from airflow_kcr.hooks.links import SparkUiLink
from airflow_kcr.hooks.spark_submit import KcrSparkSubmitHook, Submission
from airflow_kcr.protocol.values import GroupId, region_name
from airflow_kcr.settings import is_secret, secrets_in
from airflow_kcr.spark.reads import REFUSED_BY_NAME
from airflow_kcr.spark.session import CONNECTOR
from airflow_kcr.triggers.waits import WaitingTask

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.goals import Goal
    from airflow_kcr.spec import RegionSpec

APPLICATION: Final = "kcr_application"
"""The XCom that holds the application: Spark's id, host, process and the incarnations of its members."""

_OURS: Final = ("application", "application_args", "name", "java_class", "durable", "reconnect_on_retry")
_OPTIONS: Final[Mapping[str, str]] = {
    **{
        name: name
        for name in (
            *("conf", "files", "py_files", "driver_class_path", "jars", "packages", "exclude_packages", "keytab"),
            *("principal", "proxy_user", "name", "application_args", "env_vars", "properties_file"),
            "post_submit_commands",
        )
    },
    **{
        name: f"_{name}"
        for name in (
            *("conn_id", "archives", "repositories", "total_executor_cores", "executor_cores", "executor_memory"),
            *("driver_memory", "num_executors", "status_poll_interval", "verbose", "spark_binary", "yarn_queue"),
            *("deploy_mode", "use_krb5ccache"),
        )
    },
}
"""The options of the provider's hook, with the attributes in which its operator keeps them."""

_INSTEAD: Final[Mapping[str, str]] = {
    "conf": "every user of the machine could read it in spark-submit's command line: write it into Spark's own files "
    "(spark-defaults.conf), or hand it over in the worker's environment",
    "env_vars": "YARN and Kubernetes would show it in the command line: keep it in the worker's own environment, or in "
    "the cluster's secrets",
    "read_options": REFUSED_BY_NAME,
}
"""Where a secret belongs that stands in one of these arguments."""

_OWN_VARIABLES: Final = re.compile(
    # A variable that Kubernetes takes from one of its secrets is not handed over here.
    r"^(?!spark\.kubernetes\.driver\.secretKeyRef\.).*(?:KCR_STORE_URL|KCR_KAFKA_|KCR_POSTGRES_)"
)
_FOR_EVER: Final = timedelta(days=3650)
_HALF_AN_HOUR: Final = timedelta(minutes=30)


class ApplicationOperator(WaitingTask, SparkSubmitOperator):
    """Starts an application of a region's members; its arguments are those that `KcrConsumeOperator` explains.

    Args:
        kwargs: as for `SparkSubmitOperator`, but for what this operator says itself.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        *RegionTask.template_fields,
        *("connector", "read_options"),
    )
    operator_extra_links = (*RegionTask.operator_extra_links, SparkUiLink())

    def __init__(
        self,
        *,
        connector: str = CONNECTOR,
        read_options: Mapping[str, str] | None = None,
        program: str | None = None,
        come_within: timedelta = _HALF_AN_HOUR,
        **kwargs: Any,  # noqa: ANN401 (the provider's own)
    ) -> None:
        said = sorted(name for name in _OURS if name in kwargs)
        if said:
            raise ConfigurationError(f"{type(self).__name__} says {', '.join(said)} itself; leave it out")
        # The provider's way to find an application again is not ours: a region knows its members, and a new try takes
        # them over. What it would store is of a try that is fenced by then.
        kwargs.update(not_durable())
        super().__init__(**kwargs)
        self.connector = connector
        self.read_options = read_options
        self.program = program
        self.come_within = come_within
        self.submit: KcrSparkSubmitHook | None = None
        # Already where the DAG is read: a stored DAG and a task's rendered fields show them.
        self._refuse_secrets()

    def on_kill(self) -> None:
        """Have the application end; it has not happened yet when this returns."""
        if self.submit is not None:
            self.submit.tell_to_drain()

    def come_by(self) -> datetime:
        """Return when the first member has to be there, by the store's clock, counted from now."""
        with self.hook.opened() as store:
            _, now = store.read(region_name(self.region))
        return now + self.come_within

    def _refuse_secrets(self) -> None:
        """Refuse secrets in what gets into the command line, and onto Airflow's page.

        Raises:
            ConfigurationError: with the names of all of them.
        """
        places = {"conf": self.conf, "env_vars": self.env_vars, "read_options": self.read_options}
        for place, given in places.items():
            # Templates and other tasks' results are checked when they are rendered.
            seen = secrets_in({str(k): str(v) for k, v in given.items()}) if isinstance(given, Mapping) else ()
            if seen:
                raise ConfigurationError(f"{place} holds what may be a secret: {', '.join(seen)}; {_INSTEAD[place]}")
        texts = {name: getattr(self, attribute) for name, attribute in _OPTIONS.items() if name not in places}
        if seen := tuple(name for name, value in texts.items() if isinstance(value, str) and is_secret(value)):
            raise ConfigurationError(f"{', '.join(seen)} hold what may be a secret; {_INSTEAD['conf']}")

    def wait_for_cluster(
        self, context: Context, submit: KcrSparkSubmitHook, goal: Goal, then: str = "resume", **kept: object
    ) -> NoReturn:
        """Give the slot up until the application that a cluster has taken is over.

        Args:
            context: the task's.
            submit: which has submitted it.
            goal: what the region has reached then.
            then: the method that goes on.
            kept: what it is given then, as JSON.
        """
        if submit.application is None:
            context["ti"].xcom_push(key=APPLICATION, value={"application": submit.accepted})
        self.log.info("the cluster has taken the application %s", submit.accepted)
        self.give_up_slot(goal, _FOR_EVER, then=then, kept=kept, driver=submit.driver)

    def submission(self, spec: RegionSpec, groups: Iterable[GroupId], name: str, *arguments: str) -> Submission:
        """Return what is submitted: `kcr` with these arguments, and what the sinks of groups need.

        Args:
            spec: the region's.
            groups: whose members are hosted.
            name: of the application.
            arguments: of the command; the options of the connector are added.
        """
        options = [
            part for pair in sorted((self.read_options or {}).items()) for part in ("--read-option", "=".join(pair))
        ]
        self._refuse_secrets()  # again, now that templates are rendered
        _refuse_addresses(self.conf or {})
        return Submission(
            application=self.program or str(Path(airflow_kcr.__file__).with_name("__main__.py")),
            arguments=(*arguments, *options),
            name=name,
            conf={str(name): str(value) for name, value in (self.conf or {}).items()},
            jars=_listed(self.jars),
            connector=self.connector,
            packages=(*_listed(self.packages), *self._drivers(spec, groups)),
        )

    def _drivers(self, spec: RegionSpec, groups: Iterable[GroupId]) -> tuple[str, ...]:
        """What the sinks need of Spark; where jars are named, they are all that is wanted."""
        if self.jars:
            return ()
        from airflow_kcr.sinks.group import spark_packages

        named = {_library(one) for one in _listed(self.packages)}
        return tuple(one for one in spark_packages(spec, groups) if _library(one) not in named)

    def started(self, context: Context, spec: RegionSpec, submission: Submission, task: Task) -> KcrSparkSubmitHook:
        """Start the application, and return what has: it is over then, or a cluster has taken it.

        Args:
            context: the task's.
            spec: the region's.
            submission: what is submitted.
            task: what the application hangs on.

        Raises:
            KcrError: it can't be started, or has failed.
        """
        environment = {**self.hook.environment(spec), **task.environment()}
        self.submit = self.prepared(context, submission, environment)
        self.submit.run(self.application)
        return self.submit

    def prepared(self, context: Context, submission: Submission, environment: Mapping[str, str]) -> KcrSparkSubmitHook:
        """Return the hook that starts the application; nothing has been started."""
        self.application, self.application_args = submission.application, list(submission.arguments)
        self.name, self.conf = submission.name, dict(submission.conf)
        self.jars, self.packages = ",".join(submission.jars) or None, ",".join(submission.coordinates) or None

        def heard(application: RunningApplication) -> None:
            context["ti"].xcom_push(key=APPLICATION, value=asdict(application))
            if application.ui:
                SparkUiLink().persist(context, application.ui)
            members = ", ".join(f"{m} (incarnation {n})" for m, n in sorted(application.members.items()))
            self.log.info("%s%s", application.label(), f" hosts {members}" if members else "")

        options = {name: getattr(self, attribute) for name, attribute in _OPTIONS.items()}
        return KcrSparkSubmitHook(environment=environment, heard=heard, **options)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _library(coordinate: str) -> str:
    """Return what a coordinate is a build of: `io.delta:delta-spark` of `io.delta:delta-spark_4.2_2.13:4.4.0`."""
    group, artifact, *_ = coordinate.split(":")
    return f"{group}:{artifact.partition('_')[0]}"


def _refuse_addresses(given: Mapping[str, object]) -> None:
    """Refuse settings of Spark that hand the store's address, or Kafka's settings, to a driver in the cluster."""
    seen = sorted(str(name) for name in given if _OWN_VARIABLES.search(str(name)))
    if seen:
        raise ConfigurationError(
            f"conf holds {', '.join(seen)}: Spark's page and the command line would show it; give it to "
            "the driver by the cluster's own secrets"
        )
