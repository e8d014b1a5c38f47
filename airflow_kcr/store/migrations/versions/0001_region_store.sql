-- The region store, revision 0001; docs/reference/store.md says what each table is for. A partition is always the three
-- columns group_id, topic and partition; an offset is the next one to read.

CREATE TABLE kcr.batch (
    number bigint GENERATED ALWAYS AS IDENTITY,
    region_id bigint NOT NULL,
    batch_id text NOT NULL,
    group_id text NOT NULL,
    member_index bigint NOT NULL,
    incarnation bigint NOT NULL,
    epoch bigint NOT NULL,
    timeline bigint NOT NULL,
    sequence bigint NOT NULL,
    started_at timestamptz NOT NULL,
    started_after bigint NOT NULL,
    outcome text,
    finished_at timestamptz,
    finished_after bigint,
    quiesced_after timestamptz,
    proven_in bigint,
    CONSTRAINT batch_pkey PRIMARY KEY (number),
    CONSTRAINT batch_region_id_batch_id_key UNIQUE (region_id, batch_id)
);

CREATE INDEX batch_order ON kcr.batch (region_id, number);

CREATE INDEX batch_running ON kcr.batch (region_id, number) WHERE outcome IS NULL;

CREATE INDEX batch_unaccepted ON kcr.batch (region_id, epoch) WHERE outcome IN ('unknown', 'discarded');

CREATE TABLE kcr.batch_range (
    batch_number bigint NOT NULL,
    region_id bigint NOT NULL,
    group_id text NOT NULL,
    topic text NOT NULL,
    partition bigint NOT NULL,
    from_offset bigint NOT NULL,
    to_offset bigint NOT NULL,
    CONSTRAINT batch_range_pkey PRIMARY KEY (batch_number, group_id, topic, partition),
    CONSTRAINT batch_range_from_offset_not_negative CHECK (from_offset >= 0),
    CONSTRAINT batch_range_not_empty CHECK (from_offset < to_offset)
);

CREATE INDEX batch_range_record ON kcr.batch_range (
    region_id, group_id, topic, partition, (POSITION('1'::bit(1) IN (to_offset - from_offset)::bit(64))), to_offset
);

CREATE TABLE kcr.checkpoint_offset (
    region_id bigint NOT NULL,
    sequence bigint NOT NULL,
    group_id text NOT NULL,
    topic text NOT NULL,
    partition bigint NOT NULL,
    next_offset bigint NOT NULL,
    CONSTRAINT checkpoint_offset_pkey PRIMARY KEY (region_id, sequence, group_id, topic, partition),
    CONSTRAINT checkpoint_offset_next_offset_not_negative CHECK (next_offset >= 0)
);

CREATE TABLE kcr.checkpoint_partition (
    region_id bigint NOT NULL,
    sequence bigint NOT NULL,
    group_id text NOT NULL,
    topic text NOT NULL,
    partition bigint NOT NULL,
    CONSTRAINT checkpoint_partition_pkey PRIMARY KEY (region_id, sequence, group_id, topic, partition)
);

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
    CONSTRAINT contribution_offset_next_offset_not_negative CHECK (next_offset >= 0),
    CONSTRAINT contribution_offset_committed_offset_not_negative CHECK (committed_offset >= 0),
    CONSTRAINT contribution_offset_log_start_not_negative CHECK (log_start >= 0)
);

CREATE TABLE kcr.read_back (
    region_id bigint NOT NULL,
    sequence bigint NOT NULL,
    group_id text NOT NULL,
    topic text NOT NULL,
    partition bigint NOT NULL,
    next_offset bigint NOT NULL,
    CONSTRAINT read_back_pkey PRIMARY KEY (region_id, sequence, group_id, topic, partition),
    CONSTRAINT read_back_next_offset_not_negative CHECK (next_offset >= 0)
);

CREATE TABLE kcr.region (
    id bigint GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    uid text NOT NULL,
    spec text NOT NULL,
    spec_revision bigint NOT NULL,
    next_spec text,
    next_spec_revision bigint,
    state text NOT NULL,
    desired_state text NOT NULL,
    epoch bigint NOT NULL,
    timeline bigint NOT NULL,
    next_sequence bigint NOT NULL,
    counter bigint NOT NULL,
    restore_point bigint,
    restore_point_epoch bigint,
    next_boundary timestamptz,
    held_boundary timestamptz,
    failures bigint NOT NULL,
    open_checkpoint bigint,
    stopping bigint,
    halt jsonb,
    reconcile_at timestamptz,
    initialised boolean NOT NULL,
    foreign_consumers jsonb,
    start_failures jsonb,
    unserved jsonb,
    reset_answers jsonb,
    retire_at timestamptz,
    aligned bigint,
    recorded_at timestamptz,
    CONSTRAINT region_pkey PRIMARY KEY (id),
    CONSTRAINT region_name_key UNIQUE (name),
    CONSTRAINT region_uid_key UNIQUE (uid)
);

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
    rewinds boolean NOT NULL,
    recreated text NOT NULL,
    CONSTRAINT seek_offset_pkey PRIMARY KEY (region_id, epoch, group_id, topic, partition),
    CONSTRAINT seek_offset_next_offset_not_negative CHECK (next_offset >= 0),
    CONSTRAINT seek_offset_current_offset_not_negative CHECK (current_offset >= 0)
);

