from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_kcr.errors import SpecError
from airflow_kcr.protocol.rules import CheckpointMode, Delivery, OutOfRangePolicy, SinkMode, parse_start
from airflow_kcr.protocol.timeouts import Timeouts, setting_name
from airflow_kcr.spec import (
    FOREVER,
    HistorySpec,
    RegionSpec,
    SinkKind,
    SinkSpec,
    load,
    parse,
)
from airflow_kcr.spec.fields import declared
from tests.unit.spec.examples import SMALL, findings

if TYPE_CHECKING:
    from pathlib import Path


class TestWhatIsRead:
    def test_has_every_choice_of_the_comments(self) -> None:
        spec = parse(
            r"""
region: r
groups:
  - group_id: a
    pattern: '^flights\.'
    start: timestamp:2026-01-01T00:00:00Z
    pipeline: path/to/file.py:function
    delivery: exactly_once
    assignor: roundrobin
    kafka: {bootstrap.servers: 'other:9092'}
    static_membership: false
    sinks: {x: {kind: postgres, table: air.x, conn_id: warehouse, mode: upsert, key: [id, day]}}
  - {group_id: b, topics: [t, u], pipeline: 'm:f', delivery: almost_once, start: 'duration:PT6H', kafka_conn_id: c}
kafka_conn_id: kafka_default
checkpoint: {cron: '0 * * * *', timezone: Europe/Berlin, request: dag_run, catchup: true}
foreign_consumers: warn
out_of_range: latest
beyond_end: earliest
"""
        )
        assert spec.group("a").start == parse_start("timestamp:2026-01-01T00:00:00Z")
        assert spec.group("a").sinks == (
            SinkSpec(
                name="x",
                kind=SinkKind.POSTGRES,
                table="air.x",
                conn_id="warehouse",
                mode=SinkMode.UPSERT,
                key=("id", "day"),
            ),
        )
        assert spec.group("b").start == parse_start("duration:PT6H")
        assert spec.group("b").delivery is Delivery.ALMOST_ONCE
        assert spec.cluster_of("a") == (spec.group("a").kafka, None)
        assert spec.cluster_of("b") == (None, "c")
        assert spec.checkpoint.request is CheckpointMode.DAG_RUN
        assert (spec.out_of_range, spec.beyond_end) == (OutOfRangePolicy.LATEST, OutOfRangePolicy.EARLIEST)

    def test_kafka_settings_become_text_with_their_references_as_they_are(self) -> None:
        spec = parse(SMALL.replace("'localhost:9092'", "x, a: 5, b: true, c: 1.5, sasl.password: '${P}'"))
        assert spec.kafka is not None
        assert dict(spec.kafka) == {
            "a": "5",
            "b": "true",
            "bootstrap.servers": "x",
            "c": "1.5",
            "sasl.password": "${P}",
        }

    def test_every_timeout_has_a_name_in_the_file(self) -> None:
        names = {field.attribute: name for name, field in declared(Timeouts).items()}
        assert names.keys() == {field.name for field in fields(Timeouts)}
        assert {f"timeouts.{name}" for name in names.values() if name != "batch"} == {
            setting_name(field) for field in names if field != "batch"
        }

    @pytest.mark.parametrize("where", ["batch: {timeout: 1m}", "timeouts: {batch: 1m}"])
    def test_the_timeout_of_a_batch_is_one_wherever_it_is_given(self, where: str) -> None:
        spec = parse(f"{SMALL}\n{where}\n")
        assert spec.batch.timeout == spec.timeouts.batch == spec.rules().timeouts.batch == timedelta(minutes=1)

    def test_two_timeouts_of_a_batch_are_refused(self) -> None:
        assert list(findings(f"{SMALL}\nbatch: {{timeout: 1m}}\ntimeouts: {{batch: 2m}}\n")) == ["timeouts.batch"]


