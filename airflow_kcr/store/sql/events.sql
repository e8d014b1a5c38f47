-- What is recorded of a region: its events, and where the history that is kept of it starts.

-- name: insert
-- In the order of their numbers.
INSERT INTO kcr.event (region_id, number, at, epoch, timeline, kind, body)
SELECT :region, n.number, n.at, n.epoch, n.timeline, n.kind, n.body
FROM json_populate_recordset(CAST(NULL AS kcr.event), CAST(:event AS json)) n

-- name: page
-- The events after a number, up to another, in the order of their numbers.
SELECT number, at, epoch, timeline, kind, body FROM kcr.event
WHERE region_id = :region AND number > :after AND number <= :upto ORDER BY number LIMIT :limit

-- name: brief
-- The newest events before a number, in the order of their numbers; of each detail that is longer, its beginning: one
-- may name all partitions.
SELECT e.number, e.at, e.epoch, e.timeline, e.kind,
       CASE WHEN octet_length(e.body::text) <= :longest THEN e.body ELSE (
           SELECT jsonb_object_agg(key, CASE WHEN length(text) <= :longest THEN value
                                             ELSE to_jsonb(left(text, :longest) || '…') END)
           FROM (SELECT d.key, d.value, CASE jsonb_typeof(d.value) WHEN 'string' THEN e.body ->> d.key
                                                                   ELSE d.value::text END AS text
                 FROM jsonb_each(e.body) d) each_detail
       ) END
FROM (SELECT * FROM kcr.event WHERE region_id = :region AND (CAST(:before AS bigint) IS NULL OR number < :before)
      ORDER BY number DESC LIMIT :last) e ORDER BY e.number

-- name: position
-- The newest event that a program outside the region has dealt with.
SELECT number FROM kcr.event_position WHERE (region_id, reader) = (:region, :reader)

-- name: keep_position
-- Of two programs of one name, the one that is further counts.
INSERT INTO kcr.event_position (region_id, reader, number) VALUES (:region, :reader, :number)
ON CONFLICT (region_id, reader) DO UPDATE SET number = excluded.number WHERE kcr.event_position.number < excluded.number

-- name: registered
-- How the process of an incarnation called itself.
SELECT body ->> 'label' FROM kcr.event
WHERE region_id = :region AND kind = 'MemberRegistered'
  AND body -> 'member' = CAST(:member AS jsonb) AND body -> 'incarnation' = to_jsonb(CAST(:incarnation AS bigint))

-- name: horizon
-- Under the exclusive lock: no batch begins or ends at this moment, so what is there is all there is.
SELECT r.counter, (SELECT coalesce(max(b.number), 0) FROM kcr.batch b WHERE b.region_id = r.id)
FROM kcr.region r WHERE r.id = :region

-- name: start
-- Of the kept history.
SELECT counter, ledger, open, proof FROM kcr.history_start WHERE region_id = :region

-- name: horizon_before
-- The newest event stays: batches may still start after it. No batch starts any more after one that is older, so the
-- first batch after the next event ends the ledger's part; their numbers grow with their starts.
SELECT h.counter, coalesce(
    (SELECT b.number - 1 FROM kcr.batch b
     WHERE b.region_id = :region AND b.number > :ledger AND b.started_after > h.counter ORDER BY b.number LIMIT 1),
    (SELECT max(b.number) FROM kcr.batch b WHERE b.region_id = :region AND b.number > :ledger),
    :ledger)
FROM (
    SELECT max(e.number) AS counter FROM kcr.event e JOIN kcr.region r ON r.id = e.region_id
    WHERE e.region_id = :region AND e.number > :after AND e.number <= CAST(:after AS bigint) + :limit
      AND e.number < r.counter AND e.at < :instant
) h WHERE h.counter IS NOT NULL

-- name: first_start
-- The first of two that move it at once wins.
INSERT INTO kcr.history_start (region_id, counter, ledger, open, proof)
VALUES (:region, :counter, :ledger, CAST(:open AS text[]), :proof) ON CONFLICT DO NOTHING

-- name: next_start
UPDATE kcr.history_start SET counter = :counter, ledger = :ledger, open = CAST(:open AS text[]), proof = :proof
WHERE region_id = :region AND counter = :earlier

-- name: drop_events
-- A piece from the oldest one on; they have no gaps.
DELETE FROM kcr.event e WHERE e.region_id = :region AND e.number <= :upto AND e.number < :limit + (
    SELECT min(o.number) FROM kcr.event o WHERE o.region_id = :region
)

-- name: droppable
-- The next batches; no foreign key leads from their ranges to them.
SELECT b.number FROM kcr.batch b
WHERE b.region_id = :region AND b.number > :after AND b.number <= :ledger AND b.outcome IS NOT NULL
  AND b.sequence <= :floor AND NOT b.batch_id = ANY (CAST(:open AS text[])) ORDER BY b.number LIMIT :limit
