"""`KcrHook`: a region store behind an Airflow connection, what tasks say to a region, and how its errors end them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowNotFoundException
from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.log import mask_secret

from airflow_kcr import errors
from airflow_kcr.hooks import connections
from airflow_kcr.hooks.links import RegionLink
from airflow_kcr.settings import is_secret, names_secret

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Connection, Context
    from sqlalchemy.engine import URL

    from airflow_kcr.api import Region, RegionSummary
    from airflow_kcr.api.clusters import Cluster
    from airflow_kcr.api.validation import Validation
    from airflow_kcr.protocol.region.rows import Requester
    from airflow_kcr.protocol.values import GroupId
    from airflow_kcr.spec import RegionSpec
    from airflow_kcr.store.regions import RegionStore
    from airflow_kcr.store.schema_upgrade import SchemaStatus


TEST_TIMEOUT: Final = 3
"""Seconds for the test of a connection: a user has pressed a button and waits."""


class KcrHook(BaseHook):
    """A region store, by an Airflow connection of type `kcr`.

    The connection is looked up, and the store connected to, only when something is asked. Every method may raise the
    errors of the store (`StoreError`), and `ConfigurationError` where the connection is missing or can't be used.

    Args:
        kcr_conn_id: the connection.
    """

    conn_name_attr: ClassVar[str] = "kcr_conn_id"
    default_conn_name: ClassVar[str] = connections.DEFAULT_CONNECTION
    conn_type: ClassVar[str] = connections.STORE_TYPE
    hook_name: ClassVar[str] = "Kafka Consistent Regions"

    def __init__(self, kcr_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.kcr_conn_id = kcr_conn_id

    # -- the store -----------------------------------------------------------------------------------------------

    def store_url(self) -> URL:
        """Return the store's URL; it holds the password."""
        return connections.store_url(_connection(self.kcr_conn_id))

    async def astore_url(self) -> URL:
        """Return the store's URL, from within an event loop; it holds the password."""
        try:
            found = await self.aget_connection(self.kcr_conn_id)
        except AirflowNotFoundException:
            raise _unknown(self.kcr_conn_id) from None
        return connections.store_url(found)

    @contextmanager
    def opened(self) -> Iterator[RegionStore]:
        """Lend the store, for as long as the context lasts."""
        from airflow_kcr.api import opened

        with opened(self.store_url()) as store:
            yield store

    def store_status(self) -> SchemaStatus:
        """Return which revision the store's schema has, and which one is needed."""
        from airflow_kcr.store import schema_upgrade

        return schema_upgrade.status(self.store_url().render_as_string(hide_password=False))

    def upgrade_store(self) -> SchemaStatus:
        """Bring the store's schema to the newest revision; where it is there already, nothing changes.

        Raises:
            SchemaTooNew: the store is newer than this program.
        """
        from airflow_kcr.store import schema_upgrade

        return schema_upgrade.upgrade(self.store_url().render_as_string(hide_password=False))

    def test_connection(self) -> tuple[bool, str]:
        """Say whether the store answers, soon, and its schema is the one that is needed; changes nothing.

        A PySpark of which another package has overwritten a part is told as well.
        """
        from airflow_kcr.spark.launch import pyspark_trouble
        from airflow_kcr.store import schema_upgrade
        from airflow_kcr.store.postgres.revision import require_revision

        try:
            url = self.store_url()
            timeout = str(min(TEST_TIMEOUT, int(str(url.query.get("connect_timeout", TEST_TIMEOUT)))))
            quick = {"connect_timeout": timeout, "options": f"-c statement_timeout={TEST_TIMEOUT * 1000}"}
            found = schema_upgrade.status(url.update_query_dict(quick).render_as_string(hide_password=False))
            require_revision(found.current)
        except errors.KcrError as error:
            return False, error.message
        if broken := pyspark_trouble():
            return False, f"The region store answers, but {broken.message}"
        return True, f"The region store answers; its schema is of revision {found.current}, as needed."

    # -- regions -------------------------------------------------------------------------------------------------

    @contextmanager
    def region(self, name: str, requester: Requester | None = None) -> Iterator[Region]:
        """Lend a region with all its verbs, for as long as the context lasts; it need not exist yet.

        Where its spec names Airflow connections for Kafka, they are read here, by Airflow.

        Args:
            name: the region's.
            requester: who acts, as the history will say; absent: "airflow".
        """
        from airflow_kcr.api import Region
        from airflow_kcr.protocol.region.rows import Requester

        with self.opened() as store:
            yield Region(name, store, clusters=self.cluster, requester=requester or Requester(who="airflow"))

    def regions(self) -> tuple[RegionSummary, ...]:
        """Return every region of the store, in the order of their names."""
        from airflow_kcr.api import regions

        with self.opened() as store:
            return regions(store)

    def validate(self, name: str, groups: Collection[str] | None = None) -> Validation:
        """Check that a region's groups are what the region takes them for; changes nothing.

        Args:
            name: the region's.
            groups: which of its groups, by their ids; None: all.

        Raises:
            UnknownRegion: there is no such region.
            BrokerUnavailable, CredentialsRefused: a cluster can't be reached, or refuses the login.
        """
        from airflow_kcr.api.validation import validate
        from airflow_kcr.protocol.values import group_id, region_name

        chosen = None if groups is None else [group_id(group) for group in groups]
        with self.opened() as store:
            return validate(store, region_name(name), self.cluster, chosen)

    # -- Kafka ---------------------------------------------------------------------------------------------------

    def cluster(self, spec: RegionSpec, group: GroupId) -> AbstractContextManager[Cluster]:
        """Open the cluster of one of a region's groups; its Airflow connection, where it has one, is read.

        Raises:
            ConfigurationError: a setting is missing, or can't be used.
        """
        from airflow_kcr.api.clusters import client_settings, reader_with

        settings, connection = spec.cluster_of(group)
        known = client_settings(spec, group) if settings is not None else self.kafka_settings(connection or "")
        return reader_with(known)

    def kafka_settings(self, kafka_conn_id: str) -> dict[str, str]:
        """Return the client settings that an Airflow connection of type `kafka` holds; logs mask the secrets in them.

        Raises:
            ConfigurationError: there is no such connection, or one of its settings is refused.
        """
        settings = connections.kafka_settings(_connection(kafka_conn_id))
        for name, value in settings.items():
            if names_secret(name) or is_secret(value):
                mask_secret(value)
        return settings

    def environment(self, spec: RegionSpec) -> dict[str, str]:
        """Return the environment variables by which a member outside of Airflow finds the store, Kafka and its sinks.

        They hold secrets: for the environment of a process, never for its arguments. Logs mask them.

        Args:
            spec: of the region that the member belongs to.
        """
        from airflow_kcr.api.clusters import kafka_variable, postgres_variable
        from airflow_kcr.api.regions import STORE_VARIABLE

        clusters = (spec.cluster_of(group.group_id) for group in spec.groups)
        kafka = {connection for _, connection in clusters if connection is not None}
        sinks = {sink.conn_id for group in spec.groups for sink in group.sinks if sink.conn_id is not None}
        found = {
            STORE_VARIABLE: self.store_url().render_as_string(hide_password=False),
            **{
                variable: json.dumps(self.kafka_settings(connection), sort_keys=True)
                for variable, connection in _named(kafka, kafka_variable, spec).items()
            },
            **{
                variable: connections.sink_url(_connection(connection)).render_as_string(hide_password=False)
                for variable, connection in _named(sinks, postgres_variable, spec).items()
            },
        }
        for value in found.values():
            mask_secret(value)
        return found


