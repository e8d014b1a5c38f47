"""A region in the real world: broker, store, members in processes of their own, and what they wrote.

with live(kafka, database_url, tmp_path, members=3) as live:
    live.fill(1000)
    a = live.start(0)
    live.until(lambda: live.consumed())
    a.kill()
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeAlias, TypeVar

import psutil

from airflow_kcr.api import Region
from airflow_kcr.api.regions import connect, store_url
from airflow_kcr.embedded.processes import happened
from airflow_kcr.errors import StoreError
from airflow_kcr.protocol.region import commands
from airflow_kcr.protocol.region.events import Event
from airflow_kcr.protocol.region.rows import (
    Checkpoint,
    CheckpointRequest,
    Committed,
    RegionState,
    RequestState,
    ResetCause,
)
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.rules import GroupProtocol
from airflow_kcr.protocol.values import EventNumber, GroupId, MemberId, RegionName, RequestId
from airflow_kcr.spec import RegionSpec, parse
from airflow_kcr.store.regions import RegionStore
from tests.support.driver import START
from tests.support.kafka import Kafka
from tests.support.member_accounts import Account, judged
from tests.support.plain_engine import Written, read_output
from tests.support.whole import everything

A = TypeVar("A")

TOP = Path(__file__).parents[2]
POLL_PERIOD = 0.05

QUICK = """\
batch: {target: 500ms, min_records: 50, max_records: 500, timeout: 20s}
timeouts: {lease: 5s, renew: 1s, session: 8s, relaunch: 5s, reset: 40s, drain: 30s, commit: 10s, close: 4s}
"""
"""Times that let a fault be over soon, and still fit together."""

BRISK = """\
batch: {target: 500ms, min_records: 50, max_records: 500, timeout: 12s}
timeouts: {lease: 4s, renew: 1s, session: 7s, relaunch: 4s, reset: 20s, drain: 15s, commit: 6s, close: 4s, retry: 300ms}
"""
"""Shorter still: what a process has started that was killed is known to be over after 9 s."""

PATIENT = BRISK.replace("session: 7s", "session: 25s").replace("reset: 20s", "reset: 30s")
"""With a session that a process is sure to be back within, on a busy machine too."""

UNHURRIED = """\
batch: {target: 2s, min_records: 50, max_records: 500, timeout: 90s}
timeouts: {lease: 10s, renew: 1s, session: 30s, relaunch: 20s, reset: 120s, drain: 100s, commit: 20s, close: 8s}
"""
"""For members on Spark, whose first batch is slow on a busy machine."""


@dataclass(slots=True, kw_only=True)
class Process:
    """One process with members."""

    process: subprocess.Popen[bytes]
    gates: Path
    output: Path
    log: Path

    def gate(self, name: str) -> None:
        """Put up a gate: who comes to it waits."""
        (self.gates / name).touch()

    def open(self, name: str) -> None:
        """Take a gate away."""
        (self.gates / name).unlink(missing_ok=True)
        (self.gates / f"{name}.reached").unlink(missing_ok=True)

    def reached(self, name: str) -> bool:
        """Whether a process waits at a gate, or did."""
        return (self.gates / f"{name}.reached").exists()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(30)

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.terminate()

    def interrupt(self) -> None:
        """Ctrl-C: the terminal signals the whole foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def left_behind(self) -> list[int]:
        """Return the processes of its session that still run, itself among them."""
        found = []
        for one in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(one.pid) == self.process.pid and one.status() != psutil.STATUS_ZOMBIE:
                    found.append(one.pid)
        return found

    def wait(self, timeout: float) -> int:
        """Wait for its end, and return its exit status."""
        return self.process.wait(timeout)

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def said(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace")


@dataclass(slots=True, kw_only=True)
class Live:
    """A region, and everything around it."""

    kafka: Kafka
    store: RegionStore
    url: str
    name: RegionName
    group: str
    topic: str
    folder: Path
    hosting: str = "tests.support.member_process"
    """The module that processes with members run."""

    before: tuple[str, ...] = ()
    """What is written before the command of a process, as what gives it names of hosts of its own."""

    processes: list[Process] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def handle(self, command: commands.Command[A]) -> A:
        """Have the store handle a command."""
        return self.store.handle(self.name, command)

    # -- members -------------------------------------------------------------------------------------------------

    def start(
        self,
        *indexes: int,
        gates: tuple[str, ...] = (),
        takeover: bool = False,
        poison: tuple[tuple[int, int], ...] = (),
        store: str = "",
        run: str = "",
    ) -> Process:
        """Start a process with these members.

        Args:
            indexes: of the members.
            gates: where it waits from the beginning; see `member_process.GATES`.
            takeover: whether it supersedes the process that holds an index.
            poison: partitions and offsets of records that no batch can take, until `fixed` is put up as a gate.
            store: how it reaches the store, where that is not the region's own address.
            run: the request id of a run up to now that it carries out; empty: its members stay.
        """
        folder = self.folder / f"process-{next(self._numbers)}"
        (folder / "gates").mkdir(parents=True)
        for gate in gates:
            (folder / "gates" / gate).touch()
        arguments = {
            "store": store or self.url,
            "region": self.name,
            "group": self.group,
            "indexes": list(indexes),
            "gates": str(folder / "gates"),
            "output": str(folder / "output.jsonl"),
            "takeover": takeover,
            "poison": poison,
            **({"run": run} if run else {}),
        }
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*self.before, sys.executable, "-m", self.hosting, json.dumps(arguments)],
                cwd=TOP,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        one = Process(process=process, gates=folder / "gates", output=folder / "output.jsonl", log=log)
        self.processes.append(one)
        return one

    def require_sound(self, wanted: Set[tuple[str, int, int]] | None = None) -> None:
        """Fail unless what happened is sound; see `account`."""
        account = self.account(wanted)
        assert account.is_sound, account

    @contextmanager
    def ended(self) -> Iterator[Live]:
        """Lend the region; at the end every process is ended."""
        try:
            yield self
        finally:
            for process in self.processes:
                if process.running:
                    process.thaw()
                    process.kill()
            self.store.close()

    # -- the region ----------------------------------------------------------------------------------------------

    def region(self) -> StoredRegion:
        """The region as it is."""
        return everything(self.store.read(self.name)[0])

    def until(self, condition: Callable[[], bool], what: str, within: float = 60.0) -> None:
        """Wait for a condition, or fail saying what did not happen, and what the processes said."""
        if not happened(condition, within=within, pause=POLL_PERIOD):
            region = self.region()
            said = "\n".join(f"--- {p.process.pid} ({p.process.poll()})\n{p.said()[-3000:]}" for p in self.processes)
            raise AssertionError(
                f"not within {within} s: {what}; the region is {region.state}, epoch {region.epoch}, "
                f"halt {region.halt}\n{said}"
            )

    def until_running(self, within: float = 60.0) -> None:
        """Wait until the region runs."""
        self.until(lambda: self.region().state is RegionState.RUNNING, "running", within)

    def runs(self) -> bool:
        """Whether the region runs; a store that is not back yet has no answer to that."""
        with suppress(StoreError):
            return self.region().state is RegionState.RUNNING
        return False

    def member(self, index: int) -> MemberId:
        """The member of that index."""
        return MemberId(GroupId(self.group), index)

    def owners(self) -> dict[int, int]:
        """Who holds which partition, by the claims: index by partition."""
        claims = self.region().claims
        return {p.partition: c.owner.index for p, c in claims.items() if c.owner is not None and p.topic == self.topic}

    def reset(self) -> None:
        """Have a reset begin, as a member would ask for it; it does not count as a failure."""
        region = self.region()
        member, row = next(iter(sorted(region.members.items())))
        caller = commands.Caller(member=member, incarnation=row.incarnation, epoch=region.epoch)
        self.store.handle(
            self.name,
            commands.RequestReset(caller=caller, cause=ResetCause.BATCH_REFUSED, detail="a test asked for it"),
        )

    def events(self, after: int = 0) -> tuple[Event, ...]:
        """What happened to the region after an event."""
        return self.store.events(self.name, EventNumber(after), 100_000)

    def checkpoint(self, within: float = 60.0) -> CheckpointRequest:
        """Ask for a checkpoint, and wait until it is published and committed.

        For another one where a reset superseded it.
        """
        request_id = RequestId(f"checkpoint-{next(self._numbers)}")
        self.store.handle(self.name, commands.RequestCheckpoint(request_id=request_id))
        self.until(
            lambda: self.is_committed(request_id) or self.is_superseded(request_id),
            f"checkpoint {request_id} committed",
            within,
        )
        return self._asked(request_id)[0] if self.is_committed(request_id) else self.checkpoint(within)

    def shared(self, *indexes: int, within: float = 60.0) -> None:
        """Wait until every one of these members, and no other, holds partitions."""
        self.until(lambda: set(self.owners().values()) == set(indexes), f"shared by {indexes}", within)

    def is_superseded(self, request_id: RequestId) -> bool:
        """Whether the checkpoint of a request id is complete, and a reset began before Kafka was told."""
        row = self._asked(request_id)[1]
        return row is not None and row.is_complete and row.committed is Committed.SUPERSEDED

    def is_committed(self, request_id: RequestId) -> bool:
        """Whether the checkpoint of a request id is complete, and Kafka has it; asked again where it was aborted."""
        request, row = self._asked(request_id)
        if request.state is RequestState.ABORTED:
            self.store.handle(self.name, commands.RequestCheckpoint(request_id=request_id))
            return False
        return row is not None and row.is_complete and row.committed is Committed.YES

    def _asked(self, request_id: RequestId) -> tuple[CheckpointRequest, Checkpoint | None]:
        """Return a request and its checkpoint, by name: of a region with thousands the others aren't read."""
        region = self.store.read(self.name)[0]
        request = region.requests.get(request_id) or region.archive.request(request_id)
        assert request is not None, f"{request_id} was never asked for"
        if request.sequence is None:
            return request, None
        return request, region.checkpoints.get(request.sequence) or region.archive.checkpoint(request.sequence)

    # -- records -------------------------------------------------------------------------------------------------

    def fill(self, each: int) -> None:
        """Produce N records to every partition."""
        self.kafka.fill(self.topic, dict.fromkeys(range(self.kafka.partitions(self.topic)), each))

    def consumed(self, topic: str = "") -> bool:
        """Whether the positions of all partitions of a topic, the region's own or another, are at the logs' ends."""
        topic = topic or self.topic
        ends, claims = self.kafka.ends(topic), self.region().claims
        places = {p.partition: c.position for p, c in claims.items() if p.topic == topic}
        return all(places.get(n) == end for n, end in ends.items())

    def written(self) -> list[Written]:
        """Everything that was written, by whom ever."""
        return read_output(p.output for p in self.processes)

    # -- the judgement -------------------------------------------------------------------------------------------

    def account(
        self, wanted: Set[tuple[str, int, int]] | None = None, rows: Sequence[Written] | None = None
    ) -> Account:
        """Judge what happened: the invariants over the history, and the output by counting.

        Args:
            wanted: topic, partition and offset of every record that had to be processed; absent: all offsets of the
                region's topic.
            rows: the output to count; absent: all of it. Of a topic that was made anew, only what was written since.
        """
        with Region(self.name, self.store) as region:
            violations, history = region.verify().violations, region.store.history(region.name)
        if wanted is None:
            wanted = {(self.topic, n, o) for n, end in self.kafka.ends(self.topic).items() for o in range(end)}
        return judged(history, violations, self.written() if rows is None else rows, wanted)


