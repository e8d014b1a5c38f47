-- Members' leases, which are renewed without a region's lock.

-- name: renew
-- One statement for all members of a process, whichever regions they are in; answered, renewed or not, with what tells
-- a member whether anything is worth reading. An expired lease is not revived, nor one of another incarnation. It waits
-- for no row: a lease that another transaction writes at that moment, a takeover for instance, is skipped and has no
-- answer. So one member never keeps the others of its process from being renewed, and two processes that renew the same
-- rows never wait for each other.
-- A lease that is `held` and not renewed was being written. What is `free` was judged as it was locked, and stays so. A
-- region that is not there has no row, a member that is not there has no incarnation. An event that a member knows of
-- and that the store has dropped says nothing.
WITH asked AS (
    SELECT u.place, u.incarnation, u.lease, u.lacks, r.id AS region_id, u.group_id, u.member_index,
           u.newest, u.newest_at, r.counter, r.epoch, r.reconcile_at
    FROM unnest(CAST(:regions AS text[]), CAST(:groups AS text[]), CAST(:indexes AS bigint[]),
                CAST(:incarnations AS bigint[]), CAST(:leases AS interval[]),
                CAST(:newest AS bigint[]), CAST(:newest_at AS timestamptz[]), CAST(:lacks AS text[]))
        WITH ORDINALITY AS u (region, group_id, member_index, incarnation, lease, newest, newest_at, lacks, place)
    JOIN kcr.region r ON r.name = u.region
), held AS (
    SELECT a.place FROM asked a JOIN kcr.lease l USING (region_id, group_id, member_index, incarnation)
    WHERE l.valid_until > clock_timestamp()
), free AS (
    SELECT a.place, a.region_id, a.group_id, a.member_index, a.incarnation, a.lease, a.lacks
    FROM asked a JOIN kcr.lease l USING (region_id, group_id, member_index, incarnation)
    WHERE l.valid_until > clock_timestamp()
    FOR NO KEY UPDATE OF l SKIP LOCKED
), renewed AS (
    UPDATE kcr.lease l SET valid_until = clock_timestamp() + f.lease, lacks = f.lacks
    FROM free f
    WHERE l.region_id = f.region_id AND l.group_id = f.group_id AND l.member_index = f.member_index
    RETURNING f.place
)
SELECT a.place, a.place IN (SELECT place FROM held),
       clock_timestamp(), a.counter, a.epoch, m.incarnation, a.place IN (SELECT place FROM renewed), a.reconcile_at,
       EXISTS (SELECT FROM kcr.event e
               WHERE e.region_id = a.region_id AND e.number = a.newest AND e.at <> a.newest_at)
FROM asked a
LEFT JOIN kcr.member m USING (region_id, group_id, member_index)

-- name: move
-- By a decision: only those that are still what it was made on.
UPDATE kcr.lease l SET incarnation = n.incarnation, valid_until = n.valid_until, lacks = ''
FROM unnest(CAST(:groups AS text[]), CAST(:indexes AS bigint[]), CAST(:incarnations AS bigint[]),
            CAST(:untils AS timestamptz[]), CAST(:were AS timestamptz[]))
    AS n (group_id, member_index, incarnation, valid_until, was)
WHERE l.region_id = :region AND l.group_id = n.group_id AND l.member_index = n.member_index
  AND l.valid_until = n.was