class TestFindings:
    def test_are_all_there_at_once_in_the_order_of_the_file(self) -> None:
        found = findings(
            """
region: Flights
kafka: {bootstrap.servers: 'x:1', enable.auto.commit: true, sasl.password: hunter2}
groups:
  - group_id: a
    topics: [t, 5]
    patern: ^x
    members: "3"
    start: 42
    pipeline: nothing
    delivery: exactly-once
    assignor: sticky
  - {group_id: a, pattern: 'x', members: 0, pipeline: 'a.b:c'}
  - 7
checkpoint: {every: 5, cron: '61 * * * *', timezone: Mars/Olympus, grace: -2s}
batch: {min_records: 10, max_records: 5}
timeouts: {drain: 100, foo: 1s}
retention:
max_failures: -1
foreign_consumers: maybe
"""
        )
        assert list(found) == [
            "region",
            "kafka.enable.auto.commit",
            "kafka.sasl.password",
            "groups[0].topics[1]",
            "groups[0].patern",
            "groups[0].members",
            "groups[0].start",
            "groups[0].pipeline",
            "groups[0].delivery",
            "groups[0].assignor",
            "groups[1].group_id",
            "groups[1].pattern",
            "groups[1].members",
            "groups[2]",
            "checkpoint.every",
            "checkpoint.grace",
            "checkpoint.timezone",
            "checkpoint.cron",
            "batch.min_records",
            "timeouts.drain",
            "timeouts.foo",
            "retention",
            "max_failures",
            "foreign_consumers",
        ]
        assert "hunter2" not in str(found)

    @pytest.mark.parametrize(
        ("line", "path", "near"),
        [
            ("topic: [t]", "topic", "region"),
            ("out_of_rang: fail", "out_of_rang", "out_of_range"),
            ("checkpoint: {evry: 5m}", "checkpoint.evry", "every"),
            ("timeouts: {max_poll: 5m}", "timeouts.max_poll", "max_poll_interval"),
            ("retention: {max_age: 5m}", "retention.max_age", None),
            ("history: {archiv: /a}", "history.archiv", "archive"),
        ],
    )
    def test_of_unknown_fields_suggest_the_nearest_one(self, line: str, path: str, near: str | None) -> None:
        found = findings(f"{SMALL}\n{line}\n")
        assert list(found) == [path]
        assert "no such field" in found[path]
        if near in {"out_of_range", "every", "max_poll_interval"}:
            assert f"did you mean {near!r}?" in found[path]

    def test_of_words_suggest_the_nearest_one(self) -> None:
        found = findings(f"{SMALL}\nforeign_consumers: warning\n")
        assert found["foreign_consumers"] == "line 7: 'warning' is not accepted (did you mean 'warn'?): use fail, warn"

    @pytest.mark.parametrize(
        ("line", "path"),
        [
            ("max_failures: '5'", "max_failures"),
            ("max_failures: true", "max_failures"),
            ("max_failures: 5.0", "max_failures"),
            ("kafka_conn_id: 5", "kafka_conn_id"),
            ("checkpoint: [5m]", "checkpoint"),
            ("checkpoint: 5m", "checkpoint"),
            ("checkpoint: {catchup: yes}", "checkpoint.catchup"),
            ("checkpoint: {every: 5}", "checkpoint.every"),
            ("checkpoint: {every: 5 minutes}", "checkpoint.every"),
            ("checkpoint: {every: null}", "checkpoint.every"),
            ("batch: {min_records: 1e3}", "batch.min_records"),
            ("timeouts: {lease: P1M}", "timeouts.lease"),
            ("timeouts: {accept_aborted_drain: 1}", "timeouts.accept_aborted_drain"),
        ],
    )
    def test_of_a_wrong_type_are_at_the_field(self, line: str, path: str) -> None:
        assert list(findings(f"{SMALL}\n{line}\n")) == [path]

    def test_of_kafka_settings_never_quote_them(self) -> None:
        for settings in ("hunter2", "[hunter2]", "{a: [hunter2]}", "{bootstrap.servers: {hunter2: hunter2}}"):
            found = findings(SMALL.replace("{bootstrap.servers: 'localhost:9092'}", settings))
            assert found
            assert "hunter2" not in str(found)

    def test_of_what_is_missing_are_at_the_field(self) -> None:
        assert list(findings("max_failures: 5")) == ["region", "groups"]
        assert list(findings("region: r\nkafka: {bootstrap.servers: x}\ngroups: [{topics: [t]}]")) == [
            "groups[0].group_id",
            "groups[0].pipeline",
        ]
        assert list(findings("region: r\nkafka: {bootstrap.servers: x}\ngroups: []")) == ["groups"]

    def test_of_a_broken_time_say_nothing_about_the_times_that_it_would_have_clashed_with(self) -> None:
        assert list(findings(f"{SMALL}\nbatch: {{timeout: 4m}}\ntimeouts: {{drain: 5 min}}\n")) == ["timeouts.drain"]

    @pytest.mark.parametrize("text", ["", "# nothing", "- a", "flights"])
    def test_of_what_is_no_spec_at_all_are_about_the_whole(self, text: str) -> None:
        assert list(findings(text)) == ["spec"]

    def test_of_the_syntax_say_line_and_column(self) -> None:
        assert list(findings("region: r\ngroups: [")) == ["line 2, column 10"]

    def test_do_not_drag_pydantics_own_message_along(self) -> None:
        with pytest.raises(SpecError) as raised:
            parse(SMALL.replace("{bootstrap.servers: 'localhost:9092'}", "hunter2"))
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__ or raised.value.__context__ is None


