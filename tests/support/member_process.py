"""A process that hosts members with a plain engine, and stops at gates that a test puts up.

Started by `members.Members`. A gate is a file in the folder `gates`; a process that comes to it writes `NAME.reached`
beside it, and goes on when the gate is gone. Everything else is what `kcr member run` uses.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

from confluent_kafka.admin import AdminClient

from airflow_kcr.api import Region
from airflow_kcr.api.clusters import client_settings
from airflow_kcr.api.regions import store_url
from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.errors import BatchFailed
from airflow_kcr.kafka.admin_process import AdminProcess
from airflow_kcr.kafka.control import ControlConsumer
from airflow_kcr.kafka.logs import BrokerLogs
from airflow_kcr.kafka.settings import admin_settings, member_settings, subscription
from airflow_kcr.ports import BatchCall, CommitAnswer, Engine, Membership, MembershipListener, Sinks, always
from airflow_kcr.protocol.member.messages import ResetSinks
from airflow_kcr.protocol.offsets import OffsetMap
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.table_outputs import TableVersion
from airflow_kcr.protocol.values import CheckpointNumber, GroupId, GroupPartition, MemberId, Offset, RegionName
from airflow_kcr.runtime.host import End, MemberHost, World
from airflow_kcr.runtime.leases import Identity, Renewals, StoreClock, boot_time
from airflow_kcr.runtime.planner import Limits
from airflow_kcr.sinks.contract import Sink
from airflow_kcr.sinks.group import GroupSinks, checked_sinks
from airflow_kcr.sinks.kinds.files import DeclaredFolder
from airflow_kcr.sinks.kinds.postgres import DeclaredTable
from airflow_kcr.spec import RegionSpec
from airflow_kcr.store.regions import RegionStore
from tests.support.plain_engine import PlainEngine, Rows
from tests.support.sink_writing import opened_files, write_files, write_tables

_LOG = logging.getLogger(__name__)
POLL_PERIOD = 0.01
GATES = (
    *("planned", "recorded", "processing", "hung", "written", "staged", "published", "ended"),
    *("claimed", "resetting", "contributing", "committing", "committed", "told", "asked"),
)
"""The steps of a batch, of a reset and of a checkpoint, in order.

`hung` is `processing` for a batch that does not hear its cancellation; `written` is behind the pipeline's own output,
`staged` and `published` are of a declared sink; `committed` is behind Kafka's answer, before the store hears of it, and
`told` behind that. At `asked` a run has started its region, and no member has come.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The gates of one process."""

    folder: Path

    def wait(self, name: str, cancelled: threading.Event | None = None) -> None:
        """Wait at a gate, if it is up."""
        gate = self.folder / name
        if not gate.exists():
            return
        (self.folder / f"{name}.reached").touch()
        never = cancelled or threading.Event()
        while gate.exists() and not never.wait(POLL_PERIOD):
            pass


A = TypeVar("A")

AROUND: Final[Mapping[type[object], tuple[str, str]]] = {
    commands.StartBatch: ("planned", "recorded"),
    commands.FinishBatch: ("", "ended"),
    commands.Run: ("", "asked"),
    commands.ReportReadBack: ("committed", "told"),
    commands.Acknowledge: ("claimed", ""),
    commands.Contribute: ("contributing", ""),
}
"""The gates in front of a command and behind it."""


class GatedStore(RegionStore):
    """Waits around a batch's start, behind its end, between a claim and its acknowledgement, and in a checkpoint."""

    gates: Gates

    def handle(self, name: RegionName, command: commands.Command[A]) -> A:
        """Handle a command, behind the gate in front of its kind and before the one behind it."""
        asked = command.command if isinstance(command, commands.FromProcess) else command
        before, behind = AROUND.get(type(asked), ("", ""))
        if before:
            self.gates.wait(before)
        answer = super().handle(name, command)
        if behind:
            self.gates.wait(behind)
        return answer


class GatedSinks:
    """Waits before a reset."""

    def __init__(self, inner: Sinks, gates: Gates) -> None:
        self._inner, self._gates = inner, gates

    @property
    def fenced(self) -> bool:
        """Whether each refuses an older epoch by itself."""
        return self._inner.fenced

    def reset(self, order: ResetSinks) -> Mapping[GroupPartition, Offset | None]:
        """Reset, behind the gate `resetting`."""
        self._gates.wait("resetting")
        return self._inner.reset(order)

    def prepare(self, sequence: CheckpointNumber) -> None:
        """Prepare."""
        self._inner.prepare(sequence)

    def publish(self, sequence: CheckpointNumber) -> tuple[TableVersion, ...]:
        """Publish."""
        return self._inner.publish(sequence)


class GatedMembership(ControlConsumer):
    """Waits before a commit is sent."""

    gates: Gates

    def commit(
        self,
        offsets: OffsetMap,
        metadata: str,
        timeout: timedelta,
        answered: Callable[[CommitAnswer], None],
        may_write: Callable[[], bool] = always,
    ) -> None:
        """Commit, behind the gate `committing`."""

        def send() -> None:
            self.gates.wait("committing")
            super(GatedMembership, self).commit(offsets, metadata, timeout, answered, may_write)

        threading.Thread(target=send, daemon=True).start()


