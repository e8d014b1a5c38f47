-- The past of one region: each question one statement, answered by an index.

-- name: request
SELECT {checkpoint_request} FROM kcr.checkpoint_request t WHERE t.region_id = :region AND t.request_id = :request_id

-- name: person_reset
SELECT {person_reset} FROM kcr.person_reset t WHERE t.region_id = :region AND t.request_id = :request_id

-- name: named
-- What a request id names.
SELECT (SELECT {checkpoint_request} FROM kcr.checkpoint_request t WHERE t.region_id = :region AND t.request_id = :request_id),
       (SELECT {person_reset} FROM kcr.person_reset t WHERE t.region_id = :region AND t.request_id = :request_id)

-- name: checkpoint
SELECT {checkpoint} FROM kcr.checkpoint t WHERE t.region_id = :region AND t.sequence = :sequence

-- name: reset
SELECT {reset} FROM kcr.reset t WHERE t.region_id = :region AND t.epoch = :epoch

-- name: offsets
-- The retained offsets of several checkpoints.
SELECT sequence, group_id, topic, partition, next_offset FROM kcr.checkpoint_offset
WHERE region_id = :region AND sequence = ANY (CAST(:sequences AS bigint[]))

-- name: complete
-- Which of several checkpoints have offsets: at a first start the map may be empty.
SELECT sequence FROM kcr.checkpoint
WHERE region_id = :region AND sequence = ANY (CAST(:sequences AS bigint[])) AND state IN ('complete', 'published')

-- name: frozen
SELECT group_id, topic, partition FROM kcr.checkpoint_partition WHERE region_id = :region AND sequence = :sequence

-- name: read_backs
SELECT group_id, topic, partition, next_offset FROM kcr.read_back WHERE region_id = :region AND sequence = :sequence

-- name: seek_map
SELECT {seek_offset} FROM kcr.seek_offset t WHERE t.region_id = :region AND t.epoch = :epoch

-- name: contributions
SELECT {contributions} FROM kcr.contribution k WHERE k.region_id = :region AND k.sequence = :sequence

-- name: contribution_of
-- What one member contributed.
SELECT {contributions} FROM kcr.contribution k
WHERE k.region_id = :region AND k.sequence = :sequence AND k.group_id = :group AND k.member_index = :index

-- name: boundary_offsets
SELECT {boundary_offset} FROM kcr.boundary_offset t WHERE t.region_id = :region AND t.boundary = :boundary

-- The current timeline

-- name: newest_aligned
SELECT {checkpoint} FROM kcr.checkpoint t WHERE t.region_id = :region AND {aligned} AND t.sequence <= :up_to
ORDER BY t.boundary DESC, t.sequence DESC LIMIT 1

-- name: covering
SELECT {checkpoint} FROM kcr.checkpoint t WHERE t.region_id = :region AND {aligned} AND t.boundary >= :boundary
ORDER BY t.boundary, t.sequence LIMIT 1

-- name: newest_usable
SELECT {checkpoint} FROM kcr.checkpoint t WHERE t.region_id = :region AND {usable} AND t.sequence < :before
ORDER BY t.sequence DESC LIMIT 1

-- name: oldest_usable
SELECT {checkpoint} FROM kcr.checkpoint t WHERE t.region_id = :region AND {usable} ORDER BY t.sequence LIMIT 1

-- name: newest_current
SELECT {checkpoint} FROM kcr.checkpoint t WHERE t.region_id = :region AND {current} AND t.sequence < :before
ORDER BY t.sequence DESC LIMIT 1

-- name: newest_published
SELECT {checkpoint} FROM kcr.checkpoint t
WHERE t.region_id = :region AND t.published_at IS NOT NULL AND {current} AND t.sequence < :before
ORDER BY t.sequence DESC LIMIT 1

-- name: published_from
SELECT {checkpoint} FROM kcr.checkpoint t
WHERE t.region_id = :region AND t.published_at IS NOT NULL AND {current} AND t.sequence >= :least
ORDER BY t.sequence LIMIT 1

-- name: published_from_boundary
SELECT {checkpoint} FROM kcr.checkpoint t
WHERE t.region_id = :region AND t.boundary IS NOT NULL AND t.boundary >= :boundary AND t.published_at IS NOT NULL
  AND {current} AND t.sequence >= :least
ORDER BY t.boundary, t.sequence LIMIT 1

