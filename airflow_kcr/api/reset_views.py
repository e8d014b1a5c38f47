"""The resets of a region as people look at them: who asked, why, what became of each, what was processed again.

A reset is one or more attempts: each has an epoch and burns a sequence of its own, all have one target. Its id is the
region and the sequence of the first attempt; a person's is found by the name of its plan too, also before it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_kcr.api.views import instant
from airflow_kcr.errors import ConfigurationError, UnknownReset
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.invariants.replay import indexed
from airflow_kcr.protocol.invariants.replays import replayed
from airflow_kcr.protocol.region.rows import PersonReset, Requester, Reset, ResetState
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.region.state import person_reset_of
from airflow_kcr.protocol.targets import describe
from airflow_kcr.protocol.values import Epoch, Nonce

AUTOMATIC = Requester()

ATTEMPTS = 5
"""Attempts of one reset that a page of the newest ones reckons with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a reset made to be processed again, counted in offsets from the ledger."""

    rewound: int = 0
    """How many had been begun at or beyond where it went back to."""

    replayed: int = 0
    """How many of them have been begun again since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetView:
    """One reset: a person's, or an automatic one."""

    region: str
    attempts: tuple[Reset, ...]
    """Oldest first; none: it has not begun, or never will."""

    asked: PersonReset | None
    """What a person asked for; None: it was automatic."""

    counted: Replayed | None = None
    """None: nobody has counted."""

    @property
    def reset_id(self) -> str:
        """What `show` finds it by."""
        if self.attempts:
            return f"{self.region}/{self.attempts[0].sequence}"
        return self.plan if self.plan.startswith(f"{self.region}/") else f"{self.region}/{self.plan}"

    @property
    def plan(self) -> str:
        """The name of the plan; empty: it was automatic."""
        return "" if self.asked is None else self.asked.nonce

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
        return "automatic" if self.asked is None else describe(self.asked.target)

    @property
    def requester(self) -> Requester:
        """Who asked, and why."""
        return AUTOMATIC if self.asked is None else self.asked.requester

    @property
    def undone(self) -> tuple[int, ...]:
        """The checkpoints that it took off the path."""
        return tuple(sorted({sequence for attempt in self.attempts for sequence in attempt.undoes}))

    @property
    def asked_at(self) -> datetime:
        """When it was asked for, or began by itself."""
        return self.attempts[0].begun_at if self.asked is None else self.asked.requested_at

    @property
    def ended_at(self) -> datetime | None:
        """When it was done, failed or superseded."""
        return self.attempts[-1].done_at if self.asked is None else self.asked.ended_at

    def to_json(self) -> dict[str, object]:
        """Return the reset as in `reset show` and `reset list`."""
        asked, who = self.asked, self.requester
        return {
            "id": self.reset_id,
            "region": self.region,
            "plan": self.plan or None,
            "state": self.state,
            "cause": self.cause,
            "target": self.target,
            "scope": None if asked is None else str(asked.scope),
            "forced": asked is not None and asked.forced,
            "consent_upsert": asked is not None and asked.consent_upsert,
            "skip": [] if asked is None else [[p.group, p.topic, p.partition, int(o)] for p, o in asked.skip.items()],
            "who": who.who or None,
            "dag_id": who.dag_id or None,
            "run_id": who.run_id or None,
            "reason": who.reason or None,
            "asked_at": instant(self.asked_at),
            "begun_at": instant(self.attempts[0].begun_at) if self.attempts else None,
            "ended_at": instant(self.ended_at),
            "lineage": self.attempts[-1].lineage if self.attempts else None,
            "epoch": self.attempts[-1].epoch if self.attempts else None,
            "attempts": [_attempt(attempt) for attempt in self.attempts],
            "undone": list(self.undone),
            "rewound": None if self.counted is None else self.counted.rewound,
            "replayed": None if self.counted is None else self.counted.replayed,
            "failure": (asked.failure or None) if asked is not None else None,
        }


def _attempt(row: Reset) -> dict[str, object]:
    return {
        "attempt": row.attempt,
        "epoch": row.epoch,
        "sequence": row.sequence,
        "cause": str(row.cause),
        "state": str(row.state),
        "begun_at": instant(row.begun_at),
        "done_at": instant(row.done_at),
        "detail": row.detail,
    }


