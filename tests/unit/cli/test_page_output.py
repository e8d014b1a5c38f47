"""What pages show as the output of `kcr` is what `kcr` prints, in a region like that of the page.

Numbers, times and names that differ from run to run are left out of the comparison, and `…` stands for anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_kcr.protocol.observations import TimeAnswer
from airflow_kcr.protocol.region.rows import RegionState, Requester, ResetCause
from airflow_kcr.protocol.values import DesiredState, Offset, TopicName
from tests.support.docs_pages import DOCS
from tests.support.driver import Driver
from tests.support.live_region import FakeCluster, live_region
from tests.support.typed_page import is_printed, shape
from tests.unit.cli.conftest import Kcr, Meanwhile

SPEC = """\
region: flights
kafka: {bootstrap.servers: 'broker.invalid:9092'}
groups:
  - {group_id: flights-etl, topics: [flights], members: 3, pipeline: 'jobs.flights:process'%s}
timeouts: {lease: 60s}
"""
UPSERT = ", sinks: {rates: {kind: postgres, url: '${URL}', table: rates, mode: upsert, key: [day]}}"

REQUESTERS = (
    Requester(who="pat"),
    Requester(dag_id="flights_checkpoint", run_id="scheduled__2026-11-21T18:05:00+00:00"),
)
"""Of the checkpoints 2 and 3."""

TELLS_NOTHING = (["checkpoint", "pin"], ["region", "delete"], ["member", "run"])
WRONG_USAGE = 2


@dataclass(frozen=True, slots=True)
class Typed:
    """A command of a page, and what the page shows after it."""

    command: str
    shown: tuple[str, ...]


def typed(page: Path, heading: str) -> Iterator[Typed]:
    """Yield the commands below a heading."""
    text = page.read_text(encoding="utf-8")
    _, _, rest = text.partition(f"\n## {heading}\n")
    section, _, _ = rest.partition("\n## ")
    for block in re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            yield Typed(command, tuple(line for line in shown if line.strip() not in ("", "…")))


@dataclass(slots=True)
class Session:
    """A terminal into which the commands of a page are typed.

    Args:
        kcr: calls it.
        driver: of the region.
        cluster: what commands see of Kafka.
        meanwhile: lets things happen while a command waits.
    """

    kcr: Kcr
    driver: Driver
    cluster: FakeCluster
    meanwhile: Meanwhile

    @property
    def members_work(self) -> tuple[Callable[[], object], ...]:
        """What members do while a command waits for them: they drain, and reset where that is wanted."""
        return self._drain, self._go_on

    def _drain(self) -> None:
        if self.driver.held.open_checkpoint is not None:
            self.driver.complete()

    def _go_on(self) -> None:
        self.driver.publish()
        if self.driver.held.state in (RegionState.RESETTING, RegionState.STARTING):
            self.driver.finish_reset()
        if self.driver.held.desired_state is DesiredState.STOPPED:
            for member in sorted(self.driver.processes):
                self.driver.leave(member)

    def lacks(self, one: Typed) -> list[str]:
        """Type a command, and return which lines of the page it has not printed."""
        command, _, file = one.command.partition(" > ")
        words = shlex.split(command)[1:]
        if "--wait" in words:
            self.meanwhile(*self.members_work)
        # What a terminal shows; here is none.
        terminal = [] if "-o" in words or words[:2] in TELLS_NOTHING else ["-o", "table"]
        called = self.kcr(*words, *terminal)
        assert called.exit_code != WRONG_USAGE or "Usage:" in "".join(one.shown), called.stderr
        assert called.exception is None or isinstance(called.exception, SystemExit), called.exception
        if file:
            Path(file).write_text(called.stdout, encoding="utf-8")
        lines = [*called.stdout.splitlines(), *called.stderr.splitlines()]
        printed = {shape(line) for line in (*lines, called.stderr.replace("│", " "))}
        return [line for line in one.shown if not is_printed(line, printed)] and [
            *(line for line in one.shown if not is_printed(line, printed)),
            "is not in what was printed:",
            *lines,
        ]


def halted(session: Session) -> None:
    for _ in range(6):
        session.driver.request_reset(
            session.driver.member(1, "flights-etl"),
            ResetCause.BATCH_FAILED,
            "flights flights-etl[1] batch 3f0c2a failed: poison record flights/3/2050: without carrier",
        )
        session.driver.finish_reset()


def overtaken(session: Session) -> None:
    session.cluster.starts[0] = 1_300


def planned(session: Session) -> None:
    session.kcr("reset", "plan", "flights", "--to-checkpoint", 2, "--save", "plan.json")


def has_been_reset(session: Session) -> None:
    planned(session)
    session.meanwhile(*session.members_work)
    session.kcr("reset", "apply", "plan.json", "--reason", "wrong exchange rates since Monday", "--wait")


def as_it_is(session: Session) -> None:
    """Nothing has happened but two checkpoints."""


RESETS, DRIVING = "reset-a-region.md", "drive-a-region-from-the-command-line.md"

SECTIONS: dict[tuple[str, str], Callable[[Session], None]] = {
    (RESETS, "Plan"): as_it_is,
    (RESETS, "Apply"): planned,
    (RESETS, "Choose another target"): as_it_is,
    (RESETS, "Skip a record that fails every batch"): halted,
    (RESETS, "If retention has overtaken a checkpoint"): overtaken,
    (RESETS, "If a sink uses upsert"): as_it_is,
    (RESETS, "Show past resets"): has_been_reset,
    (DRIVING, "Preview the assignment"): as_it_is,
    (DRIVING, "Check the lag"): as_it_is,
    (DRIVING, "Make a checkpoint"): as_it_is,
    (DRIVING, "Pause, stop, kill"): as_it_is,
    (DRIVING, "Read and verify the history"): as_it_is,
    ("run-members.md", "Secrets"): as_it_is,
}


@pytest.mark.parametrize(("page", "heading"), SECTIONS)
def test_a_page_shows_what_is_printed(
    kcr: Kcr,
    database_url: str,
    cluster: FakeCluster,
    meanwhile: Meanwhile,
    page: str,
    heading: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGNAME", "pat")
    cluster.counts = {TopicName("flights"): 6}
    cluster.ends = dict.fromkeys(range(6), 2_100)
    with live_region(database_url, SPEC % (UPSERT if "upsert" in heading else ""), partitions=6) as driver:
        for partition in list(driver.logs):
            driver.grow(partition, end=2_000)
        driver.up()
        for requester in REQUESTERS:
            driver.process(width=1_000)
            driver.checkpoint(requester.run_id or "by hand", requester=requester)
        session = Session(kcr, driver, cluster, meanwhile)
        cluster.held = dict.fromkeys(driver.logs, 2_000)
        came = driver.store.read(driver.name)[1] - timedelta(seconds=725)
        cluster.firsts = {p.partition: TimeAnswer(offset=Offset(2_000), found=came) for p in driver.logs}
        SECTIONS[page, heading](session)
        commands = [one for one in typed(DOCS / "how-to" / page, heading) if "--follow" not in one.command]
        assert commands
        lacking = [line for one in commands for line in session.lacks(one)]
        assert not lacking, "\n".join(lacking)


def declared() -> str:
    """The spec of the page about the command line."""
    page = (DOCS / "how-to" / DRIVING).read_text(encoding="utf-8")
    (spec,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return str(spec)


def test_the_page_declares_a_region_as_it_shows(
    kcr: Kcr, cluster: FakeCluster, meanwhile: Meanwhile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flights.yaml").write_text(declared())
    session = Session(kcr, Driver(), cluster, meanwhile)
    created, changed = typed(DOCS / "how-to" / DRIVING, "Declare the region")
    assert session.lacks(created) == []
    Path("flights.yaml").write_text(declared().replace("members: 3", "members: 4") + "max_failures: 7\n")
    lacking = session.lacks(changed)
    assert not lacking, "\n".join(lacking)


def test_the_page_starts_a_region_as_it_shows(
    kcr: Kcr, database_url: str, cluster: FakeCluster, meanwhile: Meanwhile
) -> None:
    cluster.counts = {TopicName("flights"): 6}
    with live_region(database_url, declared() + "timeouts: {lease: 60s}\n", partitions=6) as driver:
        session = Session(kcr, driver, cluster, lambda *_: meanwhile(driver.up))
        (start,) = typed(DOCS / "how-to" / DRIVING, "Start the region and its members")
        # Members of a test say neither their version nor that they process.
        lacking = session.lacks(replace(start, shown=tuple(line for line in start.shown if "processing" not in line)))
        assert not lacking, "\n".join(lacking)
