"""`kcr lag`: how far a region is behind now, was, and what that means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import sleep
from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_kcr.cli.endings import reported
from airflow_kcr.cli.inputs import region_of
from airflow_kcr.cli.options import Name, Output, Url
from airflow_kcr.cli.results import OutputFormat, chosen, csv_line, listed, plain, show, show_line

if TYPE_CHECKING:
    from airflow_kcr.api import GroupLag, LagAt, Region, RegionLag

PERIOD: Final = 5.0
"""Seconds between two readings of `--watch`."""

WATCHED: Final = ("at", "group", "lag", "lag_seconds", "verdict", "why")

_BARS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 60
"""How many of the newest samples a sparkline has."""


@reported
def lag(
    name: Name,
    store: Url,
    history: Annotated[
        bool, typer.Option("--history", help="Show the kept samples of each group, oldest first; Kafka is not asked.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show each group every five seconds until Ctrl-C; JSON is one line each.")
    ] = False,
    output: Output = None,
) -> None:
    """Show the lag of each partition in records and in time, and what it means.

    The position is the next offset to process; `lag` counts offsets from there to the end, and is 0 if only transaction
    markers, aborted records or gaps are left. `lag_seconds` is the age of the first record to process; without the
    right to read it, that follows from the kept history, or is unknown. The committed offset moves only at checkpoints.
    `trouble` says why a position isn't in its log.

    `verdict` is the first that fits: unknown, rewound, ok, stopped, stalled or warn. See `docs/reference/lag.md`.

    Example: kcr lag flights --history
    """
    from airflow_kcr.api import Lag, LagAt

    if history and watch:
        raise typer.BadParameter("--history and --watch exclude each other")
    with region_of(name, store) as region:
        if watch:
            _watch(region, chosen(output))
        elif history:
            samples = region.lag_history()
            empty = f"no sample of region {name} is kept; its members and `kcr export` take them"
            show(replace(listed(LagAt.shown, samples, empty), facts=_sparklines(samples)), output)
        else:
            found = region.measure_lag()
            empty = f"region {name} has no partition yet: none of its topics exists"
            show(replace(listed(Lag.shown, found.partitions, empty), facts=_facts(found)), output)


def _facts(found: RegionLag) -> dict[str, object]:
    """Return what stands above the partitions: the verdict on each group, and on the region if it has several."""
    groups: dict[str, object] = {group.group: _of_group(group) for group in found.groups}
    return ({"region": found.finding.text()} if len(groups) > 1 else {}) | groups


def _of_group(group: GroupLag) -> str:
    from airflow_kcr.api.views import span

    behind = "" if not group.behind else f", {span(group.behind)} behind"
    rest = "" if group.caught_up_in is None else f", caught up in {span(group.caught_up_in)} at the rate of 10 min"
    return f"{plain(group.records)} to read{behind}{rest}; {group.finding.text()}"


def _watch(region: Region, output: OutputFormat) -> None:
    """Write a line for each group, again and again; Ctrl-C is how this ends."""
    if output is OutputFormat.CSV:
        typer.echo(csv_line(WATCHED))
    while True:
        for row in _watched(region.measure_lag()):
            match output:
                case OutputFormat.JSON:
                    show_line(row)
                case OutputFormat.CSV:
                    typer.echo(csv_line(row.values()))
                case OutputFormat.TABLE:
                    typer.echo("  ".join(plain(cell) for cell in row.values() if cell != ""))
        sleep(PERIOD)


def _watched(found: RegionLag) -> Iterable[dict[str, object]]:
    from airflow_kcr.api.views import document_of

    for group in found.groups:
        why = group.finding.text() if group.finding.what else ""
        cells = (found.now, group.group, group.records, group.behind, group.finding.verdict, why)
        yield document_of(dict(zip(WATCHED, cells, strict=True)))


def _sparklines(samples: Iterable[LagAt]) -> dict[str, object]:
    groups: dict[str, list[int | None]] = {}
    for sample in samples:
        groups.setdefault(str(sample.group), []).append(sample.lag)
    return {group: sparkline(lags[-_WIDTH:]) for group, lags in groups.items()}


def sparkline(lags: Sequence[int | None]) -> str:
    """Return lags as bars from 0 to the largest; one that is not known is a gap."""
    most = max((lag for lag in lags if lag is not None), default=0)
    return "".join(" " if lag is None else _BARS[-(-lag * (len(_BARS) - 1) // max(most, 1))] for lag in lags)
