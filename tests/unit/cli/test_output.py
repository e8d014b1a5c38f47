"""`kcr region output` and `delete --with-output`: a name that is used again, on a real Postgres."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_kcr.errors import ConfigurationError, SinkError, ToolMissing
from airflow_kcr.ports import SinkPlace
from airflow_kcr.protocol.region.commands import ChangeDesiredState, DeclareRegion
from airflow_kcr.protocol.region.rows import Requester
from airflow_kcr.protocol.region.state import Spec
from airflow_kcr.protocol.values import UNDECLARED, DesiredState, GroupId, RegionId, RegionName
from airflow_kcr.sinks.group import checked_sinks
from airflow_kcr.sinks.kinds.files import emptied
from airflow_kcr.sinks.kinds.postgres import DeclaredTable
from airflow_kcr.sinks.postgres.sink import PostgresSink
from airflow_kcr.sinks.postgres.target import TargetTable
from airflow_kcr.spec import RegionSpec, SinkKind, SinkSpec, parse
from airflow_kcr.store.regions import RegionStore
from tests.support.breaking_proxy import breaking_proxy
from tests.support.driver import Driver
from tests.support.sink_files import Files, LocalFolder
from tests.support.sink_tables import Table
from tests.unit.cli.conftest import Kcr

NAME, GROUP = RegionName("again"), GroupId("g")
SPEC = parse("""
region: again
kafka: {bootstrap.servers: 'localhost:9'}
groups:
  - group_id: g
    topics: [t]
    pipeline: 'a:b'
    delivery: exactly_once
    sinks: {x: {kind: postgres, url: '${DB}', table: out}}
""")


@dataclass(frozen=True)
class Again:
    """A region under a name that was used before: its store, and the database that its sink writes to."""

    store: RegionStore
    url: str

    def declared(self) -> RegionId:
        spec = Spec(text=SPEC.to_json_text(), rules=SPEC.rules())
        return self.store.handle(NAME, DeclareRegion(spec=spec)).region_id

    def table(self, region_id: RegionId, taken: Collection[SinkPlace] = ()) -> Table:
        """The region's sink as a member has it, found to be in order."""
        (declared,) = checked_sinks(SPEC, GROUP, region_id=region_id, taken=taken)
        assert isinstance(declared, DeclaredTable)
        made = Table(url=self.url, options={"region": NAME, "region_id": region_id})
        made.sink = declared.sink
        return made

    def lived(self, region_id: RegionId, records: int) -> Table:
        out = self.table(region_id)
        out.reset({0: 0})
        out.run({0: (0, records)})
        return out


@pytest.fixture
def again(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Again]:
    monkeypatch.setenv("KCR_STORE_URL", database_url)
    with (
        breaking_proxy(database_url) as (_, through),
        RegionStore.connect(database_url, lambda text: RegionSpec.from_json(text).rules()) as made,
    ):
        monkeypatch.setenv("DB", through.render_as_string(hide_password=False))
        yield Again(made, database_url)


def test_a_region_that_is_deleted_says_what_it_leaves_and_one_declared_again_finds_it(kcr: Kcr, again: Again) -> None:
    first = again.declared()
    again.lived(first, 100)
    assert [row["rows"] for row in kcr.json("region", "output", "again")["sinks"]] == [100]
    told = kcr("region", "delete", "again", "--yes").stderr
    assert "sink x of group g keeps what it wrote to out" in told
    assert "group g keeps its committed offsets in Kafka" in told
    second = again.declared()
    assert second != first
    with pytest.raises(ConfigurationError, match="kcr region output again"):
        again.table(second)
    (row,) = kcr.json("region", "output", "again")["sinks"]
    assert (row["rows"], row["earlier"]) == (0, [f"g/x of region id {first}"])


@pytest.mark.parametrize("has_fence", [True, False])
@pytest.mark.parametrize(("choice", "rows"), [("--keep", 300), ("--delete", 200), ("--take-over", 200)])
def test_each_way_out_lets_the_new_region_write_all_of_its_records(
    kcr: Kcr, again: Again, choice: str, rows: int, has_fence: bool
) -> None:
    first = again.declared()
    out = again.lived(first, 100)
    if not has_fence:
        out.ask("DROP TABLE kcr_fence, kcr_progress")
    assert kcr("region", "delete", "again", "--yes").exit_code == 0
    second = again.declared()
    with pytest.raises(ConfigurationError, match="kcr region output again"):
        again.table(second)
    earlier = f"g/x of region id {first}" if has_fence else "?/? of region id unknown 1"
    assert kcr.json("region", "output", "again")["sinks"][0]["earlier"] == [earlier]
    assert f"rows of {'g/x' if has_fence else '?/?'}" in kcr("region", "output", "again", choice).stdout
    out = again.lived(second, 200)
    assert out.ask("SELECT count(*) FROM out") == [(rows,)]
    assert out.ask(f"SELECT count(*) FROM out JOIN kcr_fence ON source = kcr_source WHERE region_id = '{second}'") == [
        (200,)
    ]


