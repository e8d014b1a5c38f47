"""`kcr region`: declares, lists and shows regions, and starts, pauses, drains and stops them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_kcr import verbs
from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.inputs import region_of, spec_in, store_of
from airflow_kcr.cli.lineage import send_checkpoint
from airflow_kcr.cli.options import TEN_MINUTES, Conf, Name, Output, Timeout, Url, Wait, instant, settings_of
from airflow_kcr.cli.results import Result, listed, note, plain, show
from airflow_kcr.cli.waiting import progress, require_wait
from airflow_kcr.errors import RegionBeingDeleted
from airflow_kcr.goals import SPEC_IN_FORCE
from airflow_kcr.protocol.values import format_instant
from airflow_kcr.verbs import Verb

if TYPE_CHECKING:
    from airflow_kcr.api import Applied, CheckpointRequestView, Region, RegionView
    from airflow_kcr.protocol.values import TopicPartition

app = typer.Typer(
    name="region",
    help="Declare, show, start, pause, drain and stop regions.",
    no_args_is_help=True,
)


@app.command()
@reported
def apply(
    file: Annotated[
        Path, typer.Option("--file", "-f", help="The spec, a YAML file; - reads standard input.", metavar="FILE")
    ],
    store: Url,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    wait: Wait = False,
    timeout: Timeout = TEN_MINUTES,
    output: Output = None,
) -> None:
    """Create a region from a spec, or change an existing one. A new region is stopped.

    Lists each changed field with the time it takes effect: at_once, or next_checkpoint, when the members restart.
    --wait returns once the region goes on under the new spec, with status 3 if a member can't start with it; the region
    then waits for a corrected one. You can't change the group ids or the cluster of an existing region.

    Example: kcr region apply -f flights.yaml --wait
    """
    require_wait(wait, timeout)
    spec = spec_in(file)
    with region_of(spec.region, store) as region:
        found = region.compare_spec(spec) if dry_run else region.apply(spec)
        if wait and not dry_run:
            with progress(region.name) as on_progress:
                region.wait_for(SPEC_IN_FORCE, timeout, on_progress)
        show(applied(found), output)


@app.command("list")
@reported
def list_(store: Url, output: Output = None) -> None:
    """List the regions of the store.

    Example: kcr region list -o csv
    """
    from airflow_kcr.api import RegionSummary, regions

    with store_of(store) as found:
        empty = "there is no region in this store yet; `kcr region apply -f FILE` makes one"
        show(listed(RegionSummary.shown, regions(found), empty), output)


@app.command("show")
@reported
def show_(name: Name, store: Url, output: Output = None) -> None:
    """Show a region: its state, its newest checkpoint, its members and their partitions.

    Reads only the store, so it works while Kafka is unreachable. To compare the region with Kafka, use kcr lag or
    kcr group validate.

    Example: kcr region show flights
    """
    with region_of(name, store) as region:
        show(shown(region.show()), output)


@app.command(help=verbs.START.help)
@reported
def start(
    name: Name,
    store: Url,
    skip_topic_check: Annotated[
        bool, typer.Option("--skip-topic-check", help="Don't check that the topics exist in Kafka.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = TEN_MINUTES,
    output: Output = None,
) -> None:
    """Start a region whose topics exist; its help is the verb's."""
    require_wait(wait, timeout)
    with region_of(name, store) as region:
        if not skip_topic_check:
            for sentence in region.require_topics().values():
                note(sentence)
        view = region.start()
        absent = [str(m.member) for g in view.groups for m in g.members if not (m.alive or m.start_failure)]
        if absent:
            note(
                f"the region runs once its members do; start {', '.join(absent)} with "
                f"`kcr member run {name} --group … --index …`"
            )
        _show_when(region, verbs.START if wait else None, timeout, output)


def _killed(region: Region) -> str:
    view = region.show()
    restore_point = (
        "its start positions" if view.restore_point is None else f"its restore point (sequence {view.restore_point})"
    )
    return (
        f"region {region.name} is killed: epoch {view.epoch} voids running batches, members leave by themselves, "
        f"the next start resumes at {restore_point}"
    )


