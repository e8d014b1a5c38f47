"""The store's schema as earlier programs had it, made from the migrations and from what a later one has stored."""

from __future__ import annotations

import json
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from airflow_kcr.store import migrations

FOLDER = Path(migrations.__file__).parent


def config() -> Config:
    """Return what Alembic has to know to find the migrations."""
    made = Config()
    made.set_main_option("script_location", str(FOLDER))
    made.set_main_option("path_separator", "os")
    return made


def upgrade_to(url: str, revision: str) -> None:
    """Bring an empty database to one revision, as an earlier program would have."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS kcr")
        connection.commit()
        settings = config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, revision)


def execute(url: str, statement: str) -> None:
    """Run a statement in a transaction of its own."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)


WORDS = "0015"
"""The revision that renames tables, columns and events."""

UNDONE = "0021"
"""The revision that drops from resets what they undid."""

STARTED = "0018"
"""The revision that renames columns of batches, claims, checkpoints and resets."""


def take_words_back(url: str) -> None:
    """Give what a later program has stored, in the schema `later`, the names from before the words were changed."""
    words = ScriptDirectory.from_config(config()).get_revision(WORDS).module
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for old, new in words.TABLES:
            connection.exec_driver_sql(f"ALTER TABLE later.{new} RENAME TO {old}")
        for table, old, new in words.COLUMNS:
            connection.exec_driver_sql(f"ALTER TABLE later.{table} RENAME COLUMN {new} TO {old}")
        backwards = {
            name: json.dumps({new: old for old, new in renamed.items()})
            for name, renamed in (("kinds", words.KINDS), ("fields", words.FIELDS))
        }
        statement = text(str(words.RENAME_EVENTS).replace("kcr.event", "later.event"))
        for region, counter in connection.exec_driver_sql("SELECT id, counter FROM later.region").all():
            connection.execute(statement, {"region": region, "after": 0, "upto": counter, **backwards})


def take_started_back(url: str) -> None:
    """Give what a later program has stored, in the schema `later`, the columns from before batches were started."""
    for table, old, new in ScriptDirectory.from_config(config()).get_revision(STARTED).module.COLUMNS:
        execute(url, f"ALTER TABLE later.{table} RENAME COLUMN {new} TO {old}")
    execute(url, "UPDATE later.person_reset SET state = 'begun' WHERE state = 'started'")


def take_back_to(url: str, revision: str) -> None:
    """Give a database the schema of an earlier revision, with the rows it has, without what it had no place for."""
    execute(url, "ALTER SCHEMA kcr RENAME TO later")
    if int(revision) < int(UNDONE):
        execute(url, "ALTER TABLE later.reset ADD COLUMN undoes jsonb NOT NULL DEFAULT '[]'")
    if int(revision) < int(STARTED):
        take_started_back(url)
    if int(revision) < int(WORDS):
        take_words_back(url)
    upgrade_to(url, revision)
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # rows in any order
        shared = connection.exec_driver_sql(
            "SELECT table_name, string_agg(quote_ident(column_name), ', ') FROM information_schema.columns c "
            "WHERE table_schema = 'kcr' AND table_name <> 'alembic_version' AND EXISTS (SELECT FROM "
            "information_schema.columns l WHERE l.table_schema = 'later' AND l.table_name = c.table_name "
            "AND l.column_name = c.column_name) GROUP BY table_name"
        )
        for table, columns in shared.all():
            connection.exec_driver_sql(
                f"INSERT INTO kcr.{table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM later.{table}"
            )
        connection.exec_driver_sql("DROP SCHEMA later CASCADE")