def test_a_region_that_is_deleted_with_its_output_leaves_none(kcr: Kcr, again: Again) -> None:
    again.lived(again.declared(), 100)
    told = kcr("region", "delete", "again", "--yes", "--with-output")
    assert told.exit_code == 0, told.stderr
    assert "100 rows deleted" in told.stderr
    out = again.lived(again.declared(), 200)
    assert out.ask("SELECT count(*) FROM out") == [(200,)]
    assert out.ask("SELECT count(*) FROM kcr_fence") == [(1,)]


def test_a_table_that_was_made_anew_is_accepted_by_name(kcr: Kcr, again: Again) -> None:
    region_id = again.declared()
    out = again.lived(region_id, 100)
    out.url = again.url
    out.ask("CREATE TABLE other AS SELECT * FROM out LIMIT 0")
    out.ask("DROP TABLE out")
    out.ask("ALTER TABLE other RENAME TO out")
    with pytest.raises(ConfigurationError, match="--take-over"):
        again.table(region_id)
    assert kcr.json("region", "output", "again")["sinks"][0]["note"] == "another table than was written to"
    assert "this table is the sink's now" in kcr("region", "output", "again", "--take-over").stdout
    again.table(region_id)


def test_a_database_that_was_made_anew_is_refused_until_it_is_accepted(kcr: Kcr, again: Again) -> None:
    region_id = again.declared()
    out = again.lived(region_id, 100)
    again.store.take(NAME, out.sink.where)  # as a member's start does
    out.url = again.url
    out.ask("DROP TABLE out, kcr_fence, kcr_progress")
    with pytest.raises(SinkError):
        out.run({0: (100, 110)})
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"fence and progress are gone.*kcr region output REGION --take-o"):
            again.table(region_id, again.store.taken(NAME))
    assert "the table is the sink's as it is" in kcr("region", "output", "again", "--take-over").stdout
    out = again.table(region_id, again.store.taken(NAME))
    out.reset({0: 0})
    out.run({0: (0, 110)})
    assert out.ask("SELECT count(*) FROM out") == [(110,)]


def test_a_region_whose_fence_is_gone_takes_its_rows_over_again(kcr: Kcr, again: Again) -> None:
    region_id = again.declared()
    out = again.lived(region_id, 100)
    again.store.take(NAME, out.sink.where)  # as a member's start does
    out.ask("DROP TABLE kcr_fence, kcr_progress")
    with pytest.raises(ConfigurationError, match="fence and progress are gone"):
        again.table(region_id, again.store.taken(NAME))
    assert "taken over" in kcr("region", "output", "again", "--take-over").stdout
    out = again.table(region_id, again.store.taken(NAME))
    out.reset({0: 0})
    out.run({0: (0, 110)})
    assert out.ask("SELECT count(*) FROM out") == [(110,)]


def test_progress_that_is_deleted_under_a_member_is_no_new_beginning(again: Again) -> None:
    out = again.lived(again.declared(), 100)
    out.ask("DELETE FROM kcr_fence")
    with pytest.raises(SinkError, match="its fence and progress are gone"):
        out.run({0: (100, 110)})
    assert out.ask("SELECT count(*) FROM out") == [(100,)]


def test_two_choices_are_refused(kcr: Kcr, again: Again) -> None:
    again.declared()
    assert "give one of" in kcr.refused("region", "output", "again", "--keep", "--delete", status=2)


def test_who_only_checks_a_spec_finds_nothing_wrong_with_the_regions_own_rows(again: Again) -> None:
    again.lived(again.declared(), 10)
    (sink,) = checked_sinks(SPEC, GROUP, region_id=UNDECLARED)  # as `kcr doctor` does, and a changed spec
    assert sink.spec.name == "x"


