"""Starts a Spark application that hosts members of a region, and waits for as long as it consumes."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import conf

import airflow_kcr
from airflow_kcr.driver.task import DRAIN_WITHIN, RunningApplication, Task
from airflow_kcr.errors import ConfigurationError, KcrError, ServiceFailed
from airflow_kcr.goals import MembersEnded
from airflow_kcr.hooks import kcr
from airflow_kcr.hooks.kcr import KcrHook, OfRegion, translated
from airflow_kcr.hooks.links import SparkUiLink
from airflow_kcr.hooks.spark_submit import KcrSparkSubmitHook, Submission
from airflow_kcr.protocol.values import GroupId, region_name
from airflow_kcr.settings import is_secret, secrets_in
from airflow_kcr.spark.reads import REFUSED_BY_NAME
from airflow_kcr.spark.session import CONNECTOR
from airflow_kcr.triggers.payloads import TriggerAnswer
from airflow_kcr.triggers.waits import RegionTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.protocol.region.rows import Requester
    from airflow_kcr.spec import RegionSpec

APPLICATION: Final = "kcr_application"
"""The XCom that holds the application: Spark's id, host, process and the incarnations of its members."""

INTENT_WITHIN: Final = 3.0
"""Seconds that `on_kill` takes at most; five after it, Airflow kills the task's process."""

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