def started(url: str, spec: RegionSpec, declared: Callable[[RegionName], None] | None = None) -> RegionStore:
    """Declare a region and start it, and return its store; `declared` is called in between."""
    store, name = connect(store_url(url)), RegionName(spec.region)
    store.handle(name, commands.DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules())))
    if declared is not None:
        declared(name)
    store.handle(name, START)
    return store


@contextmanager
def live(
    kafka: Kafka,
    url: str,
    folder: Path,
    *,
    members: int = 3,
    partitions: int = 6,
    spec: str = "",
    group: str = "",
    protocol: GroupProtocol = GroupProtocol.CLASSIC,
    subscription: str = "topics: [{topic}]",
    configs: Mapping[str, str] | None = None,
    pipeline: str = "none:none",
    name: str = "",
    hosting: str = "tests.support.member_process",
    declared: Callable[[RegionName], None] | None = None,
) -> Iterator[Live]:
    """Lend a started region over a new topic; at the end every process is ended.

    Args:
        kafka: the broker.
        url: of the store.
        folder: for what the processes leave.
        members: of its one group.
        partitions: of its topic.
        spec: further lines of the spec, as `timeouts: {…}`.
        group: further fields of the group, as `, static_membership: false`.
        protocol: of the group.
        subscription: what the group reads, `{topic}` being the name of the topic.
        configs: of the topic.
        pipeline: of the group, where its members run on Spark.
        name: of the region and its group; absent: one that no other test has.
        hosting: the module that processes with members run.
        declared: called before the region is started.
    """
    topic, group_id = kafka.topic(partitions, configs), name or kafka.group_id()
    reads = subscription.format(topic=topic)
    spoken = "" if protocol is GroupProtocol.CLASSIC else f", protocol: {protocol}"
    parsed = parse(
        f"region: {group_id}\n"
        f"kafka: {{bootstrap.servers: '{kafka.bootstrap_servers}'}}\n"
        f"groups: [{{group_id: {group_id}, {reads}, pipeline: '{pipeline}', members: {members}{group}{spoken}}}]\n"
        f"{spec or QUICK}"
    )
    region = RegionName(group_id)
    store = started(url, parsed, declared)
    one = Live(
        kafka=kafka, store=store, url=url, name=region, group=group_id, topic=topic, folder=folder, hosting=hosting
    )
    with one.ended():
        yield one


Lend: TypeAlias = Callable[..., AbstractContextManager[Live]]
"""`live` with some of its arguments given, as fixtures lend it."""


@contextmanager
def named(
    kafka: Kafka, url: str, spec: RegionSpec, folder: Path, hosting: str = "tests.support.member_process"
) -> Iterator[Live]:
    """Lend a started region of one group whose names a test has chosen; at the end every process is ended.

    Args:
        kafka: the broker, with the region's one topic.
        url: of the store.
        spec: of the region; its pipeline is called where members run on Spark.
        folder: for what the processes leave.
        hosting: the module that processes with members run.
    """
    (group,) = spec.groups
    (topic,) = group.topics
    store, name = started(url, spec), RegionName(spec.region)
    one = Live(
        kafka=kafka,
        store=store,
        url=url,
        name=name,
        group=group.group_id,
        topic=topic,
        folder=folder,
        hosting=hosting,
    )
    with one.ended():
        yield one
