"""One trace for each published checkpoint, made of the times that the store has: nothing is measured on the way.

The spans are made after the publication, by who reports it. Without OpenTelemetry, or where it has no provider, there
are none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow_kcr.api.regions import Handle
from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

SPANS: Final[Mapping[str, str]] = {
    "checkpoint": "From its first request to its publication.",
    "request": "From the first request to the opening.",
    "drain": "From the opening to the last contribution.",
    "contribute": "From the opening to the contribution of one member, named in `kcr.member`.",
    "publish": "From the last contribution to the publication: sinks prepare and show their output.",
}
"""Every span of a checkpoint's trace, with what it measures; `checkpoint` is the root."""

_LOG = logging.getLogger(__name__)

_SECOND: Final = timedelta(seconds=1)
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpan:
    """One span, as the store knows it."""

    name: str
    start: datetime
    end: datetime
    attributes: Mapping[str, str | int] = field(default_factory=dict)


def spans_of(region: Region, sequence: CheckpointNumber) -> tuple[CheckpointSpan, ...]:
    """Return the spans of a published checkpoint, the root first; none: it is not published."""
    row = region.checkpoint_of(sequence)
    if row is None or row.published_at is None or row.finished_at is None:
        return ()
    asked = [one.requested_at for one in region.archive.requests_for([sequence])]
    first = min([*asked, row.opened_at])
    root = CheckpointSpan(
        name="checkpoint",
        start=first,
        end=row.published_at,
        attributes={"kcr.region": region.name, "kcr.timeline": row.timeline, "kcr.sequence": sequence},
    )
    phases = (
        CheckpointSpan(name="request", start=first, end=row.opened_at),
        CheckpointSpan(name="drain", start=row.opened_at, end=row.finished_at),
        CheckpointSpan(name="publish", start=row.finished_at, end=row.published_at),
    )
    return (root, *phases, *_contributions(region, sequence, row.opened_at))


def _contributions(region: Region, sequence: CheckpointNumber, opened: datetime) -> Iterator[CheckpointSpan]:
    for member, part in sorted(region.archive.contributions(sequence).items()):
        yield CheckpointSpan(
            name="contribute", start=opened, end=part.contributed_at, attributes={"kcr.member": str(member)}
        )


def record(handle: Handle, sequence: int, provider: TracerProvider | None = None) -> None:
    """Record the trace of a published checkpoint; it is linked to the span in which this is called, if there is one.

    Args:
        handle: the region.
        sequence: the checkpoint's.
        provider: where to; None: the process's own. Where it has none, the store isn't read.
    """
    try:
        from opentelemetry import context, trace
    except ImportError:
        return
    provider = provider or trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return
    try:
        spans = spans_of(handle.read(), CheckpointNumber(sequence))
    except KcrError as error:
        _LOG.warning("checkpoint %d of region %s has no trace: %s", sequence, handle.name, error)
        return
    if not spans:
        return
    root, *rest = spans
    tracer = provider.get_tracer("airflow_kcr")
    caller = trace.get_current_span().get_span_context()
    links = [trace.Link(caller)] if caller.is_valid else []
    # A context of its own: the checkpoint may have been asked for before the run that now reports it.
    made = tracer.start_span(
        root.name, context.Context(), attributes=root.attributes, links=links, start_time=_nanoseconds(root.start)
    )
    within = trace.set_span_in_context(made, context.Context())
    drain = within
    for one in rest:
        parent = drain if one.name == "contribute" else within
        span = tracer.start_span(one.name, parent, attributes=one.attributes, start_time=_nanoseconds(one.start))
        if one.name == "drain":
            drain = trace.set_span_in_context(span, within)
        span.end(_nanoseconds(one.end))
    made.end(_nanoseconds(root.end))


def _nanoseconds(instant: datetime) -> int:
    whole, rest = divmod(instant - _EPOCH, _SECOND)
    return whole * 1_000_000_000 + rest.microseconds * 1_000
