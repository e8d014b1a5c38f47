"""`kind: custom`: a sink of a user's own, declared by the function that makes it and that function's options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

from airflow_kcr.errors import ConfigurationError, PipelineUnusable
from airflow_kcr.sinks.contract import Choice, DeclaredSink, FoundOutput
from airflow_kcr.sinks.custom import CustomSink
from airflow_kcr.sinks.custom.adapters import MemberCustomSink, unusable
from airflow_kcr.sinks.files.contents import RegionLedger
from airflow_kcr.spark.pipelines import NamedFunction, load_function
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WANTED: str = "def make(options: Mapping[str, str], spark: SparkSession) -> CustomSink"
_LOG = logging.getLogger(__name__)


class DeclaredCustom(DeclaredSink):
    """A sink of a user's own."""

    is_deletable: ClassVar[bool] = False

    def check(self) -> None:
        """Load the function, and fill in the references of its options."""
        self._factory()
        self.resolved_options()

    def require_apart(self, live: Iterable[DeclaredSink]) -> None:
        """Refuse a function with the options of a sink of the spec: it would make the very same."""
        own = (self.spec.factory, self.spec.options)
        for one in live:
            if own == (one.spec.factory, one.spec.options):
                raise ConfigurationError(
                    f"into.{self.group}.{self.spec.name} has the factory and the options of sink {one.spec.name} of "
                    f"group {one.group}, into which the region writes; give it options that name another place"
                )

    def open(self, spark: SparkSession, store: RegionStore) -> MemberCustomSink:
        """Have the function make the sink."""
        return self.made(spark, RegionLedger(store, self.region_name))

    def made(self, spark: SparkSession, ledger: RegionLedger) -> MemberCustomSink:
        """Return the sink as the function makes it, with a ledger that says what is accepted."""
        factory, options = self._factory(), self.resolved_options()
        with unusable(self.owner):
            made = factory(options, spark)
            if not isinstance(made, CustomSink):
                raise PipelineUnusable(
                    f"the factory of a sink {self.spec.factory!r} made a {type(made).__name__}, no CustomSink"
                )
        _LOG.info("%s is %s", self.owner.name, type(made).__name__)
        return MemberCustomSink(self.owner, made, ledger)

    def output(self, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Return the function's name; what the sink has written only its code knows."""
        return self.found(self.spec.factory or "")

    def settle(self, choice: Choice, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput | None:
        """Return that there is nothing to choose."""
        return None

    def delete(self, store: RegionStore, spark: Callable[[], SparkSession]) -> FoundOutput:
        """Refuse: only the user's own code knows what it has written."""
        raise ConfigurationError(f"sink {self.spec.name} is a custom one, whose output only you can delete")

    def _factory(self) -> Callable[[object, object], object]:
        return load_function(factory_named(self.spec.factory or ""))


def factory_named(name: str) -> NamedFunction:
    """Return the function of that name that makes a sink, as messages call it; nothing is imported."""
    return NamedFunction(what="factory of a sink", name=name, wanted=WANTED, called_with="options and a Spark session")


KIND = DeclaredCustom
