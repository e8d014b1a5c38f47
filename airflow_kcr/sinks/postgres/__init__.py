"""A table in Postgres whose rows and whose progress are one transaction, under a fence.

The database may be another one than the store's. Beside the target table, in its schema, are four kinds of tables:

- `kcr_fence`: one row for each sink of a group, with the epoch below which writes are refused;
- `kcr_progress`: one row for each partition, with the timeline and the offset up to which its records are in the
  target;
- `kcr_crash_mark`: one row, unlogged like the next: a crash of the server takes it, and so tells who staged before;
- `kcr_staging_…`: one for each batch, unlogged, which executors fill in parallel; dropped when the batch is inserted.
"""
