"""Checks and lag of a region that reads on meanwhile: nothing that moves between two reads is held against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from airflow_kcr.api import partitions
from airflow_kcr.api.clusters import Cluster, real_reader
from airflow_kcr.api.validation import validate
from airflow_kcr.protocol.evidence import CheckVerdict
from airflow_kcr.protocol.region.state import Region as StoredRegion
from airflow_kcr.protocol.validation import Question
from airflow_kcr.protocol.values import GroupId
from airflow_kcr.spec import RegionSpec
from tests.support.load import steadily
from tests.support.members import QUICK, Lend, Live

PARTITIONS = 4
ROUNDS = 4

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def streaming(lend: Lend) -> Iterator[Live]:
    """A region that reads a stream, and checkpoints all the time."""
    spec = f"{QUICK}checkpoint: {{records: 200}}\n"
    with lend(members=2, partitions=PARTITIONS, spec=spec) as one:
        one.start(0, 1)
        one.shared(0, 1)
        with steadily(one.kafka, one.topic, PARTITIONS, every=0.01):
            one.until(lambda: _committed(one.region()) > 0, "a checkpoint")
            yield one


@contextmanager
def overtaken(one: Live, spec: RegionSpec, group: GroupId) -> Iterator[Cluster]:
    """Open the cluster; whatever was read of it, the members are beyond that at the end, and so is what they commit."""
    with real_reader(spec, group) as cluster:
        yield cluster
    ends = one.kafka.ends(one.topic)

    def is_beyond(region: StoredRegion) -> bool:
        claims = {p.partition: claim.position for p, claim in region.claims.items()}
        return all((claims[n] or 0) > end for n, end in ends.items()) and _committed(region) > sum(ends.values())

    one.until(lambda: is_beyond(one.region()), "read on")


def _committed(region: StoredRegion) -> int:
    return sum(region.restore_point_offsets().values())


def test_a_log_that_members_read_on_in_has_not_moved_back(streaming: Live) -> None:
    for _ in range(ROUNDS):
        found = validate(streaming.store, streaming.name, lambda *of: overtaken(streaming, *of))
        offsets = [check for check in found.checks if check.question is Question.OFFSETS]
        assert [check.verdict for check in offsets] == [CheckVerdict.OK], offsets


def test_no_partition_that_is_read_on_has_trouble_in_its_lag(streaming: Live) -> None:
    read: Callable[[], StoredRegion] = lambda: streaming.store.read(streaming.name)[0]  # noqa: E731
    for _ in range(ROUNDS):
        found = partitions.lag(read(), lambda *of: overtaken(streaming, *of), read)
        assert [(row.partition.partition, row.trouble) for row in found] == [(n, "") for n in range(PARTITIONS)]
        assert all(row.lag is not None for row in found)
