from __future__ import annotations

from typing import Any

import pytest

from airflow_kcr.errors import SpecError
from airflow_kcr.protocol.rules import Delivery, SinkMode
from airflow_kcr.spec import Difference, SinkKind, SinkSpec, TakesEffect, differences, parse
from tests.unit.spec.examples import findings, group, small

HEAD = """
region: r
kafka: {bootstrap.servers: 'localhost:9092'}
groups:
  - group_id: g
    topics: [t]
    pipeline: 'jobs:process'
    sinks:
"""
PLACE = "groups[0].sinks.x"


def sink(**fields: Any) -> SinkSpec:  # noqa: ANN401 (each field has its own type)
    """A sink, with other fields as given."""
    return SinkSpec(**{"name": "x", "kind": SinkKind.POSTGRES, "table": "t", "url": "${DB}", **fields})


def wrong(*sinks: SinkSpec, delivery: Delivery = Delivery.AT_LEAST_ONCE) -> list[str]:
    """Where a group with these sinks has findings."""
    try:
        small(group(sinks=sinks, delivery=delivery))
    except SpecError as error:
        return [path for path, _ in error.findings]
    return []


def read(text: str) -> dict[str, str]:
    """What is wrong with one sink, as the file has it."""
    return findings(f"{HEAD}      x: {text}\n")


class TestWhatIsRead:
    def test_is_a_mapping_of_names(self) -> None:
        first, second = "b: {kind: postgres, table: u, conn_id: c}", "a: {kind: postgres, table: s.t, url: '${DB}'}"
        spec = parse(f"{HEAD}      {first}\n      {second}")
        assert spec.group("g").sinks == (sink(name="a", table="s.t"), sink(name="b", table="u", url=None, conn_id="c"))

    def test_shows_no_url(self) -> None:
        assert "hunter2" not in repr(sink(url="postgresql://u:hunter2@h/d"))


class TestFindings:
    def test_are_about_the_fields_that_are_wrong_and_no_others(self) -> None:
        found = read("{kind: postgre, url: 7, tabel: x, mode: upsrt, key: [1, a, a]}")
        assert sorted(found) == sorted(
            f"{PLACE}.{field}" for field in ("kind", "table", "url", "tabel", "mode", "key[0]", "key[2]")
        )
        assert "did you mean 'table'" in found[f"{PLACE}.tabel"]
        assert found[f"{PLACE}.kind"].startswith("line 9: ")

    @pytest.mark.parametrize("text", ["5", "[a]", ""])
    def test_of_what_is_no_sink_are_at_the_sink(self, text: str) -> None:
        assert list(read(text)) == [PLACE]

    def test_of_sinks_that_are_a_list_are_at_the_sinks(self) -> None:
        assert list(findings(f"{HEAD}      - {{kind: postgres}}\n")) == ["groups[0].sinks"]

    def test_of_keys_ask_for_them_with_upsert_only(self) -> None:
        assert wrong(sink(mode=SinkMode.UPSERT)) == [f"{PLACE}.key"]
        assert wrong(sink(key=("a",))) == [f"{PLACE}.key"]
        assert wrong(sink(mode=SinkMode.UPSERT, key=("a", "a", ""))) == [f"{PLACE}.key[1]", f"{PLACE}.key[2]"]

    @pytest.mark.parametrize("table", ["", ".t", "s.", "a.b.c", 'a"b', "x" * 64, "kcr_fence", "s.kcr_x", "\ud800"])
    def test_are_there_for_names_that_no_table_has(self, table: str) -> None:
        assert wrong(sink(table=table)) == [f"{PLACE}.table"]

    def test_are_there_for_a_name_that_is_there_twice(self) -> None:
        assert wrong(sink(), sink(table="u")) == [PLACE]

    def test_ask_for_one_way_to_the_database(self) -> None:
        assert wrong(sink(url=None)) == [PLACE]
        assert wrong(sink(conn_id="c")) == [f"{PLACE}.conn_id"]
        assert wrong(sink(url=None, conn_id=" ")) == [f"{PLACE}.conn_id"]

    def test_refuse_exactly_once_with_none_or_with_two_sinks(self) -> None:
        once = Delivery.EXACTLY_ONCE
        assert wrong(delivery=once) == ["groups[0].sinks"]
        assert wrong(sink(), sink(name="y"), delivery=once) == ["groups[0].sinks"]
        assert wrong(sink(), delivery=once) == []
        assert wrong(sink(mode=SinkMode.UPSERT, key=("a",)), delivery=once) == []

    def test_of_an_unreadable_sink_say_nothing_of_exactly_once(self) -> None:
        text = HEAD.replace("topics: [t]", "topics: [t]\n    delivery: exactly_once").replace("sinks:", "sinks: 5")
        assert list(findings(text)) == ["groups[0].sinks"]


