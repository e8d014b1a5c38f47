"""What members are built from by a spec: the user's code, the sinks, the settings of Kafka; and whether they can be."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from airflow_kcr.api.regions import client_settings
from airflow_kcr.api.validation import real_reader
from airflow_kcr.errors import (
    BrokerUnavailable,
    ConfigurationError,
    GroupInOtherRegion,
    KcrError,
    OtherCluster,
    SinkError,
    StoreError,
)
from airflow_kcr.protocol.commands import ReportSpecChecks
from airflow_kcr.protocol.region.rows import SpecCheck
from airflow_kcr.protocol.region.specs import proposed_to
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.validation import check_topics
from airflow_kcr.protocol.values import GroupId, MemberId, RegionName
from airflow_kcr.runtime.metrics import Snapshot
from airflow_kcr.sinks.custom.adapters import CustomTarget, custom_targets, factory_named
from airflow_kcr.sinks.files import FileTarget
from airflow_kcr.sinks.files.delta import table_of
from airflow_kcr.sinks.files.layout import file_targets
from airflow_kcr.sinks.group import checked_sinks, opened_files
from airflow_kcr.sinks.postgres import PostgresSink
from airflow_kcr.sinks.postgres.writer import require_driver
from airflow_kcr.spark.pipelines import Pipeline, load_pipeline, pipeline_named, require_free_name
from airflow_kcr.spec import RegionSpec, SinkKind
from airflow_kcr.store.regions import RegionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the members of one group are built from."""

    kafka: Mapping[str, str] = field(repr=False)
    """The client settings of the group's cluster, references filled in."""

    pipeline: Pipeline
    sinks: tuple[PostgresSink, ...] = ()
    """Of the group, those that are tables, each found to be in order."""

    files: tuple[FileTarget, ...] = ()
    """Of the region: those sinks that are files."""

    custom: tuple[CustomTarget, ...] = ()
    """Of the region: those that are a user's own."""


def load(spec: RegionSpec, group: GroupId, environ: Mapping[str, str] = os.environ) -> Parts:
    """Return what the members of a group are built from: code is imported, databases are asked.

    Args:
        spec: the region's.
        group: one of its groups.
        environ: where references are looked up.

    Raises:
        ConfigurationError: a setting is refused, the pipeline or a sink's function is unusable, a table can't be
            written as the spec wants.
        SinkError: a sink's database can't be reached.
    """
    return Parts(
        sinks=checked_sinks(spec, group, environ),
        files=file_targets(spec, environ),
        custom=custom_targets(spec, environ),
        pipeline=load_pipeline(spec.group(group).pipeline),
        kafka=client_settings(spec, group, environ),
    )


# Checks whether members can be built from a spec, and tells the store what was found.
#
# The applications whose members live check a waiting spec: a separate process imports its code and connects to its
# sinks, and leaves nothing behind in this one; what depends on this very process, because its members are rebuilt in
# it, is checked here. A refusal leaves the members as they are.

WITHIN: Final = 60.0
"""Seconds that the other process has: an interpreter, Spark's client library, the user's imports, a database."""

POLL_PERIOD: Final = 0.5
"""Seconds between two checks whether a changed spec waits."""

_LONGEST: Final = 400
_NOT_INHERITED: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
"""What would have the user's imports find, and use, the JVM of this process."""

_LOG = logging.getLogger(__name__)


def sentence(error: BaseException) -> str:
    """Return a message as one line, short, and of characters that a database can store."""
    line = " ".join(str(error).split()) or type(error).__name__
    return "".join(c if c.isprintable() else "?" for c in line)[:_LONGEST]


@contextmanager
def told(
    store: RegionStore, region: RegionName, members: Collection[MemberId], revision: int, digest: str
) -> Iterator[None]:
    """Tell the store why members can't start with the spec in force, where that is what an error in the block says.

    Args:
        store: where the region is.
        region: theirs.
        members: those that are to be started.
        revision: of the spec.
        digest: of its text.
    """
    try:
        yield
    except (ConfigurationError, SinkError, BrokerUnavailable, OtherCluster, GroupInOtherRegion) as error:
        refusal = sentence(error)
        checks = tuple(SpecCheck(member=m, revision=revision, digest=digest, refusal=refusal) for m in members)
        try:
            store.handle(region, ReportSpecChecks(checks=checks))
        except StoreError as away:
            _LOG.warning("region %s: the store could not be told why its members don't start: %s", region, away)
        raise