-- part: kept_of_opening
-- Where a timeline opens, and the kept current checkpoints, the newest first.
opening AS MATERIALIZED (
    SELECT * FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]),
                         CAST(:offsets AS bigint[])) AS n (group_id, topic, partition, next_offset)
), kept AS MATERIALIZED (
    SELECT t.sequence FROM kcr.checkpoint t
    WHERE t.region_id = :region AND {usable} AND t.sequence > :after AND t.sequence < :before
      AND t.sequence <> ALL (CAST(:retired AS bigint[]))
    ORDER BY t.sequence DESC LIMIT :piece
)

-- part: stays
-- Whether a kept checkpoint lies in no partition beyond where the timeline opens.
NOT EXISTS (
    SELECT FROM kcr.checkpoint_offset o JOIN opening n
      ON o.group_id = n.group_id AND o.topic = n.topic AND o.partition = n.partition
    WHERE o.region_id = :region AND o.sequence = k.sequence AND o.next_offset > n.next_offset)

-- name: covered
-- Of kept current checkpoints, the newest first: the first one that stays, without a look at those before it, and where
-- the timeline opens in partitions that this one lacks.
WITH {kept_of_opening}, covered AS MATERIALIZED (
    SELECT k.sequence FROM kept k WHERE (SELECT {stays}) LIMIT 1
)
SELECT ARRAY(SELECT k.sequence FROM kept k), (SELECT c.sequence FROM covered c), (
    SELECT json_agg(json_build_array(l.group_id, l.topic, l.partition)) FROM (
        SELECT n.group_id, n.topic, n.partition FROM opening n
        EXCEPT
        SELECT o.group_id, o.topic, o.partition FROM kcr.checkpoint_offset o WHERE o.region_id = :region
          AND o.sequence = coalesce((SELECT c.sequence FROM covered c), CAST(:covered AS bigint))
    ) l)

-- name: judged
-- Of kept current checkpoints: whether each stays.
WITH {kept_of_opening} SELECT k.sequence, {stays} FROM kept k

-- name: retired_after
-- On the current timeline, without offsets of their own, and newer than a checkpoint that stays.
SELECT t.sequence FROM kcr.checkpoint t
WHERE t.region_id = :region AND {current} AND t.state = 'retired' AND t.sequence > :after

-- name: undone
-- The checkpoints that each of these timelines took off the one before it.
SELECT undone_by, sequence FROM kcr.checkpoint
WHERE region_id = :region AND undone_by = ANY (CAST(:timelines AS bigint[])) ORDER BY undone_by, sequence

-- name: stretches
-- Gaps and islands: rows of one timeline with no row of another between them.
SELECT s.undone_by, min(s.sequence), max(s.sequence) FROM (
    SELECT t.sequence, t.undone_by, row_number() OVER (ORDER BY t.sequence)
           - row_number() OVER (PARTITION BY t.undone_by ORDER BY t.sequence) AS island
    FROM kcr.checkpoint t
    WHERE t.region_id = :region AND ({current} OR t.undone_by IS NOT NULL)
      AND t.sequence >= (SELECT min(u.sequence) FROM kcr.checkpoint u
                         WHERE u.region_id = :region AND u.undone_by >= :since)
) s WHERE s.undone_by >= :since GROUP BY s.undone_by, s.island ORDER BY 1, 2

-- One record

-- name: holding
-- The first kept checkpoint that lies beyond an offset of a partition; of a retired one that is not known any more.
SELECT {checkpoint} FROM kcr.checkpoint t
WHERE t.region_id = :region AND {current} AND t.sequence >= :since AND (t.state = 'retired' OR EXISTS (
    SELECT FROM kcr.checkpoint_offset o
    WHERE o.region_id = t.region_id AND o.sequence = t.sequence AND o.group_id = :group AND o.topic = :topic
      AND o.partition = :partition AND o.next_offset > :offset))
ORDER BY t.sequence LIMIT 1

