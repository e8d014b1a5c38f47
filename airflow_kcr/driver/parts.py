"""What members are built from: the user's code, the sinks, the settings of Kafka; and why they can't be built."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from airflow_kcr.api.clusters import client_settings
from airflow_kcr.driver.starting import is_away
from airflow_kcr.errors import (
    BrokerUnavailable,
    ConfigurationError,
    GroupInOtherRegion,
    KcrError,
    OtherCluster,
    SinkError,
    StoreError,
)
from airflow_kcr.ports import SinkPlace
from airflow_kcr.protocol.region.commands import ReportStartFailures
from airflow_kcr.protocol.region.rows import StartFailure
from airflow_kcr.protocol.values import GroupId, MemberId, RegionId, RegionName
from airflow_kcr.sinks.contract import DeclaredSink
from airflow_kcr.sinks.group import checked_sinks
from airflow_kcr.spark.pipelines import Pipeline, load_pipeline
from airflow_kcr.spec import RegionSpec
from airflow_kcr.store.regions import RegionStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the members of one group are built from."""

    kafka: Mapping[str, str] = field(repr=False)
    """The client settings of the group's cluster, references filled in."""

    pipeline: Pipeline
    sinks: tuple[DeclaredSink, ...] = ()
    """What its application opens, each found to be in order as far as that needs no Spark."""


def load(
    spec: RegionSpec,
    group: GroupId,
    environ: Mapping[str, str] = os.environ,
    *,
    region_id: RegionId,
    taken: Collection[SinkPlace] = frozenset(),
) -> Parts:
    """Return what the members of a group are built from: code is imported, databases are asked.

    Args:
        spec: the region's.
        group: one of its groups.
        environ: where references are looked up.
        region_id: the region's.
        taken: where the region's sinks have written to before.

    Raises:
        ConfigurationError: a setting is refused, the pipeline or a sink's function is unusable, a table can't be
            written as the spec wants.
        SinkError: a sink's database can't be reached.
    """
    return Parts(
        sinks=checked_sinks(spec, group, environ, region_id=region_id, taken=taken),
        pipeline=load_pipeline(spec.group(group).pipeline),
        kafka=client_settings(spec, group, environ),
    )


_LONGEST: Final = 400

_LOG = logging.getLogger(__name__)


def sentence(error: BaseException) -> str:
    """Return a message as one line, short, and of characters that a database can store."""
    line = " ".join(str(error).split()) or type(error).__name__
    return "".join(c if c.isprintable() else "?" for c in line)[:_LONGEST]


class StartFailures:
    """Tells the store why members can't start with the spec in force, for one start, however often it is tried.

    Args:
        store: where the region is.
        region: theirs.
        members: those that are to be started.
    """

    def __init__(self, store: RegionStore, region: RegionName, members: Collection[MemberId]) -> None:
        self._store, self._region, self._members = store, region, members
        self._reported: set[tuple[str, type[KcrError]]] = set()

    @contextmanager
    def reported(self, revision: int, digest: str) -> Iterator[None]:
        """Tell it where that is what an error in the block says; that something is away once, with its first words.

        Args:
            revision: of the spec.
            digest: of its text.
        """
        try:
            yield
        except (ConfigurationError, SinkError, BrokerUnavailable, OtherCluster, GroupInOtherRegion) as error:
            # Each try has other words for what does not answer, and each report would be an event.
            what = (digest, type(error))
            if what not in self._reported and self._report(revision, digest, sentence(error)) and is_away(error):
                self._reported.add(what)
            raise

    def _report(self, revision: int, digest: str, refusal: str) -> bool:
        found = (StartFailure(member=m, revision=revision, digest=digest, refusal=refusal) for m in self._members)
        try:
            self._store.handle(self._region, ReportStartFailures(failures=tuple(found)))
        except StoreError as away:
            _LOG.warning("region %s: the store could not be told why its members don't start: %s", self._region, away)
            return False
        return True