CREATE INDEX seek_offset_recreated ON kcr.seek_offset (region_id, group_id, topic, partition, epoch)
    WHERE recreated <> '';

CREATE INDEX seek_offset_rewinds ON kcr.seek_offset (
    region_id, group_id, topic, partition, (CASE WHEN rewinds THEN -epoch ELSE epoch END)
) INCLUDE (next_offset) WHERE next_offset IS NOT NULL;

CREATE TABLE kcr.boundary_offset (
    region_id bigint NOT NULL,
    boundary timestamptz NOT NULL,
    group_id text NOT NULL,
    topic text NOT NULL,
    partition bigint NOT NULL,
    topic_id text NOT NULL,
    next_offset bigint NOT NULL,
    inexact text NOT NULL,
    leader_epoch bigint NOT NULL,
    CONSTRAINT boundary_offset_pkey PRIMARY KEY (region_id, boundary, group_id, topic, partition, topic_id),
    CONSTRAINT boundary_offset_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE,
    CONSTRAINT boundary_offset_next_offset_not_negative CHECK (next_offset >= 0)
);

CREATE TABLE kcr.checkpoint (
    region_id bigint NOT NULL,
    sequence bigint NOT NULL,
    timeline bigint NOT NULL,
    epoch bigint NOT NULL,
    state text NOT NULL,
    purpose text NOT NULL,
    request_id text NOT NULL,
    participants jsonb NOT NULL,
    opened_at timestamptz NOT NULL,
    boundary timestamptz,
    drain_deadline timestamptz,
    previous bigint,
    inexact jsonb NOT NULL,
    committed text NOT NULL,
    commit_deadline timestamptz,
    publish_deadline timestamptz,
    finished_at timestamptz,
    published_at timestamptz,
    abort_reason text NOT NULL,
    undone_by bigint,
    pinned_as text NOT NULL,
    pin_reason text NOT NULL,
    digest text NOT NULL,
    CONSTRAINT checkpoint_pkey PRIMARY KEY (region_id, sequence),
    CONSTRAINT checkpoint_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE
);

CREATE INDEX checkpoint_aligned ON kcr.checkpoint (region_id, boundary, sequence)
    WHERE boundary IS NOT NULL AND undone_by IS NULL
    AND (state IN ('complete', 'published') OR state = 'retired' AND previous IS NOT NULL);

CREATE INDEX checkpoint_complete ON kcr.checkpoint (region_id, sequence) WHERE state = 'complete';

CREATE INDEX checkpoint_current ON kcr.checkpoint (region_id, sequence)
    WHERE undone_by IS NULL AND (state IN ('complete', 'published') OR state = 'retired' AND previous IS NOT NULL);

CREATE INDEX checkpoint_kept ON kcr.checkpoint (region_id, sequence) WHERE state <> 'retired';

CREATE INDEX checkpoint_undone ON kcr.checkpoint (region_id, undone_by, sequence) WHERE undone_by IS NOT NULL;

CREATE INDEX checkpoint_usable ON kcr.checkpoint (region_id, sequence)
    WHERE undone_by IS NULL AND state IN ('complete', 'published');

CREATE TABLE kcr.checkpoint_request (
    region_id bigint NOT NULL,
    request_id text NOT NULL,
    purpose text NOT NULL,
    state text NOT NULL,
    requested_at timestamptz NOT NULL,
    asked_order bigint NOT NULL,
    boundary timestamptz,
    allow_inexact boolean NOT NULL,
    then_desired_state text,
    requester jsonb NOT NULL,
    sequence bigint,
    answered_at timestamptz,
    refusal text NOT NULL,
    CONSTRAINT checkpoint_request_pkey PRIMARY KEY (region_id, request_id),
    CONSTRAINT checkpoint_request_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE
);

CREATE INDEX checkpoint_request_run ON kcr.checkpoint_request (
    region_id, (requester ->> 'dag_id'), (requester ->> 'run_id')
);

CREATE INDEX checkpoint_request_sequence ON kcr.checkpoint_request (region_id, sequence);

CREATE INDEX checkpoint_request_waiting ON kcr.checkpoint_request (region_id) WHERE state IN ('queued', 'open');

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
    started_to bigint,
    CONSTRAINT claim_pkey PRIMARY KEY (region_id, group_id, topic, partition),
    CONSTRAINT claim_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE,
    CONSTRAINT claim_partition_not_negative CHECK (partition >= 0),
    CONSTRAINT claim_resume_offset_not_negative CHECK (resume_offset >= 0),
    CONSTRAINT claim_position_not_negative CHECK (position >= 0),
    CONSTRAINT claim_started_to_not_negative CHECK (started_to >= 0)
);

CREATE INDEX claim_owner ON kcr.claim (owner_index, group_id, region_id);