-- name: went_back
-- The first entry at or before an offset. It is the very next one, or one that sent the partition further back than the
-- entry before it: as in `lowest`, whose index tells the two kinds apart.
SELECT {reset} FROM kcr.reset t WHERE t.region_id = :region AND t.epoch = (SELECT min(e.epoch) FROM (
    (SELECT s.epoch, s.next_offset FROM kcr.seek_offset s
     WHERE s.region_id = :region AND s.group_id = :group AND s.topic = :topic AND s.partition = :partition
       AND s.next_offset IS NOT NULL AND {turn} > :after
     ORDER BY {turn} LIMIT 1)
    UNION ALL
    (SELECT s.epoch, s.next_offset FROM kcr.seek_offset s
     WHERE s.region_id = :region AND s.group_id = :group AND s.topic = :topic AND s.partition = :partition
       AND s.next_offset IS NOT NULL AND {turn} < -CAST(:after AS bigint) AND s.next_offset <= :offset
     ORDER BY {turn} DESC LIMIT 1)
) e WHERE e.next_offset <= :offset)

-- Lists

-- name: checkpoints
SELECT {checkpoint} FROM kcr.checkpoint t
WHERE t.region_id = :region AND t.sequence >= :first AND t.sequence < :before ORDER BY t.sequence DESC LIMIT :last

-- name: resets
SELECT {reset} FROM kcr.reset t
WHERE t.region_id = :region AND t.sequence < :before ORDER BY t.sequence DESC LIMIT :last

-- name: resets_from
SELECT {reset} FROM kcr.reset t
WHERE t.region_id = :region AND t.sequence >= :sequence ORDER BY t.sequence LIMIT :limit

-- name: requests_of_run
SELECT {checkpoint_request} FROM kcr.checkpoint_request t
WHERE t.region_id = :region AND t.requester ->> 'dag_id' = :dag AND t.requester ->> 'run_id' = :run
ORDER BY t.asked_order

-- name: requests_for
-- The DAG runs' requests that opened these checkpoints, or that they answered.
SELECT {checkpoint_request} FROM kcr.checkpoint_request t
WHERE t.region_id = :region AND t.sequence = ANY (CAST(:sequences AS bigint[])) AND t.requester ? 'dag_id'
ORDER BY t.asked_order

-- name: topics
-- The partitions of one topic id in one row, as all of a topic have the same.
SELECT group_id, topic, log_topic_id, array_agg(partition) FROM kcr.contribution_offset
WHERE region_id = :region AND sequence = :sequence AND log_topic_id IS NOT NULL
GROUP BY group_id, topic, log_topic_id

-- name: count
SELECT count(*) FROM kcr.checkpoint WHERE region_id = :region

-- name: checkpoint_page
-- Checkpoints, the runs that they answered, their offsets and topics, and where contributions to the oldest and the
-- newest kept ones saw each log begin, and since when. Each of those contributions is looked up by itself (OFFSET 0),
-- or a planner that takes the table for short reads all of it for each partition.
WITH page AS MATERIALIZED (
    SELECT * FROM kcr.checkpoint t WHERE t.region_id = :region AND t.sequence < :before
    ORDER BY t.sequence DESC LIMIT :last
), complete AS MATERIALIZED (
    SELECT p.sequence FROM page p WHERE p.state IN ('complete', 'published')
), seen AS (
    SELECT o.group_id, o.topic, o.partition, o.log_start, o.log_topic_id,
           max(k.contributed_at) AS last_seen, min(k.contributed_at) AS first_seen
    FROM kcr.contribution_offset o CROSS JOIN LATERAL (
        SELECT c.contributed_at FROM kcr.contribution c
        WHERE c.region_id = o.region_id AND c.sequence = o.sequence AND c.group_id = o.group_id
          AND c.member_index = o.member_index OFFSET 0
    ) k
    WHERE o.region_id = :region AND o.log_start IS NOT NULL AND o.sequence = ANY (
        ARRAY(SELECT t.sequence FROM kcr.checkpoint t
              WHERE t.region_id = :region AND t.state <> 'retired' AND t.state <> 'aborted'
              ORDER BY t.sequence LIMIT {ends})
        || ARRAY(SELECT t.sequence FROM kcr.checkpoint t
                 WHERE t.region_id = :region AND t.state <> 'retired' AND t.state <> 'aborted'
                 ORDER BY t.sequence DESC LIMIT {ends}))
    GROUP BY o.group_id, o.topic, o.partition, o.log_start, o.log_topic_id
)
SELECT (SELECT json_agg({checkpoint} ORDER BY t.sequence) FROM page t) AS checkpoints,
       (SELECT json_agg({checkpoint_request} ORDER BY t.asked_order) FROM kcr.checkpoint_request t
        WHERE t.region_id = :region AND t.sequence = ANY (ARRAY(SELECT p.sequence FROM page p))
          AND t.requester ? 'dag_id') AS requests,
       ARRAY(SELECT c.sequence FROM complete c) AS complete,
       (SELECT json_agg(json_build_array(g.sequence, g.group_id, g.topic, g.partitions, g.offsets)) FROM (
            SELECT o.sequence, o.group_id, o.topic,
                   array_agg(o.partition) AS partitions, array_agg(o.next_offset) AS offsets
            FROM kcr.checkpoint_offset o
            WHERE o.region_id = :region AND o.sequence = ANY (ARRAY(SELECT c.sequence FROM complete c))
            GROUP BY o.sequence, o.group_id, o.topic) g) AS offsets,
       (SELECT json_agg(json_build_array(g.sequence, g.group_id, g.topic, g.log_topic_id, g.partitions)) FROM (
            SELECT o.sequence, o.group_id, o.topic, o.log_topic_id, array_agg(o.partition) AS partitions
            FROM kcr.contribution_offset o
            WHERE o.region_id = :region AND o.sequence = ANY (ARRAY(SELECT c.sequence FROM complete c))
              AND o.log_topic_id IS NOT NULL
            GROUP BY o.sequence, o.group_id, o.topic, o.log_topic_id) g) AS topics,
       s.*
