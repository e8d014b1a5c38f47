"""The region store: Postgres through SQLAlchemy Core, an in-memory twin, and the migrations."""

from __future__ import annotations
