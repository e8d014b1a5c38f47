"""`kcr adopt`: a region takes over from a Structured Streaming query or another consumer group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.inputs import region_of, store_of
from airflow_kcr.cli.options import Conf, OptionalUrl, Output, complete_regions, settings_of
from airflow_kcr.cli.reset import write_plan
from airflow_kcr.cli.results import OutputFormat, Result, chosen, note, show
from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_kcr.api.adoption import Adoption, ConsumerOffsets


@reported
def adopt(
    store: OptionalUrl = None,
    spark_checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Take over from the Structured Streaming query with this checkpointLocation.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Take over from this consumer group.", metavar="GROUP", show_default=False)
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            help="The region that takes over. Default: the one that has the group; for a query, only show it.",
            metavar="REGION",
            show_default=False,
            autocompletion=complete_regions,
        ),
    ] = None,
    into: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this group of the region takes over; may be repeated.", metavar="GROUP", show_default=False
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Save the plan as JSON, for `kcr reset apply`.", metavar="FILE", show_default=False),
    ] = None,
    conf: Conf = None,
    output: Output = None,
) -> None:
    """Plan to go on where a Structured Streaming query or a consumer group stands; change nothing.

    Stop the query or the group's consumers first. The plan compares each offset with its log: what is to be read, what
    may be in the other consumer's output already, and what retention has deleted. Apply it with `kcr reset apply`.
    Neither the query's checkpoint nor the group is changed.

    For a checkpoint that is not on this machine (hdfs://, s3a://), starts Spark for its file systems; pass their jars
    and settings with --conf. -o csv prints the reset CSV of kafka-consumer-groups.

    Example: kcr adopt --spark-checkpoint /data/etl/checkpoint --region flights --save plan.json

    Example: kcr adopt --group flights-etl
    """
    if (spark_checkpoint is None) == (group is None):
        raise typer.BadParameter("name either --spark-checkpoint PATH or --group GROUP")
    standing = None if spark_checkpoint is None else _of_query(spark_checkpoint, settings_of(conf))
    if standing is not None and region is None:
        show(_standing(standing), output)
        return
    with region_of(region or _with_group(group or "", store or ""), store or "") as found:
        adoption = found.adopt(standing or found.group_offsets(group or ""), into=into or ())
    if save is not None:
        write_plan(save, adoption.plan)
    if chosen(output) is OutputFormat.CSV:
        typer.echo(adoption.plan.to_csv(), nl=False)
        return
    show(_adoption(adoption), output)
    for text in adoption.notes:
        note(text)
    if chosen(output) is OutputFormat.TABLE:
        how = "plan once more with --save plan.json, then `kcr reset apply plan.json --reason …`"
        note(f"nothing was changed; to apply it: {how if save is None else f'kcr reset apply {save} --reason …'}")


def _of_query(path: str, conf: dict[str, str]) -> ConsumerOffsets:
    from airflow_kcr.spark.query_checkpoint import LocalCheckpoint, query_offsets

    if "://" not in path.removeprefix("file://"):
        return query_offsets(LocalCheckpoint(path))
    from airflow_kcr.sinks.files.hadoop import HadoopFolder
    from airflow_kcr.sinks.outputs import file_session

    with file_session(conf) as spark:
        return query_offsets(HadoopFolder(spark, path))


def _with_group(group: str, store: str) -> str:
    """Return the region of a store that has a group."""
    from airflow_kcr.protocol.values import GroupId

    with store_of(store) as opened:
        found = [name for name in opened.names() if GroupId(group) in opened.read(name)[0].rules.groups]
    if len(found) != 1:
        raise ConfigurationError(f"no region of the store has group {group}; name the one to take over with --region")
    return found[0]


def _standing(standing: ConsumerOffsets) -> Result:
    """Lay out where a query stands."""
    rows = [
        {
            "topic": p.topic,
            "partition": p.partition,
            "offset": standing.offsets.get(p),
            "started": standing.started.get(p),
        }
        for p in sorted({*standing.offsets, *standing.started})
    ]
    return Result(
        document=standing.to_json(),
        columns=("topic", "partition", "offset", "started"),
        rows=rows,
        facts={"consumer": standing.consumer, "notes": "; ".join(standing.notes)},
    )


def _adoption(adoption: Adoption) -> Result:
    """Lay out what a region would take over."""
    from airflow_kcr.api.adoption import AdoptedPartition

    lines, plan = adoption.partitions, adoption.plan
    return Result(
        document=adoption.to_json(),
        columns=AdoptedPartition.shown.data,
        rows=[line.to_json() for line in lines],
        facts={
            "region": plan.region,
            "plan": plan.plan,
            "from": adoption.standing.consumer,
            "records to read": f"{sum(line.to_read for line in lines):,}",
            "may be read twice": f"{sum(line.may_repeat for line in lines):,}",
            "left out": f"{sum(line.left_out for line in lines):,}",
        },
    )
