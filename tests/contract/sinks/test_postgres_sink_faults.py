"""What only a real server can show of the sink: two at once, frozen transactions, lost answers, ended connections."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

import psycopg
import pytest

from airflow_kcr.errors import SinkAhead, SinkError
from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.sinks.postgres import bookkeeping, insertion, resets, sink
from airflow_kcr.sinks.postgres.target import TargetTable
from tests.support.breaking_proxy import Break, breaking_proxy
from tests.support.databases import libpq
from tests.support.sink_tables import Table, records
from tests.support.tied import Postgres, start_postgres


def table(url: str, delivery: Delivery = Delivery.EXACTLY_ONCE, **options: Any) -> Table:  # noqa: ANN401 (a target's)
    """A sink in its first epoch, whose first reset is done."""
    made = Table(url=url, delivery=delivery, options=options)
    made.reset({0: 0, 1: 0})
    return made


def outcome(work: Callable[[], object]) -> object:
    """What a call gives, or the error that it raises."""
    try:
        return work()
    except SinkError as error:
        return error


def wait_for(url: str, condition: str, within: float = 10.0) -> None:
    """Wait until a query over the server's sessions finds something."""
    end = monotonic() + within
    with psycopg.connect(libpq(url), autocommit=True) as connection:
        while connection.execute(condition).fetchone() is None:
            assert monotonic() < end, "what was waited for did not happen"


