"""A store whose answers get lost: before it did anything, or after it did everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_kcr.errors import OutcomeUnknown
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import RegionName
from airflow_kcr.store.regions import B, BatchRule, Rule
from tests.support.memory import MemoryTransactions
from tests.support.simulation.world import World

A = TypeVar("A")


class LossyTransactions(MemoryTransactions):
    """`MemoryTransactions` behind a connection that is lost during some COMMITs.

    Args:
        world: where its clock and chance come from.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world.clock)
        self._world = world
        self.lost = 0.0
        """Probability that the answer to a COMMIT is lost; half of them were committed."""

        self._again = False

    def _commit(self, run: Callable[[], A]) -> A:
        """Run a transaction; a lost answer is not lost twice in a row, or the caller could never find out."""
        if self._again or not self._world.chance(self.lost):
            self._again = False
            return run()
        self._again = True
        if self._world.chance(0.5):
            run()
        raise OutcomeUnknown

    def decide(self, name: RegionName, rule: Rule[A]) -> tuple[Region, A]:
        """See `RegionStore`."""
        return self._commit(lambda: super(LossyTransactions, self).decide(name, rule))

    def admit(self, name: RegionName, command: B, rule: BatchRule[B, A]) -> A:
        """See `RegionStore`."""
        return self._commit(lambda: super(LossyTransactions, self).admit(name, command, rule))
