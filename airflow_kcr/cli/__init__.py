"""The `kcr` command: a thin layer over the calls that Python code would make."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_kcr import __version__
from airflow_kcr.cli import store

app = typer.Typer(
    name="kcr",
    help="Drain, checkpoint and reset Kafka consumer groups as one consistent region.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables could print a secret.
    pretty_exceptions_show_locals=False,
)
app.add_typer(store.app)


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
    """Drain, checkpoint and reset Kafka consumer groups as one consistent region."""


def main() -> None:
    """Run `kcr` on the arguments of this process."""
    app()
