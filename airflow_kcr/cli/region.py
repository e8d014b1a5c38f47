"""`kcr region`: what regions there are, what they are made of, and the verbs that move them."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_kcr.cli import region_answers as answers
from airflow_kcr.cli.options import TEN_MINUTES, Name, Output, Timeout, Url, Wait, instant
from airflow_kcr.cli.output import note, show
from airflow_kcr.cli.reporting import reported
from airflow_kcr.cli.session import region_of, store_of
from airflow_kcr.cli.waiting import progress, require_wait
from airflow_kcr.errors import RegionBeingDeleted

if TYPE_CHECKING:
    from airflow_kcr.api import Goal, Region, RegionView
    from airflow_kcr.spec import RegionSpec

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
    """Create the region of a spec, stopped; or change it.

    Each changed field is listed with when it counts: at_once, or next_checkpoint (with a restart of the members).
    Members that live look first whether they can run under a spec that waits for the next checkpoint; one that can't
    refuses it, and the region keeps the one that it has. --wait returns when they have looked; a refusal is then the
    answer. A group's id and its cluster never change in a region that exists.

    Example: kcr region apply -f flights.yaml --wait
    """
    from airflow_kcr.api import goals

    require_wait(wait, timeout)
    spec = _spec(file)
    with region_of(spec.region, store) as region:
        found = region.compare_spec(spec) if dry_run else region.apply(spec)
        if wait and not dry_run:
            with progress(region.name) as on_progress:
                region.wait_for(goals.SPEC_CHECKED, timeout, on_progress)
        show(answers.applied(found), output)


def _spec(file: Path) -> RegionSpec:
    from airflow_kcr.spec import load, parse

    return parse(sys.stdin.read()) if str(file) == "-" else load(file)


@app.command("list")
@reported
def list_(store: Url, output: Output = None) -> None:
    """List the regions of the store.

    Example: kcr region list -o csv
    """
    from airflow_kcr.api import regions

    with store_of(store) as found:
        show(answers.listed(regions(found)), output)


@app.command("show")
@reported
def show_(name: Name, store: Url, output: Output = None) -> None:
    """Show a region: its state, its newest checkpoint, its members and what each of them claims.

    It reads the store alone, and answers while Kafka is away. To compare the region with Kafka, its committed offsets
    among it, use kcr lag or kcr group validate.

    Example: kcr region show flights
    """
    with region_of(name, store) as region:
        show(answers.shown(region.show()), output)


@app.command()
@reported
def start(
    name: Name,
    store: Url,
    skip_topic_check: Annotated[
        bool, typer.Option("--skip-topic-check", help="Don't check first that the listed topics exist in Kafka.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = TEN_MINUTES,
    output: Output = None,
) -> None:
    """Start a stopped or halted region; resume a paused one.

    It runs as soon as its members are there; --wait says who is missing. They are started with `kcr member run`.

    Example: kcr region start flights --wait --timeout 5m
    """
    from airflow_kcr.api import goals

    require_wait(wait, timeout)
    with region_of(name, store) as region:
        if not skip_topic_check:
            for sentence in region.require_topics().values():
                note(sentence)
        view = region.start()
        absent = [str(m.member) for _, members in view.groups for m in members if not (m.alive or m.start_failure)]
        if absent:
            note(f"it runs once its members do; `kcr member run {name} --group … --index …` starts {', '.join(absent)}")
        _show_when(region, view, goals.RUNNING if wait else None, timeout, output)


@app.command()
@reported
def pause(name: Name, store: Url, wait: Wait = False, timeout: Timeout = TEN_MINUTES, output: Output = None) -> None:
    """Pause: batches in flight end, no new one begins, the members stay in their groups.

    --wait returns when no batch runs any more. A checkpoint that approaches its boundary is given up.

    Example: kcr region pause flights --wait
    """
    from airflow_kcr.api import goals

    require_wait(wait, timeout)
    with region_of(name, store) as region:
        _show_when(region, region.pause(), goals.PAUSED if wait else None, timeout, output)


@app.command()
@reported
def resume(name: Name, store: Url, wait: Wait = False, timeout: Timeout = TEN_MINUTES, output: Output = None) -> None:
    """Resume a paused region; start a stopped or halted one.

    Example: kcr region resume flights
    """
    from airflow_kcr.api import goals

    require_wait(wait, timeout)
    with region_of(name, store) as region:
        _show_when(region, region.resume(), goals.RUNNING if wait else None, timeout, output)


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
            help="Names the request: asked again with it, the same checkpoint is found instead of a second one made. "
            "Without it, each call asks for a checkpoint of its own."
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

    --wait returns when the checkpoint is published: what downstream may read is then complete. The answer names the
    checkpoint's sequence.

    Example: kcr region drain flights --request-id before-upgrade --wait
    """
    require_wait(wait, timeout)
    with region_of(name, store) as region:
        asked = region.drain(until, request_id=request_id, allow_inexact=allow_inexact)
        if wait:
            with progress(name) as on_progress:
                asked = region.wait_for_checkpoint(asked.request.request_id, timeout, on_progress)
        show(answers.checkpoint_request(asked), output)


