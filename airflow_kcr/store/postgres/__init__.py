"""What the region store is made of on Postgres: SQLAlchemy Core and psycopg 3; `store.regions` is what others use."""

from __future__ import annotations

from airflow_kcr.store.postgres.connections import build_engine

__all__ = ["build_engine"]
