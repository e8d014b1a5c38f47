"""What the sink finds before anything is consumed: each refusal names the column or right, and the SQL that helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from airflow_kcr.errors import ConfigurationError, SinkError
from airflow_kcr.protocol.rules import SinkMode
from tests.support.sink_tables import COLUMNS, Table

OWN = (
    "kcr_source integer, kcr_topic text, kcr_partition integer, kcr_offset bigint, kcr_timeline bigint, "
    "kcr_sequence bigint"
)
UPSERT: dict[str, Any] = {"mode": SinkMode.UPSERT, "key": ("value",)}
ROLE = "plain_writer"


@pytest.fixture
def writer(empty_database_url: str) -> Iterator[Table]:
    """A sink of a user who has no right to anything yet."""
    admin = Table(url=empty_database_url)
    admin.ask(f"DO $$ BEGIN CREATE ROLE {ROLE} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    admin.ask("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    url = make_url(empty_database_url).set(username=ROLE).render_as_string(hide_password=False)
    yield Table(url=url)
    admin.ask(f"DROP OWNED BY {ROLE}")


def refusal(out: Table) -> str:
    with pytest.raises(ConfigurationError) as raised:
        out.sink.check()
    return str(raised.value)


def advice(text: str) -> list[str]:
    """The SQL that a refusal recommends."""
    return re.findall(r"run: (.*?;)", text)


def test_a_table_that_does_not_exist_is_made_with_the_first_batch(empty_database_url: str) -> None:
    out = Table(url=empty_database_url)
    out.sink.check()
    assert out.ask("SELECT to_regclass('out')") == [(None,)]
    out.reset({0: 0})
    out.run({0: (0, 1)})
    columns = out.ask(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'out'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert columns == [
        ("value", "text"),
        ("size", "bigint"),
        ("kcr_source", "integer"),
        ("kcr_topic", "text"),
        ("kcr_partition", "integer"),
        ("kcr_offset", "bigint"),
        ("kcr_timeline", "bigint"),
        ("kcr_sequence", "bigint"),
    ]


def test_checking_again_changes_nothing(empty_database_url: str) -> None:
    out = Table(url=empty_database_url)
    out.sink.check()
    out.reset({0: 0})
    out.sink.check()
    assert out.fence() == 1


class TestSchemas:
    def test_that_are_missing_are_named(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url, options={"table": "air.out"})
        assert advice(refusal(out)) == ['CREATE SCHEMA "air";']

    def test_have_the_sinks_tables_beside_the_target(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url, options={"table": "air.out"})
        out.ask("CREATE SCHEMA air")
        out.reset({0: 0})
        out.run({0: (0, 2)})
        assert len(out.held()) == 2
        assert out.ask("SELECT count(*) FROM air.kcr_progress") == [(1,)]

    def test_are_found_by_the_search_path(self, empty_database_url: str) -> None:
        Table(url=empty_database_url).ask("CREATE SCHEMA air")
        url = make_url(empty_database_url).update_query_dict({"options": "-csearch_path=air"})
        out = Table(url=url.render_as_string(hide_password=False))
        out.sink.check()
        with out.sink.deciding() as found:
            assert found.schema == "air"

    def test_in_which_no_table_may_be_made_are_named_with_the_right(
        self, writer: Table, empty_database_url: str
    ) -> None:
        text = refusal(writer)
        assert advice(text) == [f'GRANT USAGE, CREATE ON SCHEMA "public" TO "{ROLE}";']
        Table(url=empty_database_url).ask(advice(text)[0])
        writer.reset({0: 0})
        writer.run({0: (0, 2)})


class TestTables:
    @pytest.mark.parametrize(("mode", "right"), [({}, "DELETE"), (UPSERT, "UPDATE")])
    def test_without_rights_are_refused_with_those_that_are_missing(
        self, writer: Table, empty_database_url: str, mode: dict[str, Any], right: str
    ) -> None:
        admin = Table(url=empty_database_url)
        admin.ask(f"GRANT CREATE ON SCHEMA public TO {ROLE}")
        admin.ask(f"CREATE TABLE out (value text PRIMARY KEY, size bigint, {OWN})")
        out = Table(url=writer.url, options=mode)
        text = refusal(out)
        assert advice(text) == [f'GRANT SELECT, INSERT, {right} ON "public"."out" TO "{ROLE}";']
        admin.ask(advice(text)[0])
        out.reset({0: 0})
        out.run({0: (0, 2)})
        out.epoch, out.timeline = 2, 2
        out.reset({0: 0})

    def test_of_the_sink_that_another_user_made_are_refused_with_the_rights(
        self, writer: Table, empty_database_url: str
    ) -> None:
        admin = Table(url=empty_database_url)
        admin.sink.check()
        admin.ask(f"GRANT CREATE ON SCHEMA public TO {ROLE}")
        for _ in range(3):
            for statement in advice(refusal(writer)):
                admin.ask(statement)
        writer.sink.check()

    def test_without_the_sinks_columns_are_refused_with_what_adds_them(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url)
        out.ask("CREATE TABLE out (size bigint, value text, kcr_offset bigint, kcr_partition integer)")
        text = refusal(out)
        assert "column kcr_source, kcr_topic, kcr_timeline, kcr_sequence is missing" in text
        out.ask(advice(text)[0])
        out.reset({0: 0})
        assert out.run({0: (0, 2)}) == 2
        assert out.ask("SELECT value, size FROM out WHERE kcr_offset = 1") == [("0:1", 1)]

    def test_with_columns_of_another_type_are_refused(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url)
        out.ask(f"CREATE TABLE out (value text, {OWN.replace('kcr_offset bigint', 'kcr_offset text')})")
        assert "column kcr_offset is text and must be bigint" in refusal(out)

    def test_that_are_views_are_refused(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url)
        out.ask("CREATE VIEW out AS SELECT 1 AS value")
        assert "public.out is no table" in refusal(out)

    def test_without_the_column_of_a_key_are_refused(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url, options=UPSERT)
        out.ask(f"CREATE TABLE out (size bigint, {OWN})")
        said = refusal(out)
        assert "column value of the key is missing" in said
        assert "CREATE UNIQUE INDEX" not in said, "there is nothing yet that it could be on"

    @pytest.mark.parametrize(
        "index",
        [
            "CREATE INDEX ON out (value)",
            "CREATE UNIQUE INDEX ON out (value, size)",
            "CREATE UNIQUE INDEX ON out (value) WHERE size > 0",
            "CREATE UNIQUE INDEX ON out (lower(value))",
        ],
    )
    def test_without_a_unique_index_on_the_key_are_refused_with_what_makes_one(
        self, empty_database_url: str, index: str
    ) -> None:
        out = Table(url=empty_database_url, options=UPSERT)
        out.ask(f"CREATE TABLE out (value text NOT NULL, size bigint, {OWN})")
        out.ask(index)
        text = refusal(out)
        assert advice(text) == ['CREATE UNIQUE INDEX ON "public"."out" ("value");']
        out.ask(advice(text)[0])
        out.reset({0: 0})
        assert out.run({0: (0, 2)}) == 2

    def test_with_columns_that_fill_themselves_are_fine(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url)
        out.ask(
            "CREATE TABLE out (id bigint GENERATED ALWAYS AS IDENTITY, value text, size bigint, "
            f"twice bigint GENERATED ALWAYS AS (size * 2) STORED, seen timestamptz NOT NULL DEFAULT now(), {OWN})"
        )
        out.reset({0: 0})
        assert out.run({0: (0, 2)}) == 2


class TestColumns:
    """What a pipeline writes, found when it does."""

    def test_that_the_table_does_not_have_are_named(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url)
        out.ask(f"CREATE TABLE out (value text, {OWN})")
        with pytest.raises(SinkError, match=r"public\.out has no column size"):
            out.sink.stage(out.call({0: (0, 2)}), COLUMNS)

    def test_that_the_table_needs_are_named(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url)
        out.ask(f"CREATE TABLE out (value text, size bigint, day date NOT NULL, {OWN})")
        with pytest.raises(SinkError, match="needs column day"):
            out.sink.stage(out.call({0: (0, 2)}), COLUMNS)

    def test_of_the_key_have_to_be_written(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url, options={"mode": SinkMode.UPSERT, "key": ("id",)})
        with pytest.raises(SinkError, match="column id of the key"):
            out.sink.stage(out.call({0: (0, 2)}), COLUMNS)
        out.ask(f"CREATE TABLE out (value text, size bigint, id bigint PRIMARY KEY DEFAULT 7, {OWN})")
        with pytest.raises(SinkError, match="needs column id"):
            out.sink.stage(out.call({0: (0, 2)}), COLUMNS)

    def test_that_are_named_like_the_sinks_own_are_refused(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url)
        with pytest.raises(SinkError, match="column kcr_offset begins with kcr_"):
            out.sink.stage(out.call({0: (0, 2)}), {**COLUMNS, "kcr_offset": "bigint"})

    @pytest.mark.parametrize(
        ("constraint", "named"),
        [
            ("size bigint NOT NULL", "column size"),
            ("size bigint CHECK (size > 5)", "constraint out_size_check"),
            ("size bigint UNIQUE", "constraint out_size_key"),
        ],
    )
    def test_whose_values_break_a_rule_of_the_table_are_named_without_the_values(
        self, empty_database_url: str, constraint: str, named: str
    ) -> None:
        out = Table(url=empty_database_url)
        out.ask(f"CREATE TABLE out (value text, {constraint}, {OWN})")
        out.reset({0: 0})
        call = out.call({0: (0, 2)})
        size = None if "NOT NULL" in constraint else 4
        staged = out.staged(call, [("hunter2", size, "t", 0, offset, offset) for offset in (0, 1)])
        with pytest.raises(SinkError) as raised:
            out.sink.insert(call, staged)
        assert named in str(raised.value)
        assert "hunter2" not in str(raised.value)
        assert (out.held(), out.progress()[0]) == ([], (1, 0))

    def test_that_are_dropped_between_staging_and_publication_hold_it_back(self, empty_database_url: str) -> None:
        out = Table(url=empty_database_url)
        out.reset({0: 0})
        out.run({0: (0, 2)})
        call = out.call({0: (2, 4)})
        staged = out.staged(call)
        out.ask("ALTER TABLE out DROP COLUMN size")
        with pytest.raises(SinkError, match="a column is gone"):
            out.sink.insert(call, staged)
        assert out.progress()[0] == (1, 2)
