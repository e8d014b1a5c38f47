"""What Postgres has in the schema `kcr`, as text: columns, constraints and indexes, in an order of their own.

What the migrations make of it is committed as a snapshot, which says of every table what it comes to.
"""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

_COLUMNS = """
    SELECT c.relname, a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
           || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
           || CASE a.attidentity WHEN 'a' THEN ' generated always as identity' ELSE '' END
           || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
           || coalesce(' with ' || array_to_string(a.attoptions, ', '), '')
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'kcr'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY c.relname, a.attnum
"""
_CONSTRAINTS = """
    SELECT c.relname, 'constraint ' || n.conname || ' ' || pg_get_constraintdef(n.oid)
    FROM pg_constraint n JOIN pg_class c ON c.oid = n.conrelid
    WHERE c.relnamespace = 'kcr'::regnamespace AND n.contype IN ('p', 'u', 'f', 'c') ORDER BY c.relname, n.conname
"""
_INDEXES = """
    SELECT t.relname, 'index ' || pg_get_indexdef(i.indexrelid)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
    WHERE t.relnamespace = 'kcr'::regnamespace
      AND NOT EXISTS (SELECT FROM pg_constraint n WHERE n.conindid = i.indexrelid AND n.contype IN ('p', 'u'))
    ORDER BY t.relname, c.relname
"""
_OPTIONS = """
    SELECT c.relname, 'with ' || array_to_string(c.reloptions, ', ') FROM pg_class c
    WHERE c.relnamespace = 'kcr'::regnamespace AND c.relkind = 'r' AND c.reloptions IS NOT NULL ORDER BY c.relname
"""


def catalogue(url: str) -> str:
    """Return the schema `kcr` of a database as text, the table of Alembic left out."""
    tables: dict[str, list[str]] = {}
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        for query in (_COLUMNS, _CONSTRAINTS, _INDEXES, _OPTIONS):
            for table, line in connection.exec_driver_sql(query):
                tables.setdefault(table, []).append(line)
    tables.pop("alembic_version", None)
    return "".join(
        f"table {name}\n" + "".join(f"  {line}\n" for line in lines) + "\n" for name, lines in sorted(tables.items())
    )


SNAPSHOT = Path(__file__).parent.parent / "migration" / "schema_snapshot.txt"

_TABLE = re.compile(r"^table (\w+)\n((?:  .*\n)*)", re.MULTILINE)
_COLUMN = re.compile(r"^  (?!constraint |index |with )(\w+) ", re.MULTILINE)
_KEY = re.compile(r"PRIMARY KEY \((.*)\)")


def tables_in(text: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return the columns and the key of each table of a catalogue, by its name."""
    found = {}
    for name, lines in _TABLE.findall(text):
        key = _KEY.search(lines)
        found[name] = (_COLUMN.findall(lines), [] if key is None else key[1].split(", "))
    return found
