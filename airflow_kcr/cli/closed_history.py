"""`kcr history`: which of a region's history is certified and archived, and closing it."""

from __future__ import annotations

from typing import Final

import typer

from airflow_kcr.cli.options import Name, Output, Url
from airflow_kcr.cli.output import Answer, show
from airflow_kcr.cli.reporting import reported
from airflow_kcr.cli.session import region_of

app = typer.Typer(
    name="history",
    help="Archive and drop certified history, and list what is certified and archived.",
    no_args_is_help=True,
)

CERTIFICATES: Final = ("number", "after", "upto", "batches", "digest", "archive", "bytes")


@app.command()
@reported
def close(name: Name, store: Url, output: Output = None) -> None:
    """Certify new history, then archive and drop history older than the spec's `history.keep`.

    Writes events and batches to files below `history.archive`, and drops them from the store after it has read each
    file back and checked it. Without `history.archive`, drops nothing. After an interruption, run it again: it
    continues where it stopped. Exits with status 1 if the history contradicts an invariant or a certificate.

    Example: kcr history close flights
    """
    with region_of(name, store) as region:
        closing = region.close_history()
    rows = [{"invariant": v.invariant, "detail": v.detail} for v in closing.violations]
    answer = Answer(
        document=closing.to_json(),
        columns=("invariant", "detail"),
        rows=rows,
        facts={
            "region": name,
            "closed": "nothing" if closing.upto is None else f"up to event {closing.upto}",
            "archived": f"{len(closing.archived)} file(s)",
            "dropped": f"{closing.events:,} events, {closing.batches:,} batches",
            "verdict": f"{len(rows)} violation(s)" if rows else "consistent",
        },
    )
    show(answer, output)
    if rows:
        raise typer.Exit(1)


@app.command("list")
@reported
def list_(name: Name, store: Url, output: Output = None) -> None:
    """List a region's certificates, oldest first, with their archive files.

    Keep a copy of the newest archived digest elsewhere: with it, the checker detects missing files at the end of the
    archive.

    Example: kcr history list flights
    """
    with region_of(name, store) as region:
        rows = [
            {
                "number": one.number,
                "after": one.body.get("after"),
                "upto": one.horizon.counter,
                "batches": one.body.get("batches"),
                "digest": one.digest,
                "archive": None if one.archive is None else one.archive.name,
                "bytes": None if one.archive is None else one.archive.size,
            }
            for one in region.certificates()
        ]
    answer = Answer(
        document=rows,
        columns=CERTIFICATES,
        rows=rows,
        numbers=frozenset({"number", "after", "upto", "batches", "bytes"}),
        empty=f"nothing of region {name} is certified; run `kcr verify {name}`",
    )
    show(answer, output)
