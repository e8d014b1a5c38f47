-- What decisions work on, as one value; nothing is read behind a rule's back. Which rows of what grows with time a
-- decision works on is said here, and for the twin in memory in `working`; the contract suite holds the two together.
-- Each condition names its rows by an index, so that what a decision reads does not depend on how long a region has
-- lived.

-- part: head
-- The store's clock, the region's id, its own row, and whether any record is skipped.
clock_timestamp(), r.id, {region}, EXISTS (SELECT FROM kcr.skip s WHERE s.region_id = r.id)

-- part: wide
-- The few wide rows: groups, members, leases, and the working checkpoints, requests, persons' resets and resets.
(SELECT json_object_agg(t.group_id, t.cluster_id) FROM kcr.consumer_group t WHERE t.region_id = r.id AND t.cluster_id <> ''),
(SELECT json_agg({member}) FROM kcr.member t WHERE t.region_id = r.id),
(SELECT json_agg({lease}) FROM kcr.lease t WHERE t.region_id = r.id),
(SELECT json_agg({checkpoint}) FROM kcr.checkpoint t WHERE t.region_id = r.id AND t.sequence = ANY (
    ARRAY[r.open_checkpoint, r.restore_point, r.stopping, r.aligned]
    || ARRAY(SELECT o.sequence FROM kcr.checkpoint o WHERE o.region_id = r.id AND o.state = 'complete')
    || (SELECT max(o.sequence) FROM kcr.checkpoint o WHERE o.region_id = r.id AND {usable}))),
(SELECT json_agg({checkpoint_request}) FROM kcr.checkpoint_request t
 WHERE t.region_id = r.id AND t.state IN ('queued', 'open')),
(SELECT json_agg({person_reset}) FROM kcr.person_reset t WHERE t.region_id = r.id AND t.request_id = ANY (
    ARRAY(SELECT o.request_id FROM kcr.person_reset o
          WHERE o.region_id = r.id AND o.state IN ('waiting', 'draining', 'started'))
    || (SELECT o.person FROM kcr.reset o WHERE o.region_id = r.id AND o.epoch = r.restore_point_epoch))),
(SELECT json_agg({reset}) FROM kcr.reset t
 WHERE t.region_id = r.id AND t.epoch = ANY (ARRAY[r.epoch, r.restore_point_epoch]))

-- part: whole
-- With what there is a row of for each partition: claims, beginnings, the boundaries in question, the restore point's
-- map and its read-back, what the open checkpoint froze, and the seek maps that are at work; with the contributions to
-- the open checkpoint, the batches that run, and when the batch that was started last began, or ended. The running
-- batches come in no order: asked for one, a planner without statistics walks the whole ledger in the order of its
-- index.
{head}, {wide}, claim.*, initial_offset.*, boundary_offset.*, checkpoint_offset.*, read_back.*,
    checkpoint_partition.*, seek_offset.*,
    (SELECT {contributions} FROM kcr.contribution k
     WHERE k.region_id = r.id AND k.sequence = r.open_checkpoint),
    (SELECT json_agg({batch}) FROM kcr.batch b WHERE b.region_id = r.id AND b.outcome IS NULL),
    (SELECT coalesce(b.finished_at, b.started_at) FROM kcr.batch b
     WHERE b.region_id = r.id ORDER BY b.number DESC LIMIT 1)
FROM kcr.region r
CROSS JOIN LATERAL (SELECT {claims} FROM kcr.claim t WHERE t.region_id = r.id) claim
CROSS JOIN LATERAL (SELECT {initial} FROM kcr.initial_offset t WHERE t.region_id = r.id) initial_offset
CROSS JOIN LATERAL (
    SELECT {boundary_offsets} FROM kcr.boundary_offset t WHERE t.region_id = r.id AND t.boundary = ANY (
        ARRAY[r.next_boundary]
        || ARRAY(SELECT o.boundary FROM kcr.checkpoint o WHERE o.region_id = r.id AND o.sequence = r.open_checkpoint)
        || ARRAY(SELECT o.boundary FROM kcr.checkpoint_request o
                 WHERE o.region_id = r.id AND o.state IN ('queued', 'open')))
) boundary_offset
CROSS JOIN LATERAL (
    SELECT {offsets} FROM kcr.checkpoint_offset t
    WHERE t.region_id = r.id AND t.sequence = CASE WHEN r.restore_point_epoch IS NULL THEN r.restore_point END
) checkpoint_offset
CROSS JOIN LATERAL (
    SELECT {offsets} FROM kcr.read_back t
    WHERE t.region_id = r.id AND t.sequence = CASE WHEN r.restore_point_epoch IS NULL THEN r.restore_point END
) read_back
CROSS JOIN LATERAL (
    SELECT {partitions} FROM kcr.checkpoint_partition t WHERE t.region_id = r.id AND t.sequence = r.open_checkpoint
) checkpoint_partition
CROSS JOIN LATERAL (
    SELECT {seeks} FROM kcr.seek_offset t WHERE t.region_id = r.id AND t.epoch = ANY (
        ARRAY[r.restore_point_epoch, CASE WHEN r.state IN ({reset_states}) THEN r.epoch END])
) seek_offset

-- name: region
SELECT {whole}
WHERE r.name = :name

-- name: regions
SELECT r.name, {whole}
ORDER BY r.name COLLATE "C"

-- name: contributed
-- What was contributed to the restore points of all regions, which verdicts ask for.
SELECT r.id, r.restore_point,
    (SELECT {contributions} FROM kcr.contribution k WHERE k.region_id = r.id AND k.sequence = r.restore_point)