class TestUrls:
    @pytest.mark.parametrize(
        "url",
        [
            "${DB}",
            "postgresql://h/d",
            "postgres://u@h:5432/d?sslmode=require",
            "postgresql+psycopg://u:${P}@h:${PORT}/d?host=/run/db",
            "postgresql:///d?password=${P}",
        ],
    )
    def test_are_those_of_postgres_with_references(self, url: str) -> None:
        assert wrong(sink(url=url)) == []

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://u:hunter2@h/d",
            "postgresql://u:hunter2${P}@h/d",
            "postgresql://u:${P}@h/d?password=hunter2",
            "postgresql://h/d?sslpassword=hunter2",
            "mysql://u:hunter2@h/d",
            "postgresql://[hunter2/d",
            "hunter2",
            "${hunter2",
            "",
        ],
    )
    def test_are_refused_without_a_word_of_them(self, url: str) -> None:
        with pytest.raises(SpecError) as raised:
            small(group(sinks=(sink(url=url),)))
        assert [path for path, _ in raised.value.findings] == [f"{PLACE}.url"]
        assert "hunter2" not in str(raised.value)


def file_sink(**fields: Any) -> SinkSpec:  # noqa: ANN401 (each field has its own type)
    """A file sink, with other fields as given."""
    return SinkSpec(**{"name": "x", "kind": SinkKind.FILES, "path": "/data/x", **fields})


class TestFiles:
    def test_are_read_with_their_folder(self) -> None:
        spec = parse(f"{HEAD}      x: {{kind: files, path: 's3a://b/x', file_size_mib: 64}}")
        expected = file_sink(path="s3a://b/x", file_size_mib=64)
        assert spec.group("g").sinks == (expected,)

    @pytest.mark.parametrize(
        "path",
        ["/data", "file:///data", "s3a://b/x", "hdfs://h:9000/x", "hdfs:///x", "${ROOT}/x", "s3a://${B}/x", "${ALL}",
         "abfss://container@account.dfs.core.windows.net/x"],
    )  # fmt: skip
    def test_are_in_a_folder_or_at_a_uri(self, path: str) -> None:
        assert wrong(file_sink(path=path)) == []

    @pytest.mark.parametrize(
        "path",
        ["", " ", "data", "./data", "/", "s3a://b", "s3a:///x", "/a/../b", "s3a://key:hunter2@b/x", "/a?b", "/a*",
         "/a{b}", "${", "a b://c/d", "/a\0", None],
    )  # fmt: skip
    def test_are_refused_where_no_folder_is(self, path: str | None) -> None:
        with pytest.raises(SpecError) as raised:
            small(group(sinks=(file_sink(path=path),)))
        assert [where for where, _ in raised.value.findings] == [f"{PLACE}.path"]
        assert "hunter2" not in str(raised.value)

    def test_have_nothing_of_a_table_and_a_table_nothing_of_them(self) -> None:
        found = read("{kind: files, path: /x, table: t, url: '${DB}', conn_id: c, mode: upsert, key: [a]}")
        assert sorted(found) == sorted(f"{PLACE}.{name}" for name in ("table", "url", "conn_id", "mode", "key"))
        found = read("{kind: postgres, table: t, url: '${DB}', path: /x, file_size_mib: 1}")
        assert sorted(found) == sorted(f"{PLACE}.{name}" for name in ("path", "file_size_mib"))

    def test_are_put_together_to_a_size_that_is_one(self) -> None:
        assert wrong(file_sink(file_size_mib=0)) == []
        assert wrong(file_sink(file_size_mib=-1)) == wrong(file_sink(file_size_mib=2**21)) == [f"{PLACE}.file_size_mib"]

    def test_of_two_groups_are_in_two_folders(self) -> None:
        with pytest.raises(SpecError) as raised:
            small(group(sinks=(file_sink(),)), group(group_id="h", sinks=(file_sink(path="/data/x/"),)))
        assert [where for where, _ in raised.value.findings] == ["groups[1].sinks.x.path"]


class TestChanges:
    @pytest.mark.parametrize(
        ("fields", "paths"),
        [
            ({"table": "u"}, ["table"]),
            ({"url": "${OTHER}"}, ["url"]),
            ({"url": None, "conn_id": "c"}, ["url", "conn_id"]),
            ({"mode": SinkMode.UPSERT, "key": ("a",)}, ["mode", "key"]),
        ],
    )
    def test_of_sinks_count_at_the_next_checkpoint(self, fields: dict[str, Any], paths: list[str]) -> None:
        old, new = small(group(sinks=(sink(),))), small(group(sinks=(sink(**fields),)))
        expected = [Difference(f"groups[g].sinks.x.{path}", TakesEffect.NEXT_CHECKPOINT) for path in paths]
        assert sorted(differences(old, new)) == sorted(expected)

    def test_sinks_that_come_or_go_count_at_the_next_checkpoint(self) -> None:
        old, new = small(), small(group(sinks=(sink(),)))
        assert (
            differences(old, new)
            == differences(new, old)
            == [Difference("groups[g].sinks", TakesEffect.NEXT_CHECKPOINT)]
        )
