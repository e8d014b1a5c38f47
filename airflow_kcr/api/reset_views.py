"""The resets of a region as people see them: who asked, why, what became of each, what was processed again.

A reset is one or more attempts: each has an epoch and burns a sequence of its own, all have one target. Its id is the
region and the sequence of the first attempt; a person's is found by the name of its plan too, also before it begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from airflow_kcr.api.views import AnswerColumns, View
from airflow_kcr.errors import ConfigurationError, UnknownReset
from airflow_kcr.protocol.region.archive import ATTEMPTS, ResetPage
from airflow_kcr.protocol.region.rows import PersonReset, Requester, ResetAttempt, ResetState
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.values import CheckpointNumber, Epoch, RegionName, RequestId, Timeline
from airflow_kcr.store.answers import Replayed, Span
from airflow_kcr.store.regions import RegionStore

AUTOMATIC = Requester()

_NUMBER: Final = re.compile("[0-9]{1,18}")


ATTEMPT: Final = AnswerColumns[ResetAttempt](
    "attempt", "epoch", "sequence", "cause", "state", "started_at", "done_at", "detail"
)
"""An attempt of a reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetView(View):
    """One reset: a person's, or an automatic one."""

    shown = AnswerColumns["ResetView"](
        ("id", lambda r: r.reset_id),
        "region",
        ("plan", lambda r: r.plan or None),
        *("state", "cause", "target"),
        ("scope", lambda r: None if r.asked is None else r.asked.scope),
        ("forced", lambda r: r.asked is not None and r.asked.forced),
        ("consent_upsert", lambda r: r.asked is not None and r.asked.consent_upsert),
        ("skip", lambda r: [] if r.asked is None else [(*p, o) for p, o in r.asked.skip.items()]),
        ("who", lambda r: r.requester.who or None),
        ("dag_id", lambda r: r.requester.dag_id or None),
        ("run_id", lambda r: r.requester.run_id or None),
        ("reason", lambda r: r.requester.reason or None),
        "asked_at",
        ("started_at", lambda r: r.attempts[0].started_at if r.attempts else None),
        "finished_at",
        ("timeline", lambda r: r.attempts[-1].timeline if r.attempts else None),
        ("epoch", lambda r: r.attempts[-1].epoch if r.attempts else None),
        ("attempts", lambda r: [ATTEMPT.document(one) for one in r.attempts]),
        "undone",
        ("rewound", lambda r: None if r.counted is None else r.counted.rewound),
        ("replayed", lambda r: None if r.counted is None else r.counted.replayed),
        ("failure", lambda r: None if r.asked is None else r.asked.failure or None),
        table=("id", "state", "cause", "target", "who", "reason", "asked_at", "attempts", "replayed"),
    )

    region: str
    attempts: tuple[ResetAttempt, ...]
    """Oldest first; none: it has not started, or never will."""

    asked: PersonReset | None
    """What a person asked for; None: it was automatic."""

    undone: tuple[CheckpointNumber, ...] = ()
    """The checkpoints that it took off the current timeline, in ascending order."""

    counted: Replayed | None = None
    """None: not counted."""

    @property
    def reset_id(self) -> str:
        """What `show` finds it by."""
        if self.attempts:
            return f"{self.region}/{self.attempts[0].sequence}"
        return self.plan if self.plan.startswith(f"{self.region}/") else f"{self.region}/{self.plan}"

    @property
    def plan(self) -> str:
        """The name of the plan; empty: it was automatic."""
        return "" if self.asked is None else self.asked.request_id

    @property
    def state(self) -> str:
        """Where it stands; a person's may wait and drain first, and may fail."""
        return str(self.asked.state if self.asked is not None else self.attempts[-1].state)

    @property
    def cause(self) -> str:
        """Why it began; of a person's always `person`."""
        return "person" if self.asked is not None else str(self.attempts[0].cause)

    @property
    def target(self) -> str:
        """Where to, in words; an automatic one goes where each group's delivery says."""
        return "automatic" if self.asked is None else str(self.asked.target)

    @property
    def requester(self) -> Requester:
        """Who asked, and why."""
        return AUTOMATIC if self.asked is None else self.asked.requester

    @property
    def asked_at(self) -> datetime:
        """When it was asked for, or began by itself."""
        return self.attempts[0].started_at if self.asked is None else self.asked.requested_at

    @property
    def finished_at(self) -> datetime | None:
        """When it was done, failed or superseded."""
        return self.attempts[-1].done_at if self.asked is None else self.asked.finished_at


def of_plan(region: StoredRegion, request_id: RequestId) -> ResetView:
    """Return where the reset of a plan stands.

    Raises:
        ConfigurationError: no plan of that name was applied.
    """
    asked = region.person_reset_of(request_id)
    if asked is None:
        raise ConfigurationError(f"no plan {request_id!r} was applied to region {region.name}")
    first = None if asked.epoch is None else region.archive.reset(asked.epoch)
    return _view(region, () if first is None else _attempts(region, first), asked)