FROM kcr.region r WHERE r.restore_point IS NOT NULL AND r.restore_point_epoch IS NULL

-- name: skips
-- The records to step over, by partition.
SELECT group_id, topic, partition, array_agg(skipped_offset ORDER BY skipped_offset)
FROM kcr.skip WHERE region_id = :region GROUP BY group_id, topic, partition

-- As one member sees it; no lock before it

-- name: region_of_member
SELECT {head}, {wide}, claim.*
FROM kcr.region r
CROSS JOIN LATERAL (
    SELECT {claims} FROM kcr.claim t WHERE t.region_id = r.id AND t.group_id = :group AND t.owner_index = :index
) claim
WHERE r.name = :name

-- name: places_of_member
-- Of the partitions that one member holds: the restore point, its commit read-back, and where a boundary falls. Each is
-- looked up by itself (OFFSET 0), or a planner that takes the tables for short reads all of them for each claim.
SELECT c.topic, c.partition, c.topic_id, coalesce(o.next_offset, s.next_offset), e.next_offset,
       b.next_offset, b.inexact, b.leader_epoch
FROM kcr.claim c
LEFT JOIN LATERAL (
    SELECT * FROM kcr.checkpoint_offset t WHERE t.region_id = c.region_id AND t.sequence = :restore_point
      AND t.group_id = c.group_id AND t.topic = c.topic AND t.partition = c.partition OFFSET 0
) o ON true
LEFT JOIN LATERAL (
    SELECT * FROM kcr.read_back t WHERE t.region_id = c.region_id AND t.sequence = :restore_point
      AND t.group_id = c.group_id AND t.topic = c.topic AND t.partition = c.partition OFFSET 0
) e ON true
LEFT JOIN LATERAL (
    SELECT * FROM kcr.seek_offset t WHERE t.region_id = c.region_id AND t.epoch = :restore_point_epoch
      AND t.group_id = c.group_id AND t.topic = c.topic AND t.partition = c.partition OFFSET 0
) s ON true
LEFT JOIN LATERAL (
    SELECT * FROM kcr.boundary_offset t WHERE t.region_id = c.region_id AND t.boundary = :boundary
      AND t.group_id = c.group_id AND t.topic = c.topic AND t.partition = c.partition AND t.topic_id = c.topic_id
    OFFSET 0
) b ON true
WHERE c.region_id = :region AND c.group_id = :group AND c.owner_index = :index

-- As a batch's start or finish needs it

-- part: admission
-- The region's head, the member, its lease, and the open checkpoint.
{head},
    (SELECT {member} FROM kcr.member t WHERE t.region_id = r.id AND t.group_id = :group AND t.member_index = :index),
    (SELECT {lease} FROM kcr.lease t WHERE t.region_id = r.id AND t.group_id = :group AND t.member_index = :index),
    (SELECT {checkpoint} FROM kcr.checkpoint t WHERE t.region_id = r.id AND t.sequence = r.open_checkpoint)

-- part: with_batch
-- The region, and the running batch of this id.
kcr.region r LEFT JOIN kcr.batch b ON b.region_id = r.id AND b.batch_id = :batch AND b.outcome IS NULL

-- name: admit_start
-- With the claims of some partitions, and the batch where it has started already. Whatever takes arrays joins them with
-- the claims as a whole, region included, behind a fence (OFFSET 0): on a table without statistics the planner would see
-- the region's claims as few, and walk through the arrays once for each.
SELECT {admission}, CASE WHEN b.number IS NOT NULL THEN {batch} END, c.*
FROM {with_batch}
CROSS JOIN LATERAL (
    SELECT {claims}
    FROM (SELECT r.id AS region_id, u.*
          FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]))
              AS u (group_id, topic, partition) OFFSET 0) p
    JOIN kcr.claim t USING (region_id, group_id, topic, partition)
) c
WHERE r.name = :name

-- name: admit_finish
-- With the ranges of the running batch, each with what its claim says.
SELECT {admission}, CASE WHEN b.number IS NOT NULL THEN {batch_alone} END, c.*
FROM {with_batch}
CROSS JOIN LATERAL (
    SELECT {ranges}, {claim_values}
    FROM kcr.batch_range g
    LEFT JOIN kcr.claim t ON t.region_id = g.region_id AND t.group_id = g.group_id AND t.topic = g.topic
                         AND t.partition = g.partition
    WHERE g.batch_number = b.number
) c
WHERE r.name = :name

-- name: boundaries_in
-- Where a boundary falls in some partitions, of the topics that their claims know.
SELECT {boundary_offset}
FROM (SELECT CAST(:region AS bigint) AS region_id, CAST(:boundary AS timestamptz) AS boundary, u.*
      FROM unnest(CAST(:groups AS text[]), CAST(:topics AS text[]), CAST(:partitions AS bigint[]),
                  CAST(:topic_ids AS text[]))
          AS u (group_id, topic, partition, topic_id) OFFSET 0) p
JOIN kcr.boundary_offset t USING (region_id, group_id, topic, partition, topic_id, boundary)

-- Writing its own row

-- part: head_row
json_populate_record(CAST(NULL AS kcr.region), CAST(:head AS json)) n

-- name: insert_head
-- A new region; its name is unique.
INSERT INTO kcr.region (name, {head_columns}) SELECT :name, {given_head} FROM {head_row} RETURNING id

-- name: update_head
UPDATE kcr.region r SET {set_head} FROM {head_row} WHERE r.id = :region

-- name: update_moving
-- Without what seldom changes: a spec is long.
UPDATE kcr.region r SET {set_moving} FROM {head_row} WHERE r.id = :region