def _before(gates: Gates, poison: frozenset[tuple[int, int]]) -> Callable[[BatchCall, threading.Event], None]:
    def before(call: BatchCall, cancelled: threading.Event) -> None:
        gates.wait("processing", cancelled)
        gates.wait("hung")
        hit = [(p, r) for p, r in call.ranges.items() for n, o in poison if p.partition == n and r.from_ <= o < r.to]
        if hit and not (gates.folder / "fixed").exists():
            raise BatchFailed(f"a record of {hit[0][0]} can't be processed")

    return before


class Hosting:
    """What the members of a group have in common in a process without Spark.

    Args:
        store: of their region.
        name: of the region.
        group: of the members.
    """

    def __init__(self, store: RegionStore, name: RegionName, group: GroupId) -> None:
        self.store, self.name, self.group = store, name, group
        self.region, self._now = store.read(name)
        self.spec = RegionSpec.from_json(self.region.spec.text)
        self.settings = client_settings(self.spec, group)
        self.renewals = Renewals(store, boot_time)
        self._logs = BrokerLogs(AdminProcess(admin_settings(self.settings)))

    def host(
        self,
        index: int,
        engine: Engine,
        sinks: Sinks,
        consumer: Callable[..., Membership] = ControlConsumer,
        *,
        takeover: bool = False,
    ) -> MemberHost:
        """Return a member that was not started yet."""
        spec, rules, member = self.spec, self.spec.rules(), MemberId(self.group, index)
        group = rules.groups[self.group]
        settings = member_settings(self.settings, region=self.name, member=member, rules=group, timeouts=rules.timeouts)

        def membership(listener: MembershipListener) -> Membership:
            return consumer(settings, group=self.group, topics=subscription(group), listener=listener)

        world = World(
            store=self.store,
            logs=self._logs,
            engine=engine,
            sinks=sinks,
            membership=membership,
            end_process=_end_at_once,
            clock=boot_time,
            store_clock=StoreClock(boot_time, self._now),
            renewals=self.renewals,
        )
        who = Identity(
            region=self.name,
            region_id=self.region.region_id,
            member=member,
            group=group,
            timeouts=rules.timeouts,
            takeover=takeover,
        )
        limits = Limits(target=spec.batch.target, least=spec.batch.min_records, most=spec.batch.max_records)
        return MemberHost(who, rules.checkpoint, limits, world)


def no_admin_client(*_: object, **__: object) -> NoReturn:
    """Stand where a process that hosts members would make an admin client."""
    raise AssertionError("an admin client in the process of members")


def main(arguments: dict[str, Any]) -> int:
    """Host members until they end; returns the exit status."""
    AdminClient.__init__ = no_admin_client  # type: ignore[method-assign]
    gates = Gates(folder=Path(arguments["gates"]))
    store = GatedStore.connect(store_url(arguments["store"]), lambda text: RegionSpec.from_json(text).rules())
    store.gates = gates
    name, group = RegionName(arguments["region"]), GroupId(arguments["group"])
    run = None
    if "run" in arguments:
        run = Region(name, store).prepared_run(request_id=arguments["run"])
        if run.is_done_at_rest():
            return 0
        run.start()
    hosting = Hosting(store, name, group)
    declared = checked_sinks(hosting.spec, group, region_id=hosting.region.region_id)
    tables = [one.sink for one in declared if isinstance(one, DeclaredTable)]
    files = opened_files([one.target for one in declared if isinstance(one, DeclaredFolder)], store, name)
    own: dict[str, Sink] = {sink.owner.sink: sink for sink in tables}
    own |= {sink.owner.sink: sink for sink in files if sink.owner.group == group}
    others = tuple(sink for sink in files if sink.owner.group != group)

    def write(call: BatchCall, rows: Rows) -> None:
        write_tables(tables, call, rows, gates.wait)
        write_files(files, call, rows, gates.wait)

    poison = frozenset((int(p), int(o)) for p, o in arguments.get("poison", []))

    before = _before(gates, poison)

    def consumer(*arguments: Any, **named: Any) -> Membership:  # noqa: ANN401 (the consumer's own)
        made = GatedMembership(*arguments, **named)
        made.gates = gates
        return made

    def host(index: int) -> MemberHost:
        engine = PlainEngine(
            hosting.settings, Path(arguments["output"]), lambda call: before(call, engine.cancelled), write
        )
        sinks = GatedSinks(GroupSinks(own=own, of_others=others), gates)
        return hosting.host(index, engine, sinks, consumer, takeover=bool(arguments.get("takeover")))

    member_pool = MemberPool(store, name, [host(index) for index in arguments["indexes"]])

    def ask(number: int, frame: FrameType | None) -> None:
        member_pool.terminate()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    member_pool.start()
    while not member_pool.wait(0.5):
        pass
    for member, ended in member_pool.ends().items():
        _LOG.info("%s ended: %s %s", member, ended.how.value, ended.error or "")
    hows = {ended.how for ended in member_pool.ends().values()}
    if run is not None and not run.is_done_at_rest():
        _LOG.error("the run %s has ended without its checkpoint", run.request_id)
        hows.add(End.FAILED)
    hosting.renewals.end()
    store.close()
    return 1 if End.FAILED in hows else 3 if hows & {End.REFUSED, End.FENCED} else 0


def _end_at_once(why: str) -> None:
    _LOG.critical("ends at once: %s", why)
    logging.shutdown()
    os._exit(70)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    sys.exit(main(json.loads(sys.argv[1])))
