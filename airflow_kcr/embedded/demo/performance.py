"""The demo as a whole: the services, the acts in their order, the judgement, and everything stopped again."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from airflow_kcr.api import Region
from airflow_kcr.api.clusters import reader_with
from airflow_kcr.embedded import jars, services
from airflow_kcr.embedded.demo.judgement import DemoVerdict, judged
from airflow_kcr.embedded.demo.play import BEFORE_RESET, REGION, Audience, Play, Stage, Tell, declare, producing


def perform(audience: Audience, folder: Path, *, keep: bool) -> tuple[DemoVerdict, Mapping[str, float]]:
    """Perform the demo, and return how it came out, and how many seconds each phase took.

    Args:
        audience: whom it is shown to.
        folder: where everything is kept.
        keep: whether the services continue after it, if all acts went well.

    Raises:
        KcrError: an act failed; the message says which, and why.
    """
    jars.java()  # report a missing requirement before there is anything to clean up
    seconds: dict[str, float] = {}

    @contextmanager
    def phase(name: str) -> Iterator[Tell]:
        began = time.monotonic()
        with audience(name) as tell:
            yield tell
        seconds[name] = seconds.get(name, 0.0) + time.monotonic() - began

    with ExitStack() as ending:
        ending.callback(services.down, folder, lambda _: None)
        verdict = _played(phase, Stage(folder))
        if keep:
            ending.pop_all()
    return verdict, seconds


def _played(phase: Audience, stage: Stage) -> DemoVerdict:
    with phase("download") as tell:
        for one in (jars.KAFKA_BROKER, jars.spark_connector()):
            tell(0, None, one.name)
            jars.resolve(one)
    with phase("start Kafka and Postgres"):
        stage.start(without={"airflow", "spark"})
    with phase("declare the region"):
        since = declare(stage)
    with (
        producing(stage) as end,
        Region(REGION, stage.store_url, clusters=lambda *_: reader_with(stage.kafka)) as region,
    ):
        with phase("start Airflow"):
            stage.start(without={"spark"})
        with stage.client("editor") as editor:
            play = Play(stage=stage, region=region, editor=editor, since=since)
            with phase("start the consumers") as tell:
                play.start_consumers(tell)
            with phase("checkpoint intervals") as tell:
                play.wait_for(tell, 1, "data intervals checkpointed", lambda: len(play.settled()))
            with phase("kill a consumer") as tell:
                play.kill_a_consumer(tell)
            with phase("checkpoint intervals") as tell:
                # That is all that a person needs who goes back to one of them, whatever has become of their runs.
                play.wait_for(tell, BEFORE_RESET, "checkpoints published", lambda: len(play.checkpoints()))
            with phase("reset from Airflow") as tell:
                play.reset(tell, end)
            with phase("checkpoint the intervals again") as tell:
                play.finish(tell)
            with phase("stop the region") as tell:
                play.stop(tell)
            with phase("recompute a run") as tell:
                play.recompute(tell)
            with phase("check everything"):
                return judged(play)


@contextmanager
def own_folder(*, keep: bool) -> Iterator[Path]:
    """Lend a new folder, which is gone at the end.

    Args:
        keep: whether it stays if all went well, for what still runs in it.
    """
    folder = Path(tempfile.mkdtemp(prefix="kcr-demo-"))
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder
        if keep:
            ending.pop_all()
