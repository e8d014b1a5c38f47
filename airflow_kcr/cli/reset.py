"""`kcr reset`: plans, applies and lists resets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.inputs import region_of, text_in
from airflow_kcr.cli.lineage import send_reset
from airflow_kcr.cli.options import TEN_MINUTES, Before, Last, Name, Output, Timeout, Url, Wait
from airflow_kcr.cli.results import OutputFormat, Result, chosen, listed, note, show
from airflow_kcr.cli.waiting import progress, require_wait
from airflow_kcr.errors import ConfigurationError
from airflow_kcr.protocol import targets

if TYPE_CHECKING:
    from airflow_kcr.api import Plan, ResetView

app = typer.Typer(
    name="reset",
    help="Plan, apply and list resets of a region; its members stay in their groups.",
    no_args_is_help=True,
)

TARGETS: Final = "Where to (exactly one)"
SCOPE: Final = "Which partitions"


def _options() -> list[Parameter]:
    """Return an option for each target: a text where it has a value, else a flag."""
    return [
        Parameter(
            one.option.replace("-", "_"),
            Parameter.KEYWORD_ONLY,
            default=None if one.metavar else False,
            annotation=Annotated[
                str | None if one.metavar else bool,
                typer.Option(help=one.help, metavar=one.metavar or None, rich_help_panel=TARGETS, show_default=False),
            ],
        )
        for one in targets.TARGETS
    ]


def _with_targets(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with an option for each target in place of its `target`, which it gets as (option, value)."""
    given = signature(command, eval_str=True)
    options = _options()

    @wraps(command)
    def run(**arguments: Any) -> None:  # noqa: ANN401 (typer's)
        values = {one.name.replace("_", "-"): arguments.pop(one.name) for one in options}
        return command(**arguments, target=_only([(o, v) for o, v in values.items() if v not in {None, False}]))

    parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in given.parameters.values()]
    place = [p.name for p in parameters].index("target")
    parameters[place : place + 1] = options
    run.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _only(given: list[tuple[str, str | bool]]) -> tuple[str, str | None]:
    if len(given) == 1:
        [(option, value)] = given
        return option, value if isinstance(value, str) else None
    named = ", ".join(f"--{option}" for option, _ in given)
    every = ", ".join(f"--{one.option}" for one in targets.TARGETS)
    raise typer.BadParameter(f"{named} exclude each other" if given else f"name a target: one of {every}")


@app.command()
@reported
@_with_targets
def plan(  # noqa: PLR0913 - one parameter for each option
    name: Name,
    store: Url,
    target: tuple[str, str | None],
    timezone: Annotated[
        str,
        typer.Option(help="The time zone of a --to-datetime without one, such as Europe/Zurich.", show_default=False),
    ] = "",
    group: Annotated[
        list[str] | None, typer.Option(help="Only this group; may be repeated.", rich_help_panel=SCOPE)
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this topic, or these partitions of it; may be repeated.",
            metavar="TOPIC[:0,1]",
            rich_help_panel=SCOPE,
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            help="Skip this record permanently, for example one that fails every batch; may be repeated.",
            metavar="TOPIC:PARTITION:OFFSET",
        ),
    ] = None,
    forward: Annotated[
        bool, typer.Option("--forward", help="Allow a checkpoint of another timeline; skips the records in between.")
    ] = False,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Allow an incomplete checkpoint; the plan fills and marks its gaps.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(help="Save the plan as JSON, for `kcr reset apply`.", metavar="FILE"),
    ] = None,
    output: Output = None,
) -> None:
    """Show what a reset would do, partition by partition; change nothing.

    Partitions outside --group and --topic keep their position. Apply the plan with `kcr reset apply` before another
    start or reset makes it invalid. -o csv prints the reset CSV of kafka-consumer-groups.

    Example: kcr reset plan flights --to-checkpoint 12 --save plan.json

    Example: kcr reset plan flights --by-duration 6h --topic flights:0,1 -o csv
    """
    option, value = target
    if timezone and option != targets.ToDatetime.option:
        raise typer.BadParameter("needs --to-datetime", param_hint="--timezone")
    if option == targets.FromFile.option:
        value = text_in(value or "")
    with region_of(name, store) as region:
        request = region.resets.request(
            option, value, groups=group or (), topics=topic or (), skip=skip or (), timezone=timezone
        )
        found = region.resets.plan(replace(request, forward=forward, allow_partial=allow_partial))
    if save is not None:
        write_plan(save, found)
    _show_plan(found, save, output)


