-- The ledger: batches with their ranges, and what became of them.

-- part: started
-- A batch's row, and one for each range; what follows a WITH.
started AS (
    INSERT INTO kcr.batch (region_id, batch_id, group_id, member_index, incarnation, epoch, timeline, sequence,
                           started_at, started_after)
    VALUES (:region, :batch, :group, :index, :incarnation, :epoch, :timeline, :sequence,
            :started_at, :started_after)
    RETURNING number
)
INSERT INTO kcr.batch_range (batch_number, region_id, group_id, topic, partition, from_offset, to_offset)
SELECT started.number, :region, r.group_id, r.topic, r.partition, r.from_offset, r.to_offset
FROM started, unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]),
                     CAST(:froms AS bigint[]), CAST(:tos AS bigint[]))
    AS r (group_id, topic, partition, from_offset, to_offset)

-- name: move
-- What the start or the finish of a batch does to a claim, and nothing else of it.
UPDATE kcr.claim c SET position = n.position, started_to = n.started_to
FROM (SELECT CAST(:region AS bigint) AS region_id, u.*
      FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]),
                  CAST(:positions AS bigint[]), CAST(:started AS bigint[]))
          AS u (group_id, topic, partition, position, started_to) OFFSET 0) n
WHERE c.region_id = n.region_id AND c.group_id = n.group_id AND c.topic = n.topic AND c.partition = n.partition

-- name: start
WITH {started}

-- name: start_and_move
-- A batch starts, and its claims are marked with what it has started.
WITH moved AS ({move}), {started}

-- name: close
-- A batch has one outcome; the first one stands.
UPDATE kcr.batch b SET outcome = c.outcome, finished_at = c.finished_at, finished_after = c.finished_after
FROM unnest(CAST(:batches AS text[]), CAST(:outcomes AS text[]), CAST(:finished_at AS timestamptz[]),
            CAST(:finished_after AS bigint[])) AS c (batch_id, outcome, finished_at, finished_after)
WHERE b.region_id = :region AND b.batch_id = c.batch_id AND b.outcome IS NULL

-- name: close_and_move
-- A batch ends, and the positions of its claims advance.
WITH moved AS ({move}) {close}

-- name: quiesced
-- From when on a superseded incarnation can't write any more.
UPDATE kcr.batch b SET quiesced_after = c.quiesced_after
FROM unnest(CAST(:batches AS text[]), CAST(:quiesced_after AS timestamptz[])) AS c (batch_id, quiesced_after)
WHERE b.region_id = :region AND b.batch_id = c.batch_id

-- name: unaccepted
-- The batches of an epoch that ended without being accepted, with how many ranges each has.
SELECT b.number, (SELECT count(*) FROM kcr.batch_range r WHERE r.batch_number = b.number) FROM kcr.batch b
WHERE b.region_id = :region AND b.epoch = :epoch AND b.outcome IN ('unknown', 'discarded')

-- name: prove
-- A sink's progress says that they were done, whatever was heard of them. The places are in a query of their own, or
-- their text would be read again for every row once the statement is prepared.
UPDATE kcr.batch b SET outcome = 'done', proven_in = :proven_in
WHERE b.number = ANY (CAST(:batches AS bigint[])) AND coalesce((
    SELECT bool_and(coalesce(p.place >= r.to_offset, true)) AND bool_or(p.place IS NOT NULL)
    FROM kcr.batch_range r CROSS JOIN LATERAL (
        SELECT CAST((SELECT CAST(:places AS jsonb))
            ->> (CAST(r.partition AS text) || ' ' || r.topic || ' ' || r.group_id) AS bigint) AS place
    ) p WHERE r.batch_number = b.number
), true)

-- Retired checkpoints keep their row and digest.

-- name: forget_checkpoint_offset
DELETE FROM kcr.checkpoint_offset WHERE region_id = :region AND sequence = ANY (CAST(:gone AS bigint[]))

-- name: forget_read_back
DELETE FROM kcr.read_back WHERE region_id = :region AND sequence = ANY (CAST(:gone AS bigint[]))

-- name: forget_contribution_offset
DELETE FROM kcr.contribution_offset WHERE region_id = :region AND sequence = ANY (CAST(:gone AS bigint[]))

-- name: forget_contribution
DELETE FROM kcr.contribution WHERE region_id = :region AND sequence = ANY (CAST(:gone AS bigint[]))

