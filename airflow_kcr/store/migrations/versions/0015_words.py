"""The store's tables, columns, events and specs say what the documentation says: checkpoint, timeline, request id, ...

Events and answered requests are renamed in pieces, each a transaction, any of which may be the last for now: another
upgrade continues.
Certificates are digests of events under their old names, so they go; the next `kcr verify` proves from the beginning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from alembic import op
from sqlalchemy import Connection, text

from airflow_kcr.errors import StoreError

revision: Final = "0015"
down_revision: Final = "0014"
branch_labels: Final = None
depends_on: Final = None

PIECE: Final = 5_000
"""Events that a statement looks at."""

TABLES: Final = (
    ("cut_request", "checkpoint_request"),
    ("bound_offset", "boundary_offset"),
    ("echo", "read_back"),
)

COLUMNS: Final = (
    ("region", "open_cut", "open_checkpoint"),
    ("region", "lineage", "timeline"),
    ("region", "outsiders", "foreign_consumers"),
    ("batch", "lineage", "timeline"),
    ("cut_request", "nonce", "request_id"),
    ("checkpoint", "lineage", "timeline"),
    ("checkpoint", "nonce", "request_id"),
    ("checkpoint", "roster", "participants"),
    ("reset", "lineage", "timeline"),
    ("person_reset", "nonce", "request_id"),
    ("event", "lineage", "timeline"),
    ("region", "wanted", "desired_state"),
    ("region", "base", "restore_point"),
    ("region", "base_epoch", "restore_point_epoch"),
    ("region", "next_bound", "next_boundary"),
    ("region", "held_bound", "held_boundary"),
    ("region", "bounded", "aligned"),
    ("bound_offset", "bound", "boundary"),
    ("cut_request", "bound", "boundary"),
    ("cut_request", "then_wanted", "then_desired_state"),
    ("checkpoint", "bound", "boundary"),
    ("reset", "base", "restore_point"),
    ("region", "due_at", "reconcile_at"),
    ("batch", "quiet_after", "quiesced_after"),
)
"""By the tables' old names."""

_CONSTRAINTS: Final = (
    ("cut_request", "cut_request_pkey", "checkpoint_request_pkey"),
    ("cut_request", "cut_request_region_fkey", "checkpoint_request_region_fkey"),
    ("bound_offset", "bound_offset_pkey", "boundary_offset_pkey"),
    ("bound_offset", "bound_offset_region_fkey", "boundary_offset_region_fkey"),
    ("bound_offset", "bound_offset_next_offset_not_negative", "boundary_offset_next_offset_not_negative"),
    ("echo", "echo_pkey", "read_back_pkey"),
    ("echo", "echo_checkpoint_fkey", "read_back_checkpoint_fkey"),
    ("echo", "echo_next_offset_not_negative", "read_back_next_offset_not_negative"),
)

_INDEXES: Final = (
    ("cut_request_waiting", "checkpoint_request_waiting"),
    ("cut_request_sequence", "checkpoint_request_sequence"),
    ("cut_request_run", "checkpoint_request_run"),
    ("checkpoint_bounded", "checkpoint_aligned"),
)

KINDS: Final = {
    "CutRequested": "CheckpointRequested",
    "CutAnswered": "CheckpointRequestAnswered",
    "CutRequestEnded": "CheckpointRequestEnded",
    "CutOpened": "CheckpointOpened",
    "CutCompleted": "CheckpointCompleted",
    "CutAborted": "CheckpointAborted",
    "CutPublished": "CheckpointPublished",
    "OutsidersSeen": "ForeignConsumersSeen",
    "OutsidersGone": "ForeignConsumersGone",
    "WantedChanged": "DesiredStateChanged",
    "Echoed": "CommitReadBack",
    "BoundStored": "BoundaryStored",
    "NextBoundChanged": "NextBoundaryChanged",
    "BoundHeld": "BoundaryHeld",
}
"""Kinds of events."""

FIELDS: Final = {
    "lineage": "timeline",
    "nonce": "request_id",
    "roster": "participants",
    "outsiders": "foreign_consumers",
    "wanted": "desired_state",
    "bound": "boundary",
    "base": "restore_point",
}
"""Fields of events."""

SPEC_FIELDS: Final = {
    "cut": "checkpoint",
    "outsiders": "foreign_consumers",
}
"""Top-level fields of a spec."""

_REGIONS: Final = text("SELECT id, counter FROM kcr.region ORDER BY id")

# name: rename_events — what is renamed already has none of the old names.
RENAME_EVENTS: Final = text("""
    UPDATE kcr.event e SET kind = coalesce(CAST(:kinds AS jsonb) ->> e.kind, e.kind), body = (
        SELECT coalesce(jsonb_object_agg(coalesce(CAST(:fields AS jsonb) ->> b.key, b.key), b.value), '{}')
        FROM jsonb_each(e.body) b
    )
    WHERE e.region_id = :region AND e.number > :after AND e.number <= :upto
      AND (jsonb_exists(CAST(:kinds AS jsonb), e.kind)
           OR jsonb_exists_any(e.body, ARRAY(SELECT jsonb_object_keys(CAST(:fields AS jsonb)))))
""")

_SPECS: Final = text("SELECT id, spec, next_spec FROM kcr.region")
_STORE_SPECS: Final = text("UPDATE kcr.region SET spec = :spec, next_spec = :next_spec WHERE id = :region")