def of_page(name: RegionName, rows: ResetPage, last: int | None) -> tuple[ResetView, ...]:
    """Return the resets of a page of the archive, the oldest first.

    Args:
        name: the region's.
        rows: the page.
        last: as of `RegionResets.list`.
    """
    chains = _chains(rows.resets)
    is_whole = last is None or len(rows.resets) <= last * ATTEMPTS
    if not is_whole and len(chains) > 1:
        del chains[0]  # perhaps without its first attempts
    if last is not None and len(chains) > last:
        chains, is_whole = chains[-last:], False
    asked = {row.request_id: row for row in rows.persons}
    views = [
        *(_shown(name, chain, _asked(chain, asked), rows.undone) for chain in chains),
        *(
            _shown(name, (), row, {})
            for row in rows.persons
            if row.epoch is None and (is_whole or row.requested_at >= chains[0][0].started_at)
        ),
    ]
    return tuple(sorted(views, key=lambda view: view.asked_at))


def counted(
    store: RegionStore, name: RegionName, views: tuple[ResetView, ...], following: tuple[ResetAttempt, ...]
) -> tuple[ResetView, ...]:
    """Return resets with what each made to be processed again; the one after them says how far it was caught up."""
    begun = sorted((view.attempts for view in views if view.attempts), key=lambda attempts: attempts[0].epoch)
    if not begun:
        return tuple(replace(view, counted=Replayed()) for view in views)
    begun += _chains(following)
    before = (Epoch(begun[0][0].epoch - 1), *(attempts[-1].epoch for attempts in begun))
    spans = [Span(since, own[0].epoch, own[-1].epoch) for since, own in zip(before, begun, strict=False)]
    counts = store.replays(name, spans)
    return tuple(
        replace(view, counted=counts[view.attempts[0].epoch] if view.attempts else Replayed()) for view in views
    )


def found(region: StoredRegion, reset_id: str) -> ResetView:
    """Return one reset, by its id with or without the region before it, or by the name of its plan.

    Raises:
        UnknownReset: there is none.
    """
    short = reset_id.removeprefix(f"{region.name}/")
    for name in dict.fromkeys((reset_id, short, f"{region.name}/{short}")):
        if region.person_reset_of(RequestId(name)) is not None:
            return of_plan(region, RequestId(name))
    rows = region.archive.resets_from(CheckpointNumber(int(short)), 1) if _NUMBER.fullmatch(short) else ()
    if not rows or str(rows[0].sequence) != short:
        raise UnknownReset(
            f"region {region.name} has no reset {reset_id!r}; `kcr reset list {region.name}` shows those that there are"
        )
    attempts = _attempts(region, rows[0])
    request_id = attempts[0].person
    asked = None if request_id is None else region.person_reset_of(request_id)
    return _view(region, attempts, asked)


def region_of_id(reset_id: str) -> str:
    """Return the region that the id of a reset names.

    Raises:
        ConfigurationError: it names none.
    """
    region, slash, _ = reset_id.partition("/")
    if not slash:
        raise ConfigurationError(f"{reset_id!r} is not the id of a reset: write REGION/SEQUENCE, such as flights/12")
    return region


def _view(region: StoredRegion, attempts: tuple[ResetAttempt, ...], asked: PersonReset | None) -> ResetView:
    """Return one reset; what it took off the current timeline is looked up."""
    opened = {attempt.timeline for attempt in attempts if attempt.opens_timeline}
    return _shown(region.name, attempts, asked, region.archive.undone(opened) if opened else {})


def _shown(
    name: RegionName,
    attempts: tuple[ResetAttempt, ...],
    asked: PersonReset | None,
    undone: Mapping[Timeline, tuple[CheckpointNumber, ...]],
) -> ResetView:
    opened = [attempt.timeline for attempt in attempts if attempt.opens_timeline]
    return ResetView(
        region=name,
        attempts=attempts,
        asked=asked,
        undone=tuple(sequence for timeline in opened for sequence in undone.get(timeline, ())),
    )


def _chains(attempts: Iterable[ResetAttempt]) -> list[tuple[ResetAttempt, ...]]:
    """Return the attempts, those of one reset together."""
    chains: list[tuple[ResetAttempt, ...]] = []
    for attempt in attempts:
        if attempt.attempt > 1 and chains and chains[-1][-1].state is ResetState.SUPERSEDED:
            chains[-1] = (*chains[-1], attempt)
        else:
            chains.append((attempt,))
    return chains


def _attempts(region: StoredRegion, one: ResetAttempt) -> tuple[ResetAttempt, ...]:
    """Return all attempts of the reset that one belongs to."""
    known = [one]
    while known[0].attempt > 1:
        earlier = region.archive.resets(before=known[0].sequence, last=1)
        if not earlier or earlier[0].state is not ResetState.SUPERSEDED:
            break
        known.insert(0, earlier[0])
    while known[-1].state is ResetState.SUPERSEDED:
        later = region.archive.resets_from(CheckpointNumber(known[-1].sequence + 1), 1)
        if not later or later[0].attempt == 1:
            break
        known.append(later[0])
    return tuple(known)


def _asked(attempts: Sequence[ResetAttempt], asked: Mapping[RequestId, PersonReset]) -> PersonReset | None:
    request_id = attempts[0].person
    return None if request_id is None else asked.get(request_id)
