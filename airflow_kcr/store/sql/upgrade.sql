-- What an upgrade of the schema asks beside its migrations.

-- name: try_lock
-- Again and again: one that waits in the server has a snapshot, and an index that is made concurrently waits for all of
-- them.
SELECT pg_try_advisory_lock(:key)

-- name: limits
-- Of the session. An index of a long ledger takes its time: a limit of the server's or the user's own, which is meant
-- for programs, would end every try at the same place. But programs that want a table after this session wait behind
-- it, those that only read included. So it gives up soon, though not before the server has ended an autovacuum that is
-- in the way, which it does after deadlock_timeout.
SELECT set_config('statement_timeout', '0', false), set_config('idle_in_transaction_session_timeout', '0', false),
       set_config('lock_timeout', CAST(CAST(setting AS bigint) + 1000 AS text), false)
FROM pg_settings WHERE name = 'deadlock_timeout'

-- name: holder
-- Which session's transaction has used tables of the schema for longest; it is hidden since when from users who may not
-- see it.
SELECT a.pid, coalesce(nullif(a.application_name, ''), a.backend_type, 'unknown'),
       CAST(extract(epoch FROM clock_timestamp() - a.xact_start) AS bigint)
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND EXISTS (
    SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE l.pid = a.pid AND l.granted AND n.nspname = 'kcr')
ORDER BY a.xact_start NULLS LAST LIMIT 1
