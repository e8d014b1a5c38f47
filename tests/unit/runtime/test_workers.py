from __future__ import annotations

from airflow_kcr.runtime.effects import Worker


def test_tasks_are_done_in_their_order_and_all_before_the_end() -> None:
    done: list[int] = []
    failures: list[BaseException] = []
    worker = Worker("counts", failures.append)
    for number in range(100):
        worker.post(lambda number=number: done.append(number))  # type: ignore[misc]
    worker.end()
    worker.thread.join(10)
    assert done == list(range(100))
    assert failures == []


def test_a_task_that_raises_ends_the_worker_and_is_told() -> None:
    failures: list[BaseException] = []
    after: list[str] = []
    worker = Worker("breaks", failures.append)

    def broken() -> None:
        raise ZeroDivisionError("a bug")

    worker.post(broken)
    worker.post(lambda: after.append("never"))
    worker.thread.join(10)
    assert [str(e) for e in failures] == ["a bug"]
    assert after == []
