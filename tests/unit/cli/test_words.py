"""Whatever `kcr` shows to people is in words: every command that shows something, of a region that much happened to."""

from __future__ import annotations

import pytest

from airflow_kcr.protocol.region.commands import PinCheckpoint, RequestReset
from airflow_kcr.protocol.region.rows import Requester, ResetCause
from airflow_kcr.protocol.targets import ToOffset
from airflow_kcr.protocol.values import Offset
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster
from tests.support.scripts import rewind
from tests.support.words import values_in
from tests.unit.cli.conftest import Kcr

RUN = Requester(who="pat", dag_id="flights_checkpoint", run_id="monday", reason="why not")


@pytest.fixture
def eventful(driver: Driver, cluster: FakeCluster) -> Driver:
    """A region with checkpoints: one aborted, one pinned, one undone; a failed batch, resets, and a member gone."""
    driver.up()
    driver.process()
    first = driver.checkpoint("first", requester=RUN)
    driver.handle(PinCheckpoint(sequence=first, label="kept", reason="to be sure"))
    driver.process()
    driver.checkpoint("second")
    driver.request_checkpoint("third", requester=RUN)
    failed = driver.caller(driver.member(0))
    driver.handle(RequestReset(caller=failed, cause=ResetCause.BATCH_FAILED, detail="it can't be read"))
    driver.finish_reset()
    driver.complete()
    driver.publish()
    rewind(driver, ToOffset(offset=Offset(5)))
    driver.process()
    driver.start_batch(driver.member(0))
    driver.request_checkpoint("fourth", requester=RUN)
    driver.leave(driver.member(1))
    return driver


COMMANDS = (
    ("region", "list"),
    ("region", "show", "flights"),
    ("checkpoint", "list", "flights"),
    *(("checkpoint", "show", "flights", number) for number in (2, 3, 4, 6, 9)),
    ("checkpoint", "compare", "flights", 2),
    ("reset", "list", "flights"),
    ("reset", "show", "flights/8"),
    ("reset", "plan", "flights", "--to-checkpoint", 2, "--forward"),
    ("reset", "plan", "flights", "--to-earliest", "--topic", "t:0"),
    ("ledger", "record", "flights", "t:0:3"),
    ("ledger", "repeated", "flights"),
    ("lag", "flights"),
    ("events", "flights", "--after", 0),
    ("verify", "flights"),
    ("group", "assignment", "flights"),
    ("region", "stop", "flights", "--wait", "--timeout", "0s"),
)


def test_what_every_command_shows_is_in_words(kcr: Kcr, eventful: Driver) -> None:
    found = {}
    for command in COMMANDS:
        for output in ("table", "csv"):
            said = kcr(*command, "-o", output)
            # Another consumer can't go on at a checkpoint that is not complete, and its CSV says so.
            allowed = {0, 3, 5} if (command[:2], output) == (("checkpoint", "show"), "csv") else {0, 5}
            assert said.exit_code in allowed, (command, said.stderr)
            found[command, output] = values_in(said.stdout + said.stderr)
    assert {command: lines for command, lines in found.items() if lines} == {}
