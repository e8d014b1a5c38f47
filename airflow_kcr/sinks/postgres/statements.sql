-- The statements of a Postgres sink: {target} is its table, {fence}, {progress} and {crash_mark} are those beside it.

-- name: make_tables
-- The tables beside a target, made by the first session.
CREATE TABLE IF NOT EXISTS {fence} (
    source integer GENERATED ALWAYS AS IDENTITY UNIQUE,
    region text NOT NULL,
    region_id text NOT NULL,
    group_id text NOT NULL,
    sink text NOT NULL,
    target text NOT NULL,
    target_id oid,
    epoch bigint NOT NULL,
    PRIMARY KEY (region_id, group_id, sink)
);
CREATE TABLE IF NOT EXISTS {progress} (
    source integer NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    timeline bigint NOT NULL,
    "offset" bigint NOT NULL,
    epoch bigint NOT NULL,
    batch text NOT NULL,
    stepped_over bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (source, topic, partition)
) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE IF NOT EXISTS {crash_mark} (
    single boolean PRIMARY KEY CHECK (single),
    mark text NOT NULL
)

-- name: lock_ddl
-- Only one session of the database creates tables at a time, since IF NOT EXISTS is not enough for two. The number is
-- one for all: a table that is not there yet has nothing but its name, and who waits without need waits for a moment.
SELECT pg_advisory_xact_lock(7305012)

-- name: crash_mark
-- The present mark; none where a crash of the server has taken it, or a standby took the server's place.
SELECT mark FROM {crash_mark}

-- name: make_crash_mark
-- The first writer's stays.
INSERT INTO {crash_mark} (single, mark) VALUES (true, :mark) ON CONFLICT DO NOTHING


-- name: make_source
-- A new sink gets a number, and a fence that refuses no epoch.
INSERT INTO {fence} (region, region_id, group_id, sink, target, target_id, epoch)
SELECT :region, :region_id, :group, :sink, :table, to_regclass(:shown)::oid, 0
WHERE NOT EXISTS (SELECT FROM {fence} WHERE (region_id, group_id, sink) = (:region_id, :group, :sink))
ON CONFLICT DO NOTHING

-- name: source
-- The number of a sink.
SELECT source FROM {fence} WHERE (region_id, group_id, sink) = (:region_id, :group, :sink)

-- name: remember_target
-- Which table the target is.
UPDATE {fence} SET target = :table, target_id = to_regclass(:shown)::oid WHERE source = :source

-- name: is_swapped
-- Whether another table has the name of the one that a sink has written to, as far as anything of it counts.
SELECT f.target = :table AND f.target_id IS NOT NULL AND f.target_id IS DISTINCT FROM to_regclass(:shown)::oid
    AND EXISTS (SELECT FROM {progress} p WHERE p.source = f.source)
FROM {fence} f WHERE f.source = :source

-- name: raise_fence
-- Waits for every transaction that has seen the lower one, until it is over or Postgres ends it.
UPDATE {fence} SET epoch = :epoch WHERE source = :source AND epoch < :epoch

-- name: read_fence
-- Where the fence stands, and whether the table is the one that its progress is of.
SELECT epoch, target_id IS NULL OR target_id IS NOT DISTINCT FROM to_regclass(:shown)::oid
FROM {fence} WHERE source = :source

-- name: lock_fence
-- As `read_fence`; it can't be raised until this transaction is over.
SELECT epoch, target_id IS NULL OR target_id IS NOT DISTINCT FROM to_regclass(:shown)::oid
FROM {fence} WHERE source = :source FOR SHARE


-- name: highest_timeline
-- Of any partition.
SELECT coalesce(max(timeline), 0) FROM {progress} WHERE source = :source

-- name: lock_progress
-- Of some partitions, always in the same order.
SELECT topic, partition, timeline, "offset", batch FROM {progress}
WHERE source = :source AND (topic, partition) IN (SELECT * FROM unnest(:topics::text[], :partitions::integer[]))
ORDER BY topic, partition FOR UPDATE