def test_output_stays_while_the_region_can_not_be_deleted(kcr: Kcr, again: Again) -> None:
    out = again.lived(again.declared(), 100)
    again.store.handle(NAME, ChangeDesiredState(desired_state=DesiredState.RUNNING, requester=Requester(who="me")))
    assert "stop it before" in kcr.refused("region", "delete", "again", "--yes", "--with-output", status=3)
    assert out.ask("SELECT count(*) FROM out") == [(100,)]


def test_a_place_is_not_forgotten_where_the_decision_is_not_committed(
    kcr: Kcr, again: Again, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = again.lived(again.declared(), 100)
    again.store.take(NAME, out.sink.where)
    out.url = again.url
    out.ask("DROP TABLE out, kcr_fence, kcr_progress")
    deciding = PostgresSink.deciding

    @contextmanager
    def lost(self: PostgresSink) -> Iterator[TargetTable]:
        with deciding(self) as table:
            yield table
            raise SinkError("the connection is lost before the commit")

    monkeypatch.setattr(PostgresSink, "deciding", lost)
    kcr.refused("region", "output", "again", "--take-over", status=1)
    assert again.store.taken(NAME) == {out.sink.where}


@pytest.fixture
def folder(again: Again, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """The folder of an earlier region, which the spec of the present one names."""
    monkeypatch.setattr("airflow_kcr.sinks.outputs.file_session", lambda conf: nullcontext(None))
    monkeypatch.setattr("airflow_kcr.sinks.kinds.files.HadoopFolder", lambda spark, path: LocalFolder(Path(path)))
    driver = Driver(name=NAME, region_id=RegionId("the first"))
    driver.up()
    files = Files(driver, tmp_path / "out")
    files.process_batch(driver.member(0))
    group = replace(SPEC.groups[0], sinks=(SinkSpec(name="out", kind=SinkKind.FILES, path=str(tmp_path / "out")),))
    spec = replace(SPEC, groups=(group,))
    again.store.handle(NAME, DeclareRegion(spec=Spec(text=spec.to_json_text(), rules=spec.rules())))
    return files


def test_a_folder_is_shown_with_whose_it_is_and_taken_over_by_nobody(kcr: Kcr, folder: Files) -> None:
    (row,) = kcr.json("region", "output", "again")["sinks"]
    assert (row["kind"], row["rows"], row["earlier"]) == ("files", None, ["g/out of region id the first"])
    assert "is the folder of sink out" in kcr.refused("region", "output", "again", "--take-over", status=2)


def test_a_folder_that_was_emptied_says_so_until_it_is_accepted(
    kcr: Kcr, folder: Files, again: Again, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "out")
    assert kcr.json("region", "output", "again")["sinks"][0]["note"] == ""
    assert "nothing to do" in kcr("region", "output", "again", "--take-over").stdout
    (tmp_path / "out" / "data").mkdir(parents=True)  # a member has gone on
    again.store.take(NAME, SinkPlace(GROUP, "out", str(tmp_path / "out")))
    assert kcr.json("region", "output", "again")["sinks"][0]["note"] == "emptied since it was written to"
    assert "the folder is the sink's as it is" in kcr("region", "output", "again", "--take-over").stdout
    (row,) = kcr.json("region", "output", "again")["sinks"]
    assert (row["note"], row["earlier"]) == ("", [])


def test_a_folder_is_not_looked_into_where_there_is_no_spark(
    kcr: Kcr, folder: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> AbstractContextManager[None]:
        raise ToolMissing("PySpark is not installed; install airflow-kcr[spark]")

    monkeypatch.setattr("airflow_kcr.sinks.outputs.file_session", missing)
    (row,) = kcr.json("region", "output", "again")["sinks"]
    assert row["note"] == "not looked into: PySpark is not installed; install airflow-kcr[spark]"


def test_a_folder_is_emptied_only_by_the_sink_that_has_taken_it(tmp_path: Path) -> None:
    driver = Driver()
    driver.up()
    files = Files(driver, tmp_path / "out")
    files.process_batch(driver.member(0))
    files.checkpoint("n1")
    others = replace(files.sink.owner, region_id=RegionId("another"))
    assert "is the folder of" in emptied(files.folder, others)
    assert files.manifests() != {}
    assert emptied(files.folder, files.sink.owner) == "all files deleted"
    assert files.folder.names("") == ()
    assert "no sink has taken" in emptied(files.folder, files.sink.owner)
