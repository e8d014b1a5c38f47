"""Closing a history in a process that is killed, without room or rights: nothing is lost, and the next one goes on."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kcr import check_history
from airflow_kcr.api import Region
from airflow_kcr.protocol.invariants.history import History
from airflow_kcr.protocol.region.rows import ResetCause
from tests.contract.test_closed_history import told, whole
from tests.support.driver import Driver
from tests.support.killed_closing import MOMENTS
from tests.support.live_region import SPEC, live_region

pytestmark = pytest.mark.postgres


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    folder.mkdir()
    return folder


@pytest.fixture
def driver(database_url: str, root: Path) -> Iterator[Driver]:
    """A region with three certificates, which has been through a reset."""
    with live_region(database_url, f"{SPEC}history: {{keep: 1ms, archive: '{root}'}}\n") as driver:
        driver.up()
        for request_id in ("a", "b", "c"):
            for _ in range(15):
                driver.process(width=2)
            driver.discard(driver.start_batch(driver.member(0)))
            driver.request_reset(driver.member(0), ResetCause.BATCH_FAILED)
            driver.finish_reset()
            driver.checkpoint(request_id)
            with Region("flights", store=database_url) as region:
                assert region.verify().violations == ()
        yield driver


def closes(url: str, root: Path, moment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.killed_closing", url, str(root), moment]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)


def everything(driver: Driver, root: Path) -> History:
    """The whole history, wherever it is."""
    stored = driver.store.history(driver.name)
    if driver.store.chronicle(driver.name).closed() is None:
        return stored
    return whole(driver, root).history(stored)


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
def test_whoever_is_killed_has_lost_nothing_and_the_next_one_goes_on(
    driver: Driver, database_url: str, root: Path, moment: str
) -> None:
    before = driver.store.history(driver.name)
    killed = closes(database_url, root, moment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert told(everything(driver, root)) == told(before)
    with Region("flights", store=database_url) as region:
        assert region.verify().violations == ()
        assert region.verify(from_start=True).violations == ()
        region.close_history()
        assert region.verify(from_start=True).violations == ()
    assert told(everything(driver, root)) == told(before)
    left = driver.store.history(driver.name)
    assert len(left.events) < len(before.events) / 2
    assert len(left.batches) < len(before.batches) * 2 / 3
    (folder,) = root.iterdir()
    assert [path.name for path in sorted(folder.iterdir())] == ["00000001.jsonl.gz", "00000002.jsonl.gz"]
    check_history.check(folder)


def limited() -> None:
    """Let no file of this process grow beyond two blocks: what a full disk does.

    The process must write no bytecode: Python takes a short write of a .pyc for a whole one, and every later import
    of that module would end in an EOFError.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))


def test_a_full_disk_is_told_and_the_history_stays(driver: Driver, database_url: str, root: Path) -> None:
    before = driver.store.history(driver.name)
    command = [sys.executable, "-B", "-m", "airflow_kcr", "history", "close", "flights"]
    environment = {**os.environ, "KCR_STORE_URL": database_url}
    called = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=500, preexec_fn=limited
    )
    assert called.returncode == 1
    assert "00000001.jsonl.gz can't be written: File too large; the history stays in the store" in called.stderr
    assert driver.store.history(driver.name) == before
    assert [*root.rglob("*.gz*")] == []
    driver.process()  # the region runs on


def test_a_folder_that_may_not_be_written_is_told_and_the_history_stays(
    driver: Driver, database_url: str, root: Path
) -> None:
    before = driver.store.history(driver.name)
    root.chmod(0o555)
    for folder in (root.parent, root.parent.parent, root.parent.parent.parent):
        folder.chmod(folder.stat().st_mode | 0o055)
    called = closes(database_url, root, "rights")
    assert (called.returncode, "Permission denied" in called.stderr) == (1, True), called.stderr
    assert driver.store.history(driver.name) == before
    root.chmod(0o755)
    with Region("flights", store=database_url) as region:
        assert len(region.close_history().archived) == 2


def test_a_batch_that_is_open_at_the_certificate_stays(driver: Driver, database_url: str, root: Path) -> None:
    running = driver.start_batch(driver.member(0))
    with Region("flights", store=database_url) as region:
        region.verify()
        driver.finish_batch(running)
        driver.checkpoint("d")
        region.verify()
        driver.process()
        driver.checkpoint("e")
        region.verify()
        before = replace(driver.store.history(driver.name))
        region.close_history()
    assert told(everything(driver, root)) == told(before)