-- name: start_progress
-- Of two at once the second waits and does nothing.
INSERT INTO {progress} (source, topic, partition, timeline, "offset", epoch, batch)
SELECT :source, topic, partition, :timeline, start, :epoch, ''
FROM unnest(:topics::text[], :partitions::integer[], :offsets::bigint[]) AS new (topic, partition, start)
ORDER BY topic, partition ON CONFLICT DO NOTHING

-- name: set_progress
-- What was stepped over is added up within a timeline.
UPDATE {progress} AS old SET timeline = :timeline, epoch = :epoch, batch = :batch, "offset" = new.reached,
    stepped_over = new.stepped_over + CASE WHEN old.timeline = :timeline THEN old.stepped_over ELSE 0 END
FROM unnest(:topics::text[], :partitions::integer[], :offsets::bigint[], :over::bigint[])
    AS new (topic, partition, reached, stepped_over)
WHERE old.source = :source AND (old.topic, old.partition) = (new.topic, new.partition)

-- name: roll_back
-- Rows of older timelines at or beyond the place where their partition starts again.
DELETE FROM {target} AS t USING unnest(:topics::text[], :partitions::integer[], :offsets::bigint[])
    AS r (topic, partition, start)
WHERE t.kcr_source = :source AND t.kcr_topic = r.topic AND t.kcr_partition = r.partition
    AND t.kcr_offset >= r.start AND t.kcr_timeline < :timeline

-- name: is_left
-- Whether one of the rows that `roll_back` deletes is there.
SELECT EXISTS (
    SELECT FROM {target} AS t, unnest(:topics::text[], :partitions::integer[], :offsets::bigint[])
        AS r (topic, partition, start)
    WHERE t.kcr_source = :source AND t.kcr_topic = r.topic AND t.kcr_partition = r.partition
        AND t.kcr_offset >= r.start AND t.kcr_timeline < :timeline
)


-- name: lock_revision
-- Of two recomputations of a checkpoint the second waits here, and asks only then whether it still counts.
SELECT pg_advisory_xact_lock(:source, :sequence::integer)

-- name: delete_ranges
-- Rows made of these records, whatever wrote them.
DELETE FROM {target} AS t
USING unnest(:topics::text[], :partitions::integer[], :froms::bigint[], :tos::bigint[])
    AS r (topic, partition, first, beyond)
WHERE t.kcr_source = :source AND t.kcr_topic = r.topic AND t.kcr_partition = r.partition
    AND t.kcr_offset >= r.first AND t.kcr_offset < r.beyond

-- name: has_ranges
-- Whether one of the rows that `delete_ranges` deletes is there.
SELECT EXISTS (
    SELECT FROM {target} AS t,
        unnest(:topics::text[], :partitions::integer[], :froms::bigint[], :tos::bigint[])
            AS r (topic, partition, first, beyond)
    WHERE t.kcr_source = :source AND t.kcr_topic = r.topic AND t.kcr_partition = r.partition
        AND t.kcr_offset >= r.first AND t.kcr_offset < r.beyond
)

-- name: rows_of_records
-- For Spark, which takes no parameters: the rows that a sink has made of records.
SELECT {selected} FROM {target} AS s JOIN (VALUES {records}) AS r (topic, partition, first, beyond)
  ON s.kcr_topic = r.topic AND s.kcr_partition = r.partition AND s.kcr_offset >= r.first AND s.kcr_offset < r.beyond
WHERE s.kcr_source = {number}

-- name: rows_of_none
-- Likewise: no row, with the columns that others would have.
SELECT {selected} FROM {target} AS s WHERE false

-- name: coordinates_of_none
-- Likewise, where there is no table yet.
SELECT NULL::text AS kcr_topic, NULL::integer AS kcr_partition, NULL::bigint AS kcr_offset WHERE false

-- name: rows_staged
-- Likewise: the rows of a staging table.
SELECT {selected} FROM {rows} AS s

-- name: schema_of
-- Where a table of that name is found, else the first schema of the search path.
SELECT coalesce(
    (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = to_regclass(quote_ident(:table))),
    current_schema()
)