WAITS_FOR_A_LOCK = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Stop:
    """A place in another thread where it waits."""

    def __init__(self) -> None:
        self._here, self._go = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Be here, until the gate opens."""
        self._here.set()
        assert self._go.wait(20)

    def reached(self) -> None:
        """Wait until the other thread is here."""
        assert self._here.wait(10), "it never came so far"

    def go(self) -> None:
        """Let it go on."""
        self._go.set()


@contextmanager
def stopped_before_commit(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> Iterator[Stop]:
    """Hold the first call of a function, which is the last one of its transaction, until it is let go."""
    original, stop = getattr(module, name), Stop()

    def held(*arguments: object) -> object:
        answer = original(*arguments)
        monkeypatch.setattr(module, name, original)
        stop.wait()
        return answer

    monkeypatch.setattr(module, name, held)
    try:
        yield stop
    finally:
        stop.go()


class TestTwoAtOnce:
    @pytest.mark.parametrize("delivery", list(Delivery))
    def test_publications_of_one_range_write_it_once(self, empty_database_url: str, delivery: Delivery) -> None:
        """C7: [0, 50) and [0, 60) at once."""
        out = table(empty_database_url, delivery)
        calls = [out.call({0: (0, end), 1: (0, end)}) for end in (50, 60)]
        staged = [out.staged(call) for call in calls]
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda n: outcome(lambda: out.sink.insert(calls[n], staged[n])), (0, 1)))
        refused = [each for each in done if isinstance(each, SinkError)]
        assert len(refused) == (1 if delivery is Delivery.EXACTLY_ONCE else 0)
        reached = out.progress()[0][1]
        assert reached in {50, 60}
        assert out.held() == records(p0=(0, reached), p1=(0, reached))

    def test_publications_of_a_partition_without_progress_write_it_once(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        calls = [out.call({5: (10, end)}) for end in (20, 30)]
        staged = [out.staged(call) for call in calls]
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda n: outcome(lambda: out.sink.insert(calls[n], staged[n])), (0, 1)))
        assert len([each for each in done if isinstance(each, SinkError)]) == 1
        assert out.held() == records(p5=(10, out.progress()[5][1]))

    @pytest.mark.parametrize("mode", list(SinkMode))
    def test_many_publishers_of_their_own_partitions_do_not_stand_in_each_others_way(
        self, empty_database_url: str, mode: SinkMode
    ) -> None:
        out = table(empty_database_url, mode=mode, key=("size",) if mode is SinkMode.UPSERT else ())
        out.reset(dict.fromkeys(range(6), 0))

        def publish(number: int) -> None:
            for begin in range(0, 40, 10):
                out.run({number: (begin, begin + 10)})

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(publish, range(6)))
        assert out.progress() == dict.fromkeys(range(6), (1, 40))
        assert len(out.held()) == (240 if mode is SinkMode.APPEND else 40)

    def test_members_that_start_at_once_make_the_tables_once(self, empty_database_url: str) -> None:
        members = [Table(url=empty_database_url) for _ in range(6)]

        def begin(number: int) -> None:
            members[number].reset({number: 0})
            members[number].run({number: (0, 2)})

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(begin, range(6)))
        assert members[0].ask("SELECT count(*) FROM kcr_fence") == [(1,)]
        assert members[0].held() == sorted((p, o) for p in range(6) for o in range(2))

    def test_a_reset_waits_for_a_publication_and_removes_what_it_wrote(
        self, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """C6: the zombie is inside its transaction when the fence is raised."""
        zombie, heir = table(empty_database_url), Table(url=empty_database_url, epoch=2, timeline=2)
        heir.sink.check()
        call = zombie.call({0: (0, 5)})
        staged = zombie.staged(call)
        with ThreadPoolExecutor(2) as pool, stopped_before_commit(monkeypatch, insertion, "insert") as stop:
            publishes = pool.submit(lambda: outcome(lambda: zombie.sink.insert(call, staged)))
            stop.reached()
            resetting = pool.submit(lambda: heir.reset({0: 2, 1: 0}))
            wait_for(empty_database_url, WAITS_FOR_A_LOCK)
            assert not resetting.done()
            stop.go()
            resetting.result(10)
            assert not isinstance(publishes.result(10), SinkError)
        assert (heir.held(), heir.progress()[0]) == (records(p0=(0, 2)), (2, 2))

    def test_a_publication_waits_for_a_fence_and_is_refused(
        self, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        zombie, heir = table(empty_database_url), Table(url=empty_database_url, epoch=2)
        heir.sink.check()
        call = zombie.call({0: (0, 5)})
        staged = zombie.staged(call)
        with ThreadPoolExecutor(2) as pool, stopped_before_commit(monkeypatch, resets, "fence") as stop:
            resetting = pool.submit(lambda: heir.reset({0: 0, 1: 0}))
            stop.reached()
            publishes = pool.submit(lambda: outcome(lambda: zombie.sink.insert(call, staged)))
            wait_for(empty_database_url, WAITS_FOR_A_LOCK)
            stop.go()
            resetting.result(10)
            assert isinstance(publishes.result(10), SinkAhead)
        assert (heir.held(), heir.progress()[0]) == ([], (1, 0))


class TestFrozen:
    def test_a_transaction_that_holds_the_fence_is_ended_and_the_reset_goes_on(
        self, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """C58: the transaction does not go on, as if its process were stopped."""
        zombie, heir = table(empty_database_url), Table(url=empty_database_url, epoch=2)
        heir.sink.check()
        call = zombie.call({0: (0, 5)})
        staged = zombie.staged(call)
        with ThreadPoolExecutor(1) as pool, stopped_before_commit(monkeypatch, insertion, "insert") as stop:
            publishes = pool.submit(lambda: outcome(lambda: zombie.sink.insert(call, staged)))
            stop.reached()
            assert heir.reset(open={0: 0}) == {0: 0}
            stop.go()
            assert isinstance(publishes.result(10), SinkError)
        assert (heir.held(), heir.progress()[0]) == ([], (1, 0))

    def test_a_task_that_still_writes_holds_back_the_publication_not_the_fence(self, empty_database_url: str) -> None:
        out = table(empty_database_url)
        call = out.call({0: (0, 5)})
        staged = out.staged(call)
        with psycopg.connect(libpq(empty_database_url)) as task:
            # It runs again.
            task.execute(f"INSERT INTO {staged.table} SELECT * FROM {staged.table}".encode())
            with ThreadPoolExecutor(1) as pool:
                publishes = pool.submit(lambda: out.sink.insert(call, staged))
                wait_for(empty_database_url, WAITS_FOR_A_LOCK)
                heir = Table(url=empty_database_url, epoch=2)
                assert heir.reset(open={0: 0}) == {0: 0}
                task.commit()
                assert isinstance(publishes.exception(10), SinkAhead)
        assert heir.held() == []


class TestLostConnections:
    @pytest.mark.parametrize("broken", list(Break))
    def test_a_publication_whose_answer_is_lost_is_there_once(self, empty_database_url: str, broken: Break) -> None:
        with breaking_proxy(empty_database_url) as (proxy, through):
            out = table(through.render_as_string(hide_password=False))
            call = out.call({0: (0, 5)})
            staged = out.staged(call)
            proxy.break_next(broken)
            out.sink.insert(call, staged)
            assert proxy.breaks == 1
            out.run({0: (5, 7)})
        assert Table(url=empty_database_url).held() == records(p0=(0, 7))

    @pytest.mark.parametrize("broken", list(Break))
    @pytest.mark.parametrize("nth", [1, 2])
    def test_a_reset_whose_answer_is_lost_may_be_repeated(
        self, empty_database_url: str, broken: Break, nth: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with breaking_proxy(empty_database_url) as (proxy, through):
            out = table(through.render_as_string(hide_password=False))
            out.run({0: (0, 5)})
            out.epoch, out.timeline = 2, 2
            original = resets.reset

            def then_checkpoint(*arguments: Any) -> object:  # noqa: ANN401 (the function's)
                answer = original(*arguments)
                proxy.break_next(broken)
                return answer

            if nth == 1:
                proxy.break_next(broken)
            else:
                monkeypatch.setattr(resets, "reset", then_checkpoint)
            with pytest.raises(SinkError, match="can't tell whether"):
                out.reset({0: 2})
            monkeypatch.setattr(resets, "reset", original)
            out.reset({0: 2})
            out.run({0: (2, 4)})
        assert Table(url=empty_database_url).held() == records(p0=(0, 4))

    @pytest.mark.parametrize(
        ("module", "step"),
        [
            (insertion, "_checked"),
            (insertion, "_require_fence"),
            (bookkeeping, "lock_progress"),
            (insertion, "_insert"),
            (bookkeeping, "set_progress"),
        ],
    )
    def test_a_publication_that_is_ended_at_any_step_leaves_nothing(
        self,
        empty_database_url: str,
        monkeypatch: pytest.MonkeyPatch,
        module: ModuleType,
        step: str,
    ) -> None:
        out = table(empty_database_url)
        original = getattr(module, step)

        def ended(place: TargetTable, *arguments: Any, **options: Any) -> object:  # noqa: ANN401 (the step's)
            answer = original(place, *arguments, **options)
            out.ask(f"SELECT pg_terminate_backend({place.connection.info.backend_pid}, 5000)")
            return answer

        call = out.call({0: (0, 5)})
        staged = out.staged(call)
        monkeypatch.setattr(module, step, ended)
        with pytest.raises(SinkError):
            out.sink.insert(call, staged)
        monkeypatch.setattr(module, step, original)
        assert (out.held(), out.progress()[0]) == ([], (1, 0))
        out.sink.insert(call, staged)
        assert out.held() == records(p0=(0, 5))


def test_a_publication_that_a_lock_held_up_is_tried_again(empty_database_url: str) -> None:
    out = table(empty_database_url)
    call = out.call({0: (0, 5)})
    staged = out.staged(call)
    with psycopg.connect(libpq(empty_database_url)) as other, ThreadPoolExecutor(1) as pool:
        other.execute("LOCK TABLE out IN EXCLUSIVE MODE")
        publishes = pool.submit(lambda: out.sink.insert(call, staged))
        wait_for(empty_database_url, WAITS_FOR_A_LOCK)
        wait_for(empty_database_url, f"SELECT WHERE NOT EXISTS ({WAITS_FOR_A_LOCK})")
        other.rollback()
        assert publishes.result(20) == 5
    assert sink.ATTEMPTS > 1


class TestCrash:
    """The server crashes: what is unlogged is empty when it is back, and nothing else tells."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Postgres]:
        with start_postgres(tmp_path / "pg") as one:
            yield one

    @pytest.mark.parametrize(
        "delivery", [Delivery.EXACTLY_ONCE, pytest.param(Delivery.AT_MOST_ONCE, marks=pytest.mark.long)]
    )
    def test_a_batch_that_was_staged_before_it_is_not_published_without_its_rows(
        self, server: Postgres, delivery: Delivery
    ) -> None:
        out = table(server.url(), delivery)
        out.run({0: (0, 10), 1: (0, 5)})
        call = out.call({0: (10, 20), 1: (5, 9)})
        staging = out.staged(call)
        server.kill()
        server.start()
        with pytest.raises(SinkError, match=r"has lost what batch .* had staged"):
            out.sink.insert(call, staging)
        assert out.held() == records(p0=(0, 10), p1=(0, 5))
        assert out.progress() == {0: (1, 10), 1: (1, 5)}
        out.epoch += 1
        out.reset()
        out.run({0: (10, 20), 1: (5, 9)})
        assert out.held() == records(p0=(0, 20), p1=(0, 9))
        assert out.left() == []

    def test_what_was_staged_partly_before_it_is_not_published_with_the_rest(self, server: Postgres) -> None:
        out = table(server.url())
        call = out.call({0: (0, 10)})
        rows = out.rows_of(call)
        staging = out.staged(call, rows[:5])
        server.kill()
        server.start()
        out.fill(staging, rows[5:])  # a task that Spark has tried again
        with pytest.raises(SinkError, match=r"has lost what batch .* had staged"):
            out.sink.insert(call, staging)
        assert out.progress() == {0: (1, 0), 1: (1, 0)}

    def test_one_that_was_shut_down_and_started_again_has_what_was_staged(self, server: Postgres) -> None:
        out = table(server.url())
        call = out.call({0: (0, 10)})
        staging = out.staged(call)
        server.restart()
        out.sink.insert(call, staging)
        assert out.held() == records(p0=(0, 10))