@app.command()
@reported
def stop(name: Name, store: Url, wait: Wait = False, timeout: Timeout = TEN_MINUTES, output: Output = None) -> None:
    """Stop: take a checkpoint, publish it and commit it to Kafka; then all members leave.

    Nothing is processed twice by a stop and a later start. Without a live member, or when halted, the region is stopped
    at once, undrained.

    Example: kcr region stop flights --wait
    """
    from airflow_kcr.api import goals

    require_wait(wait, timeout)
    with region_of(name, store) as region:
        _show_when(region, region.stop(), goals.STOPPED if wait else None, timeout, output)


@app.command()
@reported
def kill(name: Name, store: Url, wait: Wait = False, timeout: Timeout = TEN_MINUTES, output: Output = None) -> None:
    """Stop without a checkpoint: running work is void at once, and the members leave.

    The next start resumes at the restore point, the newest checkpoint: every record since is processed again (how often
    a record may be is what each group's delivery says). Use it where a stop can't drain.

    Example: kcr region kill flights --wait
    """
    from airflow_kcr.api import goals

    require_wait(wait, timeout)
    with region_of(name, store) as region:
        view = region.kill()
        restore_point = (
            "its start positions"
            if view.restore_point is None
            else f"its restore point (sequence {view.restore_point})"
        )
        note(
            f"region {name} is killed: epoch {view.epoch} voids whatever runs, members leave by themselves, "
            f"the next start resumes at {restore_point}"
        )
        _show_when(region, view, goals.STOPPED if wait else None, timeout, output)


@app.command()
@reported
def delete(
    name: Name,
    store: Url,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Delete a stopped region with its checkpoints and its history.

    Kafka keeps the committed offsets of its groups, and the sinks what was written. Where it was interrupted, no other
    command finds the region any more; the same command goes on.

    Example: kcr region delete flights --yes
    """
    with region_of(name, store) as region:
        if not yes:
            _confirm(f"Forget region {name}, {_what_it_has(region)}, for ever?")
        region.delete()
        note(f"region {name} is forgotten")


def _what_it_has(region: Region) -> str:
    try:
        return f"its {region.checkpoint_count()} checkpoint(s) and its history"
    except RegionBeingDeleted:
        return "what an interrupted deletion has left of it"


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to ask: confirm with --yes", param_hint="--yes")
    typer.confirm(question, abort=True, err=True)


def _show_when(region: Region, view: RegionView, goal: Goal | None, timeout: Timeout, output: Output) -> None:
    """Show the region, as it is or as it is once a goal is reached."""
    if goal is not None:
        with progress(region.name) as on_progress:
            view = region.wait_for(goal, timeout, on_progress)
    show(answers.shown(view), output)
