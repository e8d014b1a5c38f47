"""The migrations of the region store: ordered, numbered, forward only, reviewed as SQL.

A new one is a file in `versions`, `NNNN_what_it_does.py`, with the next number as its revision, and its SQL beside it.
It changes `store.postgres.tables`, and `HEAD` there, with it; `tests/migration` holds the three together and says how
the snapshot is renewed. A migration is a transaction. What locks out programs that still run is at its end and short:
rows are converted before, in pieces that may be repeated, and indexes of tables that grow are built concurrently.
"""
