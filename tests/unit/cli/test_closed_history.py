from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from airflow_kcr import check_history
from tests.support.driver import Driver
from tests.support.live_region import SPEC, live_region
from tests.unit.cli.conftest import Kcr


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    folder.mkdir()
    return folder


@pytest.fixture
def driver(database_url: str, root: Path) -> Iterator[Driver]:
    """A region that closes whatever is certified, at once."""
    with live_region(database_url, f"{SPEC}history: {{keep: 1ms, archive: '{root}'}}\n") as driver:
        yield driver


def work(kcr: Kcr, driver: Driver, *request_ids: str) -> None:
    for request_id in request_ids:
        driver.process()
        driver.checkpoint(request_id)
        kcr.json("verify", "flights")


def test_history_is_closed_proved_and_listed(kcr: Kcr, driver: Driver, root: Path) -> None:
    driver.up()
    work(kcr, driver, "a", "b", "c")
    batches = len(driver.batches)
    made = kcr.json("history", "close", "flights")
    assert made["violations"] == []
    assert len(made["archived"]) == 2
    assert made["dropped_events"] > 0
    assert made["dropped_batches"] > 0
    listed = kcr.json("history", "list", "flights")
    assert [row["number"] for row in listed] == [1, 2, 3]
    assert [row["archive"] is None for row in listed] == [False, False, True]
    assert listed[1]["upto"] == made["closed_upto"]
    assert [root / str(row["archive"]) for row in listed[:2]] == [Path(path) for path in made["archived"]]
    folder = Path(made["archived"][0]).parent
    assert "2 certificates hold" in check_history.check(folder, listed[1]["digest"])
    for options in (["--from-start"], ["--archive", str(root)]):
        proved = kcr.json("verify", "flights", *options)
        assert (proved["violations"], proved["checked_batches"]) == ([], batches)
        assert proved["checked_events"] == driver.region.counter
    shown = kcr("history", "close", "flights", "-o", "table").stdout
    assert "0 file(s)" in shown
    assert "consistent" in shown


def test_the_ledger_still_tells_of_archived_records(kcr: Kcr, driver: Driver) -> None:
    driver.up()
    driver.process()
    place = "t:0:3"
    work(kcr, driver, "a", "b", "c")
    before = kcr.json("ledger", "record", "flights", place)
    assert before[0]["fate"] == "processed"
    repeated = kcr.json("ledger", "repeated", "flights")
    assert kcr.json("history", "close", "flights")["dropped_batches"] > 0
    assert kcr.json("ledger", "record", "flights", place) == before
    assert kcr.json("ledger", "repeated", "flights") == repeated
    # What asks the store alone goes on as well.
    assert kcr.json("reset", "list", "flights") == kcr.json("reset", "list", "flights")
    assert kcr.json("events", "flights", "--last", 2)


def test_without_an_archive_nothing_is_dropped(kcr: Kcr, database_url: str) -> None:
    with live_region(database_url, f"{SPEC}history: {{keep: 1ms}}\n") as driver:
        driver.up()
        work(kcr, driver, "a", "b")
        before = driver.store.history(driver.name)
        made = kcr.json("history", "close", "flights")
        assert (made["archived"], made["dropped_events"], made["closed_upto"]) == ([], 0, None)
        assert driver.store.history(driver.name) == before


def test_an_archive_that_is_not_there_leaves_the_history_and_says_so(kcr: Kcr, driver: Driver, root: Path) -> None:
    driver.up()
    work(kcr, driver, "a", "b", "c")
    before = driver.store.history(driver.name)
    root.rmdir()
    said = kcr.refused("history", "close", "flights", status=1)
    assert str(root) in said
    root.write_text("a file")
    assert str(root) in kcr.refused("history", "close", "flights", status=1)
    assert driver.store.history(driver.name) == before
    driver.process()  # the region runs on
    driver.checkpoint("d")


@pytest.mark.parametrize("change", ["missing", "changed"])
def test_an_archive_file_that_is_not_what_it_was_ends_with_status_1_and_its_name(
    kcr: Kcr, driver: Driver, change: str
) -> None:
    driver.up()
    work(kcr, driver, "a", "b", "c", "d")
    path = Path(kcr.json("history", "close", "flights")["archived"][-1])
    if change == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    left = driver.store.history(driver.name)
    for command in (["verify", "flights", "--from-start"], ["history", "close", "flights"]):
        assert path.name in kcr.refused(*command, status=1)
    assert driver.store.history(driver.name) == left
    assert kcr("verify", "flights").exit_code == 0  # what is in the store goes on


def test_a_certificate_that_contradicts_the_store_drops_nothing(kcr: Kcr, driver: Driver, database_url: str) -> None:
    driver.up()
    work(kcr, driver, "a", "b", "c")
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE kcr.batch SET outcome = 'discarded' WHERE number = 1"))
    engine.dispose()
    before = driver.store.history(driver.name)
    called = kcr("history", "close", "flights", "-o", "json")
    assert called.exit_code == 1
    said = json.loads(called.stdout)
    assert (said["archived"], said["dropped_events"], said["dropped_batches"]) == ([], 0, 0)
    assert "certificate 1" in said["violations"][0]["detail"]
    assert driver.store.history(driver.name) == before
    assert kcr("verify", "flights", "--from-start").exit_code == 1


def test_a_region_made_anew_under_the_same_name_has_an_archive_of_its_own(kcr: Kcr, driver: Driver, root: Path) -> None:
    driver.up()
    work(kcr, driver, "a", "b")
    kcr.json("history", "close", "flights")
    (folder,) = root.iterdir()
    assert folder.name.startswith("flights-")
    assert folder.name.endswith(kcr.json("history", "list", "flights")[0]["digest"][:12])
