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
    """Certify what is new, then archive and drop what is older than the spec's `history.keep`.

    A closed certificate's events and batches are in a file below `history.archive`, read back and checked, before they
    leave the store. Without `history.archive` nothing is dropped. Whatever ends it, the next call goes on. Exit status
    1 where the history contradicts an invariant or a certificate; nothing is dropped from there on.

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
    """List a region's certificates, oldest first, and where what they cover is archived.

    Write the newest archived digest down elsewhere: with it, the checker finds out that files are missing at the end.

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