# name: rename_values — of renamed events: why a region was halted, and its own requests, which their boundary names.
_EVENT_VALUES: Final = (
    text("""
    UPDATE kcr.event SET body = jsonb_set(body, '{reason}', '"foreign_consumer"')
    WHERE region_id = :region AND number > :after AND number <= :upto
      AND kind = 'Halted' AND body ->> 'reason' = 'outsider'
"""),
    text("""
    UPDATE kcr.event
    SET body = jsonb_set(body, '{request_id}', to_jsonb('boundary:' || substr(body ->> 'request_id', 7)))
    WHERE region_id = :region AND number > :after AND number <= :upto AND body ->> 'request_id' LIKE 'bound:%'
"""),
)

_NEWEST: Final = text("SELECT id, next_sequence FROM kcr.region ORDER BY id")

# name: rename_answered — a region's own requests, and their checkpoints, which no program asks for by these names now.
_ANSWERED: Final = (
    text("""
    UPDATE kcr.cut_request SET nonce = 'boundary:' || substr(nonce, 7)
    WHERE region_id = :region AND sequence > :after AND sequence <= :upto AND state = 'answered'
      AND nonce LIKE 'bound:%'
"""),
    text("""
    UPDATE kcr.checkpoint SET nonce = 'boundary:' || substr(nonce, 7)
    WHERE region_id = :region AND sequence > :after AND sequence <= :upto AND state <> 'open'
      AND nonce LIKE 'bound:%'
"""),
)

# name: rename_own — why a region is halted, and its own requests, as far as they are not renamed yet.
_OWN: Final = (
    """
    UPDATE kcr.region SET halt = jsonb_set(halt, '{reason}', '"foreign_consumer"') WHERE halt ->> 'reason' = 'outsider'
    """,
    # One that was asked for again meanwhile, by a program that was not stopped, is there under both names.
    """
    UPDATE kcr.cut_request c SET nonce = 'boundary:' || substr(c.nonce, 7)
    WHERE c.nonce LIKE 'bound:%' AND NOT EXISTS (
        SELECT FROM kcr.cut_request n WHERE n.region_id = c.region_id AND n.nonce = 'boundary:' || substr(c.nonce, 7))
    """,
    "UPDATE kcr.checkpoint SET nonce = 'boundary:' || substr(nonce, 7) WHERE nonce LIKE 'bound:%'",
)

_CLOSED: Final = text("""
    SELECT DISTINCT r.name FROM kcr.certificate c JOIN kcr.region r ON r.id = c.region_id
    WHERE c.archive IS NOT NULL ORDER BY r.name
""")


def upgrade() -> None:
    _refuse_closed_history(op.get_bind())
    with op.get_context().autocommit_block():
        renamed = _rename_events(op.get_bind(), {})
        _rename_answered(op.get_bind())
    # From here on no earlier program writes; what one that was not stopped has written meanwhile is renamed as well.
    op.execute("LOCK TABLE kcr.region, kcr.event IN ACCESS EXCLUSIVE MODE")
    _rename_events(op.get_bind(), renamed)
    for statement in (*_OWN, "DELETE FROM kcr.certificate"):
        op.execute(statement)
    _rename_specs(op.get_bind())
    for table, old, new in COLUMNS:
        op.execute(f"ALTER TABLE kcr.{table} RENAME COLUMN {old} TO {new}")
    for table, old, new in _CONSTRAINTS:
        op.execute(f"ALTER TABLE kcr.{table} RENAME CONSTRAINT {old} TO {new}")
    for old, new in _INDEXES:
        op.execute(f"ALTER INDEX kcr.{old} RENAME TO {new}")
    for old, new in TABLES:
        op.execute(f"ALTER TABLE kcr.{old} RENAME TO {new}")


def _refuse_closed_history(connection: Connection) -> None:
    """Refuse a store of which history was dropped: its archives can't be told in other words, nor be proved without."""
    names = list(connection.execute(_CLOSED).scalars())
    if names:
        raise StoreError(
            f"the history of {', '.join(names)} was closed by an earlier program, whose archives have other words; "
            "delete these regions with that program first (`kcr region delete`), and declare them again afterwards"
        )


def _rename_events(connection: Connection, renamed: Mapping[int, int]) -> Mapping[int, int]:
    """Rename each region's events beyond those that are, and return up to which number they are now."""
    names = {"kinds": json.dumps(KINDS), "fields": json.dumps(FIELDS)}
    counters: dict[int, int] = {row.id: row.counter for row in connection.execute(_REGIONS)}
    for region, counter in counters.items():
        for after in range(renamed.get(region, 0), counter, PIECE):
            piece = {"region": region, "after": after, "upto": min(after + PIECE, counter)}
            connection.execute(RENAME_EVENTS, {**piece, **names})
            for statement in _EVENT_VALUES:
                connection.execute(statement, piece)
    return counters


def _rename_answered(connection: Connection) -> None:
    """Rename the answered requests that regions made by themselves, and their checkpoints; the others are few."""
    for region, newest in connection.execute(_NEWEST).all():
        for after in range(0, newest, PIECE):
            for statement in _ANSWERED:
                connection.execute(statement, {"region": region, "after": after, "upto": after + PIECE})


def _rename_specs(connection: Connection) -> None:
    for region, spec, next_spec in connection.execute(_SPECS).all():
        renamed = {"spec": _renamed(spec), "next_spec": None if next_spec is None else _renamed(next_spec)}
        connection.execute(_STORE_SPECS, {"region": region, **renamed})


def _renamed(spec: str) -> str:
    """Return a stored spec under its fields' new names; what is no JSON object is none of this program's, and stays."""
    try:
        plain = json.loads(spec)
    except ValueError:
        return spec
    if not isinstance(plain, dict):
        return spec
    renamed = {SPEC_FIELDS.get(name, name): value for name, value in plain.items()}
    return json.dumps(renamed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