def _steered_by(verb: Verb) -> Callable[..., None]:
    """Return the command of a verb that needs no more than the region's name."""

    def steer(
        name: Name, store: Url, wait: Wait = False, timeout: Timeout = TEN_MINUTES, output: Output = None
    ) -> None:
        require_wait(wait, timeout)
        with region_of(name, store) as region:
            region.ask(verb)
            if verb is verbs.KILL:
                note(_killed(region))
            _show_when(region, verb if wait else None, timeout, output)

    return steer


for _verb in verbs.STEERING:
    app.command(_verb.name, help=_verb.help)(reported(_steered_by(_verb)))


@app.command()
@reported
def drain(
    name: Name,
    store: Url,
    until: Annotated[
        datetime | None,
        typer.Option(
            parser=instant, metavar="TIME", help="Align the checkpoint to this boundary, such as 2026-01-01T10:00:00Z."
        ),
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option(
            help="Name the request: a repeated call with the same id returns the same checkpoint. Without it, every "
            "call requests a new one."
        ),
    ] = None,
    allow_inexact: Annotated[
        bool,
        typer.Option("--allow-inexact", help="Take the checkpoint even if a partition is already past the boundary."),
    ] = False,
    wait: Wait = False,
    timeout: Timeout = TEN_MINUTES,
    output: Output = None,
) -> None:
    """Request a checkpoint; the region continues afterwards, or stays paused.

    --wait returns when the checkpoint is published: downstream jobs can then read its complete output. The answer has
    the checkpoint's sequence.

    Example: kcr region drain flights --request-id before-upgrade --wait
    """
    require_wait(wait, timeout)
    with region_of(name, store) as region:
        asked = region.drain(until, request_id=request_id, allow_inexact=allow_inexact)
        if wait:
            with progress(name) as on_progress:
                asked = region.wait_for_checkpoint(asked.request.request_id, timeout, on_progress)
            send_checkpoint(region, asked.request.sequence)
        show(checkpoint_request(asked), output)


@app.command()
@reported
def delete(
    name: Name,
    store: Url,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
    with_output: Annotated[
        bool, typer.Option("--with-output", help="Delete what its sinks have written, too: rows, files and progress.")
    ] = False,
    conf: Conf = None,
) -> None:
    """Delete a stopped region, with its checkpoints and its history, permanently.

    The groups' committed offsets stay in Kafka, and written output stays in the sinks, unless you give --with-output:
    the command lists what it leaves. A region that you declare under the name later is another one, which refuses such
    output until you say what becomes of it (`kcr region output`). If the deletion is interrupted, run it again; other
    commands refuse the region until it is deleted.

    Example: kcr region delete flights --yes
    """
    with region_of(name, store) as region:
        if not yes:
            what = f"{_what_it_has(region)}{', and what its sinks have written' if with_output else ''}"
            _confirm(f"Delete region {name}, {what}, permanently?")
        left = _deleted_outputs(name, store, conf) if with_output else _left(region)
        region.delete()
        note(f"region {name} is deleted")
        for line in left:
            note(line)


def _deleted_outputs(name: str, store: str, conf: list[str] | None) -> list[str]:
    from airflow_kcr.protocol.values import region_name
    from airflow_kcr.sinks.outputs import delete_outputs

    with store_of(store) as found:
        done = delete_outputs(found, region_name(name), settings_of(conf))
    return [f"sink {one.sink} of group {one.group}: {one.note} ({one.place})" for one in done]


def _left(region: Region) -> list[str]:
    """Return what a deleted region leaves behind, and where."""
    try:
        spec = region.spec()
    except RegionBeingDeleted:
        return []
    sinks = [
        f"sink {sink.name} of group {group.group_id} keeps what it wrote to {sink.place}"
        for group in spec.groups
        for sink in group.sinks
    ]
    return [*sinks, *(f"group {group.group_id} keeps its committed offsets in Kafka" for group in spec.groups)]


OUTPUT: Final = ("group", "sink", "kind", "place", "rows", "earlier", "note")


