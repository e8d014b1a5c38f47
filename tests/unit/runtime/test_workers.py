from __future__ import annotations

import threading

from airflow_kcr.runtime.effects import Worker


def test_tasks_are_done_one_after_the_other_in_the_order_in_which_they_were_posted() -> None:
    done: list[int] = []
    failures: list[BaseException] = []
    worker = Worker("counts", failures.append)
    for number in range(100):
        worker.post(lambda number=number: done.append(number))  # type: ignore[misc]
    worker.end()
    assert worker.join(10)
    assert done == list(range(100))
    assert failures == []


def test_what_was_posted_before_the_end_is_still_done() -> None:
    gate, done = threading.Event(), threading.Event()
    worker = Worker("waits", lambda _: None)

    def wait() -> None:
        gate.wait(10)

    worker.post(wait)
    worker.post(done.set)
    worker.end()
    assert not worker.join(0.01)
    gate.set()
    assert worker.join(10)
    assert done.is_set()


def test_a_task_that_raises_ends_the_worker_and_is_told() -> None:
    failures: list[BaseException] = []
    after: list[str] = []
    worker = Worker("breaks", failures.append)

    def broken() -> None:
        raise ZeroDivisionError("a bug")

    worker.post(broken)
    worker.post(lambda: after.append("never"))
    assert worker.join(10)
    assert [str(e) for e in failures] == ["a bug"]
    assert after == []
