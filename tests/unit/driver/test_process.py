from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import cast

from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.driver.process import Announcement
from airflow_kcr.driver.task import RunningApplication
from airflow_kcr.protocol.member.state import MemberMachine
from airflow_kcr.protocol.region.commands import Register
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import Incarnation, MemberId
from airflow_kcr.runtime.metrics import Counts, Snapshot
from tests.support.runtime_fakes import GROUP


def seen(index: int, incarnation: Incarnation | None = None) -> Snapshot:
    """A member of a member pool."""
    process = Register(member=MemberId(GROUP, index), token="t")
    machine = MemberMachine(process=process, timeouts=Timeouts(), incarnation=incarnation)
    return Snapshot(machine=machine, lag={}, counts=Counts())


@dataclass(slots=True)
class FakeMemberPool:
    seen: list[Snapshot] = field(default_factory=lambda: [seen(0), seen(1)])

    def snapshots(self) -> tuple[Snapshot, ...]:
        return tuple(self.seen)


def announcement_of(member_pool: FakeMemberPool, out: io.StringIO | None) -> Announcement:
    application = RunningApplication(application="local-1", pid=7)
    return Announcement(application, cast("MemberPool", member_pool), out)


def told(out: io.StringIO) -> list[RunningApplication]:
    found = [RunningApplication.read(line) for line in out.getvalue().splitlines()]
    return [one for one in found if one is not None]


def test_an_application_is_told_at_once_and_again_with_each_incarnation() -> None:
    member_pool, out = FakeMemberPool(), io.StringIO()
    announcement = announcement_of(member_pool, out)
    announcement.renew()
    announcement.renew()
    member_pool.seen[0] = seen(0, Incarnation(3))
    announcement.renew()
    member_pool.seen[1] = seen(1, Incarnation(1))
    announcement.renew()
    announcement.renew()
    assert [one.members for one in told(out)] == [{}, {"g[0]": 3}, {"g[0]": 3, "g[1]": 1}]


def test_where_nobody_listens_any_more_nothing_is_told() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    member_pool = FakeMemberPool()
    announcement = announcement_of(member_pool, Broken())
    announcement.renew()
    member_pool.seen[0] = seen(0, Incarnation(1))
    announcement.renew()


def test_where_no_task_listens_nothing_is_told() -> None:
    announcement_of(FakeMemberPool(), None).renew()
