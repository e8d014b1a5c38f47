"""One trace for each published checkpoint, made of the times that the store has: nothing is measured on the way.

The spans are made after the publication, by who reports it. Without OpenTelemetry, or where it has no provider, there
are none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow_kcr.api.regions import Handle
from airflow_kcr.errors import KcrError
from airflow_kcr.protocol.region.events import CommitReadBack, CommitResolved, Contributed, Event
from airflow_kcr.protocol.region.state import Region
from airflow_kcr.protocol.values import CheckpointNumber, EventNumber, MemberId

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

SPANS: Final[Mapping[str, str]] = {
    "checkpoint": "From its first request to its publication, or to the last known commit.",
    "request": "From the first request to the opening.",
    "drain": "From the opening to the last contribution.",
    "contribute": "From the opening to the contribution of one member, named in `kcr.member`.",
    "prepare": "At the end of `contribute`, as long as the member's sinks took to make durable what they held.",
    "publish": "From the last contribution to the publication: sinks show their output.",
    "commit": "From the last contribution to the read-back of what one member, named in `kcr.member`, has committed.",
}
"""Every span of a checkpoint's trace, with what it measures; `checkpoint` is the root."""

_LOG = logging.getLogger(__name__)

PAGE: Final = 1_000
PAGES: Final = 10
"""Events since its request among which those of a checkpoint are looked for."""

_SECOND: Final = timedelta(seconds=1)
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpan:
    """One span, as the store knows it."""

    name: str
    start: datetime
    end: datetime
    attributes: Mapping[str, str | int] = field(default_factory=dict)

    within: str = "checkpoint"
    """The name of the span that it is a part of; of several, the one before it."""


def spans_of(region: Region, sequence: CheckpointNumber, happened: Iterable[Event] = ()) -> tuple[CheckpointSpan, ...]:
    """Return the spans of a published checkpoint, the root first; none: it is not published.

    Args:
        region: the checkpoint's.
        sequence: the checkpoint's.
        happened: events of the checkpoint.
    """
    row = region.checkpoint_of(sequence)
    if row is None or row.published_at is None or row.finished_at is None:
        return ()
    opened_for = region.request_of(row.request_id)
    asked = [*region.archive.requests_for([sequence]), *([] if opened_for is None else [opened_for])]
    first = min([row.opened_at, *(one.requested_at for one in asked)])
    bodies = [(event.at, event.body) for event in happened]
    commits = [(at, body) for at, body in bodies if isinstance(body, CommitReadBack)]
    prepared = {body.member: body.prepared_in for _, body in bodies if isinstance(body, Contributed)}
    root = CheckpointSpan(
        name="checkpoint",
        start=first,
        end=max([row.published_at, *(at for at, _ in commits)]),
        attributes={"kcr.region": region.name, "kcr.timeline": row.timeline, "kcr.sequence": sequence},
    )
    phases = (
        CheckpointSpan(name="request", start=first, end=row.opened_at),
        CheckpointSpan(name="drain", start=row.opened_at, end=row.finished_at),
        CheckpointSpan(name="publish", start=row.finished_at, end=row.published_at),
    )
    read_back = (
        CheckpointSpan(name="commit", start=row.finished_at, end=at, attributes={"kcr.member": str(body.member or "")})
        for at, body in commits
    )
    return (root, *phases, *read_back, *_contributions(region, sequence, row.opened_at, prepared))


def _contributions(
    region: Region,
    sequence: CheckpointNumber,
    opened: datetime,
    prepared: Mapping[MemberId, timedelta | None],
) -> Iterator[CheckpointSpan]:
    for member, part in sorted(region.archive.contributions(sequence).items()):
        end, named = part.contributed_at, {"kcr.member": str(member)}
        yield CheckpointSpan(name="contribute", start=opened, end=end, attributes=named, within="drain")
        took = prepared.get(member)
        if took is not None:
            # By two clocks: what the member has measured can't begin before the store's opening.
            yield CheckpointSpan(name="prepare", start=max(opened, end - took), end=end, within="contribute")


def _happened(handle: Handle, region: Region, sequence: CheckpointNumber) -> Iterator[Event]:
    """Yield the events of a checkpoint, from its request on until it is known whether Kafka holds it."""
    row = region.checkpoint_of(sequence)
    asked = None if row is None else region.request_of(row.request_id)
    after = EventNumber(0 if asked is None else asked.order)
    for _ in range(PAGES if asked is not None else 0):
        page = handle.store.events(handle.name, after, PAGE)
        for event in page:
            if getattr(event.body, "sequence", None) == sequence:
                yield event
                if isinstance(event.body, CommitResolved):
                    return
        if len(page) < PAGE:
            return
        after = page[-1].number


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
        region, number = handle.read(), CheckpointNumber(sequence)
        spans = spans_of(region, number, _happened(handle, region, number))
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
    contexts = {root.name: trace.set_span_in_context(made, context.Context())}
    for one in rest:
        parent = contexts[one.within]
        span = tracer.start_span(one.name, parent, attributes=one.attributes, start_time=_nanoseconds(one.start))
        contexts[one.name] = trace.set_span_in_context(span, parent)
        span.end(_nanoseconds(one.end))
    made.end(_nanoseconds(root.end))


def _nanoseconds(instant: datetime) -> int:
    whole, rest = divmod(instant - _EPOCH, _SECOND)
    return whole * 1_000_000_000 + rest.microseconds * 1_000