FROM (SELECT array_agg(t.group_id), array_agg(t.topic), array_agg(t.partition), array_agg(t.last_seen),
             array_agg(t.first_seen), array_agg(t.log_start), array_agg(t.log_topic_id) FROM seen t) s

-- name: reset_page
-- Attempts of resets, those right after them, persons' resets, and what timelines undid.
WITH page AS MATERIALIZED (
    SELECT * FROM kcr.reset t WHERE t.region_id = :region AND t.sequence < :before
    ORDER BY t.sequence DESC LIMIT :attempts
), following AS MATERIALIZED (
    SELECT * FROM kcr.reset t WHERE t.region_id = :region AND t.sequence >= :before
    ORDER BY t.sequence LIMIT {following}
)
SELECT (SELECT json_agg({reset} ORDER BY t.sequence) FROM page t) AS resets,
       (SELECT json_agg({reset} ORDER BY t.sequence) FROM following t) AS following,
       (SELECT json_agg({person_reset} ORDER BY t.asked_order) FROM kcr.person_reset t
        WHERE t.region_id = :region AND t.request_id = ANY (
            ARRAY(SELECT p.person FROM page p)
            || ARRAY(SELECT u.request_id FROM kcr.person_reset u
                     WHERE u.region_id = :region AND u.epoch IS NULL
                       AND u.requested_at < coalesce((SELECT min(f.started_at) FROM following f), 'infinity')
                     ORDER BY u.requested_at DESC, u.asked_order DESC LIMIT :last))) AS persons,
       (SELECT json_agg(json_build_array(g.undone_by, g.sequences)) FROM (
            SELECT c.undone_by, array_agg(c.sequence ORDER BY c.sequence) AS sequences FROM kcr.checkpoint c
            WHERE c.region_id = :region AND c.undone_by = ANY (
                ARRAY(SELECT p.timeline FROM page p WHERE p.restore_point = p.sequence))
            GROUP BY c.undone_by) g) AS undone

-- name: region_page
-- Both pages, and the contributions to one checkpoint.
SELECT (SELECT {contributions} FROM kcr.contribution k
        WHERE k.region_id = :region AND k.sequence = CAST(:newest AS bigint)), r.*, c.*
FROM ({reset_page}) r, ({checkpoint_page}) c

-- Resets and retention

-- name: last_done
SELECT {reset} FROM kcr.reset t
WHERE t.region_id = :region AND t.epoch < :before AND t.state = 'done' ORDER BY t.epoch DESC LIMIT 1

-- name: kept
-- How many checkpoints have their offsets.
SELECT count(*) FROM kcr.checkpoint t WHERE t.region_id = :region AND t.state IN ('complete', 'published')

-- name: oldest_kept
SELECT {checkpoint} FROM kcr.checkpoint t
WHERE t.region_id = :region AND t.state <> 'retired' AND t.pinned_as = '' ORDER BY t.sequence LIMIT :limit

-- name: nth_complete
SELECT t.sequence FROM kcr.checkpoint t
WHERE t.region_id = :region AND t.state <> 'retired' AND t.state IN ('complete', 'published')
ORDER BY t.sequence DESC OFFSET :place LIMIT 1