class TestFiles:
    def test_are_utf_8(self, tmp_path: Path) -> None:
        path = tmp_path / "region.yaml"
        path.write_text(SMALL.replace("group_id: g", "group_id: größe"), encoding="utf-8")
        assert load(path).groups[0].group_id == "größe"
        assert load(str(path)) == load(path)

    def test_that_are_not_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "region.yaml"
        path.write_bytes(b"region: \xff")
        with pytest.raises(SpecError, match="not UTF-8: byte 8"):
            load(path)

    def test_that_cannot_be_read_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"none\.yaml: can't be read: No such file"):
            load(tmp_path / "none.yaml")


def test_the_value_that_is_read_is_not_changed() -> None:
    value: dict[str, Any] = {"region": "R", "groups": [{"group_id": None}]}
    with pytest.raises(SpecError):
        RegionSpec.from_json(value)
    assert value == {"region": "R", "groups": [{"group_id": None}]}


class TestHistory:
    @pytest.mark.parametrize(
        ("text", "read"),
        [
            ("history: {keep: forever}", HistorySpec(keep=FOREVER)),
            ("history: {keep: 30d}", HistorySpec(keep=timedelta(days=30))),
            ("", HistorySpec(keep=timedelta(days=90))),
        ],
    )
    def test_is_read_and_written(self, text: str, read: HistorySpec) -> None:
        spec = parse(f"{SMALL}\n{text}\n")
        assert spec.history == read
        assert RegionSpec.from_json(spec.to_json()) == spec

    @pytest.mark.parametrize("keep", ["90", "always", "-1d", "[1]"])
    def test_that_cannot_be_kept_so_is_refused(self, keep: str) -> None:
        assert list(findings(f"{SMALL}\nhistory: {{keep: {keep}}}\n")) == ["history.keep"]


class TestNumbers:
    @pytest.mark.parametrize(
        ("more", "path"),
        [
            ("batch: {max_records: 99999999999999999999999}", "batch.max_records"),
            ("batch: {min_records: 99999999999999999999999}", "batch.min_records"),
            ("checkpoint: {records: 99999999999999999999999}", "checkpoint.records"),
            ("max_failures: 99999999999999999999999", "max_failures"),
            ("retention: {keep: 99999999999999999999999}", "retention.keep"),
        ],
    )
    def test_that_are_too_large_are_told_as_that(self, more: str, path: str) -> None:
        found = findings(f"{SMALL}{more}\n")
        assert found[path].endswith("is 99999999999999999999999; it must be at most 9223372036854775807")


class TestWhatTheTextRefuses:
    def test_hides_nothing_else(self) -> None:
        found = findings(
            f"{SMALL}max_failures: 1\nmax_failures: 2\nbatch: {{min_records: 0}}\ncheckpoint: !!set {{}}\n"
        )
        assert set(found) == {"max_failures", "batch.min_records", "checkpoint"}

    def test_is_told_with_its_line_and_the_other_finding_of_that_place_with_its_own(self) -> None:
        with pytest.raises(SpecError) as raised:
            parse("region: r\nmax_failures: -1\nmax_failures: 2\n")
        texts = [text for path, text in raised.value.findings if path == "max_failures"]
        assert texts == [
            "line 3: is there twice, first in line 2; only one of the two can count",
            "line 2: is -1; it must be 0 or more",
        ]
