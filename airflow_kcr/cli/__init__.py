"""The `kcr` command: a thin layer over the calls that Python code would make."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_kcr import __version__
from airflow_kcr.cli import (
    adopt,
    checkpoint,
    demo,
    dev,
    export,
    group,
    history,
    lag,
    member,
    recompute,
    region,
    reset,
    run,
    store,
)

app = typer.Typer(
    name="kcr",
    no_args_is_help=True,
    # A traceback with local variables could print a secret.
    pretty_exceptions_show_locals=False,
)
app.add_typer(dev.app)
app.add_typer(store.app)
app.add_typer(region.app)
app.add_typer(group.app)
app.add_typer(member.app)
app.add_typer(checkpoint.app)
app.add_typer(reset.app)
app.add_typer(history.ledger_app)
app.command()(demo.demo)
app.command()(store.doctor)
app.command()(adopt.adopt)
app.command()(run.run)
app.command()(recompute.recompute)
app.command()(lag.lag)
app.command()(export.export)
app.command()(history.events)
app.command()(history.verify)
app.command()(history.report)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kcr {__version__}")
        raise typer.Exit


@app.callback()
def _kcr(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Drain, checkpoint and reset Kafka consumer groups as one consistent region.

    Set KCR_STORE_URL to the URL of the region store, a Postgres database. Results go to standard output: a table on a
    terminal, JSON anywhere else, or the format of -o. Messages and progress go to standard error.

    Exit status: 0 done, 1 failed, 2 wrong usage or invalid input, 3 refused, 4 store or broker unreachable, 5 timed
    out, 130 interrupted by Ctrl-C.
    """


def main() -> None:
    """Run `kcr` on the arguments of this process."""
    app()
