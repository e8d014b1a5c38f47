"""Samples of lag in Postgres: a row for each group and moment, its partitions as compressed JSON."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from airflow_kcr.errors import StoreError
from airflow_kcr.protocol import documents
from airflow_kcr.protocol.region.lag import (
    RECENT,
    WINDOW,
    LagPoint,
    LagSample,
    SampleKey,
    stands_still,
    surplus,
)
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


def since(session: Session, instant: datetime) -> tuple[LagSample, ...]:
    """Return the samples after an instant, oldest first."""
    return tuple(_sample(*row) for row in session.rows(SQL["since"], since=instant))


def recent(session: Session, regions: Collection[int], now: datetime) -> dict[int, tuple[LagSample, ...]]:
    """Return what `RegionStore.recent_lag` does, of several regions; two statements for all."""
    found = since_of(session, regions, now - WINDOW)
    return found | since_of(session, [region for region in regions if stands_still(found[region])], now - RECENT)


def since_of(session: Session, regions: Collection[int], instant: datetime) -> dict[int, tuple[LagSample, ...]]:
    """Return the samples of several regions after an instant, by their ids, oldest first; one statement for all."""
    found: dict[int, list[LagSample]] = {region: [] for region in regions}
    for region, *row in session.rows(SQL["since_of"], regions=list(regions), since=instant) if regions else ():
        found[region].append(_sample(*row))
    return {region: tuple(samples) for region, samples in found.items()}


def _sample(group: GroupId, at: datetime, epoch: Epoch, body: bytes) -> LagSample:
    return LagSample(group=group, at=at, epoch=epoch, points=_points(json.loads(zlib.decompress(body))))


def _points(document: Mapping[str, Mapping[str, Mapping[str, list[Offset | None]]]]) -> dict[GroupPartition, LagPoint]:
    """Return the points of a body, as `_POINTS` is written: verdicts read half a million of them, so not by its codec.

    Raises:
        StoreError: it is not of that form; the row was written by something else.
    """
    try:
        return {
            GroupPartition(GroupId(group), TopicName(topic), int(partition)): LagPoint(*point)
            for group, topics in document.items()
            for topic, partitions in topics.items()
            for partition, point in partitions.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(f"the store holds a sample of lag that can't be read: {error}") from error
