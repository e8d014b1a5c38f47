"""The migrations of the region store: ordered, numbered, forward only, reviewed as SQL.

A new one is a file in `versions`, `NNNN_what_it_does.py`, with the next number as its revision. It changes
`store.postgres.tables` and `schema_upgrade.HEAD` with it; `tests/migration` holds the three together and says how the
snapshot is renewed. A migration runs in one transaction with all others that are due, so it must be able to.
"""

from __future__ import annotations
