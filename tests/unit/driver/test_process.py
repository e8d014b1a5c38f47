from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import cast

from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.driver.process import Announcement
from airflow_kcr.driver.task import RunningApplication
from airflow_kcr.protocol.values import Incarnation, MemberId
from airflow_kcr.runtime.metrics import Snapshot
from tests.support.runtime_fakes import GROUP


@dataclass(slots=True)
class Seen:
    """A member of a member pool, as far as an announcement looks at it."""

    member: MemberId
    incarnation: Incarnation | None = None


@dataclass(slots=True)
class FakeMemberPool:
    seen: list[Seen] = field(default_factory=lambda: [Seen(MemberId(GROUP, 0)), Seen(MemberId(GROUP, 1))])

    def snapshots(self) -> tuple[Snapshot, ...]:
        return cast("tuple[Snapshot, ...]", tuple(self.seen))


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
    member_pool.seen[0].incarnation = Incarnation(3)
    announcement.renew()
    member_pool.seen[1].incarnation = Incarnation(1)
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
    member_pool.seen[0].incarnation = Incarnation(1)
    announcement.renew()


def test_where_no_task_listens_nothing_is_told() -> None:
    announcement_of(FakeMemberPool(), None).renew()