def _named(conn_ids: Collection[str], variable_of: Callable[[str], str], spec: RegionSpec) -> dict[str, str]:
    """The connections by the variable that hands each on."""
    named: dict[str, str] = {}
    for connection in sorted(conn_ids):
        variable = variable_of(connection)
        if variable in named:
            raise errors.ConfigurationError(
                f"connections {named[variable]} and {connection} of region {spec.region} would share the variable "
                f"{variable}; rename one of them"
            )
        named[variable] = connection
    return named


def _connection(conn_id: str) -> Connection:
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise _unknown(conn_id) from None


def _unknown(conn_id: str) -> errors.ConfigurationError:
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    return errors.ConfigurationError(
        f"there is no Airflow connection {conn_id!r}; add it (Admin, Connections) or set {variable}"
    )


# Tasks and their errors


def requester(context: Context, reason: str = "") -> Requester:
    """Return who asks: the person who triggered the run, if one did, else "airflow"; with DAG and run.

    Args:
        context: the task's.
        reason: why, for the history.
    """
    # The rows of a region are half of what an operator would import, and parsing a DAG reads no store.
    from airflow_kcr.protocol.region.rows import Requester

    run = context["dag_run"]
    return Requester(
        who=getattr(run, "triggering_user_name", None) or "airflow",
        dag_id=run.dag_id,
        run_id=run.run_id,
        reason=reason,
    )


