from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_kcr.driver import watch as watch_module
from airflow_kcr.driver.member_pool import MemberPool
from airflow_kcr.driver.watch import Watch
from airflow_kcr.embedded.processes import happened
from airflow_kcr.protocol.timeouts import Timeouts
from airflow_kcr.protocol.values import MemberId
from airflow_kcr.runtime.host import End, Ended
from airflow_kcr.spark.pulse import GATEWAY, Pulse
from tests.support.runtime_fakes import GROUP, eventually

WITHIN = 20.0
SILENCE = timedelta(seconds=0.3)
LONG = timedelta(hours=1)


@dataclass(slots=True)
class FakeHost:
    """A member's host, as far as the watch looks at it; its loop turns while it is asked for, if it is alive."""

    index: int = 0
    is_turning: bool = True
    ended: Ended | None = None
    asked: int = 0
    who: Any = None

    def __post_init__(self) -> None:
        times = Timeouts(close=timedelta(seconds=0.1))
        self.who = SimpleNamespace(member=MemberId(GROUP, self.index), timeouts=times)

    @property
    def turns(self) -> int:
        self.asked += 1
        return self.asked if self.is_turning else 0

    def wait(self, timeout: float) -> Ended | None:
        return self.ended


@dataclass(slots=True)
class FakeMemberPool:
    hosts: list[FakeHost] = field(default_factory=lambda: [FakeHost(0), FakeHost(1)])
    is_ending: bool = False
    close_time: float = 0.0
    failed: list[str] = field(default_factory=list)

    def fail(self, error: BaseException) -> None:
        self.failed.append(str(error))


class FakePulse(Pulse):
    """A pulse that beats for as long as it is said to."""

    def __init__(self, pid: int) -> None:
        super().__init__({})
        self.pid, self.is_connected, self.is_beating = pid, True, threading.Event()
        self.is_beating.set()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            self.answers += self.is_beating.is_set()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "POLL_PERIOD", 0.05)
    monkeypatch.setattr(watch_module, "GRACE", 0.1)
    # That of the tests fails a test for whatever ends a thread.
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)