def of_plan(region: StoredRegion, nonce: Nonce) -> ResetView:
    """Return where the reset of a plan stands.

    Raises:
        ConfigurationError: no plan of that name was applied.
    """
    asked = person_reset_of(region, nonce)
    if asked is None:
        raise ConfigurationError(f"no plan {nonce!r} was applied to region {region.name}")
    if asked.epoch is None:
        return ResetView(region=region.name, attempts=(), asked=asked)
    attempts: list[Reset] = []
    row = region.archive.reset(asked.epoch)
    while row is not None and row.person == nonce:
        attempts.append(row)
        row = region.archive.reset(Epoch(row.epoch + 1))
    return ResetView(region=region.name, attempts=tuple(attempts), asked=asked)


def all_of(region: StoredRegion, history: History | None = None) -> tuple[ResetView, ...]:
    """Return every reset of a region, the oldest first.

    Args:
        region: as stored.
        history: what happened to it, to count what each made to be processed again; None: nobody counts.
    """
    counts = None if history is None else _counts(history)
    return _views(region, region.archive.resets(), region.archive.person_resets(), counts)


def newest_of(region: StoredRegion, *, last: int) -> tuple[ResetView, ...]:
    """Return the newest resets of a region, the oldest first; what it costs does not depend on how many there were."""
    # A reset is few attempts: of as many resets, the oldest may be told without its first ones, and is left out.
    attempts = region.archive.resets(last=last * ATTEMPTS + 1)
    return _views(region, attempts, region.archive.person_resets(last=last), None)[-last:]


def _views(
    region: StoredRegion,
    attempts: Iterable[Reset],
    persons: Iterable[PersonReset],
    counts: Mapping[Epoch, Replayed] | None,
) -> tuple[ResetView, ...]:
    asked = {row.nonce: row for row in persons}
    begun = [_begun(region, chain, asked, counts) for chain in _chains(attempts)]
    shown = {view.plan for view in begun}
    others = [
        ResetView(region=region.name, attempts=(), asked=row, counted=None if counts is None else Replayed())
        for row in asked.values()
        if row.nonce not in shown and row.epoch is None
    ]
    return tuple(sorted((*begun, *others), key=lambda view: view.asked_at))


def found(region: StoredRegion, reset_id: str, history: History) -> ResetView:
    """Return one reset, by its id with or without the region before it, or by the name of its plan.

    Raises:
        UnknownReset: there is none.
    """
    for view in all_of(region, history):
        own = {view.plan, view.reset_id.removeprefix(f"{region.name}/"), *(str(a.sequence) for a in view.attempts)}
        if {reset_id, reset_id.removeprefix(f"{region.name}/")} & (own - {""}):
            return view
    raise UnknownReset(
        f"region {region.name} has no reset {reset_id!r}; `kcr reset list {region.name}` shows those that there are"
    )


def region_of_id(reset_id: str) -> str:
    """Return the region that the id of a reset names.

    Raises:
        ConfigurationError: it names none.
    """
    region, slash, _ = reset_id.partition("/")
    if not slash:
        raise ConfigurationError(f"{reset_id!r} is not the id of a reset: write REGION/SEQUENCE, such as flights/12")
    return region


def _chains(attempts: Iterable[Reset]) -> list[list[Reset]]:
    """Return the attempts, those of one reset together."""
    chains: list[list[Reset]] = []
    for attempt in attempts:
        if attempt.attempt > 1 and chains and chains[-1][-1].state is ResetState.SUPERSEDED:
            chains[-1].append(attempt)
        else:
            chains.append([attempt])
    return chains


def _begun(
    region: StoredRegion,
    attempts: list[Reset],
    asked: Mapping[Nonce, PersonReset],
    counts: Mapping[Epoch, Replayed] | None,
) -> ResetView:
    nonce = attempts[0].person
    counted = None
    if counts is not None:
        own = [counts[a.epoch] for a in attempts if a.epoch in counts]
        counted = Replayed(rewound=sum(c.rewound for c in own), replayed=sum(c.replayed for c in own))
    return ResetView(
        region=region.name,
        attempts=tuple(attempts),
        asked=None if nonce is None else asked.get(nonce) or person_reset_of(region, nonce),
        counted=counted,
    )


def _counts(history: History) -> dict[Epoch, Replayed]:
    return {
        row.epoch: Replayed(rewound=sum(row.rewound.values()), replayed=sum(row.replayed.values()))
        for row in replayed(indexed(history))
    }
