-- Samples of how far a region's groups are behind.

-- name: add
INSERT INTO kcr.lag_sample (region_id, group_id, at, epoch, points, body)
VALUES (:region, :group, :at, :epoch, :points, :body) ON CONFLICT DO NOTHING

-- name: kept
SELECT group_id, at, points FROM kcr.lag_sample WHERE region_id = :region

-- name: drop
DELETE FROM kcr.lag_sample WHERE (region_id, group_id, at) = (:region, :group, :at)

-- name: since_of
-- Those of several regions.
SELECT region_id, group_id, at, epoch, body FROM kcr.lag_sample
WHERE region_id = ANY (CAST(:regions AS bigint[])) AND at > :since
  AND (CAST(:upto AS timestamptz) IS NULL OR at <= :upto) ORDER BY at, group_id COLLATE "C"
