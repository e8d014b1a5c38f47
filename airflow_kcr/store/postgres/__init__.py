"""The region store on Postgres: SQLAlchemy Core and psycopg 3; `PostgresTransactions` is what others use."""

from __future__ import annotations

from airflow_kcr.store.postgres.connections import build_engine
from airflow_kcr.store.postgres.transactions import PostgresTransactions

__all__ = ["PostgresTransactions", "build_engine"]
