"""Starts a Spark application that hosts members of a region, and waits for as long as it consumes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import conf

from airflow_kcr.driver.task import DRAIN_WITHIN, REQUEST_ID, Task
from airflow_kcr.errors import ConfigurationError, KcrError, ServiceFailed
from airflow_kcr.goals import MembersEnded
from airflow_kcr.hooks import kcr
from airflow_kcr.hooks.kcr import translated
from airflow_kcr.operators.application import ApplicationOperator
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.triggers.waits import ask_last

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kcr.protocol.region.rows import Requester
    from airflow_kcr.spec import RegionSpec

INTENT_WITHIN: Final = 3.0
"""Seconds that `on_kill` takes at most; five after it, Airflow kills the task's process."""


class KcrConsumeOperator(ApplicationOperator):
    """Hosts members of a region in a Spark application, like `kcr member run`, until the region stops.

    One task is one application with one or several members; map the task to have several::

        KcrConsumeOperator.partial(task_id="consume", region="flights", group_id="flights-etl").expand(
            indexes=[[0], [1], [2]]
        )

    If the task is killed, cleared or lost, the application drains within a time limit and ends itself, and the next try
    takes its members over.

    In a cluster's deploy mode the task only submits the application, and gives its slot up until the members have
    ended. Put `KCR_STORE_URL` and what else the driver needs in the cluster's own secrets.

    Args:
        group_id: the consumer group (templated).
        indexes: which members of the group, from 0 (templated): a number, a list, or a text such as `0,1`.
        conn_id: the Airflow connection of Spark: its host is the master.
        conf: settings of Spark; they win over all others. A secret in them is refused.
        connector: Maven coordinate of Spark's Kafka connector, used where `jars` is empty.
        jars: the connector's jar and those that it needs, by commas, instead of the coordinate.
        packages: further Maven coordinates, by commas.
        read_options: options of Spark's Kafka connector, as `kafka.max.poll.records`. A secret in them is refused.
        program: in a cluster's deploy mode, the path of `airflow_kcr/__main__.py` for the driver, as
            `local:///opt/airflow_kcr/__main__.py`; None: the same as here. YARN is sent the file.
        come_within: in a cluster's deploy mode, how long the first member may take to come before the next try.
        kwargs: as for `SparkSubmitOperator`, but for what this operator says itself; `region` and `kcr_conn_id` among
            them.
    """

    template_fields: Sequence[str] = (*ApplicationOperator.template_fields, "group_id", "indexes")

    def __init__(self, *, group_id: str, indexes: int | str | Sequence[int], **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.group_id = group_id
        self.indexes = indexes
        self._killed: Requester | None = None
        """Who asks for the last checkpoint, as the history will say."""

    def execute(self, context: Context) -> None:
        """Start the application, and wait until the region has stopped.

        Args:
            context: the task's.

        Raises:
            AirflowFailException: a retry can't help: something is configured wrongly, or the region refuses.
            AirflowException: it may: the application was ended, or it failed.
        """
        with translated():
            self.show_link(context)
            with self.hook.region(self.region, kcr.requester(context)) as region:
                spec = region.spec()
                known = region.show().incarnations
            indexes = members_in(spec, self.group_id, self.indexes)
            before = tuple(known.get(f"{self.group_id}[{index}]", 0) for index in indexes)
            drain = timedelta(seconds=conf.getfloat("kcr", "task_gone_drain", fallback=DRAIN_WITHIN.total_seconds()))
            # Another try that is killed needs another checkpoint.
            number = context["ti"].try_number
            task = Task.of_this_process(f"{kcr.request_id(context)}/try {number}", drain)
            listed = ",".join(map(str, indexes))
            arguments = ["member", "run", self.region, "--group", self.group_id, "--index", listed]
            arguments += ["--takeover"] if number > 1 else []
            name = f"kcr {self.region} {self.group_id} {listed}"
            submission = self.submission(spec, [GroupId(self.group_id)], name, *arguments)
            self._killed = kcr.requester(context, "the task was killed")
            submit = self.started(context, spec, submission, task)
            if not submit.is_cluster:
                self._require_end(context, indexes)
                return
        self.wait_for_cluster(
            context,
            submit,
            MembersEnded(
                group=GroupId(self.group_id),
                indexes=indexes,
                before=before,
                come_by=self.come_by(),
                last_request=task.request_id,
            ),
        )

    def resume(self, context: Context, event: Mapping[str, object]) -> None:
        """Go on after the trigger: the application in the cluster has ended.

        Args:
            context: the task's.
            event: `payloads.TriggerAnswer` as JSON.

        Raises:
            AirflowException: it has ended while the region continues.
        """
        self.require_reached(event)

    def on_kill(self) -> None:
        """Have the application drain and end; it has not happened yet when this returns.

        There are five seconds between the signal and the end of the process, too few to wait for anything; and it comes
        in the middle of whatever the task does, so nothing is asked of Airflow any more. The signal is recorded in the
        store and known to the driver, and both act on it.
        """
        super().on_kill()
        if self.submit is not None and self._killed is not None:
            asking = threading.Thread(
                target=self._ask_last, args=(self.submit.environment, self._killed), name="last drain", daemon=True
            )
            asking.start()
            asking.join(INTENT_WITHIN)

    def _ask_last(self, environment: Mapping[str, str], requester: Requester) -> None:
        from airflow_kcr.api.regions import STORE_VARIABLE

        try:
            ask_last(environment[STORE_VARIABLE], self.region, environment[REQUEST_ID], requester)
        except KcrError as error:
            self.log.warning("the region was not asked for a last checkpoint; its driver asks itself: %s", error)

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


def members_in(spec: RegionSpec, group_id: str, given: int | str | Sequence[int]) -> tuple[int, ...]:
    """Return which members of a group are meant, by their indexes.

    Args:
        spec: the region's.
        group_id: the group.
        given: as for `indexes_of`.

    Raises:
        ConfigurationError: there is no such group, or not all of them are members of it.
    """
    indexes = indexes_of(given)
    known = {str(group.group_id): group.members for group in spec.groups}
    if group_id not in known:
        there = ", ".join(sorted(known))
        raise ConfigurationError(f"region {spec.region} has no group {group_id!r}; it has: {there}")
    beyond = [index for index in indexes if index >= known[group_id]]
    if beyond:
        raise ConfigurationError(
            f"group {group_id} of region {spec.region} has {known[group_id]} member(s), from 0; "
            f"{', '.join(map(str, beyond))} is not among them: correct indexes, or raise members in the spec"
        )
    return indexes