@pytest.fixture
def jvm(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    return process


@pytest.fixture
def ended() -> list[str]:
    return []


@pytest.fixture
def pulse(jvm: subprocess.Popen[bytes]) -> FakePulse:
    return FakePulse(jvm.pid)


@pytest.fixture
def watch(pulse: FakePulse, ended: list[str]) -> Iterator[Watch]:
    watch = Watch(pulse, ended.append)
    with watch.watching():
        yield watch


def pool_of(fake: FakeMemberPool) -> MemberPool:
    return cast("MemberPool", fake)


def still(condition: Callable[[], bool]) -> bool:
    """Whether it holds for some times as long as a silence may last."""
    return not happened(lambda: not condition(), within=3 * SILENCE.total_seconds())


def test_members_whose_jvm_is_gone_fail_and_a_process_that_stays_is_ended(
    watch: Watch, jvm: subprocess.Popen[bytes], ended: list[str]
) -> None:
    pool = FakeMemberPool()
    watch.begin(LONG)
    with watch.holding(pool_of(pool)):
        jvm.kill()
        eventually(lambda: bool(ended), "the end")
    assert pool.failed == ended == ["Spark's JVM is gone"]


def test_a_process_that_ends_by_itself_is_left_alone(
    pulse: FakePulse, jvm: subprocess.Popen[bytes], ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "GRACE", WITHIN)
    watch, pool = Watch(pulse, ended.append), FakeMemberPool()
    with watch.watching():
        watch.begin(LONG)
        with watch.holding(pool_of(pool)):
            jvm.kill()
            eventually(lambda: bool(pool.failed), "the members to fail")
    watcher = next((t for t in threading.enumerate() if t.name == "watches the parts"), None)
    assert watcher is None or happened(lambda: not watcher.is_alive(), within=WITHIN)
    assert ended == []


def test_before_there_are_members_the_process_ends_at_once(
    watch: Watch, jvm: subprocess.Popen[bytes], ended: list[str]
) -> None:
    jvm.kill()
    eventually(lambda: bool(ended), "the end")
    assert ended == ["Spark's JVM is gone"]


def test_a_jvm_that_does_not_answer_is_killed(
    watch: Watch, pulse: FakePulse, jvm: subprocess.Popen[bytes], ended: list[str]
) -> None:
    pool = FakeMemberPool()
    watch.begin(SILENCE)
    with watch.holding(pool_of(pool)):
        os.kill(jvm.pid, signal.SIGSTOP)
        pulse.is_beating.clear()
        eventually(lambda: bool(ended), "the end")
    assert pool.failed == ["Spark's JVM had not answered for 0.3 s, and was killed"]
    assert jvm.wait(WITHIN) == -signal.SIGKILL


def test_nothing_is_silent_before_it_can_be_asked(watch: Watch, pulse: FakePulse, ended: list[str]) -> None:
    pulse.is_connected = False
    pulse.is_beating.clear()
    watch.begin(SILENCE)
    assert still(lambda: ended == [])


def test_a_jvm_that_answers_now_and_then_is_left_alone(watch: Watch, pulse: FakePulse, ended: list[str]) -> None:
    pool = FakeMemberPool()
    watch.begin(SILENCE)
    with watch.holding(pool_of(pool)):
        for _ in range(6):
            pulse.is_beating.clear()
            threading.Event().wait(SILENCE.total_seconds() / 2)
            before = pulse.answers
            pulse.is_beating.set()
            eventually(lambda before=before: pulse.answers > before + 5, "answers")  # type: ignore[misc]
        assert (pool.failed, ended) == ([], [])


def test_spark_that_has_stopped_ends_its_members(watch: Watch, pulse: FakePulse) -> None:
    pool = FakeMemberPool()
    pulse.is_stopped = True  # as a session that is stopped to be rebuilt is seen
    watch.begin(LONG)
    assert still(lambda: pool.failed == [])
    with watch.holding(pool_of(pool)):
        eventually(lambda: bool(pool.failed), "the members to fail")
    assert pool.failed == ["Spark has stopped"]


def test_a_loop_that_stands_still_ends_the_process(watch: Watch, ended: list[str]) -> None:
    pool = FakeMemberPool()
    watch.begin(SILENCE)
    with watch.holding(pool_of(pool)):
        assert still(lambda: ended == [])
        pool.hosts[1].is_turning = False
        eventually(lambda: bool(ended), "the end")
    assert ended == ["the loop of g[1] has not taken a turn for 0.4 s"]


def test_a_member_that_has_ended_takes_no_turns(watch: Watch, ended: list[str]) -> None:
    pool = FakeMemberPool()
    pool.hosts[1].is_turning, pool.hosts[1].ended = False, Ended(how=End.CLOSED)
    watch.begin(SILENCE)
    with watch.holding(pool_of(pool)):
        assert still(lambda: ended == [])


def test_what_goes_with_its_members_was_to_go_but_a_frozen_jvm_is_killed_all_the_same(
    watch: Watch, pulse: FakePulse, jvm: subprocess.Popen[bytes], ended: list[str]
) -> None:
    pool = FakeMemberPool(is_ending=True)
    watch.begin(SILENCE)
    with watch.holding(pool_of(pool)):
        pulse.is_beating.clear()
        assert jvm.wait(WITHIN) == -signal.SIGKILL
        assert still(lambda: (pool.failed, ended) == ([], []))
    assert still(lambda: ended == [])  # nor while the session is stopped


def test_members_that_are_built_anew_are_watched_again(
    watch: Watch, jvm: subprocess.Popen[bytes], ended: list[str]
) -> None:
    watch.begin(LONG)
    with watch.holding(pool_of(FakeMemberPool(is_ending=True))):
        pass
    jvm.kill()
    assert still(lambda: ended == [])
    watch.begin(LONG)
    eventually(lambda: bool(ended), "the end")


def test_the_jvm_of_spark_submit_is_the_parent() -> None:
    assert Pulse({GATEWAY: "1"}).pid == os.getppid()
    assert Pulse({}).pid is None


class Stubborn:
    """What one of our threads asks, and never gets."""

    def wait(self, *_: object) -> bool:
        raise ValueError


def test_a_thread_of_ours_that_ends_by_an_error_ends_the_members(
    watch: Watch, ended: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pool, other = FakeMemberPool(), Pulse({})
    other._over = cast("threading.Event", Stubborn())
    watch.begin(LONG)
    with watch.holding(pool_of(pool)):
        other.start()
        eventually(lambda: bool(ended), "the end")
    assert pool.failed == ended == ['the thread "asks Spark\'s JVM" has ended: ValueError']
    assert "Traceback" in capsys.readouterr().err


def test_a_thread_of_others_may_end_as_it_likes(watch: Watch, ended: list[str]) -> None:
    pool = FakeMemberPool()
    watch.begin(LONG)
    with watch.holding(pool_of(pool)):
        thread = threading.Thread(target=Stubborn().wait)
        thread.start()
        thread.join(WITHIN)
    assert pool.failed == ended == []