def write_plan(file: Path, plan: Plan) -> None:
    """Save a plan for `apply`.

    Raises:
        ConfigurationError: the file can't be written.
    """
    try:
        file.write_text(json.dumps(plan.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} can't be written: {error}") from None


def _show_plan(found: Plan, save: Path | None, output: Output) -> None:
    if chosen(output) is OutputFormat.CSV:
        typer.echo(found.to_csv(), nl=False)
    else:
        show(planned(found), output)
    if found.totals.unreachable:
        from airflow_kcr.api.resets import way_out

        note(
            f"{found.totals.unreachable} partition(s) are unreachable: the log no longer has where they would go. "
            f"Applied, this plan is refused; {way_out(found)}"
        )
        return
    if found.upserts:
        note(
            f"{', '.join(map(str, found.upserts))}: mode upsert keeps no history, the table is right again when the "
            "replay has passed where the region is now; to apply the plan, consent with --consent-upsert"
        )
    if chosen(output) is OutputFormat.TABLE:
        how = "plan once more with --save plan.json, then `kcr reset apply plan.json --reason …`"
        note(f"nothing was changed; to apply it: {how if save is None else f'kcr reset apply {save} --reason …'}")


@app.command()
@reported
def apply(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="The plan, a file from --save; - reads standard input.")],
    store: Url,
    reason: Annotated[str, typer.Option(help="Why you reset; shown in the history.", show_default=False)],
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Don't drain first; reset from the last done positions. For a region that can't drain."
        ),
    ] = False,
    consent_upsert: Annotated[
        bool,
        typer.Option(
            "--consent-upsert",
            help="Accept that the upsert tables named in the plan can't be restored.",
        ),
    ] = False,
    wait: Wait = False,
    timeout: Timeout = TEN_MINUTES,
    output: Output = None,
) -> None:
    """Apply a plan, while the members stay in their groups.

    The region drains to a checkpoint, publishes it, resolves the plan's target again and moves there. Relative targets
    count from that checkpoint. Applying a plan twice makes one reset; a plan from an earlier epoch is refused.

    For a stopped region, sets Kafka's committed offsets at once, and the next start resumes there. The groups must be
    empty.

    Example: kcr reset apply plan.json --reason "wrong exchange rates since Monday" --wait
    """
    from airflow_kcr.protocol.region.rows import PersonResetState

    require_wait(wait, timeout)
    found = _read_plan(plan)
    with region_of(found.region, store) as region:
        view = region.resets.apply(found, reason, forced=force, consent_upsert=consent_upsert)
        if wait or view.state == PersonResetState.FAILED:
            # Applied once more, the plan of a reset that failed says so again: waiting for that one ends at once.
            with progress(found.region) as on_progress:
                view = region.resets.wait_for(found.plan, timeout, on_progress)
            send_reset(region, view)
        show(shown(view), output)


def _read_plan(file: str) -> Plan:
    from airflow_kcr.api import Plan

    text = text_in(file)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{file} is not JSON; `kcr reset plan … --save {file}` writes a plan") from None
    return Plan.from_json(document)


@app.command("list")
@reported
def list_(name: Name, store: Url, last: Last = 50, before: Before = None, output: Output = None) -> None:
    """List the newest 50 resets of a region, oldest first: manual resets, automatic resets and starts.

    `replayed` counts the offsets that were processed again because of a reset. The list includes manual resets that
    are waiting or failed before they began.

    Example: kcr reset list flights --last 10
    """
    with region_of(name, store) as region:
        found = region.resets.list(before=before, last=last)
        first = next((view.attempts[0].sequence for view in found if view.attempts), None)
        has_older = first is not None and bool(region.resets.list(before=first, last=1))
    empty = (
        f"region {name} was never reset or started" if before is None else f"region {name} has no reset before {before}"
    )
    show(_listed(found, empty), output)
    if has_older:
        note(f"older ones: kcr reset list {name} --before {first}")


@app.command("show")
@reported
def show_(
    reset: Annotated[str, typer.Argument(metavar="ID", help="An id from `kcr reset list`, or the name of a plan.")],
    store: Url,
    output: Output = None,
) -> None:
    """Show a reset: who requested it and why, its attempts, the checkpoints it undid, and the records replayed.

    Example: kcr reset show flights/12
    """
    from airflow_kcr.api.reset_views import region_of_id

    with region_of(region_of_id(reset), store) as region:
        show(shown(region.resets.show(reset)), output)


# How what `kcr reset` finds out is laid out: a plan with its worst partitions first, resets, one reset.

PLANNED: Final = ("group", "topic", "partition", "current", "target", "source", "replay", "skip", "note")
SHOWN: Final = 20
"""How many partitions a table has; of more, the worst."""


def planned(plan: Plan) -> Result:
    """Lay out a plan."""
    totals = plan.totals
    is_big = len(plan.entries) > SHOWN
    lines = plan.worst[:SHOWN] if is_big else plan.entries
    shown = f"the worst {len(lines)} of {totals.partitions}; -o json has all" if is_big and lines else ""
    return Result(
        document=plan.to_json(),
        columns=PLANNED,
        rows=[line.to_json() | {"note": "; ".join(plan.notes(line))} for line in lines],
        facts={"region": plan.region, "plan": plan.plan, "epoch": plan.epoch, **plan.heading(), "shown": shown},
    )


def _listed(found: Sequence[ResetView], empty: str) -> Result:
    """Lay out the resets of a region."""
    from airflow_kcr.api import ResetView

    answer = listed(ResetView.shown, found, empty)
    rows = [{**row, "attempts": len(view.attempts)} for row, view in zip(answer.rows, found, strict=True)]
    return replace(answer, rows=rows)


def shown(view: ResetView) -> Result:
    """Lay out one reset with its attempts."""
    from airflow_kcr.api.reset_views import ATTEMPT

    document = view.to_json()
    facts = {name: value for name, value in document.items() if name != "attempts"} | {
        "skip": ", ".join(f"{p} at {o}" for p, o in view.asked.skip.items()) if view.asked is not None else "",
    }
    return replace(listed(ATTEMPT, view.attempts), document=document, facts=facts)
