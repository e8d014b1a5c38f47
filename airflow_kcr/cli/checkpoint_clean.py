"""`kcr checkpoint clean`: deletes the files of file sinks that nobody can read any more."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from airflow_kcr.cli.member import Conf, settings_of
from airflow_kcr.cli.options import Name, Output, Url
from airflow_kcr.cli.output import Answer, show
from airflow_kcr.cli.reporting import reported

COLUMNS: Final = ("sink", "undone", "retired", "files", "bytes")

Retired = Annotated[
    bool,
    typer.Option("--retired", help="Delete the output of retired checkpoints as well, which could be read until now."),
]


@reported
def clean(name: Name, store: Url, retired: Retired = False, conf: Conf = None, output: Output = None) -> None:
    """Delete the files of file sinks that nobody can read any more.

    Of undone checkpoints, and of batches that never counted.

    No file goes that a checkpoint has which can be read, or that a later checkpoint may need; members may be at work
    meanwhile. With --retired, the output of retired checkpoints goes too, for ever: `read_checkpoint` then says that
    they are retired. Spark is started here for its file systems, so an object store needs its jar and settings by
    --conf, as members do.

    Example: kcr checkpoint clean flights
    """
    from airflow_kcr.api.opening import store_url
    from airflow_kcr.sinks.files.cleaning import GivenUp
    from airflow_kcr.spark.cleaning import clean_checkpoints, file_session, sinks_of

    store_url(store)
    with file_session(settings_of(conf), sinks_of(name, store=store)) as spark:
        found = clean_checkpoints(spark, name, GivenUp.RETIRED if retired else GivenUp.UNDONE, store=store)
    rows = [
        {"sink": one.sink, "undone": list(one.undone), "retired": list(one.retired)}
        | {"files": one.files, "bytes": one.bytes}
        for one in found
    ]
    shown = [
        row | {"undone": _listed(one.undone), "retired": _listed(one.retired)}
        for row, one in zip(rows, found, strict=True)
    ]
    answer = Answer(
        document={"region": name, "sinks": rows},
        columns=COLUMNS,
        rows=shown,
        numbers=frozenset({"files", "bytes"}),
        empty=f"region {name} has no file sink",
    )
    show(answer, output)


def _listed(sequences: tuple[int, ...]) -> str:
    return ", ".join(map(str, sequences))