def request_id(context: Context) -> str:
    """Return the name of this task's request: the same for every try, another for every run and mapped task."""
    task = context["ti"]
    return request_id_of(context, task.task_id, -1 if task.map_index is None else task.map_index)


def request_id_of(context: Context, task_id: str, map_index: int = -1) -> str:
    """Return the name of the request of a task of the same run."""
    return f"{context['ti'].dag_id}/{context['ti'].run_id}/{task_id}/{map_index}"


def cleared_request_id(context: Context) -> str:
    """Return the name of a request that is another one each time that the task was cleared, and the same in between."""
    return f"{request_id(context)}/{context['ti'].max_tries}"


def is_cleared(context: Context, retries: int) -> bool:
    """Whether a task was cleared after a try: Airflow then adds its retries to the tries that it had.

    Args:
        context: the task's.
        retries: of the task.
    """
    return int(context["ti"].max_tries) > retries


def is_backfill(context: Context) -> bool:
    """Whether the run is one of a backfill."""
    return context["dag_run"].run_type.value == "backfill"


def run_name(context: Context) -> str:
    """Return the name of the run, which is no other run's."""
    return f"{context['dag_run'].dag_id}/{context['dag_run'].run_id}"


def interval_of(context: Context) -> tuple[datetime, datetime] | None:
    """Return the run's data interval, begin and end; None where the run has none.

    Raises:
        ConfigurationError: it is of no length, as a plain cron string or timedelta gives it in Airflow 3.
    """
    # Of the run, not of the context, which has no such key if there is no interval.
    run = context["dag_run"]
    start, end = run.data_interval_start, run.data_interval_end
    if start is None or end is None:
        return None
    if start >= end:
        raise errors.ConfigurationError(
            f"run {run.run_id} of DAG {run.dag_id} has a data interval of no length, {start.isoformat()}, so nothing "
            "is in it: give the DAG schedule=CronDataIntervalTimetable(…) or DeltaDataIntervalTimetable(…) of "
            "airflow.sdk; a plain cron string or timedelta makes no intervals in Airflow 3"
        )
    return start, end


class RegionTask(BaseOperator):
    """A task of one region: an operator, or a sensor.

    Args:
        region: the region's name (templated).
        kcr_conn_id: the Airflow connection of the store (templated).
        kwargs: as for every operator.
    """

    template_fields: Collection[str] = ("region", "kcr_conn_id")
    operator_extra_links: Collection[BaseOperatorLink] = (RegionLink(),)
    ui_color = "#e4f0f7"

    def __init__(self, *, region: str, kcr_conn_id: str = KcrHook.default_conn_name, **kwargs: Any) -> None:  # noqa: ANN401 (Airflow's own)
        super().__init__(**kwargs)
        self.region = region
        self.kcr_conn_id = kcr_conn_id

    @cached_property
    def hook(self) -> KcrHook:
        """The store's hook; nothing is looked up or connected yet."""
        return KcrHook(self.kcr_conn_id)

    def show_link(self, context: Context) -> None:
        """Show the link to the region's page from now on."""
        RegionLink().persist(context, self.region, self.kcr_conn_id)

    @contextmanager
    def lent(self, context: Context, reason: str = "") -> Iterator[Region]:
        """Lend the region, in the name of the run; errors become Airflow's, and the link to its page is there at once.

        Args:
            context: the task's.
            reason: why something is asked of the region, for its history.

        Raises:
            AirflowFailException: a retry can't help.
            AirflowException: it may.
        """
        self.show_link(context)
        with translated(), self.hook.region(self.region, requester(context, reason)) as region:
            yield region


# This project's errors as Airflow's: those that a retry can't help end the task at once.

FINAL: Final = (
    errors.ConfigurationError,
    errors.RefusedError,
    errors.ResetFailed,
    errors.SchemaMissing,
    errors.SchemaTooNew,
    errors.SchemaTooOld,
    errors.SinkRefused,
    errors.StoreRefused,
    errors.StoreRestored,
)
"""Asking again gets the same answer until a person has done something."""


@contextmanager
def translated() -> Iterator[None]:
    """Run the body; what it raises of this project becomes an error of Airflow, with the same sentence and its cause.

    Raises:
        AirflowFailException: a retry can't help: the configuration, or the region's state, forbids it.
        AirflowException: it may be well the next time: the store or a broker was away, something was not in time.
    """
    try:
        yield
    except FINAL as error:
        raise AirflowFailException(error.message) from error
    except errors.KcrError as error:
        raise AirflowException(error.message) from error
