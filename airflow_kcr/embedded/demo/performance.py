"""The demo as a whole: the stage, the acts in their order, the judgement, and everything stopped again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_kcr.api import Region
from airflow_kcr.embedded import jars
from airflow_kcr.embedded.airflow_settings import User
from airflow_kcr.embedded.demo.audience import Audience, Phase, Timed
from airflow_kcr.embedded.demo.judgement import Verdict, judged
from airflow_kcr.embedded.demo.play import REGION, Happened, Play, Script, declare, producing
from airflow_kcr.embedded.demo.stage import Curtain, Launches, prepared, staged, tied
from airflow_kcr.embedded.java import java


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where everything is reached while it runs."""

    airflow: str
    users: tuple[User, ...]
    store_url: str
    kafka: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How the demo came out."""

    verdict: Verdict
    happened: Happened
    seconds: dict[str, float]
    addresses: Addresses


@contextmanager
def performed(
    audience: Audience,
    folder: Path,
    *,
    script: Script | None = None,
    curtain: Curtain | None = None,
    launches: Launches = tied,
) -> Iterator[Summary]:
    """Perform the demo, and lend its summary while the services still run; they stop at the end.

    Args:
        audience: whom it is shown to.
        folder: where everything is kept.
        script: how long and how much.
        curtain: whether the services stop at the end.
        launches: how their processes are launched.

    Raises:
        KcrError: an act failed; the message says which, and why.
    """
    chosen = script or Script()
    java()  # whoever lacks it is told so before there is anything to clear away
    timed, falling = Timed(audience), curtain or Curtain()
    with ExitStack() as stack:
        making = stack.enter_context(prepared(folder, falling, launches))
        with timed.phase("download") as phase:
            _download(phase)
        with timed.phase("start Kafka and Postgres"):
            stage = stack.enter_context(staged(folder, making, falling, launches))
        with timed.phase("declare the region"):
            found = declare(stage, chosen)
        production = stack.enter_context(producing(stage, chosen))
        with timed.phase("start Airflow"):
            airflow = stack.enter_context(stage.airflow(since=found.since, every=chosen.every))
        region = stack.enter_context(Region(REGION, stage.store_url))
        editor = stack.enter_context(airflow.client("editor"))
        play = Play(stage=stage, airflow=airflow, region=region, editor=editor, script=chosen, found=found)
        with timed.phase("start the consumers") as phase:
            play.start_consumers(phase)
        with timed.phase("checkpoint intervals") as phase:
            play.wait_for_intervals(phase, chosen.before_kill)
        with timed.phase("kill a consumer") as phase:
            play.kill_a_consumer(phase)
        with timed.phase("checkpoint intervals") as phase:
            play.wait_for_checkpoints(phase, chosen.before_reset)
        with timed.phase("reset from Airflow") as phase:
            last = play.reset(phase, production)
        with timed.phase("checkpoint the intervals again") as phase:
            play.finish(phase, last)
        with timed.phase("stop the region") as phase:
            play.stop(phase)
        with timed.phase("check everything"):
            verdict = judged(play)
        addresses = Addresses(
            airflow=airflow.url,
            users=airflow.users,
            store_url=stage.store_url,
            kafka=stage.kafka.bootstrap_servers,
            folder=folder,
        )
        yield Summary(verdict=verdict, happened=found, seconds=timed.seconds, addresses=addresses)


def _download(phase: Phase) -> None:
    wanted = (jars.KAFKA_BROKER, jars.KAFKA_TOOLS, jars.spark_connector())
    phase.tell(0, len(wanted), ", ".join(one.name for one in wanted))
    jars.resolve_all(wanted, lambda done, name: phase.tell(done, len(wanted), f"{name} has come"))


@contextmanager
def own_folder(*, keep: bool) -> Iterator[Path]:
    """Lend a new folder, which is gone at the end.

    Args:
        keep: whether it stays if all went well, for what still runs in it.
    """
    folder = Path(tempfile.mkdtemp(prefix="kcr-demo-"))
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
