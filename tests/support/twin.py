"""Both stores at once: whatever is asked of the twin is asked of Postgres and of memory, and must end the same.

Memory's clock is set to what Postgres has just read, so that the two regions can be compared as a whole after every
call, row by row, event by event, and the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from airflow_kcr.errors import KcrError, RefusedError
from airflow_kcr.ports import Heartbeats, Renewal
from airflow_kcr.protocol.region.commands import Heartbeat
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.rules import RegionRules
from airflow_kcr.protocol.values import Epoch, EventNumber, RegionName
from airflow_kcr.store.answers import Replayed, Span
from airflow_kcr.store.regions import B, BatchRule, RegionStore, Rule
from tests.support.memory import MemoryTransactions
from tests.support.whole import everything

if TYPE_CHECKING:
    from sqlalchemy import Engine

A = TypeVar("A")


def plain(region: Region) -> dict[str, object]:
    """Return a region as plain values, without its archive."""
    return {field.name: getattr(region, field.name) for field in fields(region) if field.name != "archive"}


def differences(one: Region, other: Region) -> dict[str, object]:
    """Return the tables in which two regions differ, with the rows that do."""
    here, there = plain(one), plain(other)
    found: dict[str, object] = {}
    for name, held in here.items():
        against = there[name]
        if held == against:
            continue
        if isinstance(held, dict) and isinstance(against, dict):
            keys = [k for k in {**held, **against} if held.get(k) != against.get(k)]
            found[name] = {k: (held.get(k), against.get(k)) for k in keys}
        else:
            found[name] = (held, against)
    return found


class Twin(RegionStore):
    """The store under test, whose answers count, with one in memory beside it."""

    def __init__(self, engine: Engine, read_rules: Callable[[str], RegionRules]) -> None:
        super().__init__(engine, read_rules)
        self._now: datetime | None = None
        self._memory = MemoryTransactions(self._clock)
        self._compared = EventNumber(0)

    def create(self, name: RegionName, rule: Callable[[datetime], Region]) -> Region:
        def noted(now: datetime) -> Region:
            self._now = now
            return rule(now)

        return self._both(name, lambda: super(Twin, self).create(name, noted), lambda: self._memory.create(name, rule))

    def decide(self, name: RegionName, rule: Rule[A]) -> tuple[Region, A]:
        return self._both(
            name,
            lambda: super(Twin, self).decide(name, self._noted(rule)),
            lambda: self._memory.decide(name, rule),
        )

    def admit(self, name: RegionName, command: B, rule: BatchRule[B, A]) -> A:
        def noted(region: Region, now: datetime, command: B) -> tuple[Region, A]:
            self._now = now
            return rule(region, now, command)

        return self._both(
            name,
            lambda: super(Twin, self).admit(name, command, noted),
            lambda: self._memory.admit(name, command, rule),
        )

    def renew(self, renewals: Collection[Renewal]) -> Heartbeats:
        found = super().renew(renewals)
        for renewal, answer in found.items():
            if isinstance(answer, Heartbeat):
                self._now = answer.now
            twin = self._memory.renew([renewal])[renewal]
            if _told(answer) != _told(twin):
                raise AssertionError(f"postgres answers {answer}, memory {twin}")
        return found

    def delete(self, name: RegionName, check: Callable[[Region, datetime], None]) -> None:
        super().delete(name, check)
        self._memory.delete(name, lambda region, now: None)

    def replays(self, name: RegionName, spans: Collection[Span]) -> Mapping[Epoch, Replayed]:
        found, twin = super().replays(name, spans), self._memory.replays(name, spans)
        if found != twin:
            raise AssertionError(f"postgres counts {found}, memory {twin}")
        return found

    def compare(self, name: RegionName) -> None:
        """Refuse any difference between the two stores."""
        one, other = self.read(name)[0], self._memory.read(name)[0]
        apart = differences(one, other) or differences(everything(one), everything(other))
        if apart:
            raise AssertionError(f"postgres and memory differ: {apart}")
        fresh = self._compared, 1_000_000
        if (told := self.events(name, *fresh)) != self._memory.events(name, *fresh):
            raise AssertionError("the events differ")
        self._compared = told[-1].number if told else self._compared
        if list(self.batches(name)) != list(self._memory.batches(name)):
            raise AssertionError("the ledgers differ")

    def _clock(self) -> datetime:
        if self._now is None:
            raise AssertionError("Postgres was not asked for the time yet")
        return self._now

    def _noted(self, rule: Rule[A]) -> Rule[A]:
        def noted(region: Region, now: datetime) -> tuple[Region, A]:
            self._now = now
            return rule(region, now)

        return noted

    def _both(self, name: RegionName, postgres: Callable[[], A], memory: Callable[[], A]) -> A:
        answers, refusal = _outcome(postgres)
        others, other = _outcome(memory)
        if (type(refusal), str(refusal)) != (type(other), str(other)):
            raise AssertionError(f"postgres ends in {refusal!r}, memory in {other!r}")
        self.compare(name)
        if refusal is not None:
            raise refusal
        if answers != others:
            raise AssertionError(f"postgres answers {answers}, memory {others}")
        return answers[0]


def _outcome(call: Callable[[], A]) -> tuple[list[A], KcrError | None]:
    """Return the answer, or none and the refusal."""
    try:
        return [call()], None
    except KcrError as refusal:
        return [], refusal


def _told(answer: Heartbeat | RefusedError) -> tuple[object, ...]:
    """Return what both stores must say of a renewal; their clocks are not read in the same instant."""
    if isinstance(answer, Heartbeat):
        return answer.counter, answer.epoch, answer.incarnation, answer.renewed, answer.reconcile_at
    return type(answer), str(answer)
