"""What became of a record in closed history is found by an index, whatever else there was.

Certificate by certificate, each a transaction, of which any may be the last for now: whoever upgrades again goes on.
"""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import Connection, text

revision: Final = "0020"
down_revision: Final = "0019"
branch_labels: Final = None
depends_on: Final = None

_TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS kcr.archived_range (
        region_id bigint NOT NULL,
        certificate bigint NOT NULL,
        group_id text NOT NULL,
        topic text NOT NULL,
        partition bigint NOT NULL,
        from_offset bigint NOT NULL,
        to_offset bigint NOT NULL,
        CONSTRAINT archived_range_pkey PRIMARY KEY (region_id, certificate, group_id, topic, partition),
        CONSTRAINT archived_range_region_fkey FOREIGN KEY (region_id) REFERENCES kcr.region (id)
            ON DELETE CASCADE,
        CONSTRAINT archived_range_from_offset_not_negative CHECK (from_offset >= 0),
        CONSTRAINT archived_range_not_empty CHECK (from_offset < to_offset)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS kcr.archived_process (
        region_id bigint NOT NULL,
        group_id text NOT NULL,
        member_index bigint NOT NULL,
        incarnation bigint NOT NULL,
        label text NOT NULL,
        CONSTRAINT archived_process_pkey PRIMARY KEY (region_id, group_id, member_index, incarnation),
        CONSTRAINT archived_process_region_fkey FOREIGN KEY (region_id) REFERENCES kcr.region (id)
            ON DELETE CASCADE
    )
    """,
    """
    CREATE INDEX IF NOT EXISTS archived_range_record ON kcr.archived_range (region_id, group_id, topic, partition,
        (POSITION('1'::bit(1) IN (to_offset - from_offset)::bit(64))), to_offset)
    """,
)

_LEFT: Final = text("""
    SELECT c.region_id, c.number FROM kcr.certificate c
    WHERE c.archive IS NOT NULL AND NOT EXISTS (
        SELECT FROM kcr.archived_range r WHERE r.region_id = c.region_id AND r.certificate = c.number)
    ORDER BY c.region_id, c.number
""")

# name: look_up — what the row of an archived certificate says of its file. Of one that says nothing (an earlier program
# has written it) every partition that was known is taken to be in it with every offset: it is read then, as before. A
# member is written as its group and, in brackets, its index there.
_LOOK_UP: Final = text(r"""
    WITH c AS (
        SELECT region_id, number, archive, body FROM kcr.certificate WHERE region_id = :region AND number = :number
    ), ranges AS (
        INSERT INTO kcr.archived_range
        SELECT c.region_id, c.number, g.key, t.key, CAST(p.key AS bigint),
               CASE WHEN c.archive ? 'offsets' THEN CAST(p.value ->> 0 AS bigint) ELSE 0 END,
               CASE WHEN c.archive ? 'offsets' THEN CAST(p.value ->> 1 AS bigint) ELSE 9223372036854775807 END
        FROM c, jsonb_each(coalesce(c.archive -> 'offsets', c.body -> 'partitions')) g,
             jsonb_each(g.value) t, jsonb_each(t.value) p
        ON CONFLICT DO NOTHING
    )
    INSERT INTO kcr.archived_process
    SELECT c.region_id, regexp_replace(m.key, '\[[0-9]+\]$', ''),
           CAST(substring(m.key FROM '\[([0-9]+)\]$') AS bigint), CAST(i.key AS bigint), i.value
    FROM c, jsonb_each(c.archive -> 'processes') m, jsonb_each_text(m.value) i
    WHERE c.archive ? 'processes' ON CONFLICT DO NOTHING
""")


def upgrade() -> None:
    with op.get_context().autocommit_block():
        # Each by itself: a table that refers to regions keeps them from changing until it is committed.
        for table in _TABLES:
            op.execute(table)
        _look_up(op.get_bind())
    op.execute("LOCK TABLE kcr.certificate IN SHARE ROW EXCLUSIVE MODE")
    _look_up(op.get_bind())  # what an earlier program has archived meanwhile
    op.execute("UPDATE kcr.certificate SET archive = archive - 'offsets' - 'processes' WHERE archive IS NOT NULL")
    for table in ("archived_process", "archived_range"):
        op.execute(f"ALTER TABLE kcr.{table} ALTER COLUMN region_id SET (n_distinct = 1)")


def _look_up(connection: Connection) -> None:
    for region, number in connection.execute(_LEFT).all():
        connection.execute(_LOOK_UP, {"region": region, "number": number})


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
