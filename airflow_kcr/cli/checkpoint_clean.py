"""`kcr checkpoint clean`: deletes the files of file sinks that no checkpoint needs."""

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
    typer.Option("--retired", help="Also delete the output of retired checkpoints, which is still readable."),
]


@reported
def clean(name: Name, store: Url, retired: Retired = False, conf: Conf = None, output: Output = None) -> None:
    """Delete file sink output that no checkpoint needs: of undone checkpoints and of discarded batches.

    Keeps every file that a readable checkpoint has or that a later checkpoint may need. Members can keep running.

    --retired also deletes the output of retired checkpoints permanently: `read_checkpoint` then reports them as
    retired.

    Starts Spark for its file systems. For an object store, pass its jar and settings with --conf, as for
    members.

    Example: kcr checkpoint clean flights
    """
    from airflow_kcr.api.regions import store_url
    from airflow_kcr.sinks.files.cleanup import GivenUp, clean_checkpoints, file_session, sinks_of

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
