"""What the benchmarks share: one Spark session, topics with records in them, and real members on a durable store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn
from unittest.mock import patch
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier

from airflow_kcr.driver import application
from airflow_kcr.driver.application import MemberRun, hosting, preparing
from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.driver.parts import StartFailures
from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.region.commands import DeclareRegion, KillRegion
from airflow_kcr.protocol.region.rows import RegionState
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.values import GroupId, MemberId, RegionName
from airflow_kcr.spark.pulse import Pulse
from airflow_kcr.spark.session import SparkSettings
from airflow_kcr.spec import parse
from airflow_kcr.store.regions import RegionStore
from airflow_kcr.store.schema_upgrade import upgrade
from tests.support.tied import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.kafka import Kafka

PARTITIONS: Final = 6
WITHIN: Final = 300.0


@contextmanager
def new_store(server: Postgres) -> Iterator[str]:
    """Lend the address of a store with nothing in it; afterwards the server has no work left with it."""
    name = f"kcr_{uuid4().hex}"
    url = server.ensure_database(name)
    upgrade(url)
    yield url
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A topic with the same number of records in each partition."""

    name: str
    partitions: int
    records: int
    size: int


@dataclass(slots=True, kw_only=True)
class Hosted:
    """A region whose members run in this process."""

    store: RegionStore
    name: RegionName
    topic: Filled
    member_pool: MemberPool

    @property
    def records(self) -> int:
        """How many offsets the members' accepted batches spanned, a moment ago."""
        return sum(one.counts.records for one in self.member_pool.snapshots())

    def until(self, condition: Callable[[], bool], what: str, within: float = WITHIN) -> None:
        """Wait for a condition, and fail where a member has ended instead."""
        happened(lambda: condition() or bool(self.member_pool.ends()), within=within)
        if not condition():
            raise AssertionError(f"not within {within:g} s: {what}; ended: {self.member_pool.ends()}")

    def until_consumed(self) -> None:
        """Wait until every record of the topic was in an accepted batch."""
        self.until(lambda: self.records >= self.topic.records, f"{self.topic.records} records consumed")

    def until_ready(self) -> None:
        """Wait until every member has its claims, and the region runs."""

        def ready() -> bool:
            shown = [one.machine for one in self.member_pool.snapshots()]
            running = all(one.view is not None and one.view.state is RegionState.RUNNING for one in shown)
            return running and sum(len(one.positions) for one in shown) == self.topic.partitions

        self.until(ready, "the members ready", 60)


@dataclass(slots=True, kw_only=True)
class Lab:
    """Broker, store and Spark of one run."""

    spark: SparkSession
    kafka: Kafka
    store: RegionStore
    store_address: str
    """The store's, for members in processes of their own."""

    folder: Path
    _topics: dict[tuple[int, int, int], Filled] = field(default_factory=dict)

    def filled(self, records: int, size: int, partitions: int = PARTITIONS) -> Filled:
        """Return a topic of N records, made once for all that ask for the same."""
        key = (records, size, partitions)
        if key not in self._topics:
            name = self.kafka.topic(partitions, prefix=f"bench-{size}")
            one = Filled(name=name, partitions=partitions, records=records, size=size)
            self.append(one, records)
            self._topics[key] = one
        return self._topics[key]

    def append(self, topic: Filled, records: int) -> None:
        """Produce records of the topic's size, as many to each partition."""
        # Through Spark, whose tasks produce beside each other: one Python producer would take minutes.
        values = self.spark.range(records).selectExpr(
            f"cast(id % {topic.partitions} as int) as partition",
            f"rpad(cast(id as string), {topic.size}, 'x') as value",
        )
        options = {"kafka.bootstrap.servers": self.kafka.bootstrap_servers, "kafka.linger.ms": "20"}
        values.write.format("kafka").mode("append").options(**options, topic=topic.name).save()

    def declared(self, topic: Filled, pipeline: str = "noop", group_more: str = "", more: str = "") -> RegionName:
        """Declare a region of one group, of the same name, that reads a topic, and return its name."""
        name = RegionName(self.kafka.group_id("bench"))
        spec = parse(
            f"region: {name}\n"
            f"kafka: {{bootstrap.servers: '{self.kafka.bootstrap_servers}'}}\n"
            f"groups: [{{group_id: {name}, topics: [{topic.name}], pipeline: 'tests.benchmarks.pipelines:{pipeline}'"
            f"{group_more}}}]\n{more}"
        )
        self.store.handle(name, DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules())))
        return name

    @contextmanager
    def hosted(
        self, topic: Filled, *, batch: str, members: int = 1, pipeline: str = "noop", group_more: str = ""
    ) -> Iterator[Hosted]:
        """Lend a new region over a topic, its members running here; it is killed at the end.

        Args:
            topic: what it reads, from its beginning.
            batch: the sizes of its batches, as in a spec.
            members: how many, all in this process.
            pipeline: which of `tests.benchmarks.pipelines`.
            group_more: further settings of the group, as in a spec in one line.
        """
        name = self.declared(topic, pipeline, f", members: {members}{group_more}", f"batch: {{{batch}}}\n")
        run = MemberRun(
            region=name,
            members=tuple(MemberId(GroupId(name), index) for index in range(members)),
            spark=SparkSettings(app_name="benchmarks", consumers=1),
        )
        failures = StartFailures(self.store, name, run.members)
        with ExitStack() as stack:
            prepared = stack.enter_context(preparing(self.store, run, failures))
            # What `kcr member run` runs, but for the session: it is one for the whole run, and its JVM is warm.
            stack.enter_context(patch.object(application, "session_for", lambda settings, clusters: self.spark))
            stack.enter_context(patch.object(self.spark, "stop", lambda: None))
            _, member_pool = stack.enter_context(hosting(self.store, prepared, failures, Pulse(), _end_process))
            one = Hosted(store=self.store, name=name, topic=topic, member_pool=member_pool)
            try:
                yield one
            finally:
                self.store.handle(name, KillRegion())
                member_pool.wait(timedelta(seconds=30).total_seconds())


def _end_process(why: str) -> NoReturn:
    raise AssertionError(f"a member wanted to end the process: {why}")


def fixed(records: int) -> str:
    """Return the batch settings for batches of one size."""
    return f"min_records: {records}, max_records: {records}, target: 2s, timeout: 2m"