-- name: forget_checkpoint_partition
DELETE FROM kcr.checkpoint_partition WHERE region_id = :region AND sequence = ANY (CAST(:gone AS bigint[]))

-- name: forget_boundaries
-- The oldest, in the order of the key, so that a piece reads no more than it deletes.
DELETE FROM kcr.boundary_offset WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM kcr.boundary_offset WHERE region_id = :region AND boundary <= :up_to
    ORDER BY boundary, group_id, topic, partition, topic_id LIMIT :limit))

-- name: undo_checkpoints
-- The first timeline that took one off the current timeline did.
UPDATE kcr.checkpoint SET undone_by = :by
WHERE region_id = :region AND sequence = ANY (CAST(:sequences AS bigint[])) AND undone_by IS NULL

-- name: delete_ranges
DELETE FROM kcr.batch_range WHERE batch_number = ANY (CAST(:batches AS bigint[]))

-- name: delete_batches
DELETE FROM kcr.batch WHERE number = ANY (CAST(:batches AS bigint[]))

-- Reading it

-- name: one
SELECT {batch} FROM kcr.batch b WHERE b.region_id = :region AND b.batch_id = :batch

-- name: some
-- By their ids.
SELECT {batch} FROM kcr.batch b
WHERE b.region_id = :region AND b.batch_id = ANY (CAST(:batches AS text[])) ORDER BY b.number

-- name: page
-- In the order of the starts, beyond a place and up to another.
SELECT {batch} FROM kcr.batch b
WHERE b.region_id = :region AND b.number > :after AND b.number <= :upto ORDER BY b.number LIMIT :limit

-- name: stamp_before
-- The number and the sequence of the newest batch before a number.
SELECT b.number, b.sequence FROM kcr.batch b
WHERE b.region_id = :region AND b.number < :before ORDER BY b.number DESC LIMIT 1

-- name: page_back
-- From the newest batch on.
SELECT {batch} FROM kcr.batch b
WHERE b.region_id = :region AND b.number < :before ORDER BY b.number DESC LIMIT :limit

-- name: containing
-- For each width of a range the few that end near enough beyond the record. As arrays, or a planner that knows little
-- of the tables joins all ranges of the partition, or the whole ledger.
SELECT {batch} FROM kcr.batch b WHERE b.region_id = :region AND b.number = ANY (ARRAY(
    SELECT unnest(ARRAY(
        SELECT batch_number FROM kcr.batch_range
        WHERE region_id = :region AND group_id = :group AND topic = :topic AND partition = :partition
          AND {width} = w.width AND to_offset > :offset AND to_offset <= w.furthest AND from_offset <= :offset
    )) FROM unnest(CAST(:widths AS integer[]), CAST(:furthest AS bigint[])) AS w (width, furthest)
)) ORDER BY b.number

-- name: newest_work
-- When the batch at the end of the index began, or ended.
SELECT (SELECT coalesce(b.finished_at, b.started_at) FROM kcr.batch b
        WHERE b.region_id = :region ORDER BY b.number DESC LIMIT 1)

-- name: readers
-- Whose batches have a partition of this topic and number; one probe for each group of the ledger.
WITH RECURSIVE known AS (
    (SELECT group_id FROM kcr.batch_range WHERE region_id = :region ORDER BY group_id LIMIT 1)
    UNION ALL
    SELECT (SELECT r.group_id FROM kcr.batch_range r WHERE r.region_id = :region AND r.group_id > k.group_id
            ORDER BY r.group_id LIMIT 1)
    FROM known k WHERE k.group_id IS NOT NULL
)
SELECT k.group_id FROM known k WHERE (
    SELECT true FROM kcr.batch_range r
    WHERE r.region_id = :region AND r.group_id = k.group_id AND r.topic = :topic AND r.partition = :partition
    LIMIT 1
)

-- What resets have undone of it

-- name: in_order
-- For what is left of the transaction, by the one index that has the order asked for: of several that fit, a planner
-- that knows nothing of a table may take one that finds the region and then walks through all of it.
SELECT set_config('enable_sort', 'off', true)

