"""Samples of lag in Postgres: a row for each group and moment, its partitions as compressed JSON."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import lru_cache, partial
from typing import Final

from airflow_kcr.errors import StoreError
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.region.lag import RECENT, WINDOW, LagPoint, LagSample, SampleKey, stands_still, surplus
from airflow_kcr.protocol.values import Epoch, GroupId, GroupPartition, Offset, TopicName
from airflow_kcr.store.postgres.session import Session
from airflow_kcr.store.postgres.statements import load

SQL: Final = load("lag")

_POINTS: Final = dict[GroupPartition, LagPoint]


def add(session: Session, samples: Collection[LagSample], now: datetime) -> None:
    """Keep samples, and drop those that need not be kept any more."""
    for sample in samples:
        text = json.dumps(documents.write(sample.points, _POINTS), separators=(",", ":"), ensure_ascii=False)
        session.run(
            SQL["add"],
            group=sample.group,
            at=sample.at,
            epoch=sample.epoch,
            points=len(sample.points),
            body=zlib.compress(text.encode()),
        )
    for key in surplus((SampleKey(*row) for row in session.rows(SQL["kept"])), now):
        session.run(SQL["drop"], group=key.group, at=key.at)


def since(session: Session, instant: datetime, upto: datetime | None) -> tuple[LagSample, ...]:
    """Return what `RegionStore.lag_since` does."""
    return since_of(session, [session.region_id], instant, upto=upto)[session.region_id]


def recent(session: Session, regions: Collection[int], now: datetime) -> dict[int, tuple[LagSample, ...]]:
    """Return what `RegionStore.recent_lag` does, of several regions; two statements for all."""
    found = since_of(session, regions, now - WINDOW)
    standing = [region for region in regions if stands_still(found[region])]
    earlier = since_of(session, standing, now - RECENT, upto=now - WINDOW)
    return found | {region: (*samples, *found[region]) for region, samples in earlier.items()}


def since_of(
    session: Session, regions: Collection[int], instant: datetime, *, upto: datetime | None = None
) -> dict[int, tuple[LagSample, ...]]:
    """Return the samples of several regions after an instant, by their ids, oldest first; one statement for all.

    Args:
        session: the transaction.
        regions: their ids.
        instant: later ones are wanted.
        upto: the last moment that is wanted; None: there is none.
    """
    found: dict[int, list[LagSample]] = {region: [] for region in regions}
    given = {"regions": list(regions), "since": instant, "upto": upto}
    for region, *row in session.rows(SQL["since_of"], **given) if regions else ():
        found[region].append(_sample(*row))
    return {region: tuple(samples) for region, samples in found.items()}


def _sample(group: GroupId, at: datetime, epoch: Epoch, body: bytes) -> LagSample:
    return LagSample(group=group, at=at, epoch=epoch, points=_points(json.loads(zlib.decompress(body))))


def _points(document: Mapping[str, Mapping[str, Mapping[str, list[Offset | None]]]]) -> dict[GroupPartition, LagPoint]:
    """Return the points of a body, as `_POINTS` is written: verdicts read half a million of them, so not by its codec.

    Raises:
        StoreError: it is not of that form; the row was written by something else.
    """
    found: dict[GroupPartition, LagPoint] = {}
    try:
        for group, topics in document.items():
            for topic, partitions in topics.items():
                if not set(map(len, partitions.values())) <= {len(LagPoint._fields)}:
                    raise ValueError(f"{group} {topic} has points of another length")
                points = map(partial(tuple.__new__, LagPoint), partitions.values())
                found.update(zip(_partitions(group, topic, tuple(partitions)), points, strict=True))
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(f"the store holds a sample of lag that can't be read: {error}") from error
    return found


@lru_cache(maxsize=16)
def _partitions(group: str, topic: str, numbers: tuple[str, ...]) -> tuple[GroupPartition, ...]:
    """Return the partitions of a topic, which are the same in each sample of a group."""
    return tuple(GroupPartition(GroupId(group), TopicName(topic), int(number)) for number in numbers)
