"""What resets have undone of batches, for those that were read: see `protocol.region.rewinds`, which says why.

Of all resets after a batch two kinds can hold the lowest place of a partition: the next one, and any that sent it
further back than the reset just before it had. All others went to where it was before or beyond, and are passed over.
So resets that a region does by itself, whose places only move on, cost a reader nothing, however many there were;
`seek_offset.rewinds` says which kind an entry is of. It is true as long as that is not known.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

from airflow_kcr.protocol.region import rewinds
from airflow_kcr.protocol.region.rows import Batch, Outcome
from airflow_kcr.protocol.values import Epoch, GroupPartition, Offset
from airflow_kcr.store.postgres.row_layout import partition_columns
from airflow_kcr.store.postgres.session import Session
from airflow_kcr.store.postgres.tables import TURN

# name: rewinds — of an entry `n` that is written: whether it is, or may be, before the one of the reset just before.
REWINDS: Final = """
    coalesce(n.next_offset < (
        SELECT s.next_offset FROM kcr.seek_offset s
        WHERE s.region_id = :region AND s.group_id = n.group_id AND s.topic = n.topic AND s.partition = n.partition
          AND s.epoch = (SELECT max(r.epoch) FROM kcr.reset r WHERE r.region_id = :region AND r.epoch < n.epoch)
    ), true)
"""

# name: lowest_after — of each partition and epoch the lowest place that a later reset sent it to; only if there is one.
LOWEST: Final = text(f"""
    SELECT q.number, q.lowest FROM (
        SELECT n.number, least(
            (SELECT s.next_offset FROM kcr.seek_offset s
             WHERE s.region_id = :region AND s.group_id = n.group_id AND s.topic = n.topic
               AND s.partition = n.partition AND s.next_offset IS NOT NULL AND {TURN} > n.epoch
             ORDER BY {TURN} LIMIT 1),
            (SELECT min(s.next_offset) FROM kcr.seek_offset s
             WHERE s.region_id = :region AND s.group_id = n.group_id AND s.topic = n.topic
               AND s.partition = n.partition AND s.next_offset IS NOT NULL AND {TURN} < -n.epoch)
        ) AS lowest
        FROM unnest(CAST(:numbers AS bigint[]), CAST(:groups AS text[]), CAST(:topics AS text[]),
                    CAST(:partitions AS bigint[]), CAST(:epochs AS bigint[]))
            AS n (number, group_id, topic, partition, epoch)
    ) q
    WHERE q.lowest IS NOT NULL
""")  # noqa: S608 (a constant of this package)


def seen(session: Session, batches: list[Batch]) -> list[Batch]:
    """Return batches as the ledger shows them: with what resets have undone of them.

    Args:
        session: the transaction that has read them.
        batches: as they are stored.
    """
    done = {b.batch: b.accepted_in for b in batches if b.outcome is Outcome.DONE}
    asked: list[tuple[GroupPartition, Epoch]] = list(
        dict.fromkeys((p, done[b.batch]) for b in batches if b.batch in done for p in b.ranges)
    )
    if not asked:
        return batches
    rows = session.rows(
        LOWEST,
        numbers=list(range(len(asked))),
        **partition_columns([partition for partition, _ in asked]),
        epochs=[epoch for _, epoch in asked],
    )
    lowest: dict[Epoch, dict[GroupPartition, Offset]] = {}
    for number, offset in rows:
        partition, epoch = asked[number]
        lowest.setdefault(epoch, {})[partition] = offset
    return [rewinds.undone(b, lowest.get(b.accepted_in, {})) for b in batches]
