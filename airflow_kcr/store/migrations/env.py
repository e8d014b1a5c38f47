"""Run by Alembic: the migrations on the connection that `schema_upgrade` hands over, in its transaction."""

from __future__ import annotations

from alembic import context

from airflow_kcr.store.schema_upgrade import SCHEMA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    version_table_schema=SCHEMA,
)
context.run_migrations()