-- name: lowest
-- Of each partition and epoch the lowest place that a later reset sent it to; only if there is one.
SELECT q.number, q.lowest FROM (
    SELECT n.number, least(
        (SELECT s.next_offset FROM kcr.seek_offset s
         WHERE s.region_id = :region AND s.group_id = n.group_id AND s.topic = n.topic
           AND s.partition = n.partition AND s.next_offset IS NOT NULL AND {turn} > n.epoch
         ORDER BY {turn} LIMIT 1),
        (SELECT min(o.next_offset) FROM (
            SELECT s.next_offset FROM kcr.seek_offset s
            WHERE s.region_id = :region AND s.group_id = n.group_id AND s.topic = n.topic
              AND s.partition = n.partition AND s.next_offset IS NOT NULL AND {turn} < -n.epoch
            ORDER BY {turn} OFFSET 0) o)
    ) AS lowest
    FROM unnest(CAST(:numbers AS bigint[]), CAST(:groups AS text[]), CAST(:topics AS text[]),
                CAST(:partitions AS bigint[]), CAST(:epochs AS bigint[]))
        AS n (number, group_id, topic, partition, epoch)
) q
WHERE q.lowest IS NOT NULL

-- name: replays
-- Where each partition was when a reset began, by its position and by the batches that were not accepted since the
-- reset before; where it went, at the furthest and at last; and how far it came, by the resets that follow and by its
-- claim, as long as it stays in one log: a reset to a recreated topic goes back over nothing. Each is looked up by
-- itself (OFFSET 0), or a planner that knows little of the tables joins them whole.
WITH span AS (
    SELECT * FROM unnest(CAST(:since AS bigint[]), CAST(:firsts AS bigint[]), CAST(:lasts AS bigint[]))
        AS u (since, first, last)
), went AS (
    SELECT n.first, n.last, s.group_id, s.topic, s.partition,
           bool_or(s.recreated <> '') AS is_anew,
           max(s.current_offset) FILTER (WHERE s.epoch = n.first) AS place,
           min(s.next_offset) AS back, max(s.next_offset) FILTER (WHERE s.epoch = n.last) AS resumed
    FROM span n CROSS JOIN LATERAL (
        SELECT * FROM kcr.seek_offset e
        WHERE e.region_id = :region AND e.epoch BETWEEN n.first AND n.last OFFSET 0
    ) s
    GROUP BY n.first, n.last, s.group_id, s.topic, s.partition
), lost AS (
    SELECT n.first, r.group_id, r.topic, r.partition, max(r.to_offset) AS place
    FROM span n CROSS JOIN LATERAL (
        SELECT b.number FROM kcr.batch b
        WHERE b.region_id = :region AND b.epoch >= n.since AND b.epoch < n.first
          AND b.outcome IN ('unknown', 'discarded') OFFSET 0
    ) u CROSS JOIN LATERAL (SELECT * FROM kcr.batch_range q WHERE q.batch_number = u.number OFFSET 0) r
    GROUP BY n.first, r.group_id, r.topic, r.partition
), placed AS (
    SELECT w.*, greatest(w.place, l.place) AS left_at, count(*) FILTER (WHERE w.is_anew) OVER (
               PARTITION BY w.group_id, w.topic, w.partition ORDER BY w.first
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS log
    FROM went w LEFT JOIN lost l USING (first, group_id, topic, partition)
), reached AS (
    SELECT p.first, p.back, p.resumed, CASE WHEN NOT p.is_anew THEN p.left_at END AS place,
           greatest(c.started_to, max(p.left_at) OVER (
               PARTITION BY p.group_id, p.topic, p.partition, p.log ORDER BY p.first
               ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)) AS later
    FROM placed p LEFT JOIN kcr.claim c
        ON c.region_id = :region AND c.group_id = p.group_id AND c.topic = p.topic
        AND c.partition = p.partition
        AND NOT EXISTS (SELECT FROM kcr.seek_offset s
                        WHERE s.region_id = :region AND s.group_id = p.group_id
                          AND s.topic = p.topic AND s.partition = p.partition AND s.recreated <> ''
                          AND s.epoch > p.last)
)
SELECT first, CAST(coalesce(sum(greatest(place - back, 0)), 0) AS bigint),
       CAST(coalesce(sum(greatest(least(place, coalesce(later, resumed)) - resumed, 0))
                     FILTER (WHERE place IS NOT NULL), 0) AS bigint)
FROM reached GROUP BY first
