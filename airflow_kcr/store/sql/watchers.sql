-- What watchers of a region have notified people of.

-- name: add
INSERT INTO kcr.watcher (region_id, name, body) VALUES (:region, :watcher, :body) ON CONFLICT DO NOTHING

-- name: held
SELECT body FROM kcr.watcher WHERE (region_id, name) = (:region, :watcher) FOR UPDATE

-- name: change
UPDATE kcr.watcher SET body = :body WHERE (region_id, name) = (:region, :watcher)
