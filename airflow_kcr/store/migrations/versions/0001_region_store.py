"""The region store: regions, their members and claims, the ledger, checkpoints, resets and events.

Revision 0001, the first one; docs/reference/store.md says what each table is for.
"""

from __future__ import annotations

from typing import Final

from alembic import op

revision: Final = "0001"
down_revision: Final = None
branch_labels: Final = None
depends_on: Final = None

STATEMENTS: Final = (
    # The row that every transition locks (by an advisory lock) and that counts the events.
    """
    CREATE TABLE kcr.region (
        id bigint GENERATED ALWAYS AS IDENTITY,
        name text NOT NULL,
        spec text NOT NULL,
        spec_revision bigint NOT NULL,
        next_spec text,
        next_spec_revision bigint,
        state text NOT NULL,
        wanted text NOT NULL,
        epoch bigint NOT NULL,
        lineage bigint NOT NULL,
        next_sequence bigint NOT NULL,
        counter bigint NOT NULL,
        base bigint,
        base_epoch bigint,
        next_bound timestamptz,
        held_bound timestamptz,
        failures bigint NOT NULL,
        open_cut bigint,
        stopping bigint,
        halt jsonb,
        due_at timestamptz,
        initialised boolean NOT NULL,
        CONSTRAINT region_pkey PRIMARY KEY (id),
        CONSTRAINT region_name_key UNIQUE (name)
    )
    """,
    # One group is in one region. Which cluster it lives on is known once a broker was asked; until then it is empty.
    """
    CREATE TABLE kcr.consumer_group (
        region_id bigint NOT NULL,
        group_id text NOT NULL,
        cluster_id text DEFAULT '' NOT NULL,
        CONSTRAINT consumer_group_pkey PRIMARY KEY (region_id, group_id),
        CONSTRAINT consumer_group_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE,
        CONSTRAINT consumer_group_cluster_id_group_id_key UNIQUE (cluster_id, group_id)
    )
    """,
    # The newest incarnation of each member.
    """
    CREATE TABLE kcr.member (
        region_id bigint NOT NULL,
        group_id text NOT NULL,
        member_index bigint NOT NULL,
        incarnation bigint NOT NULL,
        token text NOT NULL,
        label text NOT NULL,
        acknowledged bigint,
        claimed bigint,
        assignment bigint,
        spec_revision bigint NOT NULL,
        sinks_fenced boolean NOT NULL,
        ends_within interval NOT NULL,
        has_left boolean NOT NULL,
        CONSTRAINT member_pkey PRIMARY KEY (region_id, group_id, member_index),
        CONSTRAINT member_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE
    )
    """,
    # Beside the member, because renewals write nothing else and need no region lock.
    """
    CREATE TABLE kcr.lease (
        region_id bigint NOT NULL,
        group_id text NOT NULL,
        member_index bigint NOT NULL,
        incarnation bigint NOT NULL,
        valid_until timestamptz NOT NULL,
        CONSTRAINT lease_pkey PRIMARY KEY (region_id, group_id, member_index),
        CONSTRAINT lease_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE
    )
    """,
    # Who may process a partition, from where. An owner is of the partition's own group, hence only its index.
    """
    CREATE TABLE kcr.claim (
        region_id bigint NOT NULL,
        group_id text NOT NULL,
        topic text NOT NULL,
        partition bigint NOT NULL,
        owner_index bigint,
        incarnation bigint NOT NULL,
        epoch bigint NOT NULL,
        last_owner_index bigint,
        topic_id text NOT NULL,
        leader_epoch bigint NOT NULL,
        resume_offset bigint,
        position bigint,
        begun_to bigint,
        CONSTRAINT claim_pkey PRIMARY KEY (region_id, group_id, topic, partition),
        CONSTRAINT claim_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE,
        CONSTRAINT claim_partition_not_negative CHECK (partition >= 0),
        CONSTRAINT claim_resume_offset_not_negative CHECK (resume_offset >= 0),
        CONSTRAINT claim_position_not_negative CHECK (position >= 0),
        CONSTRAINT claim_begun_to_not_negative CHECK (begun_to >= 0)
    )
    """,
    """
    CREATE INDEX claim_owner ON kcr.claim (owner_index, group_id, region_id)
    """,
    # The ledger. Its region is no foreign key: every start would lock the one region row.
    """
    CREATE TABLE kcr.batch (
        number bigint GENERATED ALWAYS AS IDENTITY,
        region_id bigint NOT NULL,
        batch_id text NOT NULL,
        group_id text NOT NULL,
        member_index bigint NOT NULL,
        incarnation bigint NOT NULL,
        epoch bigint NOT NULL,
        lineage bigint NOT NULL,
        sequence bigint NOT NULL,
        begun_at timestamptz NOT NULL,
        begun_after bigint NOT NULL,
        outcome text,
        ended_at timestamptz,
        ended_after bigint,
        quiet_after timestamptz,
        CONSTRAINT batch_pkey PRIMARY KEY (number),
        CONSTRAINT batch_region_id_batch_id_key UNIQUE (region_id, batch_id)
    )
    """,
    """
    CREATE INDEX batch_order ON kcr.batch (region_id, number)
    """,
    """
    CREATE INDEX batch_running ON kcr.batch (region_id, number)
        WHERE outcome IS NULL
    """,
    """
    CREATE INDEX batch_unaccepted ON kcr.batch (region_id, epoch)
        WHERE outcome IN ('unknown', 'discarded')
    """,
    """
    CREATE TABLE kcr.batch_range (
        batch_number bigint NOT NULL,
        region_id bigint NOT NULL,
        group_id text NOT NULL,
        topic text NOT NULL,
        partition bigint NOT NULL,
        from_offset bigint NOT NULL,
        to_offset bigint NOT NULL,
        undone_from bigint,
        CONSTRAINT batch_range_pkey PRIMARY KEY (batch_number, group_id, topic, partition),
        CONSTRAINT batch_range_batch_fkey FOREIGN KEY (batch_number)
            REFERENCES kcr.batch (number) ON DELETE CASCADE,
        CONSTRAINT batch_range_from_offset_not_negative CHECK (from_offset >= 0),
        CONSTRAINT batch_range_not_empty CHECK (from_offset < to_offset),
        CONSTRAINT batch_range_undone_inside CHECK (undone_from BETWEEN from_offset AND to_offset)
    )
    """,
    """
    CREATE INDEX batch_range_partition ON kcr.batch_range (region_id, group_id, topic, partition, to_offset)
    """,
    # First writer wins, for ever.
    """
    CREATE TABLE kcr.initial_offset (
        region_id bigint NOT NULL,
        group_id text NOT NULL,
        topic text NOT NULL,
        partition bigint NOT NULL,
        topic_id text NOT NULL,
        next_offset bigint NOT NULL,
        source text NOT NULL,
        log_start bigint NOT NULL,
        log_end bigint NOT NULL,
        log_topic_id text NOT NULL,
        log_leader_epoch bigint NOT NULL,
        CONSTRAINT initial_offset_pkey PRIMARY KEY (region_id, group_id, topic, partition, topic_id),
        CONSTRAINT initial_offset_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE,
        CONSTRAINT initial_offset_next_offset_not_negative CHECK (next_offset >= 0),
        CONSTRAINT initial_offset_log_start_not_negative CHECK (log_start >= 0),
        CONSTRAINT initial_offset_inside_log CHECK (next_offset BETWEEN log_start AND log_end)
    )
    """,
    # First writer wins, so that a re-cut of a bound is the same cut.
    """
    CREATE TABLE kcr.bound_offset (
        region_id bigint NOT NULL,
        bound timestamptz NOT NULL,
        group_id text NOT NULL,
        topic text NOT NULL,
        partition bigint NOT NULL,
        topic_id text NOT NULL,
        next_offset bigint NOT NULL,
        inexact text NOT NULL,
        leader_epoch bigint NOT NULL,
        CONSTRAINT bound_offset_pkey PRIMARY KEY (region_id, bound, group_id, topic, partition, topic_id),
        CONSTRAINT bound_offset_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE,
        CONSTRAINT bound_offset_next_offset_not_negative CHECK (next_offset >= 0)
    )
    """,
    # Outlives its checkpoint, so that an old run keeps its answer.
    """
    CREATE TABLE kcr.cut_request (
        region_id bigint NOT NULL,
        nonce text NOT NULL,
        purpose text NOT NULL,
        state text NOT NULL,
        requested_at timestamptz NOT NULL,
        asked_order bigint NOT NULL,
        bound timestamptz,
        allow_inexact boolean NOT NULL,
        then_wanted text,
        requester jsonb NOT NULL,
        sequence bigint,
        answered_at timestamptz,
        refusal text NOT NULL,
        CONSTRAINT cut_request_pkey PRIMARY KEY (region_id, nonce),
        CONSTRAINT cut_request_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE kcr.checkpoint (
        region_id bigint NOT NULL,
        sequence bigint NOT NULL,
        lineage bigint NOT NULL,
        epoch bigint NOT NULL,
        state text NOT NULL,
        purpose text NOT NULL,
        nonce text NOT NULL,
        roster jsonb NOT NULL,
        opened_at timestamptz NOT NULL,
        phase text,
        bound timestamptz,
        drain_deadline timestamptz,
        previous bigint,
        inexact jsonb NOT NULL,
        committed text NOT NULL,
        commit_deadline timestamptz,
        publish_deadline timestamptz,
        ended_at timestamptz,
        published_at timestamptz,
        abort_reason text NOT NULL,
        undone_by bigint,
        pinned_as text NOT NULL,
        pin_reason text NOT NULL,
        digest text NOT NULL,
        CONSTRAINT checkpoint_pkey PRIMARY KEY (region_id, sequence),
        CONSTRAINT checkpoint_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE
    )
    """,
    # The partitions that were frozen when the cut was opened.
    """
    CREATE TABLE kcr.checkpoint_partition (
        region_id bigint NOT NULL,
        sequence bigint NOT NULL,
        group_id text NOT NULL,
        topic text NOT NULL,
        partition bigint NOT NULL,
        CONSTRAINT checkpoint_partition_pkey PRIMARY KEY (region_id, sequence, group_id, topic, partition),
        CONSTRAINT checkpoint_partition_checkpoint_fkey FOREIGN KEY (region_id, sequence)
            REFERENCES kcr.checkpoint (region_id, sequence) ON DELETE CASCADE
    )
    """,
    # The merge.
    """
    CREATE TABLE kcr.checkpoint_offset (
        region_id bigint NOT NULL,
        sequence bigint NOT NULL,
        group_id text NOT NULL,
        topic text NOT NULL,
        partition bigint NOT NULL,
        next_offset bigint NOT NULL,
        CONSTRAINT checkpoint_offset_pkey PRIMARY KEY (region_id, sequence, group_id, topic, partition),
        CONSTRAINT checkpoint_offset_checkpoint_fkey FOREIGN KEY (region_id, sequence)
            REFERENCES kcr.checkpoint (region_id, sequence) ON DELETE CASCADE,
        CONSTRAINT checkpoint_offset_next_offset_not_negative CHECK (next_offset >= 0)
    )
    """,
    """
    CREATE TABLE kcr.contribution (
        region_id bigint NOT NULL,
        sequence bigint NOT NULL,
        group_id text NOT NULL,
        member_index bigint NOT NULL,
        incarnation bigint NOT NULL,
        contributed_at timestamptz NOT NULL,
        CONSTRAINT contribution_pkey PRIMARY KEY (region_id, sequence, group_id, member_index),
        CONSTRAINT contribution_checkpoint_fkey FOREIGN KEY (region_id, sequence)
            REFERENCES kcr.checkpoint (region_id, sequence) ON DELETE CASCADE
    )
    """,
    # The primary key is the rule: in one cut, one owner of a partition.
    """
    CREATE TABLE kcr.contribution_offset (
        region_id bigint NOT NULL,
        sequence bigint NOT NULL,
        group_id text NOT NULL,
        topic text NOT NULL,
        partition bigint NOT NULL,
        member_index bigint NOT NULL,
        next_offset bigint NOT NULL,
        committed_offset bigint,
        log_start bigint,
        log_end bigint,
        log_topic_id text,
        log_leader_epoch bigint,
        CONSTRAINT contribution_offset_pkey PRIMARY KEY (region_id, sequence, group_id, topic, partition),
        CONSTRAINT contribution_offset_contribution_fkey FOREIGN KEY (region_id, sequence, group_id, member_index)
            REFERENCES kcr.contribution (region_id, sequence, group_id, member_index) ON DELETE CASCADE,
        CONSTRAINT contribution_offset_next_offset_not_negative CHECK (next_offset >= 0),
        CONSTRAINT contribution_offset_committed_offset_not_negative CHECK (committed_offset >= 0),
        CONSTRAINT contribution_offset_log_start_not_negative CHECK (log_start >= 0)
    )
    """,
    # What Kafka answered, read back, to the commit of a checkpoint.
    """
    CREATE TABLE kcr.echo (
        region_id bigint NOT NULL,
        sequence bigint NOT NULL,
        group_id text NOT NULL,
        topic text NOT NULL,
        partition bigint NOT NULL,
        next_offset bigint NOT NULL,
        CONSTRAINT echo_pkey PRIMARY KEY (region_id, sequence, group_id, topic, partition),
        CONSTRAINT echo_checkpoint_fkey FOREIGN KEY (region_id, sequence)
            REFERENCES kcr.checkpoint (region_id, sequence) ON DELETE CASCADE,
        CONSTRAINT echo_next_offset_not_negative CHECK (next_offset >= 0)
    )
    """,
    """
    CREATE TABLE kcr.reset (
        region_id bigint NOT NULL,
        epoch bigint NOT NULL,
        sequence bigint NOT NULL,
        lineage bigint NOT NULL,
        cause text NOT NULL,
        state text NOT NULL,
        begun_at timestamptz NOT NULL,
        attempt bigint NOT NULL,
        base bigint,
        deadline timestamptz,
        must_publish jsonb NOT NULL,
        undoes jsonb NOT NULL,
        person text,
        detail text NOT NULL,
        done_at timestamptz,
        CONSTRAINT reset_pkey PRIMARY KEY (region_id, epoch),
        CONSTRAINT reset_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE
    )
    """,
    # The seek map of each epoch; an open entry has no offset yet.
    """
    CREATE TABLE kcr.seek_offset (
        region_id bigint NOT NULL,
        epoch bigint NOT NULL,
        group_id text NOT NULL,
        topic text NOT NULL,
        partition bigint NOT NULL,
        next_offset bigint,
        source text NOT NULL,
        current_offset bigint,
        clamped_from bigint,
        CONSTRAINT seek_offset_pkey PRIMARY KEY (region_id, epoch, group_id, topic, partition),
        CONSTRAINT seek_offset_reset_fkey FOREIGN KEY (region_id, epoch)
            REFERENCES kcr.reset (region_id, epoch) ON DELETE CASCADE,
        CONSTRAINT seek_offset_next_offset_not_negative CHECK (next_offset >= 0),
        CONSTRAINT seek_offset_current_offset_not_negative CHECK (current_offset >= 0)
    )
    """,
    """
    CREATE TABLE kcr.person_reset (
        region_id bigint NOT NULL,
        nonce text NOT NULL,
        target jsonb NOT NULL,
        scope jsonb NOT NULL,
        state text NOT NULL,
        requester jsonb NOT NULL,
        requested_at timestamptz NOT NULL,
        asked_order bigint NOT NULL,
        forced boolean NOT NULL,
        skip jsonb NOT NULL,
        forward boolean NOT NULL,
        allow_partial boolean NOT NULL,
        epoch bigint,
        failure text NOT NULL,
        ended_at timestamptz,
        CONSTRAINT person_reset_pkey PRIMARY KEY (region_id, nonce),
        CONSTRAINT person_reset_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE
    )
    """,
    # Single records to step over.
    """
    CREATE TABLE kcr.skip (
        region_id bigint NOT NULL,
        group_id text NOT NULL,
        topic text NOT NULL,
        partition bigint NOT NULL,
        skipped_offset bigint NOT NULL,
        CONSTRAINT skip_pkey PRIMARY KEY (region_id, group_id, topic, partition, skipped_offset),
        CONSTRAINT skip_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE,
        CONSTRAINT skip_skipped_offset_not_negative CHECK (skipped_offset >= 0)
    )
    """,
    # Append-only; numbered by the region's counter, so that the order is that of the commits.
    """
    CREATE TABLE kcr.event (
        region_id bigint NOT NULL,
        number bigint NOT NULL,
        at timestamptz NOT NULL,
        epoch bigint NOT NULL,
        lineage bigint NOT NULL,
        kind text NOT NULL,
        body jsonb NOT NULL,
        CONSTRAINT event_pkey PRIMARY KEY (region_id, number),
        CONSTRAINT event_region_fkey FOREIGN KEY (region_id)
            REFERENCES kcr.region (id) ON DELETE CASCADE
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("the store's migrations go forward only; go back by restoring a backup")
