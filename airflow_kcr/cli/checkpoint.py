"""`kcr checkpoint`: the checkpoints of a region, and how Kafka compares with them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.inputs import region_of
from airflow_kcr.cli.options import Before, Checkpoint, Conf, Last, Name, Output, Url, duration, settings_of
from airflow_kcr.cli.results import OutputFormat, Result, listed, note, show
from airflow_kcr.errors import CheckpointNotUsable
from airflow_kcr.protocol.offsets import OffsetMap, starting_offsets, write_offsets

if TYPE_CHECKING:
    from airflow_kcr.api import CheckpointView

app = typer.Typer(
    name="checkpoint",
    help="List, show, pin and retire checkpoints, compare them with Kafka, and repair Kafka's committed offsets.",
    no_args_is_help=True,
)

DAY: Final = timedelta(days=1)

Within = Annotated[
    timedelta,
    typer.Option("--within", parser=duration, metavar="DURATION", help="How far back, such as 6h.", show_default="1d"),
]

CLEANED: Final = ("sink", "undone", "retired", "files", "bytes")


Retired = Annotated[
    bool,
    typer.Option("--retired", help="Also delete the output of retired checkpoints, which is still readable."),
]


@app.command()
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
    from airflow_kcr.api.views import AnswerColumns
    from airflow_kcr.sinks.files.cleanup import GivenUp
    from airflow_kcr.sinks.outputs import clean_checkpoints, file_session

    store_url(store)
    with file_session(settings_of(conf)) as spark:
        found = clean_checkpoints(spark, name, GivenUp.RETIRED if retired else GivenUp.UNDONE, store=store)
    answer = listed(AnswerColumns(*CLEANED), found, f"region {name} has no file sink")
    show(replace(answer, document={"region": name, "sinks": answer.document}), output)


OFFSETS: Final = ("group", "topic", "partition", "offset", "committed")


@app.command("list")
@reported
def list_(name: Name, store: Url, last: Last = 50, before: Before = None, output: Output = None) -> None:
    """List the newest 50 checkpoints, oldest first.

    `current` is `no` if a reset has undone the checkpoint, and empty if the checkpoint is open or aborted.

    `log` shows whether you can still reset to the checkpoint: `unreachable` if a log now starts after it, or the
    estimated time at which retention overtakes it.

    Example: kcr checkpoint list flights --last 10
    """
    from airflow_kcr.api import CheckpointSummary

    with region_of(name, store) as region:
        found = region.checkpoints.list(before=before, last=last)
    empty = (
        f"region {name} has no checkpoint yet; `kcr region drain {name}` asks for one"
        if before is None
        else f"region {name} has no checkpoint before {before}"
    )
    show(listed(CheckpointSummary.shown, found, empty), output)
    if len(found) == last:
        note(f"older ones: kcr checkpoint list {name} --before {found[0].checkpoint.sequence}")


class ShownAs(StrEnum):
    """How a checkpoint is written to standard output."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    """The reset CSV of kafka-consumer-groups."""

    SPARK = "spark"
    """`startingOffsets` of Structured Streaming."""


@app.command()
@reported
def stats(name: Name, store: Url, within: Within = DAY, output: Output = None) -> None:
    """Show how long the checkpoints of the last day took, by phase and by member, the slowest first.

    `drain` lasts from the opening, or from the boundary, until all members have contributed; `publish` until all sinks
    show the checkpoint. A member's time lasts until it has contributed. `slowest` is the checkpoint that took longest.

    Example: kcr checkpoint stats flights --within 1h
    """
    from airflow_kcr.api.checkpoint_stats import CheckpointStats

    with region_of(name, store) as region:
        found = region.checkpoints.stats(within)
    empty = f"region {name} has had no checkpoint in that time; give a longer one with --within"
    show(listed(CheckpointStats.shown, found, empty), output)


@app.command("show")
@reported
def show_(
    name: Name,
    sequence: Checkpoint,
    store: Url,
    group: Annotated[
        str | None, typer.Option(help="Only this group's offsets.", metavar="GROUP", show_default=False)
    ] = None,
    output: Annotated[
        ShownAs | None,
        typer.Option(
            "--output",
            "-o",
            help="The output format: csv for kafka-consumer-groups, spark for startingOffsets. Default: a table on a "
            "terminal, JSON anywhere else.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show a checkpoint: the offset of each partition, and the offset that Kafka returned after the commit.

    -o csv prints its offsets for `kafka-consumer-groups --reset-offsets --from-file`, and -o spark one group's for a
    Structured Streaming query.

    Example: kcr checkpoint show flights 12

    Example: kcr checkpoint show flights 12 --group flights-etl -o spark
    """
    with region_of(name, store) as region:
        view = region.checkpoints.show(sequence)
    if group is not None:
        own = [p for p in view.offsets if p.group == group]
        view = replace(view, offsets=view.offsets.restrict(own), read_backs=view.read_backs.restrict(own))
    match output:
        case ShownAs.CSV:
            typer.echo(write_offsets(_usable(view)), nl=False)
        case ShownAs.SPARK:
            typer.echo(starting_offsets(_of_one_group(view)))
        case _:
            show(_shown(view), None if output is None else OutputFormat(output))


def _usable(view: CheckpointView) -> OffsetMap:
    """Return the offsets of a checkpoint, for another consumer to go on there."""
    row = view.checkpoint
    if not row.is_complete or not view.offsets:
        why = f"is {row.state}" if not row.is_complete else "has no offsets of that group"
        raise CheckpointNotUsable(f"checkpoint {row.sequence} {why}; another consumer can't go on there")
    return view.offsets