class KcrConsumeOperator(OfRegion, SparkSubmitOperator):
    """Hosts members of a region in a Spark application, like `kcr member run`, until the region stops.

    One task is one application with one or several members; map the task to have several::

        KcrConsumeOperator.partial(task_id="consume", region="flights", group_id="flights-etl").expand(
            indexes=[[0], [1], [2]]
        )

    The task succeeds when the region has stopped. If it is killed, cleared or lost, the application drains within a
    time limit and ends itself, and the next try takes its members over.

    In a cluster's deploy mode the task only submits the application, and gives its slot up until the members have
    ended. Put `KCR_STORE_URL` and what else the driver needs in the cluster's own secrets. If a deferred task is
    cleared or marked, its application drains and ends.

    Args:
        region: the region's name (templated).
        group_id: the consumer group (templated).
        indexes: which of the group's members this application hosts, from 0: a number, a list of them, or text as `0,1`
            (templated).
        kcr_conn_id: the Airflow connection of the store (templated).
        conn_id: the Airflow connection of Spark: its host is the master.
        conf: settings of Spark; they win over all others. A secret in them is refused.
        connector: Maven coordinate of Spark's Kafka connector, used where `jars` is empty.
        jars: the connector's jar and those that it needs, by commas, instead of the coordinate.
        packages: further Maven coordinates, by commas.
        read_options: options of Spark's Kafka connector, as `kafka.max.poll.records`. A secret in them is refused.
        program: the path of `airflow_kcr/__main__.py` where the driver runs in the cluster, as
            `local:///opt/airflow_kcr/__main__.py`; None: the same as here. YARN is sent the file.
        come_within: in a cluster's deploy mode, how long the first member may take to come; then another try is made.
        kwargs: as for `SparkSubmitOperator`, but for what this operator says itself.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        *OfRegion.template_fields,
        *("group_id", "indexes", "connector", "read_options"),
    )
    operator_extra_links = (*OfRegion.operator_extra_links, SparkUiLink())

    def __init__(
        self,
        *,
        region: str,
        group_id: str,
        indexes: int | str | Sequence[int],
        kcr_conn_id: str = KcrHook.default_conn_name,
        connector: str = CONNECTOR,
        read_options: Mapping[str, str] | None = None,
        program: str | None = None,
        come_within: timedelta = _HALF_AN_HOUR,
        **kwargs: Any,  # noqa: ANN401 (the provider's own)
    ) -> None:
        said = sorted(name for name in _OURS if name in kwargs)
        if said:
            raise ConfigurationError(f"KcrConsumeOperator says {', '.join(said)} itself; leave it out")
        # The provider's way to find an application again is not ours: a region knows its members, and a new try takes
        # them over. What it would store is of a try that is fenced by then.
        kwargs["durable"] = False
        super().__init__(**kwargs)
        self.region = region
        self.group_id = group_id
        self.indexes = indexes
        self.kcr_conn_id = kcr_conn_id
        self.connector = connector
        self.read_options = read_options
        self.program = program
        self.come_within = come_within
        # Already where the DAG is read: a stored DAG and a task's rendered fields show them.
        self._refuse_secrets()
        self._intent: Intent | None = None

    # -- the life of a try ---------------------------------------------------------------------------------------

    def execute(self, context: Context) -> None:
        """Start the application, and wait until the region has stopped.

        Args:
            context: the task's.

        Raises:
            AirflowFailException: a retry can't help: something is configured wrongly, or the region refuses.
            AirflowException: it may: the application was ended, or it failed.
        """
        from airflow_kcr.api.regions import STORE_VARIABLE

        with translated():
            self.show_link(context)
            with self.hook.region(self.region, kcr.requester(context)) as region:
                spec = region.spec()
                known = {str(one.member): one.incarnation for group in region.show().groups for one in group.members}
            indexes = self._require_indexes(spec)
            before = tuple(known.get(f"{self.group_id}[{index}]", 0) for index in indexes)
            environment = self.hook.environment(spec)
            task = Task.of_this_process(self._request_id(context), _drain_within())
            submission = self._submission(spec, indexes, takeover=context["ti"].try_number > 1)
            submit = self._prepared(context, submission, {**environment, **task.environment()})
            self._intent = Intent(
                hook=submit,
                store=environment[STORE_VARIABLE],
                region=self.region,
                request_id=task.request_id,
                requester=kcr.requester(context, "the task was killed"),
            )
            submit.run(self.application)
            if not submit.is_cluster:
                self._require_end(context, indexes)
                return
        if submit.application is None:
            context["ti"].xcom_push(key=APPLICATION, value={"application": submit.accepted})
        self.log.info("the cluster has taken the application %s", submit.accepted)
        self.defer(
            trigger=RegionTrigger.waiting(
                kcr_conn_id=self.kcr_conn_id,
                region=self.region,
                waiting_for=MembersEnded(
                    group=GroupId(self.group_id),
                    indexes=indexes,
                    before=before,
                    come_by=self._come_by(),
                    last_request=task.request_id,
                ),
                deadline=self.execution_timeout or _FOR_EVER,
            ),
            method_name="resume",
        )

    def _come_by(self) -> datetime:
        """Return when the first member has to be there, by the store's clock, counted from now."""
        with self.hook.opened() as store:
            _, now = store.read(region_name(self.region))
        return now + self.come_within

    def resume(self, context: Context, event: Mapping[str, object]) -> None:
        """Go on after the trigger: the application in the cluster has ended.

        Args:
            context: the task's.
            event: `payloads.TriggerAnswer` as JSON.

        Raises:
            AirflowException: it has ended while the region continues.
        """
        with translated():
            TriggerAnswer.from_json(event).require_reached()

    def on_kill(self) -> None:
        """Have the application drain and end; it has not happened yet when this returns."""
        if self._intent is not None:
            self._intent.tell(within=INTENT_WITHIN)

    def _request_id(self, context: Context) -> str:
        """Return the name of this try's last checkpoint; another try that is killed needs another checkpoint."""
        return f"{kcr.request_id(context)}/try {context['ti'].try_number}"

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

    # -- before ---------------------------------------------------------------------------------------------------

    def _require_indexes(self, spec: RegionSpec) -> tuple[int, ...]:
        indexes = indexes_of(self.indexes)
        known = {str(group.group_id): group.members for group in spec.groups}
        if self.group_id not in known:
            there = ", ".join(sorted(known))
            raise ConfigurationError(f"region {self.region} has no group {self.group_id!r}; it has: {there}")
        beyond = [index for index in indexes if index >= known[self.group_id]]
        if beyond:
            raise ConfigurationError(
                f"group {self.group_id} of region {self.region} has {known[self.group_id]} member(s), from 0; "
                f"{', '.join(map(str, beyond))} is not among them: correct indexes, or raise members in the spec"
            )
        return indexes

    def _submission(self, spec: RegionSpec, indexes: tuple[int, ...], *, takeover: bool) -> Submission:
        listed = ",".join(map(str, indexes))
        arguments = ["member", "run", self.region, "--group", self.group_id, "--index", listed]
        if takeover:
            arguments.append("--takeover")
        for name, value in sorted((self.read_options or {}).items()):
            arguments += ["--read-option", f"{name}={value}"]
        self._refuse_secrets()  # again, now that templates are rendered
        _refuse_addresses(self.conf or {})
        return Submission(
            application=self.program or str(Path(airflow_kcr.__file__).with_name("__main__.py")),
            arguments=tuple(arguments),
            name=f"kcr {self.region} {self.group_id} {listed}",
            conf={str(name): str(value) for name, value in (self.conf or {}).items()},
            jars=_listed(self.jars),
            connector=self.connector,
            packages=(*_listed(self.packages), *self._drivers(spec)),
        )

    def _drivers(self, spec: RegionSpec) -> tuple[str, ...]:
        """What the sinks need of Spark; where jars are named, they are all that is wanted."""
        if self.jars:
            return ()
        from airflow_kcr.sinks.group import spark_needs

        named = {_library(one) for one in _listed(self.packages)}
        wanted = spark_needs(spec, GroupId(self.group_id)).packages
        return tuple(one for one in wanted if _library(one) not in named)

    def _prepared(self, context: Context, submission: Submission, environment: Mapping[str, str]) -> KcrSparkSubmitHook:
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

    # -- after ---------------------------------------------------------------------------------------------------

    def _require_end(self, context: Context, indexes: tuple[int, ...]) -> None:
        """Refuse an end that is not the region's: the application was told to end, and no member consumes now.

        Raises:
            ServiceFailed: the region continues.
        """
        with self.hook.region(self.region, kcr.requester(context)) as region:
            view = region.show()
            members = {str(group.group_id): group.members for group in region.spec().groups}
        if "stopped" in {view.state, view.desired_state} or all(
            index >= members.get(self.group_id, 0) for index in indexes
        ):
            return
        raise ServiceFailed(
            f"the application was told to end while region {self.region} is {view.state} (desired state: "
            f"{view.desired_state}); "
            "another try takes its members over; to end them for good, stop the region"
        )