class Living(Protocol):
    """The members of this process, as far as a trial needs them (`runtime.member_pool.MemberPool` is one)."""

    def proposed_spec(self) -> str:
        """Return the digest of the changed spec that waits; empty: there is none."""
        ...

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Return every member as it was a moment ago."""
        ...


class SpecTrial:
    """Checks every changed spec that waits, while members live.

    Args:
        store: where the region is.
        region: the members'.
        group: theirs.
        living: they.
        spark: the session in whose JVM they would be rebuilt.
    """

    def __init__(
        self, store: RegionStore, region: RegionName, group: GroupId, living: Living, spark: SparkSession
    ) -> None:
        self._store, self._region, self._group = store, region, group
        self._living, self._spark = living, spark
        self._ending = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"{region} spec", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def end(self) -> None:
        """End, with the running check; returns at once."""
        self._ending.set()
        child = self._child
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()

    def _run(self) -> None:
        while not self._ending.wait(POLL_PERIOD):
            try:
                self._poll()
            except StoreError as error:
                _LOG.warning("region %s: its changed spec is checked again: %s", self._region, error)

    def _poll(self) -> None:
        """Check the spec that waits, if the region asks these incarnations about it."""
        proposed = self._living.proposed_spec()
        mine = {one.member: one.incarnation for one in self._living.snapshots() if one.incarnation}
        if not proposed or not mine:
            return
        region, _ = self._store.read(self._region)
        spec = region.next_spec
        if spec is None or not any(proposed_to(region, member, incarnation) for member, incarnation in mine.items()):
            return  # what the members have seen is older than the answer
        refusal = self._refusal(spec)
        if self._ending.is_set():
            return  # whatever ended the child, it was not the spec
        checks = tuple(
            SpecCheck(member=m, revision=spec.revision, digest=spec.digest, refusal=refusal, incarnation=incarnation)
            for m, incarnation in sorted(mine.items())
        )
        self._store.handle(self._region, ReportSpecChecks(checks=checks))
        if refusal:
            _LOG.warning("region %s: its changed spec is refused, the members go on: %s", self._region, refusal)
        else:
            _LOG.info("region %s: members can be built from its changed spec", self._region)

    def _refusal(self, spec: Spec) -> str:
        """Return why members can't be built from a spec; empty: they can."""
        if self._group not in spec.rules.groups:
            return ""
        declared = RegionSpec.from_json(spec.text)
        try:
            require_here(declared, self._group, self._spark)
            refusal = self._asked(spec)
            if not refusal:
                opened_files(file_targets(declared), self._spark, self._store, self._group)
        except Exception as error:  # noqa: BLE001 - whatever it is, members that are rebuilt would meet it
            return sentence(error)
        return refusal

    def _asked(self, spec: Spec) -> str:
        """Return what a process of its own finds."""
        environ = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        # The package and the user's code may be importable in this process only (a submitted zip file).
        environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        child = self._child = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,  # Ctrl-C at a terminal is for the members
        )
        try:
            out, _ = child.communicate(json.dumps({"spec": spec.text, "group": self._group}).encode(), WITHIN)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return f"importing its code and asking its sinks was not done within {WITHIN:g} s"
        finally:
            self._child = None
        if child.returncode or not out:
            return f"importing its code ended the process that tried it (status {child.returncode})"
        return str(json.loads(out)["refusal"])


def require_here(spec: RegionSpec, group: GroupId, spark: SparkSession) -> None:
    """Refuse a spec that members can't be built from in this very process: its modules and its JVM are what they are.

    Args:
        spec: the changed one.
        group: one of its groups.
        spark: the session of this process.

    Raises:
        ConfigurationError: a module's name is taken, or the JVM lacks a driver or a format.
    """
    require_free_name(pipeline_named(spec.group(group).pipeline))
    sinks = [sink for one in spec.groups for sink in one.sinks]
    for sink in sinks:
        if sink.kind is SinkKind.CUSTOM:
            require_free_name(factory_named(sink.factory or ""))
    try:
        if any(sink.kind is SinkKind.POSTGRES for sink in spec.group(group).sinks):
            require_driver(spark)
        for target in file_targets(spec):
            table_of(spark, target)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}; or end the members, apply the spec while none lives, and start them again"
        ) from error


def tried(spec: RegionSpec, group: GroupId, environ: Mapping[str, str] = os.environ) -> None:
    """Load everything that members are built from.

    Args:
        spec: the region's.
        group: one of its groups.
        environ: where references are looked up.

    Raises:
        ConfigurationError, SinkError, BrokerUnavailable: they can't be built from this spec.
    """
    load(spec, group, environ)
    rules = spec.rules()
    with real_reader(spec, group) as cluster:
        check_topics(replace(rules, groups={group: rules.groups[group]}), {group: cluster.logs.topics()})


def main() -> None:
    """Read which spec to try from standard input, and answer there what is wrong with it."""
    asked = json.loads(sys.stdin.buffer.read())
    # What the user's imports print is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    refusal = ""
    try:
        tried(RegionSpec.from_json(asked["spec"]), GroupId(asked["group"]))
    except KcrError as error:
        refusal = sentence(error)
    answers.write(json.dumps({"refusal": refusal}))
    answers.close()


if __name__ == "__main__":
    main()