def _of_one_group(view: CheckpointView) -> OffsetMap:
    offsets = _usable(view)
    groups = sorted({p.group for p in offsets})
    if len(groups) > 1:
        why = f"a query goes on where one group stands; name it: {', '.join(groups)}"
        raise typer.BadParameter(why, param_hint="--group")
    return offsets


@app.command()
@reported
def context(name: Name, sequence: Checkpoint, store: Url, output: Output = None) -> None:
    """Show what lies around a checkpoint: its offset ranges, its neighbours, and the resets that touched it.

    `repeats` counts the offsets that had been processed before one of the last 5 resets went back over them.

    Example: kcr checkpoint context flights 12
    """
    from airflow_kcr.api.checkpoint_context import CheckpointRange

    with region_of(name, store) as region:
        found = region.checkpoints.context(sequence)
    beside = {"previous": found.previous, "next": found.next}
    facts = {
        "region": found.region,
        **{what: None if one is None else one.sequence for what, one in beside.items()},
        "offsets": found.offsets,
        "undone_by_reset": found.undone_by_reset,
        "repeats": "; ".join(f"{one.offsets} by {one.reset.reset_id}" for one in found.repeats),
    }
    answer = listed(CheckpointRange.shown, found.ranges, f"checkpoint {sequence} has no offsets")
    show(replace(answer, document=found.to_json(), facts=facts), output)


@app.command()
@reported
def pin(
    name: Name,
    sequence: Checkpoint,
    store: Url,
    label: Annotated[str, typer.Option(help="A short label.")] = "pinned",
    reason: Annotated[str, typer.Option(help="Why you keep it.", show_default=False)] = "",
    output: Output = None,
) -> None:
    """Pin a checkpoint: it isn't retired until you unpin it.

    Example: kcr checkpoint pin flights 12 --label before-upgrade
    """
    with region_of(name, store) as region:
        show(_shown(region.checkpoints.pin(sequence, label, reason)), output)


@app.command()
@reported
def unpin(name: Name, sequence: Checkpoint, store: Url, output: Output = None) -> None:
    """Unpin a checkpoint: retention applies to it again.

    Example: kcr checkpoint unpin flights 12
    """
    with region_of(name, store) as region:
        show(_shown(region.checkpoints.unpin(sequence)), output)


@app.command()
@reported
def retire(name: Name, store: Url, output: Output = None) -> None:
    """Retire all checkpoints that the spec's retention no longer keeps. A running region does this by itself.

    Always keeps the restore point and the checkpoint it was built from, the newest usable checkpoint, and checkpoints
    that are unpublished, pinned or the target of a reset.

    Example: kcr checkpoint retire flights
    """
    with region_of(name, store) as region:
        gone = list(region.checkpoints.retire())
    answer = Result(
        document={"region": name, "retired": gone},
        columns=("sequence",),
        rows=[{"sequence": sequence} for sequence in gone],
        empty="nothing is due",
    )
    show(answer, output)


@app.command()
@reported
def compare(name: Name, sequence: Checkpoint, store: Url, output: Output = None) -> None:
    """Compare a checkpoint with Kafka's committed offsets and with the start and end of each log.

    `finding` for the committed offset: equal, kafka_ahead, kafka_behind or not_committed. For the log: overtaken
    (retention has deleted records that a reset would read), recreated, beyond_end or no_log.

    Example: kcr checkpoint compare flights 12
    """
    from airflow_kcr.api import Comparison

    with region_of(name, store) as region:
        show(listed(Comparison.shown, region.checkpoints.compare(sequence)), output)


@app.command()
@reported
def repair(name: Name, sequence: Checkpoint, store: Url, output: Output = None) -> None:
    """Commit the restore point's offsets to Kafka again, if the committed offsets differ or have expired.

    Works only for the restore point (see `kcr region show`) and only while the groups are empty. Running members don't
    need it: they commit at the next checkpoint. Reads the committed offsets back and shows them.

    Example: kcr checkpoint repair flights 12
    """
    with region_of(name, store) as region:
        show(_shown(region.checkpoints.repair(sequence)), output)


def _shown(view: CheckpointView) -> Result:
    row, requester = view.checkpoint, view.requester
    document = view.to_json()
    asked = f"{requester.dag_id}/{requester.run_id}" if requester.dag_id else requester.who
    why = "; ".join(f"{partition}: {text}" for partition, text in sorted(row.inexact.items()))
    lists = {"offsets", "requested_by", "inexact", "tables"}
    facts = {name: value for name, value in document.items() if name not in lists}
    rows = [
        {"group": p.group, "topic": p.topic, "partition": p.partition, "offset": o, "committed": view.read_backs.get(p)}
        for p, o in view.offsets.items()
    ]
    return Result(
        document=document,
        columns=OFFSETS,
        rows=rows,
        facts=facts
        | {
            "committed": str(row.committed) if row.is_complete else None,
            "requested_by": asked,
            "tables": "; ".join(f"{one.table} at {one.tag or one.version}" for one in row.tables),
            "pinned_as": row.pinned_as,
            "inexact": why,
            "aborted": row.abort_reason,
            "undone": "" if row.undone_by is None else f"by the reset that opened timeline {row.undone_by}",
            "waits_for": "; ".join(view.lacking),
        },
    )
