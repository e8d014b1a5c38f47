-- All regions of a store: which there are, and what is asked of several at once.

-- name: lock_exclusive
-- For every transition. Its queue is fair, so batches don't starve transitions.
SELECT pg_advisory_xact_lock(:region_key)

-- name: lock_shared
-- For an admission, and the member's own lock after it: its admissions are one at a time.
SELECT pg_advisory_xact_lock_shared(:region_key), pg_advisory_xact_lock(:member_key)

-- name: now
-- A transaction's own `now()` is from before it waited for the lock.
SELECT clock_timestamp()

-- name: find
SELECT id FROM kcr.region WHERE name = :name

-- name: names
SELECT name FROM kcr.region ORDER BY name COLLATE "C"

-- name: names_with
SELECT name FROM kcr.region r
WHERE EXISTS (SELECT FROM kcr.consumer_group g WHERE g.region_id = r.id AND g.group_id = ANY (CAST(:groups AS text[])))
ORDER BY name COLLATE "C"

-- name: counter
SELECT counter FROM kcr.region WHERE name = :name

-- name: signs
SELECT r.name, clock_timestamp(), r.counter, coalesce(r.reconcile_at <= clock_timestamp(), false),
       (SELECT count(*) FROM kcr.lease l WHERE l.region_id = r.id AND l.valid_until > clock_timestamp()),
       CASE WHEN r.state = 'running' AND r.desired_state = 'running' THEN 0 ELSE (
           SELECT count(*) FROM kcr.batch b WHERE b.region_id = r.id AND b.outcome IS NULL) END
FROM kcr.region r WHERE r.name = ANY (CAST(:names AS text[]))

-- name: owners
-- Which other region has one of these groups, each on its cluster.
SELECT g.group_id, g.cluster_id, r.name FROM kcr.consumer_group g JOIN kcr.region r ON r.id = g.region_id
JOIN unnest(CAST(:groups AS text[]), CAST(:clusters AS text[])) AS n (group_id, cluster_id)
  ON n.group_id = g.group_id AND n.cluster_id = g.cluster_id
WHERE r.name <> :name ORDER BY g.group_id

-- Where its sinks write to

-- name: places
SELECT group_id, sink, place FROM kcr.sink_place WHERE region_id = :region

-- name: take_place
INSERT INTO kcr.sink_place (region_id, group_id, sink, place) VALUES (:region, :group, :sink, :place)
ON CONFLICT DO NOTHING

-- name: let_place_go
DELETE FROM kcr.sink_place WHERE (region_id, group_id, sink, place) = (:region, :group, :sink, :place)

-- Deleting one

-- name: doom_groups
-- The region goes out of sight; its groups may be another's at once.
DELETE FROM kcr.consumer_group WHERE region_id = :region

-- name: doom
UPDATE kcr.region SET name = :name WHERE id = :region

-- name: doomed_batches
-- The next ones, which no foreign key leads to: their ranges go first.
SELECT number FROM kcr.batch WHERE region_id = :region AND number > :after ORDER BY number LIMIT :limit

-- name: tables_of_regions
-- The tables that have rows of a region, with the keys in whose order they go; the newest first, so that none has rows
-- that another's foreign key leads to. The ledger goes by itself, and what has one row goes with the region's.
SELECT t.relname, array_agg(a.attname ORDER BY array_position(p.conkey, a.attnum))
FROM pg_class t JOIN pg_constraint p ON p.conrelid = t.oid AND p.contype = 'p'
JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = ANY (p.conkey) AND a.attname <> 'region_id'
WHERE t.relnamespace = CAST('kcr' AS regnamespace) AND t.relname NOT IN ('batch', 'batch_range') AND EXISTS (
    SELECT FROM pg_attribute r WHERE r.attrelid = t.oid AND r.attname = 'region_id')
GROUP BY t.oid, t.relname ORDER BY t.oid DESC

-- name: delete_region
DELETE FROM kcr.region WHERE id = :region