-- name: rights_to_schema
SELECT has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE'), current_user
FROM pg_namespace WHERE nspname = :schema

-- name: kind
-- What is there under a name: an ordinary table, a partitioned one, a view.
SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relname = :table

-- name: columns
-- Those that can be written, and whether a row without one is refused.
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relname = :table AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    AND a.attidentity <> 'a'
ORDER BY a.attnum

-- name: computed_columns
-- Those that only Postgres may write.
SELECT attname::text FROM pg_attribute
WHERE attrelid = to_regclass(:shown) AND attnum > 0 AND NOT attisdropped
    AND (attgenerated <> '' OR attidentity = 'a')

-- name: not_durable
-- What a crash of the server, or the end of a session, would empty while progress stays; and what another server commits.
SELECT c.oid::regclass::text, c.relkind = 'f' FROM pg_class c
WHERE (c.relpersistence <> 'p' OR c.relkind = 'f') AND c.oid = ANY (
    ARRAY(SELECT relid FROM pg_partition_tree(:shown::regclass) UNION SELECT :shown::regclass)
)

-- name: policies_and_rules
-- What lets statements do less than they say: policies hide rows, rules replace statements.
SELECT row_security_active(:shown::regclass), current_user, ARRAY(
    SELECT rulename::text FROM pg_rewrite WHERE ev_class = :shown::regclass AND is_instead AND ev_type <> '1'
)

-- name: nullable
-- Columns that may be NULL.
SELECT attname::text FROM pg_attribute
WHERE attrelid = :shown::regclass AND attname = ANY (:columns::text[]) AND NOT attnotnull ORDER BY attnum

-- name: lacking_rights
SELECT current_user, ARRAY(
    SELECT r FROM unnest(:rights::text[]) AS r WHERE NOT has_table_privilege(to_regclass(:table), r)
)

-- name: unique_indexes
-- The columns of each; with_nulls: of those for which NULL equals NULL (Postgres 15).
SELECT ARRAY(
    SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
)
FROM pg_index i
WHERE i.indrelid = :shown::regclass AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
    AND i.indexprs IS NULL AND (NOT :with_nulls OR (to_jsonb(i) ->> 'indnullsnotdistinct')::boolean)


-- name: writers
-- Every sink of a region's name that has written into the table.
SELECT source, region_id, group_id, sink FROM {fence} WHERE target = :table AND region = :region ORDER BY source

-- name: other_writer
-- A sink that writes into the table and is not of this region's.
SELECT region, group_id, sink FROM {fence}
WHERE target = :table AND region <> '' AND region_id <> :region_id ORDER BY source LIMIT 1

-- name: has_unknown_rows
-- Whether a table of which no sink is known has rows of one; those that came before it are not looked through to the end.
SELECT NOT EXISTS (SELECT FROM {fence} WHERE target = :table)
    AND EXISTS (SELECT FROM (SELECT kcr_source FROM {target} LIMIT 1000000) AS its WHERE kcr_source IS NOT NULL)

-- name: note_unknown
-- Numbers in the target that no fence has are an earlier sink's of this region's name from now on.
INSERT INTO {fence} (source, region, region_id, group_id, sink, target, target_id, epoch) OVERRIDING SYSTEM VALUE
SELECT DISTINCT t.kcr_source, :region, 'unknown ' || t.kcr_source, '?', '?', :table, to_regclass(:shown)::oid, 0
FROM {target} t
WHERE t.kcr_source IS NOT NULL AND NOT EXISTS (SELECT FROM {fence} f WHERE f.source = t.kcr_source)

-- name: count_rows
SELECT count(*) FROM (SELECT FROM {target} WHERE kcr_source = :source LIMIT :most) AS its

-- name: has_rows
SELECT EXISTS (SELECT FROM {target} WHERE kcr_source = :source)

-- name: has_progress
SELECT EXISTS (SELECT FROM {progress} WHERE source = :source)

-- name: delete_rows
DELETE FROM {target} WHERE kcr_source = :source

-- name: delete_progress
DELETE FROM {progress} WHERE source = :source

-- name: delete_fence
DELETE FROM {fence} WHERE source = :source