CREATE TABLE kcr.consumer_group (
    region_id bigint NOT NULL,
    group_id text NOT NULL,
    cluster_id text DEFAULT '' NOT NULL,
    CONSTRAINT consumer_group_pkey PRIMARY KEY (region_id, group_id),
    CONSTRAINT consumer_group_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE,
    CONSTRAINT consumer_group_cluster_id_group_id_key UNIQUE (cluster_id, group_id)
);

CREATE TABLE kcr.event (
    region_id bigint NOT NULL,
    number bigint NOT NULL,
    at timestamptz NOT NULL,
    epoch bigint NOT NULL,
    timeline bigint NOT NULL,
    kind text NOT NULL,
    body jsonb NOT NULL,
    CONSTRAINT event_pkey PRIMARY KEY (region_id, number),
    CONSTRAINT event_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE
);

CREATE INDEX event_registered ON kcr.event (region_id, (body -> 'member'), (body -> 'incarnation'))
    WHERE kind = 'MemberRegistered';

CREATE TABLE kcr.history_start (
    region_id bigint NOT NULL,
    counter bigint NOT NULL,
    ledger bigint NOT NULL,
    open text[] NOT NULL,
    proof bytea NOT NULL,
    CONSTRAINT history_start_pkey PRIMARY KEY (region_id),
    CONSTRAINT history_start_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE
);

CREATE TABLE kcr.sink_place (
    region_id bigint NOT NULL,
    group_id text NOT NULL,
    sink text NOT NULL,
    place text NOT NULL,
    CONSTRAINT sink_place_pkey PRIMARY KEY (region_id, group_id, sink, place),
    CONSTRAINT sink_place_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE
);

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
);

CREATE TABLE kcr.lease (
    region_id bigint NOT NULL,
    group_id text NOT NULL,
    member_index bigint NOT NULL,
    incarnation bigint NOT NULL,
    valid_until timestamptz NOT NULL,
    lacks text NOT NULL,
    CONSTRAINT lease_pkey PRIMARY KEY (region_id, group_id, member_index),
    CONSTRAINT lease_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE
);

CREATE TABLE kcr.member (
    region_id bigint NOT NULL,
    group_id text NOT NULL,
    member_index bigint NOT NULL,
    incarnation bigint NOT NULL,
    token text NOT NULL,
    label text NOT NULL,
    acknowledged bigint,
    claimed bigint,
    spec_revision bigint NOT NULL,
    sinks_fenced boolean NOT NULL,
    ends_within bigint NOT NULL, -- microseconds
    has_left boolean NOT NULL,
    version text NOT NULL,
    arrived_at timestamptz,
    CONSTRAINT member_pkey PRIMARY KEY (region_id, group_id, member_index),
    CONSTRAINT member_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE
);

CREATE TABLE kcr.person_reset (
    region_id bigint NOT NULL,
    request_id text NOT NULL,
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
    finished_at timestamptz,
    consent_upsert boolean NOT NULL,
    CONSTRAINT person_reset_pkey PRIMARY KEY (region_id, request_id),
    CONSTRAINT person_reset_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE
);

CREATE INDEX person_reset_active ON kcr.person_reset (region_id) WHERE state IN ('waiting', 'draining', 'started');

CREATE INDEX person_reset_not_started ON kcr.person_reset (region_id, requested_at) WHERE epoch IS NULL;

CREATE TABLE kcr.reset (
    region_id bigint NOT NULL,
    epoch bigint NOT NULL,
    sequence bigint NOT NULL,
    timeline bigint NOT NULL,
    cause text NOT NULL,
    state text NOT NULL,
    started_at timestamptz NOT NULL,
    attempt bigint NOT NULL,
    restore_point bigint,
    deadline timestamptz,
    must_publish jsonb NOT NULL,
    person text,
    detail text NOT NULL,
    done_at timestamptz,
    CONSTRAINT reset_pkey PRIMARY KEY (region_id, epoch),
    CONSTRAINT reset_region_fkey FOREIGN KEY (region_id)
        REFERENCES kcr.region (id) ON DELETE CASCADE
);

CREATE INDEX reset_done ON kcr.reset (region_id, epoch) WHERE state = 'done';

CREATE INDEX reset_sequence ON kcr.reset (region_id, sequence);

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
);

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
);

-- What grows with time has most of its rows for one region, however few the server has analysed: of eight rows of one
-- region it would believe that every eighth row is of another, and find a region's newest by reading all it has. The
-- busiest rows have room for their next versions on their own page. What dropped history leaves is found again early.

ALTER TABLE kcr.batch ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.batch SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE kcr.batch_range ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.batch_range SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE kcr.checkpoint_offset ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.checkpoint_partition ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.contribution_offset ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.read_back ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.seek_offset ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.boundary_offset ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.checkpoint ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.checkpoint_request ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.claim SET (fillfactor = 60);
ALTER TABLE kcr.event ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.event SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE kcr.lease SET (fillfactor = 50);
ALTER TABLE kcr.person_reset ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.reset ALTER COLUMN region_id SET (n_distinct = 1);
ALTER TABLE kcr.contribution ALTER COLUMN region_id SET (n_distinct = 1);

