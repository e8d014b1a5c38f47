"""What a table does with statements: a table that silently does less is refused, or the transaction is undone."""

from __future__ import annotations

import re

import psycopg
import pytest
from sqlalchemy.engine import make_url

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.rules import Delivery, SinkMode
from tests.support.databases import libpq
from tests.support.sink_tables import COLUMNS, Table


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(libpq(url)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def filled(url: str) -> Table:
    out = Table(url=url)
    out.reset({0: 0})
    out.run({0: (0, 1000)})
    return out


SKIP = """
    CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER skip BEFORE {} ON out FOR EACH ROW {} EXECUTE FUNCTION skip()
"""


def test_rows_that_a_trigger_keeps_are_not_written_twice_by_a_reset(empty_database_url: str) -> None:
    out = filled(empty_database_url)
    execute(empty_database_url, SKIP.format("DELETE", ""))
    out.epoch, out.timeline = 2, 2
    with pytest.raises(SinkError, match=r"keeps rows that were deleted.*trigger BEFORE DELETE"):
        out.reset({0: 0})
    assert out.ask("SELECT count(*) FROM out") == [(1000,)]
    execute(empty_database_url, "DROP TRIGGER skip ON out")
    out.reset({0: 0})
    out.run({0: (0, 1000)})
    assert out.ask("SELECT count(*) FROM out") == [(1000,)]


def test_rows_that_a_trigger_leaves_out_take_the_batch_with_them(empty_database_url: str) -> None:
    out = filled(empty_database_url)
    execute(empty_database_url, SKIP.format("INSERT", "WHEN (new.size % 7 = 0)"))
    with pytest.raises(SinkError, match=r"took 17 of the 20 rows.*trigger"):
        out.run({0: (1000, 1020)})
    assert out.ask("SELECT count(*) FROM out") == [(1000,)]
    assert out.ask('SELECT "offset" FROM kcr_progress') == [(1000,)]


def test_rows_that_a_trigger_does_not_replace_take_the_batch_with_them(empty_database_url: str) -> None:
    out = Table(url=empty_database_url, options={"mode": SinkMode.UPSERT, "key": ("value",)})
    out.reset({0: 0})
    out.run({0: (0, 10)})
    execute(empty_database_url, SKIP.format("UPDATE", ""))
    call = out.call({0: (10, 12)})
    again = [("0:3", 30, "t", 0, 10, 0), ("new", 31, "t", 0, 11, 1)]
    with pytest.raises(SinkError, match=r"took 1 of the 2 rows"):
        out.sink.insert(call, out.staged(call, again))
    assert out.ask("SELECT count(*) FROM out") == [(10,)]


RULE = "CREATE RULE nothing AS ON {} TO out DO INSTEAD NOTHING"


@pytest.mark.parametrize("verb", ["INSERT", "UPDATE", "DELETE"])
def test_a_table_with_a_rule_that_replaces_statements_is_refused(empty_database_url: str, verb: str) -> None:
    filled(empty_database_url)
    execute(empty_database_url, RULE.format(verb))
    with pytest.raises(ConfigurationError, match='rule nothing replaces statements; run: DROP RULE "nothing" ON'):
        Table(url=empty_database_url).sink.check()
    execute(empty_database_url, 'DROP RULE "nothing" ON "public"."out"')
    Table(url=empty_database_url).sink.check()


POLICIES = {
    "without DELETE": "CREATE POLICY p ON out FOR INSERT WITH CHECK (true)",
    "some rows": "CREATE POLICY p ON out USING (size < 500) WITH CHECK (true)",
    "none": "SELECT 1",
}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_table_whose_rows_a_policy_hides_is_refused(empty_database_url: str, policy: str) -> None:
    filled(empty_database_url)
    database = make_url(empty_database_url).database
    user = f"writer_of_{database}"
    execute(
        empty_database_url,
        f"CREATE USER {user} PASSWORD 'x'",
        f"GRANT USAGE, CREATE ON SCHEMA public TO {user}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {user}",
        "ALTER TABLE out ENABLE ROW LEVEL SECURITY",
        POLICIES[policy],
    )
    url = make_url(empty_database_url).set(username=user, password="x").render_as_string(hide_password=False)
    try:
        with pytest.raises(ConfigurationError, match=r"row-level security .* ALTER ROLE .* BYPASSRLS;"):
            Table(url=url).sink.check()
        execute(empty_database_url, f"ALTER ROLE {user} BYPASSRLS")
        out = Table(url=url, epoch=2, timeline=2)
        out.sink.check()
        execute(empty_database_url, f"ALTER ROLE {user} NOBYPASSRLS")  # while a member runs
        with pytest.raises(SinkError, match="no right"):
            out.reset({0: 0})
        execute(empty_database_url, f"ALTER ROLE {user} BYPASSRLS")
        out.reset({0: 0})
        out.run({0: (0, 1000)})
        assert out.ask("SELECT count(*) FROM out") == [(1000,)]
    finally:
        execute(empty_database_url, f"DROP OWNED BY {user}", f"DROP USER {user}")


def test_a_table_that_a_crash_empties_is_refused(empty_database_url: str) -> None:
    filled(empty_database_url)
    execute(empty_database_url, "ALTER TABLE out SET UNLOGGED")
    with pytest.raises(ConfigurationError, match=r'"out" is unlogged.*run: ALTER TABLE "out" SET LOGGED;'):
        Table(url=empty_database_url).sink.check()
    execute(empty_database_url, "ALTER TABLE out SET LOGGED")
    Table(url=empty_database_url).sink.check()


def test_a_partition_that_a_crash_empties_is_refused(empty_database_url: str) -> None:
    own = "kcr_source integer, kcr_topic text, kcr_partition integer, kcr_offset bigint, kcr_timeline bigint"
    execute(
        empty_database_url,
        f"CREATE TABLE out (value text, size bigint, {own}, kcr_sequence bigint) PARTITION BY RANGE (size)",
        "CREATE TABLE low PARTITION OF out FOR VALUES FROM (0) TO (500)",
        "CREATE UNLOGGED TABLE high PARTITION OF out FOR VALUES FROM (500) TO (1000)",
    )
    with pytest.raises(ConfigurationError, match="high is unlogged"):
        Table(url=empty_database_url).sink.check()


def test_a_partition_that_another_server_commits_is_refused(empty_database_url: str) -> None:
    own = "kcr_source integer, kcr_topic text, kcr_partition integer, kcr_offset bigint, kcr_timeline bigint"
    execute(
        empty_database_url,
        f"CREATE TABLE out (value text, size bigint, {own}, kcr_sequence bigint) PARTITION BY RANGE (size)",
        "CREATE FOREIGN DATA WRAPPER w",
        "CREATE SERVER far FOREIGN DATA WRAPPER w",
        "CREATE FOREIGN TABLE high PARTITION OF out FOR VALUES FROM (500) TO (1000) SERVER far",
    )
    refused = r'high is a foreign table.*run: (ALTER TABLE "public"."out" DETACH PARTITION high;)'
    with pytest.raises(ConfigurationError, match=refused) as caught:
        Table(url=empty_database_url).sink.check()
    found = re.search(refused, caught.value.message)
    assert found is not None
    execute(empty_database_url, found[1])
    Table(url=empty_database_url).sink.check()


KEYED = {"mode": SinkMode.UPSERT, "key": ("value",)}


def test_a_key_that_may_be_null_is_refused_unless_its_index_knows_null(empty_database_url: str) -> None:
    own = "kcr_source integer, kcr_topic text, kcr_partition integer, kcr_offset bigint, kcr_timeline bigint"
    execute(
        empty_database_url,
        f"CREATE TABLE out (value text, size bigint, {own}, kcr_sequence bigint)",
        "CREATE UNIQUE INDEX by_value ON out (value)",
    )
    with pytest.raises(ConfigurationError, match=r'may be NULL.*ALTER COLUMN "value" SET NOT NULL; or .* NULLS NOT'):
        Table(url=empty_database_url, options=KEYED).sink.check()
    with psycopg.connect(libpq(empty_database_url)) as connection:
        knows_null = connection.info.server_version >= 150000
    if knows_null:
        execute(empty_database_url, "DROP INDEX by_value", "CREATE UNIQUE INDEX ON out (value) NULLS NOT DISTINCT")
        out = Table(url=empty_database_url, options=KEYED)
        out.reset({0: 0})
        for offset in (0, 1):
            call = out.call({0: (offset, offset + 1)})
            out.sink.insert(call, out.staged(call, [(None, offset, "t", 0, offset, 0)]))
        assert out.ask("SELECT size FROM out") == [(1,)]
    else:
        execute(empty_database_url, "ALTER TABLE out ALTER COLUMN value SET NOT NULL")
        Table(url=empty_database_url, options=KEYED).sink.check()


NAMES = ["50%", "%s", "%(x)s", 'a"b', "a'b", "{}", ":x", "a\\b", "a b", "größe", "SELECT"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", list(SinkMode))
def test_any_name_of_a_table_a_schema_and_a_key_is_one(empty_database_url: str, name: str, mode: SinkMode) -> None:
    quoted = name.replace('"', '""')
    execute(empty_database_url, f'CREATE SCHEMA "{quoted}"')
    keyed = {"mode": mode, "key": (name,)} if mode is SinkMode.UPSERT else {"mode": mode}
    out = Table(url=empty_database_url, delivery=Delivery.EXACTLY_ONCE, options={"table": f"{name}.t{name}", **keyed})
    columns = {name: "text", "size": "bigint"}
    for epoch in (1, 2):
        out.epoch = out.timeline = epoch
        out.reset({0: 0})
        call = out.call({0: (0, 3)})
        staging = out.sink.stage(call, columns)
        out.fill(staging, out.rows_of(call))
        out.sink.insert(call, staging)
    Table(url=empty_database_url, options={"table": f"{name}.t{name}", **keyed}).sink.check()
    assert out.ask(f'SELECT count(*) FROM "{quoted}"."t{quoted}"') == [(3,)]


def test_a_name_that_postgres_would_cut_is_told_as_such(empty_database_url: str) -> None:
    name = "ü" * 32
    with pytest.raises(ConfigurationError, match="longer than the 63 bytes"):
        Table(url=empty_database_url, options={"table": name}).sink.check()
    out = Table(url=empty_database_url)
    with pytest.raises(SinkError, match=r"longer than the 63 bytes.*shorter one in the pipeline"):
        out.sink.stage(out.call({0: (0, 1)}), {name: "text"})


@pytest.mark.parametrize(
    "column", ["doubled bigint GENERATED ALWAYS AS (size * 2) STORED", "doubled bigint GENERATED ALWAYS AS IDENTITY"]
)
def test_a_column_that_postgres_computes_is_told_as_such(empty_database_url: str, column: str) -> None:
    out = filled(empty_database_url)
    execute(empty_database_url, f"ALTER TABLE out ADD COLUMN {column}")
    with pytest.raises(SinkError, match=r"computes column doubled .*leave it out in the pipeline"):
        out.sink.stage(out.call({0: (1000, 1001)}), {**COLUMNS, "doubled": "bigint"})