-- name: keep_beside
UPDATE {fence} SET region = '', region_id = 'kept ' || source WHERE source = :source

-- name: take_over
UPDATE {fence} SET region_id = :region_id, group_id = :group, sink = :sink, target_id = to_regclass(:shown)::oid
WHERE source = :source

-- name: move_progress
-- To another region's sink, which counts its epochs and timelines anew.
UPDATE {progress} SET source = :own, timeline = 0, epoch = 0, batch = '' WHERE source = :source

-- name: move_rows
UPDATE {target} SET kcr_source = :own, kcr_timeline = 0 WHERE kcr_source = :source


-- name: staging_tables
-- Those whose names begin like this, and go on with numbers and a batch's, that this user may drop.
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relname ~ ('^' || :beginning || '([0-9]+_)+[0-9a-f]+$')
    AND pg_has_role(c.relowner, 'USAGE')


-- name: make_target
-- With the pipeline's columns and ours.
CREATE TABLE {target} ({definitions})

-- name: index_target
-- It is small, and only a reset reads it.
CREATE INDEX ON {target} USING brin (kcr_partition, kcr_offset)

-- name: make_staging
CREATE UNLOGGED TABLE {staging} ({definitions}) WITH (autovacuum_enabled = off)

-- name: drop_staging
DROP TABLE IF EXISTS {staging}

-- name: lock_staging
LOCK TABLE {staging} IN SHARE MODE

-- name: has_repeats
-- Whether a task has staged more rows than it has numbered: 33 bits of a number are the task's own, from 0 on.
SELECT EXISTS (SELECT FROM {staging} GROUP BY kcr_row >> 33 HAVING count(*) > (max(kcr_row) & 8589934591) + 1)

-- name: attempts_differ
-- Whether attempts of a task have staged rows of different records, or one in several transactions.
SELECT EXISTS (
    SELECT FROM (
        SELECT kcr_row >> 33 AS task, count(*) = (max(kcr_row) & 8589934591) + 1 AS is_whole,
            sum(hash_record_extended((kcr_topic, kcr_partition, kcr_offset), 0)) AS records
        FROM {staging} GROUP BY kcr_row >> 33, xmin
    ) AS attempt
    GROUP BY task HAVING min(records) <> max(records) OR NOT bool_and(is_whole)
)

-- name: of_one_attempt
-- The rows of one attempt of each task. An attempt is one transaction, and has one row with the task's first number.
SELECT * FROM {staging} WHERE xmin IN (
    SELECT DISTINCT ON (kcr_row) xmin FROM {staging} WHERE kcr_row & 8589934591 = 0
    ORDER BY kcr_row, xmin::text
)

-- name: staged_offsets
SELECT kcr_topic, kcr_partition, min(kcr_offset), max(kcr_offset), count(*) FROM {rows} AS s GROUP BY 1, 2

-- part: staged_rows
SELECT {distinct} {chosen_columns}, :source, s.kcr_topic, s.kcr_partition, s.kcr_offset, :timeline, :sequence
FROM {rows} AS s

-- part: chosen
-- Staged rows that are not in the target. What is below progress is: a batch that comes again writes the rest.
{staged_rows} JOIN {progress} AS p
  ON p.source = :source AND p.topic = s.kcr_topic AND p.partition = s.kcr_partition AND s.kcr_offset >= p."offset"
{ordered}

-- part: recomputed
-- Staged rows, but for those whose key a later checkpoint has written since.
{staged_rows} WHERE NOT EXISTS (
    SELECT FROM {target} AS t
    WHERE {same_key} AND (t.kcr_timeline, t.kcr_sequence) > (:timeline::bigint, :sequence::bigint)
)
{ordered}

-- name: insert
INSERT INTO {target} ({inserted_columns}) {chosen} {on_conflict}

-- name: count_chosen
SELECT count(*) FROM ({chosen}) AS chosen

-- name: insert_recomputed
INSERT INTO {target} ({inserted_columns}) {recomputed} {on_conflict}

-- name: count_recomputed
SELECT count(*) FROM ({recomputed}) AS chosen
