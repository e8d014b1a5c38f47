"""`kcr reset`: plans, applies and lists resets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_kcr.cli.conventions import (
    TEN_MINUTES,
    Answer,
    Name,
    Output,
    OutputFormat,
    Timeout,
    Url,
    Wait,
    chosen,
    note,
    progress,
    region_of,
    reported,
    require_wait,
    show,
    text_in,
)
from airflow_kcr.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_kcr.api import PlanView, Region, ResetView
    from airflow_kcr.api.reset_plans import PlanLine
    from airflow_kcr.protocol.targets import Scope, Target

app = typer.Typer(
    name="reset",
    help="Plan, apply and list resets of a region; its members stay in their groups.",
    no_args_is_help=True,
)

TARGETS: Final = "Where to (exactly one)"
SCOPE: Final = "Which partitions"


def _target(help_: str, metavar: str | None = None) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=help_, metavar=metavar, rich_help_panel=TARGETS, show_default=False
    )
    return option


@app.command()
@reported
def plan(  # noqa: PLR0913 - one option for each target, as Kafka's tool has it
    name: Name,
    store: Url,
    to_checkpoint: Annotated[str | None, _target("The offsets of a checkpoint.", "SEQUENCE")] = None,
    to_run: Annotated[str | None, _target("The checkpoint that belongs to a DAG run.", "DAG/RUN")] = None,
    to_initial: Annotated[bool, _target("Where the region first started: reprocess everything.")] = False,
    to_current: Annotated[bool, _target("The present positions: nothing moves.")] = False,
    to_earliest: Annotated[bool, _target("The start of each log.")] = False,
    to_latest: Annotated[bool, _target("The end of each log.")] = False,
    to_datetime: Annotated[
        str | None, _target("The first record at or after a past time, such as 2026-01-01T10:00:00Z.", "TIME")
    ] = None,
    by_duration: Annotated[str | None, _target("Back in time from now, such as 6h or PT6H.", "DURATION")] = None,
    shift_by: Annotated[str | None, _target("Forward by N offsets, or back if negative (-100).", "RECORDS")] = None,
    to_offset: Annotated[str | None, _target("One offset for every partition.", "OFFSET")] = None,
    from_file: Annotated[
        str | None,
        _target("The offsets in a reset CSV from Kafka's tool or -o csv; - reads standard input.", "FILE"),
    ] = None,
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
    from airflow_kcr.api import ResetRequest
    from airflow_kcr.protocol.scopes import parse_scope

    texts = {
        "to-checkpoint": to_checkpoint,
        "to-run": to_run,
        "to-datetime": to_datetime,
        "by-duration": by_duration,
        "shift-by": shift_by,
        "to-offset": to_offset,
        "from-file": from_file,
    }
    flags = {
        "to-initial": to_initial,
        "to-current": to_current,
        "to-earliest": to_earliest,
        "to-latest": to_latest,
    }
    kind, value = _only(
        [*((k, v) for k, v in texts.items() if v is not None), *((k, None) for k, f in flags.items() if f)]
    )
    scope = parse_scope(group or (), topic or ())
    with region_of(name, store) as region:
        request = ResetRequest(
            target=_read_target(region, kind, value, scope, timezone),
            scope=scope,
            skip=region.records_to_skip(skip or (), scope),
            forward=forward,
            allow_partial=allow_partial,
        )
        found = region.plan_reset(request)
    if save is not None:
        _write(save, json.dumps(found.to_json(), indent=2, ensure_ascii=False) + "\n")
    _show_plan(found, save, output)


def _only(given: list[tuple[str, str | None]]) -> tuple[str, str | None]:
    from airflow_kcr.protocol.targets import TargetKind

    if len(given) == 1:
        return given[0]
    named = ", ".join(f"--{kind}" for kind, _ in given)
    raise typer.BadParameter(
        f"{named} exclude each other" if given else f"name a target: one of {', '.join(f'--{k}' for k in TargetKind)}"
    )


def _read_target(region: Region, kind: str, value: str | None, scope: Scope, timezone: str) -> Target:
    from airflow_kcr.api.reset_plans import local_instant
    from airflow_kcr.protocol.targets import TargetKind, ToDatetime, parse_target

    if timezone and kind != TargetKind.TO_DATETIME:
        raise typer.BadParameter("needs --to-datetime", param_hint="--timezone")
    match kind:
        case TargetKind.FROM_FILE:
            return region.offsets_file(text_in(value or ""), scope)
        case TargetKind.TO_DATETIME:
            return ToDatetime(instant=local_instant(value or "", timezone))
        case _:
            return parse_target(kind, value)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} can't be written: {error}") from None


def _show_plan(found: PlanView, save: Path | None, output: Output) -> None:
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
        view = region.apply_reset(found, reason, forced=force, consent_upsert=consent_upsert)
        if wait or view.state == PersonResetState.FAILED:
            # Applied once more, the plan of a reset that failed says so again: waiting for that one ends at once.
            with progress(found.region) as on_progress:
                view = region.wait_for_reset(found.plan, timeout, on_progress)
        show(shown(view), output)


def _read_plan(file: str) -> PlanView:
    from airflow_kcr.api import PlanView

    text = text_in(file)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{file} is not JSON; `kcr reset plan … --save {file}` writes a plan") from None
    return PlanView.from_json(document)


@app.command("list")
@reported
def list_(
    name: Name,
    store: Url,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="Show the last N resets.")] = 50,
    before: Annotated[
        int | None, typer.Option(min=1, help="Show resets with a lower sequence.", show_default=False)
    ] = None,
    output: Output = None,
) -> None:
    """List the newest 50 resets of a region, oldest first: manual resets, automatic resets and starts.

    `replayed` counts the offsets that were processed again because of a reset. The list includes manual resets that
    are waiting or failed before they began.

    Example: kcr reset list flights --last 10
    """
    with region_of(name, store) as region:
        found = region.resets(before=before, last=last)
        first = next((view.attempts[0].sequence for view in found if view.attempts), None)
        has_older = first is not None and bool(region.resets(before=first, last=1))
    show(listed(found, name, before), output)
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
        show(shown(region.reset(reset)), output)


# How what `kcr reset` finds out is laid out: a plan with its worst partitions first, resets, one reset.

PLANNED: Final = ("group", "topic", "partition", "current", "target", "source", "replay", "skip", "note")
LISTED: Final = (
    "id",
    "state",
    "cause",
    "target",
    "scope",
    "forced",
    "consent_upsert",
    "who",
    "reason",
    "dag_id",
    "run_id",
    "asked_at",
    "started_at",
    "finished_at",
    "timeline",
    "epoch",
    "attempts",
    "undone",
    "rewound",
    "replayed",
    "failure",
    "plan",
)
_TABLE: Final = ("id", "state", "cause", "target", "who", "reason", "asked_at", "attempts", "replayed")
ATTEMPT: Final = ("attempt", "epoch", "sequence", "cause", "state", "started_at", "done_at", "detail")
SHOWN: Final = 20
"""How many partitions a table has; of more, the worst."""

_NUMBERS: Final = frozenset(
    {
        "partition",
        "current",
        "target",
        "replay",
        "skip",
        "attempt",
        "attempts",
        "epoch",
        "sequence",
        "rewound",
        "replayed",
    }
)


def planned(plan: PlanView) -> Answer:
    """Lay out a plan."""
    totals = plan.totals
    is_big = len(plan.lines) > SHOWN
    lines = plan.worst[:SHOWN] if is_big else plan.lines
    shown = f"the worst {len(lines)} of {totals.partitions}; -o json has all" if is_big and lines else ""
    return Answer(
        document=plan.to_json(),
        columns=PLANNED,
        rows=[_row(plan, line) for line in lines],
        facts={"region": plan.region, "plan": plan.plan, "epoch": plan.epoch, **plan.heading(), "shown": shown},
        numbers=_NUMBERS,
    )


def _row(plan: PlanView, line: PlanLine) -> dict[str, object]:
    return {
        "group": line.partition.group,
        "topic": line.partition.topic,
        "partition": line.partition.partition,
        "current": line.current,
        "target": line.target,
        "source": line.source,
        "replay": line.replay,
        "skip": line.skip,
        "note": "; ".join(plan.notes(line)),
    }


def listed(found: Sequence[ResetView], region: str, before: int | None) -> Answer:
    """Lay out the resets of a region."""
    documents = [view.to_json() for view in found]
    rows = [
        document | {"attempts": len(view.attempts), "undone": " ".join(map(str, view.undone))}
        for document, view in zip(documents, found, strict=True)
    ]
    return Answer(
        document=documents,
        columns=LISTED,
        rows=rows,
        table=_TABLE,
        numbers=_NUMBERS,
        empty=f"region {region} was never reset or started"
        if before is None
        else f"region {region} has no reset before {before}",
    )


def shown(view: ResetView) -> Answer:
    """Lay out one reset with its attempts."""
    document = view.to_json()
    facts = {name: value for name, value in document.items() if name not in {"attempts", "undone", "skip"}}
    return Answer(
        document=document,
        columns=ATTEMPT,
        rows=_attempts(document),
        facts=facts
        | {
            "skip": ", ".join(f"{p} at {o}" for p, o in view.asked.skip.items()) if view.asked is not None else "",
            "undone": ", ".join(map(str, view.undone)),
        },
        numbers=_NUMBERS,
    )


def _attempts(document: dict[str, object]) -> list[dict[str, object]]:
    rows = document["attempts"]
    return rows if isinstance(rows, list) else []
