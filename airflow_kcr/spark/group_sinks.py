"""The sinks of a group, made from its spec and found to be in order before anything is consumed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from airflow_kcr.api.sink_urls import sink_url
from airflow_kcr.ports import BatchCall, Sinks
from airflow_kcr.protocol.values import GroupId, RegionName
from airflow_kcr.runtime.no_sinks import NoSinks
from airflow_kcr.sinks.members import MemberSinks
from airflow_kcr.sinks.postgres import PostgresSink, Target
from airflow_kcr.spark.sinks import Output, SinkOutput, no_output, require_reachable
from airflow_kcr.spec import RegionSpec

_LOG = logging.getLogger(__name__)


def checked_sinks(
    spec: RegionSpec, group: GroupId, environ: Mapping[str, str] = os.environ
) -> tuple[PostgresSink, ...]:
    """Return the sinks of a group, whose databases were asked whether all is in order.

    Args:
        spec: the region's.
        group: one of its groups.
        environ: where references of the sinks' URLs are looked up.

    Raises:
        ConfigurationError: the delivery needs a sink and there is none; a variable is not set; executors can't reach a
            database; a schema, right, column or index is missing.
        SinkError: a database can't be reached.
    """
    declared = spec.group(group)
    if not declared.sinks:
        NoSinks(spec.rules().groups[group])
    sinks = tuple(
        PostgresSink(
            Target(
                region=RegionName(spec.region),
                group=group,
                sink=sink.name,
                table=sink.table,
                delivery=declared.delivery,
                mode=sink.mode,
                key=sink.key,
            ),
            sink_url(sink, environ),
            spec.timeouts,
        )
        for sink in declared.sinks
    )
    require_reachable(sinks)
    for sink in sinks:
        sink.check()
        _LOG.info("%s writes to %s at %s", sink.target, sink.target.table, sink.database.address)
    return sinks


def member_sinks(spec: RegionSpec, group: GroupId, sinks: tuple[PostgresSink, ...]) -> Sinks:
    """Return the sinks of a group as one of its members has them."""
    return MemberSinks(sinks) if sinks else NoSinks(spec.rules().groups[group])


def output_of(sinks: tuple[PostgresSink, ...]) -> Callable[[BatchCall], Output]:
    """Return what makes the output of a batch."""
    return (lambda call: SinkOutput(sinks, call)) if sinks else no_output
