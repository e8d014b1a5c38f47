"""`kcr recompute`: the records of checkpoints once more, by the pipeline as it is now."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_kcr.cli import member, options
from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.group import Groups
from airflow_kcr.cli.inputs import requester, store_of
from airflow_kcr.cli.lineage import send_checkpoint
from airflow_kcr.cli.results import listed, show
from airflow_kcr.protocol.values import region_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_kcr.api import Region
    from airflow_kcr.api.recomputations import RecomputedOutput, Replace

_WHICH = "name the checkpoint: --checkpoint SEQUENCE, --run DAG_ID/RUN_ID, or --from TIME --to TIME; one of the three"


@reported
def recompute(  # noqa: PLR0913 (options are named where they are used)
    region: options.Name,
    store: options.Url,
    checkpoint: Annotated[
        int | None, typer.Option(metavar="SEQUENCE", min=1, help="Recompute this checkpoint.", show_default=False)
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="DAG_ID/RUN_ID",
            help="Recompute the checkpoint of this DAG run.",
            callback=options.dag_run_named,
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        datetime | None,
        typer.Option(
            "--from",
            parser=options.instant,
            metavar="TIME",
            help="With --to: recompute every checkpoint whose boundary is after this instant.",
            show_default=False,
        ),
    ] = None,
    up_to: Annotated[
        datetime | None,
        typer.Option(
            "--to",
            parser=options.instant,
            metavar="TIME",
            help="With --from: and at most this instant.",
            show_default=False,
        ),
    ] = None,
    group: Groups = None,
    request_id: Annotated[
        str | None,
        typer.Option(help="Name the recomputation: a repeated call with the same id finds it, or begins it again."),
    ] = None,
    consent_upsert: Annotated[
        bool,
        typer.Option("--consent-upsert", help="Recompute tables of mode upsert, where overwritten rows don't return."),
    ] = False,
    consent_compacted: Annotated[
        bool,
        typer.Option(
            "--consent-compacted", help="Recompute although compaction may have taken records, whose output then goes."
        ),
    ] = False,
    into: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write into other sinks, and replace nothing: a YAML file that maps groups to sinks.",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN,…",
            help="Replace nothing: compare what is made now with what is shown, by the columns that name a row.",
            show_default=False,
        ),
    ] = None,
    dag_run: options.DagRun = "",
    start_within: member.StartWithin = options.TEN_MINUTES,
    master: member.Master = None,
    conf: options.Conf = None,
    read_option: member.Reading = None,
    jars: member.Jars = None,
    connector: member.Connector = None,
    output: options.Output = None,
) -> None:
    """Recompute a checkpoint: process its records once more, and replace its output. Nothing else changes.

    The pipeline and the sinks are those of the spec in force. Readers see the old output until all of the new one is
    there. The region can run meanwhile, or rest: its members don't notice.

    With --into the output goes into other sinks, with --compare it is compared and dropped: the region's own output
    stays as it is.

    A checkpoint that a reset has undone can't be recomputed, nor one whose records are no longer in Kafka.

    Example: kcr recompute flights --checkpoint 12 --master 'local[2]'

    Example: kcr recompute flights --from 2026-01-01T00:00:00Z --to 2026-01-02T00:00:00Z

    Example: kcr recompute flights --checkpoint 12 --compare tail_number -o json
    """
    from airflow_kcr.api import OutputComparison, RecomputationView, Region
    from airflow_kcr.api.recomputations import Replace
    from airflow_kcr.driver.recompute import recompute as recomputed

    boundaries = None if after is None or up_to is None else (after, up_to)
    if [checkpoint, run, boundaries].count(None) != 2 or (after is None) != (up_to is None):
        raise typer.BadParameter(_WHICH)
    name, asked = region_name(region), request_id or f"recompute:{uuid.uuid4()}"
    with store_of(store) as found:
        handle = Region(name, found, requester=requester(dag_run))
        wanted = _output(into, compare, Replace(consent_upsert=consent_upsert, consent_compacted=consent_compacted))
        recomputations = [
            handle.recompute(sequence, groups=group or (), request_id=asked, output=wanted)
            for sequence in _sequences(handle, checkpoint, run, boundaries)
        ]
        spark = member.settings(f"kcr recompute {region}", master, conf, jars, connector)
        reading = options.settings_of(read_option)
        views = recomputed(found, recomputations, spark, reading, start_within=start_within)
        for view in views if into is None and compare is None else ():
            send_checkpoint(handle, view.checkpoint.sequence, dag_run)
    if compare is None:
        show(listed(RecomputationView.shown, views), output)
    else:
        show(listed(OutputComparison.shown, [one for view in views for one in view.comparisons]), output)


def _output(into: str | None, compare: str | None, replace: Replace) -> RecomputedOutput:
    from airflow_kcr.api.recomputations import Compare, Into
    from airflow_kcr.spec.elsewhere import read_sinks

    if [into is not None, compare is not None, replace.consent_upsert or replace.consent_compacted].count(True) > 1:
        raise typer.BadParameter("give one of --into, --compare and --consent-…: the first two replace nothing")
    if into is not None:
        return Into(sinks=read_sinks(into))
    if compare is None:
        return replace
    key = tuple(column.strip() for column in compare.split(","))
    if not all(key):
        raise typer.BadParameter("--compare takes the columns that name a row, with commas between them")
    return Compare(key=key)


def _sequences(
    region: Region, checkpoint: int | None, run: str | None, boundaries: tuple[datetime, datetime] | None
) -> Sequence[int]:
    if checkpoint is not None:
        return [checkpoint]
    if boundaries is not None:
        return region.checkpoints.between(*boundaries)
    dag_id, _, run_id = (run or "").partition("/")
    return [region.checkpoints.number_of_run(dag_id, run_id)]