def indexes_of(given: int | str | Sequence[int]) -> tuple[int, ...]:
    """Return the indexes given as a number, a list, or text such as `0,1` or `[0, 1]`.

    Raises:
        ConfigurationError: they mean none, or name one twice.
    """
    parts = given.strip("[]() ").split(",") if isinstance(given, str) else given
    try:
        found = (parts,) if isinstance(parts, int) else tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        found = ()
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise ConfigurationError(
            f"indexes={given!r} names no members; write a number from 0, or a list of different ones: 0, [0, 1]; "
            "for one application each, .expand(indexes=[[0], [1]])"
        )
    return tuple(sorted(found))


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _library(coordinate: str) -> str:
    """Return what a coordinate is a build of: `io.delta:delta-spark` of `io.delta:delta-spark_4.2_2.13:4.4.0`."""
    group, artifact, *_ = coordinate.split(":")
    return f"{group}:{artifact.partition('_')[0]}"


def _drain_within() -> timedelta:
    return timedelta(seconds=conf.getfloat("kcr", "task_gone_drain", fallback=DRAIN_WITHIN.total_seconds()))


def _refuse_addresses(given: Mapping[str, object]) -> None:
    """Refuse settings of Spark that hand the store's address, or Kafka's settings, to a driver in the cluster."""
    seen = sorted(str(name) for name in given if _OWN_VARIABLES.search(str(name)))
    if seen:
        raise ConfigurationError(
            f"conf holds {', '.join(seen)}: Spark's page and the command line would show it; give it to "
            "the driver by the cluster's own secrets"
        )


# The last word of a task that is killed: its application is to drain and end.
#
# There are five seconds between the signal and the end of the process, too few to wait for anything. The signal is
# recorded in the store and known to the driver, and both act on it.

_LOG: Final = logging.getLogger(__name__)


class Intent:
    """What a killed task still has to say; made while there is time, told when there is little.

    A kill comes as a signal, in the middle of whatever the task does, so nothing is asked of Airflow any more.

    Args:
        hook: which has started the driver.
        store: the store's URL.
        region: the region's name.
        request_id: names the checkpoint, for the driver too.
        requester: who asks, as the history will say.
    """

    def __init__(
        self, *, hook: KcrSparkSubmitHook, store: str, region: str, request_id: str, requester: Requester
    ) -> None:
        self._hook, self._store, self._region, self._request_id = hook, store, region, request_id
        self._requester = requester

    def tell(self, within: float) -> None:
        """Tell the driver, and the region, and don't wait for what comes of it.

        Args:
            within: seconds that this takes at most.
        """
        self._hook.tell_to_drain()
        asking = threading.Thread(target=self._ask, name="last drain", daemon=True)
        asking.start()
        asking.join(within)

    def _ask(self) -> None:
        from airflow_kcr.api import opened
        from airflow_kcr.driver.parent_watchdog import ask
        from airflow_kcr.protocol.values import RequestId

        try:
            with opened(self._store) as store:
                ask(store, region_name(self._region), RequestId(self._request_id), self._requester)
        except KcrError as error:
            _LOG.warning("the region was not asked for a last checkpoint; its driver asks itself: %s", error)
