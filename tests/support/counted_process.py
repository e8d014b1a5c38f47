"""A process that hosts members and counts itself: what it has, its processor time, and what its members have done.

Its batches do nothing, so that thousands of them are through in a minute; everything else is what `kcr member run`
uses. It answers each line of its standard input, a `Count`, with one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import psutil

from airflow_kcr.api.clusters import real_reader
from airflow_kcr.api.group_watch import GroupWatch
from airflow_kcr.api.regions import connect, store_url
from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.metrics.declared import MEMBER_METRICS, MemberFacts
from airflow_kcr.metrics.outlets import published
from airflow_kcr.ports import BatchCall, BatchReport
from airflow_kcr.protocol.values import BatchId, GroupId, RegionName
from airflow_kcr.sinks.group import GroupSinks
from tests.support.footprint import Footprint, footprint
from tests.support.member_process import Hosting

ANSWER_WITHIN: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(Footprint):
    """What the process has, and what its members have done, at one moment."""

    cpu: float
    """Seconds of processor time that its members took, and the processes that it has started; what it takes to count is
    in the main thread."""

    switches: int
    """How often a thread of it went to sleep."""

    batches: int
    """That its members have ended."""

    checkpoints: int
    """That its members have contributed to, over all members."""


class NoWork:
    """An engine whose batches are over at once."""

    def run(self, call: BatchCall) -> BatchReport:
        """Do nothing."""
        return BatchReport(scans=1)

    def cancel(self, batch: BatchId) -> None:
        """Do nothing: no batch runs."""


def counted(member_pool: MemberPool) -> Count:
    """Count this process."""
    has, shown = footprint(), member_pool.snapshots()
    return Count(
        **{field.name: getattr(has, field.name) for field in fields(has)},
        cpu=time.process_time() - time.thread_time() + sum(map(_taken, psutil.Process().children(recursive=True))),
        switches=psutil.Process().num_ctx_switches().voluntary,
        batches=sum(one.counts.batches for one in shown),
        checkpoints=sum(one.counts.checkpoints for one in shown),
    )


def _taken(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@dataclass(frozen=True, slots=True)
class Counted:
    """The process, as its starter sees it."""

    process: subprocess.Popen[str]

    def count(self) -> Count:
        """Ask it to count itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("count\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the process has ended with status {self.process.wait(ANSWER_WITHIN)}"
        found: dict[str, Any] = json.loads(line)
        return Count(**{**found, "threads": tuple(found["threads"]), "children": tuple(found["children"])})


@contextmanager
def counted_process(
    store: str,
    region: str,
    group: str,
    *indexes: int,
    log: Any = None,  # noqa: ANN401
    metrics_port: int | None = None,
) -> Iterator[Counted]:
    """Lend a process with these members; at the end it is told to end, and has to.

    Args:
        store: the address of the region's store.
        region: its name.
        group: of the members.
        indexes: of the members.
        log: where its standard error goes, as `subprocess` takes it.
        metrics_port: where it serves its metrics; None: nowhere.
    """
    arguments = {"store": store, "region": region, "group": group, "indexes": indexes, "metrics_port": metrics_port}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.counted_process", json.dumps(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    with process:
        try:
            yield Counted(process)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def main(arguments: dict[str, Any]) -> None:
    """Host members, and answer, until standard input ends."""
    with connect(store_url(arguments["store"])) as store:
        name, group = RegionName(arguments["region"]), GroupId(arguments["group"])
        hosting = Hosting(store, name, group)
        with real_reader(hosting.spec, group) as reader:
            hosts = [hosting.host(index, NoWork(), GroupSinks(own={})) for index in arguments["indexes"]]
            member_pool = MemberPool(store, name, hosts)
            watch = GroupWatch(
                store, name, [group], lambda spec, group: nullcontext(reader), member_pool.newest_checkpoint
            )
            member_pool.start()
            watch.start()

            def facts() -> Iterator[MemberFacts]:
                return (MemberFacts(region=name, snapshot=one) for one in member_pool.snapshots())

            with published(MEMBER_METRICS, facts, arguments["metrics_port"]):
                for _ in sys.stdin:
                    sys.stdout.write(json.dumps(asdict(counted(member_pool))) + "\n")
                    sys.stdout.flush()
            watch.end()
            member_pool.terminate()
            member_pool.wait(10)
            member_pool.end()
            hosting.renewals.end()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
