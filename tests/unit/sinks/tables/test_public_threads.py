"""How sinks of others have lost or doubled rows of lake tables in public: each thread is a test, for each format.

The names say the fault, the docstrings where it was described.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from airflow_kcr.protocol.targets import ShiftBy, ToInitial
from tests.support.table_files import TableFiles, at_commits, complete, other, reset


def once(files: TableFiles, act: Callable[[], object]) -> Callable[[Callable[[], Any]], Any]:
    """Do something before the first commit."""
    left = [act]

    def instead(commit: Callable[[], Any]) -> Any:  # noqa: ANN401 (as `at_commits`)
        if left:
            left.pop()()
        return commit()

    return instead


def test_a_zombie_coordinator_takes_no_progress_back(files: TableFiles) -> None:
    """apache/iceberg #17551: a coordinator that was replaced wrote its old position over its successor's."""
    files.fill()
    first = complete(files, "n1")

    def replaced() -> None:
        other(files).publish(first)
        files.driver.publish()
        files.checkpoint("n2", batches=1)

    with at_commits(files, once(files, replaced)):
        files.sink.publish(first)
    assert files.rows() == files.records()
    files.checkpoint("n3", batches=1)
    assert files.rows() == files.records()


def test_a_replacement_that_starts_at_latest_misses_no_files(files: TableFiles) -> None:
    """apache/iceberg #18006: a new coordinator began at the end of what workers had announced."""
    for _ in range(3):
        files.fill()
    sequence = complete(files, "n1")
    other(files).publish(sequence)
    assert files.rows() == files.expected(dict.fromkeys(files.driver.logs, 30))


def test_two_coordinators_after_a_rebalance_commit_each_file_once(files: TableFiles) -> None:
    """apache/iceberg #17637: a rebalance left two that both believed to lead."""
    files.fill()
    sequence = complete(files, "n1")
    with at_commits(files, once(files, lambda: other(files).publish(sequence))):
        files.sink.publish(sequence)
    assert files.rows() == files.records(sequence)


def test_one_file_is_not_in_two_snapshots_after_a_time_out(files: TableFiles) -> None:
    """apache/iceberg #16282: the commit was made, its position was not stored, and the next one committed it again."""
    files.fill()
    sequence = complete(files, "n1")

    def timed_out(commit: Callable[[], Any]) -> None:
        commit()
        raise KeyboardInterrupt

    with at_commits(files, timed_out), pytest.raises(KeyboardInterrupt):
        files.sink.publish(sequence)
    files.fill()
    other(files).publish(sequence)
    assert files.rows() == files.records(sequence)
    files.driver.publish()
    files.checkpoint("n2")
    assert files.rows() == files.records()


def test_a_sink_that_was_paused_and_goes_on_adds_no_file_again(files: TableFiles) -> None:
    """apache/iceberg #13763: tasks of a connector that was paused or deleted were still committing."""
    sequence = files.checkpoint("n1", batches=1)
    before = files.owned.version()
    for sink in (other(files), other(files), files.sink):
        sink.publish(sequence)
    assert files.owned.version() == before
    assert files.rows() == files.records()


def test_what_is_processed_again_after_going_back_is_not_taken_for_committed(files: TableFiles) -> None:
    """apache/iceberg #10892: a job that went back skipped checkpoints whose numbers the table had seen."""
    for request_id in ("n1", "n2", "n3"):
        files.fill()
        files.checkpoint(request_id)
    reset(files)
    files.driver.finish_reset()
    assert files.rows() == Counter()
    for request_id in ("n4", "n5"):
        files.fill()
        files.checkpoint(request_id)
    assert files.rows() == files.records() == files.expected(dict.fromkeys(files.driver.logs, 20))


def test_offsets_that_restart_keep_nothing_out_of_the_table(files: TableFiles) -> None:
    """databricks/iceberg-kafka-connect #308: with a new Kafka, files were skipped up to the highest offset seen."""
    files.checkpoint("n1", batches=5)
    files.go_back(ToInitial())
    files.fill(width=3)
    files.checkpoint("n2")
    assert files.rows() == files.expected(dict.fromkeys(files.driver.logs, 3))


def test_a_batch_that_is_replayed_after_its_commit_is_there_once(files: TableFiles) -> None:
    """apache/paimon #9666: the batch was in the table, its end was not noted, and it was processed again."""
    files.fill()
    files.sink.publish(complete(files, "n1"))
    files.driver.publish()
    files.go_back(ShiftBy(by=-10))
    files.checkpoint("n2", batches=1)
    assert files.rows() == files.expected(dict.fromkeys(files.driver.logs, 10))
