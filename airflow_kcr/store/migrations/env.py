"""Run by Alembic: the migrations on the connection that `schema_upgrade` hands over, each one transaction."""

from __future__ import annotations

from alembic import context

from airflow_kcr.store.postgres.revision import SCHEMA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    version_table_schema=SCHEMA,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