@app.command("output")
@reported
def output_(
    name: Name,
    store: Url,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the rows of earlier sinks beside, for good.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the rows of earlier sinks.")] = False,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Make an earlier sink's rows, or the table that is there now, this sink's."),
    ] = False,
    conf: Conf = None,
    output: Output = None,
) -> None:
    """Show what a region's sinks have written, and what an earlier region of the name has left; or settle that.

    A table may have rows of a region that was deleted, of one of the same name in another store, or of a sink that was
    renamed. Members refuse to start until you say what becomes of them. With --take-over, the first reset deletes those
    rows that the region processes again. The region must be stopped to settle it. Folders of file sinks, which Spark
    reaches, can't be shared: name another folder, or delete its files.

    Example: kcr region output flights --delete
    """
    from airflow_kcr.api.views import AnswerColumns
    from airflow_kcr.protocol.values import region_name
    from airflow_kcr.sinks.contract import Choice
    from airflow_kcr.sinks.outputs import outputs, settle

    chosen = [c for c, is_given in zip(Choice, (keep, delete, take_over), strict=True) if is_given]
    if len(chosen) > 1:
        raise typer.BadParameter("give one of --keep, --delete and --take-over")
    with store_of(store) as found:
        place, settings = region_name(name), settings_of(conf)
        rows = settle(found, place, chosen[0], settings) if chosen else outputs(found, place, settings)
    answer = listed(AnswerColumns(*OUTPUT), rows, f"region {name} has no sink")
    show(replace(answer, document={"region": name, "sinks": answer.document}), output)


def _what_it_has(region: Region) -> str:
    try:
        return f"its {region.checkpoints.count()} checkpoint(s) and its history"
    except RegionBeingDeleted:
        return "what an interrupted deletion has left of it"


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("no terminal to ask on; confirm with --yes", param_hint="--yes")
    typer.confirm(question, abort=True, err=True)


def _show_when(region: Region, reached: Verb | None, timeout: Timeout, output: Output) -> None:
    """Show the region, as it is or as it is once what a verb asks for is reached."""
    if reached is None:
        show(shown(region.show()), output)
        return
    with progress(region.name) as on_progress:
        view = region.wait_for(reached.goal, timeout, on_progress)
    show(shown(view), output)


# How what `kcr region` finds out is laid out: facts, columns, rows.

MEMBER: Final = ("group_id", "member_id", "incarnation", "version", "state", "alive", "partitions")


def shown(view: RegionView) -> Result:
    """Lay out one region and its members."""
    from airflow_kcr.api.views import span

    document = view.to_json()
    apart = {"groups", "unowned", "absent", "waits", "overdue_seconds"}
    facts = {name: value for name, value in document.items() if name not in apart}
    facts |= {
        "overdue": ""
        if view.overdue is None
        else f"the next boundary passed {span(view.overdue)} ago, not checkpointed yet"
    }
    retention = (
        ""
        if view.overtaken_at is None
        else f"reaches the restore point about {format_instant(view.overtaken_at)}, as fast as between checkpoints"
    )
    rows = [
        member.to_json() | {"group_id": group.group_id, "partitions": compact(member.partitions)}
        for group in view.groups
        for member in group.members
    ]
    return Result(
        document=document,
        columns=MEMBER,
        rows=rows,
        facts=facts
        | {"progress": view.liveness.text(), "halted": view.halted, "note": view.note}
        | {"lag": f"{plain(view.lag)} to read; {view.finding.text()}", "retention": retention},
    )


def applied(found: Applied) -> Result:
    """Lay out what became of a spec."""
    rows = [{"field": d.path, "takes_effect": str(d.takes_effect)} for d in found.differences]
    return Result(
        document=found.to_json(),
        columns=("field", "takes_effect"),
        rows=rows,
        facts={"region": found.region, "change": str(found.change)},
    )


def checkpoint_request(view: CheckpointRequestView) -> Result:
    """Lay out where a request for a checkpoint stands."""
    document = view.to_json()
    return Result(document=document, columns=tuple(document), rows=[document])


def compact(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as people write them, `flights 0-3,7`; several topics one after the other."""
    texts = []
    for topic, owned in groupby(sorted(partitions), key=lambda p: p.topic):
        texts.append(f"{topic} {','.join(_runs([p.partition for p in owned]))}")
    return " ".join(texts)


def _runs(numbers: Sequence[int]) -> Iterable[str]:
    """Yield ascending numbers, neighbours as one run."""
    for _, neighbours in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in neighbours]
        yield str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
