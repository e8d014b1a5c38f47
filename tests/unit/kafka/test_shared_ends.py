"""Ends of logs that several members ask for at the same moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_kcr.errors import BrokerUnavailable
from airflow_kcr.kafka.logs import Log, SharedEnds
from airflow_kcr.protocol.values import Offset
from tests.support.runtime_fakes import eventually

FIRST, SECOND, THIRD = (frozenset({("t", 2 * n), ("t", 2 * n + 1)}) for n in range(3))
ALL = FIRST | SECOND | THIRD


class Brokers:
    """Answer that each log ends at its number, but for those that are gone or have no leader."""

    def __init__(self) -> None:
        self.asked: list[frozenset[Log]] = []
        self.gone: frozenset[Log] = frozenset()
        self.leaderless: frozenset[Log] = frozenset()
        self.meanwhile: Callable[[], None] = lambda: None

    def of_all(self, logs: frozenset[Log]) -> Mapping[Log, Offset] | None:
        """Answer for several, or not at all."""
        self.asked.append(logs)
        self.meanwhile()
        return self._ends(logs) if logs.isdisjoint(self.gone | self.leaderless) else None

    def of_one(self, logs: frozenset[Log]) -> Mapping[Log, Offset]:
        """Answer for one."""
        self.asked.append(logs)
        if not logs.isdisjoint(self.leaderless):
            raise BrokerUnavailable("there is no leader")
        return self._ends(logs - self.gone)

    @staticmethod
    def _ends(logs: frozenset[Log]) -> dict[Log, Offset]:
        return {log: Offset(log[1]) for log in logs}


class Table:
    """Members that ask at the same moment: the first waits until all have."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.awaited: frozenset[Log] = frozenset()
        self.ends = SharedEnds(self.brokers.of_all, self.brokers.of_one, self._gather)

    def _gather(self) -> None:
        eventually(lambda: self.awaited <= self._open(), "all have asked")

    def _open(self) -> frozenset[Log]:
        asked = self.ends._open
        return frozenset() if asked is None else asked.logs

    def ask(self, *members: frozenset[Log], together: frozenset[Log] | None = None) -> list[Mapping[Log, Offset] | str]:
        """Return what each is answered, or why it is not.

        Args:
            members: the logs of each.
            together: those that are waited for; None: all of them.
        """
        self.brokers.asked.clear()
        self.awaited = frozenset().union(*members) if together is None else together
        with ThreadPoolExecutor(len(members)) as pool:
            return list(pool.map(self._answer, members))

    def _answer(self, logs: frozenset[Log]) -> Mapping[Log, Offset] | str:
        try:
            return self.ends.of(logs)
        except BrokerUnavailable as error:
            return error.message


def test_who_asks_at_the_same_moment_is_answered_by_one_request() -> None:
    table = Table()
    assert table.ask(FIRST, SECOND, THIRD) == [{log: log[1] for log in ALL}] * 3
    assert table.brokers.asked == [ALL]


def test_who_asks_while_the_brokers_are_asked_is_not_told_what_was_read_for_others() -> None:
    table, later = Table(), list[Mapping[Log, Offset]]()
    with ThreadPoolExecutor(1) as pool:

        def another_asks() -> None:
            table.brokers.meanwhile, table.awaited = lambda: None, SECOND
            later.append(pool.submit(table.ends.of, SECOND).result(20))

        table.brokers.meanwhile = another_asks
        table.ask(FIRST)
    assert table.brokers.asked == [FIRST, SECOND]
    assert [answer.keys() for answer in later] == [SECOND]


@pytest.mark.parametrize("fault", ["gone", "leaderless"])
def test_a_log_without_an_answer_keeps_only_its_own_member_from_asking_with_the_others(fault: str) -> None:
    table = Table()
    setattr(table.brokers, fault, frozenset({("t", 0)}))
    first = "there is no leader" if fault == "leaderless" else {("t", 1): 1}
    rest = [{log: log[1] for log in logs} for logs in (SECOND, THIRD)]
    assert table.ask(FIRST, SECOND, THIRD) == [first, *rest]
    assert table.brokers.asked[0] == ALL
    assert set(table.brokers.asked[1:]) == {FIRST, SECOND, THIRD}
    answers = table.ask(FIRST, SECOND, THIRD, together=SECOND | THIRD)
    assert answers[0] == first
    assert set(table.brokers.asked) == {FIRST, SECOND | THIRD}
    # It is back: asked for once more by itself, then together.
    setattr(table.brokers, fault, frozenset())
    table.ask(FIRST, SECOND, THIRD, together=SECOND | THIRD)
    table.ask(FIRST, SECOND, THIRD)
    assert table.brokers.asked == [ALL]


def test_a_fault_is_raised_to_the_first_and_the_others_ask_for_themselves() -> None:
    table = Table()

    def breaks() -> None:
        raise ValueError("a fault")

    table.brokers.meanwhile = breaks
    table.awaited = FIRST | SECOND
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(table.ends.of, FIRST), pool.submit(table.ends.of, SECOND)
        found = [one.exception(20) for one in (first, second)]
    assert [type(error) for error in found].count(ValueError) == 1
    assert found.count(None) == 1
